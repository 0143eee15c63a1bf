//! Buffers of the streams of a reactor, in memory that is registered once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::{Buffer, Error, MemoryRegion};

/// The sizes of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    /// A receive of this size needs no message of its own to announce it.
    Small,
    /// Large enough that the bytes cost more than the operation.
    Large,
    /// For a stream that moves data without a pause: the tasks at both ends wake once for half a
    /// megabyte. Two of these in flight move 1.4 to 1.9 times as much over the software RNIC as four
    /// large ones, and 1.6 to 2.2 times as much over shared memory.
    Bulk,
}

impl Size {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Size::Small => 4 << 10,
            Size::Large => 128 << 10,
            Size::Bulk => 512 << 10,
        }
    }

    /// How many receives of this size a stream posts ahead. With four bulk ones, and as many sends, neither
    /// end waits for the other while both copy: 1.15 times as much over the software RNIC as with two, and
    /// 1.5 times as much over shared memory.
    pub(super) const fn ahead(self) -> usize {
        match self {
            Size::Small | Size::Large => 2,
            Size::Bulk => 4,
        }
    }

    /// The size that holds this many bytes, or the largest one.
    pub(super) fn of(len: usize) -> Size {
        let holds = |size: &Size| len <= size.bytes();
        [Size::Small, Size::Large].into_iter().find(holds).unwrap_or(Size::Bulk)
    }

    /// The buffers that are made together, as one region.
    const fn together(self) -> usize {
        match self {
            Size::Small => 64,
            Size::Large => 4,
            Size::Bulk => 1,
        }
    }

    /// Free buffers beyond these are given back to the system.
    const fn most_free(self) -> usize {
        match self {
            Size::Small => 4096,
            Size::Large => 64,
            Size::Bulk => 8,
        }
    }
}

/// The most bulk buffers that the streams of a reactor have at a time: 16 MiB.
const MOST_BULK: usize = 32;

/// The free buffers. Memory costs something once it is touched: buffers that were used last are used
/// first.
#[derive(Default)]
pub(in crate::aio) struct BufferPool {
    small: Mutex<Vec<Buffer>>,
    large: Mutex<Vec<Buffer>>,
    bulk: Mutex<Vec<Buffer>>,
    /// The bulk buffers that streams have.
    bulk_taken: AtomicUsize,
}

impl BufferPool {
    fn free(&self, size: Size) -> MutexGuard<'_, Vec<Buffer>> {
        let free = match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
            Size::Bulk => &self.bulk,
        };
        free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer, whose window is all of it. It is a large one in place of a bulk one if the
    /// streams have as many of these as they may, or if the system has no memory for another.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub(super) fn take(&self, size: Size) -> Result<Buffer, Error> {
        if size == Size::Bulk {
            return match self.take_bulk() {
                Some(buffer) => Ok(buffer),
                None => self.take_of(Size::Large),
            };
        }
        self.take_of(size)
    }

    fn take_bulk(&self) -> Option<Buffer> {
        let one_more = |taken| (taken < MOST_BULK).then_some(taken + 1);
        self.bulk_taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let taken = self.take_of(Size::Bulk).ok();
        if taken.is_none() {
            self.bulk_taken.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    fn take_of(&self, size: Size) -> Result<Buffer, Error> {
        let mut free = self.free(size);
        if let Some(buffer) = free.pop() {
            return Ok(buffer);
        }
        let region = MemoryRegion::new(size.bytes() * size.together())?;
        let mut rest = region.buffer(..)?;
        while rest.capacity() > size.bytes() {
            let more = rest.split_off(size.bytes());
            free.push(std::mem::replace(&mut rest, more));
        }
        Ok(rest)
    }

    /// Gives a buffer back.
    pub(super) fn give(&self, mut buffer: Buffer) {
        let size = Size::of(buffer.capacity());
        if buffer.capacity() != size.bytes() {
            return;
        }
        if size == Size::Bulk {
            self.bulk_taken.fetch_sub(1, Ordering::Relaxed);
        }
        buffer.widen();
        let mut free = self.free(size);
        if free.len() < size.most_free() {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = BufferPool::default();
        for size in [Size::Small, Size::Large, Size::Bulk] {
            let mut buffer = pool.take(size).unwrap();
            assert_eq!((buffer.len(), Size::of(buffer.len())), (size.bytes(), size));
            let at = buffer.as_ptr();
            buffer.narrow(3..7);
            pool.give(buffer);
            let again = pool.take(size).unwrap();
            assert_eq!((again.as_ptr(), again.len()), (at, size.bytes()));
            let other = pool.take(size).unwrap();
            assert_ne!(other.as_ptr(), at);
        }
        pool.give(Buffer::from(Vec::new()));
    }

    #[test]
    fn streams_get_large_buffers_when_the_bulk_buffers_are_taken() {
        let pool = BufferPool::default();
        let sizes = |buffers: &[Buffer]| -> Vec<_> {
            buffers.iter().map(|buffer| Size::of(buffer.capacity())).collect()
        };
        let mut taken: Vec<_> =
            (0..MOST_BULK + 2).map(|_| pool.take(Size::Bulk).unwrap()).collect();
        assert_eq!(sizes(&taken[MOST_BULK - 1..]), [Size::Bulk, Size::Large, Size::Large]);
        taken.drain(..2).for_each(|buffer| pool.give(buffer));
        let more: Vec<_> = (0..3).map(|_| pool.take(Size::Bulk).unwrap()).collect();
        assert_eq!(sizes(&more), [Size::Bulk, Size::Bulk, Size::Large]);
        for buffer in taken.into_iter().chain(more) {
            pool.give(buffer);
        }
        assert_eq!(pool.free(Size::Bulk).len(), Size::Bulk.most_free());
        assert_eq!(pool.bulk_taken.into_inner(), 0);
    }
}
