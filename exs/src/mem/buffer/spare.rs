//! Buffers over memory of the caller, one after the other in the same allocations.
//!
//! A buffer takes two allocations. Most calls of C that send or receive few bytes are over when they
//! return, and nothing else has a part of their buffer then. So the calling thread keeps the
//! allocations for its next call.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Buffer;

/// The allocations of a buffer over memory of the caller. They refer to memory that may be gone, so
/// nothing reaches the bytes before [`SpareBuffer::over`].
pub struct SpareBuffer(Buffer);

impl SpareBuffer {
    /// Keeps the allocations of a buffer. None: an operation or a device may have a part of it, or it is
    /// a part of a [`MemoryRegion`](super::MemoryRegion).
    pub fn of(buffer: Buffer) -> Option<SpareBuffer> {
        let shared = &buffer.shared;
        let single = Arc::strong_count(shared) == 1 && Arc::strong_count(&shared.region) == 1;
        let spare = single && !shared.durable && shared.registrations.is_empty();
        spare.then_some(SpareBuffer(buffer))
    }

    /// A buffer over other memory of the caller.
    ///
    /// # Safety
    /// As for [`Buffer::external`].
    pub unsafe fn over(mut self, base: NonNull<u8>, len: usize) -> Buffer {
        let shared = Arc::get_mut(&mut self.0.shared);
        let region = shared.and_then(|shared| Arc::get_mut(&mut shared.region));
        // SAFETY: the caller's promise is the same.
        if region.is_some_and(|region| unsafe { region.move_to(base, len) }) {
            self.0.lease = (0, len);
            (self.0.start, self.0.end) = self.0.lease;
            return self.0;
        }
        // SAFETY: as above.
        unsafe { Buffer::external(base, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(spare: Option<SpareBuffer>, bytes: &mut [u8]) -> Buffer {
        let (base, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        match spare {
            // SAFETY: the tests keep the bytes until the buffer is gone, and use them in no other way.
            Some(spare) => unsafe { spare.over(base, len) },
            // SAFETY: as above.
            None => unsafe { Buffer::external(base, len) },
        }
    }

    #[test]
    fn a_buffer_takes_the_place_of_one_that_has_ended() {
        let (mut first, mut second) = ([1; 4], [2; 9]);
        let buffer = over(None, &mut first);
        let at = Arc::as_ptr(&buffer.shared);
        let mut next = over(SpareBuffer::of(buffer), &mut second);
        assert_eq!(Arc::as_ptr(&next.shared), at);
        assert_eq!(&next[..], [2; 9]);
        next.narrow(3..5);
        let last = over(SpareBuffer::of(next), &mut first);
        assert_eq!(&last[..], [1; 4], "whole, whatever the window was");
    }

    #[test]
    fn a_buffer_of_which_something_has_a_part_is_not_spare() {
        let mut bytes = [1; 4];
        let buffer = over(None, &mut bytes);
        let segment = buffer.segment();
        assert!(SpareBuffer::of(buffer).is_none(), "an operation");
        drop(segment);
        let mut front = over(None, &mut bytes);
        let rest = front.split_off(2);
        assert!(SpareBuffer::of(front).is_none(), "the other half");
        assert!(SpareBuffer::of(rest).is_some());
        let region = crate::mem::MemoryRegion::new(16).unwrap();
        let part = region.buffer(..4).unwrap();
        drop(region);
        assert!(SpareBuffer::of(part).is_none(), "a region");
    }

    #[test]
    fn memory_of_another_kind_is_left_alone() {
        let mut bytes = [5; 3];
        let spare = SpareBuffer::of(Buffer::from(vec![7; 8]));
        assert_eq!(&over(spare, &mut bytes)[..], [5; 3]);
    }
}
