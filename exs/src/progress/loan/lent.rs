//! What an engine has lent, and what one message does to it.

use super::{LentRead, LentRecv, LoopRecv};
use crate::mem::Segment;
use crate::progress::engine::{ALONE, LOOP_IS_LATE};
use crate::progress::pace::Pace;
use crate::progress::passing::{Destination, PassingRecv};
use crate::rnic::{LentConnection, LentSend};
use crate::session::SessionLoan;
use crate::sys::IoVec;
use crate::wire::exs::MAX_HEADER;

/// What an engine has lent.
pub(in crate::progress) struct Loan {
    pub(in crate::progress) session: SessionLoan,
    pub(in crate::progress) connection: Box<dyn LentConnection>,
    pub(in crate::progress) borrower: Borrower,
    /// A thread waits for a message, or is on its way to the engine with what it has read.
    pub(in crate::progress) reads: bool,
    /// The thread that has waited last.
    pub(super) reader: i32,
    /// Sweeps since the last message has come.
    unused: u64,
    /// Sends since the last message has come.
    sends: u32,
}

/// The part of the program that has borrowed a connection.
pub(in crate::progress) enum Borrower {
    /// The threads that block on it.
    Threads {
        /// What of the looks in memory has paid lately.
        pace: Pace,
        /// The sweeps leave the connection alone, so the next message must end the loan.
        dormant: bool,
    },
    /// An event loop, which polls its stream by edges.
    Loop,
}

impl Borrower {
    /// The threads, of which one is about to wait.
    pub(in crate::progress) fn threads(pace: Pace) -> Borrower {
        Borrower::Threads { pace, dormant: false }
    }
}

/// What a sweep finds at a lent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::progress) enum LoanUse {
    /// Messages have come since the last sweep, or may be late.
    Busy,
    /// A thread waits for a message. It comes to the engine with that message.
    Dormant,
    /// The program receives no more.
    Over,
}

impl Loan {
    /// A thread that borrows is about to wait for a message.
    pub(super) fn new(
        session: SessionLoan,
        connection: Box<dyn LentConnection>,
        borrower: Borrower,
    ) -> Loan {
        let reads = matches!(borrower, Borrower::Threads { .. });
        Loan { session, connection, borrower, reads, reader: 0, unused: 0, sends: 0 }
    }

    pub(super) fn sweep(&mut self) -> LoanUse {
        let unused = self.unused;
        self.unused += 1;
        match &mut self.borrower {
            _ if unused == 0 => LoanUse::Busy,
            Borrower::Threads { dormant, .. } if self.reads => {
                *dormant = true;
                LoanUse::Dormant
            }
            // It is on its way to the engine with what it has read.
            Borrower::Loop if self.reads || unused < LOOP_IS_LATE => LoanUse::Busy,
            _ => LoanUse::Over,
        }
    }

    pub(super) fn is_dormant(&self) -> bool {
        matches!(self.borrower, Borrower::Threads { dormant: true, .. })
    }

    pub(super) fn pace(&self) -> Option<&Pace> {
        match &self.borrower {
            Borrower::Threads { pace, .. } => Some(pace),
            Borrower::Loop => None,
        }
    }

    /// A thread has read, or has found something.
    pub(super) fn end_read(&mut self, read: LentRead, to: &mut PassingRecv<'_>) -> LentRecv {
        if read.interrupted && to.ends_at_signal {
            self.reads = false;
            return LentRecv::Interrupted;
        }
        let taken = match &read.result {
            Ok(n) => self.take_message(read.room.first(*n), &mut to.out),
            Err(_) => None,
        };
        match taken {
            None => LentRecv::Other(read),
            Some((len, true)) => LentRecv::Last(len),
            Some((len, false)) => LentRecv::Message(len),
        }
    }

    /// The same for an event loop. Until the engine has what is no message, no other thread
    /// reads.
    pub(super) fn end_read_now(&mut self, mut read: LentRead, out: &Segment) -> LoopRecv {
        let taken = match &read.result {
            Ok(n) if *n < read.room.bytes().len() => {
                self.take_message(read.room.first(*n), &mut Destination::Memory(out))
            }
            _ => None,
        };
        match taken {
            None => {
                self.reads = true;
                LoopRecv::Other(read)
            }
            Some((len, true)) => LoopRecv::Last(len),
            Some((len, false)) => LoopRecv::Message(len),
        }
    }

    /// Takes the data of a message, if the bytes are one and `out` has room. Returns their number, and
    /// whether the loan must end.
    fn take_message(&mut self, bytes: &[u8], out: &mut Destination<'_>) -> Option<(usize, bool)> {
        let message = self.connection.message(bytes)?;
        let mut after = self.session.clone();
        let data = after.receive(message)?;
        if !out.put(0, data) {
            return None;
        }
        let ends = self.connection.note_received() || after.owes() || self.is_dormant();
        (self.session, self.reads, self.unused, self.sends) = (after, false, 0, 0);
        Some((data.len(), ends))
    }

    /// A thread that sends several messages in a row sends a burst, whose messages share system calls in
    /// the engine.
    pub(super) fn send(&mut self, data: &IoVec<'_>) -> LentSend {
        let Ok(len) = u32::try_from(data.len()) else { return LentSend::Declined };
        if self.sends >= ALONE {
            return LentSend::Declined;
        }
        let (mut after, mut head) = (self.session.clone(), [0; MAX_HEADER]);
        let Some(header) = after.send(len, &mut head) else { return LentSend::Declined };
        let sent = self.connection.send(&head[..header], data);
        if sent != LentSend::Declined {
            self.session = after;
            self.sends += 1;
        }
        sent
    }
}
