//! Round trips over EXS connections: the client's side asks, the server's answers.

use exs::{Buffer, Socket, Token};
use exs_tools::fail::Failure;
use exs_tools::registered::buffers;
use hdrhistogram::Histogram;
use quanta::Instant;

use crate::crew::{Outcome, Part, histogram};
use crate::exs_flow::{Desk, News};
use crate::job::Job;

/// A connection on which we ask. A receive is always posted ahead: the next one while the
/// answer is on its way.
struct Question {
    socket: Socket,
    send: Option<Buffer>,
    recv: Option<Buffer>,
    /// Events of this round that are still to come: of the send, and of the answer.
    open: u8,
    rounds: u64,
    asked: Instant,
    ended: bool,
    end_seen: bool,
}

/// The client's part.
pub(crate) struct Ping {
    desk: Desk,
    peers: Vec<Question>,
    warm: u64,
}

impl Ping {
    pub(crate) fn new(job: &Job, sockets: Vec<Socket>) -> Result<Ping, Failure> {
        // A send, two receives, and the end.
        let desk = Desk::new(job, sockets.len() * 4)?;
        let mut peers = Vec::with_capacity(sockets.len());
        for (token, socket) in (0..).map(Token).zip(sockets) {
            let mut three = buffers(3, job.size)?;
            if let Some(first) = three.pop() {
                desk.recv(&socket, token, first)?;
            }
            let (send, recv, asked) = (three.pop(), three.pop(), Instant::now());
            let (ended, end_seen) = (false, false);
            peers.push(Question { socket, send, recv, open: 0, rounds: 0, asked, ended, end_seen });
        }
        Ok(Ping { desk, peers, warm: job.warm().min(200) })
    }

    /// Asks on all connections that have nothing open, until each has `rounds` or the time
    /// is up; then waits for the answers.
    fn rounds(
        &mut self,
        until: Option<Instant>,
        rounds: u64,
        mut samples: Option<&mut Histogram<u64>>,
    ) -> Result<(), Failure> {
        let mut now = Instant::now();
        for (token, peer) in (0..).map(Token).zip(&mut self.peers) {
            ask(&self.desk, peer, token, now)?;
        }
        let mut open = self.peers.len();
        // Both events of a round at once, if there is no other connection to serve.
        let min = if open == 1 { 2 } else { 1 };
        let Ping { desk, peers, .. } = self;
        while open > 0 {
            desk.events(min, |desk, token, news| {
                let at = usize::try_from(token.0).unwrap_or(usize::MAX);
                let Some(peer) = peers.get_mut(at) else {
                    return Err(Failure(format!("an event of no connection: {token:?}")));
                };
                match news {
                    News::Sent(buffer) => peer.send = Some(buffer),
                    News::Received(buffer) => peer.recv = Some(buffer),
                    News::End | News::Ended => {
                        return Err(Failure("the server has ended a connection".to_owned()));
                    }
                }
                peer.open -= 1;
                if peer.open > 0 {
                    return Ok(());
                }
                now = Instant::now();
                peer.rounds += 1;
                if let Some(samples) = samples.as_deref_mut() {
                    samples.saturating_record(nanos(now - peer.asked));
                }
                if peer.rounds < rounds && until.is_none_or(|end| now < end) {
                    ask(desk, peer, token, now)
                } else {
                    open -= 1;
                    Ok(())
                }
            })?;
        }
        Ok(())
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn ask(desk: &Desk, peer: &mut Question, token: Token, now: Instant) -> Result<(), Failure> {
    let twice = || Failure("an event came twice".to_owned());
    peer.asked = now;
    peer.open = 2;
    desk.send(&peer.socket, token, peer.send.take().ok_or_else(twice)?)?;
    desk.recv(&peer.socket, token, peer.recv.take().ok_or_else(twice)?)
}

impl Part for Ping {
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.rounds(None, self.warm, None)
    }

    fn run(&mut self, until: Option<Instant>) -> Result<Outcome, Failure> {
        let mut samples = histogram()?;
        self.peers.iter_mut().for_each(|p| p.rounds = 0);
        self.rounds(until, u64::MAX, Some(&mut samples))?;
        let ended = Instant::now();
        for (token, peer) in (0..).map(Token).zip(&self.peers) {
            self.desk.end(&peer.socket, token)?;
        }
        let Ping { desk, peers, .. } = self;
        while !peers.iter().all(|p| p.ended && p.end_seen) {
            desk.events(1, |_, token, news| {
                let at = usize::try_from(token.0).unwrap_or(usize::MAX);
                match (news, peers.get_mut(at)) {
                    (News::End, Some(peer)) => peer.end_seen = true,
                    (News::Ended, Some(peer)) => peer.ended = true,
                    _ => return Err(Failure("the server sends out of turn".to_owned())),
                }
                Ok(())
            })?;
        }
        let moved = self.peers.iter().map(|p| (p.rounds, p.rounds)).collect();
        Ok(Outcome { moved, round_trips: Some(samples), system_calls: None, ended })
    }
}

/// A connection on which we answer.
struct Answer {
    socket: Socket,
    received: u64,
    sent: u64,
    ended: bool,
    end_seen: bool,
}

/// The server's part: each message goes back from the buffer that it came in.
pub(crate) struct Pong {
    desk: Desk,
    peers: Vec<Answer>,
    warm: u64,
}

impl Pong {
    pub(crate) fn new(job: &Job, sockets: Vec<Socket>) -> Result<Pong, Failure> {
        // Four buffers, and the end.
        let desk = Desk::new(job, sockets.len() * 5)?;
        let mut peers = Vec::with_capacity(sockets.len());
        for (token, socket) in (0..).map(Token).zip(sockets) {
            for buffer in buffers(4, job.size)? {
                desk.recv(&socket, token, buffer)?;
            }
            peers.push(Answer { socket, received: 0, sent: 0, ended: false, end_seen: false });
        }
        Ok(Pong { desk, peers, warm: job.warm().min(200) })
    }

    fn turn(&mut self) -> Result<(), Failure> {
        let Pong { desk, peers, .. } = self;
        desk.events(1, |desk, token, news| {
            let at = usize::try_from(token.0).unwrap_or(usize::MAX);
            let Some(peer) = peers.get_mut(at) else {
                return Err(Failure(format!("an event of no connection: {token:?}")));
            };
            match news {
                News::Received(buffer) => {
                    peer.received += 1;
                    desk.send(&peer.socket, token, buffer)?;
                }
                News::Sent(buffer) => {
                    peer.sent += 1;
                    desk.recv(&peer.socket, token, buffer)?;
                }
                News::End if !peer.end_seen => {
                    peer.end_seen = true;
                    desk.end(&peer.socket, token)?;
                }
                // The other receives that are posted.
                News::End => {}
                News::Ended => peer.ended = true,
            }
            Ok(())
        })
    }
}

impl Part for Pong {
    fn warm_up(&mut self) -> Result<(), Failure> {
        while !self.peers.iter().all(|p| p.sent >= self.warm) {
            self.turn()?;
        }
        Ok(())
    }

    fn run(&mut self, _: Option<Instant>) -> Result<Outcome, Failure> {
        let before: Vec<_> = self.peers.iter().map(|p| (p.sent, p.received)).collect();
        while !self.peers.iter().all(|p| p.ended && p.end_seen && p.sent == p.received) {
            self.turn()?;
        }
        let ended = Instant::now();
        let moved = self.peers.iter().zip(before).map(|(p, b)| (p.sent - b.0, p.received - b.1));
        Ok(Outcome { moved: moved.collect(), round_trips: None, system_calls: None, ended })
    }
}
