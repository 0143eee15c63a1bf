//! Which devices there are.

use std::sync::Arc;

use super::raw::{Attr, Device};
use super::{VerbsRnic, host};
use crate::rnic::{Rnic, RnicError};

/// Opens the RDMA devices of this host: first all, later those that have come since. A
/// device that was taken away and comes back is another one.
#[derive(Default)]
pub struct Opener {
    host: Option<Arc<host::Host>>,
    opened: Vec<Device>,
}

impl Opener {
    /// Opens the devices that were not there before: an RNIC each, with the next of
    /// `tokens` as the first of its tokens. None, and no error, where there is no device.
    ///
    /// # Errors
    /// What libibverbs or librdmacm said.
    pub fn open(
        &mut self,
        registry: &mio::Registry,
        tokens: &mut dyn Iterator<Item = usize>,
    ) -> Result<Vec<Box<dyn Rnic>>, RnicError> {
        let new =
            Device::others_than(&self.opened).map_err(|e| RnicError::os("rdma_get_devices", &e))?;
        let mut rnics: Vec<Box<dyn Rnic>> = Vec::new();
        // Tokens of a device that could not be opened are the next one's: the caller counts
        // those that it gets.
        let mut spare = None;
        for device in new {
            let Some(token_base) = spare.take().or_else(|| tokens.next()) else { break };
            let host = match &self.host {
                Some(host) => host,
                None => self.host.insert(
                    host::Host::new()
                        .map_err(|e| RnicError::os("rdma_create_event_channel", &e))?,
                ),
            };
            match VerbsRnic::new(registry, token_base, device, host) {
                Ok(rnic) => {
                    self.opened.push(device);
                    rnics.push(Box::new(rnic));
                }
                // It may be about to go; the others need not do without us for that.
                Err(e @ RnicError::Unsupported(_)) => {
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

/// What a device can do, if that is enough for EXS.
pub(super) fn usable(device: Device) -> Result<Attr, RnicError> {
    let attr = device.attr().map_err(|e| RnicError::os("ibv_query_device", &e))?;
    if attr.max_srq == 0 {
        return Err(RnicError::Unsupported("RDMA device that has no shared receive queues"));
    }
    Ok(attr)
}
