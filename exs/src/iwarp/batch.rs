//! The outgoing batch: headers in an arena, payload by reference.
//!
//! A batch is what one gathered write may take: FPDU headers, inline data, pads
//! and CRC fields lie in one arena of bounded size, payload stays where the user
//! has it. It is built once and then only consumed, however small the bites of
//! the socket are, so that no CRC is computed twice.
//!
//! What was summed must be what leaves. The memory of a WR is the WR's until it
//! completes, so it cannot change in between. That of a READ response can: it is
//! exported, so its program and its peers may write to it at any time. With CRC
//! such payload is therefore copied into the arena, and the sum is the copy's.

use std::fs::File;

use crate::mem::{Segment, Sgl};
use crate::sys::{IoVec, SourceFile};

/// Chunks in one gathered write, at most.
pub const MAX_CHUNKS: usize = 128;
/// Arena bytes of a batch, copied payload aside.
const ARENA: usize = 16 * 1024;
/// Stop adding to a batch that has copied so much payload: a slow peer makes us keep it.
const COPIES: usize = 64 * 1024;
/// A batch that is kept for the next connection keeps no larger arena: the last FPDU
/// may go beyond `COPIES`.
const ARENA_KEPT: usize = ARENA + COPIES + (64 << 10);
/// Stop adding to a batch of this many bytes: more would only wait in it. (A megabyte and
/// its announcement should leave together.)
const BATCH_BYTES: usize = (1 << 20) + (64 << 10);
/// Batches that a pool keeps for the next connection.
const POOL_KEEPS: usize = 8;

/// What stands in for the bytes of a file that ended early.
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// One stretch of the batch.
#[derive(Debug)]
enum Piece {
    Arena { off: usize, len: usize },
    Memory { seg: Segment, off: usize, len: usize },
    File { serial: u64, file: SourceFile, offset: u64, len: usize },
    Zeros { len: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Arena { len, .. }
            | Piece::Memory { len, .. }
            | Piece::File { len, .. }
            | Piece::Zeros { len } => *len,
        }
    }
}

/// See the module's essay.
#[derive(Debug)]
pub(super) struct TxBatch {
    arena: Vec<u8>,
    /// Bytes of the arena that are copied payload.
    copied: usize,
    pieces: Vec<Piece>,
    /// Offsets in the batch at which FPDUs end.
    ends: Vec<usize>,
    /// Bytes in all, and bytes gone.
    len: usize,
    gone: usize,
    /// First piece not gone, and how much of it is.
    next: usize,
    skip: usize,
    /// Each FPDU is to be a TCP segment of its own: peers of other makes read a CRC
    /// wrongly that begins in one segment and ends in the next (Linux's siw does).
    pub(super) alone: bool,
}

impl TxBatch {
    fn new() -> Box<TxBatch> {
        Box::new(TxBatch {
            arena: Vec::with_capacity(ARENA),
            copied: 0,
            pieces: Vec::with_capacity(MAX_CHUNKS),
            ends: Vec::with_capacity(MAX_CHUNKS),
            len: 0,
            gone: 0,
            next: 0,
            skip: 0,
            alone: false,
        })
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.arena.shrink_to(ARENA_KEPT);
        self.pieces.clear();
        self.ends.clear();
        (self.len, self.gone, self.next, self.skip, self.copied) = (0, 0, 0, 0, 0);
        self.alone = false;
    }

    /// True if an FPDU of at most `arena` bytes of headers and `pieces` pieces
    /// can be added.
    pub(super) fn has_room(&self, arena: usize, pieces: usize) -> bool {
        self.arena.len() + arena <= ARENA + self.copied
            && self.copied < COPIES
            && self.pieces.len() + pieces <= MAX_CHUNKS
            && self.ends.len() < MAX_CHUNKS
            && self.len < BATCH_BYTES
    }

    /// Bytes built.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// True once everything has left (or nothing was built).
    pub(super) fn is_done(&self) -> bool {
        self.gone == self.len
    }

    /// Adds a copy of header bytes; neighbours in the arena become one piece.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> &[u8] {
        self.push_copy(|arena| arena.extend_from_slice(bytes))
    }

    /// The same for what `copy` adds to the arena: these bytes.
    pub(super) fn push_copy(&mut self, copy: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let start = self.arena.len();
        copy(&mut self.arena);
        let added = self.arena.len() - start;
        self.len += added;
        match self.pieces.last_mut() {
            Some(Piece::Arena { off, len }) if *off + *len == start => *len += added,
            _ => self.pieces.push(Piece::Arena { off: start, len: added }),
        }
        &self.arena[start..]
    }

    /// The same for payload that may change where it lies.
    pub(super) fn push_payload(&mut self, payload: &IoVec<'_>) -> &[u8] {
        self.copied += payload.len();
        self.push_copy(|arena| payload.append_to(arena))
    }

    /// Adds payload from memory.
    pub(super) fn push_sgl(&mut self, sgl: &Sgl, offset: usize, len: usize) {
        self.len += len;
        sgl.for_range(offset, len, |seg, off, len| {
            self.pieces.push(Piece::Memory { seg: seg.clone(), off, len });
        });
    }

    /// Adds payload from one segment.
    pub(super) fn push_segment(&mut self, seg: &Segment, off: usize, len: usize) {
        self.len += len;
        self.pieces.push(Piece::Memory { seg: seg.clone(), off, len });
    }

    /// Adds payload from the file of the WR with this serial number.
    pub(super) fn push_file(&mut self, serial: u64, file: &SourceFile, offset: u64, len: usize) {
        self.len += len;
        self.pieces.push(Piece::File { serial, file: file.clone(), offset, len });
    }

    /// Adds zeros.
    pub(super) fn push_zeros(&mut self, len: usize) {
        self.len += len;
        self.pieces.push(Piece::Zeros { len });
    }

    /// Marks the end of an FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.ends.push(self.len);
    }

    /// Some bytes have left: the memory of whole pieces is let go, as what follows them may
    /// wait while their WR is complete, and its buffer the user's again.
    pub(super) fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.len - self.gone, "the driver sent more than it was given");
        let mut left = bytes.min(self.len - self.gone);
        self.gone += left;
        while let Some(piece) = self.pieces.get_mut(self.next) {
            let rest = piece.len() - self.skip;
            if left < rest {
                self.skip += left;
                break;
            }
            *piece = Piece::Zeros { len: piece.len() };
            left -= rest;
            self.next += 1;
            self.skip = 0;
        }
    }

    /// The file piece that is next to leave: (serial of its WR, bytes left).
    pub(super) fn current_file(&self) -> Option<(u64, usize)> {
        match self.pieces.get(self.next) {
            Some(Piece::File { serial, len, .. }) => Some((*serial, len - self.skip)),
            _ => None,
        }
    }

    /// The WR's file has ended: what is missing of it becomes zeros.
    pub(super) fn drop_file(&mut self, ended: u64) {
        for piece in &mut self.pieces[self.next..] {
            if matches!(piece, Piece::File { serial, .. } if *serial == ended) {
                *piece = Piece::Zeros { len: piece.len() };
            }
        }
    }

    /// Drops all that has not left, in the middle of an FPDU or not.
    pub(super) fn cut(&mut self) {
        self.pieces.truncate(self.next);
        self.ends.clear();
        (self.len, self.skip) = (self.gone, 0);
    }

    /// Lets go of all memory and files, but keeps the framing: what follows the
    /// FPDU of which a byte has left is dropped, and the rest of that one is
    /// copied. It cannot be left out or be made up: a SEND or a READ response
    /// that begins to arrive will be delivered, so it must be true. Of a file
    /// zeros must do; it can only be in a WRITE, which nothing will announce.
    pub(super) fn scrub(&mut self) {
        let begun = self.gone > 0 && !self.ends.contains(&self.gone);
        let end = match self.ends.iter().find(|end| **end > self.gone) {
            Some(end) if begun => *end,
            _ => return self.cut(),
        };
        let mut left = end - self.gone + self.skip;
        let mut keep = self.next;
        for piece in &mut self.pieces[self.next..] {
            if left == 0 {
                break;
            }
            let len = piece.len().min(left);
            *piece = match piece {
                // An arena piece may hold the heads of later FPDUs too.
                Piece::Arena { off, .. } => Piece::Arena { off: *off, len },
                Piece::Memory { seg, off, .. } => {
                    let start = self.arena.len();
                    self.arena.resize(start + len, 0);
                    seg.read_at(*off, &mut self.arena[start..]);
                    Piece::Arena { off: start, len }
                }
                Piece::File { .. } | Piece::Zeros { .. } => Piece::Zeros { len },
            };
            left -= len;
            keep += 1;
        }
        self.pieces.truncate(keep);
        self.ends.retain(|e| *e <= end);
        self.len = end;
    }

    /// What the driver is to do next with this batch.
    pub(super) fn step(&self) -> TxStep<'_> {
        if let Some(Piece::File { file, offset, len, .. }) = self.pieces.get(self.next) {
            let offset = *offset + self.skip as u64;
            return TxStep::File { file, offset, len: len - self.skip };
        }
        let rest = &self.pieces[self.next..];
        let file = rest.iter().position(|p| matches!(p, Piece::File { .. }));
        let pieces = &rest[..file.unwrap_or(rest.len())];
        TxStep::Gather(Gather {
            arena: &self.arena,
            pieces,
            skip: self.skip,
            more: file.is_some(),
            alone: self.alone,
        })
    }
}

/// Scratch for outgoing batches, shared by all connections of a driver: an
/// engine takes one while it has bytes on their way and gives it back when they
/// have left, so that idle connections hold none.
#[derive(Debug, Default)]
pub struct TxPool {
    #[expect(clippy::vec_box, reason = "engines hold the boxes; moving them costs a pointer")]
    free: Vec<Box<TxBatch>>,
}

impl TxPool {
    /// An empty pool.
    #[cfg(any(test, feature = "internals"))]
    pub fn new() -> TxPool {
        TxPool::default()
    }

    pub(super) fn take(&mut self) -> Box<TxBatch> {
        self.free.pop().unwrap_or_else(TxBatch::new)
    }

    pub(super) fn give(&mut self, mut batch: Box<TxBatch>) {
        if self.free.len() < POOL_KEEPS {
            batch.clear();
            self.free.push(batch);
        }
    }
}

/// A piece of a gathered write.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Headers, trailers, inline data, padding.
    Bytes(&'a [u8]),
    /// Payload where the user has it.
    Memory {
        /// The memory.
        seg: &'a Segment,
        /// Offset in it.
        off: usize,
        /// Bytes.
        len: usize,
    },
}

/// One gathered write.
#[derive(Debug)]
pub struct Gather<'a> {
    arena: &'a [u8],
    pieces: &'a [Piece],
    skip: usize,
    /// A file step follows at once: write with MSG_MORE.
    pub more: bool,
    /// What follows must not share a TCP segment with it (MSG_EOR).
    pub alone: bool,
}

impl<'a> Gather<'a> {
    /// No more pieces than this come out of it.
    pub fn most(&self) -> usize {
        match self.pieces {
            [Piece::Arena { .. } | Piece::Memory { .. }] => 1,
            _ => MAX_CHUNKS,
        }
    }

    /// Calls `f` for each piece in order, at most [`MAX_CHUNKS`] times. What does
    /// not fit these is in the next step.
    pub fn for_each(&self, f: &mut dyn FnMut(Chunk<'a>)) {
        let mut room = MAX_CHUNKS;
        let mut skip = self.skip;
        for piece in self.pieces {
            if room == 0 {
                return;
            }
            match piece {
                Piece::Arena { off, len } => f(Chunk::Bytes(&self.arena[off + skip..off + len])),
                Piece::Memory { seg, off, len } => {
                    f(Chunk::Memory { seg, off: off + skip, len: len - skip });
                }
                Piece::Zeros { len } => {
                    let mut left = len - skip;
                    while left > ZEROS.len() && room > 1 {
                        f(Chunk::Bytes(&ZEROS));
                        left -= ZEROS.len();
                        room -= 1;
                    }
                    f(Chunk::Bytes(&ZEROS[..left.min(ZEROS.len())]));
                    if left > ZEROS.len() {
                        return;
                    }
                }
                Piece::File { .. } => unreachable!("`step` ends a gather before a file"),
            }
            room -= 1;
            skip = 0;
        }
    }
}

/// What the driver is to do next to send. It does that, reports how far it came,
/// and asks again until there is nothing to do or the socket takes no more.
#[derive(Debug)]
pub enum TxStep<'a> {
    /// Nothing to send now.
    Idle,
    /// Write this with one sendmsg(2), then `handle_sent`.
    Gather(Gather<'a>),
    /// Send this part of a file with sendfile(2), then `handle_file_sent`, or
    /// `handle_file_error` if the file cannot be read. Header bytes follow.
    File {
        /// The file.
        file: &'a File,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// shutdown(2) the sending side. Said once.
    Shutdown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;

    fn collect(batch: &TxBatch) -> Vec<u8> {
        let mut out = Vec::new();
        if let TxStep::Gather(g) = batch.step() {
            g.for_each(&mut |chunk| match chunk {
                Chunk::Bytes(b) => out.extend_from_slice(b),
                Chunk::Memory { seg, off, len } => {
                    let at = out.len();
                    out.resize(at + len, 0);
                    seg.read_at(off, &mut out[at..]);
                }
            });
        }
        out
    }

    fn two_fpdus() -> Box<TxBatch> {
        let seg = Region::from_vec(b"payload".to_vec()).segment(0, 7).unwrap();
        let mut batch = TxBatch::new();
        for head in [b"h1", b"h2"] {
            batch.push_bytes(head);
            batch.push_segment(&seg, 0, 7);
            batch.push_bytes(b"crc.");
            batch.end_fpdu();
        }
        batch
    }

    #[test]
    fn bites_of_any_size_yield_the_same_bytes() {
        for bite in 1..26 {
            let mut batch = two_fpdus();
            let mut out = Vec::new();
            while !batch.is_done() {
                let bytes = collect(&batch);
                let n = bite.min(bytes.len());
                out.extend_from_slice(&bytes[..n]);
                batch.advance(n);
            }
            assert_eq!(out, b"h1payloadcrc.h2payloadcrc.");
        }
    }

    #[test]
    fn trailer_and_next_header_are_one_piece() {
        assert_eq!(two_fpdus().pieces.len(), 5);
    }

    #[test]
    fn scrub_keeps_the_begun_fpdu_only() {
        for sent in 0..=26 {
            let mut batch = two_fpdus();
            let mut out = collect(&batch)[..sent].to_vec();
            batch.advance(sent);
            batch.scrub();
            let rest = collect(&batch);
            out.extend_from_slice(&rest);
            let whole = if sent == 0 { 0 } else { sent.div_ceil(13) * 13 };
            assert_eq!(out, b"h1payloadcrc.h2payloadcrc."[..whole], "after {sent}");
            assert!(!batch.pieces[batch.next..].iter().any(|p| matches!(p, Piece::Memory { .. })));
            batch.advance(rest.len());
            assert!(batch.is_done());
        }
    }

    #[test]
    fn long_zeros_take_several_gathers() {
        let mut batch = TxBatch::new();
        batch.push_bytes(b"h");
        batch.push_zeros(MAX_CHUNKS * ZEROS.len() + 5);
        batch.push_bytes(b"t");
        batch.end_fpdu();
        let mut out = Vec::new();
        while !batch.is_done() {
            let bytes = collect(&batch);
            batch.advance(bytes.len());
            out.extend(bytes);
        }
        assert_eq!(out.len(), MAX_CHUNKS * ZEROS.len() + 7);
        assert_eq!((out[0], out[out.len() - 1]), (b'h', b't'));
    }
}
