//! The board: where peers mark the connections on which there is something to see.
//!
//! To look at a connection is to look at two lines of memory that its peer writes, each on a
//! page of its own. Some dozens are soon looked at; of a thousand the processor has
//! neither the lines nor the pages at hand. So a process has one board, of one bit for each
//! connection, and gives it to the peers of those that are busy. A connection that is not
//! looked at says in its own memory what it wants to hear of (`Link::arm`), asleep or not;
//! a peer that would ring then sets its bit, and rings the process's doorbell only if that sleeps. To look at
//! all of them is to look at some words.
//!
//! # Order
//! ```text
//! marker:   hand over;  Asleep of the link & what?  take it away;  mark;   asleep?  ring
//! reader:   asleep = 1;  a mark?  yes: awake.  no: sleep
//! ```
//! Marks and `asleep` are sequentially consistent, so the marker sees that the reader sleeps, or
//! the reader sees the mark. A mark is taken before the connection is looked at, and what was
//! handed over before a mark is seen by who takes it.
//!
//! # Trust
//! The board of a process is given to peers of its own user only, as is the doorbell that goes with it. All
//! of them write the same words, and what they can do by that is to have connections looked at
//! for nothing: a mark is a hint, and says nothing of what there is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::sys::{Button, Doorbell, ForeignFd, SharedWords, memfd_id};

/// Connections that can be marked; others are rung for by messages. And the words of marks.
pub(super) const SLOTS: u32 = 1 << 15;
const GROUPS: usize = SLOTS as usize / 64;
/// The word that says whether its owner sleeps, on a cache line of its own.
const ASLEEP: usize = 0;
const FIRST: usize = 8;
const WORDS: usize = FIRST + GROUPS;

/// Which word of marks, and which bit of it.
fn place(slot: u32) -> (usize, u64) {
    (FIRST + slot as usize / 64 % GROUPS, 1 << (slot % 64))
}

/// Our own board.
pub(super) struct DoorbellBitmap {
    words: SharedWords,
    fd: OwnedFd,
    bell: Doorbell,
    asleep: bool,
    /// Groups in which there are connections whose peers have the board.
    used: usize,
}

impl DoorbellBitmap {
    pub(super) fn new() -> io::Result<DoorbellBitmap> {
        let (words, fd) = SharedWords::create(WORDS)?;
        let bell = Doorbell::new()?;
        Ok(DoorbellBitmap { words, fd, bell, asleep: false, used: 0 })
    }

    /// What rings when there is a mark while we sleep.
    pub(super) fn bell(&mut self) -> &mut Doorbell {
        &mut self.bell
    }

    /// What a peer is given, for the connection of that slot.
    pub(super) fn give(&mut self, slot: u32) -> [BorrowedFd<'_>; 2] {
        self.used = self.used.max(place(slot).0 + 1 - FIRST);
        [self.fd.as_fd(), self.bell.button()]
    }

    fn group(&self, group: usize) -> u64 {
        self.words.at(FIRST + group).load(Ordering::SeqCst)
    }

    /// There are marks.
    #[inline]
    pub(super) fn is_marked(&self) -> bool {
        (0..self.used).any(|group| self.group(group) != 0)
    }

    /// Takes all marks: who is marked now has its turn before who is marked again. We are awake.
    pub(super) fn take(&mut self, out: &mut Vec<u32>) {
        if std::mem::take(&mut self.asleep) {
            self.words.at(ASLEEP).store(0, Ordering::SeqCst);
        }
        for group in 0..self.used {
            if self.group(group) == 0 {
                continue;
            }
            let mut marks = self.words.at(FIRST + group).swap(0, Ordering::SeqCst);
            while marks != 0 {
                // (Below `SLOTS`.)
                out.push(u32::try_from(64 * group).unwrap_or(0) + marks.trailing_zeros());
                marks &= marks - 1;
            }
        }
    }

    /// Says that we sleep; true if there is a mark already.
    pub(super) fn fall_asleep(&mut self) -> bool {
        if self.used == 0 {
            return false;
        }
        self.asleep = true;
        self.words.at(ASLEEP).store(1, Ordering::SeqCst);
        self.is_marked()
    }
}

/// The board of another process.
pub(super) struct PeerBitmap {
    words: SharedWords,
    button: Button,
}

impl PeerBitmap {
    /// There is something for its owner to see, on the connection of that slot. False: it may sleep, and
    /// cannot be woken by its doorbell.
    #[must_use]
    pub(super) fn mark(&self, slot: u32) -> bool {
        let (word, bit) = place(slot);
        self.words.at(word).fetch_or(bit, Ordering::SeqCst);
        let asleep = self.words.at(ASLEEP);
        let sleeps = asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0;
        !sleeps || self.button.ring()
    }
}

/// The boards of peers: one for each process, whose connections share it.
#[derive(Default)]
pub(super) struct PeerBitmaps(Vec<((u64, u64), Weak<PeerBitmap>)>);

impl PeerBitmaps {
    /// The board that has come as these descriptors.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn open(
        &mut self,
        memfd: &ForeignFd,
        button: ForeignFd,
    ) -> io::Result<Arc<PeerBitmap>> {
        let file_id = memfd_id(memfd.as_fd())?;
        self.0.retain(|(_, board)| board.strong_count() > 0);
        let known = self.0.iter().find(|(id, _)| *id == file_id);
        if let Some(board) = known.and_then(|(_, board)| board.upgrade()) {
            return Ok(board);
        }
        let words = SharedWords::open(memfd.as_fd(), WORDS)?;
        let board = Arc::new(PeerBitmap { words, button: Button::adopt(button)? });
        self.0.push((file_id, Arc::downgrade(&board)));
        Ok(board)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Descriptors as another process gets them.
    fn passed(fds: [BorrowedFd<'_>; 2]) -> [ForeignFd; 2] {
        let (a, b) = crate::sys::pair().unwrap();
        crate::sys::send_with_fds(a.as_fd(), b"x", &fds).unwrap();
        let (_, got) = crate::sys::recv_with_fds(b.as_fd(), &mut [0]).unwrap();
        got.unwrap().try_into().unwrap()
    }

    /// A board, and how a peer sees it for the connections of some slots.
    fn both(slots: &[u32]) -> (DoorbellBitmap, Arc<PeerBitmap>) {
        let mut board = DoorbellBitmap::new().unwrap();
        let mut boards = PeerBitmaps::default();
        let mut last = None;
        for slot in slots {
            let [memfd, button] = passed(board.give(*slot));
            let theirs = boards.open(&memfd, button).unwrap();
            assert!(last.is_none_or(|l| Arc::ptr_eq(&l, &theirs)), "one for all connections");
            last = Some(theirs);
        }
        (board, last.unwrap())
    }

    fn take(board: &mut DoorbellBitmap) -> Vec<u32> {
        let mut out = Vec::new();
        board.take(&mut out);
        out
    }

    #[test]
    fn what_is_marked_is_taken_once() {
        let (mut board, theirs) = both(&[0, 63, 64, SLOTS - 1]);
        assert!(!board.is_marked() && take(&mut board).is_empty());
        for slot in [64, 0, SLOTS - 1, 63, 0] {
            assert!(theirs.mark(slot));
        }
        assert!(board.is_marked());
        assert_eq!(take(&mut board), [0, 63, 64, SLOTS - 1]);
        assert!(!board.is_marked() && take(&mut board).is_empty());
    }

    #[test]
    fn who_sleeps_is_woken_once_and_who_sees_a_mark_does_not_sleep() {
        let (mut board, theirs) = both(&[7]);
        let woken = |board: &DoorbellBitmap| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&board.bell);
            let rung = crate::sys::wait_readable(fd, Some(Duration::ZERO), None).unwrap();
            board.bell.empty();
            rung
        };
        assert!(theirs.mark(7));
        assert!(!woken(&board), "it is awake");
        assert!(board.fall_asleep(), "there is a mark");
        assert_eq!(take(&mut board), [7]);
        assert!(theirs.mark(7));
        assert!(!woken(&board), "it is awake again");
        take(&mut board);
        assert!(!board.fall_asleep());
        assert!(theirs.mark(7));
        assert!(woken(&board));
        assert!(theirs.mark(7));
        assert!(!woken(&board), "once");
    }

    #[test]
    fn a_board_that_nobody_has_is_not_looked_at() {
        let mut board = DoorbellBitmap::new().unwrap();
        assert!(!board.fall_asleep() && !board.is_marked() && take(&mut board).is_empty());
    }

    #[test]
    fn what_is_no_board_is_refused_and_a_peer_s_nonsense_names_no_more_than_there_is() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let [one, other] = passed([file.as_fd(), file.as_fd()]);
        assert!(PeerBitmaps::default().open(&one, other).is_err());
        let (_, pipe) = std::io::pipe().unwrap();
        let mut board = DoorbellBitmap::new().unwrap();
        let [memfd, _] = board.give(0);
        let [memfd, pipe] = passed([memfd, pipe.as_fd()]);
        assert!(PeerBitmaps::default().open(&memfd, pipe).is_err(), "a write there could wait");
        let (mut board, theirs) = both(&[0]);
        (0..WORDS).for_each(|word| theirs.words.at(word).store(u64::MAX, Ordering::SeqCst));
        let taken = take(&mut board);
        assert_eq!(taken, (0..64).collect::<Vec<_>>(), "nobody else has it");
        assert!(theirs.mark(u32::MAX));
        assert!(take(&mut board).iter().all(|slot| *slot < SLOTS));
    }
}
