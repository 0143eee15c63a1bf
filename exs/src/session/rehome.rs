//! A connection at rest, which goes to the port of another engine.
//!
//! The session itself is independent of its port, apart from the memory that the port has registered
//! for it: that of the ring or stash. The caller registers that with the new port.

use super::proto::Proto;
use super::{Buf, Counters, Session};
use crate::mem::Key;
use crate::rnic::Mr;

impl Session {
    /// True if no operation has not ended, no memory but the ring is open to the peer, and the port has no
    /// work of this session. Data that came before their receive may lie in the ring, and messages may be
    /// due.
    pub fn rests(&self) -> bool {
        self.life.has_begun()
            && self.sender.is_idle()
            && self.receiver.holds_nothing()
            && self.proto.as_ref().is_some_and(Proto::is_quiet)
            && self.sendq.has_only_messages()
            && self.closing.is_empty()
            && self.extra.is_usual()
            && self.sided.is_idle()
            && self.sided.has_no_exports()
            && self.trash.is_empty()
            && self.done.is_empty()
            && !self.unrung.has_deferred()
            && self.timers.is_calm()
            && !self.lent
    }

    /// The registered memory of the ring or stash. None: there is none.
    pub fn ring_memory(&self) -> Option<&Buf> {
        self.ring.memory()
    }

    /// The key of the peer's window onto the ring. None: there is no such window.
    pub fn ring_key(&self) -> Option<Key> {
        self.ring.key()
    }

    /// The port has registered the memory of the ring anew. Returns the old registration.
    pub fn set_ring_registration(&mut self, mr: Mr) -> Option<Mr> {
        self.ring.set_registration(mr)
    }

    /// Takes what was counted so far. The counters begin anew.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }
}
