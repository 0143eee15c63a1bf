//! What is known of a socket's connection: its two ends, the device that it uses, and its span for
//! logs.

use std::fmt;
use std::net::SocketAddr;

use crate::progress::route::Route;
use crate::trace::{ConnectionSpan, debug};

/// See the module's essay. It outlives the connection: a program may ask later.
#[derive(Default)]
pub(super) struct ConnectionFacts {
    /// The local address and the peer's. None: the socket was never connected.
    addrs: Option<(SocketAddr, SocketAddr)>,
    /// The device, and the reason for its choice.
    route: Option<Box<Route>>,
    span: ConnectionSpan,
}

impl ConnectionFacts {
    /// A peer connects, by this route.
    pub(super) fn of_request(
        socket: impl fmt::Display,
        addrs: (SocketAddr, SocketAddr),
        route: Route,
    ) -> ConnectionFacts {
        let span = ConnectionSpan::of_request(socket, addrs.1);
        let mut facts = ConnectionFacts { addrs: Some(addrs), route: None, span };
        facts.set_route(route);
        facts
    }

    /// The socket begins to connect to `addr`.
    pub(super) fn begin(&mut self, socket: impl fmt::Display, addr: SocketAddr) {
        self.span = ConnectionSpan::of_connect(socket, addr);
    }

    /// The device that the connection, or its attempt, uses.
    pub(super) fn set_route(&mut self, route: Route) {
        self.span.note_route(route.transport, &route.device);
        self.route = Some(Box::new(route));
    }

    /// The device has told the addresses.
    pub(super) fn set_addrs(&mut self, addrs: (SocketAddr, SocketAddr)) {
        self.addrs = Some(addrs);
    }

    /// No device is used any more.
    pub(super) fn clear_route(&mut self) {
        self.route = None;
    }

    /// The span, for the session to log in.
    pub(super) fn span(&self) -> ConnectionSpan {
        self.span.clone()
    }

    /// The span ends: nothing more is logged of the connection.
    pub(super) fn end_span(&mut self) {
        self.span = ConnectionSpan::NONE;
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.addrs.map(|(local, _)| local)
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.addrs.map(|(_, peer)| peer)
    }

    pub(super) fn route(&self) -> Option<&Route> {
        self.route.as_deref()
    }

    /// Logs something of the route in the span of the connection.
    pub(super) fn log_route(&self, f: impl FnOnce(&Route)) {
        if let Some(route) = &self.route {
            self.span.log(|| f(route));
        }
    }

    /// Logs something in the span of the connection.
    pub(super) fn log(&self, f: impl FnOnce()) {
        self.span.log(f);
    }

    /// Logs that the connection is established.
    pub(super) fn log_established(&self) {
        if let Some(local) = self.local() {
            self.span.note_local(local);
        }
        self.span.log(|| debug!("the connection is established"));
    }

    /// Logs that the connection is established, on the side that connects. The other side must have
    /// READY before it uses the connection, and its session logs that.
    pub(super) fn log_connected(&self) {
        self.log_established();
        self.span.log(|| debug!("READY goes to the peer: the connection can be used"));
    }
}
