//! The doorbell bitmap: peers mark the connections on which they have written.
//!
//! To poll a connection is to read two lines of memory that its peer writes, each on a page of
//! its own. That is quick for some dozens of connections. Of a thousand, neither the lines nor
//! the pages are in the processor's caches. So a process has one bitmap, with one bit for each
//! connection, and passes it to the peers of busy connections. A connection that no thread polls
//! states in its own memory what it wants to be woken for (`ShmLink::arm`), whether its process
//! sleeps or not. A peer that has to ring then sets the connection's bit. It rings the doorbell
//! of the process only if that process sleeps. So a poll of all connections reads a few words.
//!
//! # Order
//! ```text
//! peer:   publish;  link's Asleep & what?  Asleep = 0;  set the bit;  asleep?  ring
//! owner:  asleep = 1;  any bit set?  yes: stay awake.  no: sleep
//! ```
//! The accesses to the bits and to `asleep` are sequentially consistent. So the peer sees that
//! the owner sleeps, or the owner sees the bit. The owner clears a bit before it looks at the
//! connection. So it sees everything that the peer published before it set the bit.
//!
//! # Passing
//! The bitmap goes to a process once, as a message with two descriptors. The memory of the process's
//! other connections *names* it by its inode, with the connection's slot. A peer that does not know the
//! name goes on with messages, and gets the descriptors after some of them.
//!
//! # Trust
//! A process passes its bitmap, and the doorbell that goes with it, to peers of its own user
//! only. All of them write the same words. A hostile peer can cause useless looks at connections
//! and nothing else: a bit is a hint, and says nothing about what a connection holds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::sys::{Button, ForeignFd, PeerCred, SharedWords, WakeSocket, memfd_id};

/// Connections that can have a bit. Connections beyond are woken by messages.
pub(super) const SLOTS: u32 = 1 << 15;
/// Words of bits.
const GROUPS: usize = SLOTS as usize / 64;
/// Index of the word that is 1 while the owner sleeps. It has a cache line of its own.
const ASLEEP: usize = 0;
/// Index of the first word of bits.
const FIRST: usize = 8;
const WORDS: usize = FIRST + GROUPS;

/// The index of the word that has the bit of a slot, and the bit's mask.
fn bit_of(slot: u32) -> (usize, u64) {
    (FIRST + slot as usize / 64 % GROUPS, 1 << (slot % 64))
}

/// The bitmap of this process.
pub(super) struct DoorbellBitmap {
    words: SharedWords,
    fd: OwnedFd,
    /// The inode of the memfd, by which processes that have the bitmap know it.
    id: u64,
    /// The processes that have the bitmap, each with the number of its connections that use it.
    holders: Vec<(PeerCred, usize)>,
    bell: WakeSocket,
    /// `ASLEEP` is 1.
    asleep: bool,
    /// Words that hold the bit of a connection whose peer has the bitmap: the first `used` ones.
    used: usize,
}

impl DoorbellBitmap {
    pub(super) fn new() -> io::Result<DoorbellBitmap> {
        let (words, fd) = SharedWords::create(WORDS)?;
        let (bell, (_, id)) = (WakeSocket::new()?, memfd_id(fd.as_fd())?);
        Ok(DoorbellBitmap { words, fd, id, holders: Vec::new(), bell, asleep: false, used: 0 })
    }

    /// What stands for the bitmap in the memory of a connection.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// True if a process has the bitmap from a connection that is still open.
    pub(super) fn is_with(&self, cred: PeerCred) -> bool {
        // A process of another pid namespace may have no number here.
        cred.pid != 0 && self.holders.iter().any(|(holder, _)| *holder == cred)
    }

    /// One more connection of a process uses the bitmap.
    pub(super) fn note_holder(&mut self, cred: PeerCred) {
        match self.holders.iter_mut().find(|(holder, _)| *holder == cred) {
            Some((_, connections)) => *connections += 1,
            None => self.holders.push((cred, 1)),
        }
    }

    /// One connection less of a process uses the bitmap. After the last the process may have closed it.
    pub(super) fn take_back(&mut self, cred: PeerCred) {
        let Some(at) = self.holders.iter().position(|(holder, _)| *holder == cred) else { return };
        self.holders[at].1 -= 1;
        if self.holders[at].1 == 0 {
            self.holders.swap_remove(at);
        }
    }

    /// The descriptor that becomes readable when a peer sets a bit while this process sleeps.
    pub(super) fn bell(&mut self) -> &mut WakeSocket {
        &mut self.bell
    }

    /// The descriptors to pass to the peer of the connection with this slot.
    pub(super) fn give(&mut self, slot: u32) -> [BorrowedFd<'_>; 2] {
        self.note_slot(slot);
        [self.fd.as_fd(), self.bell.button()]
    }

    /// The peer of the connection with this slot will set its bit.
    pub(super) fn note_slot(&mut self, slot: u32) {
        self.used = self.used.max(bit_of(slot).0 + 1 - FIRST);
    }

    fn group(&self, group: usize) -> u64 {
        self.words.at(FIRST + group).load(Ordering::SeqCst)
    }

    /// True if any bit is set.
    #[inline]
    pub(super) fn any_set(&self) -> bool {
        (0..self.used).any(|group| self.group(group) != 0)
    }

    /// Clears all bits and appends their slots to `out`. Also records that this process is awake.
    ///
    /// All bits are taken at once, so each connection marked by now is served before any connection
    /// that is marked again.
    pub(super) fn take(&mut self, out: &mut Vec<u32>) {
        if std::mem::take(&mut self.asleep) {
            self.words.at(ASLEEP).store(0, Ordering::SeqCst);
        }
        for group in 0..self.used {
            if self.group(group) == 0 {
                continue;
            }
            let mut bits = self.words.at(FIRST + group).swap(0, Ordering::SeqCst);
            while bits != 0 {
                // Below `SLOTS`, so the conversion cannot fail.
                out.push(u32::try_from(64 * group).unwrap_or(0) + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Announces that this process sleeps. True if a bit is set already: then it must not sleep.
    pub(super) fn announce_sleep(&mut self) -> bool {
        if self.used == 0 {
            return false;
        }
        self.asleep = true;
        self.words.at(ASLEEP).store(1, Ordering::SeqCst);
        self.any_set()
    }
}

/// The bitmap of another process.
pub(super) struct PeerBitmap {
    words: SharedWords,
    button: Button,
}

impl PeerBitmap {
    /// Sets the bit of a slot, and rings the doorbell if the owner sleeps. False if the owner sleeps
    /// and its doorbell could not be rung.
    #[must_use]
    pub(super) fn set(&self, slot: u32) -> bool {
        let (word, bit) = bit_of(slot);
        self.words.at(word).fetch_or(bit, Ordering::SeqCst);
        let asleep = self.words.at(ASLEEP);
        let sleeps = asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0;
        !sleeps || self.button.ring()
    }
}

/// The bitmaps of peers, one for each process. Connections to the same process share one.
#[derive(Default)]
pub(super) struct PeerBitmaps(Vec<((u64, u64), Weak<PeerBitmap>)>);

impl PeerBitmaps {
    /// Opens the bitmap that these descriptors stand for, or finds it if it is open already.
    ///
    /// # Errors
    /// The descriptors are not those of a bitmap.
    pub(super) fn open(
        &mut self,
        memfd: ForeignFd,
        button: ForeignFd,
    ) -> io::Result<Arc<PeerBitmap>> {
        let file_id = memfd_id(memfd.as_fd())?;
        self.0.retain(|(_, bitmap)| bitmap.strong_count() > 0);
        let known = self.0.iter().find(|(id, _)| *id == file_id);
        if let Some(bitmap) = known.and_then(|(_, bitmap)| bitmap.upgrade()) {
            bitmap.button.close_copy(button);
            // The same memfd is mapped.
            memfd.close_here();
            return Ok(bitmap);
        }
        let words = SharedWords::open(memfd.as_fd(), WORDS)?;
        let bitmap = Arc::new(PeerBitmap { words, button: Button::adopt(button)? });
        self.0.push((file_id, Arc::downgrade(&bitmap)));
        Ok(bitmap)
    }

    /// Finds a bitmap that is open already. A peer can name the bitmap of another process, and so cause
    /// useless looks there, as with a bitmap of its own.
    pub(super) fn find(&self, id: u64) -> Option<Arc<PeerBitmap>> {
        let named = |((_, inode), _): &&((u64, u64), Weak<PeerBitmap>)| *inode == id;
        self.0.iter().filter(named).find_map(|(_, bitmap)| bitmap.upgrade())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Passes descriptors over a socket, as another process would get them.
    fn passed(fds: [BorrowedFd<'_>; 2]) -> [ForeignFd; 2] {
        let (a, b) = crate::sys::pair().unwrap();
        crate::sys::send_with_fds(a.as_fd(), b"x", &fds).unwrap();
        let (_, got) = crate::sys::recv_with_fds(b.as_fd(), &mut [0]).unwrap();
        got.unwrap().try_into().unwrap()
    }

    /// A bitmap, and a peer's view of it for the connections with these slots.
    fn both(slots: &[u32]) -> (DoorbellBitmap, Arc<PeerBitmap>) {
        let mut bitmap = DoorbellBitmap::new().unwrap();
        let mut bitmaps = PeerBitmaps::default();
        let mut last = None;
        for slot in slots {
            let [memfd, button] = passed(bitmap.give(*slot));
            let theirs = bitmaps.open(memfd, button).unwrap();
            assert!(last.is_none_or(|l| Arc::ptr_eq(&l, &theirs)), "one for all connections");
            last = Some(theirs);
        }
        (bitmap, last.unwrap())
    }

    fn take(bitmap: &mut DoorbellBitmap) -> Vec<u32> {
        let mut out = Vec::new();
        bitmap.take(&mut out);
        out
    }

    #[test]
    fn a_set_bit_is_taken_once() {
        let (mut bitmap, theirs) = both(&[0, 63, 64, SLOTS - 1]);
        assert!(!bitmap.any_set() && take(&mut bitmap).is_empty());
        for slot in [64, 0, SLOTS - 1, 63, 0] {
            assert!(theirs.set(slot));
        }
        assert!(bitmap.any_set());
        assert_eq!(take(&mut bitmap), [0, 63, 64, SLOTS - 1]);
        assert!(!bitmap.any_set() && take(&mut bitmap).is_empty());
    }

    #[test]
    fn a_sleeper_is_woken_once_and_a_set_bit_prevents_sleep() {
        let (mut bitmap, theirs) = both(&[7]);
        let woken = |bitmap: &DoorbellBitmap| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&bitmap.bell);
            let rung = crate::sys::wait_readable(fd, Some(Duration::ZERO), None).unwrap();
            bitmap.bell.empty();
            rung
        };
        assert!(theirs.set(7));
        assert!(!woken(&bitmap), "it is awake");
        assert!(bitmap.announce_sleep(), "a bit is set");
        assert_eq!(take(&mut bitmap), [7]);
        assert!(theirs.set(7));
        assert!(!woken(&bitmap), "it is awake again");
        take(&mut bitmap);
        assert!(!bitmap.announce_sleep());
        assert!(theirs.set(7));
        assert!(woken(&bitmap));
        assert!(theirs.set(7));
        assert!(!woken(&bitmap), "once");
    }

    #[test]
    fn a_process_is_passed_the_bitmap_once_for_all_its_open_connections() {
        let (mut bitmap, theirs) = both(&[1]);
        let (one, other) = (PeerCred { pid: 7, uid: 1 }, PeerCred { pid: 8, uid: 1 });
        bitmap.note_holder(one);
        bitmap.note_holder(one);
        assert!(bitmap.is_with(one) && !bitmap.is_with(other));
        bitmap.take_back(one);
        bitmap.take_back(other);
        assert!(bitmap.is_with(one));
        bitmap.take_back(one);
        assert!(!bitmap.is_with(one), "its last connection has ended");
        let hidden = PeerCred { pid: 0, uid: 1 };
        bitmap.note_holder(hidden);
        assert!(!bitmap.is_with(hidden), "this may be any process");
        // A bit of a connection that was only told the name.
        bitmap.note_slot(200);
        assert!(theirs.set(200));
        assert_eq!(take(&mut bitmap), [200]);
    }

    #[test]
    fn a_bitmap_is_found_by_its_name_while_a_connection_uses_it() {
        let (mut bitmap, mut bitmaps) = (DoorbellBitmap::new().unwrap(), PeerBitmaps::default());
        assert!(bitmaps.find(bitmap.id()).is_none());
        let [memfd, button] = passed(bitmap.give(3));
        let theirs = bitmaps.open(memfd, button).unwrap();
        assert!(bitmaps.find(bitmap.id()).is_some_and(|found| Arc::ptr_eq(&found, &theirs)));
        assert!(bitmaps.find(bitmap.id() + 1).is_none());
        drop(theirs);
        assert!(bitmaps.find(bitmap.id()).is_none());
    }

    #[test]
    fn a_bitmap_that_no_peer_has_is_not_read() {
        let mut bitmap = DoorbellBitmap::new().unwrap();
        assert!(!bitmap.announce_sleep() && !bitmap.any_set() && take(&mut bitmap).is_empty());
    }

    #[test]
    fn foreign_files_are_refused_and_bad_bits_name_no_slot_out_of_range() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let [one, other] = passed([file.as_fd(), file.as_fd()]);
        assert!(PeerBitmaps::default().open(one, other).is_err());
        let (_, pipe) = std::io::pipe().unwrap();
        let mut bitmap = DoorbellBitmap::new().unwrap();
        let [memfd, _] = bitmap.give(0);
        let [memfd, pipe] = passed([memfd, pipe.as_fd()]);
        assert!(PeerBitmaps::default().open(memfd, pipe).is_err(), "a write to it could block");
        let (mut bitmap, theirs) = both(&[0]);
        (0..WORDS).for_each(|word| theirs.words.at(word).store(u64::MAX, Ordering::SeqCst));
        let taken = take(&mut bitmap);
        assert_eq!(taken, (0..64).collect::<Vec<_>>(), "no peer has any other word");
        assert!(theirs.set(u32::MAX));
        assert!(take(&mut bitmap).iter().all(|slot| *slot < SLOTS));
    }
}
