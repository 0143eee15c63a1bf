//! Connections that change their users: threads take them from a pool, and put them back.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use exs::{Buffer, Completion, EventQueue, RecvFlags, Socket, Token, Transport};
use exs_tools::fail::{During, Failure};
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::loops::Way;
use super::serve::Service;
use super::sockets::{End, connect, socket};

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Questions that a thread asks on a connection before it puts it back.
const QUESTIONS: usize = 4;
/// Operations of one thread in flight, and events, at most.
const DEPTH: usize = 8;

/// How a thread waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Waiting {
    /// In a call that blocks.
    Blocks,
    /// At an event queue of its own. Plain TCP has none: its threads block.
    AtQueue,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Blocks => "blocking",
            Waiting::AtQueue => "by queues",
        })
    }
}

/// Answers in a second. Each thread makes its share of the connections.
pub(super) fn measure(
    carrier: Carrier,
    (threads, connections, waiting): (usize, u32, Waiting),
    duration: Duration,
) -> Result<f64, Failure> {
    let service = Service { connections, accepts: 16, ..Service::new(carrier, Way::Dequeue, SIZE) };
    let server = service.start()?;
    let share = connections as usize / threads;
    match (waiting, carrier) {
        (Waiting::AtQueue, Carrier::Exs(transport)) => {
            run::<QueueUser>(transport, server.addr(), (threads, share), duration)
        }
        _ => run::<CallUser>(carrier, server.addr(), (threads, share), duration),
    }
}

/// A thread that takes connections from a pool.
trait User: Sized {
    /// What it needs to know to make connections.
    type Over: Copy + Sync;
    type Connection: Send;

    fn new(over: Self::Over) -> Result<Self, Failure>;
    fn connect(&mut self, to: SocketAddr) -> Result<Self::Connection, Failure>;
    /// Sends a question, and waits for its answer.
    fn ask(&mut self, connection: &mut Self::Connection) -> Result<(), Failure>;
}

/// The connections that no thread uses. The one that is idle for longest goes first.
struct Pool<C>(Mutex<VecDeque<C>>);

impl<C> Pool<C> {
    fn put(&self, connection: C) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(connection);
    }

    fn take(&self) -> Option<C> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

fn run<U: User>(
    over: U::Over,
    to: SocketAddr,
    (threads, share): (usize, usize),
    duration: Duration,
) -> Result<f64, Failure> {
    let pool = Pool(Mutex::new(VecDeque::with_capacity(threads * share)));
    rate(threads, duration, |_, clock| {
        let user = U::new(over).and_then(|mut user| {
            (0..share).try_for_each(|_| user.connect(to).map(|made| pool.put(made)))?;
            Ok(user)
        });
        clock.ready();
        ask(user?, &pool, clock)
    })
}

fn ask<U: User>(mut user: U, pool: &Pool<U::Connection>, clock: &Clock) -> Result<u64, Failure> {
    let mut answers = 0;
    while !clock.is_over() {
        let Some(mut connection) = pool.take() else {
            return Err(Failure("the pool is empty: another thread has failed".to_owned()));
        };
        for _ in 0..QUESTIONS {
            user.ask(&mut connection)?;
            answers += clock.unit();
        }
        pool.put(connection);
    }
    Ok(answers)
}

/// A thread whose calls block.
struct CallUser(Carrier);

impl User for CallUser {
    type Over = Carrier;
    type Connection = End;

    fn new(carrier: Carrier) -> Result<CallUser, Failure> {
        Ok(CallUser(carrier))
    }

    fn connect(&mut self, to: SocketAddr) -> Result<End, Failure> {
        connect(self.0, to)
    }

    fn ask(&mut self, end: &mut End) -> Result<(), Failure> {
        let mut message = [1; SIZE];
        end.send(&message)?;
        if end.recv(&mut message)? { Ok(()) } else { Err(gone()) }
    }
}

/// A thread with an event queue.
struct QueueUser {
    queue: EventQueue,
    transport: Transport,
    /// Buffers that no operation has.
    spare: Vec<Buffer>,
}

impl User for QueueUser {
    type Over = Transport;
    type Connection = Socket;

    fn new(transport: Transport) -> Result<QueueUser, Failure> {
        let queue = EventQueue::new(DEPTH).during("event queue")?;
        let spare = (0..2).map(|_| Buffer::from(vec![1; SIZE])).collect();
        Ok(QueueUser { queue, transport, spare })
    }

    fn connect(&mut self, to: SocketAddr) -> Result<Socket, Failure> {
        let socket = socket(self.transport)?;
        socket.connect(&self.queue, Token(0), to).during("connect")?;
        self.queue.next().during("connect")?.into_result().during("connect")?;
        Ok(socket)
    }

    fn ask(&mut self, socket: &mut Socket) -> Result<(), Failure> {
        let mut buffer = || self.spare.pop().ok_or_else(|| Failure("a buffer is lost".to_owned()));
        let (question, answer) = (buffer()?, buffer()?);
        socket.recv(&self.queue, Token(0), answer, RecvFlags::WAITALL).during("recv")?;
        socket.send(&self.queue, Token(0), question).during("send")?;
        while self.spare.len() < 2 {
            let buffer = match self.queue.next().during("an answer")?.into_completion() {
                Ok(Completion::Recv { buffer, bytes: SIZE, .. }) => buffer,
                Ok(Completion::Send { buffer, .. }) => buffer,
                Ok(_) => return Err(gone()),
                Err(e) => return Err(e).during("an answer"),
            };
            self.spare.push(buffer);
        }
        Ok(())
    }
}

fn gone() -> Failure {
    Failure("the server has ended a connection".to_owned())
}
