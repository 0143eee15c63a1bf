//! The sums of what the connections of each device counted, including connections that are gone.
//!
//! The sum over ten thousand live connections takes milliseconds, for which no thread may hold the
//! engine. So a *walk* visits some slots of the table at a time, and the lock is free in between.
//! Connections end meanwhile. One that ends before the walk has come to its slot is added when it
//! ends. One that ends after that is in the sum as the walk found it, and with its last counters in
//! the next walk. So no sum counts a connection twice, and no sum is less than that of an earlier walk.

use super::Engine;
use super::figures;
use super::sock::State;
use crate::progress::options::Transport;
use crate::session::Counters;
use crate::time::Time;

/// What a device has moved in a shard.
#[derive(Clone, Debug)]
pub(crate) struct DeviceTotals {
    pub(crate) transport: Transport,
    /// The name of the device.
    pub(crate) device: String,
    /// The connections that are up now, or start up.
    pub(crate) connections: u64,
    /// What all connections counted, those that are gone included.
    pub(crate) counters: Counters,
}

/// The sockets of a shard, and what its devices have moved.
#[derive(Clone, Debug, Default)]
pub(in crate::progress) struct ShardTotals {
    /// The sockets that are there now.
    pub(in crate::progress) sockets: u64,
    /// Those of them that listen.
    pub(in crate::progress) listeners: u64,
    pub(in crate::progress) devices: Vec<DeviceTotals>,
}

/// A sum for each device, by its index.
#[derive(Clone, Default)]
struct Sums(Vec<(u64, Counters)>);

impl Sums {
    fn add(&mut self, device: usize, connections: u64, counters: &Counters) {
        if self.0.len() <= device {
            self.0.resize(device + 1, Default::default());
        }
        let (count, sum) = &mut self.0[device];
        *count += connections;
        figures::add(sum, counters);
    }
}

/// A walk that is under way.
struct Walk {
    /// The slot that it visits next.
    next: u32,
    sums: Sums,
    sockets: u64,
    listeners: u64,
}

/// What the connections of a shard counted.
#[derive(Default)]
pub(super) struct Tally {
    /// Those that are gone.
    past: Sums,
    /// None: no walk is under way.
    walk: Option<Box<Walk>>,
}

impl Tally {
    /// The session of a socket has ended.
    pub(super) fn end(&mut self, index: u32, device: usize, counters: &Counters) {
        self.past.add(device, 0, counters);
        if let Some(walk) = self.walk.as_mut().filter(|walk| walk.next <= index) {
            walk.sums.add(device, 0, counters);
        }
    }

    /// The counters of all sessions that are gone.
    pub(super) fn past(&self) -> Counters {
        let mut sum = Counters::default();
        self.past.0.iter().for_each(|(_, counters)| figures::add(&mut sum, counters));
        sum
    }

    /// Begins a walk, and ends one that was left unfinished.
    fn begin(&mut self) {
        let sums = self.past.clone();
        self.walk = Some(Box::new(Walk { next: 0, sums, sockets: 0, listeners: 0 }));
    }
}

impl Engine {
    /// Begins a walk over the sockets. A process has one walk at a time.
    pub(in crate::progress) fn begin_walk(&mut self, now: Time) {
        self.recall_all(now);
        self.sockets.tally.begin();
    }

    /// Visits the next `most` slots. Returns the totals when the walk has visited them all.
    pub(in crate::progress) fn walk(&mut self, most: u32) -> Option<ShardTotals> {
        let mut walk = self.sockets.tally.walk.take()?;
        let slots = self.sockets.slots();
        let end = walk.next.saturating_add(most).min(slots);
        for index in walk.next..end {
            let Some((_, s)) = self.sockets.peek(index) else { continue };
            if s.is_branch() {
                continue;
            }
            walk.sockets += 1;
            walk.listeners += u64::from(s.state == State::Listening);
            if let Some(session) = &s.session {
                walk.sums.add(s.place.device, 1, session.counters());
            }
        }
        walk.next = end;
        if end < slots {
            self.sockets.tally.walk = Some(walk);
            return None;
        }
        let Walk { sums, sockets, listeners, .. } = *walk;
        let devices = (0..self.devices.len()).map(|index| {
            let (connections, counters) = sums.0.get(index).copied().unwrap_or_default();
            let (transport, name) = (self.devices[index].transport, self.devices[index].name());
            DeviceTotals { transport, device: name.to_owned(), connections, counters }
        });
        Some(ShardTotals { sockets, listeners, devices: devices.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sends(sends: u64) -> Counters {
        Counters { sends, ..Counters::default() }
    }

    #[test]
    fn a_connection_that_ends_during_a_walk_counts_once() {
        let mut tally = Tally::default();
        tally.end(7, 1, &sends(5));
        tally.begin();
        if let Some(walk) = &mut tally.walk {
            // The walk has visited the slots 0 to 3, and found a connection in slot 2.
            walk.next = 4;
            walk.sums.add(0, 1, &sends(10));
        }
        tally.end(2, 0, &sends(11));
        tally.end(4, 0, &sends(100));
        let found = tally.walk.take().map(|walk| walk.sums.0).unwrap_or_default();
        let found: Vec<_> = found.iter().map(|(n, c)| (*n, c.sends)).collect();
        assert_eq!(found, [(1, 110), (0, 5)]);
        assert_eq!(tally.past().sends, 116, "the next walk has the last counters");
    }
}
