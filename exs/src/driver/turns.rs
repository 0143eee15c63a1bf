//! Progress: which sources are ready or due, and whose turn it is.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use mio::Interest;

use super::Driver;
use super::deadlines::Deadlines;
use super::link::{Link, Traffic};
use crate::rnic::table::ID_BITS;
use crate::rnic::{Ready, RnicError};
use crate::sys::{unwatch, watch_exclusively};
use crate::time::Time;

/// Sources served in one call. With a thousand busy connections a longer call would hold the lock
/// for tens of milliseconds. The program could post no receive meanwhile, and arriving data would go
/// by the rings: copied twice, and out of caches by then.
pub(crate) const SOURCES_PER_TURN: usize = 16;

/// An object that becomes ready or falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A link: its socket, its records, its deadline.
    Link(u32),
    /// A listener.
    Listener(u32),
    /// A connection that has no link yet: a connect under way, a peer that has not said hello.
    Opening(u32),
    /// A connection that carries several links.
    Group(u32),
    /// The doorbell of the whole driver.
    Doorbell,
}

/// The token of the doorbell has this number, which no group has: a table has fewer places.
const BELL: u32 = (1 << ID_BITS) - 1;

impl Source {
    /// The token of this source, relative to the driver's first.
    fn token(self) -> usize {
        let (kind, id) = match self {
            Source::Link(id) => (0, id),
            Source::Listener(id) => (1, id),
            Source::Opening(id) => (2, id),
            Source::Group(id) => (3, id),
            Source::Doorbell => (3, BELL),
        };
        (kind << ID_BITS) | id as usize
    }

    /// The source of a token; None if no source of this driver can have it.
    fn of(token: usize) -> Option<Source> {
        let id = u32::try_from(token & ((1 << ID_BITS) - 1)).ok()?;
        match token >> ID_BITS {
            0 => Some(Source::Link(id)),
            1 => Some(Source::Listener(id)),
            2 => Some(Source::Opening(id)),
            3 if id == BELL => Some(Source::Doorbell),
            3 => Some(Source::Group(id)),
            _ => None,
        }
    }
}

/// The driver's share of the reactor: tokens from its first one up to 2^32 further.
#[derive(Debug)]
pub struct ReactorShare {
    registry: mio::Registry,
    token_base: usize,
}

impl ReactorShare {
    pub(super) fn new(registry: mio::Registry, token_base: usize) -> ReactorShare {
        ReactorShare { registry, token_base }
    }

    /// Registers a descriptor for a source.
    pub(crate) fn watch(
        &self,
        descriptor: &mut impl mio::event::Source,
        source: Source,
        interest: Interest,
    ) -> Result<(), RnicError> {
        let registered = self.registry.register(descriptor, self.token(source), interest);
        registered.map_err(|e| RnicError::os("epoll_ctl", &e))
    }

    /// Registers a descriptor for a source anew, with another interest. What it is ready for by then
    /// is reported again.
    pub(crate) fn watch_anew(
        &self,
        descriptor: &mut impl mio::event::Source,
        source: Source,
        interest: Interest,
    ) -> Result<(), RnicError> {
        let registered = self.registry.reregister(descriptor, self.token(source), interest);
        registered.map_err(|e| RnicError::os("epoll_ctl", &e))
    }

    /// Registers a descriptor that other reactors watch, too: see [`watch_exclusively`].
    pub(crate) fn watch_exclusively(
        &self,
        fd: BorrowedFd<'_>,
        source: Source,
    ) -> Result<(), RnicError> {
        let registered = watch_exclusively(&self.registry, fd, self.token(source).0);
        registered.map_err(|e| RnicError::os("epoll_ctl", &e))
    }

    /// Removes a descriptor that other reactors watch, too.
    pub(crate) fn forget_exclusive(&self, fd: BorrowedFd<'_>) {
        unwatch(&self.registry, fd);
    }

    fn token(&self, source: Source) -> mio::Token {
        mio::Token(self.token_base + source.token())
    }

    /// Removes a descriptor, whether it was registered or not.
    pub(crate) fn forget(&self, descriptor: &mut impl mio::event::Source) {
        let _ = self.registry.deregister(descriptor);
    }

    fn source(&self, token: usize) -> Option<Source> {
        token.checked_sub(self.token_base).and_then(Source::of)
    }
}

/// The sources that are ready, and the deadlines of those that have one.
#[derive(Default)]
pub(crate) struct Turns {
    /// The ready list. Each source is on it once: the object itself has the mark.
    pub(crate) ready: VecDeque<Source>,
    pub(crate) timers: Deadlines<Source>,
    /// Sources served since the driver set this to 0 last.
    pub(crate) served: usize,
}

impl<L: Link> Driver<L> {
    /// Puts a source on the ready list, once.
    pub(crate) fn enqueue(&mut self, source: Source) {
        let queued = match source {
            Source::Link(id) => self.links.get_mut(id).ok().map(|l| &mut l.base_mut().queued),
            Source::Listener(id) => self.listening.queued(id),
            Source::Opening(id) => L::opening_queued(&mut self.parts, id),
            Source::Group(id) => L::group_queued(&mut self.parts, id),
            // The doorbell is no work itself: the links that it was rung for are.
            Source::Doorbell => None,
        };
        if let Some(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.turns.ready.push_back(source);
        }
    }
}

impl<L: Traffic> Driver<L> {
    /// Records the readiness that the reactor saw.
    pub(super) fn note_token(&mut self, token: usize, ready: Ready) {
        let Some(source) = self.reactor.source(token) else { return };
        match source {
            Source::Link(id) => {
                let Ok(link) = self.links.get_mut(id) else { return };
                link.note_ready(ready);
                L::became_ready(self, id);
            }
            Source::Listener(id) => self.listening.note_readable(id),
            Source::Doorbell => L::doorbell_rang(self),
            Source::Group(id) => L::group_ready(self, id, ready),
            Source::Opening(_) => {}
        }
        self.enqueue(source);
    }

    /// Serves up to `SOURCES_PER_TURN` ready sources, each once. True if some have more to do.
    pub(super) fn take_turns(&mut self, now: Time) -> bool {
        L::begin_progress(self, now);
        while let Some(source) = self.turns.timers.expire(now) {
            match source {
                Source::Link(id) => L::timed_out(self, id, now),
                Source::Opening(id) => L::opening_timed_out(self, id),
                Source::Group(id) => L::group_timed_out(self, id, now),
                other => self.enqueue(other),
            }
        }
        let turn = self.turns.ready.len().min(SOURCES_PER_TURN);
        self.turns.served += turn;
        for _ in 0..turn {
            match self.turns.ready.pop_front() {
                Some(Source::Link(id)) => L::serve(self, id, now),
                Some(Source::Listener(id)) => self.serve_listener(id, now),
                Some(Source::Opening(id)) => L::serve_opening(self, id, now),
                Some(Source::Group(id)) => L::serve_group(self, id, now),
                Some(Source::Doorbell) | None => {}
            }
        }
        L::end_progress(self, now);
        !self.turns.ready.is_empty()
    }

    /// The time by which `take_turns` must be called.
    pub(super) fn next_due(&self) -> Option<Time> {
        // Work that waits for its turn is due now.
        if !self.turns.ready.is_empty() {
            return Some(Time::ZERO);
        }
        self.turns.timers.next().into_iter().chain(L::due(&self.parts)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_names_its_source() {
        for source in [
            Source::Link(0),
            Source::Listener(7),
            Source::Opening((1 << ID_BITS) - 1),
            Source::Group(0),
            Source::Group(9),
            Source::Doorbell,
        ] {
            assert!(source.token() < 1 << 32);
            assert_eq!(Source::of(source.token()), Some(source));
        }
        assert_eq!(Source::of(4 << ID_BITS), None);
        assert_eq!(Source::of(usize::MAX), None);
    }
}
