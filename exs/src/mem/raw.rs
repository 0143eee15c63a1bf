//! Raw memory without references (an `unsafe` island).
//!
//! # The argument
//! A [`Region`] owns its bytes, or has been promised them (`external`), for its whole life. Every
//! [`Segment`] keeps the region alive and was checked to lie inside it. So each pointer made here
//! is in bounds and mapped.
//!
//! An unmapped dma-buf is the exception: its addresses are reserved, and no pointer to them is
//! dereferenced. `Buffer` and the API refuse that before.
//!
//! Races: the bytes of a segment belong to exactly one party at a time. A buffer that a program
//! lends to an operation moves into the library (`api::Buffer`) and moves back with the
//! operation's event, so the program has no reference meanwhile. The library touches it under the
//! engine's lock only. The program reaches memory that it exported to a peer through copying
//! calls that take the same lock. Accesses of a peer through its own process, a NIC or the kernel
//! are outside of this program's memory model. The library only ever copies the bytes that a peer
//! leaves; it never interprets them in place.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::dmabuf::DmaBuf;
use super::{MemError, WORD};
use crate::sys::{IoVec, IoVecMut, SharedMap};

/// Shortest region that is worth a descriptor for sharing, in bytes.
#[cfg(not(miri))]
const WORTH_SHARING: usize = 64 << 10;

/// The way a region's memory is released.
enum Backing {
    /// A mapping of this region; unmapped on drop.
    Map,
    /// As `Map`, from a memfd that other processes can get for reading.
    Shared(OwnedFd),
    /// A vector's buffer, with the capacity that `Vec` had.
    Heap { capacity: usize },
    /// The owner of the bytes, which frees them when it is dropped.
    #[cfg(feature = "bytes")]
    BytesMut { owner: bytes::BytesMut },
    /// The caller of [`Region::external`] keeps it alive.
    External,
    /// The owner of the bytes, which is dropped with the region.
    Owned { _owner: Box<dyn Any + Send + Sync> },
    /// A mapping that another process writes to as well; unmapped on drop.
    View(SharedMap),
    /// Memory of another device, and its addresses; unmapped on drop.
    DmaBuf(DmaBuf),
}

/// A stretch of memory that operations can use.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

// SAFETY: a region is an address range; its bytes are only touched through the
// methods below, whose callers hold the bytes exclusively (module essay).
unsafe impl Send for Region {}
// SAFETY: as for Send: shared regions hand out disjointly owned segments. The mapping of a view
// is an address range too.
unsafe impl Sync for Region {}

impl Region {
    /// Maps zeroed pages from the kernel. A page costs memory once it is touched.
    pub fn map(len: usize) -> Result<Arc<Region>, MemError> {
        if len == 0 || len > isize::MAX as usize {
            return Err(MemError::BadLength { len });
        }
        let base = crate::sys::map_anonymous(len).map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::ENOMEM);
            MemError::Map { len, errno }
        })?;
        Ok(Arc::new(Region { base, len, backing: Backing::Map }))
    }

    /// As [`Region::map`], in memory that another process of this host can get for reading. Falls
    /// back to ordinary memory below 64 KiB, or where the kernel has no such memory or no
    /// descriptor is left.
    pub fn map_shared(len: usize) -> Result<Arc<Region>, MemError> {
        if len == 0 || len > isize::MAX as usize {
            return Err(MemError::BadLength { len });
        }
        #[cfg(not(miri))]
        if len >= WORTH_SHARING
            && let Ok((base, fd)) = crate::sys::share_readable(len)
        {
            return Ok(Arc::new(Region { base, len, backing: Backing::Shared(fd) }));
        }
        Region::map(len)
    }

    /// Makes a region of memory that another process shares.
    pub fn view(map: SharedMap) -> Arc<Region> {
        Arc::new(Region { base: map.base(), len: map.len(), backing: Backing::View(map) })
    }

    /// Returns the mapping of [`Region::view`]. None for other regions.
    pub fn shared_map(&self) -> Option<&SharedMap> {
        match &self.backing {
            Backing::View(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the memfd of memory that can be shared. None for other regions.
    pub fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Shared(fd) => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Takes over a vector's bytes: its length, not its spare capacity.
    pub fn from_vec(vec: Vec<u8>) -> Arc<Region> {
        let mut vec = std::mem::ManuallyDrop::new(vec);
        let (len, capacity) = (vec.len(), vec.capacity());
        let base = NonNull::new(vec.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Arc::new(Region { base, len, backing: Backing::Heap { capacity } })
    }

    /// Takes over the bytes of a `BytesMut` (its length, not its spare capacity), wherever in
    /// its allocation they lie.
    #[cfg(feature = "bytes")]
    pub fn from_bytes_mut(mut bytes: bytes::BytesMut) -> Arc<Region> {
        // The handle owns these bytes exclusively, and they stay where they are when it moves.
        let (base, len) = (NonNull::from(&mut bytes[..]).cast(), bytes.len());
        Arc::new(Region { base, len, backing: Backing::BytesMut { owner: bytes } })
    }

    /// Makes a region of memory with another owner.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes until the last reference to the
    /// region, and the last segment of it, is gone. While an operation uses the memory, no
    /// reference to it may exist, except shared references while the operation only reads.
    pub unsafe fn external(base: NonNull<u8>, len: usize) -> Arc<Region> {
        Arc::new(Region { base, len, backing: Backing::External })
    }

    /// Makes a region of [`Region::external`] one over other memory. False: it is a region of another
    /// kind, and stays as it is.
    ///
    /// # Safety
    /// As for [`Region::external`].
    pub unsafe fn move_to(&mut self, base: NonNull<u8>, len: usize) -> bool {
        let external = matches!(self.backing, Backing::External);
        if external {
            (self.base, self.len) = (base, len);
        }
        external
    }

    /// Makes a region of memory that `owner` keeps. The region keeps the owner.
    ///
    /// # Safety
    /// As for [`Region::external`], for as long as the owner lives.
    pub unsafe fn owned(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Region> {
        Arc::new(Region { base, len, backing: Backing::Owned { _owner: owner } })
    }

    /// Makes a region of `len` bytes of a dma-buf, at `offset`. Processors can reach it if
    /// [`Region::is_mapped`] says so.
    ///
    /// # Safety
    /// As for [`Region::external`], for as long as the region lives, if it is mapped.
    pub unsafe fn of_dmabuf(fd: OwnedFd, offset: u64, len: usize) -> Result<Arc<Region>, MemError> {
        let (base, buf) = DmaBuf::new(fd, offset, len)?;
        Ok(Arc::new(Region { base, len, backing: Backing::DmaBuf(buf) }))
    }

    /// Returns the dma-buf of [`Region::of_dmabuf`], and the offset of the region in it. None for
    /// other regions.
    #[cfg(feature = "verbs")]
    pub fn dmabuf(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.backing {
            Backing::DmaBuf(buf) => Some(buf.place()),
            _ => None,
        }
    }

    /// Returns false if no processor can reach the memory: its addresses are names only.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        !matches!(&self.backing, Backing::DmaBuf(buf) if !buf.is_mapped())
    }

    /// A copy of the bytes.
    pub(super) fn to_vec(self: &Arc<Region>) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        if let Ok(all) = self.segment(0, self.len()) {
            all.read_at(0, &mut out);
        }
        out
    }

    /// Returns the vector that the region was made from. Returns the region as the error if it
    /// was not made from one or if another reference exists.
    pub fn into_vec(self: Arc<Region>) -> Result<Vec<u8>, Arc<Region>> {
        if !matches!(self.backing, Backing::Heap { .. }) {
            return Err(self);
        }
        let region = Arc::try_unwrap(self)?;
        let region = std::mem::ManuallyDrop::new(region);
        let Backing::Heap { capacity } = &region.backing else { unreachable!("checked above") };
        // SAFETY: the parts come from a Vec<u8> (`from_vec`), and `ManuallyDrop`
        // keeps `Drop` from freeing them a second time.
        Ok(unsafe { Vec::from_raw_parts(region.base.as_ptr(), region.len, *capacity) })
    }

    /// Returns the `BytesMut` that the region was made from.
    ///
    /// # Errors
    /// The region, if it was made otherwise or is in use.
    #[cfg(feature = "bytes")]
    pub fn into_bytes_mut(self: Arc<Region>) -> Result<bytes::BytesMut, Arc<Region>> {
        if !matches!(self.backing, Backing::BytesMut { .. }) {
            return Err(self);
        }
        let mut region = Arc::try_unwrap(self)?;
        match std::mem::replace(&mut region.backing, Backing::External) {
            Backing::BytesMut { owner } => Ok(owner),
            other => {
                region.backing = other;
                Err(Arc::new(region))
            }
        }
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns a pointer to the first byte. The caller must argue why it may dereference it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a region made from an empty vector.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the part of `len` bytes at `offset`.
    pub fn segment(self: &Arc<Self>, offset: usize, len: usize) -> Result<Segment, MemError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Segment { region: Arc::clone(self), off: offset, len })
            }
            _ => Err(MemError::OutOfBounds { offset, len, region: self.len }),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: our own mapping, and every segment of it is gone (the Arc).
            Backing::Map | Backing::Shared(_) => unsafe { crate::sys::unmap(self.base, self.len) },
            Backing::Heap { capacity } => {
                // SAFETY: the parts of a Vec<u8>, given back exactly once.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) });
            }
            Backing::DmaBuf(ref buf) => {
                let (pages, len) = buf.pages();
                // SAFETY: the mapping that `DmaBuf::new` has made; all segments are gone.
                unsafe { crate::sys::unmap(pages, len) };
            }
            Backing::External | Backing::Owned { .. } | Backing::View(_) => {}
            #[cfg(feature = "bytes")]
            Backing::BytesMut { .. } => {}
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}, {} bytes)", self.addr(), self.len)
    }
}

/// A part of a region. It was checked to lie inside the region and keeps the region alive.
#[derive(Clone)]
pub struct Segment {
    region: Arc<Region>,
    off: usize,
    len: usize,
}

impl Segment {
    /// Returns the region that this is a part of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the offset of the first byte inside the region.
    pub fn offset(&self) -> usize {
        self.off
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> u64 {
        self.as_ptr() as u64
    }

    /// Returns a pointer to the first byte, for system calls and for memory islands.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `off <= region.len` was checked when the segment was made, so
        // the sum stays inside (or one past) one allocation.
        unsafe { self.region.base.as_ptr().add(self.off) }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the segment has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the part of `len` bytes at `offset` of this segment.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Segment, MemError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Segment { region: Arc::clone(&self.region), off: self.off + offset, len })
            }
            _ => Err(MemError::OutOfBounds { offset, len, region: self.len }),
        }
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    #[cfg(any(test, feature = "internals"))]
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.off += n;
        self.len -= n;
    }

    /// Keeps the first `n` bytes only.
    #[cfg(any(test, feature = "internals"))]
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
    }

    /// Copies `src` to `offset`. Panics if it does not fit: callers check first, and going on
    /// would corrupt memory.
    pub fn write_at(&self, offset: usize, src: &[u8]) {
        self.assert_inside(offset, src.len());
        // SAFETY: in bounds (just asserted) and mapped (the Arc); exclusively
        // held by this operation (module essay), so it cannot overlap `src`,
        // which is a reference and hence not a peer's memory.
        let dst = unsafe { self.as_ptr().add(offset) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) };
    }

    /// Copies bytes at `offset` into `dst`. Panics if out of bounds.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) {
        self.assert_inside(offset, dst.len());
        // SAFETY: in bounds and mapped; see `write_at`.
        let src = unsafe { self.as_ptr().add(offset) };
        // SAFETY: as above; `dst` is an exclusive reference, so disjoint.
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    }

    /// Copies `len` bytes at `offset` to `dst_offset` of another segment. The two ranges may
    /// overlap. Panics if out of bounds.
    pub fn copy_to(&self, offset: usize, dst: &Segment, dst_offset: usize, len: usize) {
        self.assert_inside(offset, len);
        dst.assert_inside(dst_offset, len);
        // SAFETY: in bounds, asserted above.
        let from = unsafe { self.as_ptr().add(offset) };
        // SAFETY: in bounds, asserted above.
        let to = unsafe { dst.as_ptr().add(dst_offset) };
        // SAFETY: both ranges are mapped and in bounds; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) };
    }

    /// Replaces the word of 8 bytes at `offset` by what `f` makes of it, in one step for all
    /// processors of the host. `f` may run several times; the word stays as it is if `f` returns
    /// None. Returns what was there. Panics if out of bounds, or if the word is not aligned.
    pub fn update_word(&self, offset: usize, f: impl FnMut(u64) -> Option<u64>) -> u64 {
        self.assert_inside(offset, WORD);
        let at = self.as_ptr().wrapping_add(offset).cast::<u64>();
        assert!(at.is_aligned(), "the word at {at:p} is not aligned");
        // SAFETY: in bounds and aligned, asserted above, and mapped for as long as `self` is
        // borrowed (the Arc). The reference is one to an atomic and lives for this call: other
        // threads may change the word meanwhile by this same call, and by no other: plain copies
        // to memory of one export are made under the lock of its engine, as this call is, and
        // memory of several exports (`AtomicWords`) is open to atomic operations only.
        let word = unsafe { AtomicU64::from_ptr(at) };
        // The effects of what this side did before are visible to a thread that finds the new value.
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, f).unwrap_or_else(|old| old)
    }

    /// Continues a CRC32C over `len` bytes at `offset`. Panics if out of bounds.
    pub fn crc32c(&self, seed: u32, offset: usize, len: usize) -> u32 {
        self.assert_inside(offset, len);
        // SAFETY: in bounds, asserted above.
        let start = unsafe { self.as_ptr().add(offset) };
        // SAFETY: in bounds and mapped. The slice lives for this call only; the
        // bytes belong to the operation meanwhile, and a peer that changes them
        // through the kernel only spoils its own checksum.
        crc32c::crc32c_append(seed, unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Returns `len` bytes at `offset`, for the kernel to read. Panics if out of bounds.
    pub fn io_vec(&self, offset: usize, len: usize) -> IoVec<'_> {
        self.assert_inside(offset, len);
        // SAFETY: in bounds, asserted above.
        let start = unsafe { self.as_ptr().add(offset) };
        // SAFETY: mapped for as long as `self` is borrowed (the Arc).
        unsafe { IoVec::from_raw(start, len) }
    }

    /// Returns `len` bytes at `offset`, for the kernel to write. Panics if out of bounds.
    pub fn io_vec_mut(&self, offset: usize, len: usize) -> IoVecMut<'_> {
        self.assert_inside(offset, len);
        // SAFETY: in bounds, asserted above.
        let start = unsafe { self.as_ptr().add(offset) };
        // SAFETY: mapped for as long as `self` is borrowed (the Arc), and the
        // bytes belong to the operation that receives into them (module essay).
        unsafe { IoVecMut::from_raw(start, len) }
    }

    fn assert_inside(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        debug_assert!(self.region.is_mapped(), "callers ask first: {self:?}");
        assert!(inside, "{len} bytes at {offset} of a segment of {}", self.len);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:#x}, {} bytes)", self.addr(), self.len)
    }
}

#[cfg(test)]
mod tests;
