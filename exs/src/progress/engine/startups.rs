//! The start-ups of a listener's connections, which hold places in its backlog.
//!
//! A peer whose start-up is under way has proved nothing yet: it can send a request, which costs it
//! one message, and fall silent. So each start-up keeps its place for [`GRACE`]. After that it is
//! *late*, and keeps its place only while no other peer waits for one.
//!
//! The software RNIC and shared memory establish a connection with the answer. Start-ups there last
//! only while they pass between shards; those on RDMA devices wait for the peer.
//!
//! A late start-up goes on without a place. The time that a start-up takes says little about its
//! peer: a loaded host is slow with all of them, and InfiniBand's CM repeats a lost message only after
//! four seconds. So an honest peer gets its connection, however slow the hosts are. Only when more than
//! [`MOST_LATE`] start-ups of a listener are late does the engine end the oldest. That bounds what
//! silent peers can take.

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
/// The most late start-ups of a listener: as many as requests may wait beyond its backlog. Fewer where
/// the process may have few descriptors, as most transports take one for each.
const MOST_LATE: usize = super::cm::PATIENCE;
/// A start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupId {
    /// Of a socket of this shard.
    Here(SockId),
    /// In another shard, under this number.
    There(Shard, u64),
}

/// The start-ups under way.
#[derive(Default)]
pub(super) struct Startups {
    /// Those with a place in the backlog, the oldest first, and when each began.
    placed: VecDeque<(StartupId, Time)>,
    /// Late ones without a place, the oldest first.
    late: VecDeque<StartupId>,
}

impl Startups {
    /// The number of places that they hold.
    pub(super) fn places(&self) -> usize {
        self.placed.len()
    }

    pub(super) fn begin(&mut self, child: StartupId, now: Time) {
        self.placed.push_back((child, now));
    }

    /// A start-up has succeeded or failed.
    pub(super) fn end(&mut self, child: StartupId) {
        if let Some(at) = self.placed.iter().position(|(c, _)| *c == child) {
            self.placed.remove(at);
        } else if let Some(at) = self.late.iter().position(|c| *c == child) {
            self.late.remove(at);
        }
    }

    /// The time at which the oldest start-up with a place is late.
    pub(super) fn due(&self) -> Option<Time> {
        self.placed.front().map(|(_, since)| *since + GRACE)
    }

    /// Takes the place of the oldest start-up, if it is late. False: it is not.
    fn take_place(&mut self, now: Time) -> bool {
        let late = self.due().is_some_and(|due| due <= now);
        if late {
            self.late.extend(self.placed.pop_front().map(|(child, _)| child));
        }
        late
    }

    /// Takes out the oldest late start-up, if there are more than `most`.
    fn take_excess(&mut self, most: usize) -> Option<StartupId> {
        if self.late.len() > most { self.late.pop_front() } else { None }
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

    /// Peers wait for places in a full backlog: start-ups that are late give theirs up.
    pub(super) fn make_room(&mut self, parent: u32, now: Time) {
        loop {
            let Some(a) = &mut self.sockets[parent].accepts else { return };
            if a.waiting.is_empty() || a.has_room() || !a.starting.take_place(now) {
                return;
            }
            crate::trace::debug!("a late start-up gives its place in the backlog to another peer");
            match a.starting.take_excess(crate::sys::most_strangers(MOST_LATE)) {
                Some(StartupId::Here(child)) => self.give_up(child),
                Some(StartupId::There(shard, startup)) => {
                    self.neighbours.send(shard, Parcel::GiveUp { startup });
                }
                None => {}
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
    fn the_oldest_loses_its_place_when_it_has_had_its_time() {
        let start = Time::ZERO + Duration::from_secs(9);
        let mut startups = Startups::default();
        assert_eq!((startups.due(), startups.take_place(start + GRACE)), (None, false));
        for index in 0..3 {
            startups.begin(child(index), start + GRACE * index / 2);
        }
        // A start-up of any age can end by itself. To end an unknown one does nothing.
        startups.end(child(1));
        startups.end(child(7));
        assert_eq!((startups.places(), startups.due()), (2, Some(start + GRACE)));
        let before = start + (GRACE - Duration::from_nanos(1));
        assert!(!startups.take_place(before));
        assert!(startups.take_place(start + GRACE));
        assert!(!startups.take_place(start + GRACE), "the next has its own second");
        assert!(startups.take_place(start + 2 * GRACE));
        assert_eq!(startups.places(), 0);
    }

    #[test]
    fn a_late_start_up_goes_on_unless_there_are_too_many() {
        let (start, mut startups) = (Time::ZERO, Startups::default());
        for index in 0..5 {
            startups.begin(child(index), start);
            assert!(startups.take_place(start + GRACE));
        }
        assert_eq!(startups.take_excess(5), None);
        assert_eq!(startups.take_excess(4), Some(child(0)), "the oldest");
        assert_eq!(startups.take_excess(4), None);
        startups.end(child(2));
        assert_eq!((startups.take_excess(2), startups.take_excess(2)), (Some(child(1)), None));
    }
}
