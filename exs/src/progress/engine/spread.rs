//! Accepts across shards: a listener in one shard, its connections in others.
//!
//! The listener's engine takes a request out of its RNIC, and sends it to the shard in which the
//! connection will live. The engine there lets its own RNIC adopt the request, and starts the
//! connection up. It sends the established connection back, or a failure, since the listener counts
//! start-ups in its backlog and gives connections to accepts in order.
//!
//! Engines never wait for each other. A parcel lies in the [`Released`] list of the other engine
//! until its next run. A connection whose listener is gone is reset, since its handle is dropped.
//! RNICs that cannot hand requests over keep their connections in the listener's shard.
//!
//! [`Released`]: super::Released

use std::net::SocketAddr;

use super::accepts::{Accepts, Arrival, Parent, Request};
use super::branch::ListenEnd;
use super::devices::DeviceTable;
use super::domain::Place;
use super::sock::State;
use super::sockets::SocketTable;
use super::startups::StartupId;
use super::{Engine, SockId};
use crate::progress::call::Ringing;
use crate::progress::handle::SocketHandle;
use crate::progress::options::{Options, Transport};
use crate::progress::shards::{self, Shard};
use crate::rnic::{DetachedRequest, RnicError, StarvedListener};
use crate::time::Time;
use crate::wire::exs::SocketKind;

/// A message from one shard to another.
pub(in crate::progress) enum Parcel {
    /// To the connection's shard: start this connection up.
    Request(Box<Incoming>),
    /// To the listener's shard: the sender lacks a resource that the connection needs.
    Returned(Box<Incoming>),
    /// To the listener's shard: a start-up has succeeded.
    Ready { listener: SockId, startup: u64, handle: SocketHandle, peer: SocketAddr },
    /// To the listener's shard: a start-up has failed.
    Failed { listener: SockId, startup: u64 },
    /// To the connection's shard: end the start-up.
    GiveUp { startup: u64 },
    /// To the listener's shard: a request that came to a branch without a free accept.
    Passed(Box<Incoming>),
    /// To the listener's shard: an accept of a branch waits, and may have missed a connection.
    Wanted { listener: SockId },
    /// To the shard of a branch: a connection for one of its accepts, or none after all.
    Arrived { branch: SockId, taken: Option<(SocketHandle, SocketAddr)> },
    /// To the shard of a branch: its listener has ended.
    EndBranch { branch: SockId, end: ListenEnd },
    /// To all other shards: a listener has no descriptors for its callers.
    Starved { device: usize, listener: StarvedListener },
}

/// A start-up that a listener in that shard has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue {
    listener: Shard,
    startup: u64,
}

/// A request on its way to another shard, and the settings that the connection takes from its
/// listener.
pub(in crate::progress) struct Incoming {
    request: DetachedRequest,
    /// The device's place in the listener's shard.
    device: usize,
    /// The device's kind and name, by which other shards know it.
    known_as: (Transport, String),
    parent: Parent,
    kind: SocketKind,
    opts: Options,
    group: Option<String>,
    peer: SocketAddr,
    local: SocketAddr,
    private_data: Vec<u8>,
}

impl SocketTable {
    /// The socket of a start-up that its listener has given up.
    fn overdue_child(&self, late: Overdue) -> Option<SockId> {
        self.iter().find_map(|(child, s)| match s.state {
            State::Accepting { parent: Parent::There { shard, startup, .. } }
                if late == Overdue { listener: shard, startup } =>
            {
                Some(child)
            }
            _ => None,
        })
    }
}

/// The other shards, as this shard sees them.
pub(super) struct Neighbours {
    here: Shard,
    /// The number of the last start-up that was sent to another shard.
    last_startup: u64,
}

impl Neighbours {
    pub(super) fn new(here: Shard) -> Neighbours {
        Neighbours { here, last_startup: 0 }
    }

    /// This shard.
    pub(super) fn here(&self) -> Shard {
        self.here
    }

    /// Leaves a parcel for the engine of another shard.
    pub(super) fn send(&self, to: Shard, parcel: Parcel) {
        if let Some(context) = to.context() {
            context.send(self.here, parcel);
        }
    }

    /// A listener has no descriptors left: the attempts of this process in other shards hold some.
    pub(super) fn spread_starvation(&self, device: usize, starved: &StarvedListener) {
        for context in shards::all().filter(|context| context.shard() != self.here) {
            let listener = starved.clone();
            context.send(self.here, Parcel::Starved { device, listener });
        }
    }

    /// The number of the next start-up that is sent to another shard.
    fn next_startup(&mut self) -> u64 {
        self.last_startup += 1;
        self.last_startup
    }
}

impl DeviceTable {
    /// Enters the domain of a connection on its device.
    fn enter_for(&mut self, incoming: &Incoming) -> Result<Place, RnicError> {
        let (transport, name) = &incoming.known_as;
        let device = self.place_of(*transport, name)?;
        let domain = self[device].enter(incoming.group.as_deref())?;
        Ok(Place { device, domain })
    }
}

impl Engine {
    /// Sends a request to the shard in which its connection will live. Returns it if that is this
    /// shard, or if the RNIC cannot hand it over.
    pub(super) fn spread_request(
        &mut self,
        device: usize,
        parent: u32,
        r: Request,
        now: Time,
    ) -> Option<Request> {
        let listener = self.sockets.id(parent);
        let Some(a) = &mut self.sockets[parent].accepts else { return Some(r) };
        if a.trunk.is_some() {
            return Some(r);
        }
        let home = a.next_home().filter(|home| *home != self.neighbours.here());
        let Some(home) = home.filter(|home| home.context().is_some()) else { return Some(r) };
        let startup = self.neighbours.next_startup();
        let there = Parent::There { shard: self.neighbours.here(), listener, startup };
        let incoming = match self.pack_request(device, parent, there, r) {
            Ok(incoming) => incoming,
            Err(r) => return r,
        };
        self.neighbours.send(home, Parcel::Request(incoming));
        if let Some(a) = &mut self.sockets[listener.index].accepts {
            a.starting.begin(StartupId::There(home, startup), now);
        }
        None
    }

    /// Takes a request out of its RNIC, for another shard. The error has the request, if the RNIC cannot
    /// hand it over, and nothing if the peer has gone.
    pub(super) fn pack_request(
        &mut self,
        device: usize,
        index: u32,
        parent: Parent,
        r: Request,
    ) -> Result<Box<Incoming>, Option<Request>> {
        let s = &self.sockets[index];
        let (kind, opts) = (s.kind, s.opts.clone());
        let on = s.accepts.as_ref().map_or(&[][..], |a| &a.on);
        let on = on.iter().find(|(place, _)| place.device == device);
        let Some(&(place, _)) = on else { return Err(Some(r)) };
        let group = self.devices[device].domain(place.domain).ok().and_then(|(_, d)| d.group());
        let request = match self.devices[device].rnic.detach_request(r.req) {
            Ok(request) => request,
            Err(RnicError::Unsupported(_)) => return Err(Some(r)),
            Err(e) => {
                crate::trace::debug!("the request of {} has gone: {e}", r.peer);
                return Err(None);
            }
        };
        let Request { peer, local, private_data, .. } = r;
        let d = &self.devices[device];
        let known_as = (d.transport, d.name().to_owned());
        Ok(Box::new(Incoming {
            request,
            device,
            known_as,
            parent,
            kind,
            opts,
            group,
            peer,
            local,
            private_data,
        }))
    }

    /// Takes a request for which a branch has no accept.
    fn take_passed(&mut self, incoming: Incoming, now: Time) {
        let Incoming { request, device, parent, peer, local, private_data, .. } = incoming;
        let Parent::Here(listener) = parent else { return };
        // If the listener is gone, the request is dropped, and its connection with it.
        if self.sockets.get(listener).is_none_or(|s| s.accepts.is_none()) {
            return;
        }
        match self.devices[device].rnic.adopt_request(request) {
            Ok(req) => {
                let r = Request { req, peer, local, private_data };
                self.admit_request(device, listener.index, r, now);
            }
            Err(e) => crate::trace::warn!("cannot take the connection of {peer}: {e}"),
        }
    }

    /// Handles a parcel from the shard `from`. Returns a start-up that is overdue.
    pub(super) fn receive(&mut self, from: Shard, parcel: Parcel, now: Time) -> Option<Overdue> {
        match parcel {
            Parcel::Request(incoming) => self.adopt(incoming, now),
            Parcel::Returned(incoming) => self.take_back(from, *incoming, now),
            Parcel::Ready { listener, startup, handle, peer } => {
                let arrival = Arrival::There(handle, peer);
                // If the listener is gone, the handle is dropped, and resets the connection.
                self.arrive(listener, StartupId::There(from, startup), arrival, now);
            }
            Parcel::Failed { listener, startup } => {
                self.startup_failed(listener, StartupId::There(from, startup), now);
            }
            Parcel::Passed(incoming) => self.take_passed(*incoming, now),
            Parcel::Wanted { listener } => self.handle_wanted(listener, now),
            Parcel::Arrived { branch, taken } => self.handle_arrived(branch, taken),
            Parcel::EndBranch { branch, end } => self.end_branch(branch, end, now),
            Parcel::GiveUp { startup } => return Some(Overdue { listener: from, startup }),
            Parcel::Starved { device, listener } => {
                if let Some(d) = self.devices.get_mut(device) {
                    d.rnic.fail_attempts(&listener, now);
                }
            }
        }
        None
    }

    /// Ends start-ups that listeners have given up, unless events of the same run have completed them.
    pub(super) fn give_up_overdue(&mut self, overdue: &[Overdue], now: Time) {
        if overdue.is_empty() {
            return;
        }
        for late in overdue {
            if let Some(child) = self.sockets.overdue_child(*late) {
                self.give_up(child);
            }
        }
        self.settle(now, Ringing::AtOnce);
    }

    /// Starts a connection up for a listener of another shard.
    fn adopt(&mut self, incoming: Box<Incoming>, now: Time) {
        let Parent::There { shard, listener, startup } = incoming.parent else { return };
        let place = match self.devices.enter_for(&incoming) {
            Ok(place) => place,
            Err(e) => {
                // The listener's shard has a domain for it: the domain of the listener.
                crate::trace::info!("a connection stays with its listener: {e}");
                return self.neighbours.send(shard, Parcel::Returned(incoming));
            }
        };
        let parent = incoming.parent;
        if self.begin_incoming(place, parent, *incoming, now).is_none() {
            self.neighbours.send(shard, Parcel::Failed { listener, startup });
        }
        // The queue pair, if there is one, keeps the domain in use from here on.
        self.devices[place.device].leave(place.domain);
    }

    /// Starts a connection up that the other shard could not take.
    fn take_back(&mut self, from: Shard, incoming: Incoming, now: Time) {
        let Parent::There { listener, startup, .. } = incoming.parent else { return };
        let number = StartupId::There(from, startup);
        let on =
            |a: &Accepts| a.on.iter().find(|(p, _)| p.device == incoming.device).map(|on| on.0);
        let place = self.sockets.get(listener).and_then(|p| p.accepts.as_ref()).and_then(|a| on(a));
        // If the listener is gone, the request is dropped, and its connection with it.
        let Some(place) = place else { return };
        let begun = self.begin_incoming(place, Parent::Here(listener), incoming, now);
        match begun {
            None => self.startup_failed(listener, number, now),
            Some(child) => {
                if let Some(a) = &mut self.sockets[listener.index].accepts {
                    a.starting.end(number);
                    a.starting.begin(StartupId::Here(child), now);
                }
            }
        }
    }

    /// Lets this shard's RNIC adopt a request, and begins its connection. None: that has failed.
    fn begin_incoming(
        &mut self,
        place: Place,
        parent: Parent,
        incoming: Incoming,
        now: Time,
    ) -> Option<SockId> {
        let Incoming { request, kind, opts, peer, local, private_data, .. } = incoming;
        match self.devices[place.device].rnic.adopt_request(request) {
            Ok(req) => {
                let r = Request { req, peer, local, private_data };
                self.begin_child(place, parent, (kind, opts), &r, now)
            }
            Err(e) => {
                crate::trace::warn!("cannot take the connection of {peer}: {e}");
                None
            }
        }
    }
}
