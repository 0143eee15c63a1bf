//! Frames over a [`Pipe`]: gathered on the way out, taken apart on the way in.
//!
//! The sender of files must receive answers even while it waits for a send to
//! complete: else both sides could wait for the other to read. Answers are small,
//! and their number is bounded by that of the offers, so the sender copies them
//! aside at once ([`Intake::Copy`]). The receiver of files gets bulk data: it leaves
//! the bytes in the registered buffers they arrived in, and hashes and writes them
//! from there ([`Intake::Place`]). A buffer is posted again when the last borrower of
//! its bytes has let go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::NetError;
use super::lent::{Lent, Loan};
use super::pipe::{Buffer, Happened, Pipe, RECVS};
use crate::error::CpError;
use crate::wire::frame::{Frame, HEADER, Head, decode, parse_head};

mod out;

mod busy;

use busy::Signs;

/// How often a waiting thread looks at the stop flag.
const TICK: Duration = Duration::from_millis(200);
/// How long a client waits for a server that sends nothing.
const CLIENT_IDLE: Duration = Duration::from_secs(900);
/// Most bytes of answers that a sender of files keeps. A window of them fits many times.
const MAX_ASIDE: usize = 64 << 20;
/// Bytes sent after which the sender dequeues events, which costs system calls. If no send is
/// under way then, it sends what it has gathered, so that the other side has work.
const WORTH_A_LOOK: usize = 64 << 10;

/// Where received bytes stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intake {
    Copy,
    Place,
}

/// A connection that speaks frames.
pub(crate) struct Channel {
    pipe: Pipe,
    peer: String,
    stop: Arc<AtomicBool>,
    intake: Intake,
    free: Vec<Buffer>,
    in_flight: usize,
    /// The buffer that is being filled, and its bytes so far.
    filling: Option<(Buffer, usize)>,
    /// Bytes copied aside; they came before those in `placed`.
    aside: Vec<u8>,
    aside_at: usize,
    placed: VecDeque<Placed>,
    /// Receives that are posted, and where lent buffers come back.
    posted: usize,
    home: (Sender<Buffer>, Receiver<Buffer>),
    life: Life,
    /// How long a wait without a deadline may last.
    idle: Duration,
    happened: Vec<Happened>,
    scratch: Vec<u8>,
    /// Bytes queued since the last look.
    since: usize,
    signs: Signs,
}

/// What can still be done with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The peer sends no more.
    Eof,
    /// It failed, which was reported once, or was closed: nothing comes and nothing leaves.
    Over,
}

/// A received buffer, and the range of bytes that were not taken yet.
struct Placed {
    buffer: Arc<Loan>,
    at: usize,
    end: usize,
}

impl Placed {
    fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.at..self.end]
    }
}

impl Channel {
    pub(crate) fn new(
        mut pipe: Pipe,
        peer: String,
        stop: Arc<AtomicBool>,
    ) -> Result<Channel, CpError> {
        let (free, recvs) = pipe.buffers()?;
        let posted = recvs.len();
        let idle = CLIENT_IDLE;
        for b in recvs {
            // The peer may have cut the connection already.
            pipe.recv(b).map_err(|cause| CpError::Lost { peer: peer.clone(), cause })?;
        }
        Ok(Channel {
            pipe,
            peer,
            stop,
            intake: Intake::Copy,
            free,
            in_flight: 0,
            filling: None,
            aside: Vec::new(),
            aside_at: 0,
            placed: VecDeque::new(),
            posted,
            home: channel(),
            life: Life::Open,
            idle,
            happened: Vec::new(),
            scratch: Vec::new(),
            since: 0,
            signs: Signs::Never,
        })
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// From now on a wait without a deadline ends after this time without an event.
    pub(crate) fn set_idle(&mut self, idle: Duration) {
        self.idle = idle;
    }

    /// Chooses where received bytes stay. Bytes that have come already keep their order.
    pub(crate) fn set_intake(&mut self, intake: Intake) -> Result<(), CpError> {
        self.intake = intake;
        if intake == Intake::Copy {
            while let Some(p) = self.placed.pop_front() {
                self.aside.extend_from_slice(p.bytes());
            }
        }
        self.collect()
    }

    fn lost(&mut self, cause: NetError) -> CpError {
        self.life = Life::Over;
        CpError::Lost { peer: self.peer.clone(), cause }
    }
    /// An error on a connection that is over: nothing is posted or awaited there.
    fn alive(&self) -> Result<(), CpError> {
        if self.life == Life::Over { Err(self.vanished()) } else { Ok(()) }
    }

    fn vanished(&self) -> CpError {
        CpError::Vanished { peer: self.peer.clone() }
    }

    // ---- in ----

    fn available(&self) -> usize {
        self.aside.len() - self.aside_at + self.placed.iter().map(|p| p.end - p.at).sum::<usize>()
    }

    /// Copies bytes from `skip` on without taking them; false if they have
    /// not all come yet.
    fn peek(&self, mut skip: usize, out: &mut [u8]) -> bool {
        let mut filled = 0;
        let placed = self.placed.iter().map(Placed::bytes);
        for part in std::iter::once(&self.aside[self.aside_at..]).chain(placed) {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let part = &part[skip..];
            skip = 0;
            let n = part.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&part[..n]);
            filled += n;
            if filled == out.len() {
                return true;
            }
        }
        filled == out.len()
    }

    /// The next frame if all of it is there (of `Data`: its header).
    fn ready_frame(&mut self) -> Result<Option<Frame>, CpError> {
        loop {
            match self.any_frame()? {
                // Its arrival is all that it says: the peer is alive.
                Some(Frame::Busy) => {}
                other => return Ok(other),
            }
        }
    }

    fn any_frame(&mut self) -> Result<Option<Frame>, CpError> {
        // Checked here too: while data keep coming, `wait` is not called.
        if self.stop.load(Ordering::Relaxed) {
            return Err(CpError::Interrupted);
        }
        let mut header = [0; HEADER];
        if !self.peek(0, &mut header) {
            return Ok(None);
        }
        let head: Head = parse_head(header)?;
        if self.available() < HEADER + head.body {
            return Ok(None);
        }
        let mut body = std::mem::take(&mut self.scratch);
        body.clear();
        body.resize(head.body, 0);
        self.peek(HEADER, &mut body);
        let frame = decode(head, &body);
        self.scratch = body;
        self.consume(HEADER + head.body)?;
        Ok(Some(frame?))
    }

    /// The next frame if it has come. Never waits; dequeues events only after [`WORTH_A_LOOK`]
    /// bytes were sent, as that costs system calls.
    pub(crate) fn try_frame(&mut self) -> Result<Option<Frame>, CpError> {
        if let Some(f) = self.ready_frame()? {
            return Ok(Some(f));
        }
        if self.since < WORTH_A_LOOK {
            return Ok(None);
        }
        self.pump(Duration::ZERO)?;
        if self.in_flight == 0 {
            self.flush()?;
        }
        self.ready_frame()
    }

    /// Waits for the next frame. Gathered frames leave first.
    pub(crate) fn frame(&mut self) -> Result<Frame, CpError> {
        self.frame_within(None)
    }

    /// The same, where an answer is due.
    pub(crate) fn frame_within(&mut self, limit: Option<Duration>) -> Result<Frame, CpError> {
        self.frame_by(limit.map(|l| (Instant::now() + l, l)))
    }

    /// The same for one of several steps that together have a limit.
    pub(crate) fn frame_by(
        &mut self,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Frame, CpError> {
        loop {
            if let Some(f) = self.ready_frame()? {
                return Ok(f);
            }
            if self.life != Life::Open {
                return Err(self.vanished());
            }
            self.flush()?;
            self.wait(deadline)?;
        }
    }

    /// File data that have come: at least 1 byte and at `most` that many, where they were placed.
    /// Waits for the first. [`Self::consume`] follows.
    pub(crate) fn payload(&mut self, most: usize) -> Result<Lent, CpError> {
        while self.available() == 0 {
            if self.life != Life::Open {
                return Err(self.vanished());
            }
            self.flush()?;
            self.wait(None)?;
        }
        let aside = &self.aside[self.aside_at..];
        Ok(match self.placed.front() {
            Some(p) if aside.is_empty() => {
                Lent::Placed(Arc::clone(&p.buffer), p.at..p.at + most.min(p.end - p.at))
            }
            _ => Lent::Copied(aside[..most.min(aside.len())].to_vec()),
        })
    }

    /// Takes `n` bytes off the front; buffers without borrowers are posted again.
    pub(crate) fn consume(&mut self, mut n: usize) -> Result<(), CpError> {
        let aside = n.min(self.aside.len() - self.aside_at);
        self.aside_at += aside;
        n -= aside;
        if self.aside_at == self.aside.len() {
            self.aside.clear();
            self.aside_at = 0;
        }
        while let Some(front) = self.placed.front_mut() {
            let m = n.min(front.end - front.at);
            front.at += m;
            n -= m;
            if front.at < front.end {
                break;
            }
            self.placed.pop_front();
        }
        self.collect()
    }

    /// Posts the buffers that have come home.
    fn collect(&mut self) -> Result<(), CpError> {
        while self.posted + self.placed.len() < RECVS
            && let Ok(buffer) = self.home.1.try_recv()
        {
            self.receive_into(buffer)?;
        }
        Ok(())
    }

    /// Nothing can come before a buffer does that is lent: waits for one, but not for ever.
    /// True if there was need to.
    fn await_buffer(&mut self) -> Result<bool, CpError> {
        self.collect()?;
        if self.posted > 0 || !self.placed.is_empty() || self.life != Life::Open {
            return Ok(false);
        }
        if let Ok(buffer) = self.home.1.recv_timeout(TICK) {
            self.receive_into(buffer)?;
        }
        Ok(true)
    }

    /// A frame that came in small pieces fills every buffer and is not whole yet: it is copied
    /// aside, so that the rest of it has somewhere to go. Frames have a limited length.
    fn make_room(&mut self) -> Result<(), CpError> {
        if self.posted == 0 && self.life == Life::Open {
            while let Some(p) = self.placed.pop_front() {
                self.aside.extend_from_slice(p.bytes());
            }
        }
        self.collect()
    }

    fn receive_into(&mut self, buffer: Buffer) -> Result<(), CpError> {
        if self.life != Life::Open {
            return Ok(());
        }
        self.pipe.recv(buffer).map_err(|e| self.lost(e))?;
        self.posted += 1;
        Ok(())
    }

    // ---- events ----

    /// Waits for something to happen, but not for ever: where no `deadline` is given, for as
    /// long as the connection may be idle.
    fn wait(&mut self, deadline: Option<(Instant, Duration)>) -> Result<(), CpError> {
        let mut since = Instant::now();
        self.make_room()?;
        loop {
            self.alive()?;
            if self.stop.load(Ordering::Relaxed) {
                return Err(CpError::Interrupted);
            }
            let (at, limit) = deadline.unwrap_or((since + self.idle, self.idle));
            if Instant::now() >= at {
                return Err(CpError::Silent { peer: self.peer.clone(), seconds: limit.as_secs() });
            }
            if self.await_buffer()? {
                // This side's disk was waited for, not the peer.
                since = Instant::now();
            }
            if self.pump(TICK)? {
                return Ok(());
            }
        }
    }

    /// Takes in what happened; true if anything did.
    fn pump(&mut self, timeout: Duration) -> Result<bool, CpError> {
        self.since = 0;
        let mut happened = std::mem::take(&mut self.happened);
        let waited = self.pipe.wait(&mut happened, timeout);
        let any = !happened.is_empty();
        let mut done = Ok(());
        for h in happened.drain(..) {
            done = done.and(self.take_in(h));
        }
        self.happened = happened;
        if let Err(e) = waited {
            return Err(self.last_words().unwrap_or_else(|| self.lost(e)));
        }
        done?;
        Ok(any)
    }

    /// A peer that gives up says why before it goes. That reason explains more than the end of the
    /// connection. Bytes set aside are always those of whole frames.
    fn last_words(&mut self) -> Option<CpError> {
        while self.intake == Intake::Copy {
            match self.ready_frame() {
                Ok(Some(Frame::Refuse { text })) => {
                    return Some(CpError::Refused { peer: self.peer.clone(), reason: text });
                }
                Ok(Some(_)) => {}
                _ => break,
            }
        }
        None
    }

    fn take_in(&mut self, happened: Happened) -> Result<(), CpError> {
        match happened {
            Happened::Sent(buffer) => {
                self.in_flight -= 1;
                self.free.push(buffer);
            }
            Happened::Received(buffer, n) if self.intake == Intake::Copy => {
                self.posted -= 1;
                // There may always be half a frame left, so never wait for none.
                self.aside.drain(..self.aside_at);
                self.aside_at = 0;
                if self.aside.len() + n > MAX_ASIDE {
                    return Err(CpError::Protocol("answers to questions never asked".into()));
                }
                self.aside.extend_from_slice(&buffer[..n]);
                self.receive_into(buffer)?;
            }
            Happened::Received(buffer, n) => {
                self.posted -= 1;
                let buffer = Loan::new(buffer, &self.home.0);
                self.placed.push_back(Placed { buffer, at: 0, end: n });
            }
            Happened::Eof if self.life == Life::Open => self.life = Life::Eof,
            Happened::Eof => {}
        }
        Ok(())
    }
}
