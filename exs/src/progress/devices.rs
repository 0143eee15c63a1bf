//! Which devices there are: the one place that names the drivers.
//!
//! The software RNIC is there from the start. RDMA devices are looked for when a
//! socket first connects or listens that may use them, so that a program which
//! pins the software RNIC never touches libibverbs.

use super::Error;
use crate::rnic::Rnic;
use crate::tcp::SoftRnic;

type MakeSoft = dyn FnOnce(mio::Registry, usize) -> Result<Box<dyn Rnic>, Error> + Send;
pub(super) type OpenVerbs =
    dyn FnOnce(&mio::Registry, usize, usize) -> Result<Vec<Box<dyn Rnic>>, Error> + Send;

/// How a context comes by its devices.
pub struct Devices {
    pub(super) soft: Box<MakeSoft>,
    /// None: EXS was built without them.
    pub(super) verbs: Option<Box<OpenVerbs>>,
}

impl Devices {
    /// The software RNIC that `soft` makes (for a registry and a first token), and
    /// the RDMA devices that `verbs` opens (for a registry, a first token, and how
    /// far the first tokens of two devices are apart).
    pub fn new(
        soft: impl FnOnce(mio::Registry, usize) -> Result<Box<dyn Rnic>, Error> + Send + 'static,
        verbs: impl FnOnce(&mio::Registry, usize, usize) -> Result<Vec<Box<dyn Rnic>>, Error>
        + Send
        + 'static,
    ) -> Devices {
        Devices { soft: Box::new(soft), verbs: Some(Box::new(verbs)) }
    }

    /// What this host has.
    pub fn of_host() -> Devices {
        Devices { soft: Box::new(soft), verbs: verbs() }
    }
}

/// iWARP over TCP, in user space.
fn soft(registry: mio::Registry, token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    let rnic = SoftRnic::with_kernel_keys(registry, token_base)
        .map_err(|e| Error::os("getrandom", &e))?;
    Ok(Box::new(rnic))
}

#[cfg(feature = "verbs")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there are none")]
fn verbs() -> Option<Box<OpenVerbs>> {
    Some(Box::new(|registry, base, apart| Ok(crate::verbs::open(registry, base, apart)?)))
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Option<Box<OpenVerbs>> {
    None
}
