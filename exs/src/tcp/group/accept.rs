//! The side that groups come to.

use std::net::SocketAddr;
use std::sync::Arc;

use super::super::SoftRnic;
use super::super::link::SoftLink;
use super::dial::send_greeting;
use super::spread::{GroupTaker, PassedConn, PassedGroup, Placed, allows};
use super::{
    GroupSide, GroupStage, GroupStream, IDLE_LIMIT, LinkGroup, LinkStream, MAX_STREAMS, StreamEnd,
    StreamHolder, WINDOW,
};
use crate::driver::{Link, LinkOwner, Source};
use crate::iwarp::IwarpEngine;
use crate::rnic::TakesGroups;
use crate::sys::SharedStream;
use crate::time::Time;
use crate::wire::group::{
    FIRST_BYTE, GroupGreeting, GroupKind, GroupWireError, HELLO_LEN, HelloRepr, ResetReason,
};

/// The first bytes of an accepted TCP connection: an MPA request, or the hello of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum HelloSniffer {
    /// Nothing has come, and a hello may.
    Watching,
    /// The beginning of a hello is in the link's stash.
    Collecting,
    /// It is a link of its own.
    Off,
}

/// A TCP connection with its addresses, ours and the peer's.
type StreamAndAddrs = (Arc<SharedStream>, (SocketAddr, SocketAddr));

impl SoftLink {
    /// Takes the first bytes of an accepted connection. True if they are not for the engine.
    pub(in crate::tcp) fn sniff(&mut self, ahead: &[u8]) -> bool {
        match (self.sniffer, ahead.first()) {
            (HelloSniffer::Off, _) => return false,
            (_, None) => return true,
            (HelloSniffer::Watching, Some(&first)) if first != FIRST_BYTE => {
                self.sniffer = HelloSniffer::Off;
                return false;
            }
            _ => self.sniffer = HelloSniffer::Collecting,
        }
        // A peer that sends more breaks a rule, and one byte more is enough to see that.
        let room = (HELLO_LEN + 1).saturating_sub(self.intake.stash.len());
        self.intake.stash.extend_from_slice(&ahead[..room.min(ahead.len())]);
        true
    }

    /// What the connection begins with, once that is there. None: nothing yet, or it is a link of its own.
    fn greeting(&self) -> Option<Result<GroupGreeting, GroupWireError>> {
        match self.sniffer {
            HelloSniffer::Collecting => GroupGreeting::parse_begun(&self.intake.stash),
            HelloSniffer::Watching | HelloSniffer::Off => None,
        }
    }
}

/// Answers a hello. False: the peer has gone.
fn answer_hello(stream: &SharedStream, answer: HelloRepr) -> bool {
    send_greeting(stream, &answer.emit()).is_ok()
}

/// The answer that this side takes no group of this kind for now.
fn none_for_now(kind: GroupKind) -> HelloRepr {
    HelloRepr { answer: true, kind, window: WINDOW, streams: 0, groups: 0, token: 0 }
}

impl SoftRnic {
    /// Takes an accepted connection that is no link, if its first bytes have come: it is to carry a group,
    /// or a stream of one. True if the link is gone.
    pub(in crate::tcp) fn adopt_greeting(&mut self, id: u32, now: Time) -> bool {
        let Ok(link) = self.links.get(id) else { return true };
        let Some(greeting) = link.greeting() else { return false };
        let LinkOwner::Startup(listener) = link.base.owner else { return false };
        match greeting {
            Ok(GroupGreeting::Hello(hello)) => self.adopt_group(id, listener, hello, now),
            Ok(GroupGreeting::Move(request)) => {
                let Some((stream, _)) = self.take_startup_stream(id) else { return true };
                if let Some(stream) = self.take_request_to_move(stream, request)
                    && let Ok(listening) = self.listening.listeners.get(listener)
                {
                    listening.acceptor.groups().pass_move(stream, request);
                }
            }
            Err(e) => {
                crate::trace::debug!("the peer {} is refused: {e}", link.addrs.1);
                let _ = e;
                self.cut_link(id);
            }
        }
        true
    }

    /// Takes the TCP connection out of a start-up, which is over.
    fn take_startup_stream(&mut self, id: u32) -> Option<StreamAndAddrs> {
        self.release_request(id);
        let mut link = self.links.remove(id).ok()?;
        self.turns.timers.clear(Source::Link(id));
        link.forget(&self.reactor);
        Some((link.stream.own().cloned()?, link.addrs))
    }

    /// Gives an accepted connection that carries a group to the RNIC that takes it.
    fn adopt_group(&mut self, id: u32, listener: u32, hello: HelloRepr, now: Time) {
        let token = self.memory.random_u64().max(1);
        let listening = self.listening.listeners.get(listener);
        let groups = listening.ok().map(|l| l.acceptor.groups());
        let takes = groups.map_or(TakesGroups::No, GroupTaker::takes);
        let placed = groups.map_or(Placed::Nowhere, |groups| groups.place(token, hello.kind));
        let never = takes != TakesGroups::NotYet && !allows(takes, hello.kind);
        if matches!(placed, Placed::Nowhere) && never {
            return self.cut_link(id);
        }
        let Some((stream, addrs)) = self.take_startup_stream(id) else { return };
        match placed {
            Placed::Here(place) => {
                let group = PassedGroup { stream, addrs, hello, place };
                self.begin_accepted_group(listener, group, now);
            }
            Placed::There(place) => PassedGroup { stream, addrs, hello, place }.pass(),
            Placed::Nowhere => {
                answer_hello(&stream, none_for_now(hello.kind));
            }
        }
    }

    /// Takes a connection whose first bytes another RNIC at the port has read.
    pub(in crate::tcp) fn take_passed(&mut self, listener: u32, conn: PassedConn, now: Time) {
        let group = match conn {
            PassedConn::Group(group) => group,
            // If the group has ended meanwhile, the connection ends, too.
            PassedConn::Move(stream, request) => {
                return drop(self.take_request_to_move(stream, request));
            }
        };
        let listening = self.listening.listeners.get(listener);
        let kind = group.hello.kind;
        let takes = listening.is_ok_and(|l| allows(l.acceptor.groups().takes(), kind));
        match takes {
            true => self.begin_accepted_group(listener, group, now),
            false => {
                answer_hello(&group.stream, none_for_now(kind));
            }
        }
    }

    /// Answers a hello, and makes a group of its connection.
    fn begin_accepted_group(&mut self, listener: u32, group: PassedGroup, now: Time) {
        let PassedGroup { stream, addrs, hello, place } = group;
        let Ok(listening) = self.listening.listeners.get(listener) else { return };
        let (kind, token) = (hello.kind, place.token);
        let groups = listening.acceptor.groups().takers(kind);
        let answer = HelloRepr { streams: MAX_STREAMS, groups, token, ..none_for_now(kind) };
        if !answer_hello(&stream, answer) {
            return;
        }
        let side = GroupSide::Acceptor { listener, kind, _place: place };
        let mut group = LinkGroup::new(stream, addrs, side, GroupStage::Greeting);
        group.open(hello, token);
        if let Ok(group) = self.add_group(group) {
            self.turns.timers.set(Source::Group(group), now + IDLE_LIMIT);
            self.enqueue(Source::Group(group));
        }
    }

    /// The peer opens a stream.
    pub(super) fn take_open(&mut self, id: u32, stream: u32, port: u16) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        let GroupSide::Acceptor { listener, kind, .. } = group.side else {
            return self.spoil_group(id, "OPEN from the side that was dialed");
        };
        if !group.streams.take_number(stream) {
            return self.spoil_group(id, "a stream was opened out of order");
        }
        let full = group.streams.is_full();
        let Ok(listening) = self.listening.listeners.get_mut(listener) else {
            return self.reset_stream(id, stream, ResetReason::Refused);
        };
        if full || !allows(listening.acceptor.groups().takes(), kind) {
            return self.reset_stream(id, stream, ResetReason::Refused);
        }
        listening.acceptor.opened(id, stream);
        group.streams.await_listener(stream, port);
        self.listening.note_readable(listener);
        self.enqueue(Source::Listener(listener));
    }

    /// A listener takes a stream: it becomes a link that starts up.
    pub(in crate::tcp) fn accept_stream(
        &mut self,
        listener: u32,
        (id, number): (u32, u32),
        now: Time,
    ) {
        let Ok(listening) = self.listening.listeners.get(listener) else { return };
        let deadline = now + listening.handshake_timeout;
        // The peer may have ended the stream, or the group.
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        group.streams.listener_comes();
        let kind = group.kind();
        let Some(holder) = group.streams.get_mut(number) else { return };
        let StreamHolder::Waiting { early, fin, port } = holder else { return };
        let (early, fin, mut addrs) = (std::mem::take(early), *fin, group.addrs);
        addrs.1.set_port(*port);
        let mut stream = GroupStream::new(id, number, group.terms.window, kind);
        stream.came = early.len() as u64;
        (stream.fin, stream.end) = (fin, fin.then_some(StreamEnd::Fin));
        let (engine, owner) = (IwarpEngine::responder(), LinkOwner::Startup(listener));
        let link = SoftLink::new(LinkStream::Grouped(stream), addrs, engine, owner, false);
        let Ok(link) = self.links.insert(link) else {
            return self.reset_stream(id, number, ResetReason::Aborted);
        };
        *holder = StreamHolder::Link(link);
        self.turns.timers.set(Source::Link(link), deadline);
        self.add_startup(link, now);
        if let Ok(link) = self.links.get_mut(link) {
            link.deliver_rest(&early, &mut self.memory.keys, None);
        }
        self.serve_link(link, now);
        self.write_groups();
    }

    /// A listener is closed: it refuses the streams that no program has accepted.
    pub(in crate::tcp) fn refuse_waiting(&mut self, listener: u32) {
        let of_listener = |group: &LinkGroup| matches!(group.side, GroupSide::Acceptor { listener: l, .. } if l == listener);
        let groups = self.parts.groups.table.iter().filter(|(_, group)| of_listener(group));
        let waiting: Vec<(u32, u32)> = groups
            .flat_map(|(id, group)| group.streams.waiting().map(move |number| (id, number)))
            .collect();
        for (id, number) in waiting {
            self.reset_stream(id, number, ResetReason::Refused);
        }
    }
}
