//! One-sided operations: the program's READs, WRITEs and atomic operations on the peer's memory,
//! and the windows that let the peer do the same here.

use crate::ids::OpId;
use crate::mem::{Access, AtomicOp, Atomics, Key, WORD};
use crate::rnic::siw_quirk::cut_at_page;
use crate::rnic::{Caps, DisconnectCause, SendOp, Sge, WcStatus};

use super::confirm::Confirms;
use super::doorbell::Doorbell;
use super::out::Wr;
use super::sender::Ends;
use super::sendq::WrPurpose;
use super::table::Table;
use super::{Buf, Done, IoVec, OpError, Port, Session, Violation};

const NO_ATOMICS_HERE: &str =
    "atomic operations (the device of this connection executes none: see `exs-info`)";

/// Segments of one WRITE that are made here.
const SGES: usize = 16;

/// What a one-sided operation does.
#[derive(Debug)]
pub(super) enum Side {
    /// READ into this.
    Read(Buf),
    /// WRITE this. True: the operation ends only when the bytes are in the peer's memory.
    Write(IoVec, bool),
    /// An atomic operation. The memory, of one word, gets the old value.
    Atomic(AtomicOp, Buf),
}

/// A one-sided operation.
#[derive(Debug)]
struct Sided {
    user: OpId,
    side: Side,
    raddr: u64,
    rkey: Key,
    len: u64,
    /// Bytes posted.
    posted: u64,
    /// No more of it is going to be posted.
    all_posted: bool,
    /// WRs that have not completed.
    in_flight: u32,
    /// Bytes completed.
    bytes: u64,
    /// Why a WR of it failed.
    error: Option<OpError>,
    /// Why no more of it is posted, although there is more.
    stopped: Option<OpError>,
    /// The number of the CONFIRM whose answer it waits for.
    unconfirmed: Option<u32>,
    /// A WR was flushed. The end of the connection gives the reason.
    flushed: bool,
}

impl Sided {
    /// All that was posted is known to have been done, and no more is going to be. A program
    /// that cancels does not wait for a confirmation: `bytes` says what was written.
    fn is_through(&self) -> bool {
        let confirmed = self.unconfirmed.is_none() || self.stopped.is_some();
        self.all_posted && !self.flushed && confirmed
    }

    /// Of an atomic operation that was done: the value that was there before.
    fn old_value(&self) -> Option<u64> {
        let Side::Atomic(_, old) = &self.side else { return None };
        let mut word = [0; WORD];
        (self.bytes == WORD as u64).then(|| {
            old.seg.read_at(0, &mut word);
            u64::from_ne_bytes(word)
        })
    }

    /// Bytes that its next WR can move: as many as a WR takes. Towards a peer whose RNIC answers
    /// small READs wrongly (`quirk`), a READ is cut where that would happen.
    fn limit(&self, max_msg: u64, quirk: bool) -> u64 {
        let cut = match self.side {
            Side::Read(_) if quirk => {
                let len = max_msg.min(self.len - self.posted);
                cut_at_page(self.raddr.wrapping_add(self.posted), len)
            }
            _ => None,
        };
        cut.map_or(max_msg, u64::from)
    }

    /// Its next WR, of `limit` bytes at most. With `by_read`, a WRITE that needs a confirmation
    /// has a READ of no bytes behind it (`confirm.rs`). The peer's RNIC answers that READ only after it
    /// has placed the WRITE (RFC 5040 section 5.5), and the READ touches no memory.
    fn next(&self, limit: u64, max_sge: usize, by_read: bool) -> Next {
        let (mut sges, mut count) = ([Sge { addr: 0, len: 0, lkey: 0 }; SGES], 0);
        let want = (self.len - self.posted).min(limit);
        let raddr = self.raddr.wrapping_add(self.posted);
        let rkey = self.rkey;
        match &self.side {
            Side::Read(buf) => {
                if want > 0 {
                    let addr = buf.seg.addr() + self.posted;
                    sges[0] = Sge { addr, len: want, lkey: buf.mr.key };
                    count = 1;
                }
                let last = self.posted + want == self.len;
                Next { op: SendOp::Read { raddr, rkey }, sges, count, len: want, read: true, last }
            }
            Side::Atomic(op, old) => {
                sges[0] = Sge { addr: old.seg.addr(), len: want, lkey: old.mr.key };
                let op = SendOp::Atomic { raddr, rkey, op: *op };
                Next { op, sges, count: 1, len: want, read: true, last: true }
            }
            Side::Write(iov, confirm) => {
                let fence = *confirm && by_read && self.len > 0;
                if self.posted == self.len && fence {
                    let op = SendOp::Read { raddr: self.raddr, rkey };
                    return Next { op, sges, count, len: 0, read: true, last: true };
                }
                let len;
                (count, len) = iov.sges(self.posted, want, &mut sges[..max_sge.clamp(1, SGES)]);
                let last = self.posted + len == self.len && !fence;
                Next { op: SendOp::Write { raddr, rkey }, sges, count, len, read: false, last }
            }
        }
    }
}

/// What to post next for an operation.
struct Next {
    op: SendOp,
    sges: [Sge; SGES],
    count: usize,
    len: u64,
    read: bool,
    last: bool,
}

/// The one-sided operations of a connection, and its exports.
#[derive(Debug)]
pub(super) struct OneSided {
    ops: Table<Sided>,
    /// READs and atomic operations that may be outstanding, as agreed on with the peer; 0: none.
    ord: u32,
    /// READs and atomic operations that are outstanding.
    reads: u32,
    confirms: Confirms,
    /// Windows that the program opened.
    exports: Vec<Key>,
    /// One-sided operations go before data in this `drive`; they take turns.
    first: bool,
}

impl OneSided {
    pub(super) fn new() -> OneSided {
        OneSided {
            ops: Table::new(),
            ord: 0,
            reads: 0,
            confirms: Confirms::default(),
            exports: Vec::new(),
            first: false,
        }
    }

    /// READs that may be outstanding.
    pub(super) fn set_ord(&mut self, ord: u32) {
        self.ord = ord;
    }

    /// The peer takes READs.
    pub(super) fn can_read(&self) -> bool {
        self.ord > 0
    }

    pub(super) fn confirms(&self) -> &Confirms {
        &self.confirms
    }

    pub(super) fn confirms_mut(&mut self) -> &mut Confirms {
        &mut self.confirms
    }

    /// No operation has not ended.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The operations that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// No message about confirmations is due, and no operation has not ended.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.confirms.is_idle()
    }

    /// No window of the program's is open.
    pub(super) fn has_no_exports(&self) -> bool {
        self.exports.is_empty()
    }

    /// Closes the windows that the program opened.
    pub(super) fn close_exports(&mut self, port: &mut dyn Port) {
        for key in self.exports.drain(..) {
            port.invalidate(key);
        }
    }

    /// Whether these operations go before data this time.
    pub(super) fn take_turn(&mut self) -> bool {
        self.first = !self.first;
        self.first
    }

    pub(super) fn find(&self, user: OpId) -> Option<u64> {
        self.ops.find_id(|s| s.user == user)
    }

    /// Queues an operation that was checked.
    pub(super) fn post(&mut self, user: OpId, side: Side, raddr: u64, rkey: Key) {
        let len = match &side {
            Side::Read(buf) => buf.seg.len() as u64,
            Side::Write(iov, _) => iov.len(),
            Side::Atomic(..) => WORD as u64,
        };
        // An operation of no bytes asks the peer for nothing, where the peer's RNIC might answer
        // wrongly.
        let nothing = len == 0 && self.confirms.by_message();
        self.ops.insert(Sided {
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

    /// The next WR, if one may be posted.
    fn next(&self, caps: &Caps) -> Option<(u64, Next)> {
        let id = self.ops.find_id(|s| !s.all_posted)?;
        let sided = self.ops.get(id)?;
        let by_message = self.confirms.by_message();
        let by_read = !caps.write_acked && !by_message;
        let limit = sided.limit(caps.max_msg.max(1), by_message);
        let next = sided.next(limit, caps.max_sge, by_read);
        (!next.read || self.reads < self.ord).then_some((id, next))
    }

    /// A WR was posted, or refused by the port.
    fn note_posted(&mut self, id: u64, next: &Next, posted: bool, write_acked: bool) {
        let by_message = self.confirms.by_message() && !write_acked;
        let Some(sided) = self.ops.get_mut(id) else { return };
        if !posted {
            (sided.all_posted, sided.flushed) = (true, true);
            return;
        }
        sided.in_flight += 1;
        sided.posted += next.len;
        sided.all_posted = next.last;
        self.reads += u32::from(next.read);
        if next.last && by_message && sided.len > 0 && matches!(sided.side, Side::Write(_, true)) {
            sided.unconfirmed = Some(self.confirms.next());
        }
    }

    /// A WR is over.
    fn retire(&mut self, op: u64, len: u64, read: bool, status: WcStatus) {
        self.reads -= u32::from(read);
        let Some(sided) = self.ops.get_mut(op) else { return };
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
    }

    /// Reports the operations that are through, in order of their posting. `over`: the
    /// connection is torn down for this reason, so all end that no WR uses.
    fn reap(&mut self, over: Option<&OpError>, ends: &mut Ends<'_>) {
        loop {
            let found = self.ops.find_id(|s| {
                s.in_flight == 0
                    && (s.error.is_some() && s.all_posted || s.is_through() || over.is_some())
            });
            let Some(s) = found.and_then(|id| self.ops.remove(id)) else { break };
            // The fate of a WR that was flushed is unknown, even if no more were to follow it.
            let total = s.old_value().unwrap_or(s.bytes);
            let end = if s.is_through() { s.stopped } else { over.cloned() };
            let error = s.error.or(end);
            match s.side {
                Side::Read(_) => ends.counters.read_bytes += s.bytes,
                Side::Write(..) => ends.counters.write_bytes += s.bytes,
                Side::Atomic(..) => {}
            }
            ends.counters.one_sided += 1;
            let (bytes, result) = (s.bytes, error.map_or(Ok(()), Err));
            ends.done.push_back(Done { op: s.user, bytes, total, eof: false, result });
        }
    }

    /// Posts no more WRs of one operation. A cancellation (`waits` is false) does not wait for the answer
    /// to a CONFIRM either, which touches no memory. WRs that are posted run to their end.
    fn stop(&mut self, id: u64, why: OpError, waits: bool) {
        let Some(sided) = self.ops.get_mut(id) else { return };
        if !waits && sided.unconfirmed.is_some() {
            sided.stopped.get_or_insert(why.clone());
        }
        if !sided.all_posted {
            sided.all_posted = true;
            sided.stopped = Some(why);
        }
    }

    /// CONFIRMED arrived: WRITEs are in the peer's memory.
    fn confirm(&mut self, number: u32) -> Result<(), Violation> {
        self.confirms.handle_confirmed(number)?;
        for sided in self.ops.iter_mut() {
            if sided.unconfirmed.is_some_and(|number| self.confirms.covers(number)) {
                sided.unconfirmed = None;
            }
        }
        Ok(())
    }

    /// The peer ended the connection, and may have said that a WRITE was not allowed: by then
    /// the WRITE itself has completed. If several wait, the oldest gets the error. The peer
    /// looks at WRITEs in order, so least is known of the oldest.
    pub(super) fn refuse_unconfirmed(&mut self, cause: DisconnectCause) {
        let DisconnectCause::TerminatedByPeer(code) = cause else { return };
        if !code.refuses_access() {
            return;
        }
        if let Some(s) = self.ops.iter_mut().find(|s| s.unconfirmed.is_some()) {
            let (raddr, rkey) = (s.raddr, s.rkey);
            s.error.get_or_insert(OpError::RemoteAccess { raddr, rkey });
        }
    }
}

impl Session {
    /// Opens memory to the peer's READs, WRITEs and atomic operations, until `revoke` or the end of the
    /// connection. Hand the key and the buffer's address to the peer.
    ///
    /// # Errors
    /// There is no connection, or the port has no window.
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
        if access.remote_atomic && self.cfg.atomics == Atomics::None {
            return Err(OpError::Unsupported(NO_ATOMICS_HERE));
        }
        let key = port
            .bind(buf.mr, buf.seg.addr(), buf.seg.len() as u64, access)
            .map_err(OpError::LocalMemory)?;
        self.sided.exports.push(key);
        Ok(key)
    }

    /// Closes an export: the peer's next access fails, and its connection with it. False if the
    /// key is no export of this connection, or no more.
    pub fn revoke(&mut self, port: &mut dyn Port, key: Key) -> bool {
        let exports = &mut self.sided.exports;
        let Some(i) = exports.iter().position(|k| *k == key) else { return false };
        exports.swap_remove(i);
        port.invalidate(key);
        true
    }

    /// Posts one-sided operations as far as there is room, in order.
    pub(super) fn drive_sided(&mut self, port: &mut dyn Port) {
        while self.sendq.room() > 0
            && self.life.may_talk()
            && let Some((id, next)) = self.sided.next(port.caps())
        {
            let wr = Wr {
                op: next.op,
                head: &[],
                sges: &next.sges[..next.count],
                file: None,
                inline: false,
                signalled: next.last || next.read,
            };
            let what = WrPurpose::Sided { op: id, len: next.len, read: next.read };
            let posted = self.post_wr(port, wr, what.into(), Doorbell::Now);
            self.sided.note_posted(id, &next, posted, port.caps().write_acked);
        }
        self.reap_sided();
    }

    /// A WR of a one-sided operation is over.
    pub(super) fn sided_retired(&mut self, op: u64, len: u64, read: bool, status: WcStatus) {
        self.sided.retire(op, len, read, status);
        self.reap_sided();
    }

    /// Reports the one-sided operations that have ended.
    pub(super) fn reap_sided(&mut self) {
        let over = self.life.reason().filter(|_| self.life.is_torn());
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.sided.reap(over, &mut ends);
    }

    /// Cancels an operation.
    pub(super) fn cancel_sided(&mut self, id: u64, why: OpError) {
        self.sided.stop(id, why, false);
        self.reap_sided();
    }

    /// The peer has closed: no more is posted of any operation.
    pub(super) fn stop_all_sided(&mut self, why: &OpError) {
        let ids: Vec<u64> = self.sided.ops.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.sided.stop(id, why.clone(), true);
            self.reap_sided();
        }
    }

    /// CONFIRMED arrived.
    pub(super) fn handle_confirmed(&mut self, number: u32) -> Result<(), Violation> {
        self.sided.confirm(number)?;
        self.reap_sided();
        Ok(())
    }
}
