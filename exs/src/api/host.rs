//! Connects to hosts by name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::{EventQueue, Socket, Token};
use crate::progress::{Error, Host};

/// What names a host to connect to: text such as `"server.example:7471"` or `"[fe80::1%eth0]:7471"`,
/// a name and a port, an address, or several addresses. It has no call that waits, in contrast to
/// [`ToSocketAddrs`](std::net::ToSocketAddrs): the connect itself resolves the name.
///
/// ```
/// use exs::ToHost;
/// use std::net::Ipv4Addr;
/// for host in [("server.example", 7471).to_host()?, "server.example:7471".to_host()?] {
///     assert_eq!(host.to_string(), "server.example:7471");
/// }
/// assert_eq!((Ipv4Addr::LOCALHOST, 80).to_host()?, "127.0.0.1:80".to_host()?);
/// # Ok::<(), exs::Error>(())
/// ```
pub trait ToHost {
    /// The host.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text names no host; the message says why.
    fn to_host(&self) -> Result<Host, Error>;
}

impl ToHost for Host {
    fn to_host(&self) -> Result<Host, Error> {
        Ok(self.clone())
    }
}

impl ToHost for str {
    fn to_host(&self) -> Result<Host, Error> {
        self.parse()
    }
}

impl ToHost for String {
    fn to_host(&self) -> Result<Host, Error> {
        self.parse()
    }
}

impl ToHost for (&str, u16) {
    fn to_host(&self) -> Result<Host, Error> {
        Host::new(self.0, self.1)
    }
}

impl ToHost for (String, u16) {
    fn to_host(&self) -> Result<Host, Error> {
        Host::new(&self.0, self.1)
    }
}

impl ToHost for [SocketAddr] {
    fn to_host(&self) -> Result<Host, Error> {
        Ok(Host::from_addresses(self.iter().copied()))
    }
}

impl ToHost for Vec<SocketAddr> {
    fn to_host(&self) -> Result<Host, Error> {
        self[..].to_host()
    }
}

impl<T: ToHost + ?Sized> ToHost for &T {
    fn to_host(&self) -> Result<Host, Error> {
        (**self).to_host()
    }
}

/// A host by what converts to a single address.
macro_rules! single {
    ($($ty:ty),+) => {$(
        impl ToHost for $ty {
            fn to_host(&self) -> Result<Host, Error> {
                Ok(Host::from_addresses([SocketAddr::from(*self)]))
            }
        }
    )+};
}

single!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl Socket {
    /// Connects to the first address of a host that answers, by Happy Eyeballs (RFC 8305).
    /// [`Completion::Connect`](super::Completion::Connect) says that both ends are there.
    ///
    /// The call does not wait: a thread of the library resolves the name. The attempts begin in the
    /// order of the system's resolver (RFC 6724), in which IPv6 and IPv4 take turns. The next begins
    /// when one fails, or after 250 ms without an answer. The first success wins, and EXS ends the
    /// others. Each attempt tries the transports as [`Socket::connect`] does.
    /// [`Options::connect_timeout`](crate::Options) limits the time of all of it. The event comes
    /// once, whatever happens; [`Socket::cancel`] ends the connect at once.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let again = Socket::stream()?;
    /// again.connect_host(&queue, Token(1), ("127.0.0.1", listener.local_addr()?.port()))?;
    /// queue.next()?.into_completion()?; // it is connected, or this is why not
    /// assert_eq!(again.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::connect`]; [`Error::Invalid`] if the host is not a valid one, or is a link-local
    /// address without its interface. The event has [`Error::Resolve`] if the name has no address,
    /// and [`Error::ConnectHost`], with the reason at each address, if none answers. A host that is
    /// given by a single address has the errors of [`Socket::connect`].
    pub fn connect_host(
        &self,
        queue: &EventQueue,
        token: Token,
        host: impl ToHost,
    ) -> Result<(), Error> {
        let host = host.to_host()?;
        self.post_bare(queue, || {
            self.handle().connect(queue.core(), |e, id, call| {
                e.connect_host(id, &self.ticket(queue, token), &host, call.now())
            })
        })
    }
}
