//! Listeners of several RNICs at one port.
//!
//! Each shard of a process has an RNIC of its own. A shard that accepts from a listener of another
//! shard gets an acceptor of the same connections, so that a connection comes to it without the other
//! shard. The kernel wakes the reactor that was registered first among those in which a thread waits.
//! So a listener that has accepted registers anew: it comes last, and the shards take turns. While the
//! kernel cannot register a listener, the listener looks for connections itself, every
//! [`STARVED_PAUSE`].

use std::net::SocketAddr;
use std::time::Duration;

use super::Driver;
use super::link::{Acceptor, LinkSetup};
use super::listen::STARVED_PAUSE;
use super::turns::Source;
use crate::rnic::{Listener, RnicError, SharedPort};
use crate::time::Time;

/// A listener's port, without the state of the listener.
pub(super) struct ListenPort<A> {
    pub(super) acceptor: A,
    pub(super) addr: SocketAddr,
    pub(super) handshake_timeout: Duration,
    pub(super) max_requests: usize,
}

/// How a listener shares its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortShare {
    /// No other RNIC listens there.
    Alone,
    /// Others listen there, and this one takes its share.
    InTurn,
    /// Others listen there, and have all connections.
    Rests,
}

impl PortShare {
    /// Connections accepted from one listener before others have their turn. If several RNICs accept,
    /// a thread has been woken for each connection, so each takes its own.
    pub(super) fn accept_step(self) -> usize {
        match self {
            PortShare::InTurn => 1,
            PortShare::Alone | PortShare::Rests => 64,
        }
    }
}

impl<L: LinkSetup> Driver<L> {
    pub(super) fn share_port(&mut self, listener: Listener) -> Result<SharedPort, RnicError> {
        let l = self.listening.listeners.get_mut(listener.0)?;
        let shared = l.acceptor.share().map_err(|e| RnicError::os("dup", &e))?;
        let unable = RnicError::Unsupported("several listeners at one port");
        let acceptor = shared.ok_or(unable)?;
        let (addr, handshake_timeout) = (l.addr, l.handshake_timeout);
        let port = ListenPort { acceptor, addr, handshake_timeout, max_requests: l.max_requests };
        if l.share == PortShare::Alone {
            l.share = PortShare::InTurn;
            l.acceptor.forget(&self.reactor);
            self.watch_or_serve(listener.0);
        }
        Ok(SharedPort::new(port))
    }

    pub(super) fn join_port(&mut self, shared: SharedPort) -> Result<Listener, RnicError> {
        self.add_listener_at(shared.into_state()?, PortShare::InTurn)
    }

    pub(super) fn rest(&mut self, listener: Listener, rests: bool) -> Result<(), RnicError> {
        let id = listener.0;
        let l = self.listening.listeners.get_mut(id)?;
        match (l.share, rests) {
            (PortShare::InTurn, true) => {
                (l.share, l.unwatched) = (PortShare::Rests, false);
                l.acceptor.forget(&self.reactor);
                // The kernel may have woken this reactor for a connection, and no other. The reactor
                // reports it no more, so this listener still takes what has come by now.
                l.readable = true;
                self.enqueue(Source::Listener(id));
            }
            (PortShare::Rests, false) => {
                l.share = PortShare::InTurn;
                self.watch_or_serve(id);
            }
            _ => {}
        }
        Ok(())
    }

    /// A listener has had its turn, and has perhaps accepted. If so, the other RNICs at its port come
    /// before it from now on.
    pub(super) fn end_turn(&mut self, id: u32, accepted: bool, now: Time) {
        let Ok(l) = self.listening.listeners.get_mut(id) else { return };
        let passes = accepted && l.share == PortShare::InTurn && !l.unwatched;
        if passes {
            l.acceptor.forget(&self.reactor);
        }
        if (passes || l.unwatched) && !self.watch_shared(id) {
            self.turns.timers.set(Source::Listener(id), now + STARVED_PAUSE);
        }
    }

    /// Registers a shared listener. If that fails, the listener's turn comes at once, and tries again.
    fn watch_or_serve(&mut self, id: u32) {
        if !self.watch_shared(id) {
            self.enqueue(Source::Listener(id));
        }
    }

    /// Registers a shared listener, behind the others at its port. False: the kernel has no memory for
    /// that, or the user has as many registrations as the host allows. Until a later call succeeds,
    /// each turn of the listener looks for a connection.
    fn watch_shared(&mut self, id: u32) -> bool {
        let Ok(l) = self.listening.listeners.get_mut(id) else { return true };
        let watched = l.acceptor.watch(&self.reactor, Source::Listener(id));
        if let Err(e) = &watched {
            l.readable = true;
            if !l.unwatched {
                crate::trace::warn!("the listener at {} polls for connections: {e}", l.addr);
            }
        }
        l.unwatched = watched.is_err();
        !l.unwatched
    }
}
