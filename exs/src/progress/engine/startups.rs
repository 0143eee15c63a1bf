//! The start-ups of a listener's connections, which hold places in its backlog.
//!
//! A peer whose start-up is under way has proved nothing yet: it can send a request, which costs it
//! one message, and fall silent. So each start-up keeps its place for [`GRACE`]. After that it
//! keeps it only while no other peer waits for a place: the oldest start-up gives way.

use std::collections::VecDeque;
use std::time::Duration;

use super::sock::State;
use super::spread::Parcel;
use super::{Engine, SockId};
use crate::progress::shards::Shard;
use crate::time::Time;

/// The time for which a start-up keeps its place in a full backlog while other peers wait. A
/// start-up takes a round trip.
const GRACE: Duration = Duration::from_secs(1);

/// A start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupId {
    /// Of a socket of this shard.
    Here(SockId),
    /// In another shard, under this number.
    There(Shard, u64),
}

/// The start-ups under way, the oldest first, and when each began.
#[derive(Default)]
pub(super) struct Startups(VecDeque<(StartupId, Time)>);

impl Startups {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn begin(&mut self, child: StartupId, now: Time) {
        self.0.push_back((child, now));
    }

    /// A start-up has succeeded or failed.
    pub(super) fn end(&mut self, child: StartupId) {
        if let Some(at) = self.0.iter().position(|(c, _)| *c == child) {
            self.0.remove(at);
        }
    }

    /// The time at which the oldest start-up is overdue.
    pub(super) fn due(&self) -> Option<Time> {
        self.0.front().map(|(_, since)| *since + GRACE)
    }

    /// Takes the oldest start-up out, if it is overdue.
    fn take_overdue(&mut self, now: Time) -> Option<StartupId> {
        let due = self.due()?;
        if now < due {
            return None;
        }
        self.0.pop_front().map(|(child, _)| child)
    }
}

impl Engine {
    /// Ends a connection whose start-up is given up.
    pub(super) fn give_up(&mut self, child: SockId) {
        if self.sockets.get(child).is_some() {
            self.sockets[child.index].state = State::Closed;
            self.drop_session(child.index);
            self.sockets.mark(child.index);
        }
    }

    /// Peers wait for places in a full backlog: start-ups that are overdue give theirs up.
    pub(super) fn make_room(&mut self, parent: u32, now: Time) {
        loop {
            let Some(a) = &mut self.sockets[parent].accepts else { return };
            if a.waiting.is_empty() || a.has_room() {
                return;
            }
            let Some(child) = a.starting.take_overdue(now) else { return };
            crate::trace::debug!("a start-up gives its place in the backlog to another peer");
            match child {
                StartupId::Here(child) => self.give_up(child),
                StartupId::There(shard, startup) => {
                    self.neighbours.send(shard, Parcel::GiveUp { startup })
                }
            }
            self.match_accepts(parent, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(index: u32) -> StartupId {
        StartupId::Here(SockId { index, generation: 1 })
    }

    #[test]
    fn the_oldest_gives_way_when_it_has_had_its_time() {
        let start = Time::ZERO + Duration::from_secs(9);
        let mut startups = Startups::default();
        assert_eq!((startups.due(), startups.take_overdue(start + GRACE)), (None, None));
        for index in 0..3 {
            startups.begin(child(index), start + GRACE * index / 2);
        }
        // A start-up of any age can end by itself. To end an unknown one does nothing.
        startups.end(child(1));
        startups.end(child(7));
        assert_eq!((startups.len(), startups.due()), (2, Some(start + GRACE)));
        let before = start + (GRACE - Duration::from_nanos(1));
        assert_eq!(startups.take_overdue(before), None);
        assert_eq!(startups.take_overdue(start + GRACE), Some(child(0)));
        assert_eq!(startups.take_overdue(start + GRACE), None, "the next has its own second");
        assert_eq!(startups.take_overdue(start + 2 * GRACE), Some(child(2)));
        assert_eq!(startups.len(), 0);
    }
}
