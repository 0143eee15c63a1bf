//! Links that are lent to the threads that block on them, and to event loops that poll their streams.
//!
//! A thread that has the stream needs the driver for little: a sequence number in each direction. So
//! such a thread frames its small messages itself, and writes and reads them without the lock of the
//! driver, in one system call each.

use std::sync::Arc;

use super::SoftRnic;
use super::attend::Attendant;
use super::deferred::Remainder;
use super::link::SoftLink;
use crate::iwarp::FramingLoan;
use crate::rnic::{LentConnection, LentSend, LentWait};
use crate::sys::{self, IoVec, SharedStream, TcpSendFlags};
use crate::time::Time;

/// The stream of a link, and what a thread must know of its engine.
#[derive(Debug)]
pub struct LentStream {
    stream: Arc<SharedStream>,
    framing: FramingLoan,
    /// The memory in which messages are framed.
    frame: Vec<u8>,
    sent: u32,
    received: u32,
    /// Bytes on the wire that have left.
    sent_bytes: u64,
    /// Bytes of the last message that have not left.
    unsent: Vec<u8>,
}

impl LentConnection for LentStream {
    fn wait(&mut self, _room: &mut Vec<u8>) -> LentWait {
        LentWait::Stream(Arc::clone(&self.stream))
    }

    fn send(&mut self, head: &[u8], data: &IoVec<'_>) -> LentSend {
        if !self.framing.frame(head, data, &mut self.frame) {
            return LentSend::Declined;
        }
        let frame = [IoVec::new(&self.frame)];
        // The driver meets an error again, and ends the connection.
        let Ok(sent @ 1..) = sys::send(&*self.stream, &frame, TcpSendFlags::default()) else {
            return LentSend::Declined;
        };
        self.framing.note_sent();
        self.sent = self.sent.wrapping_add(1);
        self.sent_bytes += self.frame.len() as u64;
        if sent < self.frame.len() {
            self.unsent = self.frame.split_off(sent);
            return LentSend::Unfinished;
        }
        LentSend::Sent
    }

    fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        self.framing.message(bytes)
    }

    fn note_received(&mut self) -> bool {
        self.framing.note_received();
        self.received = self.received.wrapping_add(1);
        false
    }
}

impl SoftLink {
    /// Lends the link, if a thread attends it that is about to read, or the program reads its stream when
    /// that has something.
    fn lend(&mut self) -> Option<LentStream> {
        let Attendant { reads, lent: polled, .. } = self.attendant;
        if !self.base.attended
            || reads == polled
            || !self.can_send_eager()
            || !self.outbound.remainder.is_empty()
        {
            return None;
        }
        let stream = Arc::clone(self.stream.own()?);
        let framing = self.engine.lend().filter(|_| stream.may_write())?;
        let (frame, unsent) = (Vec::new(), Vec::new());
        // The borrower has the receiving direction: no turn of the driver reads.
        self.attendant.reads = true;
        Some(LentStream { stream, framing, frame, sent: 0, received: 0, sent_bytes: 0, unsent })
    }

    /// Takes the link back.
    fn end_loan(&mut self, loan: LentStream, reads: bool) {
        let LentStream { sent, received, sent_bytes, unsent, .. } = loan;
        self.engine.end_loan(sent, sent_bytes, received);
        self.outbound.sent += sent_bytes;
        self.idle = false;
        self.attendant.reads = reads;
        // No thread has looked whether there are more bytes. An event loop has, and its epoll set shows
        // what comes.
        self.ready.readable = !reads && !self.attendant.lent;
        if !unsent.is_empty() {
            self.outbound.remainder = Remainder::new(unsent);
            self.outbound.doorbell_rung = true;
            (self.ready.writable, self.short_write.cut) = (false, true);
        }
    }
}

impl SoftRnic {
    /// Lends a link to the threads that block on it (`Rnic::lend`).
    pub(super) fn lend_link(&mut self, id: u32) -> Option<LentStream> {
        if !self.needs_no_turn(id) {
            return None;
        }
        self.links.get_mut(id).ok()?.lend()
    }

    /// Takes a link back (`Rnic::end_loan`).
    pub(super) fn take_back_link(&mut self, id: u32, loan: LentStream, reads: bool, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let cut = !loan.unsent.is_empty();
        link.end_loan(loan, reads);
        if cut {
            // The reactor reports when there is room.
            self.finish_turn(id, now);
        }
    }
}
