//! Branches that are hardly ever taken.
//!
//! A small message is some four thousand instructions, from its post to its event at the other
//! end: nearly as many as the first-level cache of instructions holds, if nothing else lies
//! between them. So errors, and what a small message has no need of, are marked, and the
//! compiler lays them out elsewhere. The other way round, the few functions that each small
//! message calls once are inlined by force: the compiler cannot know how often that is.

/// Marks the branch in which it is called, as `std::hint::cold_path` does, which the oldest
/// compiler that builds EXS does not have.
#[cold]
#[inline]
pub(crate) const fn cold_path() {}
