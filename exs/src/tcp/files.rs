//! Files as the source of a WRITE on a connection with CRC.
//!
//! Without CRC the engine itself has sendfile(2) put the file's bytes between its
//! headers. With CRC every byte must be seen before its FPDU ends, so the file is
//! read ahead into a few buffers of the driver's, and each buffer becomes a WRITE
//! of its own: to the peer a WRITE in pieces is the same WRITE (RFC 5040 section
//! 5.2: the receiver's consumer learns of neither). Meanwhile what is posted later
//! waits here, so that the order of the queue is kept.
//!
//! What was read and does not leave keeps its buffer, and peers that do not read can keep
//! all that there are. So nobody waits for one: a connection that finds none, and has nothing
//! under way, goes on with a small buffer of its own. And none is filled while its
//! connection cannot send.

use std::collections::VecDeque;
use std::sync::Arc;

use super::SoftRnic;
use super::qp::{Conn, flushed};
use crate::iwarp::{Inline, TxWr};
use crate::mem::{AccessFault, Key, MAX_SGE, Region, Segment, Sgl};
use crate::rnic::{Disconnect, FileRange, QpState, RnicError, SendOp, Wc, WcOp, WcStatus};
use crate::sys;

/// Bytes read ahead at a time.
const BUFFER: usize = 256 << 10;
/// Buffers that one file WR may have under way: one is sent while one is read.
const AHEAD: usize = 2;
/// Buffers of all connections together (8 MiB).
const POOL: usize = 32;
/// Once so many are in use, nobody has more than one.
const PLENTY: usize = POOL / 2;
/// Bytes of the buffer that a connection has of its own if it finds none.
const SMALL: usize = 16 << 10;

/// The buffers that files are read into.
#[derive(Default)]
pub(super) struct FilePool {
    free: Vec<Arc<Region>>,
    made: usize,
}

impl FilePool {
    /// A buffer for a connection that has `held` of them already.
    fn take(&mut self, held: usize) -> Option<Arc<Region>> {
        if held > 0 && self.made - self.free.len() >= PLENTY {
            return None;
        }
        if let Some(region) = self.free.pop() {
            return Some(region);
        }
        if self.made == POOL {
            return None;
        }
        self.made += 1;
        Some(Region::from_vec(vec![0; BUFFER]))
    }

    /// Takes back all buffers of a queue pair that is no more.
    pub(super) fn give_back_all(&mut self, files: FileQueue) {
        let buffers = files.job.into_iter().flat_map(|j| j.under_way).flatten();
        self.free.extend(buffers.filter(|region| region.len() == BUFFER));
    }
}

/// The send WRs of a queue pair from the first with a file on.
#[derive(Default)]
pub(super) struct FileQueue {
    job: Option<Job>,
    held: VecDeque<TxWr>,
}

/// A file WR that is being carried out.
struct Job {
    wr_id: u64,
    signaled: bool,
    raddr: u64,
    rkey: Key,
    /// What goes before the file.
    first: Option<(Inline, Sgl, [Key; MAX_SGE])>,
    file: FileRange,
    /// Bytes of `file` handed on, and how many of them were the file's.
    done: u64,
    real: u64,
    /// Bytes that went before the file.
    lead: u64,
    /// Marks this job's completions. Drawn at random: no WR posted before has it
    /// (but by a chance of one in 2^64), and those posted later wait.
    cookie: u64,
    /// The pieces under way, each with its buffer if it has one.
    under_way: VecDeque<Option<Arc<Region>>>,
    /// A buffer of its own that is not under way.
    small: Option<Arc<Region>>,
    /// A piece that the engine's queue had no place for yet.
    parked: Option<TxWr>,
    errno: Option<i32>,
    failed: Option<WcStatus>,
}

impl Job {
    /// The job of a WRITE with a file; `None` for any other WR.
    fn new(wr: TxWr, cookie: u64) -> Option<Job> {
        let (SendOp::Write { raddr, rkey }, Some(file)) = (wr.op, wr.file) else { return None };
        let lead = wr.head.len() as u64 + wr.sgl.len() as u64;
        // An empty WRITE is a WRITE all the same: it must complete.
        let first = (lead > 0 || file.len == 0).then_some((wr.head, wr.sgl, wr.lkeys));
        Some(Job {
            wr_id: wr.wr_id,
            signaled: wr.signaled,
            raddr,
            rkey,
            first,
            file,
            done: 0,
            real: 0,
            lead,
            cookie,
            under_way: VecDeque::new(),
            small: None,
            parked: None,
            errno: None,
            failed: None,
        })
    }

    fn left(&self) -> u64 {
        self.file.len - self.done
    }

    fn finished(&self) -> bool {
        self.under_way.is_empty()
            && (self.failed.is_some() || (self.first.is_none() && self.left() == 0))
    }

    /// A buffer for the next piece, if it may have one now: it always may if it has none.
    fn buffer(&mut self, pool: &mut FilePool) -> Option<Arc<Region>> {
        let held = self.under_way.len();
        pool.take(held).or_else(|| {
            let small = || Region::from_vec(vec![0; SMALL]);
            (held == 0).then(|| self.small.take().unwrap_or_else(small))
        })
    }

    /// A piece has left: its buffer is free.
    fn free(&mut self, region: Arc<Region>, pool: &mut FilePool) {
        match region.len() {
            BUFFER => pool.free.push(region),
            _ => self.small = Some(region),
        }
    }

    /// The next piece; `None` if there is no buffer for it.
    fn piece(&mut self, pool: &mut FilePool) -> Option<TxWr> {
        let raddr = self.raddr;
        let (head, sgl, lkeys) = match self.first.take() {
            Some(first) => {
                self.raddr = raddr.wrapping_add(self.lead);
                self.under_way.push_back(None);
                first
            }
            None => {
                let region = self.buffer(pool)?;
                let len = usize::try_from(self.left()).unwrap_or(BUFFER).min(region.len());
                let mut sgl = Sgl::new();
                let segment = region.segment(0, len).expect("the buffer has that size");
                self.fill(&segment);
                let pushed = sgl.push(segment);
                debug_assert!(pushed.is_ok(), "the list is empty");
                self.done += len as u64;
                // Sums of a peer's address wrap at the peer, which refuses them.
                self.raddr = raddr.wrapping_add(len as u64);
                self.under_way.push_back(Some(region));
                (Inline::EMPTY, sgl, [0; MAX_SGE])
            }
        };
        let op = SendOp::Write { raddr, rkey: self.rkey };
        Some(TxWr { wr_id: self.cookie, op, head, sgl, lkeys, file: None, signaled: true })
    }

    /// Reads the next bytes of the file; what is missing becomes zeros.
    fn fill(&mut self, segment: &Segment) {
        let (len, mut have) = (segment.len(), 0);
        // Once the file has ended, bytes that appear later do not count.
        while have < len && self.errno.is_none() && self.real == self.done + have as u64 {
            let at = self.file.offset.saturating_add(self.real);
            match sys::read_at(&self.file.file, at, segment.io_vec_mut(have, len - have)) {
                Ok(0) => break,
                Ok(n) => {
                    have += n;
                    self.real += n as u64;
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
    /// Puts a WR into the file queue of a QP.
    pub(super) fn hold(&mut self, qp: u32, wr: TxWr) -> Result<(), RnicError> {
        let pair = self.qps.get_mut(qp)?;
        let (depth, files) = (pair.attr.max_send_wr, pair.files.get_or_insert_default());
        if files.held.len() >= depth {
            return Err(RnicError::QueueFull { what: "send queue", depth });
        }
        files.held.push_back(wr);
        Ok(())
    }

    /// Hands the engine what it can take of the file queue. True if anything went.
    pub(super) fn feed_files(&mut self, qp: u32) -> bool {
        let mut fed = false;
        while self.feed_one(qp) {
            fed = true;
        }
        fed
    }

    fn feed_one(&mut self, qp: u32) -> bool {
        let Ok(pair) = self.qps.get_mut(qp) else { return false };
        let (Some(files), Conn::Link(link)) = (&mut pair.files, pair.conn) else { return false };
        let Ok(link) = self.links.get_mut(link) else { return false };
        if link.engine.state() != QpState::Rts {
            return false;
        }
        // It was rung for these WRs when they came here.
        link.rung = true;
        if let Some(job) = &mut files.job {
            let more = job.failed.is_none() && (job.first.is_some() || job.left() > 0);
            // It goes on when there is room in the socket, of which the reactor tells.
            let may = more && link.writable && job.under_way.len() < AHEAD;
            if job.parked.is_none() && !may {
                return false;
            }
            let Some(piece) = job.parked.take().or_else(|| job.piece(&mut self.file_pool)) else {
                return false;
            };
            // The engine's queue may be full of WRs posted before: try again later.
            let refused = link.engine.post_send(piece.clone()).is_err();
            job.parked = refused.then_some(piece);
            return !refused;
        }
        let Some(wr) = files.held.front() else {
            pair.files = None;
            // An orderly disconnect that waited for this moment.
            if std::mem::take(&mut pair.closing) {
                link.engine.disconnect(Disconnect::Orderly);
            }
            return false;
        };
        // Its keys were valid when it was posted, but it has waited since.
        if let Some(&key) = wr.lkeys.iter().find(|k| **k != 0 && self.keys.get(**k).is_none()) {
            let fault = AccessFault::InvalidKey { key };
            let failed = held_wc(qp, wr, WcStatus::LocalProtection(fault));
            files.held.pop_front();
            // As in verbs: the queue pair is in error, all else is flushed.
            link.engine.disconnect(Disconnect::Abort);
            self.complete(failed);
            return false;
        }
        if wr.file.is_none() {
            let fed = link.engine.post_send(wr.clone()).is_ok();
            if fed {
                files.held.pop_front();
            }
            return fed;
        }
        let cookie = u64::from(self.random.next_u32()) << 32 | u64::from(self.random.next_u32());
        files.job = files.held.pop_front().and_then(|wr| Job::new(wr, cookie));
        true
    }

    /// Takes a completion that belongs to a file job; gives back any other.
    pub(super) fn file_wc(&mut self, wc: Wc) -> Option<Wc> {
        let qp = wc.qp.0;
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.files.as_mut()) else {
            return Some(wc);
        };
        match &mut files.job {
            Some(job) if wc.op == WcOp::Write && wc.wr_id == job.cookie => {
                if let Some(region) = job.under_way.pop_front().flatten() {
                    job.free(region, &mut self.file_pool);
                }
                if wc.status != WcStatus::Success && job.failed.is_none() {
                    job.failed = Some(wc.status);
                }
            }
            _ => return Some(wc),
        }
        self.end_job(qp);
        None
    }

    /// Completes a job that is through.
    pub(super) fn end_job(&mut self, qp: u32) {
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.files.as_mut()) else { return };
        let Some(job) = files.job.take_if(|j| j.finished()) else { return };
        let status = match (job.failed, job.errno) {
            (Some(status), _) => status,
            (None, Some(errno)) => WcStatus::FileRead(errno),
            (None, None) => WcStatus::Success,
        };
        if job.signaled || status != WcStatus::Success {
            let byte_len = job.lead + job.real;
            self.complete(Wc { status, byte_len, ..flushed(qp, job.wr_id, WcOp::Write) });
        }
    }

    /// Flushes the file queue of a QP whose engine has ended.
    pub(super) fn flush_files(&mut self, qp: u32) {
        let Some(files) = self.qps.get_mut(qp).ok().and_then(|q| q.files.take()) else { return };
        if let Some(job) = &files.job {
            self.complete(flushed(qp, job.wr_id, WcOp::Write));
        }
        for wr in &files.held {
            self.complete(held_wc(qp, wr, WcStatus::Flushed));
        }
        self.file_pool.give_back_all(*files);
    }
}

/// The completion of a WR that never left the file queue.
fn held_wc(qp: u32, wr: &TxWr, status: WcStatus) -> Wc {
    let op = match wr.op {
        SendOp::Send { .. } => WcOp::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOp::Write,
        SendOp::Read { .. } => WcOp::Read,
    };
    Wc { status, ..flushed(qp, wr.wr_id, op) }
}
