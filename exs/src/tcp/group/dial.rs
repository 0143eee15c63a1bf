//! The side that opens groups, and streams in them.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;
use mio::unix::SourceFd;

use super::super::SoftRnic;
use super::super::deferred::share;
use super::super::dial::{DialPlan, SoftDial};
use super::super::link::SoftLink;
use super::{
    GroupSide, GroupStage, GroupStream, LinkGroup, LinkGroups, LinkStream, MAX_STREAMS, StreamEnd,
    WINDOW,
};
use crate::driver::{Conn, LinkOwner, Source};
use crate::iwarp::IwarpEngine;
#[cfg(any(test, feature = "internals"))]
use crate::rnic::Qp;
use crate::rnic::{GroupRule, QpState, RnicError, StarvedListener};
use crate::sys::{self, IoVec, IoVecMut, SharedStream, TcpSendFlags};
use crate::time::Time;
use crate::wire::group::{GroupFrameKind, GroupKind, HELLO_LEN, HelloRepr, emit_port};

/// How long an end that takes no groups is remembered.
const MEMORY: Duration = Duration::from_secs(60);
/// How long one that takes none for now is.
const SHORT_MEMORY: Duration = Duration::from_secs(1);
/// LinkGroups that a dial tries before it gets a TCP connection of its own.
const MOST_REFUSALS: u32 = 3;
/// Such ends, at most.
const MOST_UNABLE: usize = 64;
/// Groups to one address, at most, whatever the other end says.
const MOST_GROUPS: u32 = 256;

/// What the links of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::tcp) struct GroupKey {
    pub(in crate::tcp) addr: SocketAddr,
    pub(in crate::tcp) bind: Option<SocketAddr>,
    pub(in crate::tcp) traffic_class: Option<u8>,
    pub(in crate::tcp) kind: GroupKind,
}

impl GroupKey {
    /// Begins the TCP connect of a group, or of a stream that leaves one.
    pub(super) fn connect(&self) -> Result<Arc<SharedStream>, RnicError> {
        let stream = sys::connect_nonblocking(&self.addr, self.bind.as_ref(), self.traffic_class)
            .map_err(|e| RnicError::os("connect", &e))?;
        Ok(share(mio::net::TcpStream::from_std(stream)))
    }
}

/// Sends the first bytes of a connection, which is new and has room for them.
///
/// # Errors
/// The errno with which the connection has ended.
pub(super) fn send_greeting(stream: &SharedStream, bytes: &[u8; HELLO_LEN]) -> Result<(), i32> {
    let flags = TcpSendFlags { more: false, end_of_record: false };
    match sys::send(stream, &[IoVec::new(bytes)], flags) {
        Ok(HELLO_LEN) => Ok(()),
        Ok(_) => Err(libc::EIO),
        Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
    }
}

impl LinkGroups {
    #[cfg(any(test, feature = "internals"))]
    pub(in crate::tcp) fn set_limit(&mut self, limit: u32) {
        self.limit = Some(limit);
    }

    /// Counts a dial, which may become a link.
    pub(in crate::tcp) fn count_dial(&mut self, addr: SocketAddr, now: Time) {
        self.dialed.count(addr, now);
    }

    /// A dial, or its link, is over.
    pub(in crate::tcp) fn uncount_dial(&mut self, addr: SocketAddr) {
        self.dialed.uncount(addr);
    }

    /// A link of a group that this side has dialed has ended, or leaves the group.
    pub(in crate::tcp) fn note_messages(&mut self, addr: SocketAddr, stream: &GroupStream) {
        if stream.kind == GroupKind::Brief {
            self.dialed.note_messages(&addr, stream.small);
        }
    }

    /// The kind of group to which a dial goes. None: it gets a TCP connection of its own.
    pub(in crate::tcp) fn kind_for(
        &mut self,
        plan: &DialPlan,
        rule: GroupRule,
        now: Time,
    ) -> Option<GroupKind> {
        // The program has chosen the port of this connection.
        let chosen = plan.bind().is_some_and(|bind| bind.port() != 0);
        if chosen || !plan.no_delay {
            return None;
        }
        let links = self.dialed.of(&plan.addr);
        let beyond = self.limit.or(rule.beyond);
        let kind = if beyond.is_some_and(|limit| links.open >= limit) && !links.attended {
            GroupKind::Many
        } else if rule.brief && links.are_brief(now) {
            GroupKind::Brief
        } else {
            return None;
        };
        self.unable.retain(|(_, _, until)| *until > now);
        let able = self.unable.iter().all(|(addr, of, _)| (*addr, *of) != (plan.addr, kind));
        able.then_some(kind)
    }

    /// A dial waits for a group no more.
    pub(in crate::tcp) fn forget_dial(&mut self, group: u32, dial: u32) {
        if let Ok(group) = self.table.get_mut(group)
            && let GroupSide::Dialer { pending, .. } = &mut group.side
        {
            pending.retain(|waiting| *waiting != dial);
        }
    }

    fn note_unable(&mut self, (addr, kind): (SocketAddr, GroupKind), until: Time) {
        if self.unable.len() == MOST_UNABLE {
            self.unable.pop_front();
        }
        self.unable.push_back((addr, kind, until));
    }
}

impl SoftRnic {
    /// The local address of the TCP connection that carries a queue pair: its own, or that of a group.
    #[cfg(any(test, feature = "internals"))]
    pub fn carrier(&self, qp: Qp) -> Option<SocketAddr> {
        let Conn::Link(link) = self.qps.get(qp.0).ok()?.conn else { return None };
        match &self.links.get(link).ok()?.stream {
            LinkStream::Own(stream) => stream.addrs().ok().map(|addrs| addrs.0),
            LinkStream::Grouped(stream) => {
                self.parts.groups.table.get(stream.group).ok().map(|group| group.addrs.0)
            }
        }
    }

    /// The program waits for a link by itself, which a link of a group does not allow (`Rnic::keep_apart`).
    pub(in crate::tcp) fn keep_apart(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        if let Some(addr) = link.dialed {
            return self.parts.groups.dialed.note_attended(&addr);
        }
        let port = link.addrs.0.port();
        let listeners = &mut self.listening.listeners;
        for place in 0..listeners.places() {
            if let Some(l) = listeners.at_mut(place).filter(|l| l.addr.port() == port) {
                l.acceptor.keep_apart();
            }
        }
    }

    /// Dials by a group, which is made if there is none.
    pub(in crate::tcp) fn dial_in_group(
        &mut self,
        plan: DialPlan,
        now: Time,
    ) -> Result<Conn, RnicError> {
        let key = plan.group_key();
        let id = match self.parts.groups.choose(&key) {
            Some(id) => id,
            None => self.begin_group(key, plan.timeout, now)?,
        };
        let group = self.parts.groups.table.get_mut(id)?;
        if group.is_open() && !group.has_room() {
            return self.dial_tcp(plan, now);
        }
        if group.is_open() {
            let deadline = plan.deadline;
            let link = self.open_stream(id, plan)?;
            self.turns.timers.set(Source::Link(link), deadline);
            self.finish_open(link);
            self.write_groups();
            return Ok(Conn::Link(link));
        }
        let deadline = plan.deadline;
        let dial = self.parts.dials.insert(SoftDial::waiting(plan, id))?;
        if let Ok(group) = self.parts.groups.table.get_mut(id)
            && let GroupSide::Dialer { pending, .. } = &mut group.side
        {
            pending.push(dial);
        }
        self.turns.timers.set(Source::Opening(dial), deadline);
        Ok(Conn::Opening(dial))
    }

    fn begin_group(
        &mut self,
        key: GroupKey,
        timeout: Duration,
        now: Time,
    ) -> Result<u32, RnicError> {
        let stream = key.connect()?;
        let side = GroupSide::Dialer { key, pending: Vec::new() };
        let group = LinkGroup::new(stream, (key.addr, key.addr), side, GroupStage::Connecting);
        let id = self.add_group(group)?;
        self.parts.groups.sets.add(key, id);
        self.turns.timers.set(Source::Group(id), now + timeout);
        // On loopback the peer's host answers within the call.
        self.group_connects(id, now);
        self.enqueue(Source::Group(id));
        Ok(id)
    }

    /// Puts a group into the table, and registers it with the reactor.
    pub(super) fn add_group(&mut self, group: LinkGroup) -> Result<u32, RnicError> {
        let fd = group.stream.as_raw_fd();
        let id = self.parts.groups.table.insert(group)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let watched = self.reactor.watch(&mut SourceFd(&fd), Source::Group(id), interest);
        if let Err(e) = watched {
            self.parts.groups.table.remove(id)?;
            return Err(e);
        }
        Ok(id)
    }

    /// Looks whether the TCP connect has succeeded or failed.
    pub(super) fn group_connects(&mut self, id: u32, now: Time) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        match group.stream.connect_outcome() {
            None => {}
            Some(Err(errno)) => group.end = Some(errno),
            Some(Ok(addrs)) => {
                group.addrs = addrs;
                let _ = sys::no_delay(&*group.stream, true);
                let hello = HelloRepr::of_dialer(group.kind(), WINDOW, MAX_STREAMS);
                match send_greeting(&group.stream, &hello.emit()) {
                    Ok(()) => group.stage = GroupStage::Greeting,
                    Err(errno) => group.end = Some(errno),
                }
                self.await_answer(id, now);
            }
        }
    }

    /// Looks for the answer to the hello.
    pub(super) fn await_answer(&mut self, id: u32, now: Time) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        if group.stage != GroupStage::Greeting || group.end.is_some() {
            return;
        }
        let mut bytes = [0; HELLO_LEN];
        // It comes in one piece, from an end that sends it so. One in pieces is none.
        let read = sys::receive(&*group.stream, &mut [IoVecMut::new(&mut bytes)]);
        let answer = match read {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) => None,
            Ok(HELLO_LEN) => HelloRepr::parse(&bytes, true).ok(),
            Ok(_) => None,
        };
        let memory = if answer.is_some() { SHORT_MEMORY } else { MEMORY };
        let Some(answer) = answer.filter(|answer| answer.streams > 0) else {
            group.end = Some(libc::ECONNRESET);
            return self.note_no_group(id, now + memory);
        };
        group.open(answer, answer.token);
        self.turns.timers.clear(Source::Group(id));
        let GroupSide::Dialer { key, pending } = &mut group.side else { return };
        let (key, mut dials) = (*key, std::mem::take(pending));
        self.parts.groups.sets.note_most(&key, answer.groups.min(MOST_GROUPS));
        let most = usize::try_from(answer.streams).unwrap_or(usize::MAX);
        self.fall_back(dials.split_off(dials.len().min(most)));
        self.dial_again_in_groups(dials, now);
        self.parts.groups.emptied.push(id);
        self.enqueue(Source::Group(id));
    }

    /// The other end has answered that it takes no group, or not this one.
    fn note_no_group(&mut self, id: u32, until: Time) {
        let groups = &mut self.parts.groups;
        let Ok(group) = groups.table.get(id) else { return };
        let GroupSide::Dialer { key, .. } = group.side else { return };
        // A shard there takes none, and another one does.
        if groups.sets.leave(&key, id) {
            return;
        }
        crate::trace::debug!("{} takes no link groups", key.addr);
        groups.note_unable((key.addr, key.kind), until);
    }

    /// Begins dials anew that have waited for a group.
    pub(super) fn dial_again_in_groups(&mut self, dials: Vec<u32>, now: Time) {
        for dial in dials {
            let Ok(mut dialed) = self.parts.dials.remove(dial) else { continue };
            self.turns.timers.clear(Source::Opening(dial));
            let (qp, addr) = (dialed.plan.qp, dialed.plan.addr);
            dialed.plan.deadline = dialed.plan.deadline.max(now);
            let conn = self.dial_in_group(dialed.plan, now);
            self.end_dial_again(qp, addr, conn);
        }
    }

    /// Begins a stream. Returns its link.
    fn open_stream(&mut self, id: u32, plan: DialPlan) -> Result<u32, RnicError> {
        let mut engine = IwarpEngine::initiator(plan.config, &plan.private_data)?;
        let pair = self.qps.get_mut(plan.qp)?;
        for buf in std::mem::take(&mut pair.recvs) {
            engine.post_recv(buf)?;
        }
        let port = sys::next_reported_port(|| self.memory.random_u64());
        let group = self.parts.groups.table.get_mut(id)?;
        let mut addrs = group.addrs;
        addrs.0.set_port(port);
        pair.addrs = Some(addrs);
        let number = group.streams.next_number().ok_or(RnicError::Exhausted {
            what: "stream of a link group",
            asked: 1 << 32,
            limit: (1 << 32) - 1,
            errno: libc::EMFILE,
        })?;
        let stream =
            LinkStream::Grouped(GroupStream::new(id, number, group.terms.window, group.kind()));
        let owner = LinkOwner::Qp(plan.qp);
        let mut link = SoftLink::new(stream, addrs, engine, owner, false);
        link.base.attempt = Some(plan.attempt);
        link.dialed = Some(plan.addr);
        if let Some(stream) = link.stream.grouped_mut() {
            stream.plan = Some(Box::new(plan));
        }
        let link = self.links.insert(link)?;
        group.streams.open(number, link);
        group.output.control(number, GroupFrameKind::Open, &emit_port(port));
        self.parts.groups.mark_dirty(id);
        Ok(link)
    }

    /// Sends the request of a link that has just begun.
    fn finish_open(&mut self, link: u32) {
        if self.write_link(link) || self.links.get(link).is_ok_and(|l| !l.ready.writable) {
            self.enqueue(Source::Link(link));
        }
    }

    /// Fails the dials that had begun when a listener of this process starved, and that wait for a group
    /// which the listener has not accepted.
    pub(in crate::tcp) fn fail_waiting_dials(&mut self, starved: &StarvedListener) {
        let StarvedListener { at, errno, taken, before } = starved;
        let waits = |group: &LinkGroup| {
            let (local, peer) = group.addrs;
            let here = peer.port() == at.port() && peer.ip() == local.ip();
            let there = at.ip().is_unspecified() || at.ip() == peer.ip();
            group.stage == GroupStage::Greeting && here && there && !taken.contains(&local)
        };
        let groups = self.parts.groups.table.iter().filter(|(_, group)| waits(group));
        let pending = groups.flat_map(|(_, group)| match &group.side {
            GroupSide::Dialer { pending, .. } => pending.clone(),
            GroupSide::Acceptor { .. } => Vec::new(),
        });
        for dial in pending.collect::<Vec<u32>>() {
            if self.parts.dials.get(dial).is_ok_and(|d| d.plan.attempt < *before) {
                self.fail_dial(dial, RnicError::Os { call: "MPA start-up", errno: *errno });
            }
        }
    }

    /// Dials anew for a link whose stream was refused: the listener of the group is closed, or rests,
    /// and there may be another one at the port. True if the link is gone.
    pub(in crate::tcp) fn redial_refused(&mut self, id: u32, now: Time) -> bool {
        let Ok(link) = self.links.get_mut(id) else { return true };
        let connects = link.engine.state() == QpState::Connecting;
        let Some(stream) = link.stream.grouped_mut() else { return false };
        if stream.end != Some(StreamEnd::Reset(libc::ECONNREFUSED)) || !connects {
            return false;
        }
        let (Some(mut plan), group) = (stream.plan.take(), stream.group) else { return false };
        plan.refusals += 1;
        let Ok(mut link) = self.links.remove(id) else { return true };
        self.turns.timers.clear(Source::Link(id));
        let key = plan.group_key();
        self.parts.groups.sets.leave(&key, group);
        let (qp, addr) = (plan.qp, plan.addr);
        if let Ok(pair) = self.qps.get_mut(qp) {
            pair.recvs = link.engine.take_recvs();
        }
        let dialed = match plan.refusals < MOST_REFUSALS {
            true => self.dial_in_group(*plan, now),
            false => self.dial_in_turn(*plan),
        };
        self.end_dial_again(qp, addr, dialed);
        true
    }

    pub(super) fn end_dial_again(
        &mut self,
        qp: u32,
        addr: SocketAddr,
        dialed: Result<Conn, RnicError>,
    ) {
        match dialed {
            Ok(conn) => {
                if let Ok(pair) = self.qps.get_mut(qp) {
                    pair.conn = conn;
                }
            }
            Err(error) => {
                self.parts.groups.uncount_dial(addr);
                self.report_failed_dial(qp, error);
            }
        }
    }
}
