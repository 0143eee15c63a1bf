//! The outgoing batch: headers in an arena, payload by reference.
//!
//! A batch is the content of one gathered write. FPDU headers, inline data, pads and CRC fields
//! lie in one arena of bounded size; payload stays in user memory. A batch is built once and then
//! only consumed, however few bytes the socket takes at a time, so that no CRC is computed twice.
//!
//! The bytes that leave must be those that the CRC covers. The memory of a WR belongs to the WR
//! until it completes, so it cannot change in between. The memory of a READ response can: it is
//! exported, so its program and its peers may write to it at any time. With CRC such payload is
//! therefore copied into the arena, and the CRC is that of the copy.

use std::fs::File;

use crate::mem::{Segment, Sgl};
use crate::sys::{IoVec, SourceFile};

/// Most chunks in one gathered write.
pub const MAX_CHUNKS: usize = 128;
/// Arena bytes of a batch, without copied payload.
const ARENA: usize = 16 * 1024;
/// A batch with this many bytes of copied payload takes no more, because a slow peer makes the
/// engine keep them.
const COPIES: usize = 64 * 1024;
/// Most arena bytes that a batch keeps for the next connection. The last FPDU may go beyond
/// `COPIES`.
const ARENA_KEPT: usize = ARENA + COPIES + (64 << 10);
/// A batch of this many bytes takes no more: they would only wait in it. A megabyte and its
/// announcement should leave together.
const BATCH_BYTES: usize = (1 << 20) + (64 << 10);
/// Most batches that a pool keeps for the next connection.
const POOL_KEEPS: usize = 8;

/// Stands in for the bytes of a file that ended early.
static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// One stretch of the batch.
#[derive(Debug)]
enum BatchPiece {
    Arena { off: usize, len: usize },
    Memory { seg: Segment, off: usize, len: usize },
    File { serial: u64, file: SourceFile, offset: u64, len: usize },
    Zeros { len: usize },
}

impl BatchPiece {
    fn len(&self) -> usize {
        match self {
            BatchPiece::Arena { len, .. }
            | BatchPiece::Memory { len, .. }
            | BatchPiece::File { len, .. }
            | BatchPiece::Zeros { len } => *len,
        }
    }
}

/// The batch. The module's head explains it.
#[derive(Debug)]
pub(super) struct TxBatch {
    arena: Vec<u8>,
    /// Arena bytes that are copied payload.
    copied: usize,
    pieces: Vec<BatchPiece>,
    /// Offsets in the batch at which FPDUs end.
    ends: Vec<usize>,
    /// Bytes of the batch, and how many of them have left.
    len: usize,
    gone: usize,
    /// Index of the first piece that has not left, and how many of its bytes have.
    next: usize,
    skip: usize,
    /// Each FPDU must be a TCP segment of its own. Peers of other makes fail on a CRC that begins
    /// in one segment and ends in the next (Linux's siw does).
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

    /// Returns true if an FPDU of at most `arena` bytes of headers and `pieces` pieces can be
    /// added.
    pub(super) fn has_room(&self, arena: usize, pieces: usize) -> bool {
        self.arena.len() + arena <= ARENA + self.copied
            && self.copied < COPIES
            && self.pieces.len() + pieces <= MAX_CHUNKS
            && self.ends.len() < MAX_CHUNKS
            && self.len < BATCH_BYTES
    }

    /// Returns the number of bytes built.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if everything has left, or nothing was built.
    pub(super) fn is_done(&self) -> bool {
        self.gone == self.len
    }

    /// Adds a copy of header bytes and returns the copy. Neighbours in the arena become one
    /// piece.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) -> &[u8] {
        self.push_copy(|arena| arena.extend_from_slice(bytes))
    }

    /// As `push_bytes`, for the bytes that `copy` appends to the arena.
    pub(super) fn push_copy(&mut self, copy: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let start = self.arena.len();
        copy(&mut self.arena);
        let added = self.arena.len() - start;
        self.len += added;
        match self.pieces.last_mut() {
            Some(BatchPiece::Arena { off, len }) if *off + *len == start => *len += added,
            _ => self.pieces.push(BatchPiece::Arena { off: start, len: added }),
        }
        &self.arena[start..]
    }

    /// As `push_bytes`, for payload that may change where it lies.
    pub(super) fn push_payload(&mut self, payload: &IoVec<'_>) -> &[u8] {
        self.copied += payload.len();
        self.push_copy(|arena| payload.append_to(arena))
    }

    /// Adds payload from memory.
    pub(super) fn push_sgl(&mut self, sgl: &Sgl, offset: usize, len: usize) {
        self.len += len;
        sgl.for_range(offset, len, |seg, off, len| {
            self.pieces.push(BatchPiece::Memory { seg: seg.clone(), off, len });
        });
    }

    /// Adds payload from one segment.
    pub(super) fn push_segment(&mut self, seg: &Segment, off: usize, len: usize) {
        self.len += len;
        self.pieces.push(BatchPiece::Memory { seg: seg.clone(), off, len });
    }

    /// Adds payload from the file of the WR with this serial number.
    pub(super) fn push_file(&mut self, serial: u64, file: &SourceFile, offset: u64, len: usize) {
        self.len += len;
        self.pieces.push(BatchPiece::File { serial, file: file.clone(), offset, len });
    }

    /// Adds `len` zeros.
    pub(super) fn push_zeros(&mut self, len: usize) {
        self.len += len;
        self.pieces.push(BatchPiece::Zeros { len });
    }

    /// Marks the end of an FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.ends.push(self.len);
    }

    /// Records that bytes have left. The batch lets go of the memory of whole pieces: the bytes
    /// behind them may wait while their WR is complete and its buffer is the user's again.
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
            *piece = BatchPiece::Zeros { len: piece.len() };
            left -= rest;
            self.next += 1;
            self.skip = 0;
        }
    }

    /// Returns the file piece at the front: (serial of its WR, bytes left). None if the front is
    /// not a file.
    pub(super) fn current_file(&self) -> Option<(u64, usize)> {
        match self.pieces.get(self.next) {
            Some(BatchPiece::File { serial, len, .. }) => Some((*serial, len - self.skip)),
            _ => None,
        }
    }

    /// Replaces the rest of an ended file by zeros.
    pub(super) fn drop_file(&mut self, ended: u64) {
        for piece in &mut self.pieces[self.next..] {
            if matches!(piece, BatchPiece::File { serial, .. } if *serial == ended) {
                *piece = BatchPiece::Zeros { len: piece.len() };
            }
        }
    }

    /// Drops all bytes that have not left, even in the middle of an FPDU.
    pub(super) fn cut(&mut self) {
        self.pieces.truncate(self.next);
        self.ends.clear();
        (self.len, self.skip) = (self.gone, 0);
    }

    /// Lets go of all memory and files, but keeps the framing. FPDUs behind the one of which a
    /// byte has left are dropped, and the rest of that one is copied. It cannot be left out or
    /// made up: the peer will deliver a SEND or a READ response that has begun to arrive, so its
    /// bytes must be true. A file is replaced by zeros, because it can only be in a WRITE, which
    /// no message will announce.
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
                // An arena piece may also hold the headers of later FPDUs.
                BatchPiece::Arena { off, .. } => BatchPiece::Arena { off: *off, len },
                BatchPiece::Memory { seg, off, .. } => {
                    let start = self.arena.len();
                    self.arena.resize(start + len, 0);
                    seg.read_at(*off, &mut self.arena[start..]);
                    BatchPiece::Arena { off: start, len }
                }
                BatchPiece::File { .. } | BatchPiece::Zeros { .. } => BatchPiece::Zeros { len },
            };
            left -= len;
            keep += 1;
        }
        self.pieces.truncate(keep);
        self.ends.retain(|e| *e <= end);
        self.len = end;
    }

    /// Returns the driver's next step with this batch. `ends`: the end of the sending side follows it.
    pub(super) fn step(&self, ends: bool) -> SendStep<'_> {
        if let Some(BatchPiece::File { file, offset, len, .. }) = self.pieces.get(self.next) {
            let offset = *offset + self.skip as u64;
            return SendStep::File { file, offset, len: len - self.skip };
        }
        let rest = &self.pieces[self.next..];
        let file = rest.iter().position(|p| matches!(p, BatchPiece::File { .. }));
        let pieces = &rest[..file.unwrap_or(rest.len())];
        SendStep::Gather(Gather {
            arena: &self.arena,
            pieces,
            skip: self.skip,
            // An FPDU that must be a segment of its own does not wait for the end.
            more: file.is_some() || ends && !self.alone,
            alone: self.alone,
        })
    }
}

/// Scratch for outgoing batches, shared by all connections of a driver. An engine takes one while
/// it has bytes on their way and gives it back when they have left, so that idle connections hold
/// none.
#[derive(Debug, Default)]
pub struct TxPool {
    #[expect(clippy::vec_box, reason = "engines hold the boxes; moving them costs a pointer")]
    free: Vec<Box<TxBatch>>,
}

impl TxPool {
    /// Makes an empty pool.
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
pub enum GatherChunk<'a> {
    /// Headers, trailers, inline data, padding.
    Bytes(&'a [u8]),
    /// Payload in user memory.
    Memory {
        /// The memory.
        seg: &'a Segment,
        /// Offset of the first byte in it.
        off: usize,
        /// Number of bytes.
        len: usize,
    },
}

/// One gathered write.
#[derive(Debug)]
pub struct Gather<'a> {
    arena: &'a [u8],
    pieces: &'a [BatchPiece],
    skip: usize,
    /// A file step, or the end, follows at once. The driver must write with MSG_MORE, so that the end
    /// (FIN) leaves in the segment of the last bytes.
    pub more: bool,
    /// The next write must not share a TCP segment with this one (MSG_EOR).
    pub alone: bool,
}

impl<'a> Gather<'a> {
    /// Returns an upper bound for the number of pieces.
    pub fn most(&self) -> usize {
        match self.pieces {
            [BatchPiece::Arena { .. } | BatchPiece::Memory { .. }] => 1,
            _ => MAX_CHUNKS,
        }
    }

    /// Appends all bytes to `out`. Returns false, and appends nothing, if they are not in one piece
    /// of the batch's own memory, or more than `most`.
    pub fn copy_to(&self, out: &mut Vec<u8>, most: usize) -> bool {
        let [BatchPiece::Arena { off, len }] = self.pieces else { return false };
        if self.more || len - self.skip > most {
            return false;
        }
        out.extend_from_slice(&self.arena[off + self.skip..off + len]);
        true
    }

    /// Calls `f` for each piece in order, at most [`MAX_CHUNKS`] times. Pieces beyond that come
    /// in the next step.
    pub fn for_each(&self, f: &mut dyn FnMut(GatherChunk<'a>)) {
        let mut room = MAX_CHUNKS;
        let mut skip = self.skip;
        for piece in self.pieces {
            if room == 0 {
                return;
            }
            match piece {
                BatchPiece::Arena { off, len } => {
                    f(GatherChunk::Bytes(&self.arena[off + skip..off + len]))
                }
                BatchPiece::Memory { seg, off, len } => {
                    f(GatherChunk::Memory { seg, off: off + skip, len: len - skip });
                }
                BatchPiece::Zeros { len } => {
                    let mut left = len - skip;
                    while left > ZEROS.len() && room > 1 {
                        f(GatherChunk::Bytes(&ZEROS));
                        left -= ZEROS.len();
                        room -= 1;
                    }
                    f(GatherChunk::Bytes(&ZEROS[..left.min(ZEROS.len())]));
                    if left > ZEROS.len() {
                        return;
                    }
                }
                BatchPiece::File { .. } => unreachable!("`step` ends a gather before a file"),
            }
            room -= 1;
            skip = 0;
        }
    }
}

/// The driver's next step of sending. The driver does it, reports how far it came, and asks again
/// until there is nothing to do or the socket takes no more.
#[derive(Debug)]
pub enum SendStep<'a> {
    /// There is nothing to send now.
    Idle,
    /// Write this with one sendmsg(2), then call `handle_sent`.
    Gather(Gather<'a>),
    /// Send this part of a file with sendfile(2). Then call `handle_file_sent`, or
    /// `handle_file_error` if the file cannot be read. Header bytes follow.
    File {
        /// The file.
        file: &'a File,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Call shutdown(2) on the sending side. This step comes once.
    Shutdown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;

    fn collect(batch: &TxBatch) -> Vec<u8> {
        let mut out = Vec::new();
        if let SendStep::Gather(g) = batch.step(false) {
            g.for_each(&mut |chunk| match chunk {
                GatherChunk::Bytes(b) => out.extend_from_slice(b),
                GatherChunk::Memory { seg, off, len } => {
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
            assert!(
                !batch.pieces[batch.next..].iter().any(|p| matches!(p, BatchPiece::Memory { .. }))
            );
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
