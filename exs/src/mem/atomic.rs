//! Atomic operations on words of 8 bytes.

use super::{Access, AccessFault, GrantedPart, Key, KeyTable, Segment};

/// Bytes of a word. Its address is a multiple of this.
pub const WORD: usize = 8;

/// An atomic operation on a word of the peer's memory, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds this to the word. The sum wraps.
    FetchAdd(u64),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// The value that the word must have.
        expected: u64,
        /// The value that it gets then.
        new: u64,
    },
}

impl AtomicOp {
    /// Returns the value to store in the place of `old`. None: the word stays as it is.
    pub fn apply(self, old: u64) -> Option<u64> {
        match self {
            AtomicOp::FetchAdd(add) => Some(old.wrapping_add(add)),
            AtomicOp::CompareSwap { expected, new } => (old == expected).then_some(new),
        }
    }
}

/// The accesses to a word with which an RNIC's atomic operations do not interfere, from few to
/// all (`ibv_atomic_cap` of the verbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Atomics {
    /// The RNIC executes no atomic operations (IBV_ATOMIC_NONE).
    #[default]
    None,
    /// Other atomic operations that the same RNIC executes (IBV_ATOMIC_HCA). An access of a processor
    /// of the host, or of another RNIC, may come between the read and the write of an operation.
    Device,
    /// Those, and atomic operations of the host's processors (IBV_ATOMIC_GLOB).
    Host,
}

impl KeyTable {
    /// Returns the word that a peer's atomic operation names. The checks are those of
    /// [`KeyTable::check_remote`], and then that of the alignment.
    pub fn check_word(
        &self,
        domain: u32,
        queue_pair: u32,
        key: Key,
        addr: u64,
    ) -> Result<GrantedPart<'_>, AccessFault> {
        let need = Access::REMOTE_ATOMIC;
        let word = self.check_remote(domain, queue_pair, key, addr, WORD as u64, need)?;
        if !addr.is_multiple_of(WORD as u64) {
            return Err(AccessFault::Alignment { addr });
        }
        Ok(word)
    }
}

impl GrantedPart<'_> {
    /// Replaces the word at the start of the part by what `f` makes of it, in one step for all
    /// processors of the host. `f` may run several times. The word stays as it is if `f` returns
    /// None. Returns what was there.
    ///
    /// Panics if the part is shorter than a word, or not aligned.
    pub fn update_word(&self, f: impl FnMut(u64) -> Option<u64>) -> u64 {
        let (segment, offset) = self.word_place();
        segment.update_word(offset, f)
    }
}

impl Segment {
    /// Reads the word at `offset` in one step. Panics as [`Segment::update_word`].
    pub fn load_word(&self, offset: usize) -> u64 {
        self.update_word(offset, |_| None)
    }

    /// Does an atomic operation on the word at `offset`, in one step for all processors of the
    /// host. Returns what was there before. Panics as [`Segment::update_word`].
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> u64 {
        self.update_word(offset, |old| op.apply(old))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Grant, Region, Scope};
    use super::*;

    fn words() -> Segment {
        let region = Region::map(4096).unwrap();
        region.segment(0, 64).unwrap()
    }

    #[test]
    fn operations_return_what_was_there() {
        let seg = words();
        assert_eq!(seg.atomic(8, AtomicOp::FetchAdd(u64::MAX)), 0);
        assert_eq!(seg.atomic(8, AtomicOp::FetchAdd(3)), u64::MAX, "the sum wraps");
        let swap = |expected, new| AtomicOp::CompareSwap { expected, new };
        assert_eq!(seg.atomic(8, swap(7, 9)), 2, "not what was expected");
        assert_eq!(seg.atomic(8, swap(2, 9)), 2);
        assert_eq!(seg.atomic(8, AtomicOp::FetchAdd(0)), 9);
        let mut beside = [1; 8];
        for at in [0, 16] {
            seg.read_at(at, &mut beside);
            assert_eq!(beside, [0; 8], "beside the word");
        }
    }

    #[test]
    fn threads_lose_no_addition() {
        let seg = words();
        let count = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..count {
                        seg.atomic(16, AtomicOp::FetchAdd(1));
                    }
                });
            }
        });
        assert_eq!(seg.atomic(16, AtomicOp::FetchAdd(0)), 3 * count);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_word_that_is_not_aligned_panics() {
        words().atomic(4, AtomicOp::FetchAdd(1));
    }

    #[test]
    #[should_panic(expected = "8 bytes at 64 of a segment of 64")]
    fn a_word_beyond_the_end_panics() {
        words().atomic(64, AtomicOp::FetchAdd(1));
    }

    #[test]
    fn keys_are_checked_for_words() {
        let mut keys = KeyTable::new();
        let segment = words();
        let addr = segment.addr();
        let scope = Scope::QueuePair(1, 7);
        let grant = |access| Grant { segment: segment.clone(), access, scope };
        let key = keys.insert(grant(Access::REMOTE_ATOMIC), &mut || 42);
        let other = keys.insert(grant(Access::REMOTE_WRITE), &mut || 43);
        assert_eq!(keys.check_word(1, 7, key, addr + 56).unwrap().update_word(|_| Some(5)), 0);
        assert_eq!(segment.atomic(56, AtomicOp::FetchAdd(0)), 5);
        let fault = |qp, key, addr| keys.check_word(1, qp, key, addr).unwrap_err();
        assert!(matches!(fault(7, key, addr + 57), AccessFault::Bounds { .. }));
        assert!(matches!(fault(7, key, addr + 60), AccessFault::Bounds { .. }));
        assert!(matches!(fault(7, key, u64::MAX), AccessFault::Wrap { .. }));
        assert!(matches!(fault(7, other, addr), AccessFault::Rights { .. }));
        assert!(matches!(fault(8, key, addr), AccessFault::InvalidKey { .. }));
        assert_eq!(fault(7, key, addr + 4), AccessFault::Alignment { addr: addr + 4 });
        assert!(
            keys.check_remote(1, 7, key, addr, 8, Access::REMOTE_WRITE).is_err(),
            "the right to operations gives no right to WRITE"
        );
    }
}
