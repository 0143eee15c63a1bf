//! Connections that a thread attends: how the thread sleeps, and what it has read.
//!
//! A thread that blocks in read(2) takes one system call for a message. One that sleeps in ppoll(2)
//! and reads after that takes two. So the thread reads itself, without the lock of the driver, and
//! brings the bytes along. It holds the receiving direction meanwhile: no other thread reads. It
//! can wait for nothing else then, so it does that for a short time, and sleeps in ppoll(2) after
//! that. It also does so where the connection waits for room, and in the middle of a message, whose
//! bytes are better read straight into their place.
//!
//! Such a read blocks, so the descriptor must, too. All calls of the driver ask for one that does
//! not block, except for sendfile(2), which cannot.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::SoftRnic;
use super::directions::Inbound;
use super::eager::UnparsedBytes;
use super::link::{SoftLink, Watched};
use crate::driver::{Link, Source};
use crate::rnic::{
    ATTENDED_READ, ATTENDED_READ_LIMIT, Attended, AttendedBlock, AttendedEnd, AttendedWait,
};
use crate::sys::SharedStream;

/// Sleeps after which the descriptor is made to block. Connections that end before do without these
/// system calls.
const YOUNG: u8 = 4;

/// How the thread that attends a link sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeps {
    /// In ppoll(2). It has slept this often.
    Young(u8),
    /// In a read, which blocks.
    InRead,
    /// In ppoll(2), always: the descriptor must not block, or the socket was full while a thread
    /// read.
    InPoll,
}

/// The receiving direction of a link that a thread attends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attendant {
    pub(super) sleeps: Sleeps,
    /// A thread is in a read: no other thread must read.
    pub(super) reads: bool,
    /// The program has the stream in an epoll set of its own, and keeps it open there.
    pub(super) lent: bool,
}

impl Default for Attendant {
    fn default() -> Attendant {
        Attendant { sleeps: Sleeps::Young(0), reads: false, lent: false }
    }
}

impl Attendant {
    /// True if neither a thread nor the program has the stream.
    pub(super) fn is_away(&self) -> bool {
        !self.reads && !self.lent
    }

    /// From now on no call blocks, whatever flags it has.
    pub(super) fn never_block(&mut self, stream: &SharedStream) {
        if std::mem::replace(&mut self.sleeps, Sleeps::InPoll) == Sleeps::InRead {
            // The socket is open, and the kernel needs no memory for this.
            let made = stream.make_nonblocking();
            debug_assert!(made.is_ok(), "{made:?}");
        }
    }
}

impl SoftLink {
    pub(super) fn look_at_attended(&self) -> Option<Attended> {
        let own = self.stream.own().is_some();
        if !own || self.inbound != Inbound::Open || self.base.stalled {
            return None;
        }
        Some(match self.ready.readable && !self.attendant.reads {
            true => Attended::Ready,
            false => Attended::Idle { for_room: !self.ready.writable },
        })
    }

    pub(super) fn sleep(&mut self, how: AttendedBlock) -> AttendedWait {
        let fits = self.ready.writable && self.engine.can_recv_eager();
        let Some(stream) = self.stream.own().cloned() else { return AttendedWait::Ready };
        if how == AttendedBlock::Read && fits && self.can_block(&stream) {
            self.attendant.reads = true;
            return AttendedWait::Stream(stream);
        }
        AttendedWait::Descriptor { fd: stream.as_raw_fd(), write: !self.ready.writable }
    }

    /// Lends the stream to the program.
    pub(super) fn lend_to_program(&mut self) -> Option<Arc<SharedStream>> {
        let stream = self.stream.own()?;
        self.attendant.lent = true;
        Some(Arc::clone(stream))
    }

    /// True if a read of the descriptor blocks. Makes it so if that pays by now.
    fn can_block(&mut self, stream: &SharedStream) -> bool {
        let attendant = &mut self.attendant;
        match attendant.sleeps {
            Sleeps::InRead => return true,
            Sleeps::InPoll => return false,
            Sleeps::Young(sleeps) if sleeps < YOUNG => {
                attendant.sleeps = Sleeps::Young(sleeps + 1);
                return false;
            }
            Sleeps::Young(_) => {}
        }
        let blocks = stream.make_blocking(ATTENDED_READ_LIMIT).is_ok();
        attendant.sleeps = if blocks { Sleeps::InRead } else { Sleeps::InPoll };
        blocks
    }

    /// True if the reactor must report more of the link than it does. The thread that attends a
    /// link waits for room itself, unless it is in a read. A program that has the stream does not wait
    /// for room.
    pub(super) fn lacks_watch(&self) -> bool {
        let Attendant { reads, lent, .. } = self.attendant;
        let reports = !self.base.attended || (reads || lent) && !self.ready.writable;
        reports && self.watched < self.needs() && self.stream.own().is_some()
    }
}

impl SoftRnic {
    pub(super) fn end_attended_sleep(&mut self, id: u32, end: AttendedEnd<'_>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        match end {
            AttendedEnd::Ready(ready) => {
                link.note_ready(ready);
                // Mostly a message has come, and that is all, or nothing has.
                let calm = !ready.hup && !ready.writable;
                if !calm || !self.read_eager(id) && !self.needs_no_turn(id) {
                    self.enqueue(Source::Link(id));
                }
            }
            AttendedEnd::Read(read) => {
                link.attendant.reads = false;
                let reported = link.watched > Watched::Nothing;
                if reported && link.base.attended {
                    // The socket was full, and the reactor reports it. From now on the thread waits
                    // for room, too.
                    link.forget(&self.reactor);
                    if let Some(stream) = link.stream.own() {
                        link.attendant.never_block(stream);
                    }
                }
                self.take_read(id, read);
                if reported {
                    self.read_once_more(id);
                }
            }
        }
    }

    /// The reactor has reported bytes while a thread read, so no thread has looked for them since.
    fn read_once_more(&mut self, id: u32) {
        if let Ok(link) = self.links.get_mut(id) {
            link.ready.readable = true;
            self.enqueue(Source::Link(id));
        }
    }

    /// Takes what a thread has read: the bytes wait in the lookahead, as others that were read
    /// ahead.
    fn take_read(&mut self, id: u32, read: std::io::Result<&[u8]>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let n =
            link.note_read(read.as_ref().map(|bytes| bytes.len()).map_err(copy_of), ATTENDED_READ);
        let (true, Ok(bytes)) = (n > 0, read) else { return self.enqueue(Source::Link(id)) };
        link.idle = false;
        let more = link.ready.readable;
        self.deliver_unparsed();
        self.parts.lookahead[..n].copy_from_slice(bytes);
        self.parts.unparsed = Some(UnparsedBytes { link: id, at: 0, end: n });
        if more {
            self.enqueue(Source::Link(id));
        }
    }
}

/// The error once more: the kernel's number, or the kind of an error without one.
fn copy_of(e: &std::io::Error) -> std::io::Error {
    match e.raw_os_error() {
        Some(errno) => std::io::Error::from_raw_os_error(errno),
        None => e.kind().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::copy_of;

    #[test]
    fn a_copy_of_an_error_is_of_its_kind() {
        let reset = copy_of(&Error::from_raw_os_error(libc::ECONNRESET));
        assert_eq!(reset.raw_os_error(), Some(libc::ECONNRESET));
        for kind in [ErrorKind::WouldBlock, ErrorKind::Interrupted] {
            assert_eq!(copy_of(&kind.into()).kind(), kind, "no number");
        }
    }
}
