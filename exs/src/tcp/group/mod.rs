//! Link groups: one TCP connection that carries the streams of many links.
//!
//! `spec-notes/link-groups.md` has the design, and `wire/group.rs` draws the frames. The links of a
//! group are links as others are, with an engine each. In the place of a TCP connection they have a
//! [`GroupStream`]. The group moves their bytes: `input` takes frames apart, `output` puts them
//! together, `dial` opens groups and streams in them, `accept` answers, `serve` gives a group its
//! turn, `dialed` counts the links to an address, `end` ends groups and streams, `leave` moves a stream
//! with large data, or one that lives on, to a TCP connection of its own, `streams` has the streams of a
//! group, `set` spreads those to an address over groups, `spread` brings groups to the RNICs of a port, and `pace` dials for those that get no group.
//!
//! What it promises: no frame of a peer makes it panic, or grow without bound. A frame that breaks a
//! rule ends the group, and all of its links with ECONNRESET.
//!
//! What it must never know: what the bytes of a stream are.

mod accept;
mod dial;
mod dialed;
mod end;
mod input;
mod leave;
mod output;
mod pace;
mod read;
mod serve;
mod set;
mod spread;
mod streams;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::dial::DialPlan;
use super::link::LOOKAHEAD;
use crate::rnic::Ready;
use crate::rnic::table::IdTable;
use crate::sys::{self, SharedStream};
use crate::time::Time;
use crate::wire::group::{GroupKind, HelloRepr, LEAST_WINDOW};

pub(super) use accept::HelloSniffer;
pub(super) use dial::GroupKey;
use dialed::DialedAddrs;
pub(super) use input::GroupBytes;
use input::GroupInput;
use leave::Leave;
use output::GroupOutput;
pub(super) use pace::{DialPlace, PacedDials};
use set::GroupSets;
use spread::GroupPlace;
pub(super) use spread::{GroupTaker, PassedConn};
use streams::{GroupStreams, StreamHolder};

/// Bytes that may be under way to this side on a stream.
const WINDOW: u32 = 256 << 10;
/// The longest gather that is copied to the output. Longer ones are large data.
const SMALL: usize = 8 << 10;
/// Streams of a group at a time.
const MAX_STREAMS: u32 = 1 << 16;
/// Streams of a group that no listener has taken yet.
const MAX_PENDING: usize = 1 << 14;
/// Bytes that a stream may bring before a listener has taken it: more than an MPA request has.
const MAX_EARLY: usize = LEAST_WINDOW as usize;
/// Bytes of output that the peer does not read, beyond which the group ends. Links wait from 128 KiB
/// on, so what comes beyond are heads and credit: 2.6 MB if each of the streams begins, has credit, and
/// ends at once.
const MAX_UNSENT: usize = 4 << 20;
/// Time after which a dialer closes a group without streams.
const LINGER: Duration = Duration::from_secs(10);
/// Time after which the other side does so.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// The end of a stream, as the group has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The peer sends no more.
    Fin,
    /// The stream is over, with this errno. The bytes before still count.
    Broken(i32),
    /// The peer has reset the stream, with this errno.
    Reset(i32),
}

/// The stream of a link in a group.
#[derive(Debug)]
pub(super) struct GroupStream {
    pub(super) group: u32,
    number: u32,
    /// Bytes that may still be sent.
    room: u64,
    /// Bytes that came, and those of them for which the peer has got its credit back.
    came: u64,
    credited: u64,
    /// The peer sends no more here: it has sent FIN or MOVED.
    fin: bool,
    /// The end that the link has not seen yet.
    pub(super) end: Option<StreamEnd>,
    /// The dial that began the stream, until the connection is established; None: it was accepted.
    pub(super) plan: Option<Box<DialPlan>>,
    /// Bytes that came or left in large frames.
    bulk: u64,
    /// Small frames that came.
    small: u32,
    /// The connections that its group is for.
    kind: GroupKind,
    leave: Leave,
    /// The link is in the group's queue of links that wait for room.
    waits: bool,
    /// The group has the stream no more.
    gone: bool,
}

impl GroupStream {
    fn new(group: u32, number: u32, room: u32, kind: GroupKind) -> GroupStream {
        GroupStream {
            group,
            number,
            room: u64::from(room),
            came: 0,
            credited: 0,
            fin: false,
            end: None,
            plan: None,
            bulk: 0,
            small: 0,
            kind,
            leave: Leave::Stays,
            waits: false,
            gone: false,
        }
    }
}

/// What carries the bytes of a link.
#[derive(Debug)]
pub(super) enum LinkStream {
    /// A TCP connection of its own.
    Own(Arc<SharedStream>),
    /// A stream of a group.
    Grouped(GroupStream),
}

impl LinkStream {
    /// The TCP connection, if it is the link's own.
    #[inline]
    pub(super) fn own(&self) -> Option<&Arc<SharedStream>> {
        match self {
            LinkStream::Own(stream) => Some(stream),
            LinkStream::Grouped(_) => None,
        }
    }

    /// The stream of a group.
    #[inline]
    pub(super) fn grouped(&self) -> Option<&GroupStream> {
        match self {
            LinkStream::Own(_) => None,
            LinkStream::Grouped(stream) => Some(stream),
        }
    }

    #[inline]
    pub(super) fn grouped_mut(&mut self) -> Option<&mut GroupStream> {
        match self {
            LinkStream::Own(_) => None,
            LinkStream::Grouped(stream) => Some(stream),
        }
    }
}

/// The side of a group.
#[derive(Debug)]
enum GroupSide {
    /// It opened the group. Dials that wait for the answer.
    Dialer { key: GroupKey, pending: Vec<u32> },
    /// The group came to this listener.
    Acceptor { listener: u32, kind: GroupKind, _place: GroupPlace },
}

/// How far a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupStage {
    /// The TCP connect is under way.
    Connecting,
    /// The hello has left, and the answer has not come.
    Greeting,
    /// Frames may come and leave.
    Open,
}

/// What the hello and its answer have said.
#[derive(Clone, Copy, Debug, Default)]
struct GroupTerms {
    /// The peer's window for a new stream.
    window: u32,
    /// Streams that the peer takes at a time.
    streams: u32,
    /// The name of the group for requests to move, which the accepting side has chosen. 0: no stream
    /// can move.
    token: u64,
}

/// A group.
pub(super) struct LinkGroup {
    stream: Arc<SharedStream>,
    /// Our address, and the peer's.
    addrs: (SocketAddr, SocketAddr),
    side: GroupSide,
    stage: GroupStage,
    ready: Ready,
    /// On the ready list.
    pub(super) queued: bool,
    /// The errno with which the TCP connection has ended.
    end: Option<i32>,
    terms: GroupTerms,
    streams: GroupStreams,
    input: GroupInput,
    /// Bytes of lookahead to ask for next.
    look: usize,
    output: GroupOutput,
}

impl LinkGroup {
    fn new(
        stream: Arc<SharedStream>,
        addrs: (SocketAddr, SocketAddr),
        side: GroupSide,
        stage: GroupStage,
    ) -> LinkGroup {
        LinkGroup {
            stream,
            addrs,
            side,
            stage,
            ready: Ready { readable: true, writable: true, hup: false },
            queued: false,
            end: None,
            terms: GroupTerms::default(),
            streams: GroupStreams::default(),
            input: GroupInput::default(),
            look: LOOKAHEAD,
            output: GroupOutput::default(),
        }
    }

    /// The hello and its answer have passed: frames may come and leave, within the peer's limits.
    fn open(&mut self, peer: HelloRepr, token: u64) {
        let HelloRepr { window, streams, .. } = peer;
        (self.stage, self.terms) = (GroupStage::Open, GroupTerms { window, streams, token });
        // It will be busy.
        sys::roomy_within_host(&*self.stream, self.addrs.0, self.addrs.1);
    }

    /// True if the peer takes one more stream.
    fn has_room(&self) -> bool {
        self.streams.len() < usize::try_from(self.terms.streams).unwrap_or(usize::MAX)
    }

    /// The streams that it has, or will have.
    fn load(&self) -> usize {
        match &self.side {
            GroupSide::Dialer { pending, .. } => self.streams.len() + pending.len(),
            GroupSide::Acceptor { .. } => self.streams.len(),
        }
    }

    /// The connections that it is for.
    fn kind(&self) -> GroupKind {
        match &self.side {
            GroupSide::Dialer { key, .. } => key.kind,
            GroupSide::Acceptor { kind, .. } => *kind,
        }
    }

    fn is_open(&self) -> bool {
        self.stage == GroupStage::Open && self.end.is_none()
    }

    /// True if nothing uses the group.
    fn is_idle(&self) -> bool {
        let dials = matches!(&self.side, GroupSide::Dialer { pending, .. } if !pending.is_empty());
        self.streams.is_empty() && !dials
    }
}

/// The groups of an RNIC.
pub(super) struct LinkGroups {
    pub(super) table: IdTable<LinkGroup>,
    /// The groups that this side opened, and that take further streams.
    sets: GroupSets,
    /// Links and dials to each address.
    dialed: DialedAddrs,
    /// Addresses whose ends take no groups of a kind, and until when this is remembered.
    unable: VecDeque<(SocketAddr, GroupKind, Time)>,
    /// Dials that go on without a group.
    pub(super) paced: PacedDials,
    /// LinkGroups with output that was not offered to the socket.
    dirty: Vec<u32>,
    /// LinkGroups that may have no stream any more.
    emptied: Vec<u32>,
    /// The output waits while this is not 0.
    held: u32,
    /// Takes the place of the limit that a dial names. None: the dial's counts.
    limit: Option<u32>,
    /// Bytes in the lookahead that were not taken apart.
    pub(super) input: Option<GroupBytes>,
}

impl Default for LinkGroups {
    fn default() -> LinkGroups {
        LinkGroups {
            table: IdTable::new("link group"),
            sets: GroupSets::default(),
            dialed: DialedAddrs::default(),
            unable: VecDeque::new(),
            paced: PacedDials::default(),
            dirty: Vec::new(),
            emptied: Vec::new(),
            held: 0,
            limit: None,
            input: None,
        }
    }
}

impl LinkGroups {
    /// True if there are groups.
    pub(super) fn any(&self) -> bool {
        self.table.iter().next().is_some()
    }

    /// When a turn is due for what the groups have to do.
    pub(super) fn due(&self) -> Option<Time> {
        let idle = self.dirty.is_empty() && self.emptied.is_empty() && self.input.is_none();
        (!idle || self.paced.is_due()).then_some(Time::ZERO)
    }

    /// The peers whose groups were accepted.
    pub(super) fn accepted_peers(&self) -> impl Iterator<Item = SocketAddr> {
        let accepted = |group: &&LinkGroup| matches!(group.side, GroupSide::Acceptor { .. });
        self.table.iter().map(|(_, group)| group).filter(accepted).map(|group| group.addrs.1)
    }

    /// Notes that a group has output.
    pub(super) fn mark_dirty(&mut self, id: u32) {
        if let Ok(group) = self.table.get_mut(id)
            && !std::mem::replace(&mut group.output.dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// The mark of a group that it is on the ready list.
    pub(super) fn queued(&mut self, id: u32) -> Option<&mut bool> {
        self.table.get_mut(id).ok().map(|group| &mut group.queued)
    }

    pub(super) fn note_ready(&mut self, id: u32, ready: Ready) {
        if let Ok(group) = self.table.get_mut(id) {
            group.ready.readable |= ready.readable || ready.hup;
            group.ready.writable |= ready.writable || ready.hup;
            group.ready.hup |= ready.hup;
        }
    }
}
