//! Files as the source of a WRITE on a connection with CRC.
//!
//! Without CRC the engine itself has sendfile(2) put the file's bytes between its headers. With CRC
//! every byte must be seen before its FPDU ends. So the file is read ahead into a few buffers of
//! the driver, and each buffer becomes a WRITE of its own. To the peer, a WRITE in pieces is the
//! same WRITE (RFC 5040 section 5.2: the receiver's consumer sees neither). Meanwhile, later
//! WRs wait here, so that the order of the queue is kept.
//!
//! Bytes that were read and cannot leave keep their buffer, and peers that do not read can keep
//! all buffers. So no connection waits for one: a connection that finds no buffer, and has none
//! under way, uses a small buffer of its own. No buffer is filled while its connection cannot
//! send.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SoftRnic;
use crate::driver::{Conn, flushed};
use crate::iwarp::{Inline, TxWr};
use crate::mem::{AccessFault, Key, MAX_SGE, Region, Segment, Sgl};
use crate::rnic::{Disconnect, FileRange, QpState, RnicError, SendOp, Wc, WcOp, WcStatus};
use crate::sys;

/// Bytes of a buffer.
const BUFFER: usize = 256 << 10;
/// Buffers that one WR may have under way: one is sent while the next is read.
const MAX_UNDER_WAY: usize = 2;
/// Buffers of all connections together (8 MiB).
const MAX_BUFFERS: usize = 32;
/// Buffers in use from which on no connection gets a second one.
const SCARCE_FROM: usize = MAX_BUFFERS / 2;
/// Bytes of a connection's own buffer, for when it finds no other.
const SMALL_BUFFER: usize = 16 << 10;

/// The buffers that files are read into.
#[derive(Default)]
pub(super) struct FileBufferPool {
    free: Vec<Arc<Region>>,
    /// Buffers that exist.
    made: usize,
}

impl FileBufferPool {
    /// A buffer for a connection that has `held` of them already; None if it must wait.
    fn take(&mut self, held: usize) -> Option<Arc<Region>> {
        if held > 0 && self.made - self.free.len() >= SCARCE_FROM {
            return None;
        }
        if let Some(region) = self.free.pop() {
            return Some(region);
        }
        if self.made == MAX_BUFFERS {
            return None;
        }
        self.made += 1;
        Some(Region::from_vec(vec![0; BUFFER]))
    }

    /// Takes back all buffers of a queue pair that is gone.
    pub(super) fn take_back(&mut self, files: FileQueue) {
        let buffers = files.job.into_iter().flat_map(|j| j.under_way).flatten();
        self.free.extend(buffers.filter(|region| region.len() == BUFFER));
    }
}

/// The send WRs of a queue pair, from the first one with a file on.
#[derive(Default)]
pub(super) struct FileQueue {
    job: Option<FileWrite>,
    waiting: VecDeque<TxWr>,
}

/// A WR with a file that is being carried out.
struct FileWrite {
    wr_id: u64,
    signaled: bool,
    raddr: u64,
    rkey: Key,
    /// The bytes before the file; None once they were handed on, or if there are none.
    head: Option<(Inline, Sgl, [Key; MAX_SGE])>,
    file: FileRange,
    /// Bytes of `file` handed to the engine.
    done: u64,
    /// Bytes of `done` that the file had; zeros follow them.
    file_bytes: u64,
    /// Bytes before the file.
    head_len: u64,
    /// The `wr_id` of this WR's pieces. Random, so no earlier WR has it (but for a chance of one in
    /// 2^64), and later WRs wait.
    cookie: u64,
    /// The pieces under way; None: a piece without a buffer.
    under_way: VecDeque<Option<Arc<Region>>>,
    /// The connection's own buffer, if it is not under way.
    small: Option<Arc<Region>>,
    /// A piece that the engine's queue had no room for yet.
    unposted: Option<TxWr>,
    errno: Option<i32>,
    failed: Option<WcStatus>,
}

impl FileWrite {
    /// A WRITE with a file, ready to be carried out. None for any other WR.
    fn new(wr: TxWr, cookie: u64) -> Option<FileWrite> {
        let (SendOp::Write { raddr, rkey }, Some(file)) = (wr.op, wr.file) else { return None };
        let head_len = wr.head.len() as u64 + wr.sgl.len() as u64;
        // An empty WRITE must complete like any other.
        let head = (head_len > 0 || file.len == 0).then_some((wr.head, wr.sgl, wr.lkeys));
        Some(FileWrite {
            wr_id: wr.wr_id,
            signaled: wr.signaled,
            raddr,
            rkey,
            head,
            file,
            done: 0,
            file_bytes: 0,
            head_len,
            cookie,
            under_way: VecDeque::new(),
            small: None,
            unposted: None,
            errno: None,
            failed: None,
        })
    }

    fn bytes_left(&self) -> u64 {
        self.file.len - self.done
    }

    fn is_finished(&self) -> bool {
        self.under_way.is_empty()
            && (self.failed.is_some() || (self.head.is_none() && self.bytes_left() == 0))
    }

    /// A buffer for the next piece. A connection that has none under way always gets one.
    fn take_buffer(&mut self, pool: &mut FileBufferPool) -> Option<Arc<Region>> {
        let held = self.under_way.len();
        pool.take(held).or_else(|| {
            let small = || Region::from_vec(vec![0; SMALL_BUFFER]);
            (held == 0).then(|| self.small.take().unwrap_or_else(small))
        })
    }

    /// Frees the buffer of a piece that has left.
    fn free(&mut self, region: Arc<Region>, pool: &mut FileBufferPool) {
        match region.len() {
            BUFFER => pool.free.push(region),
            _ => self.small = Some(region),
        }
    }

    /// The next piece. None if there is no buffer for it.
    fn next_piece(&mut self, pool: &mut FileBufferPool) -> Option<TxWr> {
        let raddr = self.raddr;
        let (head, sgl, lkeys) = match self.head.take() {
            Some(first) => {
                self.raddr = raddr.wrapping_add(self.head_len);
                self.under_way.push_back(None);
                first
            }
            None => {
                let region = self.take_buffer(pool)?;
                let len = usize::try_from(self.bytes_left()).unwrap_or(BUFFER).min(region.len());
                let mut sgl = Sgl::new();
                let segment = region.segment(0, len).expect("the buffer has that size");
                self.fill(&segment);
                let pushed = sgl.push(segment);
                debug_assert!(pushed.is_ok(), "the list is empty");
                self.done += len as u64;
                // Sums of a peer's address wrap; the peer refuses such an address.
                self.raddr = raddr.wrapping_add(len as u64);
                self.under_way.push_back(Some(region));
                (Inline::EMPTY, sgl, [0; MAX_SGE])
            }
        };
        let op = SendOp::Write { raddr, rkey: self.rkey };
        Some(TxWr { wr_id: self.cookie, op, head, sgl, lkeys, file: None, signaled: true })
    }

    /// Reads the next bytes of the file. Bytes that it lacks are zeros.
    fn fill(&mut self, segment: &Segment) {
        let (len, mut have) = (segment.len(), 0);
        // Once the file has ended, bytes that are appended later do not count.
        while have < len && self.errno.is_none() && self.file_bytes == self.done + have as u64 {
            let at = self.file.offset.saturating_add(self.file_bytes);
            match sys::read_at(&self.file.file, at, segment.io_vec_mut(have, len - have)) {
                Ok(0) => break,
                Ok(n) => {
                    have += n;
                    self.file_bytes += n as u64;
                }
                Err(e) => self.errno = Some(e.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        const ZEROS: [u8; 4096] = [0; 4096];
        while have < len {
            let n = (len - have).min(ZEROS.len());
            segment.write_at(have, &ZEROS[..n]);
            have += n;
        }
    }
}

impl SoftRnic {
    /// Appends a WR to the file queue of a QP.
    pub(super) fn queue_behind_file(&mut self, qp: u32, wr: TxWr) -> Result<(), RnicError> {
        let pair = self.qps.get_mut(qp)?;
        let (depth, files) = (pair.attr.max_send_wr, pair.own.files.get_or_insert_default());
        if files.waiting.len() >= depth {
            return Err(RnicError::QueueFull { what: "send queue", depth });
        }
        files.waiting.push_back(wr);
        Ok(())
    }

    /// Hands the engine what it can take of the file queue. True if it took anything.
    pub(super) fn submit_files(&mut self, qp: u32) -> bool {
        let mut fed = false;
        while self.submit_one(qp) {
            fed = true;
        }
        fed
    }

    fn submit_one(&mut self, qp: u32) -> bool {
        let Ok(pair) = self.qps.get_mut(qp) else { return false };
        let (Some(files), Conn::Link(link)) = (&mut pair.own.files, pair.conn) else {
            return false;
        };
        let Ok(link) = self.links.get_mut(link) else { return false };
        if link.engine.state() != QpState::Rts {
            return false;
        }
        // The doorbell was rung for these WRs when they came here.
        link.outbound.doorbell_rung = true;
        if let Some(job) = &mut files.job {
            let more = job.failed.is_none() && (job.head.is_some() || job.bytes_left() > 0);
            // It goes on when the socket has room, which the reactor reports.
            let may = more && link.ready.writable && job.under_way.len() < MAX_UNDER_WAY;
            if job.unposted.is_none() && !may {
                return false;
            }
            let Some(piece) =
                job.unposted.take().or_else(|| job.next_piece(&mut self.parts.file_pool))
            else {
                return false;
            };
            // The engine's queue may be full of earlier WRs: tried again later.
            let refused = link.engine.post_send(piece.clone()).is_err();
            job.unposted = refused.then_some(piece);
            return !refused;
        }
        let Some(wr) = files.waiting.front() else {
            pair.own.files = None;
            // An orderly disconnect may have waited for this moment.
            if std::mem::take(&mut pair.own.closing) {
                link.engine.disconnect(Disconnect::Orderly);
            }
            return false;
        };
        // Its keys were valid when it was posted, but it has waited since.
        if let Some(&key) =
            wr.lkeys.iter().find(|k| **k != 0 && self.memory.keys.get(**k).is_none())
        {
            let fault = AccessFault::InvalidKey { key };
            let failed = waiting_wc(qp, wr, WcStatus::LocalProtection(fault));
            files.waiting.pop_front();
            // As in verbs: the queue pair is in error now, and everything else is flushed.
            link.engine.disconnect(Disconnect::Abort);
            self.complete(failed);
            return false;
        }
        if wr.file.is_none() {
            let fed = link.engine.post_send(wr.clone()).is_ok();
            if fed {
                files.waiting.pop_front();
            }
            return fed;
        }
        let cookie = self.memory.random_u64();
        files.job = files.waiting.pop_front().and_then(|wr| FileWrite::new(wr, cookie));
        true
    }

    /// Takes a completion that belongs to a piece. Returns any other.
    pub(super) fn file_wc(&mut self, wc: Wc) -> Option<Wc> {
        let qp = wc.qp.0;
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.own.files.as_mut()) else {
            return Some(wc);
        };
        match &mut files.job {
            Some(job) if wc.op == WcOp::Write && wc.wr_id == job.cookie => {
                if let Some(region) = job.under_way.pop_front().flatten() {
                    job.free(region, &mut self.parts.file_pool);
                }
                if wc.status != WcStatus::Success && job.failed.is_none() {
                    job.failed = Some(wc.status);
                }
            }
            _ => return Some(wc),
        }
        self.complete_file_write(qp);
        None
    }

    /// Completes a WR with a file once all of its pieces are complete.
    pub(super) fn complete_file_write(&mut self, qp: u32) {
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.own.files.as_mut()) else {
            return;
        };
        let Some(job) = files.job.take_if(|j| j.is_finished()) else { return };
        let status = match (job.failed, job.errno) {
            (Some(status), _) => status,
            (None, Some(errno)) => WcStatus::FileRead(errno),
            (None, None) => WcStatus::Success,
        };
        if job.signaled || status != WcStatus::Success {
            let byte_len = job.head_len + job.file_bytes;
            self.complete(Wc { status, byte_len, ..flushed(qp, job.wr_id, WcOp::Write) });
        }
    }

    /// Flushes the file queue of a QP whose engine has ended.
    pub(super) fn flush_files(&mut self, qp: u32) {
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.own.files.take()) else {
            return;
        };
        if let Some(job) = &files.job {
            self.complete(flushed(qp, job.wr_id, WcOp::Write));
        }
        for wr in &files.waiting {
            self.complete(waiting_wc(qp, wr, WcStatus::Flushed));
        }
        self.parts.file_pool.take_back(*files);
    }
}

/// The completion of a WR that never left the file queue.
fn waiting_wc(qp: u32, wr: &TxWr, status: WcStatus) -> Wc {
    Wc { status, ..flushed(qp, wr.wr_id, wr.op.wc_op()) }
}
