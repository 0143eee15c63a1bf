//! Files as a source on devices that cannot read them (`Caps::file_source`).
//!
//! A WRITE from a file becomes one from memory: its bytes are read into one of a few
//! registered pieces first, and its completion says, as the trait wants it, how many
//! of them the file had. The session does not notice, except that it asks
//! beforehand how much may go; when all pieces are in use it is told 0, and is driven
//! again as soon as one is free.
//!
//! Each protection domain has pieces of its own. Bytes that are in memory are read where the engine runs. That is bounded by a piece,
//! and the kernel is asked at the same time to have the piece after it ready in memory. Bytes that are not are fetched by other
//! threads, on any device (`sys::Staging`), and the connection waits meanwhile as for a piece.

use std::collections::{HashMap, VecDeque};

use super::device::{Device, map_shared};
use super::{Engine, WcStatus};
use crate::mem::{Access, Segment};
use crate::rnic::{FileRange, Qp, RnicError, SendWr, Sge, Wc};
use crate::session::Buf;
use crate::sys::{self, FetchDone, FileBytes};

/// Bytes of a piece: enough to be worth a WRITE, little enough to be read at once.
const PIECE: usize = 512 << 10;
/// Pieces of a device.
const PIECES: usize = 8;

/// The pieces of a device.
#[derive(Default)]
pub(super) struct FilePool {
    /// Free ones, and how many there are in all.
    free: Vec<Buf>,
    count: usize,
    /// WRITEs under way.
    under_way: HashMap<(Qp, u64), UnderWay>,
    /// Connections that wait for a piece, the longest-waiting first.
    waiting: VecDeque<Qp>,
}

/// A WRITE of bytes that were a file's.
struct UnderWay {
    piece: Buf,
    had: usize,
    errno: Option<i32>,
}

impl FilePool {
    /// All pieces, when nothing is under way any more.
    pub(super) fn into_pieces(self) -> impl Iterator<Item = Buf> {
        self.free.into_iter()
    }
}

impl Device {
    /// Bytes of a file that the connection may write now. 0: it will be driven again
    /// when there is room.
    pub(super) fn file_room(&mut self, domain: u32, qp: Qp, range: &FileRange) -> u64 {
        let caps = self.rnic.caps();
        let most = caps.max_msg;
        let by_itself = caps.file_source;
        let most = match self.staging.find(qp, range) {
            FileBytes::Away => return 0,
            FileBytes::Staged(Ok((copy, _))) => most.min(copy.len),
            // If there is no copy the post fails, and says why.
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
        // If there is not even one, the post is to fail, and say why.
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

    /// Posts a WRITE from a file, or from the copy of it that was fetched.
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
            // `file_room` has said so.
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

    /// Posts it by way of a piece.
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

    /// Says in a completion what became of the file, if it is of a WRITE from one.
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

    /// A queue pair is gone, and its WRITEs with it.
    pub(super) fn drop_files(&mut self, domain: u32, qp: Qp) {
        self.staging.forget(qp);
        self.short_files.retain(|(q, _), _| *q != qp);
        let Ok((_, o)) = self.pools(domain) else { return };
        let gone = o.files.under_way.extract_if(|(q, _), _| *q == qp);
        o.files.free.extend(gone.map(|(_, ended)| ended.piece));
        o.files.waiting.retain(|q| *q != qp);
    }

    /// Those of one domain that wait for a piece, if one is free there.
    fn file_waiters(&mut self) -> VecDeque<Qp> {
        let mut files = self.all_pools().map(|o| &mut o.files);
        let found = files.find(|f| !f.free.is_empty() && !f.waiting.is_empty());
        found.map(|f| std::mem::take(&mut f.waiting)).unwrap_or_default()
    }
}

impl Engine {
    /// What was fetched.
    pub(super) fn take_fetched(&mut self, device: usize, came: FetchDone<Qp>) {
        let qp = came.0;
        let Some(d) = self.devices.get_mut(device) else { return };
        if d.staging.arrived(came)
            && let Some(&index) = self.by_qp.get(&(device, qp))
        {
            self.mark(index);
        }
    }

    /// Drives the connections that wait for a piece, if one is free. The first that
    /// still wants it has it, and the others wait again, in the same order.
    pub(super) fn wake_file_waiters(&mut self, device: usize) {
        loop {
            let waiters = self.devices[device].file_waiters();
            if waiters.is_empty() {
                return;
            }
            for qp in waiters {
                if let Some(&index) = self.by_qp.get(&(device, qp)) {
                    self.mark(index);
                }
            }
        }
    }
}

/// Reads the range into `seg`; what is missing becomes zeros. Bytes read, and errno.
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
