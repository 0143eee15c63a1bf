//! Connections whose descriptors the program polls.
//!
//! A program that polls the descriptors of sockets, and receives without waiting, needs no other
//! thread where the peer can make such a descriptor readable itself (`Rnic::sleep_polled`). Each
//! receive takes what has come on its connection, and announces the program's sleep. Between two
//! receives the connection is out of the reactor, as one that an attending thread has left
//! (`attend`): the sweep returns it if the program does not come. The peer makes the descriptor
//! readable for eager messages only. It wakes the leader for anything else, so the leader shows
//! the ends of the connection as always.

use std::os::fd::BorrowedFd;

use super::attend::LeftBy;
use super::sock::State;
use super::{Engine, SockId};
use crate::progress::call::Ringing;
use crate::rnic::{Attended, AttendedEnd, PolledSleep, Qp, Ready};
use crate::time::Time;

/// How often a receive looks again at a connection on which data come all the time, before it
/// leaves the connection to the leader.
const LOOKS: u32 = 4;

impl Engine {
    /// Takes what has come on a connection that is out of the reactor, for a receive that does not
    /// wait.
    pub(crate) fn fetch_polled(&mut self, id: SockId, now: impl FnOnce() -> Time) {
        if self.sockets.was_attended(id) && self.attendances().peek(id) == Some(Attended::Ready) {
            let now = now();
            self.run_attended(id, AttendedEnd::Ready(Ready::default()), now);
            if self.attendances().peek(id) == Some(Attended::Ready) {
                // There is more than messages.
                self.more |= self.run(now, false, Ringing::AtOnce);
            }
        }
    }

    /// Announces the sleep of the program, which polls the other end of the socket pair of `end`. If
    /// there is no `end`, the program does not sleep. Returns the number of messages that the peer
    /// has left at the descriptor, or is about to leave, since the last such call. None: the peer of
    /// this connection never leaves any.
    pub(crate) fn polled(
        &mut self,
        id: SockId,
        end: Option<BorrowedFd<'_>>,
        now: Time,
    ) -> Option<u32> {
        let s = self.sockets.get(id)?;
        let (open, device, qp) = (s.state == State::Open, s.place.device, s.qp);
        let qp = match qp {
            Some(qp) if self.devices[device].rnic.can_sleep_polled(qp) => qp,
            // The connection is still to come, or has ended.
            _ if !open => return Some(0),
            _ => return None,
        };
        if let Some(end) = end {
            self.sleep_polled(id, end, now);
        }
        Some(self.devices[device].rnic.take_polled_rings(qp))
    }

    fn sleep_polled(&mut self, id: SockId, end: BorrowedFd<'_>, now: Time) {
        for _ in 0..LOOKS {
            let Some((device, qp)) = self.may_poll(id) else { break };
            if !self.sockets.was_attended(id)
                && !self.attendances().leave_to_program(id, LeftBy::Loop, now)
            {
                return;
            }
            match self.devices[device].rnic.sleep_polled(qp, end) {
                PolledSleep::Asleep => return self.attendances().renew_left(id),
                PolledSleep::Unable => break,
                PolledSleep::Ready => self.fetch_polled(id, || now),
            }
        }
        self.attendances().end_left(id);
    }

    /// The device and the queue pair of a connection that can be left to the program: nothing is
    /// under way for which the program might not come.
    fn may_poll(&self, id: SockId) -> Option<(usize, Qp)> {
        let s = self.sockets.get(id)?;
        let rests = s.session.as_ref()?.is_resting();
        let polled = s.state == State::Open && s.watch.is_some() && s.polls.is_empty();
        let (device, qp) = (s.place.device, s.qp?);
        (rests && polled).then_some((device, qp))
    }
}
