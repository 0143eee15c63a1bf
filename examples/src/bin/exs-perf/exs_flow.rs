//! Streams of messages over EXS connections: one event loop for all connections of a thread.
//!
//! Registered buffers, `depth` of them in flight on each connection, and twice as many
//! receives posted ahead, as a program does that cares for speed: while one message is
//! taken, the next finds where to go. Every message is an operation, and has an event. What the
//! events of one dequeue ask for is posted together, in one batch for each connection.

use exs::{Buffer, Event, EventKind, EventQueue, QueueOptions, RecvFlags, Socket, Token};
use exs_tools::args::Kind;
use exs_tools::fail::{During, Failure};
use exs_tools::registered::{buffers, dequeue};
use quanta::Instant;
use std::net::Shutdown;
use std::time::Duration;

use crate::crew::{Outcome, Part};
use crate::job::Job;

/// Receives for each message that may be in flight.
pub(crate) const AHEAD: usize = 2;

/// An event queue, and what it takes to read its events.
pub(crate) struct Desk {
    queue: EventQueue,
    events: Vec<Event>,
    flags: RecvFlags,
    patience: Duration,
}

impl Desk {
    /// For `operations` at a time.
    pub(crate) fn new(job: &Job, operations: usize) -> Result<Desk, Failure> {
        let options = QueueOptions::default().with_depth(operations).with_wait(job.wait.into());
        let queue = EventQueue::with_options(&options).during("event queue")?;
        let flags = match job.kind {
            Kind::Stream => RecvFlags::WAITALL,
            Kind::Seqpacket => RecvFlags::NONE,
        };
        Ok(Desk { queue, events: Vec::with_capacity(64), flags, patience: job.patience() })
    }

    pub(crate) fn send(&self, socket: &Socket, token: Token, b: Buffer) -> Result<(), Failure> {
        socket.send(&self.queue, token, b).during("send")
    }

    pub(crate) fn recv(&self, socket: &Socket, token: Token, b: Buffer) -> Result<(), Failure> {
        socket.recv(&self.queue, token, b, self.flags).during("recv")
    }

    pub(crate) fn end(&self, socket: &Socket, token: Token) -> Result<(), Failure> {
        socket.shutdown(&self.queue, token, Shutdown::Write).during("shutdown")
    }

    /// Waits for `min` events, and hands each to `f` as what it means.
    pub(crate) fn events(
        &mut self,
        min: usize,
        mut f: impl FnMut(&Desk, Token, News) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.events);
        dequeue(&self.queue, &mut events, min, Some(self.patience))?;
        for mut event in events.drain(..) {
            let token = event.token();
            let news = News::of(&mut event)?;
            f(self, token, news)?;
        }
        self.events = events;
        Ok(())
    }
}

/// What an event means.
pub(crate) enum News {
    Sent(Buffer),
    Received(Buffer),
    /// The other side has ended its direction.
    End,
    /// Our own end is on its way.
    Ended,
}

impl News {
    fn of(event: &mut Event) -> Result<News, Failure> {
        let (kind, bytes, eof) = (event.kind(), event.bytes(), event.eof());
        if let Some(error) = event.error() {
            return Err(Failure(format!("{kind:?}: {error}")));
        }
        match (kind, event.take_buffer()) {
            (EventKind::Send, Some(buffer)) => Ok(News::Sent(buffer)),
            (EventKind::Recv, Some(buffer)) if bytes == buffer.len() => Ok(News::Received(buffer)),
            (EventKind::Recv, Some(_)) if eof && bytes == 0 => Ok(News::End),
            (EventKind::Recv, Some(buffer)) => Err(Failure(format!(
                "a message of {} bytes ended after {bytes}: the other side has gone",
                buffer.len()
            ))),
            (EventKind::Shutdown, _) => Ok(News::Ended),
            (kind, _) => Err(Failure(format!("{kind:?} was not asked for"))),
        }
    }
}

/// Operations that are posted together.
type Batch = Vec<(Token, Buffer)>;

/// One connection.
struct Peer {
    socket: Socket,
    /// To be posted when all events are read.
    sends: Batch,
    receives: Batch,
    /// Buffers to send.
    spare: Vec<Buffer>,
    posted: u64,
    sent: u64,
    received: u64,
    /// We have ended our direction; and that is done.
    ending: bool,
    ended: bool,
    /// They have.
    end_seen: bool,
}

impl Peer {
    /// Posts what was collected.
    fn post(&mut self, desk: &Desk) -> Result<(), Failure> {
        while !self.sends.is_empty() {
            self.socket.send_batch(&desk.queue, &mut self.sends).during("send")?;
        }
        while !self.receives.is_empty() {
            let (queue, flags) = (&desk.queue, desk.flags);
            self.socket.recv_batch(queue, &mut self.receives, flags).during("recv")?;
        }
        Ok(())
    }
}

/// The connections of a thread.
pub(crate) struct Flow {
    desk: Desk,
    peers: Vec<Peer>,
    /// The connections that have something to be posted.
    due: Vec<usize>,
    sends: bool,
    receives: bool,
    size: usize,
    depth: usize,
    warm: u64,
    /// The client decides when it is over.
    is_client: bool,
}

impl Flow {
    pub(crate) fn new(job: &Job, sockets: Vec<Socket>, is_client: bool) -> Result<Flow, Failure> {
        let depth = job.depth as usize;
        // Sends, receives (or the one that waits for the end), and the end itself.
        let desk = Desk::new(job, sockets.len() * ((1 + AHEAD) * depth + 2))?;
        let (ours, theirs) = (job.client_sends(), job.server_sends());
        let (sends, receives) = if is_client { (ours, theirs) } else { (theirs, ours) };
        let spare = |socket| {
            Ok(Peer {
                socket,
                sends: Vec::with_capacity(depth),
                receives: Vec::with_capacity(AHEAD * depth),
                spare: if sends { buffers(depth, job.size)? } else { Vec::new() },
                posted: 0,
                sent: 0,
                received: 0,
                ending: false,
                ended: false,
                end_seen: false,
            })
        };
        let peers = sockets.into_iter().map(spare).collect::<Result<Vec<_>, Failure>>()?;
        let (size, warm) = (job.size, job.warm());
        let due = Vec::new();
        Ok(Flow { desk, peers, due, sends, receives, size, depth, warm, is_client })
    }

    /// Sends what may be sent, up to `limit` messages of each connection in all.
    fn fill(&mut self, limit: u64) -> Result<(), Failure> {
        for (token, peer) in (0..).map(Token).zip(&mut self.peers) {
            while peer.posted < limit
                && let Some(buffer) = peer.spare.pop()
            {
                peer.posted += 1;
                peer.sends.push((token, buffer));
            }
            peer.post(&self.desk)?;
        }
        Ok(())
    }

    /// Takes the events that are there, at least one. A buffer that comes back is used
    /// again at once, unless `limit` messages are sent.
    fn turn(&mut self, limit: u64) -> Result<(), Failure> {
        let Flow { desk, peers, due, receives, is_client, .. } = self;
        desk.events(1, |desk, token, news| {
            let at = usize::try_from(token.0).unwrap_or(usize::MAX);
            let Some(peer) = peers.get_mut(at) else {
                return Err(Failure(format!("an event of no connection: {token:?}")));
            };
            let idle = peer.sends.is_empty() && peer.receives.is_empty();
            match news {
                News::Sent(buffer) => {
                    peer.sent += 1;
                    if peer.posted < limit && !peer.ending {
                        peer.posted += 1;
                        peer.sends.push((token, buffer));
                    } else {
                        peer.spare.push(buffer);
                    }
                }
                News::Received(buffer) if *receives => {
                    peer.received += 1;
                    peer.receives.push((token, buffer));
                }
                News::Received(_) => {
                    return Err(Failure("the other side sends out of turn".to_owned()));
                }
                News::End => {
                    peer.end_seen = true;
                    if !*is_client && !peer.ending {
                        peer.ending = true;
                        peer.post(desk)?;
                        desk.end(&peer.socket, token)?;
                    } else if *is_client && !peer.ending {
                        return Err(Failure("the server has ended a connection".to_owned()));
                    }
                }
                News::Ended => peer.ended = true,
            }
            if idle && !(peer.sends.is_empty() && peer.receives.is_empty()) {
                due.push(at);
            }
            Ok(())
        })?;
        due.drain(..).try_for_each(|at| peers[at].post(desk))
    }
}

impl Part for Flow {
    fn warm_up(&mut self) -> Result<(), Failure> {
        // One that sends only waits for the other side's end.
        let (n, size) = if self.receives { (AHEAD * self.depth, self.size) } else { (1, 1) };
        for (token, peer) in (0..).map(Token).zip(&mut self.peers) {
            peer.receives.extend(buffers(n, size)?.into_iter().map(|buffer| (token, buffer)));
            peer.post(&self.desk)?;
        }
        let limit = if self.sends { self.warm } else { 0 };
        self.fill(limit)?;
        let (sends, receives, warm) = (self.sends, self.receives, self.warm);
        let is_warm = |p: &Peer| (!sends || p.sent == warm) && (!receives || p.received >= warm);
        while !self.peers.iter().all(is_warm) {
            self.turn(limit)?;
        }
        Ok(())
    }

    fn run(&mut self, until: Option<Instant>) -> Result<Outcome, Failure> {
        let before: Vec<_> = self.peers.iter().map(|p| (p.sent, p.received)).collect();
        if self.sends {
            self.fill(u64::MAX)?;
        }
        let mut running = self.is_client;
        let over = |p: &Peer| p.ended && p.end_seen && p.sent == p.posted;
        while running || !self.peers.iter().all(over) {
            self.turn(if self.sends { u64::MAX } else { 0 })?;
            if running && until.is_some_and(|end| Instant::now() >= end) {
                running = false;
                for (token, peer) in (0..).map(Token).zip(&mut self.peers) {
                    peer.ending = true;
                    self.desk.end(&peer.socket, token)?;
                }
            }
        }
        let ended = Instant::now();
        let moved = self.peers.iter().zip(before).map(|(p, b)| (p.sent - b.0, p.received - b.1));
        Ok(Outcome { moved: moved.collect(), round_trips: None, system_calls: None, ended })
    }
}
