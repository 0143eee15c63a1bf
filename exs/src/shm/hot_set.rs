//! Who looks at memory, and who sleeps.
//!
//! Every open link is either *hot*, which means that `spin` and `poll_memory` look at its memory,
//! or *armed*: it has said in its memory what it wants to hear of. Links become hot when
//! something moves, and are armed when nothing has for long, and before every sleep. Where
//! enough are hot, others that move are armed again at once, if their peers have our board: they
//! are found by their marks.

use std::os::fd::AsRawFd;

use super::ShmRnic;
use super::doorbells::{DoorbellBitmap, SLOTS};
use super::greet::Message;
use super::link::{NewBoard, Phase};
use super::serve::Source;
use crate::rnic::table;

/// Connections that are looked at while spinning. Others are marked.
const LOOKED_AT: usize = 32;
/// The same where peers have no board (they are another user's, or have just begun). One more
/// is woken by a message each time, two system calls for what a look would have found.
const HOT: usize = 1024;
/// A connection that was looked at so often in vain is armed; sooner where many are
/// looked at, so that a look around does not become long for nothing. But a thousand without the
/// board that have their turn every 15 ms are to stay: to wake a thread costs its peer a system
/// call for each message, and the thread another.
const COLD: u32 = 16384;
const FEW: usize = 64;

impl ShmRnic {
    /// One more whose peer has our board would not be looked at, but marked.
    pub(super) fn looks_at_enough(&self) -> bool {
        self.hot.len() >= LOOKED_AT
    }

    /// Puts an open link on the list of those that are looked at.
    pub(super) fn warm(&mut self, id: u32) {
        let enough = self.looks_at_enough();
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.phase != Phase::Open {
            return;
        }
        link.misses = 0;
        if link.hot {
            return;
        }
        if link.given && enough {
            if link.arm() {
                self.enqueue(Source::Link(id));
            }
            return;
        }
        link.hot = true;
        link.mem.wake_up();
        self.hot.push(id);
        if self.hot.len() > HOT {
            let oldest = self.hot.remove(0);
            if self.cool(oldest) {
                self.enqueue(Source::Link(oldest));
            }
        }
    }

    /// Arms a link that was hot; true if there is something to do on it already.
    fn cool(&mut self, id: u32) -> bool {
        let Ok(link) = self.links.get_mut(id) else { return false };
        link.hot = false;
        let found = link.arm();
        if found {
            // It is neither armed nor looked at, but about to be served, which is as good;
            // and then it is armed, or warm.
            link.hot = true;
            self.hot.push(id);
        }
        found
    }

    /// Looks after the links that are marked; true if there are some.
    pub(super) fn take_marks(&mut self) -> bool {
        let Some(board) = &mut self.board else { return false };
        let mut marked = std::mem::take(&mut self.marked);
        board.take(&mut marked);
        let mut any = false;
        for slot in marked.drain(..) {
            // One that has just gone, or a peer's nonsense, is no link's.
            if let Some(id) = self.links.id_at(slot as usize) {
                if !self.looks_at_enough() {
                    self.warm(id);
                }
                self.enqueue(Source::Link(id));
                any = true;
            }
        }
        self.marked = marked;
        any
    }

    /// Takes the peer's board if it has come, and gives it ours if it is time.
    #[cold]
    pub(super) fn exchange_boards(&mut self, id: u32) {
        let enough = self.looks_at_enough();
        let Ok(link) = self.links.get_mut(id) else { return };
        if let Some(new) = link.new_board.take() {
            let NewBoard { slot, memfd, button } = *new;
            // What is none of ours is not believed, and messages go on to serve.
            if let Ok(board) = self.peer_boards.open(&memfd, button) {
                link.mark_on(board, slot);
            }
        }
        let slot = table::place_of(id);
        let wants = link.wants_board(enough) && slot < SLOTS;
        if wants && (self.board.is_some() || self.make_board()) {
            self.give_board(id, slot);
        }
    }

    /// False: there are no descriptors for it, and it is tried again.
    fn make_board(&mut self) -> bool {
        let Ok(mut board) = DoorbellBitmap::new() else { return false };
        let raw = board.bell().as_raw_fd();
        let interest = mio::Interest::READABLE;
        let token = self.token(Source::DoorbellBitmap);
        let watched = self.registry.register(&mut mio::unix::SourceFd(&raw), token, interest);
        self.board = watched.is_ok().then_some(board);
        self.board.is_some()
    }

    fn give_board(&mut self, id: u32, slot: u32) {
        let (Ok(link), Some(board)) = (self.links.get_mut(id), &mut self.board) else { return };
        link.given = link.say(&Message::PassBoard { slot }, &board.give(slot));
    }

    /// Looks at the hot links, and at the board; true if there is something to do.
    pub(super) fn spin(&mut self) -> bool {
        if self.ready.len() >= FEW && self.served < FEW {
            // That will do for some turns. (But not for good: a connection that has more as soon as
            // its program posts a receive is ready again by that, and with enough of these others
            // would never be looked at.)
            return true;
        }
        self.served = 0;
        let (mut any, mut at) = (self.take_marks(), 0);
        let patience = COLD / u32::try_from(self.hot.len().div_ceil(FEW)).unwrap_or(COLD).max(1);
        while let Some(&id) = self.hot.get(at) {
            let Ok(link) = self.links.get_mut(id) else {
                self.hot.swap_remove(at);
                continue;
            };
            at += 1;
            link.tell_consumed();
            if link.peek() {
                any = true;
                self.enqueue(Source::Link(id));
                continue;
            }
            link.misses += 1;
            // (Many were looked at before their peers had the board.)
            if link.misses > patience || (link.given && self.hot.len() > LOOKED_AT) {
                at -= 1;
                self.hot.swap_remove(at);
                // If it is found to have something, it is on the list again.
                if self.cool(id) {
                    self.enqueue(Source::Link(id));
                    any = true;
                }
            }
        }
        any
    }

    /// The same without counting, for a loop of a few nanoseconds.
    pub(super) fn poll_memory(&mut self) -> Option<bool> {
        if self.hot.is_empty() {
            return None;
        }
        let marked = self.board.as_ref().is_some_and(DoorbellBitmap::is_marked);
        Some(marked || self.hot.iter().any(|id| self.links.get(*id).is_ok_and(|l| l.peek())))
    }

    /// Arms every hot link; true if one has something to do.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let mut found = false;
        for id in std::mem::take(&mut self.hot) {
            if self.cool(id) {
                self.enqueue(Source::Link(id));
                found = true;
            }
        }
        if self.board.as_mut().is_some_and(DoorbellBitmap::fall_asleep) {
            self.take_marks();
            found = true;
        }
        found
    }
}
