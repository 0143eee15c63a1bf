//! A mark for branches that are hardly ever taken.
//!
//! A small message takes some four thousand instructions from its post to its event at the other
//! end. That is nearly as many as the first-level instruction cache holds, if nothing else lies
//! between them. So errors, and branches that a small message does not take, are marked, and the
//! compiler places them elsewhere. Conversely, the few functions that each small message calls
//! once are forced inline, because the compiler cannot know how often that is.

/// Marks the branch that calls it as cold, as `std::hint::cold_path` does. The oldest compiler
/// that builds EXS does not have that function.
#[cold]
#[inline]
pub(crate) const fn cold_path() {}
