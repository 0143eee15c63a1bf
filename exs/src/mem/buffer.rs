//! Buffers that a program lends to operations (an `unsafe` island).
//!
//! # The argument
//! A [`Buffer`] is the only way from safe code to the bytes of a region, and it
//! is exclusive: a [`MemoryRegion`] keeps a table of the ranges it has leased and
//! never leases a byte twice, a vector's bytes are leased whole when it is moved
//! in, and `split_off` divides a lease into two that share no byte. A buffer can
//! be in one place only: in the program's hands, where it may be borrowed as a
//! slice, or inside an operation, where only raw copies touch its bytes. So no
//! slice made here can alias another, or a write of the library's.
#![allow(unsafe_code)]

#[cfg(feature = "compio")]
mod compio;
mod spare;

pub use self::spare::SpareBuffer;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError};

use super::registrations::{Registrations, ReleaseRegistration};
use super::{Key, MemError, Region, Segment};
use crate::sys::IoVec;

/// A region, its leases and its registrations; shared by the handle and buffers.
struct SharedRegion {
    /// These end before the memory does.
    registrations: Registrations,
    region: Arc<Region>,
    /// Keeps its registration for later operations, in place of one for each operation.
    durable: bool,
    leases: Mutex<Vec<(usize, usize)>>,
}

impl SharedRegion {
    fn new(region: Arc<Region>, durable: bool) -> Arc<SharedRegion> {
        let (leases, registrations) = (Mutex::default(), Registrations::default());
        Arc::new(SharedRegion { region, durable, leases, registrations })
    }

    fn release(&self, start: usize, end: usize) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = leases.iter().position(|&l| l == (start, end)) {
            leases.swap_remove(i);
        }
    }
}

/// Memory set aside for transfers and registered with the RNIC once.
///
/// The bytes are reached through [`Buffer`]s. Cloning gives another handle to the
/// same memory, which is freed when the last handle and the last buffer are gone.
///
/// ```
/// let region = exs::MemoryRegion::new(1 << 20)?;
/// let mut first = region.buffer(..4096)?;
/// first[..5].copy_from_slice(b"hello");
/// assert!(region.buffer(100..200).is_err(), "leased already");
/// drop(first);
/// assert_eq!(&region.buffer(..5)?[..], b"hello");
/// # Ok::<(), exs::MemError>(())
/// ```
#[derive(Clone)]
pub struct MemoryRegion {
    shared: Arc<SharedRegion>,
}

impl MemoryRegion {
    /// Allocates `len` zeroed bytes. They cost memory when first touched. From 64 KiB on they
    /// are a memfd, if the kernel has that, which a peer of this user on this host may be given to
    /// read; the children of a fork(2) share them.
    ///
    /// # Errors
    /// [`MemError::BadLength`] for 0 bytes, [`MemError::Map`] if the kernel has none.
    pub fn new(len: usize) -> Result<MemoryRegion, MemError> {
        Ok(MemoryRegion { shared: SharedRegion::new(Region::map_shared(len)?, true) })
    }

    pub(crate) fn of(region: Arc<Region>) -> MemoryRegion {
        MemoryRegion { shared: SharedRegion::new(region, true) }
    }

    /// False if processors cannot reach the memory (`from_dmabuf`). Slices of its buffers panic, and
    /// only one-sided operations over RDMA devices take them.
    pub fn is_mapped(&self) -> bool {
        self.shared.region.is_mapped()
    }

    pub(crate) fn addr(&self) -> usize {
        self.shared.region.as_ptr().addr()
    }

    /// A buffer that takes no lease, so that others may have the same bytes.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`].
    ///
    /// # Safety
    /// As for `raw::buffer` of the API: no other code may use these bytes while an operation has
    /// this buffer.
    pub(crate) unsafe fn overlapping(&self, offset: usize, len: usize) -> Result<Buffer, MemError> {
        let region = self.len();
        let end = offset.checked_add(len).filter(|end| *end <= region);
        let end = end.ok_or(MemError::OutOfBounds { offset, len, region })?;
        // Not entered in the table of leases, where the same range may be another's.
        let shared = Arc::clone(&self.shared);
        Ok(Buffer { shared, lease: (offset, end), start: offset, end, listed: false })
    }

    /// Takes over a vector's bytes without a copy: for large memory that was not allocated for
    /// transfers, and takes part in many of them. A vector that moves into an operation as it is
    /// gets registered for that operation alone. No cache could keep its registration, as nothing
    /// would tell the cache when the memory goes. The handle of a region does.
    ///
    /// ```
    /// let region = exs::MemoryRegion::from_vec(b"some megabytes".to_vec())?;
    /// assert_eq!(&region.buffer(5..)?[..], b"megabytes");
    /// # Ok::<(), exs::MemError>(())
    /// ```
    ///
    /// # Errors
    /// [`MemError::BadLength`] for an empty vector.
    pub fn from_vec(vec: Vec<u8>) -> Result<MemoryRegion, MemError> {
        match vec.len() {
            0 => Err(MemError::BadLength { len: 0 }),
            _ => Ok(MemoryRegion { shared: SharedRegion::new(Region::from_vec(vec), true) }),
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.shared.region.len()
    }

    /// Always false: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Leases a range of the region, exclusively.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`], or [`MemError::Leased`] if a live buffer has some
    /// of these bytes.
    pub fn buffer(&self, range: impl RangeBounds<usize>) -> Result<Buffer, MemError> {
        let size = self.len();
        let (start, end) = resolve(range, size).ok_or(MemError::OutOfBounds {
            offset: size,
            len: 0,
            region: size,
        })?;
        if end > size {
            return Err(MemError::OutOfBounds { offset: start, len: end - start, region: size });
        }
        let mut leases = self.shared.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(s, e)) = leases.iter().find(|&&(s, e)| start < e && s < end) {
            return Err(MemError::Leased { start, end, by_start: s, by_end: e });
        }
        leases.push((start, end));
        drop(leases);
        let shared = Arc::clone(&self.shared);
        Ok(Buffer { shared, lease: (start, end), start, end, listed: true })
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes)", self.len())
    }
}

/// Turns range bounds into offsets; None if they are backwards or overflow.
fn resolve(range: impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&s) => s,
        Bound::Excluded(&s) => s.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.checked_add(1)?,
        Bound::Excluded(&e) => e,
        Bound::Unbounded => len,
    };
    (start <= end).then_some((start, end))
}

/// Bytes that are yours until you move them into an operation, and yours again
/// when its event brings them back.
///
/// Made from a [`MemoryRegion`] (registered once, the fast way) or from a vector
/// (`Vec<u8>` into `Buffer` without a copy; small ones travel through a registered
/// pool, large ones are registered for the operation). Dereferences to the bytes
/// of its *window*, which is the whole lease until [`Buffer::narrow`]ed.
///
/// ```
/// use exs::Buffer;
/// let mut buffer = Buffer::from(vec![0; 4096]);
/// buffer[..5].copy_from_slice(b"hello");
/// buffer.narrow(..5); // an operation would send these five bytes
/// assert_eq!(&buffer[..], b"hello");
///
/// buffer.widen();
/// let rest = buffer.split_off(1024); // two buffers, for two operations
/// assert_eq!((buffer.len(), rest.len()), (1024, 3072));
/// # Ok::<(), exs::Error>(())
/// ```
pub struct Buffer {
    shared: Arc<SharedRegion>,
    lease: (usize, usize),
    /// The lease is in the table.
    listed: bool,
    start: usize,
    end: usize,
}

impl Buffer {
    /// A buffer with a copy of these bytes. Memory that its owner can spare moves in without a copy:
    /// `Buffer::from` takes a `Vec<u8>`, a `String`, a `Box<[u8]>` or an array.
    ///
    /// ```
    /// use exs::Buffer;
    /// let line = "a line of text";
    /// assert_eq!(&Buffer::copy_from_slice(line[2..6].as_bytes())[..], b"line");
    /// ```
    pub fn copy_from_slice(bytes: &[u8]) -> Buffer {
        Buffer::from(bytes.to_vec())
    }

    /// Limits the buffer to a range of its lease: operations and slices see only
    /// that. The range counts from the start of the lease.
    ///
    /// # Panics
    /// If the range is not inside the lease, as slicing does.
    pub fn narrow(&mut self, range: impl RangeBounds<usize>) {
        let cap = self.capacity();
        let (s, e) = resolve(range, cap).expect("range bounds in order");
        assert!(e <= cap, "range {s}..{e} of a buffer of {cap} bytes");
        (self.start, self.end) = (self.lease.0 + s, self.lease.0 + e);
    }

    /// Undoes [`Buffer::narrow`].
    pub fn widen(&mut self) {
        (self.start, self.end) = self.lease;
    }

    /// Bytes of the window.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// False if processors cannot reach the memory: see [`MemoryRegion::is_mapped`].
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.shared.region.is_mapped()
    }

    /// Bytes of the whole lease.
    pub fn capacity(&self) -> usize {
        self.lease.1 - self.lease.0
    }

    /// Cuts the buffer in two at `at` of its lease: it keeps the front and the
    /// rest is returned. Both are widened.
    ///
    /// # Panics
    /// If `at` is beyond the lease.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.capacity(), "split at {at} of {} bytes", self.capacity());
        let (s, e) = self.lease;
        let mid = s + at;
        {
            let mut leases = self.shared.leases.lock().unwrap_or_else(PoisonError::into_inner);
            if self.listed
                && let Some(i) = leases.iter().position(|&l| l == (s, e))
            {
                leases[i] = (s, mid);
                leases.push((mid, e));
            }
        }
        self.lease = (s, mid);
        self.widen();
        let (shared, listed) = (Arc::clone(&self.shared), self.listed);
        Buffer { shared, lease: (mid, e), start: mid, end: e, listed }
    }

    /// The bytes of the window as a vector; without a copy if the buffer was made
    /// from one and no other buffer refers to it.
    pub fn into_vec(self) -> Vec<u8> {
        match self.into_region() {
            Ok(region) => region.into_vec().unwrap_or_else(|r| r.to_vec()),
            Err(copy) => copy,
        }
    }

    /// The region that the window is the whole of, if no other buffer refers to it and it is no
    /// `MemoryRegion`'s. Otherwise a copy of the window.
    pub(super) fn into_region(self) -> Result<Arc<Region>, Vec<u8>> {
        if self.shared.durable || (self.start, self.end) != (0, self.shared.region.len()) {
            return Err(self.to_vec());
        }
        let shared = Arc::clone(&self.shared);
        drop(self);
        let mut shared = Arc::try_unwrap(shared).map_err(|s| s.region.to_vec())?;
        Ok(std::mem::replace(&mut shared.region, Region::from_vec(Vec::new())))
    }

    /// True if the memory is of a [`MemoryRegion`].
    pub fn is_registered(&self) -> bool {
        self.shared.durable
    }

    /// A buffer over memory that the caller owns.
    ///
    /// # Safety
    /// As for `raw::buffer` of the API: until the buffer and every operation
    /// that it was moved into have ended.
    pub unsafe fn external(base: std::ptr::NonNull<u8>, len: usize) -> Buffer {
        // SAFETY: the caller's promise is the same.
        let region = unsafe { Region::external(base, len) };
        Buffer::whole(SharedRegion::new(region, false))
    }

    /// The window as a segment, for the floors above.
    pub(crate) fn segment(&self) -> Segment {
        self.shared.region.segment(self.start, self.end - self.start).expect("inside by invariant")
    }

    /// The window, for the kernel to read or to be copied.
    pub(crate) fn io_vec(&self) -> IoVec<'_> {
        // SAFETY: mapped for as long as `self` is borrowed (the Arc).
        unsafe { IoVec::from_raw(self.start(), self.end - self.start) }
    }

    /// The window's first byte. `end - start` bytes from here on lie inside of the region,
    /// which is mapped for as long as `self` lives.
    fn start(&self) -> *mut u8 {
        // SAFETY: the window is inside of the region, by invariant.
        unsafe { self.shared.region.as_ptr().add(self.start) }
    }

    /// The whole region the buffer lies in, as a segment.
    pub(crate) fn region_segment(&self) -> Segment {
        self.shared.region.segment(0, self.shared.region.len()).expect("the whole of it")
    }

    /// The key of the region's registration at a place of a context, if that is the region's first
    /// one: no lock is taken. None says nothing.
    #[inline]
    pub(crate) fn first_registration(&self, context: u64, place: u64) -> Option<Key> {
        let shared = &self.shared;
        shared.durable.then(|| shared.registrations.first_key(context, place)).flatten()
    }

    /// The key under which the buffer's region is registered at a place of a
    /// context; `register` is called if there is none yet.
    pub(crate) fn registration<E>(
        &self,
        context: u64,
        place: u64,
        register: impl FnOnce() -> Result<(Key, Arc<dyn ReleaseRegistration>), E>,
    ) -> Result<Key, E> {
        self.shared.registrations.key(context, place, register)
    }

    /// A buffer over a region that no other buffer refers to.
    pub(super) fn from_region(region: Arc<Region>) -> Buffer {
        Buffer::whole(SharedRegion::new(region, false))
    }

    fn whole(shared: Arc<SharedRegion>) -> Buffer {
        let lease = (0, shared.region.len());
        Buffer { shared, lease, start: lease.0, end: lease.1, listed: true }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.listed {
            self.shared.release(self.lease.0, self.lease.1);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        assert!(self.is_mapped(), "{}", MemError::Unmapped);
        // SAFETY: in bounds and mapped (`start`); initialised (zeroed pages or a
        // vector's bytes); no one writes while the buffer is in the program's hands
        // (module essay), and the borrow of `self` keeps it there.
        unsafe { std::slice::from_raw_parts(self.start(), self.end - self.start) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.is_mapped(), "{}", MemError::Unmapped);
        // SAFETY: as for `deref`; exclusive because the lease is and `self` is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.end - self.start) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, e) = (self.start - self.lease.0, self.end - self.lease.0);
        write!(f, "Buffer({s}..{e} of {} bytes)", self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_gives_back_its_own_lease_only() {
        let region = MemoryRegion::new(4096).unwrap();
        let lease = region.buffer(0..100).unwrap();
        // SAFETY: none of the bytes is looked at.
        let mut part = unsafe { region.overlapping(0, 100) }.unwrap();
        drop(part.split_off(50));
        drop(part);
        assert!(region.buffer(0..100).is_err(), "leased");
        drop(lease);
        assert!(region.buffer(0..100).is_ok());
    }

    #[test]
    fn leases_are_exclusive_and_come_back() {
        let region = MemoryRegion::new(100).unwrap();
        let mut a = region.buffer(10..50).unwrap();
        assert!(matches!(region.buffer(49..60), Err(MemError::Leased { .. })));
        assert!(region.buffer(50..).is_ok());
        let b = a.split_off(15);
        assert_eq!((a.len(), b.len()), (15, 25));
        drop(a);
        assert!(region.buffer(10..25).is_ok());
        assert!(region.buffer(24..26).is_err());
        drop(b);
        assert!(region.buffer(..).is_ok());
        assert!(matches!(region.buffer(90..101), Err(MemError::OutOfBounds { .. })));
        assert!(region.buffer((Bound::Included(usize::MAX), Bound::Included(usize::MAX))).is_err());
    }

    #[test]
    fn a_vector_goes_in_and_comes_out_without_a_copy() {
        let v = vec![1u8; 1000];
        let p = v.as_ptr();
        let mut b = Buffer::from(v);
        b[0] = 7;
        let v = b.into_vec();
        assert_eq!((v.as_ptr(), v[0], v.len()), (p, 7, 1000));
    }

    #[test]
    fn the_window_bounds_what_is_seen() {
        let mut b = Buffer::from(*b"0123456789");
        b.narrow(2..5);
        assert_eq!(&b[..], b"234");
        b.narrow(..3);
        assert_eq!(&b[..], b"012");
        b.widen();
        assert_eq!(b.len(), 10);
        b.narrow(4..);
        assert_eq!(b.into_vec(), b"456789");
    }

    #[test]
    fn registrations_end_with_the_memory() {
        struct Log(Mutex<Vec<(u64, Key)>>);
        impl ReleaseRegistration for Log {
            fn release(&self, place: u64, key: Key) {
                self.0.lock().unwrap().push((place, key));
            }
        }
        let log = Arc::new(Log(Mutex::default()));
        let region = MemoryRegion::new(10).unwrap();
        let b = region.buffer(..).unwrap();
        for _ in 0..2 {
            let home: Arc<dyn ReleaseRegistration> = log.clone();
            assert_eq!(b.registration::<()>(1, 0, || Ok((42, home.clone()))), Ok(42));
            // At another place of the same context, and in another context.
            assert_eq!(b.registration::<()>(1, 5, || Ok((43, home.clone()))), Ok(43));
            assert_eq!(b.registration::<()>(2, 0, || Ok((44, home))), Ok(44));
        }
        drop(region);
        assert!(log.0.lock().unwrap().is_empty());
        drop(b);
        assert_eq!(*log.0.lock().unwrap(), [(0, 42), (5, 43), (0, 44)]);
    }
}
