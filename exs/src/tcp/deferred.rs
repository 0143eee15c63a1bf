//! Writes of eager messages that the thread which sends makes after it has released the driver.
//!
//! The engine counts the bytes as sent when the thread takes them along. Bytes that the socket does
//! not take then come back to the link, and leave before anything else of the connection.

use std::io;
use std::sync::Arc;

use super::SoftRnic;
use super::link::SoftLink;
use crate::driver::{LinkOwner, Source};
use crate::rnic::{DeferredEnd, DeferredWrite};
use crate::sys::{self, IoVec, TcpSendFlags};
use crate::time::Time;

/// The most bytes of a deferred write, which copies them once more.
const MOST: usize = 8 << 10;

/// The bytes of a deferred write that have not left.
#[derive(Default)]
pub(super) struct Remainder {
    bytes: Vec<u8>,
    flags: TcpSendFlags,
}

impl Remainder {
    pub(super) fn new(bytes: Vec<u8>) -> Remainder {
        Remainder { bytes, flags: TcpSendFlags::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl SoftLink {
    fn defer_write(&mut self, id: u32) -> Option<DeferredWrite> {
        if !self.can_send_eager() || !self.outbound.remainder.is_empty() {
            return None;
        }
        let stream = self.stream.own()?;
        let gather = self.engine.eager_batch()?;
        // The usual case is that no other thread writes.
        if !stream.may_write() {
            return None;
        }
        let mut sent = 0;
        let write = DeferredWrite::new(id, stream, |bytes| {
            if !gather.copy_to(bytes, MOST) {
                return None;
            }
            sent = bytes.len();
            Some(TcpSendFlags { more: false, end_of_record: gather.alone })
        })?;
        self.engine.handle_sent(sent);
        self.outbound.sent += sent as u64;
        Some(write)
    }

    /// The thread has come back with what the socket did not take, or because there is more to
    /// write.
    fn take_back(&mut self, end: DeferredEnd) {
        if let Some(stream) = self.stream.own() {
            stream.take_back();
        }
        let DeferredEnd { result, mut bytes, flags, .. } = end;
        let sent = self.note_sent(&result, bytes.len());
        if sent < bytes.len() {
            bytes.drain(..sent);
            self.outbound.remainder = Remainder { bytes, flags };
            self.outbound.doorbell_rung = true;
        }
    }

    /// Sends bytes that a deferred write has left. None: there is no room.
    pub(super) fn send_remainder(&mut self) -> Option<usize> {
        let stream = self.stream.own()?;
        let mut rest = std::mem::take(&mut self.outbound.remainder);
        let result = sys::send(&**stream, &[IoVec::new(&rest.bytes)], rest.flags);
        let sent = self.note_sent(&result, rest.bytes.len());
        if sent < rest.bytes.len() {
            rest.bytes.drain(..sent);
            self.outbound.remainder = rest;
        }
        (sent > 0).then_some(sent)
    }

    /// Notes what a write of bytes says that the engine counts as sent. Returns the number of bytes
    /// that have left.
    fn note_sent(&mut self, result: &io::Result<usize>, asked: usize) -> usize {
        match result {
            Ok(n) => {
                self.ready.writable &= *n == asked;
                self.short_write.cut = *n < asked;
                *n
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                (self.ready.writable, self.short_write.cut) = (false, false);
                0
            }
            Err(e) => {
                self.fail_sending(e);
                0
            }
        }
    }
}

impl SoftRnic {
    /// Rings the doorbell, and leaves the write to the caller (`Rnic::defer_flush`).
    pub(super) fn defer_write(&mut self, id: u32, now: Time) -> Option<DeferredWrite> {
        let link = self.links.get_mut(id).ok()?;
        let LinkOwner::Qp(qp) = link.base.owner else { return None };
        if self.qps.get(qp).ok()?.own.files.is_some() {
            return None;
        }
        let write = link.defer_write(id)?;
        link.engine.release_batch(&mut self.parts.tx_pool);
        self.finish_turn(id, now);
        Some(write)
    }

    /// A deferred write has ended (`Rnic::end_deferred`).
    pub(super) fn end_write(&mut self, end: DeferredEnd, now: Time) {
        let id = end.link;
        let Ok(link) = self.links.get_mut(id) else { return };
        link.take_back(end);
        if self.write_link(id) {
            self.enqueue(Source::Link(id));
        }
        self.finish_turn(id, now);
    }

    /// Takes back the streams that threads have for a write (`Rnic::forget_deferred`).
    pub(super) fn take_back_streams(&mut self) {
        let took_back = |(id, link): (u32, &SoftLink)| {
            link.stream.own().filter(|stream| stream.is_lent())?.take_back();
            Some(id)
        };
        for id in self.links.iter().filter_map(took_back).collect::<Vec<_>>() {
            self.enqueue(Source::Link(id));
        }
    }
}

/// A stream that only this link uses so far.
pub(super) fn share(stream: mio::net::TcpStream) -> Arc<sys::SharedStream> {
    Arc::new(sys::SharedStream::new(std::os::fd::OwnedFd::from(stream).into()))
}
