//! Files as the source of a WRITE, on devices that cannot read them (`Caps::file_source`).
//!
//! The engine turns a WRITE from a file into a WRITE from memory. It reads the bytes into one of a
//! few registered pieces first. The completion reports how many of the bytes the file had, as the
//! trait demands. The session sees no difference, except that it asks beforehand how much it may
//! write. When all pieces are in use the answer is 0, and the engine drives the session again as
//! soon as a piece is free.
//!
//! Each protection domain has its own pieces. The engine itself reads bytes that are in the page
//! cache. One such read is at most one piece long, and the engine asks the kernel to have the next
//! piece in memory by then. Other threads fetch bytes that are not in memory, on any device
//! (`sys::Staging`). Meanwhile the connection waits, as it does for a piece.

use std::collections::{HashMap, VecDeque};

use super::WcStatus;
use super::device::{Device, map_shared};
use crate::mem::{Access, Segment};
use crate::rnic::{FileRange, Qp, RnicError, SendWr, Sge, Wc};
use crate::session::Buf;
use crate::sys::{self, FileBytes};

/// The bytes of a piece: large enough for an efficient WRITE, small enough to be read at once.
const PIECE: usize = 512 << 10;
/// The most pieces of a domain.
const PIECES: usize = 8;

/// The pieces of a domain.
#[derive(Default)]
pub(super) struct FilePool {
    /// The free pieces.
    free: Vec<Buf>,
    /// The pieces of the domain, free or not.
    count: usize,
    /// The WRITEs under way, by queue pair and `wr_id`.
    under_way: HashMap<(Qp, u64), UnderWay>,
    /// The connections that wait for a piece, the longest-waiting first.
    waiting: VecDeque<Qp>,
}

/// A WRITE of bytes that were read from a file.
struct UnderWay {
    piece: Buf,
    had: usize,
    errno: Option<i32>,
}

impl FilePool {
    /// All pieces. No WRITE may be under way any more.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = Buf> {
        self.free.into_iter()
    }
}

impl Device {
    /// The bytes of a file that the connection may write now. 0: the engine drives it again when
    /// there is room.
    pub(super) fn file_room(&mut self, domain: u32, qp: Qp, range: &FileRange) -> u64 {
        let caps = self.rnic.caps();
        let most = caps.max_msg;
        let by_itself = caps.file_source;
        let most = match self.staging.find(qp, range) {
            FileBytes::Away => return 0,
            FileBytes::Staged(Ok((copy, _))) => most.min(copy.len),
            // Without a copy, the post fails and gives the reason.
            FileBytes::AtHand | FileBytes::Staged(Err(_)) => most,
        };
        if by_itself {
            return most;
        }
        let room = most.min(PIECE as u64);
        let (free, count) = match self.pools(domain) {
            Ok((_, o)) => (o.files.free.len(), o.files.count),
            Err(_) => return 0,
        };
        let found = free > 0 || (count < PIECES && self.add_piece(domain).is_ok());
        // Without any piece, the post must fail and give the reason.
        if found || count == 0 {
            return room;
        }
        if let Ok((_, o)) = self.pools(domain)
            && !o.files.waiting.contains(&qp)
        {
            o.files.waiting.push_back(qp);
        }
        0
    }

    fn add_piece(&mut self, domain: u32) -> Result<(), RnicError> {
        let seg = map_shared(PIECE)?;
        let (rnic, d) = self.domain(domain)?;
        let mr = rnic.reg_mr(d.pd, &seg, Access::LOCAL)?;
        let (_, o) = self.pools(domain)?;
        o.files.free.push(Buf { seg, mr });
        o.files.count += 1;
        Ok(())
    }

    /// Posts a WRITE from a file, or from the copy that another thread has fetched.
    pub(super) fn post_file(
        &mut self,
        domain: u32,
        qp: Qp,
        wr: &SendWr<'_>,
        range: &FileRange,
    ) -> Result<(), RnicError> {
        let (copy, errno) = match self.staging.copy(qp, range) {
            None => (range.clone(), None),
            Some(FileBytes::Staged(Ok(copy))) => copy,
            Some(FileBytes::Staged(Err(errno))) => {
                return Err(RnicError::Os { call: "memfd_create", errno });
            }
            // Cannot happen: `file_room` has returned 0.
            Some(_) => return Err(RnicError::QueueFull { what: "file pool", depth: 0 }),
        };
        if let Some(errno) = errno {
            self.short_files.insert((qp, wr.wr_id), errno);
        }
        let posted = if self.rnic.caps().file_source {
            self.rnic.post_send(qp, &SendWr { file: Some(copy), ..wr.clone() })
        } else {
            self.post_piece(domain, qp, wr, &copy)
        };
        if posted.is_ok() {
            self.staging.forget(qp);
        }
        posted
    }

    /// Reads the range into a piece, and posts a WRITE of that piece.
    fn post_piece(
        &mut self,
        domain: u32,
        qp: Qp,
        wr: &SendWr<'_>,
        range: &FileRange,
    ) -> Result<(), RnicError> {
        if self.pools(domain)?.1.files.free.is_empty() {
            self.add_piece(domain)?;
        }
        let (rnic, o) = self.pools(domain)?;
        let limit = PIECE as u64;
        let too_long = RnicError::Limit { what: "bytes of a file", asked: range.len, limit };
        let len = usize::try_from(range.len).ok().filter(|n| *n <= PIECE).ok_or(too_long)?;
        let Some(piece) = o.files.free.pop() else {
            return Err(RnicError::QueueFull { what: "file pool", depth: PIECES });
        };
        let (had, errno) = match piece.seg.slice(0, len) {
            Ok(seg) => read(range, &seg),
            Err(_) => (0, Some(libc::EINVAL)),
        };
        let sge = Sge { addr: piece.seg.addr(), len: range.len, lkey: piece.mr.key };
        let wr = SendWr { file: None, sges: &[sge], ..wr.clone() };
        match rnic.post_send(qp, &wr) {
            Ok(()) => {
                o.files.under_way.insert((qp, wr.wr_id), UnderWay { piece, had, errno });
                Ok(())
            }
            Err(e) => {
                o.files.free.push(piece);
                Err(e)
            }
        }
    }

    /// If the completion is of a WRITE from a file, writes the result of the file read into it.
    pub(super) fn end_file(&mut self, wc: &mut Wc) {
        self.end_piece(wc);
        if !self.short_files.is_empty()
            && let Some(errno) = self.short_files.remove(&(wc.qp, wc.wr_id))
            && wc.status == WcStatus::Success
        {
            wc.status = WcStatus::FileRead(errno);
        }
    }

    fn end_piece(&mut self, wc: &mut Wc) {
        let mut files = self.all_pools().map(|o| &mut o.files).filter(|f| !f.under_way.is_empty());
        let ended = files.find_map(|files| {
            let ended = files.under_way.remove(&(wc.qp, wc.wr_id))?;
            files.free.push(ended.piece);
            Some((ended.had, ended.errno))
        });
        let Some((had, errno)) = ended else { return };
        if wc.status == WcStatus::Success {
            wc.byte_len = had as u64;
            if let Some(errno) = errno {
                wc.status = WcStatus::FileRead(errno);
            }
        }
    }

    /// A queue pair is gone. Its WRITEs have ended with it.
    pub(super) fn drop_files(&mut self, domain: u32, qp: Qp) {
        self.staging.forget(qp);
        self.short_files.retain(|(q, _), _| *q != qp);
        let Ok((_, o)) = self.pools(domain) else { return };
        let gone = o.files.under_way.extract_if(|(q, _), _| *q == qp);
        o.files.free.extend(gone.map(|(_, ended)| ended.piece));
        o.files.waiting.retain(|q| *q != qp);
    }

    /// Calls `drive` for the connections that wait for a piece, if a piece is free. The first
    /// connection that still needs the piece takes it. The others wait again, in the same order.
    pub(super) fn wake_file_waiters(&mut self, mut drive: impl FnMut(Qp)) {
        loop {
            let waiters = self.file_waiters();
            if waiters.is_empty() {
                return;
            }
            waiters.into_iter().for_each(&mut drive);
        }
    }

    /// Takes the connections of a domain in which a piece is free and connections wait for one.
    fn file_waiters(&mut self) -> VecDeque<Qp> {
        let mut files = self.all_pools().map(|o| &mut o.files);
        let found = files.find(|f| !f.free.is_empty() && !f.waiting.is_empty());
        found.map(|f| std::mem::take(&mut f.waiting)).unwrap_or_default()
    }
}

/// Reads the range into `seg`, and fills the rest with zeros. Returns the bytes read, and the errno
/// of a failed read.
fn read(range: &FileRange, seg: &Segment) -> (usize, Option<i32>) {
    let (len, mut had, mut errno) = (seg.len(), 0, None);
    while had < len && errno.is_none() {
        let at = range.offset.saturating_add(had as u64);
        match sys::read_at(&range.file, at, seg.io_vec_mut(had, len - had)) {
            Ok(0) => break,
            Ok(n) => had += n,
            Err(e) => errno = Some(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut at = had;
    while at < len {
        let n = (len - at).min(ZEROS.len());
        seg.write_at(at, &ZEROS[..n]);
        at += n;
    }
    if had == PIECE {
        sys::will_need(&range.file, range.offset.saturating_add(range.len), PIECE as u64);
    }
    (had, errno)
}
