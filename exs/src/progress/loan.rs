//! Connections that an engine lends to the threads that block on them.
//!
//! A thread that blocks on its own connection needs the engine for little: a small message changes few
//! numbers. So while nothing else is under way on a connection, its engine lends these numbers to the
//! threads (`engine/attend/loan.rs`). They send and receive small messages without the lock of the
//! engine, in one system call each. Everything else ends the loan: a call of the API that is not one of
//! these two, a message that is not small, room or credits that are missing, a timer, and a sweep that
//! finds that no thread receives any more.
//!
//! A loan begins and ends under the engine's lock. The lock of the loan comes after the engine's, and a
//! thread that has it makes no system call but a write that does not wait.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::attend::Room;
use crate::rnic::{LentConnection, LentSend};
use crate::session::SessionLoan;
use crate::sys::SharedStream;
use crate::wire::exs::MAX_HEADER;

/// Sends after which a thread that receives nothing sends a burst, whose messages share system calls in
/// the engine.
const BURST: u8 = 4;

/// What an engine has lent.
pub(super) struct Loan {
    pub(super) session: SessionLoan,
    pub(super) connection: Box<dyn LentConnection>,
    /// A thread is in a read, or on its way from it to the engine.
    pub(super) reads: bool,
    /// A message has come since the last sweep.
    used: bool,
    /// Sends since the last message has come.
    sends: u8,
}

/// The place of a connection's loan. The socket's handle has one reference, the engine another while
/// the connection is lent.
#[derive(Default)]
pub(crate) struct LoanCell {
    loan: Mutex<Option<Loan>>,
    /// Whether there is a loan. It changes under the engine's lock.
    lent: AtomicBool,
}

/// What a thread has read that waited for a message.
pub(crate) struct LentRead {
    pub(super) room: Room,
    pub(super) result: io::Result<usize>,
}

/// The outcome of a receive on a lent connection.
pub(crate) enum LentRecv {
    /// A message of this many bytes has come.
    Message(usize),
    /// The same, and the loan must end: the peer waits for what the engine must send.
    Last(usize),
    /// The connection is not lent, or another thread reads.
    NotLent,
    /// The engine must get what has come.
    Other(LentRead),
}

impl LoanCell {
    fn lock(&self) -> MutexGuard<'_, Option<Loan>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the connection is lent. It stays so only while the caller has the engine's lock.
    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }

    /// Begins a loan. The calling thread is about to read.
    pub(super) fn begin(&self, session: SessionLoan, connection: Box<dyn LentConnection>) {
        let loan = Loan { session, connection, reads: true, used: true, sends: 0 };
        *self.lock() = Some(loan);
        self.lent.store(true, Ordering::Relaxed);
    }

    /// Ends the loan.
    pub(super) fn end(&self) -> Option<Loan> {
        self.lent.store(false, Ordering::Relaxed);
        self.lock().take()
    }

    /// A sweep has come. True if a thread reads, or a message has come since the last sweep.
    pub(super) fn is_used(&self) -> bool {
        match &mut *self.lock() {
            Some(loan) => std::mem::take(&mut loan.used) || loan.reads,
            None => false,
        }
    }

    /// True if a thread reads.
    #[cfg(any(test, feature = "internals"))]
    pub(super) fn is_read(&self) -> bool {
        self.lock().as_ref().is_some_and(|loan| loan.reads)
    }

    /// Waits for the next message, and copies its bytes to `out`, if the connection is lent.
    pub(crate) fn recv(&self, out: &mut [u8]) -> LentRecv {
        if !self.is_lent() {
            return LentRecv::NotLent;
        }
        let Some(stream) = self.begin_read() else { return LentRecv::NotLent };
        let mut room = Room::take();
        let result = stream.read_blocking(room.bytes());
        self.end_read(LentRead { room, result }, out)
    }

    /// The calling thread is about to read. None: the connection is not lent, or another thread reads.
    fn begin_read(&self) -> Option<Arc<SharedStream>> {
        let mut loan = self.lock();
        let Loan { connection, reads, .. } = loan.as_mut()?;
        (!std::mem::replace(reads, true)).then(|| Arc::clone(connection.stream()))
    }

    /// A thread has read.
    pub(super) fn end_read(&self, read: LentRead, out: &mut [u8]) -> LentRecv {
        let mut loan = self.lock();
        let taken = match (&mut *loan, &read.result) {
            (Some(loan), Ok(n)) => loan.take_message(read.room.first(*n), out),
            _ => None,
        };
        match (taken, &mut *loan) {
            (Some(len), Some(loan)) if loan.session.owes() => LentRecv::Last(len),
            (Some(len), _) => LentRecv::Message(len),
            (None, _) => LentRecv::Other(read),
        }
    }

    /// Sends few bytes, if the connection is lent.
    pub(crate) fn send(&self, data: &[u8]) -> LentSend {
        if !self.is_lent() {
            return LentSend::Declined;
        }
        self.lock().as_mut().map_or(LentSend::Declined, |loan| loan.send(data))
    }
}

impl Loan {
    /// Copies a message to `out`, if the bytes are one and fit.
    fn take_message(&mut self, bytes: &[u8], out: &mut [u8]) -> Option<usize> {
        let message = self.connection.message(bytes)?;
        let mut after = self.session.clone();
        let data = after.receive(message)?;
        out.get_mut(..data.len())?.copy_from_slice(data);
        self.connection.note_received();
        (self.session, self.reads, self.used, self.sends) = (after, false, true, 0);
        Some(data.len())
    }

    fn send(&mut self, data: &[u8]) -> LentSend {
        let Ok(len) = u32::try_from(data.len()) else { return LentSend::Declined };
        if self.sends >= BURST {
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
