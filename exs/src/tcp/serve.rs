//! Progress: serves sources that are ready or due, and reports what the engines say.

use super::SoftRnic;
use super::link::{Inbound, ReadOutcome, SoftLink, SoftLinkOwner};
use super::qp::SoftConn;
use super::queues::SrqView;
use super::timers::SoftSource;
use crate::iwarp::{IwarpEvent, RxSource};
use crate::mem::KeyTable;
use crate::rnic::{CmEvent, Disconnect, DisconnectCause, Qp, QpState, Ready, RnicError, RnicEvent};
use crate::sys;
use crate::time::Time;
use std::time::Duration;

/// Bytes that one connection may move, each way, before the next has its turn.
const BUDGET: usize = 1 << 20;
/// Sources served in one call. With a thousand busy connections a longer call would hold the lock
/// for tens of milliseconds. The program could post no receive meanwhile, and what came would go
/// by the rings: copied twice, and out of caches by then.
pub(super) const SOURCES_PER_TURN: usize = 16;
/// Time without progress after which an orderly close is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Time for the last bytes of a link (a TERMINATE, a reject).
pub(super) const LAST_BYTES_LIMIT: Duration = Duration::from_secs(2);
/// Links that `spin` reads: those that had bytes recently.
const MAX_HOT: usize = 16;
/// Links that one call of `spin` reads.
const LINKS_PER_SPIN: usize = 4;
/// Misses after which `spin` reads a link no longer.
const MAX_MISSES: u32 = 4096;

/// Interval of `trim_idle_links`.
const SWEEP_PERIOD: Duration = Duration::from_millis(100);
/// Links that one call of it looks at.
const SWEEP_STEP: usize = 256;

/// A link that `spin` reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotLink {
    link: u32,
    /// Reads without a byte, since the last byte.
    misses: u32,
}

impl SoftRnic {
    /// Lets everything that a queue pair has posted leave.
    pub(super) fn flush(&mut self, qp: Qp, now: Time) {
        let Ok(SoftConn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        link.doorbell_rung = true;
        if link.writable {
            if self.write_link(id) {
                self.enqueue(SoftSource::Link(id));
            }
            self.finish_turn(id, now);
        }
    }

    /// Ends a queue pair's connection.
    pub(super) fn disconnect(
        &mut self,
        qp: Qp,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError> {
        let state = self.qp_state(qp)?;
        match self.qps.get(qp.0)?.conn {
            SoftConn::None | SoftConn::Dead => return Err(self.wrong_state(qp, "a connection")),
            SoftConn::Dial(dial) => {
                let (call, errno) = ("connect", libc::ECANCELED);
                self.fail_dial(dial, RnicError::Os { call, errno });
            }
            SoftConn::Link(id) => match (state, how) {
                (QpState::Error, _) => return Err(self.wrong_state(qp, "a connection")),
                (QpState::Rts, Disconnect::Orderly) => {
                    let pair = self.qps.get_mut(qp.0)?;
                    // WRs with files that wait were posted before the close, so they leave first.
                    pair.closing = pair.files.is_some();
                    let closing = pair.closing;
                    let link = self.links.get_mut(id)?;
                    link.doorbell_rung = true;
                    if !closing {
                        link.engine.disconnect(Disconnect::Orderly);
                    }
                    self.enqueue(SoftSource::Link(id));
                    self.finish_turn(id, now);
                }
                (QpState::Closing, Disconnect::Orderly) => {}
                _ => {
                    let link = self.links.get_mut(id)?;
                    link.reset_on_close = true;
                    link.engine.disconnect(Disconnect::Abort);
                    self.enqueue(SoftSource::Link(id));
                    self.finish_turn(id, now);
                }
            },
        }
        Ok(())
    }

    /// Puts a source on the ready list, once.
    pub(super) fn enqueue(&mut self, source: SoftSource) {
        let queued = match source {
            SoftSource::Link(id) => self.links.get_mut(id).map(|l| &mut l.queued),
            SoftSource::Listener(id) => self.listeners.get_mut(id).map(|l| &mut l.queued),
            SoftSource::Dial(id) => self.dials.get_mut(id).map(|d| &mut d.queued),
        };
        if let Ok(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.ready.push_back(source);
        }
    }

    /// Records what the reactor saw.
    pub(super) fn handle_ready(&mut self, token: usize, ready: Ready) {
        let source = token.checked_sub(self.token_base).and_then(SoftSource::of);
        let Some(source) = source else { return };
        match source {
            SoftSource::Link(id) => {
                let Ok(link) = self.links.get_mut(id) else { return };
                link.readable |= ready.readable || ready.hup;
                link.writable |= ready.writable || ready.hup;
                link.hup |= ready.hup;
            }
            SoftSource::Listener(id) => self.note_readable(id),
            SoftSource::Dial(_) => {}
        }
        self.enqueue(source);
    }

    /// Serves up to `SOURCES_PER_TURN` ready sources, each once. True if some have more to do.
    pub(super) fn progress(&mut self, now: Time) -> bool {
        self.trim_idle_links(now);
        self.end_eager_round(now);
        self.retry_short_writes(now);
        while let Some(source) = self.timers.expire(now) {
            match source {
                SoftSource::Link(id) => self.link_timed_out(id, now),
                SoftSource::Listener(_) => self.enqueue(source),
                SoftSource::Dial(id) => self.dial_timed_out(id),
            }
        }
        for _ in 0..self.ready.len().min(SOURCES_PER_TURN) {
            match self.ready.pop_front() {
                Some(SoftSource::Link(id)) => self.serve_link(id, now),
                Some(SoftSource::Listener(id)) => self.serve_listener(id, now),
                Some(SoftSource::Dial(id)) => self.serve_dial(id, now),
                None => break,
            }
        }
        !self.ready.is_empty()
    }

    /// Serves one link: bytes in, bytes out, and the results.
    pub(super) fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        (link.queued, link.idle) = (false, false);
        let received = self.read_link(id);
        let written = self.write_link(id);
        if received.more || written {
            self.enqueue(SoftSource::Link(id));
        }
        if received.received > 0 {
            self.make_hot(id);
        }
        self.finish_turn(id, now);
    }

    /// Reads links that had bytes recently. True if bytes came.
    pub(super) fn poll_hot_links(&mut self, now: Time) -> bool {
        let mut any = self.unparsed.is_some();
        self.end_eager_round(now);
        for _ in 0..self.hot.len().min(LINKS_PER_SPIN) {
            let Some(mut hot) = self.hot.pop_front() else { break };
            let Ok(link) = self.links.get_mut(hot.link) else { continue };
            link.readable = true;
            let stalled = link.stalled;
            if self.read_eager(hot.link) {
                // Eager messages are taken out next, from the lookahead that all links share.
                return true;
            }
            // Bytes that had waited for a receive may be taken in without a new byte.
            if stalled {
                self.enqueue(SoftSource::Link(hot.link));
            }
            let pass = self.read_link(hot.link);
            if pass.received > 0 {
                any = true;
                hot.misses = 0;
                let more = self.write_link(hot.link);
                if pass.more || more {
                    self.enqueue(SoftSource::Link(hot.link));
                }
            } else {
                hot.misses += 1;
            }
            let (ended, id) =
                (self.links.get(hot.link).is_ok_and(|l| l.inbound != Inbound::Open), hot.link);
            if hot.misses < MAX_MISSES && !ended {
                self.hot.push_back(hot);
            }
            if pass.received > 0 || ended {
                self.finish_turn(id, now);
            }
        }
        any
    }

    /// Reads ahead on a link that had bytes recently, and does nothing else. None if there is no such
    /// link; if there are so many that the reactor finds them sooner; or if one waits for room to
    /// write, which the reactor reports.
    pub(super) fn has_news(&mut self) -> Option<bool> {
        if self.unparsed.is_some() || !self.ready.is_empty() {
            return Some(true);
        }
        let (count, mut looked) = (self.hot.len(), None);
        if count > LINKS_PER_SPIN {
            return None;
        }
        for _ in 0..count {
            let Some(hot) = self.hot.pop_front() else { break };
            let id = hot.link;
            self.hot.push_back(hot);
            let Ok(link) = self.links.get_mut(id) else { continue };
            if !link.writable {
                return None;
            }
            link.readable = true;
            if self.read_eager(id) {
                return Some(true);
            }
            if self.links.get(id).is_ok_and(|l| l.inbound != Inbound::Open) {
                self.enqueue(SoftSource::Link(id));
                return Some(true);
            }
            looked = Some(false);
        }
        looked
    }

    pub(super) fn make_hot(&mut self, link: u32) {
        if let Some(hot) = self.hot.iter_mut().find(|h| h.link == link) {
            hot.misses = 0;
            return;
        }
        if self.hot.len() == MAX_HOT {
            self.hot.pop_front();
        }
        self.hot.push_back(HotLink { link, misses: 0 });
    }

    /// Reads a link.
    fn read_link(&mut self, id: u32) -> ReadOutcome {
        self.deliver_unparsed();
        self.with_receives(id, |link, lookahead, keys, srq| {
            link.receive(lookahead, keys, srq, BUDGET)
        })
    }

    /// Calls `f` with a link and the receives that it may use. Afterwards, wakes links that wait for
    /// receives.
    pub(super) fn with_receives<T: Default>(
        &mut self,
        id: u32,
        f: impl FnOnce(&mut SoftLink, &mut [u8], &mut KeyTable, Option<&mut dyn RxSource>) -> T,
    ) -> T {
        let Ok(link) = self.links.get_mut(id) else { return T::default() };
        let queues = match link.owner {
            SoftLinkOwner::Qp(qp) => {
                self.qps.get(qp).ok().and_then(|q| Some((q.attr.srq?.0, q.attr)))
            }
            _ => None,
        };
        let Some((srq, attr)) = queues else {
            return f(link, &mut self.lookahead, &mut self.keys, None);
        };
        let room = self.objects.cqs.get(attr.recv_cq.0).map_or(0, |cq| cq.room());
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return T::default() };
        let mut feed = SrqView { bufs: &mut queue.bufs, room };
        let feed: Option<&mut dyn RxSource> = Some(&mut feed);
        let result = f(link, &mut self.lookahead, &mut self.keys, feed);
        if link.holds_recv_of.is_none() && link.engine.can_spill() {
            link.holds_recv_of = Some(srq);
            queue.begin(id);
        }
        let dry = link.stalled || queue.is_dry();
        if link.stalled {
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
            let more = link.transmit(&mut self.tx_pool, BUDGET);
            let SoftLinkOwner::Qp(qp) = link.owner else { return more };
            if self.qps.get(qp).is_ok_and(|q| q.files.is_none()) || more {
                return more;
            }
            // WRs with files go on when pieces of them have left.
            self.deliver_wcs(id);
            if !self.submit_files(qp) {
                let Ok(link) = self.links.get_mut(id) else { return false };
                return link.transmit(&mut self.tx_pool, BUDGET);
            }
        }
    }

    /// Puts an engine's completions into their queues.
    fn deliver_wcs(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let mut wcs = std::mem::take(&mut self.wcs);
        link.engine.drain_wcs(&mut wcs);
        for wc in wcs.drain(..) {
            if let Some(wc) = self.file_wc(wc) {
                self.complete(wc);
            }
        }
        self.wcs = wcs;
    }

    /// Ends a turn of a link: reports what its engine says, and closes it if it is over.
    pub(super) fn finish_turn(&mut self, id: u32, now: Time) {
        self.deliver_wcs(id);
        while let Some(event) = self.links.get_mut(id).ok().and_then(|l| l.engine.poll_event()) {
            self.link_event(id, event, now);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        let source = SoftSource::Link(id);
        if link.engine.closed() {
            let reset = link.reset_on_close;
            return self.drop_link(id, reset);
        }
        self.short_writes.note(id, link, now);
        let limit = match link.engine.state() {
            QpState::Closing => CLOSE_LIMIT,
            QpState::Error => LAST_BYTES_LIMIT,
            _ => return,
        };
        let sent = std::mem::take(&mut link.sent);
        // Bytes that still leave give an orderly close more time.
        if !self.timers.is_set(source) || (sent > 0 && limit == CLOSE_LIMIT) {
            self.timers.set(source, now + limit);
        }
    }

    fn emit(&mut self, event: CmEvent) {
        self.events.push_back(RnicEvent::Cm(event));
    }

    fn link_event(&mut self, id: u32, event: IwarpEvent, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let owner = link.owner;
        match (owner, event) {
            (SoftLinkOwner::Startup(listener), IwarpEvent::Request { private_data }) => {
                self.add_request(id, listener, private_data);
            }
            (SoftLinkOwner::Qp(qp), IwarpEvent::Established { private_data, ord, ird }) => {
                self.timers.clear(SoftSource::Link(id));
                self.emit(CmEvent::Established { qp: Qp(qp), private_data, ord, ird });
            }
            (SoftLinkOwner::Qp(qp), IwarpEvent::Rejected { private_data }) => {
                self.detach(id, qp);
                self.emit(CmEvent::Rejected { qp: Qp(qp), private_data });
            }
            (SoftLinkOwner::Qp(qp), IwarpEvent::Failed(error)) => {
                let timed_out = link.timed_out;
                self.detach(id, qp);
                let error = match self.qps.get_mut(qp) {
                    Ok(pair) if timed_out => RnicError::Timeout(pair.timeout),
                    _ => error,
                };
                self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
            }
            (SoftLinkOwner::Qp(qp), IwarpEvent::Disconnected(cause)) => {
                link.reset_on_close |= cause == DisconnectCause::Aborted;
                self.flush_files(qp);
                self.detach(id, qp);
                self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
            }
            (SoftLinkOwner::Startup(_) | SoftLinkOwner::Request { .. }, IwarpEvent::Failed(_)) => {
                // The engine may still have a refusal to send.
                self.release_request(id);
                self.timers.set(SoftSource::Link(id), now + LAST_BYTES_LIMIT);
            }
            // A link without an owner has no one to report to.
            _ => {}
        }
    }

    /// Parts a dead queue pair from its link.
    fn detach(&mut self, id: u32, qp: u32) {
        self.kill_qp(qp);
        if let Ok(link) = self.links.get_mut(id) {
            link.owner = SoftLinkOwner::Unowned;
        }
        self.timers.clear(SoftSource::Link(id));
    }

    /// Handles a link whose deadline has passed.
    fn link_timed_out(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.owner {
            SoftLinkOwner::Qp(_) => {
                link.timed_out = link.engine.state() == QpState::Connecting;
                link.inbound = Inbound::Broken;
                link.engine.handle_broken(libc::ETIMEDOUT);
                link.reset_on_close = true;
                // The engine is closed now, and the link is closed with it.
                self.finish_turn(id, now);
            }
            _ => self.drop_link(id, true),
        }
    }

    /// Frees spare memory of links that have been idle since the last visit: ten thousand of them
    /// must stay cheap. Visits a few links at a time.
    fn trim_idle_links(&mut self, now: Time) {
        if now.since(self.last_sweep) < SWEEP_PERIOD {
            return;
        }
        self.last_sweep = now;
        for _ in 0..SWEEP_STEP.min(self.links.places()) {
            self.sweep_pos = (self.sweep_pos + 1) % self.links.places();
            if let Some(link) = self.links.at_mut(self.sweep_pos)
                && std::mem::replace(&mut link.idle, true)
            {
                link.engine.trim();
            }
        }
    }

    /// Closes a link.
    pub(super) fn drop_link(&mut self, id: u32, reset: bool) {
        self.release_request(id);
        let Ok(mut link) = self.links.remove(id) else { return };
        self.timers.clear(SoftSource::Link(id));
        if let Some(Ok(queue)) = link.holds_recv_of.map(|srq| self.objects.srqs.get_mut(srq)) {
            queue.forget_begun(id);
        }
        if reset {
            // May fail on a connection that is gone: then it is reset already.
            let _ = sys::abort_on_close(&link.stream);
        }
        let _ = self.registry.deregister(&mut link.stream);
        drop(link);
        self.wake_waiting_for_fds();
    }
}
