//! Data that leave.

use crate::ids::Outcome;
use crate::rnic::{EagerSend, FileRange, RnicError, SendOp, Sge, WcStatus};
use crate::wire::exs::{Immediate, MAX_HEADER, Message};

use super::credits::Level;
use super::doorbell::Doorbell;
use super::out::Wr;
use super::proto::{Job, Proto, TxStep};
use super::sender::Ends;
use super::sendq::{PostedWr, WrEnd, WrPurpose};
use super::{Announce, Buf, IoVec, OpError, Port, SendSource, Session};

/// Segments of one WR that are made here, even if the RNIC takes more.
const SGES: usize = 16;
/// Bytes of a file in one WRITE, at least: the next one waits for its completion.
const FILE_PIECE: u64 = 1 << 20;

const NO_SGE: Sge = Sge { addr: 0, len: 0, lkey: 0 };

impl Session {
    /// Sends what may leave. Messages that wait are older, so they go first.
    pub(super) fn drive_tx(&mut self, port: &mut dyn Port) {
        loop {
            self.flush_outbox(port);
            if self.sender.has_job() {
                self.drive_job(port);
            }
            let free = !self.sender.has_job() && !self.sender.awaits_room();
            let can =
                free && self.is_flushed() && self.wants_transfer() && self.may_send(Level::Data);
            let Some(step) = self.proto.as_mut().and_then(|p| p.tx_step(can)) else { break };
            self.tx_step(port, step);
        }
    }

    fn wants_transfer(&self) -> bool {
        self.proto.as_ref().is_some_and(Proto::wants_transfer)
    }

    pub(super) fn tx_step(&mut self, port: &mut dyn Port, step: TxStep) {
        match step {
            TxStep::Write(mut job) => {
                // A device with true windows can send with Invalidate, too.
                job.close &= port.caps().windows;
                self.sender.set_job(Some(job));
            }
            TxStep::Inline { op, off, len, message } => {
                self.send_inline(port, op, off, len, message);
            }
            TxStep::Say(message) => self.out.queue_tx(message),
            TxStep::Done { op, bytes, outcome } => self.send_done(op, bytes, outcome),
        }
    }

    /// The machine has ended a send.
    pub(super) fn send_done(&mut self, op: u64, bytes: u64, outcome: Outcome) {
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.sender.done(op, bytes, outcome, &mut ends);
    }

    /// A WR that used the memory of a send is over.
    pub(super) fn release_send(&mut self, op: u64) {
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.sender.release(op, &mut ends);
    }

    /// Posts as much of the current chunk as there is room for.
    fn drive_job(&mut self, port: &mut dyn Port) {
        if let Some(mut job) = self.sender.take_job()
            && !self.push_job(port, &mut job)
        {
            self.sender.set_job(Some(job));
        }
    }

    /// True if the chunk is posted and announced.
    fn push_job(&mut self, port: &mut dyn Port, job: &mut Job) -> bool {
        if job.reading > 0 {
            return false; // its completion says how to go on
        }
        while job.off < job.end {
            if !self.life.may_talk() {
                return false;
            }
            // One place stays for the announcement, so that both leave together.
            if self.sendq.room() < 2 {
                self.note_full_queue();
                return false;
            }
            match self.sender.source(job.op) {
                Some(SendSource::File(file)) => {
                    let file = file.clone();
                    // The file may be shorter, and the ADVERT not used up.
                    job.close = false;
                    self.write_file(port, job, &file);
                    return false;
                }
                Some(SendSource::Memory(iov)) => {
                    let mut sges = [NO_SGE; SGES];
                    let max_sge = port.caps().max_sge.clamp(1, SGES);
                    let want = (job.end - job.off).min(port.caps().max_msg.max(1));
                    let (count, bytes) = iov.sges(job.off, want, &mut sges[..max_sge]);
                    if bytes == 0 {
                        return true; // impossible: the machine moves what was posted
                    }
                    self.sender.lend(job.op);
                    if self.write_piece(port, job, &sges[..count], bytes) {
                        return true;
                    }
                }
                None => return true,
            }
        }
        self.announce(port, job)
    }

    /// Writes a piece of memory; true if that announced the chunk, too.
    fn write_piece(&mut self, port: &mut dyn Port, job: &mut Job, sges: &[Sge], len: u64) -> bool {
        let (raddr, rkey) = (job.raddr, job.rkey);
        let imm = if job.off + len == job.end { self.immediate(port, job) } else { None };
        let (op, what) = match imm {
            Some(imm) => {
                let what = WrPurpose::Chunk { op: job.op, len: job.len };
                (SendOp::WriteImm { raddr, rkey, imm }, what)
            }
            None => (SendOp::Write { raddr, rkey }, WrPurpose::Piece { op: job.op }),
        };
        let signalled = imm.is_some();
        let wr = Wr { op, head: &[], sges, file: None, inline: false, signalled };
        // The announcement may have to wait for these to complete, so they leave soon.
        if !self.post_wr(port, wr, what.into(), Doorbell::Soon) {
            self.sender.take_back(job.op);
            return false;
        }
        job.off += len;
        job.raddr = job.raddr.wrapping_add(len);
        if signalled {
            self.credits.spend();
            self.counters.messages_sent += 1;
            self.count_written(job);
        }
        signalled
    }

    /// Immediate data that announce the chunk. None if a message is better, since a message also
    /// returns credits and ring bytes.
    fn immediate(&self, port: &dyn Port, job: &Job) -> Option<u32> {
        if job.close {
            return None;
        }
        let wanted = self.cfg.force_announce != Some(Announce::WriteSend) && port.caps().write_imm;
        if !wanted || self.out.is_ack_due() || self.credits.must_return() || job.len != job.total {
            return None;
        }
        // Credits may have gone since the chunk was begun.
        if !self.credits.may(Level::Control) {
            return None;
        }
        Immediate { direct: job.direct, len: u32::try_from(job.len).ok()? }.emit()
    }

    /// Announces what was written by a message.
    fn announce(&mut self, port: &mut dyn Port, job: &Job) -> bool {
        let stream = self.proto.as_ref().is_some_and(Proto::is_stream);
        let message = if stream {
            let len = u32::try_from(job.len).unwrap_or(u32::MAX);
            Message::Data { direct: job.direct, inline: false, len }
        } else {
            Message::PacketData { len: job.len, total: job.total }
        };
        if stream && job.len == 0 {
            return true; // the file had no bytes, and the machine knows
        }
        if !self.sender.contains(job.op) {
            return true;
        }
        self.sender.lend(job.op);
        let what = WrPurpose::Chunk { op: job.op, len: job.len };
        let invalidate = Some(job.rkey).filter(|_| job.close && job.off == job.end);
        let op = SendOp::Send { invalidate, solicited: false };
        if !self.say_with(port, (message, &[]), Level::Control, what, op) {
            self.sender.take_back(job.op);
            return false;
        }
        self.count_written(job);
        true
    }

    fn count_written(&mut self, job: &Job) {
        self.unrung.note(Doorbell::Now);
        let counter = match job.direct {
            true => &mut self.counters.tx_direct,
            false => &mut self.counters.tx_indirect,
        };
        *counter += job.len;
    }

    /// Writes a piece of a file. Its completion says how to go on.
    fn write_file(&mut self, port: &mut dyn Port, job: &mut Job, file: &FileRange) {
        let len = (job.end - job.off).min(u64::from(self.cfg.max_chunk).max(FILE_PIECE));
        let mut range =
            FileRange { file: file.file.clone(), offset: file.offset.saturating_add(job.off), len };
        let len = port.file_room(&range).min(len);
        if len == 0 {
            return;
        }
        range.len = len;
        let op = SendOp::Write { raddr: job.raddr, rkey: job.rkey };
        let wr = Wr { op, head: &[], sges: &[], file: Some(range), inline: false, signalled: true };
        self.sender.lend(job.op);
        if self.post_wr(port, wr, WrPurpose::File { op: job.op }.into(), Doorbell::Now) {
            job.off += len;
            job.raddr = job.raddr.wrapping_add(len);
            job.reading = len;
        } else {
            self.sender.take_back(job.op);
        }
    }

    /// A piece of a file was written. If the file had less, the chunk ends there, and
    /// with it the send.
    pub(super) fn file_written(&mut self, over: WrEnd<'_>) {
        // File WRITEs are signalled, so the completion is missing only if the queue pair is
        // gone.
        let WrEnd::Own(wc) = over else { return };
        let errno = match wc.status {
            WcStatus::Success => None,
            WcStatus::FileRead(errno) => Some(errno),
            _ => return,
        };
        let Some(mut job) = self.sender.take_job() else { return };
        let piece = std::mem::take(&mut job.reading);
        let had = wc.byte_len.min(piece);

        if had < piece || errno.is_some() {
            self.file_ended(&mut job, piece - had, errno);
        }
        self.sender.set_job(Some(job));
    }

    /// The file has ended: the chunk lacks the last `missing` bytes of those asked for, and all
    /// that were not yet asked for.
    fn file_ended(&mut self, job: &mut Job, missing: u64, errno: Option<i32>) {
        let had = job.off - missing;
        let len = job.len - (job.end - had);
        if let Some(Proto::Stream(s)) = &mut self.proto {
            // Chunks of a stream are shorter than 2^32 bytes.
            let short = |n| u32::try_from(n).unwrap_or(u32::MAX);
            s.tx.handle_short(job.op, job.direct, short(job.len), short(len));
        }
        self.sender.fail_file(job.op, had, errno);
        (job.off, job.end, job.len, job.total) = (had, had, len, len);
    }

    /// Sends a message with the data in it.
    fn send_inline(&mut self, port: &mut dyn Port, op: u64, off: u64, len: u32, message: Message) {
        let sent = self.try_send_inline_eager(port, op, off, len, message);
        if sent.is_taken() {
            return;
        }
        let Some(SendSource::Memory(iov)) = self.sender.source(op) else { return };
        let mut sges = [NO_SGE; SGES];
        let max_sge = port.caps().max_sge.clamp(1, SGES);
        let (mut count, bytes) = iov.sges(off, len.into(), &mut sges[..max_sge]);
        let mut bounce = None;
        if bytes < u64::from(len) {
            let Some(buf) = gather(port, iov, off, len) else {
                return self.fail(OpError::LocalMemory(RnicError::Limit {
                    what: "memory for a message in many pieces",
                    asked: len.into(),
                    limit: 0,
                }));
            };
            (sges[0], count) = (Sge { addr: buf.seg.addr(), len: len.into(), lkey: buf.mr.key }, 1);
            bounce = Some(buf);
        }
        let mut head = [0; MAX_HEADER];
        let head_len = self.header(message, &mut head);
        let fits = usize::try_from(len).is_ok_and(|n| n + head_len <= port.caps().max_inline);
        // The send need not wait for the WR if the bytes are copied now.
        let copied = fits || bounce.is_some();
        if copied && bounce.is_some() {
            self.counters.copies += 1;
            self.counters.copied_bytes += u64::from(len);
        }
        let what = match copied {
            true => WrPurpose::Message,
            false => WrPurpose::Chunk { op, len: len.into() },
        };
        if !copied {
            self.sender.lend(op);
        }
        let wr = Wr {
            op: Wr::SEND,
            head: &head[..head_len],
            sges: &sges[..count],
            file: None,
            inline: fits,
            signalled: !copied,
        };
        let posted = self.post_wr(port, wr, PostedWr { what, bounce }, Doorbell::Now);
        if posted && copied {
            if let Some(proto) = &mut self.proto {
                proto.handle_sent(op, len.into());
            }
        } else if !posted && !copied {
            self.sender.take_back(op);
        } else if posted && sent == EagerSend::NoRoom {
            self.sender.await_room(op);
        }
        self.counters.tx_inline += u64::from(len);
    }
}

/// Copies a range of a list with many pieces to memory of the port's. None if there is none.
fn gather(port: &mut dyn Port, iov: &IoVec, off: u64, len: u32) -> Option<Buf> {
    let buf = port.alloc(usize::try_from(len).ok()?).ok()?;
    let mut at = 0;
    iov.for_range(off, len.into(), |piece, from, n| {
        piece.seg.copy_to(from, &buf.seg, at, n);
        at += n;
    });
    Some(buf)
}
