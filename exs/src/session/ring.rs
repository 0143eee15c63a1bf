//! The memory of this side's ring or stash: bytes that came before the receive that they are for.
//!
//! The machines know which bytes of the ring hold what, and tell offsets and lengths. This type owns
//! the memory and the window that the peer has onto it. The memory is made when it is first needed.

use super::Buf;
use super::rx::{MessageBytes, index};
use super::types::Port;
use crate::mem::{Access, Key, Segment};
use crate::rnic::{Mr, RnicError};

/// The ring of one direction.
#[derive(Debug)]
struct RingMemory {
    buf: Buf,
    /// The peer's window onto it. None: the peer has not asked for one, or it is closed.
    key: Option<Key>,
}

/// See the module's essay.
#[derive(Debug, Default)]
pub(super) struct LocalRing(Option<RingMemory>);

impl LocalRing {
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// The key of the peer's window onto it. None: the peer has none.
    pub(super) fn key(&self) -> Option<Key> {
        self.0.as_ref().and_then(|ring| ring.key)
    }

    pub(super) fn memory(&self) -> Option<&Buf> {
        self.0.as_ref().map(|ring| &ring.buf)
    }

    /// Replaces the registration of the memory. Returns the old one.
    pub(super) fn set_registration(&mut self, mr: Mr) -> Option<Mr> {
        self.0.as_mut().map(|ring| std::mem::replace(&mut ring.buf.mr, mr))
    }

    /// Makes the ring of `size` bytes, if there is none.
    ///
    /// # Errors
    /// The port has no memory.
    pub(super) fn make(&mut self, port: &mut dyn Port, size: u32) -> Result<(), RnicError> {
        if self.0.is_none() {
            self.0 = Some(RingMemory { buf: port.alloc(index(size.max(1)))?, key: None });
        }
        Ok(())
    }

    /// Opens the ring to the peer, and makes it if there is none: address and key.
    ///
    /// # Errors
    /// The port has no memory or no window.
    pub(super) fn grant(
        &mut self,
        port: &mut dyn Port,
        size: u32,
    ) -> Result<(u64, Key), RnicError> {
        self.make(port, size)?;
        let Some(ring) = &mut self.0 else { return Ok((0, 0)) };
        let (addr, len) = (ring.buf.seg.addr(), ring.buf.seg.len() as u64);
        let key = port.lend(ring.buf.mr, addr, len, Access::REMOTE_WRITE)?;
        ring.key = Some(key);
        Ok((addr, key))
    }

    /// Closes the peer's window onto the ring.
    pub(super) fn close(&mut self, port: &mut dyn Port) {
        if let Some(key) = self.0.as_mut().and_then(|ring| ring.key.take()) {
            port.invalidate(key);
        }
    }

    /// Gives the ring's memory back.
    pub(super) fn free(&mut self, port: &mut dyn Port) {
        self.close(port);
        if let Some(ring) = self.0.take() {
            port.free(ring.buf);
        }
    }

    /// The memory, with the lengths of the two parts of a range: the second one begins at offset 0. The
    /// ring must be there.
    pub(super) fn range(&self, off: u32, len: u32) -> Option<(&Segment, u32, u32)> {
        let seg = &self.0.as_ref()?.buf.seg;
        let (first, rest) = split(seg.len(), off, len);
        Some((seg, first, rest))
    }

    /// Copies pieces of the ring to the beginning of a buffer. Returns the bytes. The ring must be
    /// there.
    #[inline]
    pub(super) fn copy_pieces(&self, pieces: [(u32, u32); 2], memory: &Segment) -> u64 {
        let Some(ring) = &self.0 else { return 0 };
        let mut at = 0;
        for (from, len) in pieces {
            if len > 0 {
                ring.buf.seg.copy_to(index(from), memory, at, index(len));
                at += index(len);
            }
        }
        at as u64
    }

    /// Copies from a message to the ring, round its end. The ring must be there.
    pub(super) fn stash(&mut self, (src, from): (MessageBytes<'_>, usize), off: u32, len: u32) {
        if let Some((seg, first, rest)) = self.range(off, len) {
            src.copy_to(from, seg, index(off), index(first));
            src.copy_to(from + index(first), seg, 0, index(rest));
        }
    }
}

/// Cuts a range of a ring of `size` bytes at its end.
fn split(size: usize, off: u32, len: u32) -> (u32, u32) {
    let to_end = size.saturating_sub(index(off));
    let first = u32::try_from(to_end).unwrap_or(u32::MAX).min(len);
    (first, len - first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;

    fn buf(len: usize) -> Buf {
        let region = Region::map(len).unwrap();
        Buf { seg: region.segment(0, len).unwrap(), mr: Mr { key: 1 } }
    }

    fn bytes(buf: &Buf) -> Vec<u8> {
        let mut bytes = vec![0; buf.seg.len()];
        buf.seg.read_at(0, &mut bytes);
        bytes
    }

    #[test]
    fn a_range_is_cut_at_the_end_of_the_ring() {
        assert_eq!(split(8, 0, 8), (8, 0));
        assert_eq!(split(8, 6, 2), (2, 0));
        assert_eq!(split(8, 6, 5), (2, 3));
        assert_eq!(split(8, 8, 3), (0, 3));
    }

    #[test]
    fn what_is_stashed_round_the_end_comes_out_in_order() {
        let (memory, out) = (buf(8), buf(5));
        let mut ring = LocalRing(Some(RingMemory { buf: memory.clone(), key: None }));
        ring.stash((MessageBytes::Copy(b"-abcde"), 1), 6, 5);
        assert_eq!(bytes(&memory), b"cde\0\0\0ab");
        let (_, first, rest) = ring.range(6, 5).unwrap();
        assert_eq!(ring.copy_pieces([(6, first), (0, rest)], &out.seg), 5);
        assert_eq!(bytes(&out), b"abcde");
    }

    #[test]
    fn without_memory_there_is_nothing_to_copy() {
        let (mut ring, out) = (LocalRing::default(), buf(4));
        ring.stash((MessageBytes::Copy(b"abcd"), 0), 0, 4);
        assert!(!ring.exists() && ring.range(0, 4).is_none());
        assert_eq!(ring.copy_pieces([(0, 4), (0, 0)], &out.seg), 0);
        assert_eq!(bytes(&out), [0; 4]);
    }
}
