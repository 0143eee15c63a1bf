//! The send queue: WRs from posting to completion.
//!
//! WRs are built, sent and completed in the order of posting. The queue knows three positions:
//! complete WRs have left the queue, WRs before `next` were put into batches, and the rest waits.
//! A WR is done when the last byte of its last FPDU went to TCP; a READ or an atomic operation is
//! done when its response has arrived. It completes when all WRs before it have, so a WRITE behind a
//! READ waits for the READ's response. What is said of READs below holds for atomic operations too,
//! unless it concerns the sink.

use std::collections::VecDeque;

use super::types::TxWr;
use crate::mem::Key;
use crate::rnic::{Qp, RnicError, SendOp, Wc, WcOp, WcStatus};

/// A WR with its progress.
#[derive(Debug)]
pub(super) struct SendEntry {
    pub(super) wr: TxWr,
    /// Length of the payload in bytes.
    pub(super) len: u64,
    /// Payload bytes already put into FPDUs.
    pub(super) built: u64,
    /// Position in the sent stream at which the last FPDU ends. `u64::MAX` until it is built.
    end: u64,
    /// READ: bytes that came back, and whether the last one did.
    pub(super) got: u32,
    pub(super) done: bool,
    /// MSN of a READ request, by which a TERMINATE names it. 0 until it is built.
    msn: u32,
    /// File bytes that left. After an early end or an error the rest is zeros.
    file_sent: u64,
    file_over: bool,
    /// The error that ended the file. None if there was none.
    file_errno: Option<i32>,
}

impl SendEntry {
    pub(super) fn is_read(&self) -> bool {
        matches!(self.wr.op, SendOp::Read { .. })
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.wr.op, SendOp::Atomic { .. })
    }

    /// Returns true if the peer answers it: a READ or an atomic operation.
    fn is_answered(&self) -> bool {
        has_response(self.wr.op)
    }

    /// Returns true if its request has this MSN.
    pub(super) fn is_numbered(&self, msn: u32) -> bool {
        self.msn == msn
    }

    /// Returns true if the file yields no more bytes.
    pub(super) fn file_over(&self) -> bool {
        self.file_over
    }

    fn op(&self) -> WcOp {
        self.wr.op.wc_op()
    }

    fn wc(&self, qp: Qp, status: WcStatus) -> Wc {
        let file = self.wr.file.as_ref().map_or(0, |f| f.len);
        let byte_len = match status {
            WcStatus::Success | WcStatus::FileRead(_) => self.len - file + self.file_sent,
            _ => 0,
        };
        Wc {
            wr_id: self.wr.wr_id,
            qp,
            status,
            op: self.op(),
            byte_len,
            imm: None,
            invalidated: None,
            solicited: false,
        }
    }
}

/// Returns true if the peer answers such a request.
fn has_response(op: SendOp) -> bool {
    matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. })
}

/// WRs up to which the queue grows by one at a time. An entry takes more than half a KiB, and a
/// connection that carries little seldom has more than two of them.
const SLOW_GROWTH: usize = 4;

/// The queue. The module's head explains it.
#[derive(Debug, Default)]
pub(super) struct WrQueue {
    queue: VecDeque<SendEntry>,
    /// Index of the first WR that is not wholly built.
    next: usize,
    /// Serial number of the front. WRs are numbered from 0.
    base: u64,
    /// READs that are built and whose response is not complete.
    reads: u32,
    /// Number of READs in the queue.
    read_wrs: usize,
}

impl WrQueue {
    /// Appends a WR that `check` has passed.
    pub(super) fn push(&mut self, wr: TxWr, len: u64) {
        self.read_wrs += usize::from(has_response(wr.op));
        if self.queue.len() == self.queue.capacity() && self.queue.len() < SLOW_GROWTH {
            self.queue.reserve_exact(1);
        }
        self.queue.push_back(SendEntry {
            wr,
            len,
            built: 0,
            end: u64::MAX,
            got: 0,
            done: false,
            msn: 0,
            file_sent: 0,
            file_over: false,
            file_errno: None,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Entries for which it has room, beside those that it has.
    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.queue.capacity() - self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns true if a WR is not wholly built.
    pub(super) fn has_unbuilt(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Returns the next WR to build. None if there is none, or if it is a READ that must wait for
    /// the response of an earlier one (ORD). All WRs behind such a READ wait with it, as in
    /// verbs.
    pub(super) fn current(&mut self, ord: u32) -> Option<(u64, &mut SendEntry)> {
        let serial = self.base + self.next as u64;
        let stalled = self.reads >= ord;
        let entry = self.queue.get_mut(self.next)?;
        if stalled && entry.is_answered() { None } else { Some((serial, entry)) }
    }

    /// Records that the current WR is wholly built, with its last byte at `end` of the stream.
    pub(super) fn built(&mut self, end: u64, msn: u32) {
        if let Some(entry) = self.queue.get_mut(self.next) {
            entry.end = end;
            entry.msn = msn;
            self.reads += u32::from(entry.is_answered());
            self.next += 1;
        }
    }

    /// Returns the READ or atomic operation whose response is awaited next. Its request was sent, so
    /// all WRs before it have completed, and it is the front.
    pub(super) fn awaited(&mut self, sent: u64) -> Option<&mut SendEntry> {
        self.queue.front_mut().filter(|e| e.is_answered() && e.end <= sent && !e.done)
    }

    /// As `awaited`, for a READ.
    pub(super) fn awaited_read(&mut self, sent: u64) -> Option<&mut SendEntry> {
        self.awaited(sent).filter(|e| e.is_read())
    }

    /// As `awaited_read`, without the check that its request was sent.
    pub(super) fn awaited_sink(&self) -> Option<&SendEntry> {
        self.queue.front().filter(|e| e.is_read() && !e.done)
    }

    /// Records that the awaited response is complete.
    pub(super) fn response_done(&mut self) {
        if let Some(entry) = self.queue.front_mut() {
            entry.done = true;
            self.reads = self.reads.saturating_sub(1);
        }
    }

    /// Returns true if a READ in the queue needs the peer's response.
    pub(super) fn has_reads(&self) -> bool {
        self.read_wrs > 0 && self.queue.iter().any(|e| e.is_answered() && !e.done)
    }

    /// Returns true if the sink of a READ is this key.
    pub(super) fn has_sink(&self, key: Key) -> bool {
        self.read_wrs > 0 && self.queue.iter().any(|e| e.is_read() && e.wr.lkeys[0] == key)
    }

    /// Completes all WRs from the front that can complete, `sent` bytes having left.
    pub(super) fn complete(&mut self, sent: u64, qp: Qp, wcs: &mut Vec<Wc>) {
        while let Some(entry) = self.queue.front() {
            if entry.end > sent || (entry.is_answered() && !entry.done) {
                break;
            }
            let status = entry.file_errno.map_or(WcStatus::Success, WcStatus::FileRead);
            if entry.wr.signaled || status != WcStatus::Success {
                wcs.push(entry.wc(qp, status));
            }
            self.read_wrs -= usize::from(entry.is_answered());
            self.queue.pop_front();
            self.base += 1;
            self.next = self.next.saturating_sub(1);
        }
    }

    /// Ends every WR. The WR at `offender` and those that `own` names get the status given for
    /// them; the others are flushed.
    pub(super) fn flush(
        &mut self,
        qp: Qp,
        offender: Option<(usize, WcStatus)>,
        own: &dyn Fn(&[Key]) -> Option<WcStatus>,
        wcs: &mut Vec<Wc>,
    ) {
        for (i, entry) in self.queue.drain(..).enumerate() {
            let named = offender.filter(|(at, _)| *at == i).map(|(_, status)| status);
            let status = named.or_else(|| own(&entry.wr.lkeys)).unwrap_or(WcStatus::Flushed);
            wcs.push(entry.wc(qp, status));
            self.base += 1;
        }
        (self.next, self.reads, self.read_wrs) = (0, 0, 0);
    }

    /// Returns the oldest WR of this kind of which a byte may have left. For READs and atomic
    /// operations, the one with this MSN if it is given.
    pub(super) fn find(&self, op: WcOp, msn: Option<u32>) -> Option<usize> {
        self.queue
            .iter()
            .take(self.next + 1)
            .position(|e| e.op() == op && !e.done && msn.is_none_or(|msn| e.msn == msn))
    }

    /// Returns true if a WR uses this key for its local memory.
    pub(super) fn uses(&self, lkey: Key) -> bool {
        self.queue.iter().any(|e| e.wr.lkeys.contains(&lkey))
    }

    fn by_serial(&mut self, serial: u64) -> Option<&mut SendEntry> {
        let index = usize::try_from(serial.checked_sub(self.base)?).ok()?;
        self.queue.get_mut(index)
    }

    /// Records that file bytes of a WR left.
    pub(super) fn file_sent(&mut self, serial: u64, bytes: usize) {
        if let Some(entry) = self.by_serial(serial) {
            entry.file_sent += bytes as u64;
        }
    }

    /// Records that a WR's file yields no more bytes.
    pub(super) fn file_ended(&mut self, serial: u64, errno: Option<i32>) {
        if let Some(entry) = self.by_serial(serial) {
            entry.file_over = true;
            entry.file_errno = errno;
        }
    }

    /// Frees spare memory if the queue is empty.
    pub(super) fn trim(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to_fit();
        }
    }
}

/// Checks a WR, as far as the connection's state does not matter. Returns the payload's length.
pub(super) fn check(wr: &TxWr, ord: u32, crc: bool) -> Result<u64, RnicError> {
    let file = wr.file.as_ref().map_or(0, |f| f.len);
    let limit = |asked| RnicError::Limit {
        what: "bytes of one work request",
        asked,
        limit: u64::from(u32::MAX),
    };
    let len = (wr.head.len() as u64 + wr.sgl.len() as u64)
        .checked_add(file)
        .ok_or_else(|| limit(u64::MAX))?;
    // DDP's message offset and RDMAP's read size have 32 bits. Tagged offsets have 64.
    let narrow = !matches!(wr.op, SendOp::Write { .. });
    if narrow && len > u64::from(u32::MAX) {
        return Err(limit(len));
    }
    match wr.op {
        SendOp::WriteImm { .. } => return Err(RnicError::Unsupported("WRITE WITH IMMEDIATE")),
        SendOp::Read { .. } | SendOp::Atomic { .. } if ord == 0 => {
            let what = "READs at a time (the peer answers none)";
            return Err(RnicError::Limit { what, asked: 1, limit: 0 });
        }
        SendOp::Read { .. } if wr.sgl.iter().count() > 1 => {
            let asked = wr.sgl.iter().count() as u64;
            return Err(RnicError::Limit { what: "segments of a READ's sink", asked, limit: 1 });
        }
        SendOp::Read { .. } if !wr.head.is_empty() => {
            return Err(RnicError::Unsupported("READ with inline data"));
        }
        SendOp::Read { .. } | SendOp::Send { .. } if wr.file.is_some() => {
            return Err(RnicError::Unsupported("file source for other requests than WRITE"));
        }
        _ => {}
    }
    // sendfile(2) does not show the bytes of the file, so the engine cannot compute their CRC.
    if wr.file.is_some() && crc {
        return Err(RnicError::Unsupported("file source on a connection with CRC"));
    }
    Ok(len)
}
