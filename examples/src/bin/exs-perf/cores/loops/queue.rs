//! A loop with an EXS event queue: it dequeues, or sleeps in epoll for the queue's descriptor.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use exs::{
    Buffer, Completion, Event, EventKind, EventQueue, QueueOptions, RecvFlags, Socket, Token,
    Transport,
};
use exs_tools::fail::{During, Failure};
use exs_tools::registered::{dequeue, stalled};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::super::sockets::socket;
use super::{BATCH, Id, Loop, News, Plan, Way};

/// Operations of one connection at the same time: a receive, sends whose events wait, a close.
const OPERATIONS: usize = 4;
/// The number of the listener. Connections count from 0.
const LISTENER: Token = Token(u64::MAX);

struct Connection {
    socket: Socket,
    spare: Vec<Buffer>,
    /// Operations whose events are still to come.
    posted: usize,
    /// Its message was reported, and the next receive is not posted yet: the answer leaves first.
    lacks_receive: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its news are reported.
    Open,
    /// The peer has ended it, which was reported.
    Ended,
    /// A close is posted.
    Closing,
    /// The close is complete.
    Closed,
}

pub(super) struct Queue<'a> {
    transport: Transport,
    listener: Option<&'a Socket>,
    queue: EventQueue,
    /// None: the thread waits in the dequeue.
    epoll: Option<OwnedFd>,
    plan: Plan,
    connections: Vec<Option<Connection>>,
    free: Vec<Id>,
    events: Vec<Event>,
    /// Connections whose message the last wait has reported.
    reported: Vec<Id>,
}

impl<'a> Queue<'a> {
    pub(super) fn new(
        transport: Transport,
        listener: Option<&'a Socket>,
        way: Way,
        plan: Plan,
    ) -> Result<Queue<'a>, Failure> {
        let depth = plan.connections * OPERATIONS + plan.accepts;
        let options = QueueOptions::default().with_depth(depth);
        let queue = EventQueue::with_options(&options).during("event queue")?;
        let epoll = if way == Way::Queue {
            let fd = epoll::create(epoll::CreateFlags::CLOEXEC).during("epoll")?;
            epoll::add(&fd, queue.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .during("epoll")?;
            Some(fd)
        } else {
            None
        };
        if let Some(listener) = listener {
            for _ in 0..plan.accepts {
                listener.accept(&queue, LISTENER).during("accept")?;
            }
        }
        Ok(Queue {
            transport,
            listener,
            queue,
            epoll,
            plan,
            connections: Vec::new(),
            free: Vec::new(),
            events: Vec::with_capacity(BATCH),
            reported: Vec::with_capacity(BATCH),
        })
    }

    fn insert(&mut self, socket: Socket) -> Id {
        let connection = Connection {
            socket,
            spare: Vec::new(),
            posted: 0,
            lacks_receive: false,
            stage: Stage::Open,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.connections[id] = Some(connection);
        id
    }

    fn connection(&mut self, id: Id) -> Result<&mut Connection, Failure> {
        let found = self.connections.get_mut(id).and_then(Option::as_mut);
        found.ok_or_else(|| Failure(format!("there is no connection {id}")))
    }

    /// Takes the events that are there, after it has slept until there are some.
    fn take(&mut self) -> Result<(), Failure> {
        let Some(epoll) = &self.epoll else {
            return dequeue(&self.queue, &mut self.events, 1, self.plan.patience);
        };
        loop {
            let moment = Some(Duration::ZERO);
            match self.queue.dequeue_into(&mut self.events, 1, BATCH, moment) {
                Err(exs::Error::Interrupted) => {}
                Ok(0) => await_readable(epoll, self.plan.patience)?,
                other => return other.during("dequeue").map(|_| ()),
            }
        }
    }

    fn receive(&mut self, id: Id) -> Result<(), Failure> {
        let size = self.plan.size;
        let Queue { queue, connections, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(id) {
            let buffer = connection.spare.pop().unwrap_or_else(|| Buffer::from(vec![1; size]));
            let flags = RecvFlags::WAITALL;
            connection.socket.recv(queue, token(id), buffer, flags).during("recv")?;
            connection.posted += 1;
            connection.lacks_receive = false;
        }
        Ok(())
    }

    fn accepted(&mut self, event: Event, news: &mut Vec<News>) -> Result<(), Failure> {
        if let Some(listener) = self.listener {
            listener.accept(&self.queue, LISTENER).during("accept")?;
        }
        match event.into_completion() {
            Ok(Completion::Accept { socket, .. }) => {
                let id = self.insert(socket);
                self.receive(id)?;
                news.push(News::Opened(id));
                Ok(())
            }
            other => Err(Failure(format!("an accept ended with {other:?}"))),
        }
    }

    fn happened(&mut self, mut event: Event, news: &mut Vec<News>) -> Result<(), Failure> {
        if event.token() == LISTENER {
            return self.accepted(event, news);
        }
        let id = usize::try_from(event.token().0).unwrap_or(usize::MAX);
        let (kind, buffer) = (event.kind(), event.take_buffer());
        let whole = event.bytes() == self.plan.size;
        let result = event.into_result();
        let connection = self.connection(id)?;
        connection.posted -= 1;
        connection.spare.extend(buffer);
        match (kind, connection.stage) {
            (EventKind::Connect, _) => {
                result.during("connect")?;
                self.receive(id)?;
                news.push(News::Opened(id));
            }
            (EventKind::Recv, Stage::Open) if whole && result.is_ok() => {
                connection.lacks_receive = true;
                self.reported.push(id);
                news.push(News::Message(id));
            }
            (EventKind::Recv, Stage::Open) => {
                connection.stage = Stage::Ended;
                news.push(News::Ended(id));
            }
            (EventKind::Close, _) => connection.stage = Stage::Closed,
            // A send; or what is left of a connection that has ended.
            _ => {}
        }
        let gone = |c: &Connection| c.stage == Stage::Closed && c.posted == 0;
        if self.connections[id].as_ref().is_some_and(gone) {
            self.connections[id] = None;
            self.free.push(id);
            news.push(News::Closed(id));
        }
        Ok(())
    }
}

impl Loop for Queue<'_> {
    fn dial(&mut self, to: SocketAddr) -> Result<(), Failure> {
        let id = self.insert(socket(self.transport)?);
        let Queue { queue, connections, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(id) {
            connection.socket.connect(queue, token(id), to).during("connect")?;
            connection.posted += 1;
        }
        Ok(())
    }

    fn send(&mut self, id: Id) -> Result<(), Failure> {
        let (queue, size) = (self.queue.clone(), self.plan.size);
        let connection = self.connection(id)?;
        let buffer = connection.spare.pop().unwrap_or_else(|| Buffer::from(vec![1; size]));
        connection.socket.send(&queue, token(id), buffer).during("send")?;
        connection.posted += 1;
        if connection.lacks_receive { self.receive(id) } else { Ok(()) }
    }

    fn close(&mut self, id: Id) -> Result<(), Failure> {
        let queue = self.queue.clone();
        let connection = self.connection(id)?;
        connection.socket.close(&queue, token(id)).during("close")?;
        connection.posted += 1;
        connection.stage = Stage::Closing;
        Ok(())
    }

    fn wait(&mut self, news: &mut Vec<News>) -> Result<(), Failure> {
        // Those that got no answer.
        while let Some(id) = self.reported.pop() {
            let lacks = |c: &Connection| c.lacks_receive && c.stage == Stage::Open;
            if self.connections.get(id).and_then(Option::as_ref).is_some_and(lacks) {
                self.receive(id)?;
            }
        }
        let before = news.len();
        while news.len() == before {
            self.take()?;
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                self.happened(event, news)?;
            }
            self.events = events;
        }
        Ok(())
    }
}

fn token(id: Id) -> Token {
    Token(id as u64)
}

/// Sleeps in epoll until the queue's descriptor is readable.
fn await_readable(epoll: &OwnedFd, patience: Option<Duration>) -> Result<(), Failure> {
    let limit = patience.and_then(|p| Timespec::try_from(p).ok());
    let mut ready = Vec::with_capacity(1);
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut ready), limit.as_ref()) {
        Ok(0) => Err(stalled(patience.unwrap_or_default())),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e).during("epoll"),
    }
}
