//! Putting frames together: the output of a group.
//!
//! Small gathers of the engines are copied behind each other, and leave in one write. A large gather
//! leaves from user memory, behind the output and the head of its frame. If the socket takes only a
//! part of that, the frame is *begun*, and its rest leaves before anything else.

use std::collections::VecDeque;
use std::io;

use super::super::directions::Inbound;
use super::super::link::SoftLink;
use super::super::write::is_connection_error;
use super::{LinkGroup, SMALL};
use crate::iwarp::{Gather, GatherChunk, MAX_CHUNKS, SendStep, TxPool};
use crate::sys::{self, IoVec, TcpSendFlags};
use crate::wire::group::{GroupFrameKind, GroupHead, MAX_DATA};

/// Bytes of output from which on links wait.
const FULL: usize = 128 << 10;

/// A DATA frame of which a part has left.
#[derive(Clone, Copy, Debug)]
struct BegunFrame {
    link: u32,
    /// Bytes of the payload that have not left.
    left: usize,
}

/// The output of a group.
#[derive(Default)]
pub(super) struct GroupOutput {
    bytes: Vec<u8>,
    /// Those of `bytes` that have left.
    gone: usize,
    begun: Option<BegunFrame>,
    /// Frames that were made while one is begun. They follow it.
    behind: Vec<u8>,
    /// Links that wait for room, the next one first.
    waiting: VecDeque<u32>,
    /// It is on the list of groups with new output.
    pub(super) dirty: bool,
}

impl GroupOutput {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    /// Begins a frame whose payload the caller appends to the bytes that are returned.
    fn frame(&mut self, stream: u32, kind: GroupFrameKind, len: usize) -> &mut Vec<u8> {
        let bytes = if self.begun.is_some() { &mut self.behind } else { &mut self.bytes };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&GroupHead { stream, kind, len }.emit());
        bytes
    }

    /// A frame that is no DATA.
    pub(super) fn control(&mut self, stream: u32, kind: GroupFrameKind, payload: &[u8]) {
        self.frame(stream, kind, payload.len()).extend_from_slice(payload);
    }

    /// Of the frame of a link this number of bytes have not left. If there are none, the frames that
    /// were made meanwhile follow.
    fn leave_begun(&mut self, link: u32, left: usize) {
        self.begun = (left > 0).then_some(BegunFrame { link, left });
        if left == 0 {
            self.bytes.append(&mut self.behind);
        }
    }

    /// Bytes have left.
    fn advance(&mut self, bytes: usize) {
        self.gone += bytes;
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone >= FULL {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }

    /// Bytes that have not left.
    pub(super) fn unsent(&self) -> usize {
        self.rest().len() + self.behind.len()
    }

    /// True if this link may add to the output now.
    fn admits(&self, link: u32) -> bool {
        match self.begun {
            Some(begun) => begun.link == link,
            None => self.rest().len() < FULL,
        }
    }

    /// Ends the frame that a link has begun, as it has no more bytes for it. True if it had one.
    pub(super) fn fill_begun(&mut self, link: u32) -> bool {
        let Some(begun) = self.begun.filter(|begun| begun.link == link) else { return false };
        self.bytes.resize(self.bytes.len() + begun.left, 0);
        self.leave_begun(link, 0);
        true
    }

    /// The link whose frame is begun.
    pub(super) fn begun_by(&self) -> Option<u32> {
        self.begun.map(|begun| begun.link)
    }

    /// The next link that waits, if there is room.
    pub(super) fn next_waiting(&mut self) -> Option<u32> {
        if self.begun.is_some() || self.rest().len() >= FULL {
            return None;
        }
        self.waiting.pop_front()
    }
}

/// A large frame that was offered to the socket, or the rest of one.
struct OfferedFrame<'a> {
    /// Bytes of output before it.
    before: usize,
    /// Empty if the frame was begun before.
    head: &'a [u8],
    /// Bytes of payload.
    whole: usize,
    /// Those that are new on the stream.
    framed: usize,
}

/// What one step of sending has achieved.
enum StepSent {
    /// This number of bytes of payload.
    Bytes(usize),
    /// The link waits for room, or for the peer's credit.
    Waits,
    /// There is nothing to send.
    Idle,
}

impl LinkGroup {
    /// Sends what a link has, up to one frame of the longest size. True if there is more.
    pub(in crate::tcp) fn transmit(
        &mut self,
        id: u32,
        link: &mut SoftLink,
        pool: &mut TxPool,
    ) -> bool {
        let mut left = MAX_DATA;
        let more = loop {
            let wants = link.outbound.doorbell_rung || link.engine.owes();
            let able = link.ready.writable && link.inbound != Inbound::Broken;
            if !wants || !able || link.outbound.shut || self.end.is_some() {
                break false;
            }
            if left == 0 {
                break true;
            }
            match self.send_step(id, link, pool) {
                StepSent::Bytes(n) => left = left.saturating_sub(n),
                StepSent::Waits => {
                    link.ready.writable = false;
                    break false;
                }
                StepSent::Idle => break false,
            }
        };
        link.engine.release_batch(pool);
        more
    }

    /// The link goes on when the output has room.
    fn wait(&mut self, id: u32, link: &mut SoftLink) -> StepSent {
        let begun = self.output.begun_by() == Some(id);
        if let Some(stream) = link.stream.grouped_mut()
            && !begun
            && !std::mem::replace(&mut stream.waits, true)
        {
            self.output.waiting.push_back(id);
        }
        StepSent::Waits
    }

    fn send_step(&mut self, id: u32, link: &mut SoftLink, pool: &mut TxPool) -> StepSent {
        let Some(stream) = link.stream.grouped() else { return StepSent::Idle };
        let (number, leaves) = (stream.number, stream.is_leaving());
        let room = usize::try_from(stream.room).unwrap_or(usize::MAX);
        if !self.output.admits(id) {
            return self.wait(id, link);
        }
        let begun = self.output.begun.map(|begun| begun.left);
        if begun.is_none() && leaves {
            // It goes on by a connection of its own.
            return StepSent::Waits;
        }
        let gather = match link.engine.poll_tx(pool) {
            SendStep::Gather(gather) => gather,
            step => {
                let shuts = matches!(step, SendStep::Shutdown);
                let file = matches!(step, SendStep::File { .. });
                return self.send_end(id, link, shuts, file);
            }
        };
        let limit = begun.unwrap_or(room.min(MAX_DATA));
        if limit == 0 {
            // The peer's credit makes the link writable again.
            return StepSent::Waits;
        }
        let (mut one, mut many);
        let vecs: &mut [IoVec<'_>] = if gather.most() == 1 {
            one = [IoVec::EMPTY; 3];
            &mut one
        } else {
            many = [IoVec::EMPTY; MAX_CHUNKS + 2];
            &mut many
        };
        let (count, len) = collect(&gather, &mut vecs[2..], limit);
        if begun.is_none() && len <= SMALL {
            let out = self.output.frame(number, GroupFrameKind::Data, len);
            vecs[2..2 + count].iter().for_each(|vec| vec.append_to(out));
            note_sent(link, len, len);
            return StepSent::Bytes(len);
        }
        if !self.ready.writable {
            return self.wait(id, link);
        }
        let frame_len = u32::try_from(len).unwrap_or(u32::MAX);
        let kind = GroupFrameKind::Data;
        let head = GroupHead { stream: number, kind, len: frame_len }.emit();
        let before = self.output.rest().len();
        let head_len = if begun.is_some() { 0 } else { head.len() };
        vecs[0] = IoVec::new(self.output.rest());
        vecs[1] = IoVec::new(&head[..head_len]);
        let flags = TcpSendFlags { more: false, end_of_record: false };
        let result = sys::send(&*self.stream, &vecs[..2 + count], flags);
        let (whole, framed) = begun.map_or((len, len), |left| (left, 0));
        match result {
            Ok(n) => {
                let frame = OfferedFrame { before, head: &head[..head_len], whole, framed };
                self.note_offered(id, link, n, &frame)
            }
            Err(e) => self.fail_step(id, link, &e),
        }
    }

    /// The socket has taken `n` bytes of the output and of a large frame behind it.
    fn note_offered(
        &mut self,
        id: u32,
        link: &mut SoftLink,
        n: usize,
        frame: &OfferedFrame<'_>,
    ) -> StepSent {
        let OfferedFrame { before, head, whole, framed } = *frame;
        self.output.advance(n.min(before));
        let n = n - n.min(before);
        if n == 0 {
            // Nothing of the frame has left. The next call says why.
            return StepSent::Bytes(0);
        }
        // What is missing of the head is the next output.
        self.output.bytes.extend_from_slice(&head[n.min(head.len())..]);
        let sent = n - n.min(head.len());
        self.output.leave_begun(id, whole - sent);
        note_sent(link, sent, framed);
        if let Some(stream) = link.stream.grouped_mut() {
            stream.bulk += sent as u64;
        }
        StepSent::Bytes(sent)
    }

    /// A write of a link's bytes has failed.
    fn fail_step(&mut self, id: u32, link: &mut SoftLink, e: &io::Error) -> StepSent {
        if e.kind() == io::ErrorKind::WouldBlock {
            self.ready.writable = false;
            return self.wait(id, link);
        }
        if is_connection_error(e) {
            self.end = Some(e.raw_os_error().unwrap_or(libc::EIO));
        } else {
            // The memory of this link is at fault.
            self.output.fill_begun(id);
            link.fail_sending(e);
        }
        StepSent::Idle
    }

    /// The engine has no bytes: its sending side has ended, or it waits.
    fn send_end(&mut self, id: u32, link: &mut SoftLink, shuts: bool, file: bool) -> StepSent {
        if file {
            // Files of grouped links are read into buffers, so this is only for safety.
            link.engine.handle_file_error(libc::EIO);
            return StepSent::Bytes(0);
        }
        if self.output.fill_begun(id) {
            // The link has dropped what the frame had promised. Nothing after that makes sense.
            link.ending.reset();
            link.inbound = Inbound::Broken;
            link.engine.handle_broken(libc::ECONNRESET);
            return StepSent::Idle;
        }
        if !shuts {
            link.outbound.doorbell_rung &= link.engine.has_unsent();
            return StepSent::Idle;
        }
        link.outbound.shut = true;
        if let Some(stream) = link.stream.grouped() {
            self.output.control(stream.number, GroupFrameKind::Fin, &[]);
        }
        StepSent::Bytes(0)
    }

    /// Writes the output. True if all of it has left.
    pub(super) fn write(&mut self) -> bool {
        self.output.dirty = false;
        while self.ready.writable && self.end.is_none() && !self.output.rest().is_empty() {
            let flags = TcpSendFlags { more: false, end_of_record: false };
            let rest = self.output.rest();
            let asked = rest.len();
            match sys::send(&*self.stream, &[IoVec::new(rest)], flags) {
                Ok(n) => {
                    self.output.advance(n);
                    // This memory can be read, so the socket is full.
                    self.ready.writable = n == asked;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.ready.writable = false,
                Err(e) => self.end = Some(e.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        self.output.rest().is_empty()
    }
}

/// Fills `vecs` with at most `limit` bytes of a gather. Returns how many it took, and their bytes.
fn collect<'a>(gather: &Gather<'a>, vecs: &mut [IoVec<'a>], limit: usize) -> (usize, usize) {
    let (mut count, mut len) = (0, 0);
    gather.for_each(&mut |chunk| {
        let room = limit - len;
        let Some(vec) = vecs.get_mut(count).filter(|_| room > 0) else { return };
        *vec = match chunk {
            GatherChunk::Bytes(bytes) => IoVec::new(&bytes[..bytes.len().min(room)]),
            GatherChunk::Memory { seg, off, len } => seg.io_vec(off, len.min(room)),
        };
        len += vec.len();
        count += 1;
    });
    (count, len)
}

/// Bytes of a link have left, or are in the output; `framed` of them are new on the stream.
fn note_sent(link: &mut SoftLink, sent: usize, framed: usize) {
    if let Some(stream) = link.stream.grouped_mut() {
        stream.room = stream.room.saturating_sub(framed as u64);
    }
    link.outbound.sent += sent as u64;
    link.engine.handle_sent(sent);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u32, kind: GroupFrameKind, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        [&GroupHead { stream, kind, len }.emit()[..], payload].concat()
    }

    #[test]
    fn no_frame_leaves_within_another_one() {
        let mut output = GroupOutput::default();
        output.control(1, GroupFrameKind::Window, &[0, 1, 0, 0]);
        let before = frame(1, GroupFrameKind::Window, &[0, 1, 0, 0]);
        assert_eq!(output.rest(), before);
        // All of that has left, and a part of a frame of link 7.
        output.advance(before.len());
        output.leave_begun(7, 5);
        output.control(2, GroupFrameKind::Window, &[0, 2, 0, 0]);
        output.control(2, GroupFrameKind::Fin, &[]);
        let behind =
            [frame(2, GroupFrameKind::Window, &[0, 2, 0, 0]), frame(2, GroupFrameKind::Fin, &[])];
        assert_eq!((output.rest().len(), output.unsent()), (0, behind.concat().len()));
        output.leave_begun(7, 2);
        assert!(output.rest().is_empty());

        let mut whole = GroupOutput { behind: output.behind.clone(), ..GroupOutput::default() };
        whole.leave_begun(7, 0);
        assert_eq!(whole.rest(), behind.concat(), "the rest of the frame has left");
        assert!(!output.fill_begun(8) && output.fill_begun(7));
        assert_eq!(output.rest(), [&[0, 0], &behind.concat()[..]].concat(), "it was filled");
    }
}
