//! Progress: serves sources that are ready or due.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::attended::AttendantSleep;
use super::link::{Env, LinkError, LinkPhase, ShmLink};
use super::loan::LentRings;
use super::ring::Word;
use super::{ShmParts, ShmRnic};
use crate::driver::{LinkOwner, Source, Traffic, flushed};
use crate::mem::{AccessFault, Key};
use crate::rnic::{
    Attended, AttendedBlock, AttendedEnd, AttendedWait, CmEvent, Disconnect, DisconnectCause,
    EagerRecv, EagerSend, HEAD, PolledSleep, Qp, QpState, RnicError, RnicEvent, TermCode, WcOp,
    WcStatus,
};
use crate::sys::{IoVec, waits_for_words};
use crate::time::Time;

/// Bytes that one connection may move, each way, before the next has its turn.
const BUDGET: usize = 512 << 10;
/// The same if no other source is ready: a mebibyte, and the records that announce it. After so
/// large a turn the engine finds its data out of the cache, so turns of `BUDGET` cost 4 % of a
/// stream of mebibytes.
const BUDGET_ALONE: usize = (1 << 20) + (64 << 10);
/// Silence after which a connection counts as idle.
const IDLE: Duration = Duration::from_secs(1);
/// Time without progress after which an orderly close is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The status of a WR whose record the peer has refused with this code.
fn status(code: TermCode) -> WcStatus {
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

impl Traffic for Box<ShmLink> {
    type Loan = LentRings;

    fn begin_progress(driver: &mut ShmRnic, now: Time) {
        driver.retry_calls(now);
        driver.parts.spares.expire(now);
        driver.parts.slabs.expire(now);
        driver.poll_beside_ready();
    }
    fn due(parts: &ShmParts) -> Option<Time> {
        let (calls, spares) = (parts.waiting_calls.due(), parts.spares.due());
        calls.into_iter().chain(spares).chain(parts.slabs.due()).min()
    }
    fn serve(driver: &mut ShmRnic, id: u32, now: Time) {
        driver.serve_link(id, now);
    }
    fn timed_out(driver: &mut ShmRnic, id: u32, _: Time) {
        driver.link_timed_out(id);
    }
    fn became_ready(driver: &mut ShmRnic, id: u32) {
        driver.make_hot(id);
    }
    fn doorbell_rang(driver: &mut ShmRnic) {
        if let Some(bitmap) = &mut driver.parts.bitmap {
            bitmap.bell().note();
        }
        driver.collect_doorbells();
    }

    fn flush(driver: &mut ShmRnic, id: u32, now: Time) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        if link.phase.is_connected() && !link.socket.hung_up {
            link.tx.ring_doorbell();
            // Records that have come for it wait for their turn if other sources are ready.
            let rx_limit = if driver.turns.ready.is_empty() { BUDGET_ALONE } else { 0 };
            driver.move_data(id, rx_limit, now);
        }
    }

    fn disconnect(
        driver: &mut ShmRnic,
        qp: Qp,
        id: u32,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError> {
        match (driver.state_of(qp)?, how) {
            (QpState::Connecting, _) => {
                let (call, errno) = ("connect", libc::ECANCELED);
                driver.fail_attempt(id, RnicError::Os { call, errno });
            }
            (QpState::Closing, how) if how.is_orderly() => {}
            (_, how) if how.is_orderly() => {
                let link = driver.links.get_mut(id)?;
                link.enter(LinkPhase::Closing);
                link.tx.ring_doorbell();
                driver.turns.timers.set(Source::Link(id), now + CLOSE_LIMIT);
                driver.enqueue(Source::Link(id));
            }
            _ => driver.cut(id, DisconnectCause::Aborted, None),
        }
        Ok(())
    }

    fn peek_attended(&self) -> Option<Attended> {
        let possible = self.phase == LinkPhase::Open && !self.socket.hung_up && !self.base.stalled;
        if !possible || !waits_for_words() {
            return None;
        }
        Some(match self.has_work() {
            true => Attended::Ready,
            false => Attended::Idle { for_room: self.tx.waits_for_peer() },
        })
    }
    fn sleep_attended(&mut self, _: AttendedBlock) -> AttendedWait {
        let word = self.arm_attended();
        self.wake_up.attendant =
            if word.is_some() { AttendantSleep::OnWord } else { AttendantSleep::Awake };
        let trusted = self.peer.trusted;
        word.map_or(AttendedWait::Ready, |word| AttendedWait::Word { word, trusted })
    }
    fn can_sleep_polled(&self) -> bool {
        self.peer.trusted && self.phase == LinkPhase::Open
    }
    fn sleep_polled(&mut self, end: BorrowedFd<'_>) -> PolledSleep {
        ShmLink::sleep_polled(self, end)
    }
    fn take_polled_rings(&mut self) -> u32 {
        self.wake_up.polled.take_rings()
    }
    fn poll_attended(&self) -> Option<bool> {
        Some(self.has_work() || self.socket.hung_up)
    }
    fn lend(driver: &mut ShmRnic, id: u32) -> Option<LentRings> {
        driver.lend_link(id)
    }
    fn end_loan(driver: &mut ShmRnic, id: u32, loan: LentRings, _: bool, _: Time) {
        driver.take_back_link(id, &loan);
    }
    fn wake_attended(driver: &mut ShmRnic, id: u32, _: AttendedEnd<'_>) {
        driver.parts.woken = Some(id);
        driver.note_attendant_awake(id);
    }
    fn begin_attendance(driver: &mut ShmRnic, id: u32) {
        driver.make_attended(id);
    }
    fn end_attendance(driver: &mut ShmRnic, id: u32) -> Result<(), RnicError> {
        driver.note_attendant_awake(id);
        driver.make_hot(id);
        Ok(())
    }

    fn try_send_eager(
        driver: &mut ShmRnic,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        driver.try_send_eager(qp, payload, head)
    }
    fn next_eager(driver: &mut ShmRnic, out: &mut [u8]) -> Option<EagerRecv> {
        driver.next_eager(out)
    }
    fn release_eager(driver: &mut ShmRnic, qp: Qp) {
        driver.release_eager(qp);
    }
    fn pause_eager(driver: &mut ShmRnic, qp: Qp) -> bool {
        driver.pause_eager(qp)
    }
    fn resume_eager(driver: &mut ShmRnic) {
        driver.parts.pause_epoch += 1;
    }
    fn spin(driver: &mut ShmRnic, _: Time) -> bool {
        driver.poll_hot_set()
    }
    fn poll_memory(driver: &mut ShmRnic) -> Option<bool> {
        driver.has_news()
    }
    fn prepare_sleep(driver: &mut ShmRnic) -> bool {
        driver.prepare_sleep()
    }
}

impl ShmRnic {
    fn note_attendant_awake(&mut self, id: u32) {
        if let Ok(link) = self.links.get_mut(id) {
            link.wake_up.attendant = AttendantSleep::Awake;
        }
    }

    fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        link.base.queued = false;
        if link.phase == LinkPhase::Calling {
            return self.retry_call(id, now);
        }
        if link.is_lent() {
            // What the socket has waits until the threads have returned the rings.
            let LinkOwner::Qp(qp) = link.base.owner else { return };
            return self.reports.events.push_back(RnicEvent::EndLoan(Qp(qp)));
        }
        self.take_control_messages(id);
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.socket.readable && !link.socket.hung_up {
            // More messages than one turn takes may be there.
            link.base.queued = true;
            self.turns.ready.push_back(Source::Link(id));
        }
        match link.phase {
            phase if phase.is_connected() => self.move_data(id, BUDGET_ALONE, now),
            _ if link.socket.hung_up => self.handle_hang_up(id),
            _ => {}
        }
    }

    /// Handles a peer that hung up before the connection was open.
    fn handle_hang_up(&mut self, id: u32) {
        match self.links.get(id).map(|l| l.base.owner) {
            Ok(LinkOwner::Qp(_)) => {
                self.fail_attempt(id, RnicError::Os { call: "connect", errno: libc::ECONNRESET });
            }
            _ => self.drop_link(id),
        }
    }

    /// Moves the data of a connection, of what comes at most `rx_limit` bytes. Then completes WRs,
    /// re-arms the link, and ends it if it is over.
    fn move_data(&mut self, id: u32, rx_limit: usize, now: Time) {
        let budget = if self.turns.ready.is_empty() { BUDGET_ALONE } else { BUDGET };
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.base.owner else { return };
        let Ok(pair) = self.qps.get_mut(qp) else { return };
        let attr = pair.attr;
        let room = self.objects.cqs.get(attr.recv_cq.0).map_or(0, |cq| cq.room());
        let recvs = match attr.srq {
            Some(srq) => match self.objects.srqs.get_mut(srq.0) {
                Ok(queue) => &mut queue.bufs,
                Err(_) => return,
            },
            None => &mut pair.recvs,
        };
        let (keys, pd, wcs) = (&self.memory.keys, attr.pd.0, &mut self.reports.wcs);
        link.tx.ring.window.set_busy_links(self.parts.hot.len());
        // Read before the records: records from before the end are still taken.
        link.end = link.peer_end();
        let turn = link
            .transfer(&mut Env { keys, pd, qp, recvs, room, wcs }, (rx_limit.min(budget), budget));
        let stalled = link.base.stalled;
        if turn.is_ok_and(|pass| pass.moved) {
            // After a second of silence the connection is idle, and what moves now is most likely a
            // sign of life. One every few seconds would otherwise touch page after page of the ring.
            let before = std::mem::replace(&mut link.polling.last_moved, now);
            if now.since(before) >= IDLE {
                link.tx.trim(&link.mem);
            }
        }
        self.deliver_wcs();
        let pass = match turn {
            Ok(pass) => pass,
            Err(end) => return self.fail_link(id, end),
        };
        if stalled {
            self.objects.await_recv(id, &attr);
        } else if let Some(srq) = attr.srq {
            self.wake_srq(srq.0);
        }
        if pass.more {
            self.enqueue(Source::Link(id));
        }
        // A link that is not hot must state what it waits for. Its peer may have cleared that for news
        // that moved nothing, and its bell may have been read in a turn that the reactor did not ask
        // for. The link may also wait for room only since this turn.
        let states = |l: &super::link::ShmLink| l.mem.sleep_words().state(l.wants());
        if pass.moved || self.links.get(id).is_ok_and(|l| !l.polling.hot && !states(l)) {
            self.make_hot(id);
        }
        self.finish_turn(id, pass.moved, pass.more, now);
    }

    /// Puts completions into their queues.
    fn deliver_wcs(&mut self) {
        if !self.reports.wcs.is_empty() {
            let mut wcs = std::mem::take(&mut self.reports.wcs);
            for wc in wcs.drain(..) {
                self.complete(wc);
            }
            self.reports.wcs = wcs;
        }
    }

    /// Ends a turn of a link: closes it if it is over.
    fn finish_turn(&mut self, id: u32, moved: bool, more: bool, now: Time) {
        let full = self.hot_set_is_full();
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.rx.fin_received && link.phase == LinkPhase::Open {
            // The peer has sent its last record, so this side closes too.
            link.enter(LinkPhase::Closing);
            link.tx.ring_doorbell();
            self.turns.timers.set(Source::Link(id), now + CLOSE_LIMIT);
            return self.enqueue(Source::Link(id));
        }
        if link.phase == LinkPhase::Closing {
            if link.rx.fin_received && link.tx.is_finished() {
                return self.cut(id, DisconnectCause::Orderly, None);
            }
            if moved {
                self.turns.timers.set(Source::Link(id), now + CLOSE_LIMIT);
            }
        }
        let came = link.wake_up.received_bitmap.is_some() || link.named_bitmap().is_some();
        if came || link.wants_bitmap(full) {
            self.exchange_bitmaps(id);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.end.take() {
            // Records that the peer sent before it cut the connection are taken first.
            Some(LinkError::Gone) if (moved || more) && !link.base.stalled => {
                return self.enqueue(Source::Link(id));
            }
            Some(end) => return self.fail_link(id, end),
            None if link.peer_end().is_some() => return self.enqueue(Source::Link(id)),
            None => {}
        }
        // Records that the peer has left in the ring are taken first, even if they wait for a receive.
        match link.socket.hung_up && !link.base.stalled {
            true if moved || more => self.enqueue(Source::Link(id)),
            true => self.fail_link(id, LinkError::Gone),
            false => {}
        }
    }

    /// Ends a connection for the reason that a transfer met.
    fn fail_link(&mut self, id: u32, end: LinkError) {
        let cause = match end {
            LinkError::Violation(code) => {
                if let Ok(link) = self.links.get_mut(id) {
                    // The consumer index tells the peer which of its records was refused.
                    link.publish_consumed();
                }
                DisconnectCause::TerminatedByUs(code)
            }
            LinkError::Refused(code) => DisconnectCause::TerminatedByPeer(code),
            LinkError::Gone => DisconnectCause::Broken(libc::ECONNRESET),
        };
        self.cut(id, cause, None);
    }

    /// Ends a connection at once, and flushes everything that is outstanding. `revoked`: the MR whose
    /// end is the reason; None: there is another reason.
    pub(super) fn cut(&mut self, id: u32, cause: DisconnectCause, revoked: Option<Key>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.base.owner else { return self.drop_link(id) };
        if !matches!(cause, DisconnectCause::TerminatedByPeer(_)) {
            link.publish_end(cause);
        }
        let refused = match cause {
            DisconnectCause::TerminatedByPeer(code) => {
                Some((link.mem.theirs(Word::Consumed), status(code)))
            }
            _ => None,
        };
        let mut wcs = std::mem::take(&mut self.reports.wcs);
        if let Some(buf) = link.rx.abandon() {
            let mut wc = flushed(qp, buf.wr_id, WcOp::Recv);
            if let Some(key) = revoked.filter(|key| buf.lkeys.contains(key)) {
                wc.status = WcStatus::LocalProtection(AccessFault::InvalidKey { key });
            }
            wcs.push(wc);
        }
        link.tx.flush(refused, revoked, |wr_id, op, status| {
            wcs.push(crate::rnic::Wc { status, ..flushed(qp, wr_id, op) });
        });
        self.reports.wcs = wcs;
        self.deliver_wcs();
        self.kill_qp(qp);
        self.drop_link(id);
        self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
    }

    /// Handles a link whose deadline has passed.
    fn link_timed_out(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        match (link.base.owner, link.phase) {
            (LinkOwner::Qp(_), phase) if phase.is_connected() => {
                self.cut(id, DisconnectCause::Broken(libc::ETIMEDOUT), None);
            }
            (LinkOwner::Qp(qp), _) => {
                let timeout = self.qps.get(qp).map_or(Duration::ZERO, |q| q.timeout);
                self.fail_attempt(id, RnicError::Timeout(timeout));
            }
            _ => self.drop_link(id),
        }
    }
}
