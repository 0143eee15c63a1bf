//! An EXS connection: registered memory, receives posted ahead, events from a queue.

use std::time::{Duration, Instant};

use quanta::Instant as Counter;

use exs::{Buffer, Event, EventKind, EventQueue, QueueOptions, RecvFlags, Socket, Token};
use exs_tools::args::{Kind, Wait};
use exs_tools::fail::{During, Failure};
use exs_tools::registered::{buffers, dequeue};
use exs_tools::stats::Samples;

use crate::link::Link;

const SEND: Token = Token(1);
const RECV: Token = Token(2);

pub(crate) struct ExsLink {
    socket: Socket,
    queue: EventQueue,
    flags: RecvFlags,
    events: Vec<Event>,
}

impl ExsLink {
    pub(crate) fn new(socket: Socket, kind: Kind, wait: Wait) -> Result<ExsLink, Failure> {
        let options = QueueOptions::default().with_depth(256).with_wait(wait.into());
        let queue = EventQueue::with_options(&options).during("event queue")?;
        let flags = match kind {
            Kind::Stream => RecvFlags::WAITALL,
            Kind::Seqpacket => RecvFlags::NONE,
        };
        Ok(ExsLink { socket, queue, flags, events: Vec::with_capacity(64) })
    }

    fn send(&self, buffer: Buffer) -> Result<(), Failure> {
        self.socket.send(&self.queue, SEND, buffer).during("send")
    }

    fn recv(&self, buffer: Buffer) -> Result<(), Failure> {
        self.socket.recv(&self.queue, RECV, buffer, self.flags).during("recv")
    }

    /// Waits for `min` events and hands each, with its buffer, to `f`.
    fn events(
        &mut self,
        min: usize,
        mut f: impl FnMut(&ExsLink, EventKind, Buffer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut events = std::mem::take(&mut self.events);
        dequeue(&self.queue, &mut events, min, None)?;
        for mut event in events.drain(..) {
            let (kind, bytes, eof) = (event.kind(), event.bytes(), event.eof());
            if let Some(error) = event.error() {
                return Err(Failure(format!("{kind:?}: {error}")));
            }
            let Some(buffer) = event.take_buffer() else { continue };
            if bytes != buffer.len() {
                let why = if eof { "the other side has closed the connection" } else { "cut off" };
                return Err(Failure(format!("{bytes} of {} bytes: {why}", buffer.len())));
            }
            f(self, kind, buffer)?;
        }
        self.events = events;
        Ok(())
    }
}

/// Takes what must be there: each event gives a buffer back.
fn take(slot: &mut Option<Buffer>) -> Result<Buffer, Failure> {
    slot.take().ok_or_else(|| Failure("an event came twice".to_owned()))
}

impl Link for ExsLink {
    fn ping(&mut self, size: usize, rounds: u32) -> Result<Samples, Failure> {
        let mut three = buffers(3, size)?.into_iter();
        let (mut tx, mut rx) = (three.next(), three.next());
        let mut samples = Samples::with_capacity(rounds as usize);
        // One receive is always posted ahead: the next one while the answer is on its way.
        self.recv(take(&mut rx)?)?;
        rx = three.next();
        // The processor's counter: in many virtual machines the kernel's clock costs as
        // much as the message.
        let mut last = Counter::now();
        for round in 1..=rounds {
            self.send(take(&mut tx)?)?;
            if round < rounds {
                self.recv(take(&mut rx)?)?;
            }
            self.events(2, |_, kind, buffer| {
                let slot = if kind == EventKind::Send { &mut tx } else { &mut rx };
                *slot = Some(buffer);
                Ok(())
            })?;
            let now = Counter::now();
            samples.record(now - last);
            last = now;
        }
        Ok(samples)
    }

    fn pong(
        &mut self,
        size: usize,
        rounds: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut spare = buffers(4, size)?;
        let (mut posted, mut received, mut sent) = (0, 0, 0);
        let mut ahead = |link: &ExsLink, spare: &mut Vec<Buffer>, received: u32| {
            while posted < rounds.min(received + 2)
                && let Some(buffer) = spare.pop()
            {
                posted += 1;
                link.recv(buffer)?;
            }
            Ok::<(), Failure>(())
        };
        ahead(self, &mut spare, received)?;
        ready()?;
        while sent < rounds {
            self.events(1, |link, kind, buffer| {
                if kind == EventKind::Send {
                    sent += 1;
                    spare.push(buffer);
                } else {
                    received += 1;
                    link.send(buffer)?;
                }
                ahead(link, &mut spare, received)
            })?;
        }
        Ok(())
    }

    fn pour(&mut self, size: usize, count: u32, depth: u32) -> Result<Duration, Failure> {
        let first = buffers(depth.min(count) as usize, size)?;
        self.recv(take(&mut buffers(1, 1)?.pop())?)?;
        let (mut posted, mut ended) = (0, 0);
        let begun = Instant::now();
        for buffer in first {
            posted += 1;
            self.send(buffer)?;
        }
        // The sends, and the receiver's byte.
        while ended < count + 1 {
            self.events(1, |link, kind, buffer| {
                ended += 1;
                if kind == EventKind::Send && posted < count {
                    posted += 1;
                    link.send(buffer)?;
                }
                Ok(())
            })?;
        }
        Ok(begun.elapsed())
    }

    fn drink(
        &mut self,
        size: usize,
        count: u32,
        depth: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut posted, mut ended) = (0, 0);
        for buffer in buffers(depth.min(count) as usize, size)? {
            posted += 1;
            self.recv(buffer)?;
        }
        ready()?;
        while ended < count {
            self.events(1, |link, _, buffer| {
                ended += 1;
                if posted < count {
                    posted += 1;
                    link.recv(buffer)?;
                }
                Ok(())
            })?;
        }
        self.send(take(&mut buffers(1, 1)?.pop())?)?;
        self.events(1, |_, _, _| Ok(()))
    }
}
