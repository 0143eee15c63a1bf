//! Everything that depends on time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

use super::proto::Proto;
use super::receiver::Fate;
use super::{OpError, Port, Session};

/// How long a send may wait for an ADVERT before it goes by the ring: longer than a peer needs
/// that serves a thousand connections in turn.
const PATIENCE: Duration = Duration::from_millis(400);

/// An operation that is being ended before its time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Watched {
    Send(u64),
    Recv(u64),
}

/// Points in time.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// The last sign of life from the peer.
    heard: Time,
    /// When the probe that is out was due; none if the peer has answered since.
    probed: Option<Time>,
    /// Since when the peer owes an answer, or must take data; none if it owes nothing.
    expecting: Option<Time>,
    /// When the first message must have arrived; none once it has.
    pub(super) handshake: Option<Time>,
    /// When withdrawals must have been answered, in order of time.
    grace: VecDeque<(Time, Watched)>,
    /// Until when a send waits for an ADVERT; none if no send waits.
    patience: Option<Time>,
    /// Until when sends do not expire; none if no wait for an ADVERT ended too late.
    respite: Option<Time>,
    /// When data moved last, and whether the idle time of the ring is over since.
    moved: Time,
    idle_seen: bool,
    /// The ring or stash is idle: it must be given back as soon as no data lie there.
    drop_ring: bool,
    /// Time limits were changed, so operations do not expire in order.
    pub(super) mixed: bool,
}

impl Timers {
    /// A sign of life.
    pub(super) fn heard(&mut self, now: Time) {
        self.heard = self.heard.max(now);
        self.probed = None;
    }

    /// Data moved, or room for them was made.
    pub(super) fn moved(&mut self, now: Time) {
        self.moved = now;
        (self.idle_seen, self.drop_ring) = (false, false);
    }

    /// The peer owes nothing, and no idle ring waits to be given back.
    pub(super) fn is_calm(&self) -> bool {
        self.expecting.is_none() && !self.drop_ring
    }

    /// Notes whether the peer owes an answer, or must take data.
    pub(super) fn expect(&mut self, now: Time, expecting: bool) {
        self.expecting = expecting.then(|| self.expecting.unwrap_or(now));
    }

    /// Operations that are being ended and are still watched.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.grace.len()
    }

    #[expect(clippy::unused_self, reason = "limits are a matter of this file")]
    pub(super) fn deadline(&self, now: Time, limit: Option<Duration>) -> Option<Time> {
        limit.map(|limit| now + limit)
    }
}

/// The earlier of two points in time, of which either may be missing.
#[inline]
fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Session {
    /// When `handle_timeout` must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        if !self.life.is_connected() {
            return None;
        }
        // Without a limit there are no deadlines, and there may be many operations.
        let (limits, mixed) = (&self.cfg, self.timers.mixed);
        let sends = self.send_deadline();
        let recvs = (mixed || limits.recv_timeout.is_some())
            .then(|| self.first_deadline(self.receiver.deadlines()))
            .flatten();
        // Each message asks for it, so it is written as a chain of comparisons.
        let first = sooner(sends, recvs);
        let first = sooner(first, self.timers.handshake);
        let first = sooner(first, self.closing.deadline());
        let first = sooner(first, self.grace_end());
        let first = sooner(first, self.ring_idle_at());
        let first = sooner(first, self.probe_at());
        let first = sooner(first, self.dead_at());
        let first = sooner(first, self.extra.lull_ends(&limits.demand));
        sooner(first, self.timers.patience)
    }

    fn send_deadline(&self) -> Option<Time> {
        (self.timers.mixed || self.cfg.send_timeout.is_some())
            .then(|| self.first_deadline(self.sender.deadlines()))
            .flatten()
            .map(|at| self.timers.respite.map_or(at, |respite| at.max(respite)))
    }

    /// The earliest deadline. They rise with the order of posting, unless the limits
    /// were changed.
    fn first_deadline(&self, mut all: impl Iterator<Item = Option<Time>>) -> Option<Time> {
        if self.timers.mixed { all.flatten().min() } else { all.find_map(|d| d) }
    }

    /// Does what is due by time. Call it at `next_timeout`; an early call does no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.assert_here();
        if !self.life.is_connected() {
            return;
        }
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if due(self.timers.handshake) {
            let after = self.cfg.handshake_timeout;
            return self.fail(OpError::TimedOut { what: "the peer's first message", after });
        }
        if due(self.closing.deadline()) {
            let after = self.closing.linger();
            return self.fail(OpError::TimedOut { what: "close", after });
        }
        self.end_patience(now);
        self.expire_ops(now);
        if due(self.grace_end()) {
            return self.fail(OpError::Unreachable { silent: self.grace() });
        }
        if due(self.dead_at()) {
            return self.fail(OpError::Unreachable { silent: now.since(self.timers.heard) });
        }
        if due(self.probe_at()) {
            self.timers.probed = Some(now);
            self.out.request_ping();
        }
        self.end_lull(now);
        if due(self.ring_idle_at()) {
            self.ring_idle();
        }
    }

    /// Ends the wait for an ADVERT if its time is over. A thread that ran late finds the limit of the
    /// send past, too. The send has not had the time that was left to go by the ring: it gets it now.
    fn end_patience(&mut self, now: Time) {
        if self.timers.patience.is_none_or(|at| at > now) {
            return;
        }
        self.timers.patience = None;
        let Some(Proto::Stream(s)) = &mut self.proto else { return };
        if !s.tx.is_waiting() {
            return;
        }
        s.tx.give_up();
        if self.send_deadline().is_some_and(|at| at <= now) {
            let limit = self.cfg.send_timeout.unwrap_or(PATIENCE);
            self.timers.respite = Some(now + (limit / 2).min(PATIENCE));
        }
    }

    /// Ends operations whose time is over.
    fn expire_ops(&mut self, now: Time) {
        let (send_limit, recv_limit) = (self.cfg.send_timeout, self.cfg.recv_timeout);
        let respite = self.timers.respite.is_some_and(|at| at > now);
        while !respite && let Some(id) = self.sender.overdue(now) {
            let after = send_limit.unwrap_or_default();
            self.end_send(now, id, OpError::TimedOut { what: "send", after });
        }
        while let Some(user) = self.receiver.overdue(now) {
            let after = recv_limit.unwrap_or_default();
            let error = OpError::TimedOut { what: "receive", after };
            self.end_recvs_of(now, user, &Fate::Error(error));
        }
    }

    /// Sets the time until which a send waits for an ADVERT, if one waits.
    pub(super) fn watch_patience(&mut self, now: Time) {
        let waits = matches!(&self.proto, Some(Proto::Stream(s)) if s.tx.is_waiting());
        self.timers.patience = waits.then(|| {
            // The wait ends while there is time left to go by the ring.
            let limits = [self.closing.deadline(), self.send_deadline()].into_iter().flatten();
            let until = limits.map(|at| now + at.since(now) / 2).fold(now + PATIENCE, Time::min);
            self.timers.patience.map_or(until, |before| before.min(until))
        });
    }

    /// How long the peer may take to answer a withdrawal.
    fn grace(&self) -> Duration {
        self.cfg.dead_after.unwrap_or(self.cfg.linger)
    }

    /// Watches an operation that is being ended, so that it ends in time.
    pub(super) fn watch(&mut self, now: Time, what: Watched) {
        let until = now + self.grace();
        self.forget_ended();
        self.timers.grace.push_back((until, what));
    }

    /// Forgets watched operations that have ended, so that no message has to look at them.
    pub(super) fn forget_ended(&mut self) {
        while let Some((_, front)) = self.timers.grace.front()
            && !self.is_pending(*front)
        {
            self.timers.grace.pop_front();
        }
    }

    fn is_pending(&self, what: Watched) -> bool {
        match what {
            Watched::Send(id) => self.sender.contains(id),
            Watched::Recv(id) => self.receiver.contains(id),
        }
    }

    /// No withdrawal waits for the peer's answer.
    #[inline]
    pub(super) fn is_trusting(&self) -> bool {
        self.timers.grace.is_empty() || self.grace_end().is_none()
    }

    pub(super) fn grace_end(&self) -> Option<Time> {
        let mut pending = self.timers.grace.iter().filter(|(_, what)| self.is_pending(*what));
        pending.next().map(|(until, _)| *until)
    }

    /// The peer must take data, or answer.
    pub(super) fn expects(&self) -> bool {
        !self.sender.is_empty()
            || !self.sided.is_empty()
            || self.life.is_closing()
            || !self.is_flushed()
            || self.grace_end().is_some()
    }

    /// How long a silence lasts before this side sends a probe; none: for ever.
    fn patience(&self) -> Option<Duration> {
        let half = self.cfg.dead_after.map(|d| d / 2);
        let hurry = half.filter(|_| self.timers.expecting.is_some());
        match (self.cfg.keepalive, hurry) {
            (Some(k), Some(h)) => Some(k.min(h)),
            (k, h) => k.or(h),
        }
    }

    fn watches_life(&self) -> bool {
        self.life.may_talk()
    }

    /// When to probe the peer next.
    fn probe_at(&self) -> Option<Time> {
        let from = match (self.timers.probed, self.cfg.dead_after) {
            // One probe decides; without a limit, go on asking.
            (Some(_), Some(_)) => return None,
            (Some(probed), None) => probed,
            (None, _) => self.timers.heard,
        };
        self.patience().filter(|_| self.watches_life()).map(|p| from + p)
    }

    /// When the peer counts as dead: it has been silent for `dead_after`, and for half of that
    /// since it was probed.
    fn dead_at(&self) -> Option<Time> {
        let limit = self.cfg.dead_after.filter(|_| self.watches_life())?;
        let probed = self.timers.probed?;
        Some((self.timers.heard + limit).max(probed + limit / 2))
    }

    /// When the idle time of the rings is over; none if there is no ring.
    fn ring_idle_at(&self) -> Option<Time> {
        let theirs = match &self.proto {
            Some(Proto::Stream(s)) => s.tx.ring().is_some(),
            _ => false,
        };
        let any = self.ring.exists() || theirs;
        let after = self.cfg.ring_idle.filter(|_| any && !self.timers.idle_seen)?;
        Some(self.timers.moved + after)
    }

    fn ring_idle(&mut self) {
        (self.timers.idle_seen, self.timers.drop_ring) = (true, true);
        if let Some(Proto::Stream(s)) = &mut self.proto {
            s.tx.idle_ring_release();
            s.rx.idle();
        }
    }

    /// Gives an idle ring or stash back, now or when the data in it have been read. Reading them
    /// moves no data on the wire, so it begins no new idle time.
    pub(super) fn drop_idle_ring(&mut self, port: &mut dyn Port) {
        if !self.timers.drop_ring || self.proto.as_ref().is_some_and(Proto::holds_data) {
            return;
        }
        self.timers.drop_ring = false;
        match &mut self.proto {
            // The peer may hold a window onto the ring.
            Some(Proto::Stream(s)) => {
                s.rx.idle();
                self.drive_rx(port, None);
                self.flush_outbox(port);
            }
            // The peer has no part in the stash of a seqpacket socket.
            _ => self.ring.free(port),
        }
    }
}
