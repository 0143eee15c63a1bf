//! Buffers as those of compio (feature `compio`): an `unsafe` island, as compio's traits are.
//!
//! compio sees a buffer as a vector: bytes that are initialised, and a capacity. Here the
//! first are the window, and the capacity reaches from the start of the window to the end of the
//! lease. So a read of compio's fills the lease, and a write of compio's sends the window.

use std::mem::MaybeUninit;

use compio_buf::{IoBuf, IoBufMut, SetLen};

use super::Buffer;

/// The bytes of the window.
impl IoBuf for Buffer {
    fn as_init(&self) -> &[u8] {
        self
    }
}

/// The window keeps its start and gets another length.
impl SetLen for Buffer {
    unsafe fn set_len(&mut self, len: usize) {
        // Each byte of a lease is initialised, so the bounds are all that counts.
        let most = self.lease.1 - self.start;
        assert!(len <= most, "a window of {len} bytes, {most} before the end of the buffer");
        self.end = self.start + len;
    }
}

/// The bytes from the start of the window to the end of the buffer's lease: a read fills as many of
/// them as there are, and then the window holds them. [`IoBuf::slice`] limits a read. The memory
/// does not grow.
impl IoBufMut for Buffer {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = self.lease.1 - self.start;
        // SAFETY: the lease is in bounds, and mapped for as long as `self` is borrowed (`start`). No
        // other buffer has these bytes, and the library touches none while the program has the
        // buffer (module essay of `buffer`). compio's own buffers ask of their users, too, not to
        // take back the initialisation of a byte: compio, and the kernel, write bytes only.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast(), len) }
    }
}

#[cfg(test)]
mod tests {
    use compio_buf::IntoInner;

    use super::*;
    use crate::mem::MemoryRegion;

    /// As compio's reads do: bytes from the start on, and then the length.
    fn fill(buffer: &mut impl IoBufMut, bytes: &[u8]) {
        for (to, from) in buffer.as_uninit().iter_mut().zip(bytes) {
            to.write(*from);
        }
        // SAFETY: as many bytes were written.
        unsafe { buffer.advance_to(bytes.len()) };
    }

    #[test]
    fn a_read_fills_the_lease_and_the_window_holds_it() {
        let region = MemoryRegion::new(100).unwrap();
        let mut buffer = region.buffer(10..60).unwrap();
        assert_eq!((buffer.buf_len(), buffer.buf_capacity(), buffer.is_filled()), (50, 50, true));
        buffer.clear();
        assert_eq!((buffer.buf_len(), buffer.buf_capacity()), (0, 50));
        fill(&mut buffer, b"hello");
        assert_eq!((&buffer[..], buffer.as_init()), (&b"hello"[..], &b"hello"[..]));
        buffer.extend_from_slice(b", world").unwrap();
        assert_eq!(&buffer[..], b"hello, world");
        assert!(buffer.reserve(38).is_ok());
        assert!(buffer.reserve(39).unwrap_err().is_not_supported());
    }

    #[test]
    fn a_window_keeps_its_start() {
        let mut buffer = Buffer::from(*b"0123456789");
        buffer.narrow(4..6);
        assert_eq!(buffer.as_init(), b"45");
        assert_eq!(buffer.buf_capacity(), 6);
        fill(&mut buffer, b"abc");
        assert_eq!(&buffer[..], b"abc");
        buffer.widen();
        assert_eq!(&buffer[..], b"0123abc789");
    }

    #[test]
    fn slices_limit_reads_and_writes() {
        let mut buffer = Buffer::from(*b"0123456789");
        buffer.clear();
        let mut part = buffer.slice(..3);
        assert_eq!(part.buf_capacity(), 3);
        fill(&mut part, b"abc");
        let buffer = part.into_inner();
        assert_eq!(&buffer[..], b"abc");
        assert_eq!(buffer.slice(1..).as_init(), b"bc");
    }

    #[test]
    #[should_panic(expected = "a window of 9 bytes, 8 before the end")]
    fn no_length_is_beyond_the_lease() {
        let mut buffer = Buffer::from([0; 8]);
        // SAFETY: refused before anything happens.
        unsafe { buffer.set_len(9) };
    }
}
