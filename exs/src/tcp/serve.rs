//! Progress: what is ready is served, and what the engines say is passed on.

use super::SoftRnic;
use super::link::{Link, Owner, Pass};
use super::qp::Conn;
use super::queues::Feed;
use super::timers::Source;
use crate::iwarp::{IwarpEvent, RxSource};
use crate::mem::KeyTable;
use crate::rnic::{CmEvent, Disconnect, DisconnectCause, Qp, QpState, Ready, RnicError, RnicEvent};
use crate::sys;
use crate::time::Time;
use std::time::Duration;

/// Bytes that one connection may move, each way, before the next has its turn.
const BUDGET: usize = 1 << 20;
/// Sources that are served in one go. With a thousand busy connections the lock would
/// else be held for tens of milliseconds, the program could post no receive meanwhile, and
/// what came would go by the rings, copied twice, out of caches that it has left.
pub(super) const TURN: usize = 16;
/// How long an orderly close may stand still before it is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// How long last bytes (a TERMINATE, a reject) may take.
pub(super) const FAREWELL_LIMIT: Duration = Duration::from_secs(2);
/// Connections that `spin` looks after: those that lately had bytes.
const HOT: usize = 16;
/// Of these, how many in one call.
const SPIN_STEP: usize = 4;
/// A connection without bytes for so many turns is no longer looked after.
const COLD: u32 = 4096;

/// How often `sweep` comes by, and how many links it looks at.
const SWEEP_PERIOD: Duration = Duration::from_millis(100);
const SWEEP_STEP: usize = 256;

/// A connection that `spin` looks after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hot {
    link: u32,
    misses: u32,
}

impl SoftRnic {
    /// Puts what a queue pair has posted on the wire.
    pub(super) fn flush(&mut self, qp: Qp, now: Time) {
        let Ok(Conn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        link.rung = true;
        if link.writable {
            if self.write_link(id) {
                self.enqueue(Source::Link(id));
            }
            self.settle(id, now);
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
            Conn::None | Conn::Dead => return Err(self.wrong_state(qp, "a connection")),
            Conn::Dial(dial) => {
                let (call, errno) = ("connect", libc::ECANCELED);
                self.fail_dial(dial, RnicError::Os { call, errno });
            }
            Conn::Link(id) => match (state, how) {
                (QpState::Error, _) => return Err(self.wrong_state(qp, "a connection")),
                (QpState::Rts, Disconnect::Orderly) => {
                    let pair = self.qps.get_mut(qp.0)?;
                    // File WRs that wait are posted too: they leave first.
                    pair.closing = pair.files.is_some();
                    let closing = pair.closing;
                    let link = self.links.get_mut(id)?;
                    link.rung = true;
                    if !closing {
                        link.engine.disconnect(Disconnect::Orderly);
                    }
                    self.enqueue(Source::Link(id));
                    self.settle(id, now);
                }
                (QpState::Closing, Disconnect::Orderly) => {}
                _ => {
                    let link = self.links.get_mut(id)?;
                    link.reset = true;
                    link.engine.disconnect(Disconnect::Abort);
                    self.enqueue(Source::Link(id));
                    self.settle(id, now);
                }
            },
        }
        Ok(())
    }

    /// Puts a source on the ready list, once.
    pub(super) fn enqueue(&mut self, source: Source) {
        let queued = match source {
            Source::Link(id) => self.links.get_mut(id).map(|l| &mut l.queued),
            Source::Listener(id) => self.listeners.get_mut(id).map(|l| &mut l.queued),
            Source::Dial(id) => self.dials.get_mut(id).map(|d| &mut d.queued),
        };
        if let Ok(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.ready.push_back(source);
        }
    }

    /// Takes over what the reactor saw.
    pub(super) fn handle_ready(&mut self, token: usize, ready: Ready) {
        let source = token.checked_sub(self.token_base).and_then(Source::of);
        let Some(source) = source else { return };
        match source {
            Source::Link(id) => {
                let Ok(link) = self.links.get_mut(id) else { return };
                link.readable |= ready.readable || ready.hup;
                link.writable |= ready.writable || ready.hup;
                link.hup |= ready.hup;
            }
            Source::Listener(id) => self.note_callers(id),
            Source::Dial(_) => {}
        }
        self.enqueue(source);
    }

    /// Serves the sources that are ready, each once, and so many at most. True if some have
    /// more to do.
    pub(super) fn progress(&mut self, now: Time) -> bool {
        self.sweep(now);
        self.settle_ahead(now);
        self.settle_doubts(now);
        while let Some(source) = self.timers.expire(now) {
            match source {
                Source::Link(id) => self.link_due(id, now),
                Source::Listener(_) => self.enqueue(source),
                Source::Dial(id) => self.dial_due(id),
            }
        }
        for _ in 0..self.ready.len().min(TURN) {
            match self.ready.pop_front() {
                Some(Source::Link(id)) => self.serve_link(id, now),
                Some(Source::Listener(id)) => self.serve_listener(id, now),
                Some(Source::Dial(id)) => self.serve_dial(id, now),
                None => break,
            }
        }
        !self.ready.is_empty()
    }

    /// One link's turn: bytes in, bytes out, and what comes of it.
    pub(super) fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        (link.queued, link.idle) = (false, false);
        let received = self.read_link(id);
        let written = self.write_link(id);
        if received.more || written {
            self.enqueue(Source::Link(id));
        }
        if received.received > 0 {
            self.warm(id);
        }
        self.settle(id, now);
    }

    /// Tries for bytes on the links that lately had some.
    pub(super) fn spin(&mut self, now: Time) -> bool {
        let mut any = self.ahead.is_some();
        self.settle_ahead(now);
        for _ in 0..self.hot.len().min(SPIN_STEP) {
            let Some(mut hot) = self.hot.pop_front() else { break };
            let Ok(link) = self.links.get_mut(hot.link) else { continue };
            link.readable = true;
            let stalled = link.stalled;
            if self.fetch(hot.link) {
                // They are taken out next, from the lookahead that all links share.
                return true;
            }
            // What had waited for a receive may be taken in without a new byte.
            if stalled {
                self.enqueue(Source::Link(hot.link));
            }
            let pass = self.read_link(hot.link);
            if pass.received > 0 {
                any = true;
                hot.misses = 0;
                let more = self.write_link(hot.link);
                if pass.more || more {
                    self.enqueue(Source::Link(hot.link));
                }
            } else {
                hot.misses += 1;
            }
            let (ended, id) = (self.links.get(hot.link).is_ok_and(|l| l.eof), hot.link);
            if hot.misses < COLD && !ended {
                self.hot.push_back(hot);
            }
            if pass.received > 0 || ended {
                self.settle(id, now);
            }
        }
        any
    }

    /// Reads ahead on a link that lately had something, and does no more than that. None if
    /// there is no such link, if there are so many that the reactor finds them sooner, or if one
    /// waits for room to write, of which the reactor tells.
    pub(super) fn poll_syscall(&mut self) -> Option<bool> {
        if self.ahead.is_some() || !self.ready.is_empty() {
            return Some(true);
        }
        let (count, mut looked) = (self.hot.len(), None);
        if count > SPIN_STEP {
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
            if self.fetch(id) {
                return Some(true);
            }
            if self.links.get(id).is_ok_and(|l| l.eof) {
                self.enqueue(Source::Link(id));
                return Some(true);
            }
            looked = Some(false);
        }
        looked
    }

    pub(super) fn warm(&mut self, link: u32) {
        if let Some(hot) = self.hot.iter_mut().find(|h| h.link == link) {
            hot.misses = 0;
            return;
        }
        if self.hot.len() == HOT {
            self.hot.pop_front();
        }
        self.hot.push_back(Hot { link, misses: 0 });
    }

    /// Reads what is there on a link.
    fn read_link(&mut self, id: u32) -> Pass {
        self.finish_ahead();
        self.feed(id, |link, lookahead, keys, srq| link.receive(lookahead, keys, srq, BUDGET))
    }

    /// Lets a link take in what came, with what it needs for that.
    pub(super) fn feed<T: Default>(
        &mut self,
        id: u32,
        f: impl FnOnce(&mut Link, &mut [u8], &mut KeyTable, Option<&mut dyn RxSource>) -> T,
    ) -> T {
        let Ok(link) = self.links.get_mut(id) else { return T::default() };
        let queues = match link.owner {
            Owner::Qp(qp) => self.qps.get(qp).ok().and_then(|q| Some((q.attr.srq?.0, q.attr))),
            _ => None,
        };
        let Some((srq, attr)) = queues else {
            return f(link, &mut self.lookahead, &mut self.keys, None);
        };
        let room = self.objects.cqs.get(attr.recv_cq.0).map_or(0, |cq| cq.room());
        let Ok(queue) = self.objects.srqs.get_mut(srq) else { return T::default() };
        let mut feed = Feed { bufs: &mut queue.bufs, room };
        let feed: Option<&mut dyn RxSource> = Some(&mut feed);
        let result = f(link, &mut self.lookahead, &mut self.keys, feed);
        if link.begun.is_none() && link.engine.can_spill() {
            link.begun = Some(srq);
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

    /// Sends what there is on a link, file WRs included. True if there is more.
    pub(super) fn write_link(&mut self, id: u32) -> bool {
        loop {
            let Ok(link) = self.links.get_mut(id) else { return false };
            let more = link.transmit(&mut self.tx_pool, BUDGET);
            let Owner::Qp(qp) = link.owner else { return more };
            if self.qps.get(qp).is_ok_and(|q| q.files.is_none()) || more {
                return more;
            }
            // File WRs go on when pieces of them have left.
            self.drain(id);
            if !self.feed_files(qp) {
                let Ok(link) = self.links.get_mut(id) else { return false };
                return link.transmit(&mut self.tx_pool, BUDGET);
            }
        }
    }

    /// Passes an engine's completions on.
    fn drain(&mut self, id: u32) {
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

    /// Passes on what an engine has to say, and closes what is over.
    pub(super) fn settle(&mut self, id: u32, now: Time) {
        self.drain(id);
        while let Some(event) = self.links.get_mut(id).ok().and_then(|l| l.engine.poll_event()) {
            self.link_event(id, event, now);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        let source = Source::Link(id);
        if link.engine.closed() {
            let reset = link.reset;
            return self.drop_link(id, reset);
        }
        self.doubts.note(id, link, now);
        let limit = match link.engine.state() {
            QpState::Closing => CLOSE_LIMIT,
            QpState::Error => FAREWELL_LIMIT,
            _ => return,
        };
        let sent = std::mem::take(&mut link.sent);
        // Bytes that still leave earn an orderly close more time.
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
            (Owner::Greeting(listener), IwarpEvent::Request { private_data }) => {
                self.request_came(id, listener, private_data);
            }
            (Owner::Qp(qp), IwarpEvent::Established { private_data, ord, ird }) => {
                self.timers.clear(Source::Link(id));
                self.emit(CmEvent::Established { qp: Qp(qp), private_data, ord, ird });
            }
            (Owner::Qp(qp), IwarpEvent::Rejected { private_data }) => {
                self.detach(id, qp);
                self.emit(CmEvent::Rejected { qp: Qp(qp), private_data });
            }
            (Owner::Qp(qp), IwarpEvent::Failed(error)) => {
                let timed_out = link.timed_out;
                self.detach(id, qp);
                let error = match self.qps.get_mut(qp) {
                    Ok(pair) if timed_out => RnicError::Timeout(pair.timeout),
                    _ => error,
                };
                self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
            }
            (Owner::Qp(qp), IwarpEvent::Disconnected(cause)) => {
                link.reset |= cause == DisconnectCause::Aborted;
                self.flush_files(qp);
                self.detach(id, qp);
                self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
            }
            (Owner::Greeting(_) | Owner::Asking { .. }, IwarpEvent::Failed(_)) => {
                // The engine may have a refusal to send yet.
                self.disown(id);
                self.timers.set(Source::Link(id), now + FAREWELL_LIMIT);
            }
            // A link that nobody owns has nobody to tell.
            _ => {}
        }
    }

    /// Parts a dead queue pair from its link.
    fn detach(&mut self, id: u32, qp: u32) {
        self.kill_qp(qp);
        if let Ok(link) = self.links.get_mut(id) {
            link.owner = Owner::Nobody;
        }
        self.timers.clear(Source::Link(id));
    }

    /// A link's deadline has passed.
    fn link_due(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.owner {
            Owner::Qp(_) => {
                link.timed_out = link.engine.state() == QpState::Connecting;
                link.broken = true;
                link.engine.handle_broken(libc::ETIMEDOUT);
                link.reset = true;
                // The engine is closed now, and the link goes with it.
                self.settle(id, now);
            }
            _ => self.drop_link(id, true),
        }
    }

    /// Looks at a few links now and then, and takes the spare memory of those that
    /// have been idle since it last came by: ten thousand of them must stay cheap.
    fn sweep(&mut self, now: Time) {
        if now.since(self.swept) < SWEEP_PERIOD {
            return;
        }
        self.swept = now;
        for _ in 0..SWEEP_STEP.min(self.links.places()) {
            self.sweep_at = (self.sweep_at + 1) % self.links.places();
            if let Some(link) = self.links.at_mut(self.sweep_at)
                && std::mem::replace(&mut link.idle, true)
            {
                link.engine.trim();
            }
        }
    }

    /// Closes a link.
    pub(super) fn drop_link(&mut self, id: u32, reset: bool) {
        self.disown(id);
        let Ok(mut link) = self.links.remove(id) else { return };
        self.timers.clear(Source::Link(id));
        if let Some(Ok(queue)) = link.begun.map(|srq| self.objects.srqs.get_mut(srq)) {
            queue.forget_begun(id);
        }
        if reset {
            // May fail on a connection that is gone: then it is reset already.
            let _ = sys::abort_on_close(&link.stream);
        }
        let _ = self.registry.deregister(&mut link.stream);
        drop(link);
        self.wake_starved();
    }
}
