//! The states of a connection, as one table.
//!
//! MPA start-up (RFC 5044 section 7.1, RFC 6581) and the life of the RDMAP
//! stream (RFC 5040 section 6) in one machine, since each has its end in the
//! other. What a transition *does* is elsewhere; that it is allowed is here.

use crate::rnic::QpState;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Responder: waits for the MPA request.
    AwaitRequest,
    /// Responder: waits for `accept` or `reject`.
    Asked,
    /// Responder: a refusal is on its way out.
    Rejecting,
    /// Initiator: waits for the MPA reply.
    AwaitReply,
    /// Full operation.
    Rts,
    /// An end in order: one side or both will send no more.
    Closing,
    /// An error: all WRs were flushed, a TERMINATE goes out or came in.
    Terminating,
    /// Over.
    Dead,
}

/// What moves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Trigger {
    /// A good MPA request came.
    Request,
    /// The user accepts.
    Accept,
    /// The user, or the request's content, refuses.
    Reject,
    /// A good MPA reply came.
    Reply,
    /// The user wants an end in order.
    Disconnect,
    /// The peer will send no more.
    Eof,
    /// A rule was broken by the peer, or a TERMINATE came.
    Fault,
    /// The transport is gone, or the user aborts.
    Cut,
    /// Both directions have ended.
    Finished,
}

/// The state after a trigger. `None`: the trigger cannot be in this state; the
/// engine checks before it asks.
pub(super) const fn next(state: State, trigger: Trigger) -> Option<State> {
    use State as S;
    use Trigger as T;
    Some(match (state, trigger) {
        (S::AwaitRequest, T::Request) => S::Asked,
        (S::AwaitRequest | S::Asked, T::Reject) => S::Rejecting,
        (S::Asked, T::Accept) | (S::AwaitReply, T::Reply) => S::Rts,

        // Before the connection stands, every end is the end: no stream exists
        // that a TERMINATE could travel on.
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

impl State {
    /// The name that verbs have for it.
    pub(super) const fn qp(self) -> QpState {
        match self {
            State::AwaitRequest | State::Asked | State::AwaitReply => QpState::Connecting,
            State::Rts => QpState::Rts,
            State::Closing => QpState::Closing,
            State::Rejecting | State::Terminating | State::Dead => QpState::Error,
        }
    }

    /// The RDMAP stream carries messages.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, State::Rts | State::Closing)
    }
}

#[cfg(test)]
mod tests {
    use super::State::*;
    use super::*;

    const STATES: [State; 8] =
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
        // Rows: states; columns: triggers, in the orders above; `-`: cannot be.
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
}
