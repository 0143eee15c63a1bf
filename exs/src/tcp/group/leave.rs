//! Streams that leave their group, as they carry large data.
//!
//! A group is for small messages, hundreds of which leave in one call. Large data gain nothing there, and
//! all streams of the group would share one socket buffer and one congestion window for them. So the side
//! that has opened the group dials a TCP connection for such a stream. Its first bytes are a request to
//! move (`wire/group.rs`), and the link goes on there.
//!
//! ```text
//! opened the group                                    accepted it
//! Stays                                               Stays
//! |- large data have passed
//! Dials
//! |- connected: request to move --(new connection)--> |
//! Asks                                                Ends
//! |                                                   |- MOVED, behind the begun frame
//! | <------------------(group)----------------------- Ended
//! Ends                                                |
//! |- MOVED, behind the begun frame --(group)--------> |
//! Over: the connection is the link's own              Over: the connection is the link's own
//! ```
//!
//! While a link is in `Ends` or `Ended` it sends no new frame. So each direction changes over between two
//! bytes, and no byte overtakes another: neither side sends on the new connection before it has read the
//! other's MOVED. A request that fails, or that the other end refuses by closing the connection, leaves
//! the stream in its group.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use mio::Interest;
use mio::unix::SourceFd;

use super::super::SoftRnic;
use super::super::directions::{Inbound, LOOKAHEAD_MIN};
use super::super::link::{SoftLink, Watched};
use super::dial::send_greeting;
use super::{
    DialPlace, GroupKey, GroupSide, GroupStream, LinkGroup, LinkStream, StreamEnd, StreamHolder,
};
use crate::driver::Source;
use crate::rnic::{QpState, Ready, RnicError};
use crate::sys::{self, IoVecMut, SharedStream};
use crate::wire::group::{GroupFrameKind, GroupKind, MoveRepr};

/// Bytes in large frames after which a stream leaves. Within a host, a TCP connection costs both ends some
/// 230 us, and a message of 64 KiB 33 us.
const LARGE: u64 = 256 << 10;

/// Small frames after which a brief connection counts as one that lives on, and leaves. A thread that
/// waits in its shard, and not for the connection itself, has lost some 100 us by then.
const BRIEF: u32 = 32;

/// How far a stream is on its way out of its group.
#[derive(Debug, Default)]
pub(super) enum Leave {
    /// It has not carried large data.
    #[default]
    Stays,
    /// No connection could be had for it.
    Refused,
    /// The TCP connect is under way.
    Dials(NewConn),
    /// The request to move has left.
    Asks(NewConn),
    /// It sends no new frame, and MOVED behind the one that is begun.
    Ends(NewConn),
    /// MOVED has left, and that of the peer has not come.
    Ended(NewConn),
    /// Both have.
    Over(NewConn),
}

/// The connection to which a stream moves.
#[derive(Debug)]
pub(super) struct NewConn {
    stream: Arc<SharedStream>,
    /// The place of the connect among those under way; None: the connection was accepted.
    place: Option<DialPlace>,
}

impl GroupStream {
    /// True if the link must send no new frame.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.leave, Leave::Ends(_) | Leave::Ended(_) | Leave::Over(_))
    }

    /// True if nothing of it passes by the group any more.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.leave, Leave::Over(_))
    }

    /// The connection to which it moves, if the peer may have moved there.
    pub(in crate::tcp) fn next_conn(&self) -> Option<&SharedStream> {
        match &self.leave {
            Leave::Ended(conn) | Leave::Over(conn) => Some(&conn.stream),
            _ => None,
        }
    }

    /// True if its next turn can bring it further on its way.
    fn is_due(&self) -> bool {
        match self.leave {
            Leave::Stays => {
                self.bulk >= LARGE || (self.kind == GroupKind::Brief && self.small >= BRIEF)
            }
            Leave::Refused | Leave::Ended(_) => false,
            Leave::Dials(_) | Leave::Asks(_) | Leave::Ends(_) | Leave::Over(_) => true,
        }
    }

    /// True if its link must have a turn.
    pub(in crate::tcp) fn has_news(&self) -> bool {
        self.end.is_some() || self.is_due()
    }
}

impl SoftLink {
    /// The stream, if the link can go on elsewhere: the connection is established, and neither side
    /// has ended its direction.
    fn movable(&mut self) -> Option<&mut GroupStream> {
        let open = self.inbound == Inbound::Open && !self.outbound.shut;
        let established = self.engine.state() == QpState::Rts;
        let stream = self.stream.grouped_mut().filter(|_| open && established)?;
        let lives = !stream.fin && stream.end.is_none() && !stream.gone;
        (lives && matches!(stream.leave, Leave::Stays)).then_some(stream)
    }
}

impl SoftRnic {
    /// Brings a stream further on its way out of its group, if it is on one.
    #[inline]
    pub(in crate::tcp) fn step_leave(&mut self, id: u32) {
        let stream = self.links.get(id).ok().and_then(|link| link.stream.grouped());
        if stream.is_some_and(GroupStream::is_due) {
            self.take_step(id);
        }
    }

    fn take_step(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let hup = link.ready.hup;
        let Some(stream) = link.stream.grouped_mut() else { return };
        match &stream.leave {
            Leave::Stays => self.begin_leave(id),
            Leave::Dials(_) => self.ask_to_move(id),
            Leave::Asks(conn) => {
                if hup && has_ended(&conn.stream) {
                    self.stay(id);
                }
            }
            Leave::Ends(_) => self.end_in_group(id),
            Leave::Over(_) => self.move_out(id),
            Leave::Refused | Leave::Ended(_) => {}
        }
    }

    /// Dials a connection for a stream. If too many others are under way, a later turn does.
    fn begin_leave(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Some(stream) = link.movable() else { return };
        let Ok(group) = self.parts.groups.table.get(stream.group) else { return };
        let GroupSide::Dialer { key, .. } = group.side else {
            // Its peer counts, too.
            (stream.bulk, stream.small) = (0, 0);
            return;
        };
        if group.terms.token == 0 {
            stream.leave = Leave::Refused;
            return;
        }
        let Some(place) = self.parts.groups.paced.spare_place(key.addr) else { return };
        self.parts.groups.note_messages(key.addr, stream);
        match self.connect_for(id, &key) {
            Ok(tcp) => {
                self.set_leave(id, Leave::Dials(NewConn { stream: tcp, place: Some(place) }));
                // On loopback the peer's host answers within the call.
                self.ask_to_move(id);
            }
            Err(e) => {
                crate::trace::debug!("a connection to {} stays in its link group: {e}", key.addr);
                let _ = e;
                self.set_leave(id, Leave::Refused);
            }
        }
    }

    /// Begins the TCP connect. The reactor reports the connection as the link.
    fn connect_for(&mut self, id: u32, key: &GroupKey) -> Result<Arc<SharedStream>, RnicError> {
        let tcp = key.connect()?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.reactor.watch(&mut SourceFd(&tcp.as_raw_fd()), Source::Link(id), interest)?;
        Ok(tcp)
    }

    fn set_leave(&mut self, id: u32, leave: Leave) {
        let stream = self.links.get_mut(id).ok().and_then(|link| link.stream.grouped_mut());
        if let Some(stream) = stream {
            stream.leave = leave;
        }
    }

    /// Sends the request to move, once the TCP connect has succeeded.
    fn ask_to_move(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Some(stream) = link.stream.grouped_mut() else { return };
        let Ok(group) = self.parts.groups.table.get(stream.group) else { return };
        let Leave::Dials(conn) = &stream.leave else { return };
        match conn.stream.connect_outcome() {
            None => return,
            Some(Err(_)) => return self.stay(id),
            Some(Ok(_)) => {}
        }
        let _ = sys::no_delay(&*conn.stream, true);
        let request = MoveRepr { stream: stream.number, token: group.terms.token };
        if send_greeting(&conn.stream, &request.emit()).is_err() {
            return self.stay(id);
        }
        if let Leave::Dials(conn) = std::mem::take(&mut stream.leave) {
            stream.leave = Leave::Asks(conn);
        }
    }

    /// The stream stays in its group, for good.
    fn stay(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Some(stream) = link.stream.grouped_mut() else { return };
        if let Leave::Dials(conn) | Leave::Asks(conn) =
            std::mem::replace(&mut stream.leave, Leave::Refused)
        {
            self.reactor.forget(&mut SourceFd(&conn.stream.as_raw_fd()));
            link.ready.hup = false;
        }
    }

    /// The peer asks a stream to move to the connection. Returns the connection if this RNIC does not have
    /// the group. If the stream cannot move, the connection is closed, and the peer knows.
    pub(super) fn take_request_to_move(
        &mut self,
        tcp: Arc<SharedStream>,
        request: MoveRepr,
    ) -> Option<Arc<SharedStream>> {
        let Some(group) = self.accepted_group(request.token) else { return Some(tcp) };
        let id = group.streams.link_of(request.stream)?;
        let stream = self.links.get_mut(id).ok()?.movable()?;
        stream.leave = Leave::Ends(NewConn { stream: tcp, place: None });
        self.step_leave(id);
        self.write_groups();
        None
    }

    /// The open group that came here and has this token.
    fn accepted_group(&self, token: u64) -> Option<&LinkGroup> {
        let has = |group: &&LinkGroup| {
            let accepted = matches!(group.side, GroupSide::Acceptor { .. });
            accepted && group.terms.token == token && group.is_open()
        };
        self.parts.groups.table.iter().map(|(_, group)| group).find(has)
    }

    /// Sends MOVED, unless a frame of the link is begun.
    fn end_in_group(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Some(stream) = link.stream.grouped_mut() else { return };
        let Ok(group) = self.parts.groups.table.get_mut(stream.group) else { return };
        if group.output.begun_by() == Some(id) {
            return;
        }
        let Leave::Ends(conn) = std::mem::take(&mut stream.leave) else { return };
        group.output.control(stream.number, GroupFrameKind::Moved, &[]);
        let asked = matches!(group.side, GroupSide::Dialer { .. });
        stream.leave = if asked { Leave::Over(conn) } else { Leave::Ended(conn) };
        let id_of_group = stream.group;
        self.parts.groups.mark_dirty(id_of_group);
        if asked {
            self.move_out(id);
        }
    }

    /// The peer's direction goes on elsewhere.
    pub(super) fn take_moved(&mut self, id: u32, number: u32) {
        let Ok(group) = self.parts.groups.table.get(id) else { return };
        let link = match group.streams.get(number) {
            Some(StreamHolder::Link(link)) => *link,
            // The link is gone, and the peer does not know that yet.
            None if group.streams.was_opened(number) => return,
            _ => return self.spoil_group(id, "MOVED of a stream that was not asked to move"),
        };
        let asked = matches!(group.side, GroupSide::Dialer { .. });
        let Ok(l) = self.links.get_mut(link) else { return };
        let Some(stream) = l.stream.grouped_mut() else { return };
        match (std::mem::take(&mut stream.leave), asked) {
            (Leave::Asks(conn), true) => stream.leave = Leave::Ends(conn),
            (Leave::Ended(conn), false) => stream.leave = Leave::Over(conn),
            // The connection to which it goes has broken meanwhile.
            (Leave::Refused, true) => stream.end = Some(StreamEnd::Broken(libc::ECONNRESET)),
            _ => return self.spoil_group(id, "MOVED of a stream that was not asked to move"),
        }
        stream.fin = true;
        self.enqueue(Source::Link(link));
    }

    /// From now on the connection is the link's own.
    fn move_out(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Some(stream) = link.stream.grouped_mut() else { return };
        let Leave::Over(NewConn { stream: tcp, place }) = std::mem::take(&mut stream.leave) else {
            return;
        };
        let (group, number) = (stream.group, stream.number);
        if link.outbound.shut {
            // Fails only if the connection is gone, and reads show that.
            let _ = sys::shutdown_write(&*tcp);
        }
        // The reactor reports the connection already, if this side has dialed it.
        link.watched = if place.is_some() { Watched::Everything } else { Watched::Nothing };
        link.stream = LinkStream::Own(tcp);
        link.ready = Ready { readable: true, writable: true, hup: link.ready.hup };
        link.intake.lookahead_size = LOOKAHEAD_MIN;
        if let Ok(group) = self.parts.groups.table.get_mut(group) {
            group.streams.remove(number);
        }
        self.parts.groups.emptied.push(group);
        self.enqueue(Source::Link(id));
    }
}

/// True if the other end has closed a connection on which nothing can have come.
fn has_ended(tcp: &SharedStream) -> bool {
    let read = sys::receive(tcp, &mut [IoVecMut::new(&mut [0])]);
    !read.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
}
