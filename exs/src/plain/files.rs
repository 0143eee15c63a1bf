//! Files as the source of a send.
//!
//! sendfile(2) and splice(2) wait for room in a socket that blocks, whatever their flags
//! (SPLICE_F_NONBLOCK is about pipes; seen on Linux 6.18). For such a socket the library reads the
//! bytes into a buffer and sends them from there, which costs a copy. To send from a mapping of the
//! file is slower still, because its pages must be mapped; pieces smaller than the buffer are slower
//! too. If the owner has set O_NONBLOCK, the library uses sendfile(2) (`call`).
//!
//! Other threads fetch bytes that are not in the page cache (`sys::Staging`), and the send is tried again
//! when they have come. One buffer serves all sockets: bytes that a socket does not take are read
//! again from the page cache when it is ready. So a peer that does not read holds no memory, and
//! a single file that is being sent is read once.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use mio::unix::SourceFd;

use super::{FETCHED, Plain};
use crate::ids::OpId;
use crate::mem::{Region, Segment};
use crate::rnic::FileRange;
use crate::sys::{self, EventFd, FetchDone, FileBytes, Staging};

/// Bytes of the buffer. A message that is sent from a file must fit into it.
pub(super) const CHUNK: usize = 256 << 10;

/// The buffer, and what it holds.
#[derive(Default)]
pub(super) struct Scratch {
    region: Option<Arc<Region>>,
    /// The operation whose bytes these are, the offset of the first in its range, and their number;
    /// None: the buffer holds nothing.
    holds: Option<(OpId, u64, usize)>,
    /// Fetches for operations.
    staging: Staging<OpId>,
    /// Fetched bytes arrive here; None before the first fetch.
    inbox: Option<Arc<FileInbox>>,
    /// The bell has rung, or a fetch could not start. `take_fetched` clears it.
    rung: bool,
}

/// What other threads have fetched.
struct FileInbox {
    came: Mutex<Vec<FetchDone<OpId>>>,
    bell: EventFd,
}

impl Scratch {
    /// True if the bytes of a range from `done` on are in the page cache, so that sendfile(2) does not wait
    /// for a disk.
    pub(super) fn is_at_hand(&mut self, op: OpId, range: &FileRange, done: u64) -> bool {
        rest(range, done)
            .is_ok_and(|rest| matches!(self.staging.find(op, &rest), FileBytes::AtHand))
    }

    /// The bytes of a range from `done` on, at most a buffer's size; an empty segment at the end of the file.
    /// None: other threads fetch them.
    pub(super) fn load(
        &mut self,
        op: OpId,
        range: &FileRange,
        done: u64,
    ) -> io::Result<Option<Segment>> {
        let region = self.region.get_or_insert_with(|| Region::from_vec(vec![0; CHUNK]));
        let part = |off, len| region.segment(off, len).map(Some).map_err(io::Error::other);
        if let Some((holder, first, len)) = self.holds
            && holder == op
            && done >= first
            && done < first + len as u64
            && let Ok(skip) = usize::try_from(done - first)
        {
            return part(skip, len - skip);
        }
        let wanted = rest(range, done)?;
        let (from, errno) = match self.staging.find(op, &wanted) {
            FileBytes::AtHand => (wanted, None),
            FileBytes::Staged(copy) => copy.map_err(io::Error::from_raw_os_error)?,
            FileBytes::Away => return Ok(None),
        };
        let want = usize::try_from(from.len).unwrap_or(CHUNK).min(CHUNK);
        self.holds = None;
        let Some(room) = part(0, want)? else { return Ok(None) };
        let mut have = 0;
        while have < want {
            let into = room.io_vec_mut(have, want - have);
            match sys::read_at(&from.file, from.offset + have as u64, into)? {
                0 => break,
                n => have += n,
            }
        }
        if let Some(errno) = errno.filter(|_| have == 0) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.holds = Some((op, done, have));
        part(0, have)
    }
}

impl Plain {
    /// Notes that the reactor has reported the bell.
    pub(super) fn note_fetched(&mut self) {
        self.scratch.rung = true;
    }

    /// True if `take_fetched` has work.
    pub(super) fn has_fetched(&self) -> bool {
        self.scratch.rung
    }

    /// Begins to fetch what operations wait for.
    pub(super) fn start_fetches(&mut self) {
        if !self.scratch.staging.wants() {
            return;
        }
        match self.inbox() {
            Ok(inbox) => self.scratch.staging.start(move |came| {
                inbox.came.lock().unwrap_or_else(PoisonError::into_inner).push(came);
                inbox.bell.signal();
            }),
            Err(e) => {
                self.scratch.staging.fail(e.raw_os_error().unwrap_or(libc::EIO));
                self.scratch.rung = true;
            }
        }
    }

    fn inbox(&mut self) -> io::Result<Arc<FileInbox>> {
        if let Some(inbox) = &self.scratch.inbox {
            return Ok(Arc::clone(inbox));
        }
        let inbox = Arc::new(FileInbox { came: Mutex::default(), bell: EventFd::new()? });
        let token = mio::Token(self.token_base + FETCHED);
        let bell = inbox.bell.as_raw_fd();
        self.registry.register(&mut SourceFd(&bell), token, mio::Interest::READABLE)?;
        self.scratch.inbox = Some(Arc::clone(&inbox));
        Ok(inbox)
    }

    /// Takes what was fetched, and has `progress` try the sends again that wait.
    pub(super) fn take_fetched(&mut self) {
        if !std::mem::take(&mut self.scratch.rung) {
            return;
        }
        if let Some(inbox) = self.scratch.inbox.clone() {
            inbox.bell.drain();
            let came =
                std::mem::take(&mut *inbox.came.lock().unwrap_or_else(PoisonError::into_inner));
            for came in came {
                self.scratch.staging.arrived(came);
            }
        }
        self.socks.try_full(usize::MAX);
    }

    /// Drops what was fetched for an operation that has ended.
    pub(super) fn forget_fetched(&mut self, op: OpId) {
        self.scratch.staging.forget(op);
    }
}

/// The rest of a range, at most a buffer's size.
fn rest(range: &FileRange, done: u64) -> io::Result<FileRange> {
    let too_far = || io::Error::from_raw_os_error(libc::EOVERFLOW);
    let offset = range.offset.checked_add(done).ok_or_else(too_far)?;
    let len = (range.len - done).min(CHUNK as u64);
    Ok(FileRange { file: range.file.clone(), offset, len })
}
