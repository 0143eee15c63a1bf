//! Which devices there are. Today: the software RNIC.

use super::Error;
use crate::rnic::Rnic;
use crate::tcp::SoftRnic;

/// The software RNIC: iWARP over TCP, in user space.
pub(super) fn soft(registry: mio::Registry, token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    Ok(Box::new(SoftRnic::new(registry, token_base)?))
}
