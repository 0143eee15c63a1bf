//! Threads with a queue and a pair of sockets of their own.

use std::time::Duration;

use exs::{
    Buffer, Completion, Event, EventKind, EventQueue, QueueOptions, RecvFlags, Socket, Token,
    Transport,
};
use exs_tools::fail::{During, Failure};
use exs_tools::registered::{buffers, dequeue};

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::sockets::{End, Listener, socket};

/// Bytes in flight of one thread, at most, and messages.
const IN_FLIGHT: usize = 512 << 10;
const DEPTH_MAX: usize = 64;
/// A thread whose messages do not move for that long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages in flight of one thread.
pub(super) fn in_flight(size: usize) -> usize {
    (IN_FLIGHT / size).clamp(1, DEPTH_MAX)
}

const SENT: Token = Token(1);
const RECEIVED: Token = Token(2);
const ACCEPTED: Token = Token(3);
const CONNECTED: Token = Token(4);

pub(super) fn measure(
    carrier: Carrier,
    threads: usize,
    size: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    rate(threads, duration, |_, clock| {
        // Where the ends cannot be made the others must not wait at the gate.
        match Listener::new(carrier) {
            Ok(Listener::Exs(listener, transport)) => {
                let thread = Pipe::new(&listener, transport, size);
                clock.ready();
                thread?.run(clock)
            }
            Ok(listener) => {
                let ends = listener.pair();
                clock.ready();
                let (from, to) = ends?;
                one_at_a_time(from, to, size, clock)
            }
            Err(e) => {
                clock.ready();
                Err(e)
            }
        }
    })
}

/// Over plain TCP. The kernel copies the bytes in either call, so more in flight gain nothing.
fn one_at_a_time(mut from: End, mut to: End, size: usize, clock: &Clock) -> Result<u64, Failure> {
    let (out, mut into) = (vec![1; size], vec![0; size]);
    let mut messages = 0;
    while !clock.is_over() {
        from.send(&out)?;
        to.recv(&mut into)?;
        messages += clock.unit();
    }
    Ok(messages)
}

/// A connection whose ends are both this thread's.
struct Pipe {
    queue: EventQueue,
    from: Socket,
    to: Socket,
    spare: Vec<Buffer>,
    in_flight: usize,
}

impl Pipe {
    /// Connect and accept name the thread's queue, so both ends live in its shard.
    fn new(listener: &Socket, transport: Transport, size: usize) -> Result<Pipe, Failure> {
        let depth = in_flight(size);
        let options = QueueOptions::default().with_depth(3 * depth);
        let queue = EventQueue::with_options(&options).during("event queue")?;
        listener.accept(&queue, ACCEPTED).during("accept")?;
        let from = socket(transport)?;
        let at = listener.local_addr().during("local address")?;
        from.connect(&queue, CONNECTED, at).during("connect")?;
        let mut to = None;
        for event in queue.dequeue_at_least(2, 2, Some(PATIENCE)).during("dequeue")? {
            if let Completion::Accept { socket, .. } = event.into_completion().during("connect")? {
                to = Some(socket);
            }
        }
        let to = to.ok_or_else(|| Failure("no connection came within 30 s".to_owned()))?;
        for buffer in buffers(2 * depth, size)? {
            to.recv(&queue, RECEIVED, buffer, RecvFlags::WAITALL).during("recv")?;
        }
        Ok(Pipe { queue, from, to, spare: buffers(depth, size)?, in_flight: 0 })
    }

    fn run(mut self, clock: &Clock) -> Result<u64, Failure> {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        let mut messages = 0;
        loop {
            let over = clock.is_over();
            while !over && let Some(buffer) = self.spare.pop() {
                self.from.send(&self.queue, SENT, buffer).during("send")?;
                self.in_flight += 1;
            }
            if self.in_flight == 0 {
                return Ok(messages);
            }
            dequeue(&self.queue, &mut events, 1, Some(PATIENCE))?;
            for mut event in events.drain(..) {
                let (kind, buffer) = (event.kind(), event.take_buffer());
                event.into_result().during("an operation")?;
                match (kind, buffer) {
                    (EventKind::Send, Some(buffer)) => {
                        self.spare.push(buffer);
                        self.in_flight -= 1;
                    }
                    (EventKind::Recv, Some(buffer)) => {
                        messages += clock.unit();
                        self.to
                            .recv(&self.queue, RECEIVED, buffer, RecvFlags::WAITALL)
                            .during("recv")?;
                    }
                    _ => return Err(Failure(format!("{kind:?} was not asked for"))),
                }
            }
        }
    }
}
