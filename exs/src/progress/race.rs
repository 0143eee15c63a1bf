//! Happy Eyeballs (RFC 8305, version 2): the attempts of a connect to a host with several addresses.
//!
//! The resolver has sorted the addresses by RFC 6724. The race keeps the first of them first, and
//! lets the address families take turns behind it (RFC 8305 section 4). It starts the first attempt
//! at once, and each following one 250 ms after the last start (section 5), or as soon as an attempt
//! fails. The first success wins, and the race stops all other attempts. It reads no clock and
//! touches no socket: times come in, and actions go out.
//!
//! Of RFC 8305 it leaves out what needs a resolver of its own: getaddrinfo(3) returns the addresses
//! of both families together, so there is no Resolution Delay (section 3).

use std::net::SocketAddr;
use std::time::Duration;

use crate::time::Time;

/// Connection Attempt Delay: the time between the starts of two attempts, if none fails (RFC 8305
/// section 5 recommends this value).
pub(super) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// What the caller must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Start the attempt with this number, at this address.
    Start(usize, SocketAddr),
    /// Stop the attempt with this number. It counts no more.
    Stop(usize),
    /// All attempts have failed, or the time is up before the first success: [`Race::into_failures`]
    /// says why.
    Lost,
}

/// The state of one attempt. `Waiting` becomes `Running`, and `Running` becomes one of the last three.
#[derive(Debug)]
enum Attempt<E> {
    Waiting,
    Running,
    /// The caller has still to stop it, since another attempt has won.
    Stopping,
    Failed(E),
    /// It has won, or the caller has stopped it.
    Over,
}

/// A race between the addresses of one host. `E` is the error of an attempt.
#[derive(Debug)]
pub(super) struct Race<E> {
    attempts: Vec<(SocketAddr, Attempt<E>)>,
    /// The number of attempts that were started: attempts start in their order.
    started: usize,
    /// When the next attempt starts, if none fails before.
    next_start: Time,
    /// No attempt starts from then on.
    deadline: Time,
    /// The stage of the race.
    stage: RaceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RaceState {
    /// No attempt has succeeded, and some can.
    Open,
    Won,
    Lost,
}

impl<E> Race<E> {
    /// A race between `addrs`, sorted by RFC 6724, which starts now. No attempt starts after
    /// `deadline`; the attempts have limits of their own.
    pub(super) fn new(addrs: &[SocketAddr], now: Time, deadline: Time) -> Race<E> {
        let attempts = take_turns(addrs).into_iter().map(|addr| (addr, Attempt::Waiting)).collect();
        Race { attempts, started: 0, next_start: now, deadline, stage: RaceState::Open }
    }

    /// What to do next. None: nothing, until an attempt ends or [`Race::next_timeout`] comes.
    pub(super) fn poll_action(&mut self, now: Time) -> Option<Action> {
        if let Some(number) = self.attempts.iter().position(|(_, a)| matches!(a, Attempt::Stopping))
        {
            self.attempts[number].1 = Attempt::Over;
            return Some(Action::Stop(number));
        }
        if self.stage != RaceState::Open {
            return None;
        }
        let running = self.is_running();
        if self.started < self.attempts.len() && now < self.deadline {
            if running && now < self.next_start {
                return None;
            }
            let number = self.started;
            self.started += 1;
            self.next_start = now + ATTEMPT_DELAY;
            self.attempts[number].1 = Attempt::Running;
            return Some(Action::Start(number, self.attempts[number].0));
        }
        if running {
            return None;
        }
        self.stage = RaceState::Lost;
        Some(Action::Lost)
    }

    /// An attempt has succeeded. False: it is too late, and the caller must drop what the attempt
    /// has made.
    pub(super) fn handle_success(&mut self, number: usize) -> bool {
        if self.stage != RaceState::Open || !self.take_running(number) {
            return false;
        }
        self.attempts[number].1 = Attempt::Over;
        self.end(RaceState::Won);
        true
    }

    /// An attempt has failed. The next one starts at once.
    pub(super) fn handle_failure(&mut self, number: usize, error: E, now: Time) {
        if self.stage == RaceState::Open && self.take_running(number) {
            self.attempts[number].1 = Attempt::Failed(error);
            self.next_start = now;
        }
    }

    /// The caller gives up: all running attempts must stop.
    pub(super) fn handle_cancel(&mut self) {
        if self.stage == RaceState::Open {
            self.end(RaceState::Lost);
        }
    }

    fn end(&mut self, stage: RaceState) {
        self.stage = stage;
        for (_, attempt) in &mut self.attempts {
            if matches!(attempt, Attempt::Running) {
                *attempt = Attempt::Stopping;
            }
        }
    }

    fn is_running(&self) -> bool {
        self.attempts.iter().any(|(_, a)| matches!(a, Attempt::Running))
    }

    fn take_running(&self, number: usize) -> bool {
        self.attempts.get(number).is_some_and(|(_, a)| matches!(a, Attempt::Running))
    }

    /// When [`Race::poll_action`] will have something to do, though no attempt ends. None: never.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let waits = self.stage == RaceState::Open && self.started < self.attempts.len();
        (waits && self.next_start < self.deadline).then_some(self.next_start)
    }

    /// Each address that was tried with the reason of its failure, and the addresses for which no
    /// time was left.
    pub(super) fn into_failures(self) -> (Vec<(SocketAddr, E)>, Vec<SocketAddr>) {
        let (mut failed, mut untried) = (Vec::new(), Vec::new());
        for (addr, attempt) in self.attempts {
            match attempt {
                Attempt::Failed(error) => failed.push((addr, error)),
                Attempt::Waiting => untried.push(addr),
                Attempt::Running | Attempt::Stopping | Attempt::Over => {}
            }
        }
        (failed, untried)
    }
}

/// The addresses in the order of the attempts, each once: the first stays first, and from there on
/// the families take turns while both have addresses left (RFC 8305 section 4, with a First Address
/// Family Count of 1). An IPv4-mapped IPv6 address goes by IPv4.
fn take_turns(addrs: &[SocketAddr]) -> Vec<SocketAddr> {
    let v4 = |a: &SocketAddr| a.ip().to_canonical().is_ipv4();
    let mut once: Vec<SocketAddr> = Vec::with_capacity(addrs.len());
    for addr in addrs {
        if !once.contains(addr) {
            once.push(*addr);
        }
    }
    let Some(first) = once.first().map(v4) else { return once };
    let (ours, others): (Vec<_>, Vec<_>) = once.into_iter().partition(|a| v4(a) == first);
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    let mut order = Vec::new();
    loop {
        match (ours.next(), others.next()) {
            (None, None) => return order,
            (a, b) => order.extend(a.into_iter().chain(b)),
        }
    }
}

#[cfg(test)]
mod tests;
