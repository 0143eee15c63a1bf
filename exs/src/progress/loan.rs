//! Connections that an engine lends to the threads that block on them, and to event loops.
//!
//! A thread that blocks on its own connection needs the engine for little: a small message changes few
//! numbers. So while nothing else is under way on a connection, its engine lends these numbers to the
//! threads (`engine/attend/loan.rs`). They send and receive small messages without the lock of the
//! engine, in one system call each at most. Everything else ends the loan: a call of the API that is not
//! one of these two, a message that is not small, room or credits that are missing, a timer, and a sweep
//! that finds that no thread receives any more.
//!
//! The same holds for an event loop that polls the connection's stream. It receives what has come, and
//! does not wait.
//!
//! A loan begins and ends under the engine's lock. The lock of the loan comes after the engine's, and a
//! thread that has it makes no system call but one that does not wait.

mod lent;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use self::lent::{Borrower, Loan, LoanUse};
use super::call::Ringing;
use super::context::Context;
use super::engine::SockId;
use super::passing::PassingRecv;
use super::room::{Room, not_yet};
use super::spin::LOOKS;
use crate::mem::Segment;
use crate::rnic::{AttendedEnd, LentConnection, LentSend, LentWait};
use crate::session::SessionLoan;
use crate::sys::{IoVec, this_thread};

/// The place of a connection's loan. The socket's handle has one reference, the engine another while
/// the connection is lent.
#[derive(Default)]
pub(crate) struct LoanCell {
    loan: Mutex<Option<Loan>>,
    /// Whether there is a loan. It changes under the engine's lock.
    lent: AtomicBool,
}

type LoanGuard<'a> = MutexGuard<'a, Option<Loan>>;

/// What a thread has read that waited for a message.
pub(crate) struct LentRead {
    pub(super) room: Room,
    pub(crate) result: io::Result<usize>,
    /// A signal handler has ended the read, or a sleep.
    pub(crate) interrupted: bool,
}

impl LentRead {
    fn new(room: Room, result: io::Result<usize>) -> LentRead {
        let interrupted = result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted);
        let result = if interrupted { Err(not_yet()) } else { result };
        LentRead { room, result, interrupted }
    }

    /// The thread has read nothing.
    fn none(room: Room) -> LentRead {
        LentRead::new(room, Err(not_yet()))
    }
}

/// The outcome of a receive on a lent connection.
pub(crate) enum LentRecv {
    /// A message of this many bytes has come.
    Message(usize),
    /// The same, and the loan must end: the peer waits for what the engine must send, or the engine must
    /// know that the thread does not wait any more.
    Last(usize),
    /// A signal handler ran while the thread slept, which ends its wait.
    Interrupted,
    /// The connection is not lent, or another thread reads.
    NotLent,
    /// The engine must get what has come.
    Other(LentRead),
}

/// The outcome of a receive of an event loop on a lent connection.
pub(crate) enum LoopRecv {
    /// A message of this many bytes has come.
    Message(usize),
    /// The same, and the loan must end, as in [`LentRecv::Last`].
    Last(usize),
    /// Nothing has come.
    Nothing,
    /// The connection is not lent to an event loop.
    NotLent,
    /// The engine must get what was read.
    Other(LentRead),
}

impl LoanCell {
    fn lock(&self) -> LoanGuard<'_> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the connection is lent. It stays so only while the caller has the engine's lock.
    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }

    /// Begins a loan. A thread that borrows is about to wait for a message ([`LoanCell::recv_begun`]).
    pub(super) fn begin(
        &self,
        session: SessionLoan,
        connection: Box<dyn LentConnection>,
        borrower: Borrower,
    ) {
        *self.lock() = Some(Loan::new(session, connection, borrower));
        self.lent.store(true, Ordering::Relaxed);
    }

    /// Ends the loan.
    pub(super) fn end(&self) -> Option<Loan> {
        self.lent.store(false, Ordering::Relaxed);
        self.lock().take()
    }

    /// A sweep has come.
    pub(super) fn sweep(&self) -> LoanUse {
        self.lock().as_mut().map_or(LoanUse::Over, Loan::sweep)
    }

    /// This thread does not come back, if it waits for a message.
    pub(super) fn forget_reader(&self, thread: i32) {
        if let Some(loan) = &mut *self.lock()
            && loan.reader == thread
        {
            loan.reads = false;
        }
    }

    /// True if a thread waits for a message.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn is_read(&self) -> bool {
        self.lock().as_ref().is_some_and(|loan| loan.reads)
    }

    /// True if the sweeps leave the connection alone.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn is_dormant(&self) -> bool {
        self.lock().as_ref().is_some_and(Loan::is_dormant)
    }

    /// Waits for the next message, if the connection is lent.
    pub(super) fn recv(&self, context: &Context, to: &mut PassingRecv<'_>) -> LentRecv {
        if !self.is_lent() {
            return LentRecv::NotLent;
        }
        let mut loan = self.lock();
        match &mut *loan {
            Some(Loan { reads, borrower: Borrower::Threads { .. }, .. }) if !*reads => {
                *reads = true
            }
            _ => return LentRecv::NotLent,
        }
        self.wait(loan, context, Room::take(), to)
    }

    /// The same for the thread with which the loan has begun.
    pub(super) fn recv_begun(
        &self,
        context: &Context,
        room: Room,
        to: &mut PassingRecv<'_>,
    ) -> LentRecv {
        self.wait(self.lock(), context, room, to)
    }

    /// Takes the next message of a connection that an event loop has borrowed, if it has come, and copies
    /// its bytes to `out`.
    ///
    /// The loop polls the stream by edges. A message is taken only if the read has found less than it had
    /// room for, so each byte that follows gives an edge.
    pub(super) fn recv_now(&self, out: &Segment) -> LoopRecv {
        if !self.is_lent() {
            return LoopRecv::NotLent;
        }
        let mut guard = self.lock();
        let Some(loan @ Loan { borrower: Borrower::Loop, reads: false, .. }) = &mut *guard else {
            return LoopRecv::NotLent;
        };
        let mut room = Room::take();
        let LentWait::Stream(stream) = loan.connection.wait(room.buffer()) else {
            return LoopRecv::NotLent;
        };
        let result = stream.read_now(room.bytes());
        match &result {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return LoopRecv::Nothing,
            _ => {}
        }
        loan.end_read_now(LentRead::new(room, result), out)
    }

    /// Waits for the next message. No other thread does.
    fn wait<'a>(
        &'a self,
        mut loan: LoanGuard<'a>,
        context: &Context,
        mut room: Room,
        to: &mut PassingRecv<'_>,
    ) -> LentRecv {
        if let Some(loan) = &mut *loan {
            loan.reader = this_thread();
        }
        loan = self.look(loan, context);
        let mut slept = Ok(());
        loop {
            // If the loan has ended, the engine expects the thread.
            let Some(lent) = &mut *loan else {
                let result = slept.and_then(|()| Err(not_yet()));
                return LentRecv::Other(LentRead::new(room, result));
            };
            if to.ends_at_signal && slept.is_err() {
                lent.reads = false;
                return LentRecv::Interrupted;
            }
            match lent.connection.wait(room.buffer()) {
                LentWait::Came => {
                    let result = Ok(room.buffer().len());
                    return lent.end_read(LentRead::new(room, result), to);
                }
                LentWait::End => return LentRecv::Other(LentRead::none(room)),
                LentWait::Stream(stream) => {
                    drop(loan);
                    let result = stream.read_blocking(room.bytes());
                    let read = LentRead::new(room, result);
                    return match &mut *self.lock() {
                        Some(loan) => loan.end_read(read, to),
                        None => LentRecv::Other(read),
                    };
                }
                LentWait::Word(word) => {
                    drop(loan);
                    slept = match to.ends_at_signal {
                        true => word.sleep_until_signal(None),
                        false => {
                            word.sleep_alone();
                            Ok(())
                        }
                    };
                    loan = self.lock();
                }
            }
        }
    }

    /// Looks in memory for what comes, if that has lately paid. Other threads can send between the looks.
    fn look<'a>(&'a self, mut loan: LoanGuard<'a>, context: &Context) -> LoanGuard<'a> {
        let nothing = |loan: &LoanGuard<'_>| {
            loan.as_ref().and_then(|loan| loan.connection.poll()) == Some(false)
        };
        if !nothing(&loan) {
            return loan;
        }
        let crowded = context.attention.crowding.is_crowded(context.clock.about());
        let limit = loan.as_ref().and_then(Loan::pace).and_then(|pace| pace.peek_attended(crowded));
        let Some(limit) = limit else { return loan };
        let until = context.clock.about() + limit;
        let found = loop {
            let looks = (0..LOOKS).take_while(|_| nothing(&loan));
            looks.for_each(|_| std::hint::spin_loop());
            if !nothing(&loan) {
                break true;
            }
            if context.clock.about() >= until {
                break false;
            }
            drop(loan);
            loan = self.lock();
        };
        if let Some(pace) = loan.as_ref().and_then(Loan::pace) {
            pace.note_peek_attended(found);
        }
        loan
    }

    /// Sends few bytes, if the connection is lent.
    #[inline]
    pub(crate) fn send(&self, data: &IoVec<'_>) -> LentSend {
        if !self.is_lent() {
            return LentSend::Declined;
        }
        self.lock().as_mut().map_or(LentSend::Declined, |loan| loan.send(data))
    }
}

impl Context {
    /// True if a thread whose connection is lent attends it, as others do. False: no other thread blocks,
    /// so it is faster to lead.
    fn has_borrower_attend(&self) -> bool {
        self.blocked_threads() > 1 || self.others.fill_processors(self.shard())
    }

    /// Waits for a message on a connection if it is lent.
    #[inline]
    pub(crate) fn recv_lent(
        &self,
        id: SockId,
        loan: &LoanCell,
        to: &mut PassingRecv<'_>,
    ) -> LentRecv {
        if loan.is_lent() && !self.has_borrower_attend() {
            self.end_loan(id);
        }
        loan.recv(self, to)
    }

    /// Ends the loan of a connection, and has the leader look after it.
    #[cold]
    fn end_loan(&self, id: SockId) {
        self.call(|engine, now| {
            engine.recall(id, now);
            engine.attendances().end_left(id);
        });
    }

    /// Ends the loan of a connection ([`LentRecv::Last`]).
    pub(crate) fn recall(&self, id: SockId) {
        self.call(|engine, now| engine.recall(id, now));
    }

    /// Gives the engine what a thread has read from a lent connection. The thread cannot wait for more.
    #[cold]
    pub(crate) fn give_back(&self, id: SockId, read: LentRead) {
        let LentRead { room, result, .. } = read;
        self.call(|engine, now| {
            engine.recall(id, now);
            let read = result.map(|n| room.first(n));
            engine.run_attended(id, AttendedEnd::Read(read), (now, Ringing::AtOnce), None);
            engine.attendances().end(id);
        });
    }
}
