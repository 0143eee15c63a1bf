//! Files as the source of a send.
//!
//! sendfile(2) and splice(2) wait for room in a socket that blocks, whatever flag they
//! are given (SPLICE_F_NONBLOCK is about pipes; seen on Linux 6.18). So there the bytes are
//! read into memory and sent from there, which costs a copy. (To send from a mapping of the
//! file is slower still, for its pages are to be mapped; so are smaller pieces than this
//! buffer.) Where the owner has set O_NONBLOCK, sendfile(2) is used (`call`).
//! One buffer serves all sockets: what a socket does not take is read again
//! when it is ready, from the page cache. So a peer that does not read holds no
//! memory, and a single file that is being sent is read once.

use std::io;
use std::sync::Arc;

use crate::ids::OpId;
use crate::mem::{Region, Segment};
use crate::rnic::FileRange;
use crate::sys;

/// Bytes read at a time. A message that is sent from a file must fit.
pub(super) const CHUNK: usize = 256 << 10;

/// The buffer, and what is in it.
#[derive(Default)]
pub(super) struct Scratch {
    region: Option<Arc<Region>>,
    /// Whose bytes these are: the operation, the offset of the first in its range,
    /// and how many.
    holds: Option<(OpId, u64, usize)>,
}

impl Scratch {
    /// The bytes of a range from `done` on: as many as are there of the buffer's size,
    /// none at the end of the file.
    pub(super) fn load(&mut self, op: OpId, range: &FileRange, done: u64) -> io::Result<Segment> {
        let region = self.region.get_or_insert_with(|| Region::from_vec(vec![0; CHUNK]));
        let part = |off, len| region.segment(off, len).map_err(io::Error::other);
        if let Some((who, first, len)) = self.holds
            && who == op
            && done >= first
            && done < first + len as u64
            && let Ok(skip) = usize::try_from(done - first)
        {
            return part(skip, len - skip);
        }
        let want = usize::try_from(range.len - done).unwrap_or(CHUNK).min(CHUNK);
        let Some(at) = range.offset.checked_add(done) else {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        };
        self.holds = None;
        let room = part(0, want)?;
        let mut have = 0;
        while have < want {
            let into = room.io_vec_mut(have, want - have);
            match sys::read_at(&range.file, at + have as u64, into)? {
                0 => break,
                n => have += n,
            }
        }
        self.holds = Some((op, done, have));
        part(0, have)
    }
}
