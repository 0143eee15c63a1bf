//! The path of a connection: what EXS asks of the device. Where a program asks for nothing, the values
//! here suit connections with credits, whose peers post receives ahead.

use super::VerbsRnic;
use super::raw::CmId;
use crate::rnic::PathAttr;
#[cfg(any(test, feature = "internals"))]
use crate::rnic::{Qp, RnicError};

/// Timeout of an acknowledgement: 4.096 us << 18 is a second. The device sends eight times.
const ACK_TIMEOUT: u8 = 18;
/// Code of InfiniBand for 0.64 ms: how long a peer waits for a receive that is about to be posted.
pub(super) const RNR_TIMER: u8 = 12;
/// How many times the device sends again. Seven is the most; for RNR it means for ever: credits say
/// how long.
const RETRIES: u8 = 7;

/// How many times the device sends again what was not acknowledged, and what found no receive.
pub(super) fn retries(path: &PathAttr) -> (u8, u8) {
    (path.retry_count.unwrap_or(RETRIES), path.rnr_retry_count.unwrap_or(RETRIES))
}

impl VerbsRnic {
    /// The path that the device's queue pair has.
    ///
    /// # Errors
    /// It has none, or the device does not say so.
    #[cfg(any(test, feature = "internals"))]
    pub fn path(&self, qp: Qp) -> Result<PathAttr, RnicError> {
        let hw = self.qps.get(qp.0)?.hw.as_ref().ok_or_else(|| self.wrong_state(qp, "Rts"))?;
        hw.id.path().map_err(|e| RnicError::os("ibv_query_qp", &e))
    }

    /// Sets the acknowledgement timeout. Not on iWARP, whose TCP has timers of its own.
    pub(super) fn set_ack_timeout(&self, id: &CmId, path: &PathAttr) {
        if !self.attr.iwarp
            && let Err(e) = id.ack_timeout(path.ack_timeout.unwrap_or(ACK_TIMEOUT))
        {
            crate::trace::debug!("{}: RDMA_OPTION_ID_ACK_TIMEOUT: {e}", self.caps.name);
        }
    }
}
