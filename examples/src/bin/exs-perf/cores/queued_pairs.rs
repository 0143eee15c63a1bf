//! Two threads for each connection, each with an event queue of its own, which ask and answer.

use std::time::Duration;

use exs::{Buffer, Completion, Event, EventKind, EventQueue, RecvFlags, Socket, Token, Transport};
use exs_tools::fail::{During, Failure};
use exs_tools::registered::{buffers, dequeue};

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::sockets::{Listener, socket};

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Operations of one thread in flight, and events, at most.
const DEPTH: usize = 8;

const BEGUN: Token = Token(1);
const SENT: Token = Token(2);
const RECEIVED: Token = Token(3);

/// Each thread makes its connection itself, by its queue.
pub(super) fn measure(carrier: Carrier, pairs: usize, duration: Duration) -> Result<f64, Failure> {
    let Listener::Exs(listener, transport) = Listener::new(carrier)? else {
        return Err(Failure("plain TCP has no event queues".to_owned()));
    };
    rate(2 * pairs, duration, |n, clock| {
        let asks = n % 2 == 0;
        let end = if asks { End::connect(transport, &listener) } else { End::accept(&listener) };
        clock.ready();
        if asks { end?.ask(clock) } else { end?.answer() }
    })
}

/// A thread's end of its connection, and its queue.
struct End {
    queue: EventQueue,
    socket: Socket,
    /// Buffers of sends that have ended.
    spare: Vec<Buffer>,
    events: Vec<Event>,
}

impl End {
    fn connect(transport: Transport, listener: &Socket) -> Result<End, Failure> {
        let queue = EventQueue::new(DEPTH).during("event queue")?;
        let socket = socket(transport)?;
        let to = listener.local_addr().during("local address")?;
        socket.connect(&queue, BEGUN, to).during("connect")?;
        queue.next().during("connect")?.into_result().during("connect")?;
        End::new(queue, socket)
    }

    fn accept(listener: &Socket) -> Result<End, Failure> {
        let queue = EventQueue::new(DEPTH).during("event queue")?;
        listener.accept(&queue, BEGUN).during("accept")?;
        let completion = queue.next().during("accept")?.into_completion().during("accept")?;
        let Completion::Accept { socket, .. } = completion else {
            return Err(Failure("an accept has brought no socket".to_owned()));
        };
        End::new(queue, socket)
    }

    fn new(queue: EventQueue, socket: Socket) -> Result<End, Failure> {
        Ok(End { queue, socket, spare: buffers(DEPTH / 2, SIZE)?, events: Vec::new() })
    }

    /// A message leaves, and the next one comes. `message`: the buffer of the last one that came. None:
    /// the peer has closed.
    fn exchange(&mut self, message: Option<Buffer>) -> Result<Option<Buffer>, Failure> {
        if let Some(message) = message {
            self.socket.send(&self.queue, SENT, message).during("send")?;
        }
        let into = self.spare.pop().ok_or_else(|| Failure("sends do not end".to_owned()))?;
        self.socket.recv(&self.queue, RECEIVED, into, RecvFlags::WAITALL).during("recv")?;
        loop {
            dequeue(&self.queue, &mut self.events, 1, None)?;
            let mut came = None;
            for mut event in self.events.drain(..) {
                let (kind, buffer) = (event.kind(), event.take_buffer());
                let bytes = event.into_result();
                match (kind, buffer) {
                    (EventKind::Recv, Some(buffer)) => came = Some((bytes, buffer)),
                    // A peer that has closed takes no more answers.
                    (_, buffer) => self.spare.extend(buffer),
                }
            }
            if let Some((bytes, buffer)) = came {
                return Ok(Some(buffer).filter(|_| bytes.is_ok_and(|n| n == SIZE)));
            }
        }
    }

    fn ask(mut self, clock: &Clock) -> Result<u64, Failure> {
        let mut answers = 0;
        let mut message = self.spare.pop();
        while !clock.is_over() {
            message = self.exchange(message.take())?;
            if message.is_none() {
                return Err(Failure("the thread that answers has gone".to_owned()));
            }
            answers += clock.unit();
        }
        Ok(answers)
    }

    fn answer(mut self) -> Result<u64, Failure> {
        let mut message = None;
        loop {
            message = self.exchange(message)?;
            if message.is_none() {
                return Ok(0);
            }
        }
    }
}
