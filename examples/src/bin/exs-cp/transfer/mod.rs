//! Moving files over a channel, for put and for get.
//!
//! [`sender`] reads, hashes and sends one file; [`incoming`] receives, hashes
//! and has [`writer`] write one. `put` runs the first in the client and the second in the
//! server, `get` the other way round. [`settle`] brings received files onto the disk, and names
//! them. [`tally`] counts, for progress and the summary.

use crate::disk::relpath::RelPath;

pub(crate) mod incoming;
pub(crate) mod sender;
pub(crate) mod settle;
pub(crate) mod tally;
mod writer;

/// Files that may be on their way on one connection: enough that a round trip
/// is hidden behind small files, few enough that all state stays small.
pub(crate) const WINDOW: usize = 2048;
/// What an honest peer never exceeds.
pub(crate) const MOST_OUTSTANDING: usize = 4 * WINDOW;
/// Chunks listed as present, over all files on their way (36 bytes each).
pub(crate) const MOST_CHUNKS: usize = 1 << 18;

/// What a file on its way counts for against [`MOST_CHUNKS`]: its chunks, and what a path has
/// beyond the usual length, so that long paths take no more memory than many chunks do.
pub(crate) fn weight(path: &RelPath, chunks: usize) -> usize {
    chunks + path.as_bytes().len().saturating_sub(4096) / 36
}
