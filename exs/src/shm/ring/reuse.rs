//! The memory of a connection that has ended, for another one.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Mem, MemOwner, MemSide, Word, odd};
use crate::sys::SharedMap;

const ALL_WORDS: [Word; 8] = [
    Word::Consumed,
    Word::LaneFor,
    Word::Drained,
    Word::Filled,
    Word::Asleep,
    Word::State,
    Word::BitmapId,
    Word::BitmapSlot,
];

/// The pages of a place that no connection will use.
pub(in crate::shm) struct Vacated {
    slab: Weak<SharedMap>,
    offset: usize,
}

impl Vacated {
    /// Gives the pages back to the kernel, if the slab is still there.
    pub(in crate::shm) fn discard(&self) {
        if let Some(slab) = self.slab.upgrade() {
            slab.discard(self.offset, Mem::LEN);
        }
    }
}

impl Mem {
    /// Prepares the memory of a connection that has ended for another one, as side 0. The peer must
    /// be done with it.
    pub(in crate::shm) fn renew(&mut self, nonces: [u64; 2]) {
        for word in ALL_WORDS {
            for of in [MemSide::Ours, MemSide::Theirs] {
                self.word(of, word).store(0, Ordering::Release);
            }
        }
        self.nonces = nonces.map(odd);
        self.set_geometry();
    }

    /// Takes up again the memory of a connection that has ended, as side 1, after the peer has
    /// prepared it.
    ///
    /// # Errors
    /// As [`Mem::open`].
    pub(in crate::shm) fn reopen(mut self) -> io::Result<Mem> {
        self.check_geometry().map(|()| self)
    }

    /// True if neither side has ended the connection by its word.
    pub(in crate::shm) fn states_are_clear(&self) -> bool {
        [MemSide::Ours, MemSide::Theirs]
            .into_iter()
            .all(|of| self.word(of, Word::State).load(Ordering::Relaxed) == 0)
    }

    /// What is left when neither side needs the memory any more. None if it has a slab of its own, with
    /// which its pages go.
    pub(in crate::shm) fn vacate(&self) -> Option<Vacated> {
        match &self.owner {
            MemOwner::Map { region } => {
                let (slab, offset) = region.shared_map()?.place()?;
                (slab.len() > Mem::LEN).then(|| Vacated { slab: Arc::downgrade(slab), offset })
            }
            #[cfg(test)]
            MemOwner::Heap { .. } => None,
        }
    }

    /// True if nothing else refers to this memory.
    pub(in crate::shm) fn is_sole(&self) -> bool {
        match &self.owner {
            MemOwner::Map { region } => Arc::strong_count(region) == 1,
            #[cfg(test)]
            MemOwner::Heap { .. } => false,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::Area;
    use super::*;
    use crate::sys::{IoVec, IoVecMut, share};

    #[test]
    fn a_renewed_memory_holds_no_record_of_the_connection_before() {
        let slab = Arc::new(share(Mem::LEN).unwrap().0);
        let mut a = Mem::create(Arc::clone(&slab), 0, [5, 6]).unwrap();
        let b = Mem::open(slab, 0).unwrap();
        a.put(Area::Ring, 8, &IoVec::new(b"old"));
        a.publish(0);
        b.set(Word::Consumed, 64);
        assert!(b.has_record(0) && a.states_are_clear() && a.is_sole());
        b.set(Word::State, 1);
        assert!(!a.states_are_clear());
        a.renew([15, 16]);
        let b = b.reopen().unwrap();
        assert!(!b.has_record(0) && !a.has_record(0));
        assert!(a.states_are_clear() && a.theirs(Word::Consumed) == 0);
        a.put(Area::Ring, 8, &IoVec::new(b"new"));
        a.publish(0);
        assert!(b.has_record(0));
        let mut got = [0; 3];
        b.get(Area::Ring, 8, &IoVecMut::new(&mut got));
        assert_eq!(&got, b"new");
        let held = a.segment_at(0, 64).unwrap();
        assert!(!a.is_sole());
        drop(held);
    }

    #[test]
    fn pages_that_no_connection_needs_go_back_to_the_kernel() {
        let (slab, fd) = share(2 * Mem::LEN).unwrap();
        let slab = Arc::new(slab);
        let [kept, ended] =
            [0, 1].map(|place| Mem::create(Arc::clone(&slab), place, [5, 6]).unwrap());
        let file = std::fs::File::from(fd);
        let pages = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) / 8;
        assert_eq!(pages(), 2);
        let vacated = ended.vacate().unwrap();
        drop(ended);
        vacated.discard();
        assert_eq!(pages(), 1);
        let kept = kept.reopen().unwrap();
        let vacated = kept.vacate().unwrap();
        drop((slab, kept));
        vacated.discard();
        let alone = Arc::new(share(Mem::LEN).unwrap().0);
        assert!(Mem::create(alone, 0, [5, 6]).unwrap().vacate().is_none());
    }
}
