//! Connection requests that an RNIC of another shard answers, on the same device.
//!
//! The id of a request has the event channel of its listener, and with it the listener's shard.
//! `rdma_migrate_id` moves the id to the channel of the RNIC that takes the request over. No event
//! can be on its way then: the kernel reports none of an id from its request to its accept.

use super::VerbsRnic;
use super::cm::CmRequest;
use super::raw::CmId;
use crate::rnic::{ConnReq, DetachedRequest, RnicError};

/// A request between two RNICs. To drop the id rejects it.
struct DetachedId {
    id: CmId,
    ird: u8,
    ord: u8,
}

impl VerbsRnic {
    pub(super) fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let CmRequest { id, ird, ord, .. } = self.startups.take_request(req)?;
        Ok(DetachedRequest::new(DetachedId { id, ird, ord }))
    }

    pub(super) fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        let DetachedId { mut id, ird, ord } = request.into_state()?;
        self.alive()?;
        if id.device() != Some(self.device) {
            return Err(RnicError::Unsupported("use for a request by another device"));
        }
        self.cm_ids.adopt(&mut id).map_err(|e| RnicError::os("rdma_migrate_id", &e))?;
        self.startups.add_request(CmRequest { listener: None, id, ird, ord })
    }
}
