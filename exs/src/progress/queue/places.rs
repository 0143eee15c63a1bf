//! The places of a queue: each operation in flight and each event that waits has one, so the queue cannot
//! overflow.
//!
//! The numbers only grow, and wrap around. So a thread that books a place writes one word, and those that
//! free places write others, each under a lock that it holds anyway.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::progress::Error;
use crate::sys::cold_path;

/// The places of a queue.
#[derive(Debug)]
pub(super) struct Places {
    depth: AtomicUsize,
    /// The places that were ever booked. Those that did not come free again belong to operations in
    /// flight and to events that no thread has dequeued.
    booked: AtomicUsize,
    /// The places that came free again, written under the queue's lock.
    freed: AtomicUsize,
    /// The places that came free because their events were handed over without the queue's lock.
    /// Written under the lock of the queue's engine.
    handed: AtomicUsize,
}

impl Places {
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0.
    pub(super) fn new(depth: usize) -> Result<Places, Error> {
        check(depth)?;
        let zero = || AtomicUsize::new(0);
        let [booked, freed, handed] = [zero(), zero(), zero()];
        Ok(Places { depth: AtomicUsize::new(depth), booked, freed, handed })
    }

    /// How many there are.
    pub(super) fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Changes their number. Those beyond the new number stay booked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0.
    pub(super) fn set_depth(&self, depth: usize) -> Result<(), Error> {
        check(depth)?;
        self.depth.store(depth, Ordering::Relaxed);
        Ok(())
    }

    /// The places that are booked.
    pub(super) fn outstanding(&self) -> usize {
        // In this order of reads the result can be too large, but never less than 0.
        let freed = self.freed();
        self.booked.load(Ordering::SeqCst).wrapping_sub(freed)
    }

    /// The places that came free again: at least those at the time of the call.
    fn freed(&self) -> usize {
        let handed = self.handed.load(Ordering::Acquire);
        self.freed.load(Ordering::Acquire).wrapping_add(handed)
    }

    /// Frees this many. The caller holds the queue's lock.
    pub(super) fn free(&self, places: usize) {
        let freed = self.freed.load(Ordering::Relaxed);
        self.freed.store(freed.wrapping_add(places), Ordering::Release);
    }

    /// Frees this many, whose events go past the queue. The caller holds the lock of the queue's engine.
    pub(super) fn hand_over(&self, places: usize) {
        let handed = self.handed.load(Ordering::Relaxed);
        self.handed.store(handed.wrapping_add(places), Ordering::Release);
    }

    /// Books `most`, or fewer if there is less room. Returns their number.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room.
    #[inline]
    pub(super) fn book(&self, most: usize) -> Result<usize, Error> {
        let limit = self.depth();
        loop {
            let freed = self.freed();
            let booked = self.booked.load(Ordering::Acquire);
            let room = limit.saturating_sub(booked.wrapping_sub(freed));
            if room == 0 {
                // Places may have come free, and been booked, between the two reads.
                if self.freed() == freed {
                    cold_path();
                    return Err(Error::WouldBlock { what: "event queue", limit });
                }
                continue;
            }
            let places = most.min(room);
            let next = booked.wrapping_add(places);
            // A thread that waits in another shard must see the place, or is called back (`AwayThreads`).
            let book = self.booked.compare_exchange_weak(
                booked,
                next,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if book.is_ok() {
                return Ok(places);
            }
        }
    }
}

fn check(depth: usize) -> Result<(), Error> {
    match depth {
        0 => Err(Error::invalid("an event queue needs a depth of at least 1")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_the_depth_says() {
        assert!(Places::new(0).is_err());
        let places = Places::new(4).unwrap();
        assert_eq!(places.book(3).unwrap(), 3);
        assert_eq!(places.book(3).unwrap(), 1, "the rest");
        assert!(matches!(places.book(1), Err(Error::WouldBlock { limit: 4, .. })));
        places.free(1);
        places.hand_over(1);
        assert_eq!((places.outstanding(), places.book(9).unwrap()), (2, 2));
        assert!(places.set_depth(0).is_err());
        places.set_depth(2).unwrap();
        places.free(2);
        assert_eq!(
            (places.outstanding(), places.book(1).is_err()),
            (2, true),
            "more than the depth"
        );
        places.free(1);
        assert_eq!(places.book(1).unwrap(), 1);
    }

    #[test]
    fn the_numbers_wrap_around() {
        let places = Places::new(2).unwrap();
        for number in [&places.booked, &places.freed] {
            number.store(usize::MAX - 1, Ordering::Relaxed);
        }
        for _ in 0..8 {
            assert_eq!(places.book(2).unwrap(), 2);
            places.free(1);
            places.hand_over(1);
            assert_eq!(places.outstanding(), 0);
        }
    }
}
