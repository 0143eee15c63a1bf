//! Connections that an RNIC lends to the threads that block on them.

use std::fmt::Debug;
use std::sync::Arc;

use crate::sys::SharedStream;

/// A connection that an RNIC has lent ([`Rnic::lend`](super::Rnic::lend)). The RNIC does nothing for
/// it until [`Rnic::end_loan`](super::Rnic::end_loan). A loan that is dropped before anything was sent
/// or received need not end. Small messages leave and arrive as eager ones do, and anything else ends the loan.
pub trait LentConnection: Debug + Send {
    /// The stream. One thread reads up to [`ATTENDED_READ`](super::ATTENDED_READ) bytes from it, in a
    /// call that waits for them for a limited time.
    fn stream(&self) -> &Arc<SharedStream>;
    /// Sends a message: `head`, and `data` behind it.
    fn send(&mut self, head: &[u8], data: &[u8]) -> LentSend;
    /// Returns the message that these bytes are. They were read from the stream. None if they are
    /// anything but one small message: then the RNIC must get them.
    fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]>;
    /// The message has been taken, and the next read brings what follows it.
    fn note_received(&mut self);
    /// Ends the loan.
    fn end(self: Box<Self>) -> LoanReport;
}

/// The outcome of [`LentConnection::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LentSend {
    /// The message has left.
    Sent,
    /// A part of the message has left. The rest leaves when the loan has ended, which must be now.
    Cut,
    /// Nothing has happened. The loan must end, and then the message can be sent.
    Declined,
}

/// What has happened on a connection while it was lent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoanReport {
    /// Messages sent.
    pub sent: u32,
    /// Messages received.
    pub received: u32,
    /// Bytes on the wire that have left.
    pub sent_bytes: u64,
    /// Bytes of the last message that have not left.
    pub unsent: Vec<u8>,
}
