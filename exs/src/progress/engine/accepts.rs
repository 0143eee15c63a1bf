//! A listener's connections, on their way to the program's accepts.
//!
//! Connections wait in three places: as requests for which the backlog has no room, in start-ups
//! under way, and as established connections. Accepts wait in the order in which they were posted.
//! Each accept names the shard in which its connection will live. A request starts up in the shard
//! of the accept that will most likely get it (`spread`). So when several threads accept from one
//! listener, each with its own queue, each thread has its connections in its own shard. Where the RNIC
//! can do it, these accepts wait in their own shards (`branch`).

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::SockId;
use super::branch::{Branches, Trunk};
use super::cm::PATIENCE;
use super::domain::Place;
use super::startups::Startups;
use crate::ids::OpId;
use crate::progress::handle::SocketHandle;
use crate::progress::shards::Shard;
use crate::rnic::{ConnReq, Listener, TakesGroups};
use crate::time::Time;

/// A connection request, as the RNIC reported it.
pub(super) struct Request {
    pub(super) req: ConnReq,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) private_data: Vec<u8>,
}

/// The listener of a connection that starts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// A socket of this shard.
    Here(SockId),
    /// A socket of another shard, which knows the start-up by its number.
    There { shard: Shard, listener: SockId, startup: u64 },
}

/// An established connection that waits for an accept.
pub(super) enum Arrival {
    /// A socket of this shard.
    Here(SockId),
    /// A socket of another shard, and its peer's address. The connection is reset when the handle
    /// is dropped.
    There(SocketHandle, SocketAddr),
}

impl Arrival {
    fn shard(&self, here: Shard) -> Shard {
        match self {
            Arrival::Here(_) => here,
            Arrival::There(handle, _) => handle.context().shard(),
        }
    }
}

/// An accept that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptOp {
    pub(super) op: OpId,
    /// The shard in which its connection will live.
    pub(super) home: Shard,
}

/// What becomes of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Its connection starts up.
    Starts,
    /// It waits until the backlog has room. Only listeners have such requests: an accept that comes to
    /// a branch looks for connections at the listener.
    Waits,
    /// It goes from a branch to the listener.
    Passes,
    /// Too many wait already.
    Refused,
}

/// A listener's connections.
#[derive(Default)]
pub(super) struct Accepts {
    pub(super) backlog: usize,
    /// The devices that listen, and the listeners there. Empty: all devices were removed.
    pub(super) on: Vec<(Place, Listener)>,
    /// Whether the listeners take link groups, as the last accept says. None: there was none.
    pub(super) groups: Option<TakesGroups>,
    /// Connections of its accepts have gone to other shards.
    pub(super) hands_over: bool,
    /// Requests without an answer, since the backlog is full, and their devices.
    pub(super) waiting: VecDeque<(usize, Request)>,
    /// The start-ups under way.
    pub(super) starting: Startups,
    /// The number of connections established so far.
    pub(super) came: u64,
    /// Established connections that wait for an accept.
    pub(super) ready: VecDeque<Arrival>,
    /// Accepts that wait for a connection.
    pub(super) ops: VecDeque<AcceptOp>,
    /// The shards that accepts have named so far, and those of the branches. The first is the next to
    /// get a connection.
    homes: VecDeque<Shard>,
    /// The shards that accept at the listener's ports, too.
    pub(super) branches: Branches,
    /// The listener, if these are the accepts of a branch.
    pub(super) trunk: Option<Trunk>,
}

impl Accepts {
    pub(super) fn new(backlog: usize, on: Vec<(Place, Listener)>) -> Accepts {
        Accepts { backlog, on, ..Accepts::default() }
    }

    pub(super) fn of_branch(trunk: Trunk, on: Vec<(Place, Listener)>) -> Accepts {
        Accepts { on, trunk: Some(trunk), ..Accepts::default() }
    }

    /// True if the backlog has room for one more connection. The backlog of a branch is its accepts.
    pub(super) fn has_room(&self) -> bool {
        match &self.trunk {
            Some(trunk) => self.starting.places() < trunk.free(),
            None => self.starting.places() + self.ready.len() < self.backlog,
        }
    }

    /// What becomes of a request that has come. The listener may take the last free accept of a branch
    /// at any moment, so the caller must not ask twice for one request.
    pub(super) fn admission(&self) -> Admission {
        match self.has_room() {
            true => Admission::Starts,
            false if self.trunk.is_some() => Admission::Passes,
            false if self.waiting.len() < self.backlog + PATIENCE => Admission::Waits,
            false => Admission::Refused,
        }
    }

    /// When a start-up will lose its place to a peer that waits. None: no peer waits for a place.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let wanted = !self.waiting.is_empty() && !self.has_room();
        wanted.then(|| self.starting.due()).flatten()
    }

    /// Posts an accept.
    pub(super) fn post(&mut self, accept: AcceptOp) {
        self.add_home(accept.home);
        self.ops.push_back(accept);
    }

    /// Connections that no accept awaits start up in this shard, too, when it is its turn.
    pub(super) fn add_home(&mut self, home: Shard) {
        if !self.homes.contains(&home) {
            self.homes.push_back(home);
        }
    }

    /// True if accepts have named other shards than `here`.
    pub(super) fn spreads(&self, here: Shard) -> bool {
        self.homes.iter().any(|home| *home != here)
    }

    /// True if there is a shard for connections that no accept awaits.
    pub(super) fn has_homes(&self) -> bool {
        !self.homes.is_empty()
    }

    /// Takes an accept out. False: it is not here.
    pub(super) fn withdraw(&mut self, op: OpId) -> bool {
        let Some(at) = self.ops.iter().position(|accept| accept.op == op) else { return false };
        self.ops.remove(at);
        if let Some(trunk) = &self.trunk {
            // If a connection is on its way from the listener, it will find one accept less.
            trunk.take_free();
        }
        true
    }

    /// The shard in which the next connection will start up. It is that of the accept which will
    /// get the connection, if all before it succeed. If too few accepts wait here, it is that of an
    /// accept in a branch. If too few wait there, too, the shards that accept take turns. None: no
    /// accept was ever posted.
    pub(super) fn next_home(&mut self) -> Option<Shard> {
        if let Some(accept) = self.ops.get(self.starting.places() + self.ready.len()) {
            return Some(accept.home);
        }
        if let Some(shard) = self.branches.next_free() {
            return Some(shard);
        }
        let home = self.homes.pop_front()?;
        self.homes.push_back(home);
        Some(home)
    }

    /// Takes out the first accept and a connection for it. None: no accept or no connection waits.
    pub(super) fn next_pair(&mut self, here: Shard) -> Option<(OpId, Arrival)> {
        let home = self.ops.front()?.home;
        self.ready.front()?;
        if self.trunk.as_ref().is_some_and(|trunk| !trunk.serve_free()) {
            return None;
        }
        let arrival = self.take_ready(home, here)?;
        self.ops.pop_front().map(|accept| (accept.op, arrival))
    }

    /// Takes out a connection for an accept that names the shard `home`: one that lives there, or else
    /// the oldest.
    pub(super) fn take_ready(&mut self, home: Shard, here: Shard) -> Option<Arrival> {
        let fits = self.ready.iter().position(|arrival| arrival.shard(here) == home);
        self.ready.remove(fits.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(homes: &[usize]) -> Accepts {
        let mut a = Accepts::new(8, Vec::new());
        for (op, home) in (1..).zip(homes) {
            a.post(AcceptOp { op, home: Shard::at(*home) });
        }
        a
    }

    fn child(index: u32) -> SockId {
        SockId { index, generation: 1 }
    }

    #[test]
    fn a_connection_starts_up_where_its_accept_wants_it() {
        let mut a = accepts(&[5, 6, 5]);
        let next: Vec<_> = (0..3)
            .map(|i| {
                let home = a.next_home().map(Shard::index);
                a.ready.push_back(Arrival::Here(child(i)));
                home
            })
            .collect();
        assert_eq!(next, [Some(5), Some(6), Some(5)]);
        // No accept waits for the following ones.
        let next: Vec<_> = (0..3).map(|_| a.next_home().map(Shard::index)).collect();
        assert_eq!(next, [Some(5), Some(6), Some(5)], "the shards take turns");
        assert_eq!(accepts(&[]).next_home(), None);
    }

    #[test]
    fn accepts_are_served_in_order_in_any_shard() {
        let mut a = accepts(&[6, 5]);
        a.ready.extend([0, 1].map(|i| Arrival::Here(child(i))));
        // No connection lives in shard 6, so the oldest goes to the first accept.
        let served: Vec<_> = std::iter::from_fn(|| match a.next_pair(Shard::at(5))? {
            (op, Arrival::Here(child)) => Some((op, child.index)),
            (op, Arrival::There(..)) => Some((op, u32::MAX)),
        })
        .collect();
        assert_eq!(served, [(1, 0), (2, 1)]);
    }
}
