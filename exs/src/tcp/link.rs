//! One TCP connection with its engine: bytes in, bytes out.
//!
//! Inbound, one recvmsg(2) takes the rest of the payload under way straight into
//! its destination, and what follows into the lookahead buffer that all links
//! share. How much lookahead to ask for is the art: all that the buffer has while
//! small messages come, so that one call brings hundreds of them; next to nothing
//! beyond the coming header while large payloads come, since what lands in the
//! lookahead must be copied.

use std::io;

use mio::net::TcpStream;

use crate::iwarp::{Gather, GatherChunk, IwarpEngine, MAX_CHUNKS, RxSource, TxPool, TxStep};
use crate::mem::{KeyTable, MAX_SGE, Sgl};
use crate::sys::{self, IoVec, IoVecMut};

/// Size of the lookahead buffer.
pub(super) const LOOKAHEAD: usize = 64 << 10;
/// The least that is asked for where a header is awaited.
const LOOKAHEAD_MIN: usize = 4 << 10;
/// Payload from which on a copy costs more than a further system call.
const BULK: usize = 4 << 10;
/// Bytes that one call of sendfile(2) is asked to move.
const FILE_STEP: usize = 1 << 20;

/// Whom a link works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A queue pair.
    Qp(u32),
    /// A listener: the request has not come yet.
    Greeting(u32),
    /// A listener and a connection request that waits for its answer.
    Asking { listener: u32, req: u32 },
    /// Nobody: last bytes leave (a reject, a TERMINATE), then it goes.
    Nobody,
}

/// A TCP connection with an engine.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) engine: IwarpEngine,
    pub(super) owner: Owner,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The doorbell was rung, and not all that it was rung for has left.
    pub(super) rung: bool,
    /// The reactor saw an end or an error: read on until it shows.
    pub(super) hup: bool,
    /// No bytes will come any more.
    pub(super) eof: bool,
    /// The connection broke.
    pub(super) broken: bool,
    /// A write failed with this errno; reading goes on to the end.
    send_error: Option<i32>,
    /// The last write was cut short, by a full socket or by memory that cannot be read.
    pub(super) cut_short: bool,
    /// It is on the list of those that are tried again (`doubts`).
    pub(super) doubted: bool,
    /// Our side was ended.
    pub(super) shut: bool,
    /// To be closed by a reset.
    pub(super) reset: bool,
    /// Nothing has moved since the last sweep.
    pub(super) idle: bool,
    /// On the ready list.
    pub(super) queued: bool,
    /// Waits for SRQ buffers.
    pub(super) stalled: bool,
    /// The SRQ that has it in its list of those that hold a buffer.
    pub(super) begun: Option<u32>,
    /// Start-up ran out of time.
    pub(super) timed_out: bool,
    /// Received, but not taken by the engine for lack of SRQ buffers.
    stash: Vec<u8>,
    /// Bytes of lookahead to ask for next.
    look: usize,
    /// Bytes sent, for the deadline of an orderly close.
    pub(super) sent: u64,
}

/// What a pass over a link left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    /// The budget ran out: there is more to do at once.
    pub(super) more: bool,
    /// Bytes came.
    pub(super) received: usize,
}

/// How the bytes that come have ended.
pub(super) struct End(io::Result<usize>);

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

/// Why a connection broke. TCP has two names for a reset: EPIPE once the peer has ended
/// its side (the end of a killed process, most likely), ECONNRESET before. Which of them
/// we see depends on whether our read or our write comes first, and to the program there is
/// no difference.
fn broken(e: &io::Error) -> i32 {
    match errno(e) {
        libc::EPIPE => libc::ECONNRESET,
        errno => errno,
    }
}

impl Link {
    pub(super) fn new(stream: TcpStream, engine: IwarpEngine, owner: Owner) -> Link {
        Link {
            stream,
            engine,
            owner,
            reset: false,
            // Try at once: an edge may have passed before we listened for it.
            readable: true,
            writable: true,
            rung: false,
            hup: false,
            eof: false,
            broken: false,
            send_error: None,
            cut_short: false,
            doubted: false,
            shut: false,
            idle: false,
            queued: false,
            stalled: false,
            begun: None,
            timed_out: false,
            stash: Vec::new(),
            look: LOOKAHEAD_MIN,
            sent: 0,
        }
    }

    /// Records that the connection broke.
    fn fail(&mut self, e: &io::Error) {
        self.eof = true;
        self.broken = true;
        (self.readable, self.writable) = (false, false);
        self.engine.handle_broken(broken(e));
    }

    /// Reads and handles up to about `budget` bytes.
    pub(super) fn receive(
        &mut self,
        lookahead: &mut [u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
        budget: usize,
    ) -> Pass {
        let mut pass = Pass::default();
        if !self.unstash(keys, &mut srq) {
            if self.hup && !self.broken {
                self.look_for_error();
            }
            return pass;
        }
        while self.readable && !self.eof && !self.stalled {
            if pass.received >= budget {
                pass.more = true;
                break;
            }
            let n = self.receive_once(lookahead, keys, &mut srq);
            pass.received += n;
        }
        pass
    }

    /// Offers the engine what it could not take before. True if all is taken.
    fn unstash(&mut self, keys: &mut KeyTable, srq: &mut Option<&mut dyn RxSource>) -> bool {
        if !self.stalled {
            return true;
        }
        let source = srq.as_mut().map(|s| &mut **s as &mut dyn RxSource);
        let result = self.engine.handle_received(0, &self.stash, keys, source);
        self.stash.drain(..result.consumed);
        self.stalled = result.stalled || !self.stash.is_empty();
        if !self.stalled {
            // Idle links hold no buffers.
            self.stash = Vec::new();
        }
        !self.stalled
    }

    /// While a link waits for buffers it reads nothing; a reset shows all the same.
    fn look_for_error(&mut self) {
        if let Ok(Some(e)) = self.stream.take_error() {
            self.fail(&e);
        } else if self.send_error.is_some() {
            self.end_of_file();
        }
    }

    /// One recvmsg(2). Returns the bytes it brought.
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
            // More pieces than fit: what follows them must not come before them.
            (false, _) => 0,
            (true, BULK..) => {
                self.look = LOOKAHEAD_MIN;
                self.engine.rx_hint().min(lookahead.len())
            }
            (true, _) => self.look,
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
            self.look = (look * 2).min(lookahead.len());
        }
        if n > 0 {
            self.take_in(placed, &lookahead[..ahead], keys, srq);
        }
        n
    }

    /// recvmsg(2) for `asked` bytes; 0 if none came, and what that means is noted.
    fn read(&mut self, vecs: &mut [IoVecMut<'_>], asked: usize) -> usize {
        let read = sys::receive(&self.stream, vecs);
        self.note_read(read, asked)
    }

    fn note_read(&mut self, read: io::Result<usize>, asked: usize) -> usize {
        let n = match read {
            Ok(0) => {
                self.end_of_file();
                return 0;
            }
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return 0;
            }
            Err(e) => {
                self.fail(&e);
                return 0;
            }
        };
        // Fewer bytes than asked for: no more are there, and new ones will make
        // a new edge. Unless the end was reported, which makes no further edge.
        if n < asked && !self.hup {
            self.readable = false;
        }
        n
    }

    /// A message may be put behind what leaves next.
    pub(super) fn can_send_eager(&self) -> bool {
        self.writable && !self.broken && !self.shut && self.send_error.is_none()
    }

    /// Hands the engine what came: `placed` bytes where it said, then these.
    fn take_in(
        &mut self,
        placed: usize,
        ahead: &[u8],
        keys: &mut KeyTable,
        srq: &mut Option<&mut dyn RxSource>,
    ) {
        let source = srq.as_mut().map(|s| &mut **s as &mut dyn RxSource);
        let result = self.engine.handle_received(placed, ahead, keys, source);
        if result.stalled || result.consumed < ahead.len() {
            self.stalled = true;
            self.stash.extend_from_slice(&ahead[result.consumed..]);
        }
    }

    /// Reads into the lookahead what may be messages for the short way: how many bytes.
    pub(super) fn look_ahead(&mut self, lookahead: &mut [u8]) -> usize {
        let quiet = self.readable && !self.eof && !self.stalled && self.send_error.is_none();
        if !quiet || !self.engine.can_recv_eager() {
            return 0;
        }
        let look = self.look.min(lookahead.len());
        let n = self.read(&mut [IoVecMut::new(&mut lookahead[..look])], look);
        if n == self.look {
            self.look = (look * 2).min(LOOKAHEAD);
        }
        n
    }

    /// Reads on behind a message that is not whole. How many bytes came, or the end of the
    /// connection, which is to be noted ([`Link::note_end`]) when what came before it is
    /// dealt with.
    pub(super) fn look_further(&mut self, lookahead: &mut [u8]) -> Result<usize, End> {
        let asked = lookahead.len();
        match sys::receive(&self.stream, &mut [IoVecMut::new(lookahead)]) {
            Ok(0) => Err(End(Ok(0))),
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(End(Err(e))),
            read => Ok(self.note_read(read, asked)),
        }
    }

    pub(super) fn note_end(&mut self, end: End) {
        self.note_read(end.0, 0);
    }

    /// The long way for what is left of the lookahead.
    pub(super) fn leave_ahead(
        &mut self,
        ahead: &[u8],
        keys: &mut KeyTable,
        mut srq: Option<&mut dyn RxSource>,
    ) {
        self.take_in(0, ahead, keys, &mut srq);
    }

    /// The peer ended its side, or, if a write failed before, the connection broke:
    /// the kernel tells an error once, and then speaks of the end.
    fn end_of_file(&mut self) {
        self.eof = true;
        match self.send_error {
            Some(errno) => {
                self.broken = true;
                self.engine.handle_broken(errno);
            }
            None => self.engine.handle_eof(),
        }
    }

    /// Sends what there is, up to about `budget` bytes. True if there is more.
    ///
    /// WRs that were posted without a doorbell go along with what leaves anyway, but
    /// are no reason to send: most likely something better is just coming.
    pub(super) fn transmit(&mut self, pool: &mut TxPool, budget: usize) -> bool {
        let mut sent = 0;
        while self.writable && !self.broken && !self.shut && (self.rung || self.engine.owes()) {
            if sent >= budget {
                return true;
            }
            match self.transmit_once(pool) {
                Some(n) => sent += n,
                None => break,
            }
        }
        // What is left to read after a failed write must be read now.
        self.send_error.is_some() && self.readable && !self.eof
    }

    /// One step of the engine's. `None` if there is nothing to do, or no room.
    fn transmit_once(&mut self, pool: &mut TxPool) -> Option<usize> {
        let (result, asked, file) = match self.engine.poll_tx(pool) {
            TxStep::Idle => {
                // What is left waits for the peer, and is still rung for.
                self.rung &= self.engine.has_unsent();
                return None;
            }
            TxStep::Shutdown => {
                self.shut = true;
                // Fails only if the connection is gone, which reading will tell.
                let _ = sys::shutdown_write(&self.stream);
                return Some(0);
            }
            TxStep::Gather(gather) => {
                let (result, len) = write_gathered(&self.stream, &gather);
                (result, len, false)
            }
            TxStep::File { file, offset, len, .. } => {
                let len = len.min(FILE_STEP);
                (sys::send_file(&self.stream, file, offset, len), len, true)
            }
        };
        match result {
            Ok(n) if file => {
                self.sent += n as u64;
                // Less than asked is no full socket here: sendfile(2) also stops at
                // the end of the file, and the next call tells.
                self.engine.handle_file_sent(n);
                Some(n)
            }
            Ok(n) => {
                self.sent += n as u64;
                self.engine.handle_sent(n);
                // Most likely the socket is full, and there will be an edge when it is not.
                self.writable = n == asked;
                self.cut_short = n < asked;
                Some(n)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                (self.writable, self.cut_short) = (false, false);
                None
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Some(0),
            Err(e) if file && !gone(&e) => {
                self.engine.handle_file_error(errno(&e));
                Some(0)
            }
            Err(e) => {
                self.fail_sending(&e);
                None
            }
        }
    }

    /// A failed write. Bytes that the peer sent before the connection broke may
    /// still wait to be read, its TERMINATE among them, which says more than the error
    /// does: so note that, and read to the end. If it is not the connection that broke
    /// (EFAULT: the program took away what it sends) no end would come: we end it.
    fn fail_sending(&mut self, e: &io::Error) {
        let ours = !gone(e);
        if self.eof || ours {
            self.reset |= ours;
            return self.fail(e);
        }
        self.writable = false;
        self.send_error = Some(broken(e));
        (self.readable, self.hup) = (true, true);
    }
}

/// One gathered write: what came of it, and the bytes that it was for.
fn write_gathered(stream: &TcpStream, gather: &Gather<'_>) -> (io::Result<usize>, usize) {
    // Most small messages are one piece: no table of 2 KiB for these.
    let (mut one, mut many);
    let vecs: &mut [IoVec<'_>] = if gather.most() == 1 {
        one = [IoVec::EMPTY; 1];
        &mut one
    } else {
        many = [IoVec::EMPTY; MAX_CHUNKS];
        &mut many
    };
    let (mut count, mut len) = (0, 0);
    gather.for_each(&mut |chunk| {
        let Some(vec) = vecs.get_mut(count) else { return };
        *vec = match chunk {
            GatherChunk::Bytes(bytes) => IoVec::new(bytes),
            GatherChunk::Memory { seg, off, len } => seg.io_vec(off, len),
        };
        len += vec.len();
        count += 1;
    });
    let flags = sys::TcpSendFlags { more: gather.more, end_of_record: gather.alone };
    (sys::send(stream, &vecs[..count], flags), len)
}

/// True if an error of a write is the connection's, not that of the memory or the file.
fn gone(e: &io::Error) -> bool {
    matches!(
        errno(e),
        libc::EPIPE
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ETIMEDOUT
            | libc::ENOTCONN
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ENOBUFS
    )
}
