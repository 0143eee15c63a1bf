//! One TCP connection with its engine: bytes in, bytes out.
//!
//! Inbound, one recvmsg(2) takes the rest of the current payload straight into its destination, and
//! what follows into the lookahead buffer that all links share. The size of the lookahead follows
//! the traffic. While small messages come, it is all that the buffer has, so that one call brings
//! hundreds of them. While large payloads come, it is little more than the next header, since
//! everything that lands in the lookahead must be copied.

use std::io;
use std::net::SocketAddr;

use super::attend::Attendant;
use super::directions::{Ending, Inbound, Intake, LOOKAHEAD_MIN, Outbound};
use super::group::{DialPlace, HelloSniffer, LinkStream};
use super::short_write::ShortWrite;
use super::write::{broken_errno, errno, is_connection_error, write_gathered};
use crate::driver::{LinkBase, LinkOwner};
use crate::iwarp::{IwarpEngine, RxSource, SendStep, TxPool};
use crate::mem::{KeyTable, MAX_SGE, Sgl};
use crate::rnic::Ready;
use crate::sys::{self, IoVecMut};

/// Bytes of the lookahead buffer.
pub(super) const LOOKAHEAD: usize = 64 << 10;
/// Bytes of payload from which on a copy costs more than another system call.
pub(super) const BULK: usize = 4 << 10;
/// Bytes that one sendfile(2) is asked to move.
const FILE_STEP: usize = 1 << 20;

/// A TCP connection with an engine.
pub struct SoftLink {
    /// The driver's part. `stalled`: it waits for receives of its SRQ.
    pub(super) base: LinkBase,
    pub(super) stream: LinkStream,
    /// The address that was dialed, and counts for link groups; None: the link was accepted.
    pub(super) dialed: Option<SocketAddr>,
    /// The place of its dial among those that go on a few at a time, until it is established.
    pub(super) place: Option<DialPlace>,
    pub(super) sniffer: HelloSniffer,
    /// Our address, and the peer's.
    pub(super) addrs: (SocketAddr, SocketAddr),
    pub(super) engine: IwarpEngine,
    /// The socket's readiness: there may be bytes to read, room to write, or an end or error that no
    /// read has shown yet.
    pub(super) ready: Ready,
    pub(super) watched: Watched,
    pub(super) inbound: Inbound,
    pub(super) intake: Intake,
    pub(super) outbound: Outbound,
    pub(super) short_write: ShortWrite,
    pub(super) ending: Ending,
    pub(super) attendant: Attendant,
    /// Nothing has moved since the last look for idle links.
    pub(super) idle: bool,
}

/// What the reactor reports of a link. Edges that passed before the registration are reported with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watched {
    /// Nothing: it is not registered.
    Nothing,
    /// Bytes, and the end. The socket has never been full.
    Input,
    /// Room to write, too.
    Everything,
}

/// What a call of `receive` achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadOutcome {
    /// The budget ran out: there may be more to read at once.
    pub(super) more: bool,
    /// Bytes that came.
    pub(super) received: usize,
}

/// The end of what comes: end of file, or an error.
pub(super) struct ReadEnd(io::Result<usize>);

impl SoftLink {
    /// A link that no reactor watches yet. `addrs`: ours, and the peer's. `readable`: bytes may have
    /// come already.
    pub(super) fn new(
        stream: LinkStream,
        addrs: (SocketAddr, SocketAddr),
        engine: IwarpEngine,
        owner: LinkOwner,
        readable: bool,
    ) -> SoftLink {
        SoftLink {
            base: LinkBase::new(owner),
            stream,
            dialed: None,
            place: None,
            sniffer: HelloSniffer::Off,
            addrs,
            engine,
            ready: Ready { readable, writable: true, hup: false },
            watched: Watched::Nothing,
            inbound: Inbound::Open,
            intake: Intake::new(addrs.0.ip() == addrs.1.ip()),
            outbound: Outbound::default(),
            short_write: ShortWrite::default(),
            ending: Ending::Orderly,
            attendant: Attendant::default(),
            idle: false,
        }
    }

    /// What the reactor must report. A socket that was full once is watched for room from then on.
    #[inline]
    pub(super) fn needs(&self) -> Watched {
        if self.ready.writable { Watched::Input } else { Watched::Everything }
    }

    /// Tells the engine the size of a segment if FPDUs must fit it. Those between two ends of EXS need
    /// not, and a system call is saved.
    pub(super) fn fit_segments(&mut self) {
        if self.engine.must_fit_segments()
            && let Some(stream) = self.stream.own()
            && let Ok(mss @ 1..) = sys::max_segment(&**stream)
        {
            self.engine.set_mss(mss);
        }
    }

    /// True if nothing is under way but the next message.
    pub(super) fn rests(&self) -> bool {
        let Some(stream) = self.stream.own() else { return false };
        let read = self.inbound == Inbound::Open && self.intake.rests() && !self.ready.hup;
        let wrote = self.outbound.rests() && !self.short_write.cut && stream.may_write();
        let whole = self.sniffer == HelloSniffer::Off && self.ending == Ending::Orderly;
        let alone = self.place.is_none() && self.attendant.is_away();
        read && wrote && whole && alone && self.engine.rests()
    }

    /// Marks the connection as broken.
    fn fail(&mut self, e: &io::Error) {
        self.inbound = Inbound::Broken;
        (self.ready.readable, self.ready.writable) = (false, false);
        self.engine.handle_broken(broken_errno(e));
    }

    /// True if there may be bytes, and no thread that attends the link reads them.
    pub(super) fn may_read(&self) -> bool {
        self.ready.readable && !self.attendant.reads
    }

    /// Reads and handles up to about `budget` bytes.
    pub(super) fn receive(
        &mut self,
        lookahead: &mut [u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
        budget: usize,
    ) -> ReadOutcome {
        let mut pass = ReadOutcome::default();
        if !self.unstash(keys, &mut srq) {
            if self.ready.hup && self.inbound != Inbound::Broken {
                self.check_for_error();
            }
            self.take_stream_end();
            return pass;
        }
        self.take_stream_end();
        while self.may_read() && self.inbound.is_readable() && !self.base.stalled {
            if pass.received >= budget {
                pass.more = true;
                break;
            }
            let n = self.receive_once(lookahead, keys, &mut srq);
            pass.received += n;
        }
        pass
    }

    /// Offers the engine the bytes that it could not take before. True if none are left.
    fn unstash(&mut self, keys: &mut KeyTable, srq: &mut Option<&mut dyn RxSource>) -> bool {
        if !self.base.stalled {
            return true;
        }
        let source = srq.as_mut().map(|s| &mut **s as &mut dyn RxSource);
        let result = self.engine.handle_received(0, &self.intake.stash, keys, source);
        self.intake.stash.drain(..result.consumed);
        self.base.stalled = result.stalled || !self.intake.stash.is_empty();
        if !self.base.stalled {
            // Idle links hold no memory.
            self.intake.stash = Vec::new();
        }
        !self.base.stalled
    }

    /// Looks for a reset on a link that reads nothing, since it waits for receives.
    fn check_for_error(&mut self) {
        if let Some(stream) = self.stream.own()
            && let Ok(Some(e)) = stream.take_error()
        {
            self.fail(&e);
        } else if let Inbound::Draining(_) = self.inbound {
            self.end_of_file();
        }
    }

    /// One recvmsg(2). Returns the bytes that it brought.
    fn receive_once(
        &mut self,
        lookahead: &mut [u8],
        keys: &mut KeyTable,
        srq: &mut Option<&mut dyn RxSource>,
    ) -> usize {
        let mut direct = Sgl::new();
        let mut whole = true;
        self.engine.rx_direct(&mut |seg, off, len| {
            let piece = seg.slice(off, len).ok();
            whole &= piece.is_some_and(|p| direct.push(p).is_ok());
        });
        let wanted = direct.len();
        let look = match (whole, wanted) {
            // Not all pieces fit the call, so nothing behind them may be read yet.
            (false, _) => 0,
            (true, BULK..) => {
                self.intake.lookahead_size = LOOKAHEAD_MIN;
                self.engine.rx_hint().min(lookahead.len())
            }
            (true, _) => self.intake.lookahead_size,
        };
        let mut vecs = [IoVecMut::EMPTY; MAX_SGE + 1];
        let mut count = 0;
        for seg in direct.iter() {
            vecs[count] = seg.io_vec_mut(0, seg.len());
            count += 1;
        }
        if look > 0 {
            vecs[count] = IoVecMut::new(&mut lookahead[..look]);
            count += 1;
        }
        let n = self.read(&mut vecs[..count], wanted + look);
        let placed = n.min(wanted);
        let ahead = n - placed;
        if look > 0 && ahead == look && wanted < BULK {
            self.intake.lookahead_size = (look * 2).min(lookahead.len());
        }
        if n > 0 {
            self.deliver(placed, &lookahead[..ahead], keys, srq);
        }
        n
    }

    /// recvmsg(2) for `asked` bytes. Returns 0 if none came, and records why.
    fn read(&mut self, vecs: &mut [IoVecMut<'_>], asked: usize) -> usize {
        let Some(stream) = self.stream.own() else {
            // The group reads. `receive` asks for as long as the link counts as readable.
            self.ready.readable = false;
            return 0;
        };
        let read = sys::receive(&**stream, vecs);
        self.note_read(read, asked)
    }

    pub(super) fn note_read(&mut self, read: io::Result<usize>, asked: usize) -> usize {
        let n = match read {
            Ok(0) => {
                self.end_of_file();
                return 0;
            }
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.ready.readable = false;
                return 0;
            }
            Err(e) => {
                self.fail(&e);
                return 0;
            }
        };
        if self.intake.outgrows(n)
            && let Some(stream) = self.stream.own()
        {
            sys::roomy_within_host(&**stream, self.addrs.0, self.addrs.1);
        }
        // Fewer bytes than asked for: no more are there, and new ones make a new edge. An end that was
        // reported already makes no further edge.
        if n < asked && !self.ready.hup {
            self.ready.readable = false;
        }
        n
    }

    /// True if an eager message can be put behind what leaves next.
    pub(super) fn can_send_eager(&self) -> bool {
        self.ready.writable
            && self.inbound != Inbound::Broken
            && !self.outbound.shut
            && !matches!(self.inbound, Inbound::Draining(_))
    }

    /// Hands the engine what came: `placed` bytes in the places that it named, then `ahead`.
    fn deliver(
        &mut self,
        placed: usize,
        ahead: &[u8],
        keys: &mut KeyTable,
        srq: &mut Option<&mut dyn RxSource>,
    ) {
        if self.sniffer != HelloSniffer::Off && self.sniff(ahead) {
            return;
        }
        let source = srq.as_mut().map(|s| &mut **s as &mut dyn RxSource);
        let result = self.engine.handle_received(placed, ahead, keys, source);
        if result.stalled || result.consumed < ahead.len() {
            self.base.stalled = true;
            self.intake.stash.extend_from_slice(&ahead[result.consumed..]);
        }
    }

    /// Reads bytes that may be eager messages into the lookahead. Returns their number.
    pub(super) fn read_ahead(&mut self, lookahead: &mut [u8]) -> usize {
        let quiet = self.may_read() && self.inbound == Inbound::Open && !self.base.stalled;
        if !quiet || !self.engine.can_recv_eager() {
            return 0;
        }
        let look = self.intake.lookahead_size.min(lookahead.len());
        let n = self.read(&mut [IoVecMut::new(&mut lookahead[..look])], look);
        if n == self.intake.lookahead_size {
            self.intake.lookahead_size = (look * 2).min(LOOKAHEAD);
        }
        n
    }

    /// Reads more bytes of an incomplete message. Returns their number, or the end of the connection.
    /// The caller must pass the end to [`SoftLink::handle_read_end`] once the bytes before are handled.
    pub(super) fn read_more(&mut self, lookahead: &mut [u8]) -> Result<usize, ReadEnd> {
        let asked = lookahead.len();
        let Some(stream) = self.stream.own() else { return Ok(0) };
        match sys::receive(&**stream, &mut [IoVecMut::new(lookahead)]) {
            Ok(0) => Err(ReadEnd(Ok(0))),
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(ReadEnd(Err(e))),
            read => Ok(self.note_read(read, asked)),
        }
    }

    pub(super) fn handle_read_end(&mut self, end: ReadEnd) {
        self.note_read(end.0, 0);
    }

    /// Tells the engine that bytes have come to the places which it named.
    pub(super) fn deliver_placed(
        &mut self,
        placed: usize,
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) {
        self.deliver(placed, &[], keys, &mut srq);
    }

    /// Hands the engine what is left of the lookahead.
    pub(super) fn deliver_rest(
        &mut self,
        ahead: &[u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) {
        self.deliver(0, ahead, keys, &mut srq);
    }

    /// Handles the end of what comes. The peer ended its side; or the connection broke, if a write has
    /// failed before: the kernel reports an error once, and an end after that.
    fn end_of_file(&mut self) {
        match self.inbound {
            Inbound::Draining(errno) => {
                self.inbound = Inbound::Broken;
                self.engine.handle_broken(errno);
            }
            inbound => {
                if inbound != Inbound::Broken {
                    self.inbound = Inbound::Ended;
                }
                self.engine.handle_eof();
            }
        }
    }

    /// Sends up to about `budget` bytes. True if there is more to do at once.
    ///
    /// WRs without a doorbell leave together with others, but are no reason to send: most likely
    /// their doorbell comes soon, with more to send.
    pub(super) fn transmit(&mut self, pool: &mut TxPool, budget: usize) -> bool {
        let mut sent = 0;
        while self.ready.writable
            && self.inbound != Inbound::Broken
            && !self.outbound.shut
            && (self.outbound.doorbell_rung || self.engine.owes())
        {
            if sent >= budget {
                return true;
            }
            match self.transmit_once(pool) {
                Some(n) => sent += n,
                None => break,
            }
        }
        self.engine.release_batch(pool);
        // Everything left to read after a failed write must be read now.
        matches!(self.inbound, Inbound::Draining(_)) && self.ready.readable
    }

    /// One step of the engine. None if there is nothing to send, or no room.
    fn transmit_once(&mut self, pool: &mut TxPool) -> Option<usize> {
        let LinkStream::Own(stream) = &self.stream else { return None };
        if !stream.may_write() {
            return None;
        }
        if !self.outbound.remainder.is_empty() {
            return self.send_remainder();
        }
        let (result, asked, file) = match self.engine.poll_tx(pool) {
            SendStep::Idle => {
                // Work that remains waits for the peer; the doorbell still counts for it.
                self.outbound.doorbell_rung &= self.engine.has_unsent();
                return None;
            }
            SendStep::Shutdown => {
                self.outbound.shut = true;
                // Fails only if the connection is gone, and reads show that.
                let _ = sys::shutdown_write(&**stream);
                if self.ending == Ending::Answered && self.inbound == Inbound::Open {
                    self.end_of_file();
                }
                return Some(0);
            }
            SendStep::Gather(gather) => {
                let (result, len) = write_gathered(stream, &gather);
                (result, len, false)
            }
            SendStep::File { file, offset, len, .. } => {
                let len = len.min(FILE_STEP);
                // sendfile(2) has no flags.
                self.attendant.never_block(stream);
                (sys::send_file(&**stream, file, offset, len), len, true)
            }
        };
        match result {
            Ok(n) if file => {
                self.outbound.sent += n as u64;
                // A short count does not mean a full socket here: sendfile(2) also stops at the end of
                // the file, and the next call shows which it is.
                self.engine.handle_file_sent(n);
                Some(n)
            }
            Ok(n) => {
                self.outbound.sent += n as u64;
                self.engine.handle_sent(n);
                // The socket is most likely full, and there is an edge when it is not.
                self.ready.writable = n == asked;
                self.short_write.cut = n < asked;
                Some(n)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                (self.ready.writable, self.short_write.cut) = (false, false);
                None
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Some(0),
            Err(e) if file && !is_connection_error(&e) => {
                self.engine.handle_file_error(errno(&e));
                Some(0)
            }
            Err(e) => {
                self.fail_sending(&e);
                None
            }
        }
    }

    /// Handles a failed write. Bytes that the peer sent before the connection broke may still wait to
    /// be read. A TERMINATE among them says more than the error does. So the error is kept, and reads
    /// go on to the end. If the connection is not at fault (EFAULT: the program has unmapped what it
    /// sends), no end would come: then this side ends it.
    pub(super) fn fail_sending(&mut self, e: &io::Error) {
        let ours = !is_connection_error(e);
        if !self.inbound.is_readable() || ours {
            if ours {
                self.ending.reset();
            }
            return self.fail(e);
        }
        self.ready.writable = false;
        self.inbound = Inbound::Draining(broken_errno(e));
        (self.ready.readable, self.ready.hup) = (true, true);
    }
}
