//! Links that are lent to the threads that block on them.
//!
//! A thread that has the stream needs the driver for little: a sequence number in each direction. So
//! such a thread frames its small messages itself, and writes and reads them without the lock of the
//! driver, in one system call each.

use std::sync::Arc;

use super::SoftRnic;
use super::deferred::Remainder;
use super::link::SoftLink;
use crate::iwarp::FramingLoan;
use crate::rnic::{LentConnection, LentSend, LoanReport};
use crate::sys::{self, IoVec, SharedStream, TcpSendFlags};
use crate::time::Time;

/// The stream of a link, and what a thread must know of its engine.
#[derive(Debug)]
struct LentStream {
    stream: Arc<SharedStream>,
    framing: FramingLoan,
    /// The memory in which messages are framed.
    frame: Vec<u8>,
    report: LoanReport,
}

impl LentConnection for LentStream {
    fn stream(&self) -> &Arc<SharedStream> {
        &self.stream
    }

    fn send(&mut self, head: &[u8], data: &[u8]) -> LentSend {
        if !self.framing.frame(head, data, &mut self.frame) {
            return LentSend::Declined;
        }
        let frame = [IoVec::new(&self.frame)];
        // The driver meets an error again, and ends the connection.
        let Ok(sent @ 1..) = sys::send(&*self.stream, &frame, TcpSendFlags::default()) else {
            return LentSend::Declined;
        };
        self.framing.note_sent();
        self.report.sent = self.report.sent.wrapping_add(1);
        self.report.sent_bytes += self.frame.len() as u64;
        if sent < self.frame.len() {
            self.report.unsent = self.frame.split_off(sent);
            return LentSend::Cut;
        }
        LentSend::Sent
    }

    fn message<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        self.framing.message(bytes)
    }

    fn note_received(&mut self) {
        self.framing.note_received();
        self.report.received = self.report.received.wrapping_add(1);
    }

    fn end(self: Box<Self>) -> LoanReport {
        self.report
    }
}

impl SoftLink {
    /// Lends the link, if a thread attends it that is about to read.
    fn lend(&mut self) -> Option<Box<dyn LentConnection>> {
        let reads = self.attendant.reads && self.base.attended && !self.attendant.lent;
        if !reads || !self.can_send_eager() || !self.outbound.remainder.is_empty() {
            return None;
        }
        let stream = Arc::clone(self.stream.own()?);
        let framing = self.engine.lend().filter(|_| stream.may_write())?;
        let (frame, report) = (Vec::new(), LoanReport::default());
        Some(Box::new(LentStream { stream, framing, frame, report }))
    }

    /// Takes the link back.
    fn end_loan(&mut self, report: LoanReport, reads: bool) {
        let LoanReport { sent, received, sent_bytes, unsent } = report;
        self.engine.end_loan(sent, sent_bytes, received);
        self.outbound.sent += sent_bytes;
        self.idle = false;
        self.attendant.reads = reads;
        // No thread has looked whether there are more bytes.
        self.ready.readable = !reads;
        if !unsent.is_empty() {
            self.outbound.remainder = Remainder::new(unsent);
            self.outbound.doorbell_rung = true;
            (self.ready.writable, self.short_write.cut) = (false, true);
        }
    }
}

impl SoftRnic {
    /// Lends a link to the threads that block on it (`Rnic::lend`).
    pub(super) fn lend_link(&mut self, id: u32) -> Option<Box<dyn LentConnection>> {
        if !self.needs_no_turn(id) {
            return None;
        }
        self.links.get_mut(id).ok()?.lend()
    }

    /// Takes a link back (`Rnic::end_loan`).
    pub(super) fn take_back_link(&mut self, id: u32, report: LoanReport, reads: bool, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let cut = !report.unsent.is_empty();
        link.end_loan(report, reads);
        if cut {
            // The reactor reports when there is room.
            self.finish_turn(id, now);
        }
    }
}
