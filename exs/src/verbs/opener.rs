//! Opens the RDMA devices of the host.

use std::sync::Arc;

use super::raw::{Attr, Device, load};
use super::{VerbsRnic, host};
use crate::rnic::{Rnic, RnicError};

/// Work requests of a queue pair, without which EXS does not use a device.
const LEAST_QP_WR: u32 = 32;

/// Opens the RDMA devices of this host: at first all of them, later those that have come since. A
/// device that was removed and comes back is another device.
#[derive(Default)]
pub struct Opener {
    host: Option<Arc<host::CmHost>>,
    opened: Vec<Device>,
}

impl Opener {
    /// Opens the devices that were not there before. Each becomes an RNIC, which takes the next of
    /// `tokens` as the first of its tokens. Without a device the result is empty, and no error.
    ///
    /// # Errors
    /// [`RnicError::NoLibrary`] on a host without rdma-core; the errors of its libraries.
    pub fn open(
        &mut self,
        registry: &mio::Registry,
        tokens: &mut dyn Iterator<Item = usize>,
    ) -> Result<Vec<Box<dyn Rnic>>, RnicError> {
        load()?;
        let new =
            Device::not_among(&self.opened).map_err(|e| RnicError::os("rdma_get_devices", &e))?;
        let mut rnics: Vec<Box<dyn Rnic>> = Vec::new();
        // A device that could not be opened leaves its tokens to the next one: the caller counts the
        // tokens that it hands out.
        let mut spare = None;
        for device in new {
            let Some(token_base) = spare.take().or_else(|| tokens.next()) else { break };
            let host = match &self.host {
                Some(host) => host,
                None => self.host.insert(
                    host::CmHost::new()
                        .map_err(|e| RnicError::os("rdma_create_event_channel", &e))?,
                ),
            };
            match VerbsRnic::new(registry, token_base, device, host) {
                Ok(rnic) => {
                    self.opened.push(device);
                    rnics.push(Box::new(rnic));
                }
                // The device may be about to be removed; that must not keep the others from being used.
                Err(e @ (RnicError::Unsupported(_) | RnicError::Limit { .. })) => {
                    self.opened.push(device);
                    spare = Some(token_base);
                    crate::trace::warn!("{} cannot be used: {e}", device.name());
                }
                Err(e) if !self.opened.is_empty() => {
                    spare = Some(token_base);
                    crate::trace::warn!("{} cannot be used: {e}", device.name());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(rnics)
    }
}

/// The attributes of a device.
///
/// # Errors
/// It lacks something that EXS needs.
pub(super) fn usable(device: Device) -> Result<Attr, RnicError> {
    let attr = device.attr().map_err(|e| RnicError::os("ibv_query_device", &e))?;
    if attr.max_qp_wr < LEAST_QP_WR {
        let (asked, limit) = (LEAST_QP_WR.into(), attr.max_qp_wr.into());
        return Err(RnicError::Limit { what: "work requests of a queue pair", asked, limit });
    }
    Ok(attr)
}
