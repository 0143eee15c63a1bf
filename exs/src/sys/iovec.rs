//! Scatter/gather elements for system calls.

use std::marker::PhantomData;

/// A piece of memory that the kernel reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec<'a> {
    raw: libc::iovec,
    life: PhantomData<&'a [u8]>,
}

/// A piece of memory that the kernel writes.
#[repr(transparent)]
#[derive(Debug)]
pub struct IoVecMut<'a> {
    raw: libc::iovec,
    life: PhantomData<&'a mut [u8]>,
}

impl Default for IoVecMut<'_> {
    fn default() -> Self {
        IoVecMut::EMPTY
    }
}

// SAFETY: an element is an address and a length. Its maker answers for the bytes for `'a` (a
// slice, or the contract of `from_raw`), on any thread.
unsafe impl Send for IoVec<'_> {}
// SAFETY: as for `IoVec`.
unsafe impl Send for IoVecMut<'_> {}

impl<'a> IoVec<'a> {
    /// No bytes: fills the unused part of an array.
    pub const EMPTY: IoVec<'static> = IoVec {
        raw: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        life: PhantomData,
    };

    /// The bytes of a slice.
    pub fn new(bytes: &'a [u8]) -> IoVec<'a> {
        let iov_base = bytes.as_ptr().cast_mut().cast();
        IoVec { raw: libc::iovec { iov_base, iov_len: bytes.len() }, life: PhantomData }
    }

    /// Makes an element of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must be mapped for `'a`. Other threads and processes may write them meanwhile:
    /// the kernel copies what it finds.
    pub(crate) unsafe fn from_raw(ptr: *const u8, len: usize) -> IoVec<'a> {
        let iov_base = ptr.cast_mut().cast();
        IoVec { raw: libc::iovec { iov_base, iov_len: len }, life: PhantomData }
    }

    /// Returns address and length, for system calls that take one piece.
    pub(crate) fn parts(&self) -> (*mut libc::c_void, usize) {
        (self.raw.iov_base, self.raw.iov_len)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }

    /// Adds a copy of the bytes to a vector.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len());
        let room = to.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: the bytes are mapped for `'a`, for which the maker answers, and lie outside of
        // `to`, of which this is the exclusive reference. Its spare capacity has the room.
        unsafe {
            std::ptr::copy_nonoverlapping(self.raw.iov_base.cast::<u8>(), room, self.len());
        }
        // SAFETY: just written, and within the capacity.
        unsafe { to.set_len(to.len() + self.len()) };
    }

    /// Copies the bytes to the beginning of `to`. Panics if `to` is shorter.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert!(self.len() <= to.len(), "{} bytes for {}", self.len(), to.len());
        if !self.is_empty() {
            // SAFETY: the bytes are mapped for `'a`, for which the maker answers, and `to` has
            // the room. `to` is an exclusive reference, so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.raw.iov_base.cast(),
                    to.as_mut_ptr(),
                    self.len(),
                );
            };
        }
    }
}

impl<'a> IoVecMut<'a> {
    /// No bytes: fills the unused part of an array.
    pub const EMPTY: IoVecMut<'static> = IoVecMut {
        raw: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
        life: PhantomData,
    };

    /// The bytes of a slice.
    pub fn new(bytes: &'a mut [u8]) -> IoVecMut<'a> {
        let iov_base = bytes.as_mut_ptr().cast();
        IoVecMut { raw: libc::iovec { iov_base, iov_len: bytes.len() }, life: PhantomData }
    }

    /// Makes an element of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// The bytes must be mapped for `'a` and must belong to the caller. No Rust reference to them
    /// may exist meanwhile.
    pub(crate) unsafe fn from_raw(ptr: *mut u8, len: usize) -> IoVecMut<'a> {
        let iov_base = ptr.cast();
        IoVecMut { raw: libc::iovec { iov_base, iov_len: len }, life: PhantomData }
    }

    /// Returns address and length, for system calls that take one piece.
    pub(crate) fn parts(&self) -> (*mut libc::c_void, usize) {
        (self.raw.iov_base, self.raw.iov_len)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Returns true if there are no bytes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }
}
