//! The local name of a socket: what `bind` was asked for, and what the socket has.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// See the module's essay.
#[derive(Default)]
pub(super) struct Binding {
    addr: Option<SocketAddr>,
    /// The address that the program gave to `bind`, if a port was claimed for it.
    asked: Option<SocketAddr>,
    /// A descriptor that keeps the TCP port of `bind` until `listen` or `connect` uses it.
    port: Option<OwnedFd>,
}

impl Binding {
    /// That of a socket which takes an address over from another, or from its connection.
    pub(super) fn at(addr: Option<SocketAddr>) -> Binding {
        Binding { addr, ..Binding::default() }
    }

    /// The local address. Its port is 0 until one is chosen.
    pub(super) fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// The program binds the socket to `asked`. The TCP port of `addr` is claimed for it.
    pub(super) fn claim(&mut self, asked: SocketAddr, (port, addr): (OwnedFd, SocketAddr)) {
        *self = Binding { addr: Some(addr), asked: Some(asked), port: Some(port) };
    }

    /// True if a TCP port was claimed, and the program did not say which.
    pub(super) fn has_any_port(&self) -> bool {
        self.asked.is_some_and(|asked| asked.port() == 0)
    }

    /// Frees the TCP port for the `listen` or `connect` that is about to use it.
    pub(super) fn free_port(&mut self) {
        self.port = None;
    }

    /// The socket listens on this port now.
    pub(super) fn listen(&mut self, addr: SocketAddr) {
        self.addr = Some(addr);
    }

    /// The socket has the local address of its connection, and needs no claimed port any more.
    pub(super) fn of_connection(&mut self, addr: Option<SocketAddr>) {
        (self.addr, self.port) = (addr, None);
    }

    /// The socket listens no more, and is as `bind` has left it, without a port of its own.
    pub(super) fn end_listening(&mut self) {
        self.addr = self.asked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn bound(asked: u16, got: u16) -> Binding {
        let mut binding = Binding::default();
        let port = std::fs::File::open("/dev/null").unwrap().into();
        binding.claim(addr(asked), (port, addr(got)));
        binding
    }

    #[test]
    fn a_listener_that_ends_is_bound_as_before() {
        let mut binding = bound(0, 4000);
        assert!(binding.has_any_port() && binding.port.is_some());
        assert_eq!(binding.addr(), Some(addr(4000)));
        binding.free_port();
        assert!(binding.port.is_none());
        binding.listen(addr(4001));
        assert_eq!(binding.addr(), Some(addr(4001)));
        binding.end_listening();
        assert_eq!(binding.addr(), Some(addr(0)), "any port will do again");
    }

    #[test]
    fn only_a_bind_without_a_port_leaves_the_choice() {
        assert!(!bound(4000, 4000).has_any_port());
        // No port was claimed: an RDMA device is to choose one, or refuse it.
        assert!(!Binding::at(Some(addr(0))).has_any_port());
        let mut unbound = Binding::default();
        unbound.listen(addr(5000));
        unbound.end_listening();
        assert_eq!(unbound.addr(), None);
    }
}
