//! The raw layer: memory that the library does not own (an `unsafe` island).
//!
//! What the C library is built on: a buffer over any memory, without a lifetime that
//! the compiler could check. `with_slice` and `with_slice_mut` are the safe use of
//! it that the blocking calls make.
//!
//! # The argument of the safe use
//! A borrowed slice may be lent to an operation if the borrow outlives it. Here it
//! does, because these functions return only when the buffer was given back, that is
//! when the operation's event or its refusal brought it. After the event no thread of the
//! library touches the memory. A closure that loses the buffer, by unwinding or by dropping it while
//! an operation may still hold the memory, ends the process, as nothing else is sound.
#![allow(unsafe_code)]

pub mod kernel;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::Duration;

pub use super::batch::{Tagged as Posting, recv_batch, send_batch};
pub use super::event_loop::{accept_in_loop, in_loop, note_loop, send_in_loop};
pub use super::place::{
    FIRST_SHARD, LoopId, Place, RecvAtOnce, Standing, Watch, accept_at_home, accept_in_turn,
    cancel_but, cancel_on, dequeue_exact, dequeue_of, end_polling, end_polling_at_end, failure,
    found_nothing, inner_fd, is_watched, keep_private_queue, kept_standing, may_pass, polled,
    private_queue, private_queue_for_accept, queue_for_descriptors, recv_at_once, recv_passing,
    recv_ready, rung_by, send_at_once, shard_of, shown_fd, standing, tag, tagged, take_accepted,
    take_descriptor, watch,
};
#[cfg(any(test, feature = "internals"))]
pub use super::place::{is_attended, is_dormant_loan, is_waiting_on_loan};
pub use super::{AttendedStream, LoopDriver, RungBy};
use super::{Export, Socket};
pub use crate::mem::SpareBuffer;
use crate::mem::{Buffer, MemError, MemoryRegion, Region, Segment};
use crate::progress::{Error, Rights};
pub use crate::sys::is_duplicate;
pub use crate::sys::{ProcessLock, ProcessNumber, ProcessTable};

/// A buffer over `len` bytes at `base`, which may be moved into operations like any
/// other. Small ones are copied, large ones registered for the operation.
///
/// # Safety
/// The memory must be valid for reads and writes until the buffer, and every
/// operation that it was moved into, has ended (its event was dequeued); and while an
/// operation has it no other code may touch it, except for reading it while it is only
/// sent.
///
/// ```
/// use std::ptr::NonNull;
/// let mut bytes = [0u8; 16];
/// // SAFETY: `bytes` outlives the buffer, which is in no operation.
/// let mut buffer = unsafe { exs::__ffi::buffer(NonNull::from(&mut bytes).cast(), 16) };
/// buffer[0] = 7;
/// drop(buffer);
/// assert_eq!(bytes[0], 7);
/// ```
pub unsafe fn buffer(base: NonNull<u8>, len: usize) -> Buffer {
    // SAFETY: the caller's promise, word by word.
    unsafe { Buffer::external(base, len) }
}

/// Memory that the caller owns, registered once for many operations, as a [`MemoryRegion`] is.
///
/// # Safety
/// The memory must be valid for reads and writes until the region, the buffers from
/// it, and every operation that they were moved into, have ended.
///
/// ```
/// use std::ptr::NonNull;
/// let mut bytes = [1u8, 2, 3];
/// // SAFETY: `bytes` outlives the region and the buffer, which is in no operation.
/// let region = unsafe { exs::__ffi::region(NonNull::from(&mut bytes).cast(), 3) };
/// // SAFETY: as above; no other code uses the bytes.
/// let buffer = unsafe { exs::__ffi::part(&region, 1, 2) }?;
/// assert_eq!(&buffer[..], [2, 3]);
/// # Ok::<(), exs::MemError>(())
/// ```
pub unsafe fn region(base: NonNull<u8>, len: usize) -> MemoryRegion {
    // SAFETY: the caller's promise, word by word.
    MemoryRegion::of(unsafe { Region::external(base, len) })
}

/// A buffer over a part of a region, which may overlap others: a program may well send
/// the same bytes several times at once.
///
/// # Errors
/// [`MemError::OutOfBounds`].
///
/// # Safety
/// While an operation has the buffer no other code may touch its bytes, except for
/// reading them while they are only sent.
pub unsafe fn part(region: &MemoryRegion, offset: usize, len: usize) -> Result<Buffer, MemError> {
    // SAFETY: the caller's promise, word by word.
    unsafe { region.overlapping(offset, len) }
}

/// The address of a region's first byte. If the region is not mapped, it only names the byte.
pub fn address(region: &MemoryRegion) -> usize {
    region.addr()
}

impl MemoryRegion {
    /// A region over memory from elsewhere: a mapped file, huge pages, memory of another library.
    /// `owner` keeps the memory, and is dropped when no handle, no buffer, no operation and no device
    /// uses it any more. The region is used like any other: each transport takes it, and a device
    /// registers it when an operation first uses it there.
    ///
    /// A device pins the pages. The kernel pins those of files in tmpfs and hugetlbfs, and of private
    /// mappings (MAP_PRIVATE); it refuses those of a file on disk that is mapped shared and writable,
    /// and the error of the operation says so ([`RnicError::Unpinnable`](super::RnicError)). Devices
    /// that page on demand do without pinning. Huge pages save the device translations: see
    /// mmap(2), MAP_HUGETLB.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// // A library's mapping type does as well: its owner moves in.
    /// let mut pages: Box<[u8]> = vec![0; 1 << 20].into();
    /// let (base, len) = (NonNull::from(&mut pages[..]).cast(), pages.len());
    /// // SAFETY: the bytes of a box stay where they are when the box moves, and only the region
    /// // reaches them from here on.
    /// let region = unsafe { exs::MemoryRegion::from_raw_parts(base, len, pages) }?;
    /// let mut buffer = region.buffer(..5)?;
    /// buffer.copy_from_slice(b"hello");
    /// # Ok::<(), exs::MemError>(())
    /// ```
    ///
    /// # Errors
    /// [`MemError::BadLength`] for 0 bytes, or more than `isize::MAX`.
    ///
    /// # Safety
    /// For as long as `owner` lives, wherever it moves, the memory must be mapped, and valid for reads
    /// and writes of `len` bytes at `base`. Nothing but the region and its buffers may access it
    /// meanwhile. For a mapped file that includes other processes that write to the file, and those
    /// that shorten it: an access beyond the end is SIGBUS.
    pub unsafe fn from_raw_parts<O: Send + Sync + 'static>(
        base: NonNull<u8>,
        len: usize,
        owner: O,
    ) -> Result<MemoryRegion, MemError> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(MemError::BadLength { len });
        }
        // SAFETY: the caller's promise, and the region keeps the owner as long as anything refers to
        // the memory.
        Ok(MemoryRegion::of(unsafe { Region::owned(base, len, Box::new(owner)) }))
    }

    /// A region over `len` bytes of a dma-buf, from `offset` on: memory of another device, such as a
    /// GPU. RDMA devices reach it by the descriptor (ibv_reg_dmabuf_mr), without a copy.
    ///
    /// EXS maps the memory if its exporter allows it. Then the region is like any other, and each
    /// transport takes it. Otherwise [`MemoryRegion::is_mapped`] is false: the region takes part in
    /// one-sided operations over RDMA devices only, as an [`Export`](crate::Export), and as source and
    /// sink of [`Socket::write`](crate::Socket::write) and [`Socket::read`](crate::Socket::read). All
    /// other calls refuse its buffers with [`MemError::Unmapped`], and slices of its buffers panic. Its
    /// memory cannot be looked at here in any way.
    ///
    /// A device registers the memory when an operation first uses it there. If the device, its driver
    /// or rdma-core cannot do that, the error of the operation says so
    /// ([`RnicError::DmaBuf`](super::RnicError)). No window can be bound to such a registration: an
    /// export is a registration of its own, as on a device without windows.
    ///
    /// Where the memory is not coherent with the caches of the processor, bracket the operations over
    /// a mapping with DMA_BUF_IOCTL_SYNC.
    ///
    /// EXS extension.
    ///
    /// ```no_run
    /// # fn of_the_gpu() -> std::os::fd::OwnedFd { unimplemented!() }
    /// # let socket = exs::Socket::stream()?;
    /// // SAFETY: the GPU leaves these bytes alone until the peer is done.
    /// let region = unsafe { exs::MemoryRegion::from_dmabuf(of_the_gpu(), 0, 64 << 20) }?;
    /// let export = socket.export(region.buffer(..)?, exs::Rights::READ, None)?;
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemError::BadLength`] for 0 bytes, or more than `isize::MAX`; [`MemError::OutOfBounds`] if the
    /// dma-buf is shorter; [`MemError::Map`] if no addresses are left.
    ///
    /// # Safety
    /// While a buffer of the region is in the program's hands, nothing else may write to its bytes;
    /// while an operation has it, nothing else may access them. That includes the exporter's device,
    /// and other processes. If the descriptor is a file's, nothing may shorten the file.
    pub unsafe fn from_dmabuf(
        fd: OwnedFd,
        offset: u64,
        len: usize,
    ) -> Result<MemoryRegion, MemError> {
        // SAFETY: the caller's promise.
        Ok(MemoryRegion::of(unsafe { Region::of_dmabuf(fd, offset, len) }?))
    }
}

/// Memory whose words are open to atomic operations only. Its buffers do not leave this type, so no
/// slice of them is made, and no plain copy reads or writes them.
#[derive(Debug)]
pub(super) struct WordRegion(MemoryRegion);

impl WordRegion {
    /// Allocates `bytes`, which are 0.
    ///
    /// # Errors
    /// As [`MemoryRegion::new`].
    pub(super) fn new(bytes: usize) -> Result<WordRegion, MemError> {
        MemoryRegion::new(bytes).map(WordRegion)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of it, for atomic operations.
    pub(super) fn segment(&self) -> Segment {
        self.buffer().segment()
    }

    /// Opens all of it to the peer of a connection, for atomic operations, beside other such exports.
    ///
    /// # Errors
    /// As [`Socket::export`].
    pub(super) fn export(
        &self,
        socket: &Socket,
        lifetime: Option<Duration>,
    ) -> Result<Export, Error> {
        socket.export(self.buffer(), Rights::ATOMIC, lifetime).map_err(|refused| refused.error)
    }

    fn buffer(&self) -> Buffer {
        // SAFETY: the buffers of this region move into exports with the right to atomic operations
        // alone, and drop there or in `export`. No other code gets one (the field is private). All
        // accesses to the bytes are atomic.
        unsafe { self.0.overlapping(0, self.0.len()) }.expect("the whole of it")
    }
}

/// Ends the process if it is dropped: the memory of a borrow may be in use.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        eprintln!("exs: a blocking operation was unwound while it held borrowed memory");
        std::process::abort();
    }
}

/// Lends a slice to `f` as a buffer; `f` must give the buffer back.
pub(super) fn with_slice<T>(bytes: &[u8], f: impl FnOnce(Buffer) -> (Buffer, T)) -> T {
    let base = NonNull::from(bytes).cast::<u8>();
    // SAFETY: valid for reads for the whole borrow, which outlives the buffer (module
    // essay); it is only sent, so never written: `f`'s callers post sends and WRITEs.
    let buffer = unsafe { Buffer::external(base, bytes.len()) };
    lend(buffer, f)
}

/// As `with_slice`, for memory to be filled.
pub(super) fn with_slice_mut<T>(bytes: &mut [u8], f: impl FnOnce(Buffer) -> (Buffer, T)) -> T {
    let len = bytes.len();
    let base = NonNull::from(bytes).cast::<u8>();
    // SAFETY: valid for reads and writes, and exclusively ours, for the whole borrow,
    // which outlives the buffer (module essay).
    let buffer = unsafe { Buffer::external(base, len) };
    lend(buffer, f)
}

fn lend<T>(buffer: Buffer, f: impl FnOnce(Buffer) -> (Buffer, T)) -> T {
    let (addr, len) = (buffer.as_ptr(), buffer.len());
    let bomb = Bomb;
    let (back, result) = f(buffer);
    // Another buffer in its place would mean that ours is still somewhere.
    if back.as_ptr() == addr && back.len() == len {
        std::mem::forget(bomb);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_slice_is_written_in_place() {
        let mut bytes = [1u8, 2, 3];
        let n = with_slice_mut(&mut bytes, |mut b| {
            b[1] = 9;
            (b, 7)
        });
        assert_eq!((bytes, n), ([1, 9, 3], 7));
        assert_eq!(
            with_slice(&bytes, |b| {
                let n = b.len();
                (b, n)
            }),
            3
        );
    }
}
