//! Turns: how many attempts ask the same peer at a time, on devices that limit the time of an answer.
//!
//! iWARP devices wait for the answer to a request for a time of their own (siw 10 s), and each request
//! that they have takes a thread. A peer that is asked hundreds of times at once may need longer for
//! the last of them. Then work on both sides is lost, and done again. So no more than
//! [`MOST_ASKING`] attempts ask one address at a time. The others wait, in order. Attempts to different
//! addresses do not wait for each other.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Attempts that ask one address at a time.
const MOST_ASKING: usize = 32;

/// Attempts to one address.
#[derive(Default)]
struct AskedPeer {
    asking: usize,
    waiting: VecDeque<u32>,
}

/// The attempts by the address that they ask.
#[derive(Default)]
pub(super) struct AskTurns {
    peers: HashMap<SocketAddr, AskedPeer>,
    /// Queue pairs that have got a turn, and have not asked yet. Some may have ended since.
    next: VecDeque<u32>,
}

impl AskTurns {
    /// True if the queue pair can ask at once. Otherwise it gets its turn later.
    pub(super) fn enter(&mut self, addr: SocketAddr, qp: u32) -> bool {
        let peer = self.peers.entry(addr).or_default();
        let free = peer.asking < MOST_ASKING;
        if free {
            peer.asking += 1;
        } else {
            peer.waiting.push_back(qp);
        }
        free
    }

    /// An attempt that asked has ended, or a turn was not used: the next gets it.
    pub(super) fn leave(&mut self, addr: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&addr) else { return };
        match peer.waiting.pop_front() {
            Some(qp) => self.next.push_back(qp),
            None => {
                peer.asking = peer.asking.saturating_sub(1);
                if peer.asking == 0 {
                    self.peers.remove(&addr);
                }
            }
        }
    }

    /// An attempt ends while it waits, or before it has used its turn.
    pub(super) fn give_up(&mut self, addr: SocketAddr, qp: u32) {
        if let Some(at) = self.next.iter().position(|n| *n == qp) {
            self.next.remove(at);
            self.leave(addr);
        } else if let Some(peer) = self.peers.get_mut(&addr) {
            peer.waiting.retain(|n| *n != qp);
        }
    }

    /// Takes a queue pair that has got its turn.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.next.pop_front()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.next.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn attempts_to_one_address_take_turns() {
        let mut turns = AskTurns::default();
        let most = u32::try_from(MOST_ASKING).unwrap();
        assert!((0..most).all(|qp| turns.enter(addr(1), qp)));
        assert!((most..most + 4).all(|qp| !turns.enter(addr(1), qp)));
        assert!(turns.enter(addr(2), 99), "another address");
        turns.give_up(addr(1), most + 1);
        turns.leave(addr(1));
        turns.leave(addr(1));
        assert_eq!(turns.take(), Some(most));
        // The next one ends before it asks: its turn goes on.
        turns.give_up(addr(1), most + 2);
        assert_eq!((turns.take(), turns.take()), (Some(most + 3), None));
        (0..most).for_each(|_| turns.leave(addr(1)));
        turns.leave(addr(2));
        assert!(turns.peers.is_empty() && turns.is_idle(), "nothing is kept of them");
    }
}
