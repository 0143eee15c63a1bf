//! Which devices there are. Today: the software RNIC.

use super::Error;
use crate::rnic::Rnic;
use crate::tcp::SoftRnic;

/// The software RNIC: iWARP over TCP, in user space.
pub(super) fn soft(registry: mio::Registry, token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    let rnic = SoftRnic::with_kernel_keys(registry, token_base)
        .map_err(|e| Error::os("getrandom", &e))?;
    Ok(Box::new(rnic))
}
