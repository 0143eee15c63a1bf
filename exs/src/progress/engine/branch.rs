//! Branches: shards that accept at the port of a listener of another shard.
//!
//! A connection that comes to one shard and is accepted by a thread of another costs wake-ups of both
//! shards. So where the RNIC can share its port ([`Rnic::share_listener`]), the first accept whose
//! queue is of another shard makes a *branch* there: a listening socket without a handle, which has the
//! accepts of its shard. The kernel brings connections to the shards in turn. The rules:
//!
//! 1. A branch starts up as many connections as it has accepts. It hands any other request to the
//!    listener, which keeps the backlog. So a peer that falls silent takes a place there, but no accept.
//! 2. A connection that is established where no accept waits goes to the listener, which gives it to an
//!    accept of its own shard, then to one of a branch, or keeps it for later accepts. The shards that
//!    accept take turns in starting up what no accept awaits.
//! 3. A listener without accepts in its own shard rests: the branches take its requests, too.
//! 4. Accepts of one shard are served in order.
//!
//! A branch counts its *free* accepts in an atomic. A shard that serves one takes it from that number
//! first, so the listener and the branch never serve the same accept. Each side writes its own number
//! before it reads that of the other side, so a connection and an accept find each other.
//!
//! [`Rnic::share_listener`]: crate::rnic::Rnic::share_listener

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::accepts::{AcceptOp, Accepts, Arrival, Parent, Request};
use super::domain::Place;
use super::holder::Holder;
use super::post::Ticket;
use super::sock::State;
use super::spread::Parcel;
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::progress::event::{Bufs, EventKind, Guest};
use crate::progress::handle::SocketHandle;
use crate::progress::options::{Options, Transport};
use crate::progress::shards::Shard;
use crate::rnic::{RnicError, SharedPort};
use crate::session::OpError;
use crate::time::Time;
use crate::wire::exs::SocketKind;

/// A number that two shards share.
#[derive(Clone, Default)]
pub(in crate::progress) struct SharedCount(Arc<AtomicUsize>);

impl SharedCount {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn set(&self, n: usize) {
        self.0.store(n, Ordering::SeqCst);
    }

    /// Takes one. False: there is none.
    fn take(&self) -> bool {
        let less = |n: usize| n.checked_sub(1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}

/// A branch, as its listener sees it.
pub(super) struct Branch {
    shard: Shard,
    id: SockId,
    /// Accepts that wait there, and that no connection is on its way to.
    free: SharedCount,
}

/// The listener of a branch, as the branch sees it.
#[derive(Clone)]
pub(super) struct Trunk {
    shard: Shard,
    listener: SockId,
    /// Connections that wait there for an accept.
    ready: SharedCount,
    /// Connections of all branches that never came to the listener.
    served: SharedCount,
    free: SharedCount,
}

/// All branches of a listener.
#[derive(Default)]
pub(super) struct Branches {
    all: Vec<Branch>,
    ready: SharedCount,
    served: SharedCount,
    /// The branches take the requests of the listener's own port.
    rests: bool,
}

/// What another shard needs to make a branch.
pub(in crate::progress) struct BranchPlan {
    trunk: Trunk,
    /// The ports, each with the kind and name of its device.
    ports: Vec<(Transport, String, SharedPort)>,
    kind: SocketKind,
    opts: Options,
    group: Option<String>,
}

/// Whether a listener can have a branch.
pub(in crate::progress) enum Branching {
    /// Not now.
    No,
    /// Never, as its RNICs cannot share their ports.
    Never,
    Possible(Box<BranchPlan>),
}

/// A branch that another shard has made.
pub(in crate::progress) struct NewBranch {
    pub(in crate::progress) shard: Shard,
    pub(in crate::progress) id: SockId,
    free: SharedCount,
}

/// Why a listener ends, and its branches with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenEnd {
    /// It was shut down.
    Shut,
    /// It was closed.
    Closed,
}

impl ListenEnd {
    /// How an accept ends that waits meanwhile.
    pub(super) fn why(self) -> Error {
        match self {
            ListenEnd::Shut => Error::State {
                call: "accept",
                need: "is listening",
                is: "was shut down",
                errno: libc::EINVAL,
            },
            ListenEnd::Closed => Error::Op(OpError::Cancelled),
        }
    }
}

impl Trunk {
    /// The number of accepts of the branch that no connection is on its way to.
    pub(super) fn free(&self) -> usize {
        self.free.get()
    }

    /// Takes a free accept. False: connections from the listener are on their way to all of them.
    pub(super) fn take_free(&self) -> bool {
        self.free.take()
    }

    /// As `take_free`, for a connection that the branch itself has.
    pub(super) fn serve_free(&self) -> bool {
        let taken = self.free.take();
        if taken {
            self.served.add();
        }
        taken
    }

    /// A connection without an accept goes to the listener.
    fn surplus(&self, handle: SocketHandle, peer: SocketAddr) -> Parcel {
        // No start-up of the listener has this number.
        Parcel::Ready { listener: self.listener, startup: 0, handle, peer }
    }
}

impl Branches {
    /// The next shard with a free accept.
    pub(super) fn next_free(&mut self) -> Option<Shard> {
        let at = self.all.iter().position(|branch| branch.free.get() > 0)?;
        let shard = self.all[at].shard;
        self.all[at..].rotate_left(1);
        Some(shard)
    }

    /// The connections that branches have given to their accepts, and that never came here.
    pub(super) fn served(&self) -> u64 {
        self.served.get() as u64
    }

    /// The number of accepts that wait in branches.
    pub(super) fn accepts(&self) -> usize {
        self.all.iter().map(|branch| branch.free.get()).sum()
    }

    /// Takes a free accept of the branch in this shard. Returns the branch.
    fn take_free_in(&self, shard: Shard) -> Option<SockId> {
        self.all.iter().find(|b| b.shard == shard && b.free.take()).map(|b| b.id)
    }

    /// Takes a free accept. Returns its branch.
    fn take_free(&self) -> Option<(Shard, SockId)> {
        self.all.iter().find(|b| b.free.take()).map(|b| (b.shard, b.id))
    }
}

impl Engine {
    // ---- the listener's side -----------------------------------------------------

    /// Shares the ports of a listener with another shard.
    pub(in crate::progress) fn plan_branch(&mut self, id: SockId) -> Branching {
        let here = self.neighbours.here();
        let Some(s) = self.sockets.get(id) else { return Branching::No };
        let Some(a) = &s.accepts else { return Branching::No };
        let (kind, opts) = (s.kind, s.opts.clone());
        let (ready, served) = (a.branches.ready.clone(), a.branches.served.clone());
        let free = SharedCount::default();
        let trunk = Trunk { shard: here, listener: id, ready, served, free };
        let (mut ports, mut group) = (Vec::new(), None);
        for &(place, listener) in &a.on {
            let device = &mut self.devices[place.device];
            if !device.shares_ports() {
                continue;
            }
            match device.rnic.share_listener(listener) {
                Ok(port) => ports.push((device.transport, device.name().to_owned(), port)),
                Err(RnicError::Unsupported(_)) => return Branching::Never,
                Err(e) => {
                    crate::trace::info!("a listener stays in its shard: {e}");
                    return Branching::No;
                }
            }
            group = device.domain(place.domain).ok().and_then(|(_, d)| d.group());
        }
        match ports.is_empty() {
            true => Branching::Never,
            false => Branching::Possible(Box::new(BranchPlan { trunk, ports, kind, opts, group })),
        }
    }

    /// Adds a branch. False: the socket listens no more.
    pub(in crate::progress) fn add_branch(
        &mut self,
        id: SockId,
        new: &NewBranch,
        now: Time,
    ) -> bool {
        let Some(a) = self.sockets.get_mut(id).and_then(|s| s.accepts.as_mut()) else {
            return false;
        };
        let NewBranch { shard, id: branch, free } = new;
        a.branches.all.push(Branch { shard: *shard, id: *branch, free: free.clone() });
        // A listener that had an accept itself never rests. With its second branch it rests already.
        let rests = !a.has_homes();
        a.add_home(*shard);
        if rests {
            self.rest_listener(id, true);
        }
        self.match_accepts(id.index, now);
        true
    }

    /// Leaves the connections at the ports of a listener to its branches, or takes a share of them.
    pub(super) fn rest_listener(&mut self, id: SockId, rests: bool) {
        let Some(a) = self.sockets.get_mut(id).and_then(|s| s.accepts.as_mut()) else { return };
        if a.branches.all.is_empty() || a.branches.rests == rests {
            return;
        }
        a.branches.rests = rests;
        for &(place, listener) in &a.on {
            let device = &mut self.devices[place.device];
            if !device.shares_ports() {
                continue;
            }
            let told = device.rnic.rest_listener(listener, rests);
            debug_assert!(told.is_ok(), "{place:?}: {told:?}");
        }
    }

    /// Gives a connection of another shard to an accept of the branch there. Returns it if there is none.
    pub(super) fn offer_where_it_lives(&mut self, index: u32, arrival: Arrival) -> Option<Arrival> {
        let Arrival::There(handle, peer) = arrival else { return Some(arrival) };
        let shard = handle.context().shard();
        let accepts = self.sockets[index].accepts.as_ref();
        match accepts.and_then(|a| a.branches.take_free_in(shard)) {
            Some(branch) => {
                let taken = Some((handle, peer));
                self.neighbours.send(shard, Parcel::Arrived { branch, taken });
                None
            }
            None => Some(Arrival::There(handle, peer)),
        }
    }

    /// Gives connections for which no accept waits here to accepts of branches.
    pub(super) fn offer_to_branches(&mut self, index: u32) {
        loop {
            let Some(a) = &mut self.sockets[index].accepts else { return };
            // The number is there before the look for accepts.
            a.branches.ready.set(a.ready.len());
            if a.ready.is_empty() {
                return;
            }
            let Some((shard, branch)) = a.branches.take_free() else { return };
            let arrival = a.take_ready(shard, self.neighbours.here());
            let taken = arrival.and_then(|arrival| self.hand_out_arrival(arrival));
            // Nothing: the accept gets the next connection.
            self.neighbours.send(shard, Parcel::Arrived { branch, taken });
        }
    }

    /// Ends all branches of a listener.
    pub(super) fn end_branches(&self, branches: &Branches, end: ListenEnd) {
        for branch in &branches.all {
            self.neighbours.send(branch.shard, Parcel::EndBranch { branch: branch.id, end });
        }
    }

    /// An accept of a branch waits, and may have missed a connection here.
    pub(super) fn handle_wanted(&mut self, listener: SockId, now: Time) {
        if self.sockets.get(listener).is_some() {
            self.match_accepts(listener.index, now);
        }
    }

    // ---- the branch's side -------------------------------------------------------

    /// Makes a branch in this shard.
    pub(in crate::progress) fn open_branch(&mut self, plan: BranchPlan) -> Option<NewBranch> {
        let BranchPlan { trunk, ports, kind, opts, group } = plan;
        let mut on = Vec::new();
        for (transport, name, port) in ports {
            let joined = self.devices.place_of(transport, &name).and_then(|at| {
                let device = &mut self.devices[at];
                let domain = device.enter(group.as_deref())?;
                let joined = device.rnic.join_listener(port).inspect_err(|_| device.leave(domain));
                joined.map(|listener| (Place { device: at, domain }, listener))
            });
            match joined {
                Ok(joined) => on.push(joined),
                Err(e) => {
                    crate::trace::info!("a listener stays in its shard: {e}");
                    for (place, listener) in on {
                        self.devices[place.device].end_listener(place.domain, listener);
                    }
                    return None;
                }
            }
        }
        let id = self.sockets.open(kind, opts);
        for &(place, listener) in &on {
            self.sockets.add_listener(place.device, listener, id.index);
        }
        let free = trunk.free.clone();
        let s = &mut self.sockets[id.index];
        (s.state, s.holder) = (State::Listening, Holder::ENGINE);
        s.accepts = Some(Box::new(Accepts::of_branch(trunk, on)));
        Some(NewBranch { shard: self.neighbours.here(), id, free })
    }

    /// Posts an accept at a branch of this shard. False: the branch is gone.
    pub(in crate::progress) fn accept_at_branch(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
    ) -> bool {
        let home = self.neighbours.here();
        let trunk = |s: &super::sock::Sock| s.accepts.as_ref().and_then(|a| a.trunk.clone());
        let Some(trunk) = self.sockets.get(id).and_then(trunk) else { return false };
        let op = self.book(id, ticket, EventKind::Accept, Bufs::None);
        self.tell_groups(id, ticket.queue.group_use().takes());
        if let Some(a) = &mut self.sockets[id.index].accepts {
            a.post(AcceptOp { op, home });
        }
        trunk.free.add();
        if trunk.ready.get() > 0 {
            self.neighbours.send(trunk.shard, Parcel::Wanted { listener: trunk.listener });
        }
        true
    }

    /// A connection has come from the listener for an accept of a branch.
    pub(super) fn handle_arrived(
        &mut self,
        branch: SockId,
        taken: Option<(SocketHandle, SocketAddr)>,
    ) {
        // If the branch is gone, the listener is, too. The connection is reset.
        let Some(a) = self.sockets.get_mut(branch).and_then(|s| s.accepts.as_mut()) else { return };
        let Some(trunk) = a.trunk.clone() else { return };
        match (taken, a.ops.pop_front()) {
            (Some((handle, peer)), Some(accept)) => {
                self.serve_accept(accept.op, Some((handle, peer)))
            }
            (Some((handle, peer)), None) => {
                self.neighbours.send(trunk.shard, trunk.surplus(handle, peer));
            }
            (None, Some(accept)) => {
                a.ops.push_front(accept);
                trunk.free.add();
            }
            (None, None) => {}
        }
    }

    /// Hands the event of an accept to the program.
    pub(super) fn serve_accept(&mut self, op: OpId, accepted: Option<(SocketHandle, SocketAddr)>) {
        let Some(op) = self.ops.remove(op) else { return };
        let (queue, mut event) = op.into_event();
        event.guest = Some(Box::new(Guest { accepted, ..Guest::default() }));
        self.delivery.deliver(&queue, event);
    }

    /// Hands connections for which a branch has no accept to its listener.
    pub(super) fn pass_surplus(&mut self, index: u32) {
        loop {
            let Some(a) = &mut self.sockets[index].accepts else { return };
            let Some(trunk) = a.trunk.clone() else { return };
            let Some(arrival) = a.ready.pop_front() else { return };
            if let Some((handle, peer)) = self.hand_out_arrival(arrival) {
                self.neighbours.send(trunk.shard, trunk.surplus(handle, peer));
            }
        }
    }

    /// Hands a request for which a branch has no accept to its listener. Returns it if the RNIC cannot
    /// hand it over.
    pub(super) fn pass_request(
        &mut self,
        device: usize,
        index: u32,
        r: Request,
    ) -> Option<Request> {
        let Some(a) = &self.sockets[index].accepts else { return Some(r) };
        let Some(trunk) = a.trunk.clone() else { return Some(r) };
        let parent = Parent::Here(trunk.listener);
        let incoming = match self.pack_request(device, index, parent, r) {
            Ok(incoming) => incoming,
            Err(r) => return r,
        };
        self.neighbours.send(trunk.shard, Parcel::Passed(incoming));
        None
    }

    /// Ends a branch, and its accepts with it.
    pub(crate) fn end_branch(&mut self, id: SockId, end: ListenEnd, now: Time) {
        self.end_listening(id, now, end);
        if let Some(s) = self.sockets.get_mut(id) {
            s.state = State::Closed;
            self.sockets.mark(id.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::accepts::Admission;
    use super::super::startups::StartupId;
    use super::*;

    const SOCKET: SockId = SockId { index: 0, generation: 1 };

    fn branch(accepts: usize) -> (Accepts, Trunk) {
        let free = SharedCount::default();
        free.set(accepts);
        let (ready, served) = (SharedCount::default(), SharedCount::default());
        let trunk = Trunk { shard: Shard::FIRST, listener: SOCKET, ready, served, free };
        (Accepts::of_branch(trunk.clone(), Vec::new()), trunk)
    }

    #[test]
    fn a_request_without_an_accept_never_waits_in_a_branch() {
        let (a, listener) = branch(1);
        assert_eq!(a.admission(), Admission::Starts);
        // The listener has a connection for this accept.
        assert!(listener.take_free());
        assert_eq!(a.admission(), Admission::Passes);
        // A start-up under way has the place of an accept.
        let (mut a, _) = branch(1);
        a.starting.begin(StartupId::Here(SOCKET), Time::ZERO);
        assert_eq!(a.admission(), Admission::Passes);
    }

    #[test]
    fn requests_wait_at_a_listener_up_to_a_limit() {
        let mut a = Accepts::new(1, Vec::new());
        assert_eq!(a.admission(), Admission::Starts);
        a.starting.begin(StartupId::Here(SOCKET), Time::ZERO);
        assert_eq!(a.admission(), Admission::Waits);
        let peer = SocketAddr::from(([127, 0, 0, 1], 7));
        let request = |i| Request {
            req: crate::rnic::ConnReq(i),
            peer,
            local: peer,
            private_data: Vec::new(),
        };
        a.waiting.extend((0..).map(|i| (0, request(i))).take(1 + super::super::cm::PATIENCE));
        assert_eq!(a.admission(), Admission::Refused);
    }
}
