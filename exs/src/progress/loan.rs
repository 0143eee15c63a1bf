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

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::attend::{Room, not_yet};
use super::context::Context;
use super::engine::{ALONE, LOOP_IS_LATE, SockId};
use super::pace::Pace;
use super::spin::LOOKS;
use crate::mem::Segment;
use crate::rnic::{AttendedEnd, LentConnection, LentSend, LentWait};
use crate::session::SessionLoan;
use crate::sys::IoVec;
use crate::wire::exs::MAX_HEADER;

/// What an engine has lent.
pub(super) struct Loan {
    pub(super) session: SessionLoan,
    pub(super) connection: Box<dyn LentConnection>,
    pub(super) borrower: Borrower,
    /// A thread waits for a message, or is on its way to the engine with what it has read.
    pub(super) reads: bool,
    /// Sweeps since the last message has come.
    unused: u64,
    /// Sends since the last message has come.
    sends: u32,
}

/// The part of the program that has borrowed a connection.
pub(super) enum Borrower {
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
    pub(super) fn threads(pace: Pace) -> Borrower {
        Borrower::Threads { pace, dormant: false }
    }
}

/// What a sweep finds at a lent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoanUse {
    /// Messages have come since the last sweep, or may be late.
    Busy,
    /// A thread waits for a message. It comes to the engine with that message.
    Dormant,
    /// The program receives no more.
    Over,
}

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
    pub(super) result: io::Result<usize>,
}

impl LentRead {
    /// If a signal handler has ended the read, nothing has come.
    fn new(room: Room, result: io::Result<usize>) -> LentRead {
        let interrupted = |e: &io::Error| e.kind() == io::ErrorKind::Interrupted;
        let result = if result.as_ref().is_err_and(interrupted) { Err(not_yet()) } else { result };
        LentRead { room, result }
    }

    /// The thread has read nothing.
    fn none(room: Room) -> LentRead {
        LentRead { room, result: Err(not_yet()) }
    }
}

/// The outcome of a receive on a lent connection.
pub(crate) enum LentRecv {
    /// A message of this many bytes has come.
    Message(usize),
    /// The same, and the loan must end: the peer waits for what the engine must send, or the engine must
    /// know that the thread does not wait any more.
    Last(usize),
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
        let reads = matches!(borrower, Borrower::Threads { .. });
        *self.lock() = Some(Loan { session, connection, borrower, reads, unused: 0, sends: 0 });
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

    /// Waits for the next message, and copies its bytes to `out`, if the connection is lent.
    pub(super) fn recv(&self, context: &Context, out: &mut [u8]) -> LentRecv {
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
        self.wait(loan, context, Room::take(), out)
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
        loan.end_read_now(LentRead { room, result }, out)
    }

    /// The same for the thread with which the loan has begun.
    pub(super) fn recv_begun(&self, context: &Context, room: Room, out: &mut [u8]) -> LentRecv {
        self.wait(self.lock(), context, room, out)
    }

    /// Waits for the next message. No other thread does.
    fn wait<'a>(
        &'a self,
        mut loan: LoanGuard<'a>,
        context: &Context,
        mut room: Room,
        out: &mut [u8],
    ) -> LentRecv {
        loan = self.look(loan, context);
        loop {
            // If the loan has ended, the engine expects the thread.
            let Some(lent) = &mut *loan else { return LentRecv::Other(LentRead::none(room)) };
            match lent.connection.wait(room.buffer()) {
                LentWait::Came => {
                    let result = Ok(room.buffer().len());
                    return lent.end_read(LentRead { room, result }, out);
                }
                LentWait::End => return LentRecv::Other(LentRead::none(room)),
                LentWait::Stream(stream) => {
                    drop(loan);
                    let result = stream.read_blocking(room.bytes());
                    let read = LentRead::new(room, result);
                    return match &mut *self.lock() {
                        Some(loan) => loan.end_read(read, out),
                        None => LentRecv::Other(read),
                    };
                }
                LentWait::Word(word) => {
                    drop(loan);
                    word.sleep_alone();
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
        let crowded = context.attention.is_crowded(context.clock.about());
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

impl Loan {
    fn sweep(&mut self) -> LoanUse {
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

    fn is_dormant(&self) -> bool {
        matches!(self.borrower, Borrower::Threads { dormant: true, .. })
    }

    fn pace(&self) -> Option<&Pace> {
        match &self.borrower {
            Borrower::Threads { pace, .. } => Some(pace),
            Borrower::Loop => None,
        }
    }

    /// A thread has read, or has found something.
    fn end_read(&mut self, read: LentRead, out: &mut [u8]) -> LentRecv {
        let taken = match &read.result {
            Ok(n) => self.take_message(read.room.first(*n), |data| {
                out.get_mut(..data.len())?.copy_from_slice(data);
                Some(())
            }),
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
    fn end_read_now(&mut self, mut read: LentRead, out: &Segment) -> LoopRecv {
        let taken = match &read.result {
            Ok(n) if *n < read.room.bytes().len() => self
                .take_message(read.room.first(*n), |data| {
                    (data.len() <= out.len()).then(|| out.write_at(0, data))
                }),
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

    /// Takes the data of a message, if the bytes are one and `take` has room. Returns their number, and
    /// whether the loan must end.
    fn take_message(
        &mut self,
        bytes: &[u8],
        take: impl FnOnce(&[u8]) -> Option<()>,
    ) -> Option<(usize, bool)> {
        let message = self.connection.message(bytes)?;
        let mut after = self.session.clone();
        let data = after.receive(message)?;
        take(data)?;
        let ends = self.connection.note_received() || after.owes() || self.is_dormant();
        (self.session, self.reads, self.unused, self.sends) = (after, false, 0, 0);
        Some((data.len(), ends))
    }

    /// A thread that sends several messages in a row sends a burst, whose messages share system calls in
    /// the engine.
    fn send(&mut self, data: &IoVec<'_>) -> LentSend {
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

impl Context {
    /// True if a thread whose connection is lent attends it, as others do. False: no other thread blocks,
    /// so it is faster to lead.
    fn has_borrower_attend(&self) -> bool {
        self.blocked_threads() > 1 || self.others.fill_processors(self.shard())
    }

    /// Waits for a message on a connection if it is lent.
    #[inline]
    pub(crate) fn recv_lent(&self, id: SockId, loan: &LoanCell, out: &mut [u8]) -> LentRecv {
        if loan.is_lent() && !self.has_borrower_attend() {
            self.end_loan(id);
        }
        loan.recv(self, out)
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
        let LentRead { room, result } = read;
        self.call(|engine, now| {
            engine.recall(id, now);
            let read = result.map(|n| room.first(n));
            engine.run_attended(id, AttendedEnd::Read(read), now, None);
            engine.attendances().end(id);
        });
    }
}
