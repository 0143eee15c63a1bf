//! The memory that two processes share, and every access to it (an `unsafe` island).
//!
//! # Layout
//! One memfd for each connection, made and sealed (its size is fixed) by the side that
//! connects. All numbers are of the host's own order.
//!
//! ```text
//!    1664  ring 1: records from side 1 to side 0      RING bytes
//!    HEAD  geometry: magic, version, sizes, a nonce for each ring
//!    +128  words of side 0 (which connects), each on a cache line of its own
//!    +448  words of side 1
//!    +768  ring 0: records from side 0 to side 1      RING bytes
//!          lane 0, on a page: payload to side 1       LANE bytes
//!          lane 1: payload from side 1 to side 0      LANE bytes
//! ```
//!
//! Memory that nobody has touched costs nothing, so what a connection touches first lies on
//! one page: the words, the beginning of ring 0, and the end of ring 1, where that one's
//! first record goes (it has a lap of 1664 bytes before it is at its beginning).
//!
//! # Order
//! A record is written first and its *tag*, the first word of its first line, last
//! (release); the consumer looks at the tag (acquire) where it expects the next record.
//! So handing over a small record moves one cache line and no index. The tag of the
//! record at position `p` (counted over the life of the connection) is `nonce + p`: what
//! an earlier lap has left there has another tag, and so have, as nobody can guess the
//! nonce, the payload bytes that may lie there.
//!
//! # The argument
//! `Mem` holds its mapping for its whole life, and its length is checked against the
//! layout when it is made. Offsets of words are constants below the first page's end;
//! positions in rings and lanes are masked, and no copy is longer than the area. So
//! every pointer made here is in bounds, whatever the peer writes; and since no
//! reference to the bytes exists and words are atomics, what it writes can at worst be
//! a wrong number. All numbers that come out of here are checked by who asked for them.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::record::{FULL, SHORT};
use crate::mem::{Region, Segment};
use crate::rnic::HEAD as HEADER;
use crate::sys::{Hint, IoVec, IoVecMut, hint, open_shared, share};

/// A cache line.
pub(super) const LINE: u64 = 64;
/// Bytes of a ring, of which a sender mostly uses less (`lap.rs`).
pub(super) const RING: u64 = RING_LEN as u64;
const RING_LEN: usize = 256 << 10;
/// Bytes of a lane.
pub(super) const LANE: u64 = LANE_LEN as u64;
const LANE_LEN: usize = 256 << 10;

const MAGIC: u64 = u64::from_ne_bytes(*b"EXS shm\0");
/// Of the layout and of the records.
pub(super) const VERSION: u64 = 5;
/// The geometry: magic, version, ring, lane, total; the nonces follow.
const GEOMETRY: [u64; 5] = [MAGIC, VERSION, RING, LANE, TOTAL as u64];
const NONCES: usize = HEAD + 8 * GEOMETRY.len();
const PAGE: usize = 4096;
/// Bytes of geometry and words.
const HEAD_LEN: usize = 768;
/// Bytes of each ring on the page of the words.
const NEAR: usize = (PAGE - HEAD_LEN) / 2;
const HEAD: usize = NEAR + RING_LEN;
const WORDS: [usize; 2] = [HEAD + 128, HEAD + 448];
const RINGS: [usize; 2] = [HEAD + HEAD_LEN, NEAR];
/// What is added to a position to find its place in the ring.
const TURNS: [u64; 2] = [0, RING - NEAR as u64];
/// Bytes of a ring's stream before it is at the ring's beginning for the first time.
const BEFORE: [u64; 2] = [0, NEAR as u64];
const LANES: usize = (RINGS[0] + RING_LEN).next_multiple_of(PAGE);
const TOTAL: usize = LANES + 2 * LANE_LEN;
const _: () = assert!((NEAR as u64).is_multiple_of(LINE) && HEAD % PAGE + HEAD_LEN + NEAR == PAGE);

/// A word that one side writes and the other reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Position up to which its owner is done with the records that came.
    Consumed = 0,
    /// End of the record whose payload its owner wants by the lane.
    LaneFor = 8,
    /// Bytes that its owner has taken from the lane.
    Drained = 64,
    /// Bytes that its owner has put into the lane.
    Filled = 128,
    /// What its owner, who is about to sleep, wants to be woken for. (The other side
    /// takes it away when it rings the bell.)
    Asleep = 192,
    /// Whether, and how, its owner has ended the connection.
    State = 256,
}

/// A stretch of bytes for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Records.
    Ring,
    /// Payload.
    Lane,
}

/// Who writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Theirs,
}

enum Owner {
    /// It keeps the memory mapped.
    Map { region: Arc<Region> },
    /// Under Miri, and in its tests, the two sides are two threads of one process.
    #[cfg(test)]
    Heap { _memory: Arc<Heap> },
}

/// The shared memory of one connection, as one side sees it.
pub(super) struct Mem {
    base: NonNull<u8>,
    side: usize,
    nonces: [u64; 2],
    owner: Owner,
}

// SAFETY: an address range that the owner keeps mapped; the methods are such that any
// thread, here or in another process, may write it at any time.
unsafe impl Send for Mem {}

impl Mem {
    /// Makes the memory of a connection, as side 0; and the descriptor for side 1.
    pub(super) fn create(nonces: [u64; 2]) -> io::Result<(Mem, OwnedFd)> {
        let (map, fd) = share(TOTAL)?;
        let base = map.base();
        let mem = Mem {
            base,
            side: 0,
            nonces: nonces.map(odd),
            owner: Owner::Map { region: Region::view(map) },
        };
        mem.set_geometry();
        Ok((mem, fd))
    }

    /// Maps what the peer made, as side 1.
    ///
    /// # Errors
    /// `InvalidInput` if it is not what this version expects.
    pub(super) fn open(fd: BorrowedFd<'_>) -> io::Result<Mem> {
        let map = open_shared(fd, TOTAL, true)?;
        let base = map.base();
        let mut mem =
            Mem { base, side: 1, nonces: [0; 2], owner: Owner::Map { region: Region::view(map) } };
        mem.check_geometry()?;
        Ok(mem)
    }

    fn set_geometry(&self) {
        for (i, value) in GEOMETRY.iter().chain(&self.nonces).enumerate() {
            self.word_at(HEAD + 8 * i).store(*value, Ordering::Release);
        }
    }

    fn check_geometry(&mut self) -> io::Result<()> {
        for (i, want) in GEOMETRY.iter().enumerate() {
            let got = self.word_at(HEAD + 8 * i).load(Ordering::Acquire);
            if got != *want {
                let why = format!("word {i} of the shared memory is {got:#x}, not {want:#x}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        for i in 0..2 {
            // Made odd here too: a tag is never the zero of fresh memory.
            self.nonces[i] = odd(self.word_at(NONCES + 8 * i).load(Ordering::Acquire));
        }
        Ok(())
    }

    /// A word, by its offset, which is a multiple of 8.
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset <= TOTAL - 8);
        // SAFETY: in bounds, just asserted.
        let at = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: aligned (the mapping is to pages) and mapped for as long as `self` is.
        // It is read and written by atomics only, but for stale words in a ring, of
        // which only the tag decides.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    fn word(&self, whose: Whose, word: Word) -> &AtomicU64 {
        self.word_at(WORDS[self.index(whose)] + word as usize)
    }

    fn index(&self, whose: Whose) -> usize {
        match whose {
            Whose::Ours => self.side,
            Whose::Theirs => 1 - self.side,
        }
    }

    /// True on the side that made it, which is the one that connects.
    pub(super) fn is_ours(&self) -> bool {
        self.side == 0
    }

    /// Reads one of the peer's words; what was written before it is seen too.
    pub(super) fn theirs(&self, word: Word) -> u64 {
        self.word(Whose::Theirs, word).load(Ordering::Acquire)
    }

    /// Writes one of ours; who sees it sees what was written before it.
    pub(super) fn set(&self, word: Word, value: u64) {
        self.word(Whose::Ours, word).store(value, Ordering::Release);
    }

    /// Says what we are to be woken for. Look once more afterwards: the fence orders
    /// this before the look, as [`Mem::wants_bell`] orders the peer's change before its
    /// look at this word. So one of the two sees the other.
    pub(super) fn fall_asleep(&self, wants: u64) {
        self.word(Whose::Ours, Word::Asleep).store(wants, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// We are awake: nobody need ring.
    pub(super) fn wake_up(&self) {
        self.word(Whose::Ours, Word::Asleep).store(0, Ordering::Relaxed);
    }

    /// True if the peer sleeps and wants to know of `what`, which has just been made
    /// visible: who gets this must ring.
    pub(super) fn wants_bell(&self, what: u64) -> bool {
        fence(Ordering::SeqCst);
        self.word(Whose::Theirs, Word::Asleep).load(Ordering::Relaxed) & what != 0
            && self.take_wish()
    }

    /// Takes away what the peer wants to be woken for; true if there was anything, which is to
    /// be rung for whatever it is: the peer may have been awake since it was looked at, and
    /// sleep anew, for something else. It would wait for a bell that nobody rings.
    fn take_wish(&self) -> bool {
        self.word(Whose::Theirs, Word::Asleep).swap(0, Ordering::AcqRel) != 0
    }

    /// Where an area lies, where in it a position is, and how long it is.
    fn place(&self, area: Area, whose: Whose, pos: u64) -> (usize, usize, usize) {
        let i = self.index(whose);
        let (start, turn, len) = match area {
            Area::Ring => (RINGS[i], TURNS[i], RING),
            Area::Lane => (LANES + i * LANE_LEN, 0, LANE),
        };
        #[expect(clippy::cast_possible_truncation, reason = "a few hundred KiB")]
        (start, (pos.wrapping_add(turn) & (len - 1)) as usize, len as usize)
    }

    /// Bytes from a position of a ring to the ring's end.
    pub(super) fn to_end(&self, whose: Whose, pos: u64) -> u64 {
        let (_, at, room) = self.place(Area::Ring, whose, pos);
        (room - at) as u64
    }

    /// A position of our ring lies before the first lap, on the page of the words.
    pub(super) fn is_first(&self, pos: u64) -> bool {
        pos < BEFORE[self.side]
    }

    fn tag_word(&self, whose: Whose, pos: u64) -> &AtomicU64 {
        let (start, at, _) = self.place(Area::Ring, whose, pos & !(LINE - 1));
        self.word_at(start + at)
    }

    fn tag(&self, whose: Whose, pos: u64) -> u64 {
        self.nonces[self.index(whose)].wrapping_add(pos)
    }

    /// True if the peer's record at `pos` is there.
    pub(super) fn arrived(&self, pos: u64) -> bool {
        let tag = self.tag(Whose::Theirs, pos);
        self.tag_word(Whose::Theirs, pos).load(Ordering::Acquire) == tag
    }

    /// Hands over our record at `pos`, of which all but the tag is written.
    pub(super) fn hand_over(&self, pos: u64) {
        let tag = self.tag(Whose::Ours, pos);
        self.tag_word(Whose::Ours, pos).store(tag, Ordering::Release);
    }

    /// Copies bytes into our area at `pos`, around its end. At most as many as it has.
    pub(super) fn put(&self, area: Area, pos: u64, from: &IoVec<'_>) {
        let (src, len) = from.parts();
        self.pieces(area, Whose::Ours, pos, len, |at, done, n| {
            // SAFETY: `done + n <= len`, so inside of what `from` stands for.
            let src = unsafe { src.cast::<u8>().add(done) };
            // SAFETY: `at` has `n` bytes of our mapping (`pieces`), and `src` that many of
            // the caller's; they overlap only if a program sends the rings themselves.
            unsafe { std::ptr::copy(src, at, n) };
        });
    }

    /// Copies bytes out of the peer's area at `pos`, likewise.
    pub(super) fn get(&self, area: Area, pos: u64, to: &IoVecMut<'_>) {
        let (dst, len) = to.parts();
        self.pieces(area, Whose::Theirs, pos, len, |at, done, n| {
            // SAFETY: `done + n <= len`, so inside of what `to` stands for.
            let dst = unsafe { dst.cast::<u8>().add(done) };
            // SAFETY: as in `put`; the peer may write meanwhile, and then some mixture is
            // copied, which is as good as anything else that it could have sent.
            unsafe { std::ptr::copy(at, dst, n) };
        });
    }

    /// The bytes of the peer's ring at `pos` where they lie, if they lie in one piece. The peer
    /// may write there, so each is to be read once, and checked after that.
    pub(super) fn lend(&self, pos: u64, len: usize) -> Option<Segment> {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let Owner::Map { region } = &self.owner else { return None };
        let (start, at, room) = self.place(Area::Ring, Whose::Theirs, pos);
        if len > room - at {
            return None;
        }
        region.segment(start + at, len).ok()
    }

    /// The line behind the first one of the peer's record at `pos` is read soon.
    pub(super) fn fetch_behind(&self, pos: u64) {
        let (start, at, _) = self.place(Area::Ring, Whose::Theirs, pos.wrapping_add(LINE));
        hint(Hint::Fetch, self.base.as_ptr().wrapping_add(start + at), 1);
    }

    /// Gives the processor a hint about the lines of our ring from `pos` on.
    pub(super) fn hint(&self, what: Hint, pos: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(0);
        self.pieces(Area::Ring, Whose::Ours, pos, len, |at, _, n| hint(what, at, n));
    }

    /// Writes what our record at `pos` begins with, in the line of its tag: the word of its head,
    /// and the message's header, up to the word in which that ends. (Word by word, as they were
    /// made: the processor need not wait for one to read the other.)
    #[inline]
    pub(super) fn put_head(&self, pos: u64, word: u64, header: &[u8; HEADER], len: usize) {
        const { assert!(SHORT + HEADER == 64) }
        let (start, at, _) = self.place(Area::Ring, Whose::Ours, pos & !(LINE - 1));
        self.word_at(start + at + 8).store(word, Ordering::Relaxed);
        for (i, bytes) in header.as_chunks().0.iter().enumerate().take(len.div_ceil(8)) {
            let word = u64::from_ne_bytes(*bytes);
            self.word_at(start + at + SHORT + 8 * i).store(word, Ordering::Relaxed);
        }
    }

    /// The beginning of the peer's record at `pos`, behind the tag: it is in one line, so it
    /// never goes around the end.
    #[inline]
    pub(super) fn head_at(&self, pos: u64) -> [u8; FULL - 8] {
        const { assert!(FULL as u64 <= LINE) }
        let (start, at, _) = self.place(Area::Ring, Whose::Theirs, pos & !(LINE - 1));
        let mut head = [0; FULL - 8];
        // SAFETY: `place` gives an offset inside of the ring, here that of a line, and a ring is a
        // whole number of lines: all of the line is in our mapping.
        let from = unsafe { self.base.as_ptr().add(start + at + 8) };
        // SAFETY: `FULL` bytes from the line's beginning are in it, and `head` is no part of the
        // mapping. The peer may write meanwhile: as in `get`.
        unsafe { from.copy_to_nonoverlapping(head.as_mut_ptr(), head.len()) };
        head
    }

    /// The one or two pieces of an area that `len` bytes at `pos` are: pointer, bytes
    /// before it, bytes.
    fn pieces(
        &self,
        area: Area,
        whose: Whose,
        pos: u64,
        len: usize,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) {
        let (start, at, room) = self.place(area, whose, pos);
        assert!(len <= room, "{len} bytes for an area of {room}");
        let first = len.min(room - at);
        // SAFETY: `start + at` is inside of the mapping, and `first` bytes from there too.
        f(unsafe { self.base.as_ptr().add(start + at) }, 0, first);
        if first < len {
            // SAFETY: the area's beginning; the rest is no longer than the area.
            f(unsafe { self.base.as_ptr().add(start) }, first, len - first);
        }
    }

    /// Gives back what our ring has outside of the positions from `from` to `to`, of which
    /// the peer may still read: whole pages of it, which cost memory although all that is in
    /// them is done with. They read as zeros afterwards, and a tag is never zero.
    pub(super) fn trim(&self, from: u64, to: u64) {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let Owner::Map { region } = &self.owner else { return };
        let Some(map) = region.shared_map() else { return };
        let (start, at, room) = self.place(Area::Ring, Whose::Ours, from);
        let used = usize::try_from(to - from).unwrap_or(room);
        let (mut run, mut page) = (0, start.next_multiple_of(PAGE));
        while page + PAGE <= start + room {
            // How far the page, or `from`, is ahead of the other around the ring.
            let (ahead, behind) =
                ((page - start + room - at) % room, (at + room - (page - start)) % room);
            if ahead > used && behind >= PAGE {
                run += PAGE;
            } else if run > 0 {
                map.discard(page - run, std::mem::take(&mut run));
            }
            page += PAGE;
        }
        if run > 0 {
            map.discard(page - run, run);
        }
    }

    /// Gives back the memory of our lane, of which the peer has taken all.
    pub(super) fn trim_lane(&self) {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let Owner::Map { region } = &self.owner else { return };
        if let Some(map) = region.shared_map() {
            map.discard(LANES + self.side * LANE_LEN, LANE_LEN);
        }
    }

    /// Puts what has been read before this before what is read after it.
    pub(super) fn settle_reads() {
        fence(Ordering::Acquire);
    }
}

/// A nonce whose sum with a position is never zero.
fn odd(nonce: u64) -> u64 {
    nonce | 1
}

/// Memory for both sides in one process.
#[cfg(test)]
pub(super) struct Heap(NonNull<u8>);

#[cfg(test)]
impl Heap {
    const LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(TOTAL, 4096) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };
}

// SAFETY: as for `Mem`.
#[cfg(test)]
unsafe impl Send for Heap {}
// SAFETY: as for `Mem`.
#[cfg(test)]
unsafe impl Sync for Heap {}

#[cfg(test)]
impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), Heap::LAYOUT) };
    }
}

#[cfg(test)]
impl Mem {
    /// Both sides of one connection, without the kernel.
    pub(super) fn both(nonces: [u64; 2]) -> (Mem, Mem) {
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(Heap::LAYOUT) }).unwrap();
        let memory = Arc::new(Heap(base));
        let side = |side, nonces| Mem {
            base,
            side,
            nonces,
            owner: Owner::Heap { _memory: Arc::clone(&memory) },
        };
        let (a, mut b) = (side(0, nonces.map(odd)), side(1, [0; 2]));
        a.set_geometry();
        b.check_geometry().unwrap();
        (a, b)
    }
}

#[cfg(test)]
mod tests;
