//! The memory that two processes share, and every access to it (an `unsafe` island).
//!
//! # Layout
//! A memfd has the memory of one connection, or of several, one behind the other (`slabs`). The side
//! that connects makes it, and seals it (its size is fixed). All numbers are in the byte order of the
//! host.
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
//! Memory that no process has touched costs nothing. So everything that a connection touches
//! first lies on one page: the words, the beginning of ring 0, and the end of ring 1. The first
//! record of ring 1 goes to that end: its first lap is only 1664 bytes long.
//!
//! # Order
//! The writer writes a record first and its *tag*, the first word of its first line, last
//! (release). The reader looks at the tag (acquire) where it expects the next record. So a small
//! record moves with one cache line, and no index moves with it. The tag of the record at
//! position `p` (counted over the life of the connection) is `nonce + p`. So whatever an earlier
//! lap has left there is no tag: an old tag has another value, and no peer of the program can
//! guess the nonce and send it as payload.
//!
//! # The argument
//! `Mem` holds its mapping for its whole life, and checks its length against the layout when it
//! is made. Offsets of words are constants below the end of the first page. Positions in rings and
//! lanes are masked, and no copy is longer than its area. So every pointer made here is in bounds,
//! whatever the peer writes. No reference to the bytes exists, and words are atomics. So the worst
//! that a peer can write is a wrong number. The users of this module check every number that they
//! read with it.
#![allow(unsafe_code)]

mod reuse;

pub(super) use reuse::Vacated;

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::record::{FULL_HEAD_LEN, SHORT_HEAD_LEN};
use super::sleep::SleepWords;
use crate::mem::{Region, Segment};
use crate::rnic::HEAD as HEADER;
use crate::sys::{Hint, IoVec, IoVecMut, SharedMap, SharedWord, hint};

/// Bytes of a cache line.
pub(super) const LINE: u64 = 64;
/// Bytes of a ring. A sender mostly uses fewer (`ring_window.rs`).
pub(super) const RING: u64 = RING_LEN as u64;
const RING_LEN: usize = 256 << 10;
/// Bytes of a lane.
pub(super) const LANE: u64 = LANE_LEN as u64;
const LANE_LEN: usize = 256 << 10;

const MAGIC: u64 = u64::from_ne_bytes(*b"EXS shm\0");
/// Version of the layout, of the records and of the start-up.
pub(super) const VERSION: u64 = 8;
/// The geometry: magic, version, bytes of a ring, of a lane, of all. The nonces follow.
const GEOMETRY: [u64; 5] = [MAGIC, VERSION, RING, LANE, TOTAL as u64];
const NONCES: usize = HEAD + 8 * GEOMETRY.len();
const PAGE: usize = 4096;
/// Bytes of the geometry and the words.
const HEAD_LEN: usize = 768;
/// Bytes of each ring that lie on the page of the words.
const NEAR: usize = (PAGE - HEAD_LEN) / 2;
const HEAD: usize = NEAR + RING_LEN;
const WORDS: [usize; 2] = [HEAD + 128, HEAD + 448];
const RINGS: [usize; 2] = [HEAD + HEAD_LEN, NEAR];
/// Added to a position to find its place in the ring.
const SHIFTS: [u64; 2] = [0, RING - NEAR as u64];
/// Bytes that a side writes before it reaches the beginning of its ring for the first time.
const BEFORE_START: [u64; 2] = [0, NEAR as u64];
const LANES: usize = (RINGS[0] + RING_LEN).next_multiple_of(PAGE);
const TOTAL: usize = LANES + 2 * LANE_LEN;
const _: () = assert!(TOTAL.is_multiple_of(PAGE));
const _: () = assert!((NEAR as u64).is_multiple_of(LINE) && HEAD % PAGE + HEAD_LEN + NEAR == PAGE);

/// A word that its owner writes and the other side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Position up to which its owner has read the records of the other side.
    Consumed = 0,
    /// End of the record of payload its owner wants by the lane; 0: none was asked for.
    LaneFor = 8,
    /// Bytes that its owner has taken out of the lane.
    Drained = 64,
    /// Bytes that its owner has put into the lane.
    Filled = 128,
    /// What its owner wants to be woken for; 0: it is awake. The other side sets it to 0 before it
    /// rings.
    Asleep = 192,
    /// How its owner has ended the connection; 0: it has not.
    State = 256,
    /// The doorbell bitmap of its owner, which the other side has from another connection; 0: none
    /// was named.
    BitmapId = 264,
    /// The connection's bit in that bitmap.
    BitmapSlot = 272,
}

/// An area of bytes for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// Records.
    Ring,
    /// Payload.
    Lane,
}

/// The side that writes an area or a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemSide {
    Ours,
    Theirs,
}

enum MemOwner {
    /// The region keeps the memory mapped.
    Map { region: Arc<Region> },
    /// Under Miri, and in tests of this module, the two sides are two threads of one process.
    #[cfg(test)]
    Heap { _memory: Arc<Heap> },
}

/// The shared memory of one connection, as one side sees it.
pub(super) struct Mem {
    base: NonNull<u8>,
    side: usize,
    nonces: [u64; 2],
    owner: MemOwner,
}

// SAFETY: an address range that the owner keeps mapped. The methods are made for memory that any
// thread, here or in another process, can write at any time.
unsafe impl Send for Mem {}

impl Mem {
    /// Bytes of the memory.
    pub(super) const LEN: usize = TOTAL;

    /// Makes the memory of a connection at a place in a slab, as side 0.
    ///
    /// # Errors
    /// `InvalidInput` for a place beyond the last.
    pub(super) fn create(slab: Arc<SharedMap>, place: u32, nonces: [u64; 2]) -> io::Result<Mem> {
        let mem = Mem::at(slab, place, (0, nonces.map(odd)))?;
        mem.set_geometry();
        Ok(mem)
    }

    /// Opens the memory that the peer made at a place in a slab, as side 1.
    ///
    /// # Errors
    /// `InvalidInput` for a place beyond the last, or if the layout is not the one of this version.
    pub(super) fn open(slab: Arc<SharedMap>, place: u32) -> io::Result<Mem> {
        let mut mem = Mem::at(slab, place, (1, [0; 2]))?;
        mem.check_geometry()?;
        Ok(mem)
    }

    fn at(slab: Arc<SharedMap>, place: u32, (side, nonces): (usize, [u64; 2])) -> io::Result<Mem> {
        let offset = (place as usize).checked_mul(TOTAL);
        let map = offset.and_then(|offset| SharedMap::part(slab, offset, TOTAL));
        let map = map.ok_or(io::ErrorKind::InvalidInput)?;
        let base = map.base();
        Ok(Mem { base, side, nonces, owner: MemOwner::Map { region: Region::view(map) } })
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
            // Made odd here too: a tag is never 0, which fresh memory holds.
            self.nonces[i] = odd(self.word_at(NONCES + 8 * i).load(Ordering::Acquire));
        }
        Ok(())
    }

    /// A word, by its offset, which is a multiple of 8.
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset <= TOTAL - 8);
        // SAFETY: in bounds, just asserted.
        let at = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: aligned (the mapping starts at a page) and mapped for as long as `self` is. Only
        // atomics read and write it; the exceptions are stale words in a ring, and there only the
        // tag decides.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    fn word(&self, of: MemSide, word: Word) -> &AtomicU64 {
        self.word_at(WORDS[self.index(of)] + word as usize)
    }

    fn index(&self, of: MemSide) -> usize {
        match of {
            MemSide::Ours => self.side,
            MemSide::Theirs => 1 - self.side,
        }
    }

    /// The same memory as the same side, for a thread that has its rings.
    pub(super) fn view(&self) -> Mem {
        let owner = match &self.owner {
            MemOwner::Map { region } => MemOwner::Map { region: Arc::clone(region) },
            #[cfg(test)]
            MemOwner::Heap { _memory } => MemOwner::Heap { _memory: Arc::clone(_memory) },
        };
        Mem { base: self.base, side: self.side, nonces: self.nonces, owner }
    }

    /// True on the side that made the memory, which is the side that connects.
    pub(super) fn is_ours(&self) -> bool {
        self.side == 0
    }

    /// Reads one of the peer's words. Everything that the peer wrote before it is visible too.
    pub(super) fn theirs(&self, word: Word) -> u64 {
        self.word(MemSide::Theirs, word).load(Ordering::Acquire)
    }

    /// Writes one of our words. A peer that sees it sees everything that we wrote before it.
    pub(super) fn set(&self, word: Word, value: u64) {
        self.word(MemSide::Ours, word).store(value, Ordering::Release);
    }

    /// How the two sides sleep and wake each other.
    pub(super) fn sleep_words(&self) -> SleepWords<'_> {
        let of = |side| self.word(side, Word::Asleep);
        SleepWords { ours: of(MemSide::Ours), theirs: of(MemSide::Theirs) }
    }

    /// Our word, for a thread that sleeps on it while it has this value.
    pub(super) fn own_sleep_word(&self, value: u64) -> SharedWord {
        let memory: Arc<dyn Any + Send + Sync> = match &self.owner {
            MemOwner::Map { region } => Arc::clone(region) as _,
            #[cfg(test)]
            MemOwner::Heap { _memory } => Arc::clone(_memory) as _,
        };
        // SAFETY: the owner keeps the word mapped.
        unsafe { SharedWord::new(self.word(MemSide::Ours, Word::Asleep), value, memory) }
    }

    /// Where an area lies, where a position is in it, and how long it is.
    fn locate(&self, area: Area, of: MemSide, pos: u64) -> (usize, usize, usize) {
        let i = self.index(of);
        let (start, turn, len) = match area {
            Area::Ring => (RINGS[i], SHIFTS[i], RING),
            Area::Lane => (LANES + i * LANE_LEN, 0, LANE),
        };
        #[expect(clippy::cast_possible_truncation, reason = "a few hundred KiB")]
        (start, (pos.wrapping_add(turn) & (len - 1)) as usize, len as usize)
    }

    /// Bytes from a position of a ring to the ring's end.
    pub(super) fn to_end(&self, of: MemSide, pos: u64) -> u64 {
        let (_, at, room) = self.locate(Area::Ring, of, pos);
        (room - at) as u64
    }

    /// True if a position of our ring lies before the beginning of the ring is reached first: on the
    /// page of the words.
    pub(super) fn is_first(&self, pos: u64) -> bool {
        pos < BEFORE_START[self.side]
    }

    fn tag_word(&self, of: MemSide, pos: u64) -> &AtomicU64 {
        let (start, at, _) = self.locate(Area::Ring, of, pos & !(LINE - 1));
        self.word_at(start + at)
    }

    fn tag(&self, of: MemSide, pos: u64) -> u64 {
        self.nonces[self.index(of)].wrapping_add(pos)
    }

    /// True if the peer has published its record at `pos`.
    pub(super) fn has_record(&self, pos: u64) -> bool {
        let tag = self.tag(MemSide::Theirs, pos);
        self.tag_word(MemSide::Theirs, pos).load(Ordering::Acquire) == tag
    }

    /// Publishes our record at `pos`, of which all but the tag is written.
    pub(super) fn publish(&self, pos: u64) {
        let tag = self.tag(MemSide::Ours, pos);
        self.tag_word(MemSide::Ours, pos).store(tag, Ordering::Release);
    }

    /// Copies bytes into our area at `pos`, around its end if needed. Panics if they exceed the area.
    pub(super) fn put(&self, area: Area, pos: u64, from: &IoVec<'_>) {
        let (src, len) = from.parts();
        self.pieces(area, MemSide::Ours, pos, len, |at, done, n| {
            // SAFETY: `done + n <= len`, so inside of what `from` stands for.
            let src = unsafe { src.cast::<u8>().add(done) };
            // SAFETY: `at` has `n` bytes of our mapping (`pieces`), and `src` that many of
            // the caller's; they overlap only if a program sends the rings themselves.
            unsafe { std::ptr::copy(src, at, n) };
        });
    }

    /// Copies bytes out of the peer's area at `pos`, in the same way.
    pub(super) fn get(&self, area: Area, pos: u64, to: &IoVecMut<'_>) {
        let (dst, len) = to.parts();
        self.pieces(area, MemSide::Theirs, pos, len, |at, done, n| {
            // SAFETY: `done + n <= len`, so inside of what `to` stands for.
            let dst = unsafe { dst.cast::<u8>().add(done) };
            // SAFETY: as in `put`. The peer may write meanwhile: then the copy is some mixture, and
            // the peer could have sent that as well.
            unsafe { std::ptr::copy(at, dst, n) };
        });
    }

    /// The bytes of the peer's ring at `pos` in place; None if they do not lie in one piece. The peer
    /// may write there, so the caller must read each byte once, and check it after that.
    pub(super) fn segment_at(&self, pos: u64, len: usize) -> Option<Segment> {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let MemOwner::Map { region } = &self.owner else { return None };
        let (start, at, room) = self.locate(Area::Ring, MemSide::Theirs, pos);
        if len > room - at {
            return None;
        }
        region.segment(start + at, len).ok()
    }

    /// Prefetches the line behind the first one of the peer's record at `pos`.
    pub(super) fn prefetch_next_line(&self, pos: u64) {
        let (start, at, _) = self.locate(Area::Ring, MemSide::Theirs, pos.wrapping_add(LINE));
        hint(Hint::Fetch, self.base.as_ptr().wrapping_add(start + at), 1);
    }

    /// Gives the processor a hint about `len` bytes of our ring from `pos` on.
    pub(super) fn hint(&self, what: Hint, pos: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(0);
        self.pieces(Area::Ring, MemSide::Ours, pos, len, |at, _, n| hint(what, at, n));
    }

    /// Writes the beginning of our record at `pos`, in the line of its tag: the word of its head, and
    /// the `len` bytes of the message's header, up to the end of a word. Word by word, as they were
    /// made: a wider load would have to wait for the stores.
    #[inline]
    pub(super) fn put_head(&self, pos: u64, word: u64, header: &[u8; HEADER], len: usize) {
        const { assert!(SHORT_HEAD_LEN + HEADER == 64) }
        let (start, at, _) = self.locate(Area::Ring, MemSide::Ours, pos & !(LINE - 1));
        self.word_at(start + at + 8).store(word, Ordering::Relaxed);
        for (i, bytes) in header.as_chunks().0.iter().enumerate().take(len.div_ceil(8)) {
            let word = u64::from_ne_bytes(*bytes);
            self.word_at(start + at + SHORT_HEAD_LEN + 8 * i).store(word, Ordering::Relaxed);
        }
    }

    /// The beginning of the peer's record at `pos`, behind the tag. It lies in one line, so it never
    /// goes around the end.
    #[inline]
    pub(super) fn head_at(&self, pos: u64) -> [u8; FULL_HEAD_LEN - 8] {
        const { assert!(FULL_HEAD_LEN as u64 <= LINE) }
        let (start, at, _) = self.locate(Area::Ring, MemSide::Theirs, pos & !(LINE - 1));
        let mut head = [0; FULL_HEAD_LEN - 8];
        // SAFETY: `locate` gives an offset inside of the ring, here that of a line, and a ring is a
        // whole number of lines: all of the line is in our mapping.
        let from = unsafe { self.base.as_ptr().add(start + at + 8) };
        // SAFETY: `FULL_HEAD_LEN` bytes from the line's beginning lie in it, and `head` is not in
        // the mapping. The peer may write meanwhile: as in `get`.
        unsafe { from.copy_to_nonoverlapping(head.as_mut_ptr(), head.len()) };
        head
    }

    /// Calls `f` with the one or two pieces that `len` bytes at `pos` of an area consist of: pointer,
    /// bytes before the piece, bytes of the piece.
    fn pieces(
        &self,
        area: Area,
        of: MemSide,
        pos: u64,
        len: usize,
        mut f: impl FnMut(*mut u8, usize, usize),
    ) {
        let (start, at, room) = self.locate(area, of, pos);
        assert!(len <= room, "{len} bytes for an area of {room}");
        let first = len.min(room - at);
        // SAFETY: `start + at` is inside of the mapping, and `first` bytes from there too.
        f(unsafe { self.base.as_ptr().add(start + at) }, 0, first);
        if first < len {
            // SAFETY: the area's beginning; the rest is no longer than the area.
            f(unsafe { self.base.as_ptr().add(start) }, first, len - first);
        }
    }

    /// Gives memory of our ring back to the kernel, outside of the positions from `from` to `to`,
    /// which the peer may still read. Whole pages only: they cost memory although the peer has read
    /// everything in them. They read as zeros afterwards, and a tag is never 0.
    pub(super) fn trim(&self, from: u64, to: u64) {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let MemOwner::Map { region } = &self.owner else { return };
        let Some(map) = region.shared_map() else { return };
        let (start, at, room) = self.locate(Area::Ring, MemSide::Ours, from);
        let used = usize::try_from(to - from).unwrap_or(room);
        let (mut run, mut page) = (0, start.next_multiple_of(PAGE));
        while page + PAGE <= start + room {
            // How far the page is ahead of `from` around the ring, and `from` ahead of the page.
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

    /// Gives the memory of our lane back to the kernel. The peer must have taken all of it.
    pub(super) fn trim_lane(&self) {
        #[cfg_attr(not(test), expect(irrefutable_let_patterns, reason = "tests have a heap"))]
        let MemOwner::Map { region } = &self.owner else { return };
        if let Some(map) = region.shared_map() {
            map.discard(LANES + self.side * LANE_LEN, LANE_LEN);
        }
    }

    /// Orders the reads before this call before the reads after it.
    pub(super) fn settle_reads() {
        fence(Ordering::Acquire);
    }
}

/// Makes a nonce odd, so that its sum with a position (a multiple of 64) is never 0.
fn odd(nonce: u64) -> u64 {
    nonce | 1
}

/// Memory of both sides in one process.
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
            owner: MemOwner::Heap { _memory: Arc::clone(&memory) },
        };
        let (a, mut b) = (side(0, nonces.map(odd)), side(1, [0; 2]));
        a.set_geometry();
        b.check_geometry().unwrap();
        (a, b)
    }
}

#[cfg(test)]
mod tests;
