//! A connection at rest goes to the shard of the queue that the program uses it with.
//!
//! An accept of one thread may bring a connection that another thread serves, with a queue of its own.
//! The connection came up in the shard of the accept, or of the listener, where its events would cross
//! with each message, and where all such connections would share one engine. So the first operation
//! that names a queue of another shard takes the connection there, with its session and its link.
//!
//! Only a connection that rests can go: no operation of it has not ended, the peer reaches no memory of
//! it but the ring, and the RNIC has nothing of it but bytes that no thread has read yet. The peer goes on
//! to write into the ring, so its window keeps its key. The caller holds both engines. RDMA devices keep
//! their connections.

use std::net::SocketAddr;

use super::device::Device;
use super::domain::Place;
use super::hosts::Racing;
use super::sock::{Sock, State};
use super::{Engine, SockId};
use crate::mem::Access;
use crate::rnic::{Listener, Mr, Qp, RnicError, TakesGroups};

/// What the new shard must have before a connection can come.
struct Berth {
    place: Place,
    /// The ring's memory, registered there. None: the connection has no ring.
    ring: Option<Mr>,
}

/// Whether a connection has gone to another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum Rehomed {
    /// It has this name there.
    To(SockId),
    /// It does not rest now.
    NotYet,
    /// Its device keeps its connections, or the other shard lacks what it needs.
    Never,
}

impl Device {
    /// True if the RNICs of several shards can have a connection, one after the other.
    fn moves_connections(&self) -> bool {
        !self.gone && self.is_software()
    }
}

impl Sock {
    /// True if the engine has nothing of the socket but a connection at rest.
    fn can_leave(&self) -> bool {
        let session = self.session.as_ref().is_some_and(|session| session.rests());
        let dials = self.dial.is_some() || !matches!(self.racing, Racing::No);
        let plain = self.accepts.is_none() && !dials && self.polls.is_empty();
        let shown = self.watch.as_ref().is_none_or(|watch| !watch.polls_stream && !watch.in_loop);
        let alone = plain && shown && self.exports.count() == 0 && self.attended.is_by_reactor();
        self.state == State::Open && session && alone
    }
}

impl Engine {
    /// Moves a connection to the shard of `there`, whose next run goes on with it.
    pub(in crate::progress) fn rehome(&mut self, id: SockId, there: &mut Engine) -> Rehomed {
        if self.delivery.leaver().is_some() || there.delivery.leaver().is_some() {
            // The process ends, and closes the sockets of one shard after the other.
            return Rehomed::NotYet;
        }
        let Some(place) = self.sockets.get(id).map(|s| s.place) else { return Rehomed::Never };
        if !self.devices[place.device].moves_connections() {
            return Rehomed::Never;
        }
        let rests = |s: &&Sock| s.can_leave() && !self.sockets.is_lazy(id.index);
        let Some(qp) = self.sockets.get(id).filter(rests).and_then(|s| s.qp) else {
            return Rehomed::NotYet;
        };
        let Ok(berth) = self.find_berth(id, there) else { return Rehomed::Never };
        let at = self.devices[place.device].rnic.addrs(qp).map(|(ours, _)| ours);
        match self.move_connection(id, qp, there, &berth) {
            Ok(id) => {
                if let Ok(at) = at {
                    self.note_hand_over(place.device, at);
                }
                Rehomed::To(id)
            }
            Err(e) => {
                let device = &mut there.devices[berth.place.device];
                if let Some(mr) = berth.ring {
                    device.dereg_mr(berth.place.domain, mr);
                }
                device.leave(berth.place.domain);
                match e {
                    RnicError::State { .. } => Rehomed::NotYet,
                    _ => Rehomed::Never,
                }
            }
        }
    }

    /// A connection that came to this address is served in another shard. The next ones need streams of
    /// their own, since the connections of a link group stay together.
    fn note_hand_over(&mut self, device: usize, at: SocketAddr) {
        let rnic = &self.devices[device].rnic;
        let listens = |&(listener, _): &(Listener, u32)| {
            rnic.listener_addr(listener).is_ok_and(|addr| addr.port() == at.port())
        };
        let found = self.sockets.listeners_of(device).find(listens);
        if let Some((_, index)) = found {
            let id = self.sockets.id(index);
            if let Some(a) = &mut self.sockets[index].accepts {
                a.hands_over = true;
            }
            self.tell_groups(id, TakesGroups::No);
        }
    }

    /// Enters the domain of a connection in another shard, and registers its memory there.
    fn find_berth(&mut self, id: SockId, there: &mut Engine) -> Result<Berth, RnicError> {
        let place = self.sockets[id.index].place;
        let here = &mut self.devices[place.device];
        let at = there.devices.place_of(here.transport, here.name())?;
        let group = here.domain(place.domain)?.1.group();
        let device = &mut there.devices[at];
        let session = self.sockets[id.index].session.as_ref();
        let key = session.and_then(|s| s.ring_key());
        if key.is_some_and(|key| !device.rnic.is_key_free(key)) {
            // Keys are random, so this happens to one connection of many thousands at most.
            return Err(RnicError::Unsupported("hand-over of a window whose key is in use"));
        }
        let domain = device.enter(group.as_deref())?;
        let memory = session.and_then(|s| s.ring_memory());
        let ring = memory.map(|ring| device.reg_mr(domain, &ring.seg, Access::LOCAL)).transpose();
        let ring = ring.inspect_err(|_| device.leave(domain))?;
        Ok(Berth { place: Place { device: at, domain }, ring })
    }

    /// # Errors
    /// The RNIC does not give the connection away. It is unchanged.
    fn move_connection(
        &mut self,
        id: SockId,
        qp: Qp,
        there: &mut Engine,
        berth: &Berth,
    ) -> Result<SockId, RnicError> {
        let old = self.sockets[id.index].place;
        let connection = self.devices[old.device].detach_connection(old.domain, qp)?;
        let mut s = self.sockets.take_connected(id.index, (old, qp));
        self.timers.set(id.index, &mut s.timer, None);
        if let (Some(session), Some(mr)) = (&mut s.session, berth.ring)
            && let Some(mr) = session.set_ring_registration(mr)
        {
            self.devices[old.device].dereg_mr(old.domain, mr);
        }
        let Place { device, domain } = berth.place;
        s.place = berth.place;
        let id = there.sockets.put_moved(s);
        let qp = there.devices[device].adopt_connection(domain, id.index, connection, berth.ring);
        // The queue pair, if there is one, keeps the domain in use from here on.
        there.devices[device].leave(domain);
        let s = &mut there.sockets[id.index];
        match qp {
            Ok(qp) => {
                s.qp = Some(qp);
                there.sockets.add_qp(device, qp, id.index);
            }
            Err(e) => {
                crate::trace::warn!("a connection has broken on its way to its queue: {e}");
                (s.qp, s.session) = (None, None);
            }
        }
        Ok(id)
    }
}
