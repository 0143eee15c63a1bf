//! Routes: the device that a connection uses, and why.

use std::fmt;
use std::time::Duration;

use super::options::Transport;
use crate::rnic::RnicError;

/// The device that a connection uses.
///
/// ```
/// use exs::{Options, Socket, SocketType, Transport};
///
/// let options = Options::default().with_transport(Transport::Soft);
/// let listener = Socket::with_options(SocketType::Stream, options)?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(8)?;
/// let client = Socket::stream()?;
/// assert!(client.transport().is_none(), "it is not connected");
/// client.blocking().connect(listener.local_addr()?)?;
/// let route = client.transport().unwrap();
/// assert_eq!(route.transport, Transport::Soft);
/// assert_eq!(route.to_string(), "soft");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// [`Transport::Soft`], [`Transport::Shm`] or [`Transport::Verbs`].
    pub transport: Transport,
    /// The name of the device, as "rxe0". "soft" is the software RNIC, "shm" is shared memory.
    pub device: String,
    /// Why EXS has chosen this device.
    pub reason: String,
}

/// `soft`, `shm`, or `verbs (rxe0)`.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Soft | Transport::Shm => self.transport.fmt(f),
            other => write!(f, "{other} ({})", self.device),
        }
    }
}

/// Whether a device reaches an address.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(super) device: usize,
    pub(crate) transport: Transport,
    pub(crate) name: String,
    /// Why the device cannot reach the address. None: it can.
    pub(crate) refused: Option<RnicError>,
    /// The time since the peer did not answer by this device. None: it is not in the unreachable
    /// cache.
    pub(super) silent: Option<Duration>,
}
