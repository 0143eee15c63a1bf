//! Progress: serves sources that are ready or due, and reports what the engines say.

use super::directions::{Ending, Inbound};
use super::link::{ReadOutcome, SoftLink, Watched};
use super::loan::LentStream;
use super::queues::SrqView;
use super::{SoftParts, SoftRnic};
use crate::driver::{Link, LinkOwner, Source, Traffic};
use crate::iwarp::{IwarpEvent, RxSource};
use crate::mem::KeyTable;
use crate::rnic::{
    Attended, AttendedBlock, AttendedEnd, AttendedWait, CmEvent, DeferredEnd, DeferredWrite,
    Disconnect, DisconnectCause, EagerRecv, EagerSend, HEAD, Qp, QpState, Ready, RnicError,
};
use crate::sys::{IoVec, SharedStream};
use crate::time::Time;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one connection may move, each way, before the next has its turn.
const BUDGET: usize = 1 << 20;
/// Time without progress after which an orderly close is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Time for the last bytes of a link (a TERMINATE, a reject).
pub(super) const LAST_BYTES_LIMIT: Duration = Duration::from_secs(2);
/// Interval of `trim_idle_links`.
const SWEEP_PERIOD: Duration = Duration::from_millis(100);
/// Links that one call of it looks at.
const SWEEP_STEP: usize = 256;

/// Where the look for idle links stands.
#[derive(Default)]
pub(super) struct Sweep {
    /// When links were last looked at.
    last: Time,
    /// The place in the table of links to go on from.
    place: usize,
}

impl Traffic for SoftLink {
    type Loan = LentStream;

    fn begin_progress(driver: &mut SoftRnic, now: Time) {
        if !driver.parts.unwatched.is_empty() {
            driver.watch_waiting_requests();
        }
        driver.trim_idle_links(now);
        driver.end_eager_round(now);
        driver.retry_short_writes(now);
        driver.hold_groups(true);
    }
    fn end_progress(driver: &mut SoftRnic, now: Time) {
        driver.note_idle_groups(now);
        driver.dial_paced(now);
        driver.hold_groups(false);
    }
    fn group_ready(driver: &mut SoftRnic, id: u32, ready: Ready) {
        driver.parts.groups.note_ready(id, ready);
    }
    fn serve_group(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.serve_group(id, now);
    }
    fn group_timed_out(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.group_timed_out(id, now);
    }
    fn shares_stream(driver: &SoftRnic, id: u32) -> bool {
        driver.links.get(id).is_ok_and(|link| link.stream.grouped().is_some())
    }
    fn flush_later(driver: &mut SoftRnic, id: u32, now: Time) -> bool {
        let Ok(link) = driver.links.get_mut(id) else { return false };
        if link.stream.own().is_some() || !link.ready.writable {
            return false;
        }
        link.outbound.doorbell_rung = true;
        if driver.write_link(id) {
            driver.enqueue(Source::Link(id));
        }
        driver.finish_turn(id, now);
        true
    }
    fn hold_writes(driver: &mut SoftRnic) -> bool {
        let any = driver.parts.groups.any();
        if any {
            driver.hold_groups(true);
        }
        any
    }
    fn release_writes(driver: &mut SoftRnic) {
        driver.hold_groups(false);
    }
    fn serve(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.serve_link(id, now);
    }
    fn timed_out(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.link_timed_out(id, now);
    }
    fn due(parts: &SoftParts) -> Option<Time> {
        if let Some(due) = parts.groups.due() {
            return Some(due);
        }
        match parts.unwatched.is_empty() {
            true => parts.short_writes.due(),
            false => Some(Time::ZERO),
        }
    }

    fn flush(driver: &mut SoftRnic, id: u32, now: Time) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        link.outbound.doorbell_rung = true;
        if link.ready.writable {
            if driver.write_link(id) {
                driver.enqueue(Source::Link(id));
            }
            driver.finish_turn(id, now);
            driver.write_groups();
        }
    }

    fn defer_flush(driver: &mut SoftRnic, id: u32, now: Time) -> Option<DeferredWrite> {
        driver.defer_write(id, now)
    }
    fn end_deferred(driver: &mut SoftRnic, end: DeferredEnd, now: Time) {
        driver.end_write(end, now);
    }
    fn forget_deferred(driver: &mut SoftRnic) {
        driver.take_back_streams();
    }

    fn disconnect(
        driver: &mut SoftRnic,
        qp: Qp,
        id: u32,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError> {
        match (driver.state_of(qp)?, how) {
            (QpState::Error, _) => return Err(driver.wrong_state(qp, "a connection")),
            (QpState::Rts, how) if how.is_orderly() => {
                let own = &mut driver.qps.get_mut(qp.0)?.own;
                // WRs with files that wait were posted before the close, so they leave first.
                own.closing = own.files.is_some();
                let closing = own.closing;
                let link = driver.links.get_mut(id)?;
                link.outbound.doorbell_rung = true;
                if how == Disconnect::Answered {
                    link.ending = Ending::Answered;
                }
                if !closing {
                    link.engine.disconnect(how);
                }
            }
            (QpState::Closing, how) if how.is_orderly() => return Ok(()),
            _ => {
                let link = driver.links.get_mut(id)?;
                link.ending.reset();
                link.engine.disconnect(Disconnect::Abort);
            }
        }
        driver.enqueue(Source::Link(id));
        driver.finish_turn(id, now);
        driver.write_groups();
        Ok(())
    }

    fn peek_attended(&self) -> Option<Attended> {
        self.look_at_attended()
    }
    fn sleep_attended(&mut self, how: AttendedBlock) -> AttendedWait {
        self.sleep(how)
    }
    fn lend_stream(&mut self) -> Option<Arc<SharedStream>> {
        self.lend_to_program()
    }
    fn lend(driver: &mut SoftRnic, id: u32) -> Option<LentStream> {
        driver.lend_link(id)
    }
    fn end_loan(driver: &mut SoftRnic, id: u32, loan: LentStream, reads: bool, now: Time) {
        driver.take_back_link(id, loan, reads, now);
    }
    fn wake_attended(driver: &mut SoftRnic, id: u32, end: AttendedEnd<'_>) {
        driver.end_attended_sleep(id, end);
    }
    fn begin_attendance(driver: &mut SoftRnic, id: u32) {
        if let Ok(link) = driver.links.get_mut(id) {
            link.forget(&driver.reactor);
        }
    }
    fn keep_apart(driver: &mut SoftRnic, id: u32) {
        driver.keep_apart(id);
    }
    fn end_attendance(driver: &mut SoftRnic, id: u32) -> Result<(), RnicError> {
        driver.watch_link(id)
    }

    fn try_send_eager(
        driver: &mut SoftRnic,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        driver.try_send_eager(qp, payload, head)
    }
    fn next_eager(driver: &mut SoftRnic, out: &mut [u8]) -> Option<EagerRecv> {
        driver.next_eager(out)
    }
    fn spin(driver: &mut SoftRnic, now: Time) -> bool {
        driver.poll_hot_links(now)
    }
    fn spins_by_reactor(driver: &SoftRnic) -> bool {
        driver.has_many_hot_links()
    }
    fn poll_syscall(driver: &mut SoftRnic) -> Option<bool> {
        driver.has_news()
    }
}

impl SoftRnic {
    /// Serves one link: bytes in, bytes out, and the results.
    pub(super) fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        (link.base.queued, link.idle) = (false, false);
        if self.needs_no_turn(id) || self.redial_refused(id, now) {
            return;
        }
        let received = self.read_link(id);
        let written = self.write_link(id);
        if received.more || written {
            self.enqueue(Source::Link(id));
        }
        if received.received > 0 {
            self.make_hot(Source::Link(id));
        }
        self.finish_turn(id, now);
    }

    /// Reads a link.
    pub(super) fn read_link(&mut self, id: u32) -> ReadOutcome {
        self.deliver_unparsed();
        let outcome = self.with_receives(id, |link, lookahead, keys, srq| {
            link.receive(lookahead, keys, srq, BUDGET)
        });
        self.return_credit(id);
        outcome
    }

    /// Calls `f` with a link and the receives that it may use. Afterwards, wakes links that wait for
    /// receives.
    pub(super) fn with_receives<T: Default>(
        &mut self,
        id: u32,
        f: impl FnOnce(&mut SoftLink, &mut [u8], &mut KeyTable, Option<&mut dyn RxSource>) -> T,
    ) -> T {
        let Ok(link) = self.links.get_mut(id) else { return T::default() };
        let queues = match link.base.owner {
            LinkOwner::Qp(qp) => self.qps.get(qp).ok().and_then(|q| Some((q.attr.srq?.0, q.attr))),
            _ => None,
        };
        let Some((srq, attr)) = queues else {
            return f(link, &mut self.parts.lookahead, &mut self.memory.keys, None);
        };
        let room = self.objects.cqs.get(attr.recv_cq.0).map_or(0, |cq| cq.room());
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return T::default() };
        let mut feed = SrqView { bufs: &mut queue.bufs, room };
        let feed: Option<&mut dyn RxSource> = Some(&mut feed);
        let result = f(link, &mut self.parts.lookahead, &mut self.memory.keys, feed);
        if link.intake.holds_recv_of.is_none() && link.engine.can_spill() {
            link.intake.holds_recv_of = Some(srq);
            queue.begin(id);
        }
        let dry = link.base.stalled || queue.is_dry();
        if link.base.stalled {
            self.objects.await_recv(id, &attr);
        }
        if dry {
            self.relieve_srq(srq);
        }
        self.wake_srq(srq);
        result
    }

    /// Sends what a link has, WRs with files included. True if there is more.
    pub(super) fn write_link(&mut self, id: u32) -> bool {
        loop {
            let Ok(link) = self.links.get_mut(id) else { return false };
            let owner = link.base.owner;
            let more = self.transmit(id);
            let LinkOwner::Qp(qp) = owner else { return more };
            if self.qps.get(qp).is_ok_and(|q| q.own.files.is_none()) || more {
                return more;
            }
            // WRs with files go on when pieces of them have left.
            self.deliver_wcs(id);
            if !self.submit_files(qp) {
                return self.transmit(id);
            }
        }
    }

    /// Sends what the engine of a link has. True if there is more.
    fn transmit(&mut self, id: u32) -> bool {
        let Ok(link) = self.links.get_mut(id) else { return false };
        let Some(group) = link.stream.grouped().map(|stream| stream.group) else {
            return link.transmit(&mut self.parts.tx_pool, BUDGET);
        };
        let Ok(carrier) = self.parts.groups.table.get_mut(group) else { return false };
        let more = carrier.transmit(id, link, &mut self.parts.tx_pool);
        self.parts.groups.mark_dirty(group);
        more
    }

    /// Puts an engine's completions into their queues.
    fn deliver_wcs(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let mut wcs = std::mem::take(&mut self.reports.wcs);
        link.engine.drain_wcs(&mut wcs);
        for wc in wcs.drain(..) {
            if let Some(wc) = self.file_wc(wc) {
                self.complete(wc);
            }
        }
        self.reports.wcs = wcs;
    }

    /// Ends a turn of a link: reports what its engine says, and closes it if it is over.
    pub(super) fn finish_turn(&mut self, id: u32, now: Time) {
        self.deliver_wcs(id);
        while let Some(event) = self.links.get_mut(id).ok().and_then(|l| l.engine.poll_event()) {
            self.link_event(id, event, now);
        }
        if self.adopt_greeting(id, now) {
            return;
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        let source = Source::Link(id);
        if link.engine.closed() {
            return self.drop_link(id);
        }
        self.step_leave(id);
        let Ok(link) = self.links.get_mut(id) else { return };
        self.parts.short_writes.note(id, link, now);
        if link.lacks_watch() {
            self.keep_watch(id);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        let limit = match link.engine.state() {
            QpState::Closing => CLOSE_LIMIT,
            QpState::Error => LAST_BYTES_LIMIT,
            _ => return,
        };
        let sent = std::mem::take(&mut link.outbound.sent);
        // Bytes that still leave give an orderly close more time.
        if !self.turns.timers.is_set(source) || (sent > 0 && limit == CLOSE_LIMIT) {
            self.turns.timers.set(source, now + limit);
        }
    }

    /// Registers a link with the reactor, for what it needs by now. Not while its request waits for
    /// an answer, which mostly comes in this very turn.
    #[cold]
    fn keep_watch(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        if matches!(link.base.owner, LinkOwner::Request { .. }) && link.watched == Watched::Nothing
        {
            return self.parts.unwatched.push(id);
        }
        if let Err(e) = self.watch_link(id) {
            crate::trace::warn!("a connection is dropped: {e}");
            let Ok(link) = self.links.get_mut(id) else { return };
            link.inbound = Inbound::Broken;
            link.engine.handle_broken(libc::ENOMEM);
            self.enqueue(Source::Link(id));
        }
    }

    /// Registers links whose requests have not been answered in the turn in which they came.
    fn watch_waiting_requests(&mut self) {
        for id in std::mem::take(&mut self.parts.unwatched) {
            if self.links.get(id).is_ok_and(|l| l.watched == Watched::Nothing)
                && self.watch_link(id).is_err()
            {
                self.cut_link(id);
            }
        }
    }

    fn link_event(&mut self, id: u32, event: IwarpEvent, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let owner = link.base.owner;
        match (owner, event) {
            (LinkOwner::Startup(listener), IwarpEvent::Request { private_data }) => {
                self.handle_request(id, listener, private_data);
            }
            (LinkOwner::Qp(qp), IwarpEvent::Established { private_data, ord, ird }) => {
                link.fit_segments();
                link.place = None;
                if let Some(stream) = link.stream.grouped_mut() {
                    stream.plan = None;
                }
                self.turns.timers.clear(Source::Link(id));
                self.emit(CmEvent::Established { qp: Qp(qp), private_data, ord, ird });
            }
            (LinkOwner::Qp(qp), IwarpEvent::Rejected { private_data }) => {
                self.detach(id, qp);
                self.emit(CmEvent::Rejected { qp: Qp(qp), private_data });
            }
            (LinkOwner::Qp(qp), IwarpEvent::Failed(error)) => {
                let timed_out = link.ending == Ending::TimedOut;
                self.detach(id, qp);
                let error = match self.qps.get_mut(qp) {
                    Ok(pair) if timed_out => RnicError::Timeout(pair.timeout),
                    _ => error,
                };
                self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
            }
            (LinkOwner::Qp(qp), IwarpEvent::Disconnected(cause)) => {
                if cause == DisconnectCause::Aborted {
                    link.ending.reset();
                }
                self.flush_files(qp);
                self.detach(id, qp);
                self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
            }
            (LinkOwner::Startup(_) | LinkOwner::Request { .. }, IwarpEvent::Failed(_)) => {
                // The engine may still have a refusal to send.
                self.release_request(id);
                self.turns.timers.set(Source::Link(id), now + LAST_BYTES_LIMIT);
            }
            // A link without an owner has no one to report to.
            _ => {}
        }
    }

    /// Parts a dead queue pair from its link.
    fn detach(&mut self, id: u32, qp: u32) {
        self.kill_qp(qp);
        if let Ok(link) = self.links.get_mut(id) {
            link.base.owner = LinkOwner::Unowned;
        }
        self.turns.timers.clear(Source::Link(id));
    }

    /// Handles a link whose deadline has passed.
    fn link_timed_out(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.base.owner {
            LinkOwner::Qp(_) => {
                link.ending.reset();
                if link.engine.state() == QpState::Connecting {
                    link.ending = Ending::TimedOut;
                }
                link.inbound = Inbound::Broken;
                link.engine.handle_broken(libc::ETIMEDOUT);
                // The engine is closed now, and the link is closed with it.
                self.finish_turn(id, now);
            }
            _ => self.cut_link(id),
        }
    }

    /// Frees spare memory of links that have been idle since the last visit: ten thousand of them
    /// must stay cheap. Visits a few links at a time.
    fn trim_idle_links(&mut self, now: Time) {
        if now.since(self.parts.sweep.last) < SWEEP_PERIOD {
            return;
        }
        self.parts.sweep.last = now;
        for _ in 0..SWEEP_STEP.min(self.links.places()) {
            self.parts.sweep.place = (self.parts.sweep.place + 1) % self.links.places();
            if let Some(link) = self.links.at_mut(self.parts.sweep.place)
                && std::mem::replace(&mut link.idle, true)
            {
                link.engine.trim();
            }
        }
    }
}
