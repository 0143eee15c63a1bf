//! Connections whose descriptors the program polls.
//!
//! A program that polls the descriptors of sockets, and receives without waiting, needs no other
//! thread in two cases. Each receive takes what has come on its connection. Between two receives the
//! connection is out of the reactor, as one that an attending thread has left (`attend`): the sweep
//! returns it if the program does not come.
//!
//! - The peer can make a descriptor readable itself (`Rnic::sleep_polled`). Each receive then
//!   announces the program's sleep. The peer makes the descriptor readable for eager messages only.
//!   It wakes the leader for anything else, so the leader shows the ends of the connection as
//!   always.
//! - The program polls the connection's own stream (`Rnic::lend_stream`). Each receive reads the
//!   stream until it has nothing more. While nothing but small messages come and go, the engine lends
//!   the connection to the loop (`LoanCell`).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::attend::LeftBy;
use super::sock::{Sock, State};
use super::{Engine, SockId};
use crate::mem::Buffer;
use crate::progress::call::{Call, Ringing};
use crate::progress::loan::{LentRead, LoanCell};
use crate::rnic::{Attended, AttendedEnd, PolledSleep, Qp, Ready};
use crate::session::{After, Standing};
use crate::sys::SharedStream;
use crate::time::Time;

/// How often a receive looks again at a connection on which data come all the time, before it
/// leaves the connection to the leader.
const LOOKS: u32 = 4;

/// What can make a descriptor that the program polls readable when data come on a connection.
pub(crate) enum Ringer {
    /// Nothing: a leader shows the data.
    Nothing,
    /// The peer, at the end of a socket pair.
    Peer,
    /// The kernel, at this stream.
    Stream(Arc<SharedStream>),
}

/// The outcome of a receive that does not wait, and posts no operation.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RecvAtOnce {
    /// It has taken bytes.
    Took {
        /// How many.
        bytes: u64,
        /// As [`polled`](crate::__ffi::polled) returns, for the end that the call has named.
        rings: Option<u32>,
        /// What the descriptor must show now.
        standing: Standing,
    },
    /// It has taken a message that had just come, of this many bytes, and nothing else has changed.
    Passed {
        /// How many.
        bytes: u64,
    },
    /// Nothing has come since the last receive, which had taken everything.
    Unchanged,
    /// There is nothing to receive.
    WouldWait {
        /// As above.
        rings: Option<u32>,
    },
    /// The receive must be posted.
    Declined,
}

impl Engine {
    /// What can ring for the program when data come on a connection. None: the connection is not
    /// there. With a stream, the program polls it from now on.
    pub(crate) fn rung_by(&mut self, id: SockId) -> Option<Ringer> {
        let s = self.sockets.get(id).filter(|s| s.state == State::Open && s.watch.is_some())?;
        let (device, qp) = (s.place.device, s.qp?);
        if self.devices[device].rnic.can_sleep_polled(qp) {
            return Some(Ringer::Peer);
        }
        let Some(stream) = self.attendances().lend_stream(id) else { return Some(Ringer::Nothing) };
        if let Ok(Sock { watch: Some(watch), .. }) = self.sockets.find(id) {
            watch.polls_stream = true;
        }
        Some(Ringer::Stream(stream))
    }

    /// The program waits for the socket in an event loop that drives shards.
    pub(crate) fn note_loop(&mut self, id: SockId) {
        if let Ok(Sock { watch: Some(watch), .. }) = self.sockets.find(id) {
            watch.in_loop = true;
        }
    }

    /// The program polls the connection no longer: a leader looks after it.
    pub(crate) fn end_polling(&mut self, id: SockId) {
        if let Ok(Sock { watch: Some(watch), .. }) = self.sockets.find(id) {
            watch.polls_stream = false;
            self.attendances().end_left(id);
        }
    }

    /// Takes what has come on a connection that the program polls, for a receive that does not wait.
    pub(crate) fn fetch_polled(&mut self, id: SockId, now: impl FnOnce() -> Time) {
        let Some(s) = self.sockets.get(id) else { return };
        if s.watch.as_ref().is_some_and(|watch| watch.polls_stream) {
            let now = now();
            if self.sockets.was_attended(id)
                || self.only_receives(id)
                    && self.attendances().leave_to_program(id, LeftBy::Loop, now)
            {
                self.run_left(id, now, None);
            }
        } else if self.sockets.was_attended(id)
            && self.attendances().peek(id) == Some(Attended::Ready)
        {
            let now = now();
            let at = (now, Ringing::AtOnce);
            self.run_attended(id, AttendedEnd::Ready(Ready::default()), at, None);
            if self.attendances().peek(id) == Some(Attended::Ready) {
                // There is more than messages.
                self.more |= self.run(now, false, Ringing::AtOnce);
            }
        }
    }

    /// Takes small data that have come, for a receive that does not wait, and announces the program's
    /// sleep at the other end of `end`, if the program may sleep there. `read`: what the calling thread has
    /// read while the connection was lent.
    pub(crate) fn recv_at_once(
        &mut self,
        id: SockId,
        (buffer, end): (&Buffer, Option<BorrowedFd<'_>>),
        (loan, read): (&Arc<LoanCell>, Option<LentRead>),
        call: &mut Call<'_>,
    ) -> RecvAtOnce {
        if let Some(read) = read {
            self.take_loop_read(id, read, call.now());
        }
        self.fetch_polled(id, || call.now());
        let took = match self.take_at_once(id, buffer, call) {
            None if !self.sockets.recv_would_wait(id) => return RecvAtOnce::Declined,
            took => took,
        };
        let rings = end.and_then(|end| self.polled(id, Some(end), call.now()));
        let standing = self.sockets.standing_of(id);
        if took.is_some() {
            self.lend_to_loop(id, loan, call.now());
        }
        match took {
            Some(bytes) => RecvAtOnce::Took { bytes, rings, standing },
            None => RecvAtOnce::WouldWait { rings },
        }
    }

    /// Takes what the receiver holds, if it fills the buffer without an operation.
    fn take_at_once(&mut self, id: SockId, buffer: &Buffer, call: &mut Call<'_>) -> Option<u64> {
        let s = self.sockets.get_mut(id).filter(|s| s.polls.is_empty())?;
        let (bytes, after) = s.open_session().ok()?.try_recv_eager(&buffer.segment(), false)?;
        match after {
            After::Settled => call.pass(),
            After::NeedsDrive => self.sockets.mark(id.index),
        }
        Some(bytes)
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
