//! Event loops of one thread over many connections, which carry messages of a fixed size.
//!
//! The trait [`Loop`] is all that the shapes see: a server that answers (`serve`), a client that
//! asks (`ask`), a client that connects ten thousand times at once (`connects`). Two loops implement it:
//! `queue` has an EXS event queue, and `readiness` has epoll over descriptors that do not block.
//! The latter is generic over the descriptor: a TCP socket, or one of the C library of EXS.
//!
//! A connection has a number, [`Id`], which another connection gets when this one was closed.

mod queue;
mod readiness;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use exs::{Socket, Transport};
use exs_tools::fail::{During, Failure};
use exs_tools::sys::Descriptor;
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::sockets::socket;

/// Events that a loop takes in one step, at most.
pub(super) const BATCH: usize = 256;

/// The way in which a thread waits for EXS. Over TCP it always waits in epoll, for the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Way {
    /// In a dequeue.
    Dequeue,
    /// In epoll, for the descriptor of the event queue; its dequeues do not wait.
    Queue,
    /// In epoll, for the descriptors of the sockets; calls without a queue.
    Sockets,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Dequeue => "dequeue",
            Way::Queue => "queue",
            Way::Sockets => "sockets",
        })
    }
}

/// The number of a connection in its loop.
pub(super) type Id = usize;

/// Something happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is there: this side has connected, or has accepted it.
    Opened(Id),
    /// A whole message was received.
    Message(Id),
    /// The peer has ended it. The loop must still close it.
    Ended(Id),
    /// It is closed, as the loop was told to. Its number is free.
    Closed(Id),
}

/// What a loop must know before it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Connections at the same time, at most.
    pub(super) connections: usize,
    /// Accepts that are posted at the same time; 0 where the loop does not accept.
    pub(super) accepts: usize,
    /// A loop that waits for longer has failed. `None`: it waits for ever.
    pub(super) patience: Option<Duration>,
}

pub(super) trait Loop {
    /// Begins a connection. [`News::Opened`] follows.
    fn dial(&mut self, to: SocketAddr) -> Result<(), Failure>;

    /// Sends a message. The loops keep one message in flight on each connection.
    fn send(&mut self, id: Id) -> Result<(), Failure>;

    /// Begins to close a connection. [`News::Closed`] follows, and no other news.
    fn close(&mut self, id: Id) -> Result<(), Failure>;

    /// Sleeps until there are news, and appends them.
    fn wait(&mut self, news: &mut Vec<News>) -> Result<(), Failure>;
}

/// A listener whose loops accept. The loops of several threads can share it.
pub(super) enum Door {
    Tcp(TcpListener),
    Exs(Socket),
    Sockets(Descriptor),
}

impl Door {
    /// Listens on a free port of the loopback interface.
    pub(super) fn open(carrier: Carrier, way: Way, backlog: u32) -> Result<Door, Failure> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let waiting = i32::try_from(backlog).unwrap_or(i32::MAX);
        match (carrier, way) {
            (Carrier::Tcp, _) => {
                let listener = TcpListener::bind(any).during("TCP listener")?;
                // std's own number is 128.
                rustix::net::listen(&listener, waiting).during("listen")?;
                listener.set_nonblocking(true).during("TCP listener")?;
                Ok(Door::Tcp(listener))
            }
            (Carrier::Exs(_), Way::Sockets) => {
                Descriptor::listen(Ipv4Addr::LOCALHOST, waiting).during("listen").map(Door::Sockets)
            }
            (Carrier::Exs(transport), Way::Dequeue | Way::Queue) => {
                let listener = socket(transport)?;
                listener.bind(any).during("bind")?;
                listener.listen(backlog).during("listen")?;
                Ok(Door::Exs(listener))
            }
        }
    }

    pub(super) fn addr(&self) -> Result<SocketAddr, Failure> {
        match self {
            Door::Tcp(listener) => listener.local_addr().during("local address"),
            Door::Exs(listener) => listener.local_addr().during("local address"),
            Door::Sockets(listener) => {
                listener.local_addr().map(SocketAddr::from).during("local address")
            }
        }
    }

    /// A loop that accepts here.
    pub(super) fn enter(&self, way: Way, plan: Plan) -> Result<Box<dyn Loop + '_>, Failure> {
        Ok(match self {
            Door::Tcp(listener) => Box::new(readiness::Readiness::new(Some(listener), plan)?),
            Door::Sockets(listener) => Box::new(readiness::Readiness::new(Some(listener), plan)?),
            Door::Exs(listener) => {
                Box::new(queue::Queue::new(Transport::default(), Some(listener), way, plan)?)
            }
        })
    }
}

/// A loop that connects, and accepts nothing.
pub(super) fn client(carrier: Carrier, way: Way, plan: Plan) -> Result<Box<dyn Loop>, Failure> {
    Ok(match (carrier, way) {
        (Carrier::Tcp, _) => Box::new(readiness::Readiness::<TcpListener>::new(None, plan)?),
        (Carrier::Exs(_), Way::Sockets) => {
            Box::new(readiness::Readiness::<Descriptor>::new(None, plan)?)
        }
        (Carrier::Exs(transport), _) => Box::new(queue::Queue::new(transport, None, way, plan)?),
    })
}
