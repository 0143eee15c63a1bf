//! The life of a connection: three small machines, each with one table.
//!
//! - [`Stage`]: how far the connection is, from the handshake to the end of its queue pair.
//! - [`OwnClose`]: how far this side's close is: CLOSE, and the peer's CLOSE_ACK.
//! - [`PeerClose`]: how far the peer's close is: its CLOSE, and this side's CLOSE_ACK.
//!
//! Both closes can cross on the wire, so they are machines of their own. An event without a
//! row in the table changes nothing. `spec-notes/session.md` holds the drawings, and a test
//! compares them with the tables.

use std::fmt::Debug;

use crate::rnic::DisconnectCause;

use super::OpError;

/// A state machine that is a table of transitions.
pub(super) trait Machine: Copy + Eq + Debug + 'static {
    type Event: Copy + Eq + Debug + 'static;

    /// The rows: state before, event, state after.
    const TABLE: &'static [(Self, Self::Event, Self)];

    /// The state after an event; `None` if the event has no meaning in this state.
    fn after(self, event: Self::Event) -> Option<Self> {
        let row = Self::TABLE.iter().find(|(from, on, _)| (*from, *on) == (self, event));
        row.map(|(_, _, to)| *to)
    }

    /// Moves to the state after an event. False if the event changes nothing.
    fn step(&mut self, event: Self::Event) -> bool {
        let Some(next) = self.after(event) else { return false };
        #[cfg(test)]
        tests::note_taken(*self, event);
        *self = next;
        true
    }
}

/// How far the connection is. The order matters: from `Leaving` on it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Stage {
    /// No queue pair is connected yet.
    Idle,
    /// The queue pair is connected. This side accepted, so it is silent until READY.
    Mute,
    /// Both sides may talk.
    Open,
    /// The port refused a work request: the queue pair is going down, and the port is about to
    /// report it. Messages that arrive still count.
    Refused,
    /// Both closes are done. The orderly disconnect is asked for and not yet reported.
    Leaving,
    /// Something ended the connection. The next `drive` cuts it.
    Failed,
    /// Cut: windows are closed and operations ended, apart from those whose memory the RNIC
    /// still uses. The port has not yet reported the end of the queue pair.
    Cut,
    /// The queue pair is gone. The next `drive` ends what the RNIC held.
    Gone,
    /// Over.
    Down,
}

/// What moves a connection from one [`Stage`] to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageEvent {
    /// The queue pair is connected, and this side has the acceptor's hello.
    Connected,
    /// The queue pair is connected; this side accepted.
    Accepted,
    /// READY arrived. It can overtake the report of the connection.
    Ready,
    /// The port refused a work request because the queue pair is going down.
    Refuse,
    /// Both closes are done.
    Leave,
    /// The program, a limit, an error or the peer ended the connection.
    Fail,
    /// `drive` closed the windows and cut the link.
    Cut,
    /// The port reported the end of the queue pair.
    Disconnected,
    /// `drive` ended what the RNIC held.
    Settle,
}

impl Machine for Stage {
    type Event = StageEvent;

    const TABLE: &'static [(Stage, StageEvent, Stage)] = &[
        (Stage::Idle, StageEvent::Connected, Stage::Open),
        (Stage::Idle, StageEvent::Accepted, Stage::Mute),
        (Stage::Idle, StageEvent::Ready, Stage::Open),
        (Stage::Idle, StageEvent::Fail, Stage::Gone),
        (Stage::Idle, StageEvent::Disconnected, Stage::Gone),
        (Stage::Mute, StageEvent::Ready, Stage::Open),
        (Stage::Mute, StageEvent::Fail, Stage::Failed),
        (Stage::Mute, StageEvent::Disconnected, Stage::Gone),
        (Stage::Open, StageEvent::Refuse, Stage::Refused),
        (Stage::Open, StageEvent::Leave, Stage::Leaving),
        (Stage::Open, StageEvent::Fail, Stage::Failed),
        (Stage::Open, StageEvent::Disconnected, Stage::Gone),
        (Stage::Refused, StageEvent::Fail, Stage::Failed),
        (Stage::Refused, StageEvent::Disconnected, Stage::Gone),
        (Stage::Leaving, StageEvent::Fail, Stage::Failed),
        (Stage::Leaving, StageEvent::Disconnected, Stage::Gone),
        (Stage::Failed, StageEvent::Cut, Stage::Cut),
        (Stage::Failed, StageEvent::Disconnected, Stage::Gone),
        (Stage::Cut, StageEvent::Disconnected, Stage::Gone),
        (Stage::Gone, StageEvent::Settle, Stage::Down),
    ];
}

/// How far this side's close is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnClose {
    /// The program has not closed.
    No,
    /// The program has closed; its sends and one-sided operations have not all ended.
    Asked,
    /// CLOSE is in the outbox.
    Queued,
    /// CLOSE has left.
    Sent,
    /// CLOSE_ACK arrived, or the linger time is 0 and no answer is needed.
    Answered,
}

/// How far the peer's close is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerClose {
    /// The peer has not closed.
    No,
    /// CLOSE arrived; this side's sends and one-sided operations have not all ended.
    Asked,
    /// CLOSE_ACK is in the outbox.
    Queued,
    /// CLOSE_ACK has left.
    Sent,
}

/// A step of either close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseEvent {
    /// The program closes, or the peer's CLOSE arrived.
    Ask,
    /// The linger time is 0: the connection is cut without an answer.
    Waive,
    /// The message of this side goes to the outbox.
    Queue,
    /// The message of this side has left.
    Send,
    /// CLOSE_ACK arrived.
    Answer,
}

impl Machine for OwnClose {
    type Event = CloseEvent;

    const TABLE: &'static [(OwnClose, CloseEvent, OwnClose)] = &[
        (OwnClose::No, CloseEvent::Ask, OwnClose::Asked),
        (OwnClose::Asked, CloseEvent::Waive, OwnClose::Answered),
        (OwnClose::Asked, CloseEvent::Queue, OwnClose::Queued),
        (OwnClose::Queued, CloseEvent::Send, OwnClose::Sent),
        (OwnClose::Sent, CloseEvent::Answer, OwnClose::Answered),
    ];
}

impl Machine for PeerClose {
    type Event = CloseEvent;

    const TABLE: &'static [(PeerClose, CloseEvent, PeerClose)] = &[
        (PeerClose::No, CloseEvent::Ask, PeerClose::Asked),
        (PeerClose::Asked, CloseEvent::Queue, PeerClose::Queued),
        (PeerClose::Queued, CloseEvent::Send, PeerClose::Sent),
    ];
}

/// How a connection ended, with the reason for the operations that it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// One of the sides closed it.
    Closed(OpError),
    /// It failed, or was cut.
    Failed(OpError),
}

/// The life of one connection.
#[derive(Debug)]
pub(super) struct Life {
    stage: Stage,
    own: OwnClose,
    peer: PeerClose,
    /// The program wants no more data: receives meet the end.
    recv_shut: bool,
    /// The program ended the sending direction. A cancellation can take that back
    /// (`Proto::is_shut`).
    send_shut: bool,
    /// This side gave the connection up: data that have arrived are dropped.
    abandoned: bool,
    /// How the connection ended. Set on the way to `Failed` or `Gone`, and then final; `None` before.
    end: Option<ConnectionEnd>,
    /// How the queue pair ended; set on the way to `Gone`.
    cause: DisconnectCause,
}

impl Life {
    pub(super) fn new() -> Life {
        Life {
            stage: Stage::Idle,
            own: OwnClose::No,
            peer: PeerClose::No,
            recv_shut: false,
            send_shut: false,
            abandoned: false,
            end: None,
            cause: DisconnectCause::Aborted,
        }
    }

    // Events.

    /// The queue pair of the side that connects is there, and both hellos are known.
    pub(super) fn on_connected(&mut self) {
        self.stage.step(StageEvent::Connected);
    }

    /// The queue pair of the side that accepts is there.
    pub(super) fn on_accepted(&mut self) {
        self.stage.step(StageEvent::Accepted);
    }

    /// READY arrived. False if it is not the first message.
    pub(super) fn on_ready(&mut self) -> bool {
        self.stage.step(StageEvent::Ready)
    }

    /// The port refused a work request because the queue pair is going down.
    pub(super) fn on_refused(&mut self) {
        self.stage.step(StageEvent::Refuse);
    }

    /// The connection cannot go on. Only the first reason counts.
    pub(super) fn on_failed(&mut self, reason: OpError) {
        if self.stage.step(StageEvent::Fail) {
            self.end = Some(ConnectionEnd::Failed(reason));
        }
    }

    /// Both closes are done. False if they are not, or the connection is over.
    pub(super) fn leave(&mut self) -> bool {
        self.own == OwnClose::Answered
            && matches!(self.peer, PeerClose::No | PeerClose::Sent)
            && self.stage.step(StageEvent::Leave)
    }

    /// The link is about to be cut. False if there is nothing to cut, or it was cut before.
    pub(super) fn cut(&mut self) -> bool {
        let cut = self.stage.step(StageEvent::Cut);
        self.abandoned |= cut;
        cut
    }

    /// The queue pair is gone.
    pub(super) fn on_disconnected(&mut self, cause: DisconnectCause) {
        if !self.stage.step(StageEvent::Disconnected) {
            return;
        }
        self.cause = cause;
        let end = match cause {
            _ if self.peer_closed() => ConnectionEnd::Closed(OpError::PeerClosed),
            DisconnectCause::Aborted => ConnectionEnd::Failed(OpError::Aborted),
            // The device says no more than that the end was in order.
            DisconnectCause::Orderly if self.closed_in_order() => {
                ConnectionEnd::Closed(OpError::Reset { cause })
            }
            cause => ConnectionEnd::Failed(OpError::Reset { cause }),
        };
        self.end.get_or_insert(end);
    }

    /// The WRs that the RNIC held have ended. Returns how the queue pair ended, once.
    pub(super) fn settle(&mut self) -> Option<DisconnectCause> {
        self.stage.step(StageEvent::Settle).then_some(self.cause)
    }

    /// The program closes. False if it has closed before.
    pub(super) fn on_close(&mut self) -> bool {
        self.own.step(CloseEvent::Ask)
    }

    /// The program does not wait for an answer to its close.
    pub(super) fn waive_answer(&mut self) {
        self.own.step(CloseEvent::Waive);
    }

    /// The peer's CLOSE arrived. False if it is the second one.
    pub(super) fn on_peer_close(&mut self) -> bool {
        self.peer.step(CloseEvent::Ask)
    }

    /// The peer's CLOSE_ACK arrived. False if this side has sent no CLOSE, or has its answer.
    pub(super) fn on_answer(&mut self) -> bool {
        self.own.step(CloseEvent::Answer)
    }

    /// CLOSE goes to the outbox. False if the program has not closed, or it went there before.
    pub(super) fn queue_close(&mut self) -> bool {
        self.own.step(CloseEvent::Queue)
    }

    /// CLOSE_ACK goes to the outbox. False if the peer has not closed, or it went there before.
    pub(super) fn queue_answer(&mut self) -> bool {
        self.peer.step(CloseEvent::Queue)
    }

    /// CLOSE has left.
    pub(super) fn on_close_sent(&mut self) {
        self.own.step(CloseEvent::Send);
    }

    /// CLOSE_ACK has left.
    pub(super) fn on_answer_sent(&mut self) {
        self.peer.step(CloseEvent::Send);
    }

    /// The program ends the sending direction.
    pub(super) fn shut_send(&mut self) {
        self.send_shut = true;
    }

    /// The program wants no more data.
    pub(super) fn shut_recv(&mut self) {
        self.recv_shut = true;
    }

    /// The program gives the connection up, and what has arrived.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
    }

    // Questions.

    /// No queue pair is connected yet.
    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// The next message must be READY.
    #[inline]
    pub(super) fn awaits_ready(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Mute)
    }

    /// Messages may leave.
    #[inline]
    pub(super) fn may_talk(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Messages may leave, and neither side has begun to close.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open && self.own == OwnClose::No && self.peer == PeerClose::No
    }

    /// The queue pair is connected, and no failure has ended the connection.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Mute | Stage::Open | Stage::Refused | Stage::Leaving)
    }

    /// The same, and neither side has begun to close.
    pub(super) fn has_begun(&self) -> bool {
        self.is_connected() && !self.is_over() && !self.is_closing() && !self.peer_closed()
    }

    /// The connection has ended, or is about to: no data arrive any more.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.stage >= Stage::Leaving
    }

    /// The connection must be cut.
    pub(super) fn is_failed(&self) -> bool {
        self.stage == Stage::Failed
    }

    /// Operations end with the reason as soon as the RNIC has let go of their memory.
    pub(super) fn is_torn(&self) -> bool {
        matches!(self.stage, Stage::Cut | Stage::Down)
    }

    /// The queue pair is gone, or there never was one.
    pub(super) fn is_gone(&self) -> bool {
        self.stage >= Stage::Gone
    }

    /// The queue pair is gone, and what the RNIC held has ended.
    pub(super) fn is_down(&self) -> bool {
        self.stage == Stage::Down
    }

    /// Why the connection is over; `None` while it is not, and during an orderly disconnect.
    pub(super) fn reason(&self) -> Option<&OpError> {
        match self.end.as_ref()? {
            ConnectionEnd::Closed(reason) | ConnectionEnd::Failed(reason) => Some(reason),
        }
    }

    /// Why the connection is over, unless one of the sides ended it in order.
    pub(super) fn failure(&self) -> Option<&OpError> {
        match self.end.as_ref()? {
            ConnectionEnd::Closed(_) => None,
            ConnectionEnd::Failed(reason) => Some(reason),
        }
    }

    /// The program has closed.
    pub(super) fn is_closing(&self) -> bool {
        self.own != OwnClose::No
    }

    /// The peer has closed.
    pub(super) fn peer_closed(&self) -> bool {
        self.peer != PeerClose::No
    }

    /// A close loses nothing: the peer answered it, or has closed too, or no answer is needed.
    pub(super) fn closed_in_order(&self) -> bool {
        self.own == OwnClose::Answered || self.peer_closed()
    }

    /// The program ended the sending direction.
    pub(super) fn send_is_shut(&self) -> bool {
        self.send_shut
    }

    /// The program wants no more data.
    pub(super) fn recv_is_shut(&self) -> bool {
        self.recv_shut
    }

    /// The program wants nothing of what has arrived.
    pub(super) fn discards(&self) -> bool {
        self.is_closing() || self.abandoned || self.recv_shut
    }
}

#[cfg(test)]
pub(super) mod tests;
