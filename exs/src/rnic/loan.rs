//! Connections that an RNIC lends to the threads that block on them, and to event loops.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::sys::{IoVec, SharedStream, SharedWord};

/// A connection that an RNIC has lent ([`Rnic::lend`](super::Rnic::lend)). The RNIC does nothing for
/// it until [`Rnic::end_loan`](super::Rnic::end_loan). Small messages leave and arrive as eager ones
/// do, and anything else ends the loan. If a thread sleeps on a word of the connection, the drop of the
/// loan wakes it.
pub trait LentConnection: Any + Debug + Send {
    /// Looks in memory for what comes. None: memory does not show it.
    fn poll(&self) -> Option<bool> {
        None
    }
    /// Says where the next message is, or what the thread must wait for that wants it. A thread that
    /// has slept on a word calls this again. Fills `room` if something has come.
    fn wait(&mut self, room: &mut Vec<u8>) -> LentWait;
    /// Returns the message that these bytes are, which are those of `wait` or come from the stream. None
    /// if they are anything but one small message: then the RNIC must get them.
    fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]>;
    /// The message has been taken, and what follows comes next. True if the loan must end.
    fn note_received(&mut self) -> bool;
    /// Sends a message: `head`, and `data` behind it.
    fn send(&mut self, head: &[u8], data: &IoVec<'_>) -> LentSend;
}

/// What a thread must do that waits on a lent connection ([`LentConnection::wait`]).
#[derive(Debug)]
pub enum LentWait {
    /// Take the bytes that the room has.
    Came,
    /// Read up to [`ATTENDED_READ`](super::ATTENDED_READ) bytes from the stream. One thread does so at a
    /// time. It waits for the bytes for a limited time, or is an event loop and does not wait.
    Stream(Arc<SharedStream>),
    /// Sleep until the peer changes a word of shared memory.
    Word(SharedWord),
    /// End the loan: something other than a small message has come, or the peer must be woken in a way
    /// that needs the RNIC.
    End,
}

/// The outcome of [`LentConnection::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LentSend {
    /// The message has left.
    Sent,
    /// The RNIC has to finish the send: a part of the message has not left, or the peer must be woken.
    /// The loan must end now.
    Unfinished,
    /// Nothing has happened. The loan must end, and then the message can be sent.
    Declined,
}
