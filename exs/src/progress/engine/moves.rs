//! New sockets that move to another shard.

use super::sock::{Sock, State};
use super::{Engine, SockId};

/// A new socket on its way from one shard to another.
pub(in crate::progress) struct Moving(Sock);

impl Engine {
    /// Takes out a socket that will live in another shard. None: it must stay, since it is not new,
    /// or a poll or a timer refers to it here.
    pub(in crate::progress) fn take_fresh(&mut self, id: SockId) -> Option<Moving> {
        let s = self.sock_ref(id)?;
        let may_go = s.state == State::Fresh && s.polls.is_empty() && !s.timer.is_set();
        may_go.then(|| Moving(self.socks.remove(id.index as usize)))
    }

    /// Puts in a socket that was taken out of another shard.
    pub(in crate::progress) fn put_fresh(&mut self, Moving(mut sock): Moving) -> SockId {
        self.generation = self.generation.wrapping_add(1);
        sock.settle_in(self.generation);
        let index = u32::try_from(self.socks.insert(sock)).expect("fewer than 2^32 sockets");
        self.mark(index);
        self.id(index)
    }
}
