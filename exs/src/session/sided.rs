//! One-sided operations: the user's READs and WRITEs of the peer's memory, and the
//! windows that let the peer do the same here.

use crate::ids::OpId;
use crate::mem::{Access, Key};
use crate::rnic::siw_quirk::few_across;
use crate::rnic::{SendOp, Sge, WcStatus};

use super::ops::{Side, Sided};
use super::out::Wr;
use super::sendq::WrPurpose;
use super::{Buf, Done, OpError, Port, Session};

/// Segments of one WRITE that are made here.
const SGES: usize = 16;

/// What to post next for an operation.
struct Next {
    op: SendOp,
    sges: [Sge; SGES],
    count: usize,
    len: u64,
    read: bool,
    last: bool,
}

impl Session {
    /// Opens memory to the peer's READs and WRITEs, until `revoke` or the end of the
    /// connection. Hand the key and the buffer's address to the peer.
    pub fn export(
        &mut self,
        port: &mut dyn Port,
        buf: &Buf,
        access: Access,
    ) -> Result<Key, OpError> {
        // The peer need not have spoken yet: only an end, or no queue pair, forbids it.
        if !self.life.is_connected() || self.life.is_over() {
            return Err(self.life.reason().cloned().unwrap_or(OpError::NotConnected));
        }
        let key = port
            .bind(buf.mr, buf.seg.addr(), buf.seg.len() as u64, access)
            .map_err(OpError::LocalMemory)?;
        self.exports.push(key);
        Ok(key)
    }

    /// Closes it again: the peer's next access fails, and its connection with it.
    /// False if the key is no export of this connection (any more).
    pub fn revoke(&mut self, port: &mut dyn Port, key: Key) -> bool {
        let Some(i) = self.exports.iter().position(|k| *k == key) else { return false };
        self.exports.swap_remove(i);
        port.invalidate(key);
        true
    }

    /// Queues a one-sided operation that was checked.
    pub(super) fn queue_sided(&mut self, user: OpId, side: Side, raddr: u64, rkey: Key) {
        let len = match &side {
            Side::Read(buf) => buf.seg.len() as u64,
            Side::Write(iov, _) => iov.len(),
        };
        // What asks for no bytes asks the peer for nothing, where that might be answered
        // wrongly.
        let nothing = len == 0 && self.confirms.by_message;
        self.sided.insert(Sided {
            user,
            side,
            raddr,
            rkey,
            len,
            posted: 0,
            all_posted: nothing,
            in_flight: 0,
            bytes: 0,
            error: None,
            stopped: None,
            unconfirmed: None,
            flushed: false,
        });
    }

    /// Posts what there is room for, in order.
    pub(super) fn drive_sided(&mut self, port: &mut dyn Port) {
        while self.sendq.room() > 0 && self.life.may_talk() {
            let Some(id) = self.sided.find_id(|s| !s.all_posted) else { break };
            let Some(sided) = self.sided.get(id) else { break };
            let caps = port.caps();
            let by_read = !caps.write_acked && !self.confirms.by_message;
            let limit = sided.limit(caps.max_msg.max(1), self.confirms.by_message);
            let next = next(sided, limit, caps.max_sge, by_read);
            if next.read && self.reads >= self.ord {
                break;
            }
            self.post_sided(port, id, &next);
        }
        self.reap_sided();
    }

    fn post_sided(&mut self, port: &mut dyn Port, id: u64, next: &Next) {
        let wr = Wr {
            op: next.op,
            head: &[],
            sges: &next.sges[..next.count],
            file: None,
            inline: false,
            signalled: next.last || next.read,
        };
        let by_message = self.confirms.by_message && !port.caps().write_acked;
        let what = WrPurpose::Sided { op: id, len: next.len, read: next.read };
        let posted = self.post_wr(port, wr, what.into());
        let Some(sided) = self.sided.get_mut(id) else { return };
        if posted {
            sided.in_flight += 1;
            sided.posted += next.len;
            sided.all_posted = next.last;
            self.reads += u32::from(next.read);
            if next.last
                && by_message
                && sided.len > 0
                && matches!(sided.side, Side::Write(_, true))
            {
                sided.unconfirmed = Some(self.confirms.next());
            }
            self.urgent = true;
        } else {
            (sided.all_posted, sided.flushed) = (true, true);
        }
    }

    /// A WR of a one-sided operation is over.
    pub(super) fn sided_retired(&mut self, op: u64, len: u64, read: bool, status: WcStatus) {
        self.reads -= u32::from(read);
        let Some(sided) = self.sided.get_mut(op) else { return };
        sided.in_flight -= 1;
        match status {
            WcStatus::Success => sided.bytes += len,
            WcStatus::Flushed => sided.flushed = true,
            WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation => {
                let (raddr, rkey) = (sided.raddr, sided.rkey);
                sided.error.get_or_insert(OpError::RemoteAccess { raddr, rkey });
            }
            WcStatus::LocalProtection(fault) => {
                sided.error.get_or_insert(OpError::LocalMemory(fault.into()));
            }
            WcStatus::LocalLength | WcStatus::FileRead(_) | WcStatus::Device(_) => {
                sided.flushed = true
            }
        }
        if sided.error.is_some() {
            sided.all_posted = true;
        }
        self.reap_sided();
    }

    /// Ends those that are through, in order of their posting.
    pub(super) fn reap_sided(&mut self) {
        loop {
            let over = self.life.reason().filter(|_| self.life.is_torn()).cloned();
            let found = self.sided.find_id(|s| {
                s.in_flight == 0
                    && (s.error.is_some() && s.all_posted || s.is_through() || over.is_some())
            });
            let Some(id) = found else { break };
            let Some(s) = self.sided.remove(id) else { break };
            // Of a WR that was flushed nothing is known, even if no more were to follow it.
            let end = if s.is_through() { s.stopped } else { over };
            let error = s.error.or(end);
            let count = match s.side {
                Side::Read(_) => &mut self.counters.read_bytes,
                Side::Write(..) => &mut self.counters.write_bytes,
            };
            *count += s.bytes;
            self.counters.one_sided += 1;
            let result = error.map_or(Ok(()), Err);
            self.done.push_back(Done {
                op: s.user,
                bytes: s.bytes,
                total: s.bytes,
                eof: false,
                result,
            });
        }
    }

    /// Cancels one: what is posted runs to its end, but the answer to a CONFIRM, which
    /// touches no memory, is not waited for.
    pub(super) fn cancel_sided(&mut self, id: u64, why: OpError) {
        if let Some(sided) = self.sided.get_mut(id)
            && sided.unconfirmed.is_some()
        {
            sided.stopped.get_or_insert(why.clone());
        }
        self.stop_sided(id, why);
    }

    /// Posts no more of one: what is posted runs to its end.
    pub(super) fn stop_sided(&mut self, id: u64, why: OpError) {
        if let Some(sided) = self.sided.get_mut(id)
            && !sided.all_posted
        {
            sided.all_posted = true;
            sided.stopped = Some(why);
        }
        self.reap_sided();
    }
}

impl Sided {
    /// All that was posted is known to have been done, and nothing more is going to be. (The
    /// user who cancels does not wait for a confirmation: `bytes` says what was written.)
    fn is_through(&self) -> bool {
        let confirmed = self.unconfirmed.is_none() || self.stopped.is_some();
        self.all_posted && !self.flushed && confirmed
    }

    /// Bytes that its next WR may move: as many as one may, and of a READ no few that
    /// the peer would answer wrongly.
    fn limit(&self, max_msg: u64, wrongly: bool) -> u64 {
        let cut = match self.side {
            Side::Read(_) if wrongly => {
                let len = max_msg.min(self.len - self.posted);
                few_across(self.raddr.wrapping_add(self.posted), len)
            }
            _ => None,
        };
        cut.map_or(max_msg, u64::from)
    }
}

/// The next WR of an operation: `limit` bytes at most; at last, for a WRITE
/// that is to be confirmed by a READ (`confirm.rs`), a READ of no bytes behind it: it
/// is answered only after the WRITE was placed (RFC 5040 section 5.5), and touches no
/// memory.
fn next(s: &Sided, limit: u64, max_sge: usize, by_read: bool) -> Next {
    let (mut sges, mut count) = ([Sge { addr: 0, len: 0, lkey: 0 }; SGES], 0);
    let want = (s.len - s.posted).min(limit);
    let raddr = s.raddr.wrapping_add(s.posted);
    let rkey = s.rkey;
    match &s.side {
        Side::Read(buf) => {
            if want > 0 {
                sges[0] = Sge { addr: buf.seg.addr() + s.posted, len: want, lkey: buf.mr.key };
                count = 1;
            }
            let last = s.posted + want == s.len;
            Next { op: SendOp::Read { raddr, rkey }, sges, count, len: want, read: true, last }
        }
        Side::Write(iov, confirm) => {
            let fence = *confirm && by_read;
            if s.posted == s.len && fence && s.len > 0 {
                let op = SendOp::Read { raddr: s.raddr, rkey };
                return Next { op, sges, count, len: 0, read: true, last: true };
            }
            let len;
            (count, len) = iov.sges(s.posted, want, &mut sges[..max_sge.clamp(1, SGES)]);
            let last = s.posted + len == s.len && !(fence && s.len > 0);
            Next { op: SendOp::Write { raddr, rkey }, sges, count, len, read: false, last }
        }
    }
}
