//! The states of a connection, as one table.
//!
//! The table holds MPA start-up (RFC 5044 section 7.1, RFC 6581) and the life of the RDMAP stream
//! (RFC 5040 section 6) in one machine, because the end of each lies in the other. The table says
//! which transitions are allowed. Other modules do their work.

use crate::rnic::QpState;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnState {
    /// Responder: waits for the MPA request.
    AwaitRequest,
    /// Responder: waits for the user's `accept` or `reject`.
    Asked,
    /// Responder: the refusal is on its way out.
    Rejecting,
    /// Initiator: waits for the MPA reply.
    AwaitReply,
    /// Full operation.
    Rts,
    /// An orderly end: one side or both will send no more.
    Closing,
    /// An error: all WRs were flushed, and a TERMINATE goes out or came in.
    Terminating,
    /// The connection is over.
    Dead,
}

/// An event that moves a connection to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trigger {
    /// A correct MPA request came.
    Request,
    /// The user accepts.
    Accept,
    /// The user refuses, or the content of the request does.
    Reject,
    /// A correct MPA reply came.
    Reply,
    /// The user asks for an orderly end.
    Disconnect,
    /// The peer will send no more.
    Eof,
    /// The peer broke a rule, or a TERMINATE came.
    Fault,
    /// The transport is gone, or the user aborts.
    Cut,
    /// Both directions have ended.
    Finished,
}

/// Returns the state after a trigger. None: this trigger cannot happen in this state. The engine
/// checks that before it calls.
pub(super) const fn next(state: ConnState, trigger: Trigger) -> Option<ConnState> {
    use ConnState as S;
    use Trigger as T;
    Some(match (state, trigger) {
        (S::AwaitRequest, T::Request) => S::Asked,
        (S::AwaitRequest | S::Asked, T::Reject) => S::Rejecting,
        (S::Asked, T::Accept) | (S::AwaitReply, T::Reply) => S::Rts,

        // Before the connection is established every end is final: there is no stream that could
        // carry a TERMINATE.
        (S::AwaitRequest | S::Asked | S::AwaitReply, T::Eof | T::Fault | T::Disconnect) => S::Dead,
        (S::Rejecting, T::Fault) => S::Dead,
        (S::Rejecting, T::Eof | T::Disconnect) => S::Rejecting,

        (S::Rts | S::Closing, T::Disconnect | T::Eof) => S::Closing,
        (S::Rts | S::Closing | S::Terminating, T::Fault) => S::Terminating,
        (S::Terminating, T::Disconnect | T::Eof) => S::Terminating,
        (S::Rejecting | S::Closing | S::Terminating, T::Finished) => S::Dead,

        (S::Dead, T::Disconnect | T::Eof | T::Fault) => S::Dead,
        (_, T::Cut) => S::Dead,
        _ => return None,
    })
}

impl ConnState {
    /// Returns the name that the verbs have for the state.
    pub(super) const fn qp(self) -> QpState {
        match self {
            ConnState::AwaitRequest | ConnState::Asked | ConnState::AwaitReply => {
                QpState::Connecting
            }
            ConnState::Rts => QpState::Rts,
            ConnState::Closing => QpState::Closing,
            ConnState::Rejecting | ConnState::Terminating | ConnState::Dead => QpState::Error,
        }
    }

    /// Returns true if the RDMAP stream carries messages.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, ConnState::Rts | ConnState::Closing)
    }
}

/// The sending half of a connection: whether FPDUs may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SendHalf {
    /// FPDUs may leave while the connection is open.
    Open,
    /// Responder: nothing may leave before the initiator's first FPDU has arrived.
    Held,
    /// Initiator: a zero-length WRITE must leave before any other FPDU.
    FirstWrite,
    /// The driver was told to shut down the sending side.
    Shut,
}

/// An event that moves the sending half to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SendTrigger {
    /// Responder: the reply that accepts is queued.
    Accept,
    /// Initiator: the reply came, and the first message must be a WRITE.
    PeerToPeer,
    /// A whole FPDU has arrived.
    Received,
    /// The first WRITE is in a batch.
    Built,
    /// All WRs were flushed, and nothing but a TERMINATE will be built.
    Abandon,
    /// The driver got the step that shuts down the sending side.
    Shutdown,
}

/// Returns the state of the sending half after a trigger. None: this trigger cannot happen in
/// this state.
pub(super) const fn next_half(half: SendHalf, trigger: SendTrigger) -> Option<SendHalf> {
    use SendHalf as H;
    use SendTrigger as T;
    Some(match (half, trigger) {
        (H::Open, T::Accept) => H::Held,
        (H::Open, T::PeerToPeer) => H::FirstWrite,
        // The responder sends nothing before the first WRITE has left, so no FPDU meets it.
        (H::Held | H::Open, T::Received) => H::Open,
        (H::FirstWrite, T::Built) => H::Open,
        (H::Open | H::Held | H::FirstWrite, T::Abandon) => H::Open,
        // A first WRITE is built before the connection has nothing left to send.
        (H::Open | H::Held, T::Shutdown) => H::Shut,
        (H::Shut, T::Received | T::Abandon) => H::Shut,
        _ => return None,
    })
}

impl SendHalf {
    /// Returns true if FPDUs may be built now.
    pub(super) const fn may_build(self) -> bool {
        matches!(self, SendHalf::Open | SendHalf::FirstWrite)
    }
}

#[cfg(test)]
mod tests {
    use super::ConnState::*;
    use super::*;

    const STATES: [ConnState; 8] =
        [AwaitRequest, Asked, Rejecting, AwaitReply, Rts, Closing, Terminating, Dead];
    const TRIGGERS: [Trigger; 9] = [
        Trigger::Request,
        Trigger::Accept,
        Trigger::Reject,
        Trigger::Reply,
        Trigger::Disconnect,
        Trigger::Eof,
        Trigger::Fault,
        Trigger::Cut,
        Trigger::Finished,
    ];

    #[test]
    fn every_state_meets_every_trigger() {
        // Rows: states; columns: triggers, both in the orders above; `-`: impossible.
        let table = [
            "Q-J-DDDD-", // AwaitRequest
            "-RJ-DDDD-", // Asked
            "----JJDDD", // Rejecting
            "---RDDDD-", // AwaitReply
            "----CCTD-", // Rts
            "----CCTDD", // Closing
            "----TTTDD", // Terminating
            "----DDDD-", // Dead
        ];
        for (row, state) in STATES.into_iter().enumerate() {
            for (column, trigger) in TRIGGERS.into_iter().enumerate() {
                let letter = match next(state, trigger) {
                    None => '-',
                    Some(Asked) => 'Q',
                    Some(Rejecting) => 'J',
                    Some(Rts) => 'R',
                    Some(Closing) => 'C',
                    Some(Terminating) => 'T',
                    Some(Dead) => 'D',
                    Some(other) => panic!("no way leads back to {other:?}"),
                };
                let expect = table[row].as_bytes()[column] as char;
                assert_eq!(letter, expect, "{state:?} on {trigger:?}");
            }
        }
    }

    #[test]
    fn a_cut_ends_every_state() {
        for state in STATES {
            assert_eq!(next(state, Trigger::Cut), Some(Dead));
        }
    }

    #[test]
    fn every_state_of_the_sending_half_meets_every_trigger() {
        use SendHalf as H;
        use SendTrigger as T;
        let triggers = [T::Accept, T::PeerToPeer, T::Received, T::Built, T::Abandon, T::Shutdown];
        // Columns: triggers in the order above; `-`: impossible.
        let table = [
            (H::Open, "HWO-OS"),
            (H::Held, "--O-OS"),
            (H::FirstWrite, "---OO-"),
            (H::Shut, "--S-S-"),
        ];
        for (half, row) in table {
            for (trigger, expect) in triggers.into_iter().zip(row.chars()) {
                let letter = match next_half(half, trigger) {
                    None => '-',
                    Some(H::Open) => 'O',
                    Some(H::Held) => 'H',
                    Some(H::FirstWrite) => 'W',
                    Some(H::Shut) => 'S',
                };
                assert_eq!(letter, expect, "{half:?} on {trigger:?}");
            }
        }
    }
}
