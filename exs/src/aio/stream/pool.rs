//! Buffers of the streams of a reactor, in memory that is registered once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::{Buffer, Error, MemoryRegion};

/// The sizes of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// A receive of this size needs no message of its own to announce it.
    Small,
    /// Large enough that the bytes cost more than the operation.
    Large,
}

impl Size {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Size::Small => 4 << 10,
            Size::Large => 128 << 10,
        }
    }

    /// The size that holds this many bytes, or the larger one.
    pub(super) fn of(len: usize) -> Size {
        if len <= Size::Small.bytes() { Size::Small } else { Size::Large }
    }

    /// The buffers that are made together, as one region.
    const fn together(self) -> usize {
        match self {
            Size::Small => 64,
            Size::Large => 4,
        }
    }

    /// Free buffers beyond these are given back to the system.
    const fn most_free(self) -> usize {
        match self {
            Size::Small => 4096,
            Size::Large => 64,
        }
    }
}

/// The free buffers. Memory costs something once it is touched: buffers that were used last are used
/// first.
#[derive(Default)]
pub(in crate::aio) struct BufferPool {
    small: Mutex<Vec<Buffer>>,
    large: Mutex<Vec<Buffer>>,
}

impl BufferPool {
    fn free(&self, size: Size) -> MutexGuard<'_, Vec<Buffer>> {
        let free = match size {
            Size::Small => &self.small,
            Size::Large => &self.large,
        };
        free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a buffer, whose window is all of it.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub(super) fn take(&self, size: Size) -> Result<Buffer, Error> {
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
        for size in [Size::Small, Size::Large] {
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
}
