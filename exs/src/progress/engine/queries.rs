//! What calls ask of one socket, and the changes that concern nothing else.

use std::net::SocketAddr;

use super::Error;
use super::binding::Binding;
use super::domain::Place;
use super::figures;
use super::sock::{Sock, State};
use super::sockets::{SockId, SocketTable};
use crate::ids::OpId;
use crate::progress::event::Readiness;
use crate::progress::host::check_scope;
use crate::progress::options::{Options, Transport};
use crate::progress::route::Route;
use crate::rnic::{Qp, RnicError};
use crate::session::{Counters, OpError, Session};
use crate::sys;
use crate::time::Time;
#[cfg(feature = "tokio")]
use crate::wire::exs::SocketKind;

impl SocketTable {
    pub(crate) fn options_of(&self, id: SockId) -> Option<Options> {
        self.get(id).map(|s| s.opts.clone())
    }

    pub(crate) fn set_options(&mut self, id: SockId, opts: Options) -> Result<(), Error> {
        opts.check()?;
        let s = self.find(id)?;
        if let Some(session) = s.session.as_mut() {
            session.set_timeouts(opts.send_timeout, opts.recv_timeout);
            session.set_keepalive(opts.keep_alive, opts.dead_after);
        }
        s.opts = opts;
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn is_listening(&self, id: SockId) -> bool {
        self.get(id).is_some_and(|s| s.state == State::Listening)
    }

    /// False for a socket that is gone.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_seqpacket(&self, id: SockId) -> bool {
        self.get(id).is_some_and(|s| s.kind == SocketKind::SeqPacket)
    }

    pub(crate) fn readiness_of(&self, id: SockId) -> Readiness {
        self.get(id).map_or_else(Readiness::default, |s| s.readiness())
    }

    /// Why a socket's connection has broken, as errno. None: it has not broken.
    pub(crate) fn failure_of(&self, id: SockId) -> Option<i32> {
        let s = self.get(id).filter(|s| s.state == State::Open)?;
        Some(s.session.as_ref()?.failure()?.errno())
    }

    /// True if the session would take a receive, which would find neither data nor their end.
    pub(crate) fn recv_would_wait(&mut self, id: SockId) -> bool {
        let ready = self.readiness_of(id);
        !ready.readable && !ready.error && self.checked(id).is_ok()
    }

    /// The addresses of a socket: its own, and its peer's. None: the socket is gone.
    pub(crate) fn addrs(&self, id: SockId) -> Option<(Option<SocketAddr>, Option<SocketAddr>)> {
        let s = self.get(id)?;
        Some((s.facts.local().or(s.binding.addr()), s.facts.peer()))
    }

    /// The device by which a socket is connected. None: the socket is not connected.
    pub(crate) fn route_of(&self, id: SockId) -> Option<Route> {
        let s = self.get(id)?;
        s.facts.route().filter(|_| s.facts.peer().is_some()).cloned()
    }

    /// The counters of a socket's connections.
    pub(crate) fn counters_of(&self, id: SockId) -> Option<Counters> {
        let s = self.get(id)?;
        let mut sum = s.past;
        if let Some(session) = &s.session {
            figures::add(&mut sum, session.counters());
        }
        Some(sum)
    }

    /// The socket, which must be new for this call.
    pub(super) fn fresh(&mut self, id: SockId, call: &'static str) -> Result<&mut Sock, Error> {
        let s = self.find(id)?;
        let errno = match (&s.state, call) {
            (State::Fresh, _) => return Ok(s),
            (State::Closed, _) => libc::EBADF,
            // bind(2) and listen(2) have a single error for every socket that is not new.
            (_, "bind" | "listen") => libc::EINVAL,
            (State::Connecting { .. }, _) => libc::EALREADY,
            _ => libc::EISCONN,
        };
        Err(Error::State { call, need: "is new", is: s.state.describe(), errno })
    }

    pub(crate) fn bind(&mut self, id: SockId, addr: SocketAddr) -> Result<(), Error> {
        let s = self.fresh(id, "bind")?;
        check_scope(addr).map_err(Error::invalid)?;
        if s.binding.addr().is_some() {
            return Err(Error::invalid("the socket is bound already"));
        }
        // RDMA devices have a port space of their own, so there is no TCP port to claim for them.
        if s.opts.transport == Transport::Verbs {
            s.binding = Binding::at(Some(addr));
            return Ok(());
        }
        let refused = |e| Error::Bind { addr, cause: RnicError::os("bind", &e) };
        s.binding.claim(addr, sys::claim_port(&addr, s.opts.v6_only).map_err(refused)?);
        Ok(())
    }

    /// The socket's place, if operations may be posted to it.
    pub(super) fn checked(&mut self, id: SockId) -> Result<Place, Error> {
        let s = self.find(id)?;
        s.open_session()?;
        Ok(s.place)
    }

    /// Posts an operation to the session of a socket, and marks the socket.
    pub(super) fn session_post(
        &mut self,
        id: SockId,
        post: impl FnOnce(&mut Session) -> Result<(), OpError>,
    ) -> Result<(), OpError> {
        let s = self.find(id).map_err(|_| OpError::Closed)?;
        let posted = post(s.open_session()?);
        self.mark(id.index);
        posted
    }

    /// The socket of a queue pair that is connecting.
    pub(super) fn connecting(&self, device: usize, qp: Qp) -> Option<(SockId, SocketAddr)> {
        let index = self.of_qp(device, qp)?;
        match self[index].state {
            State::Connecting { addr, .. } => Some((self.id(index), addr)),
            _ => None,
        }
    }

    /// Cancels parts. The session ignores those that have ended already.
    pub(super) fn cancel_parts(&mut self, id: SockId, parts: &[OpId], now: Time) {
        if let Some(session) = self.find(id).ok().and_then(|s| s.session.as_mut()) {
            for op in parts {
                session.cancel(now, *op);
            }
        }
        self.mark(id.index);
    }
}
