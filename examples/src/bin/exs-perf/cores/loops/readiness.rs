//! A loop with epoll over descriptors that do not block, level-triggered.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use exs_tools::fail::{During, Failure};
use exs_tools::registered::stalled;
use exs_tools::sys::Descriptor;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{BATCH, Id, Loop, News, Plan};

/// The number of the listener. Connections count from 0.
const LISTENER: u64 = u64::MAX;

/// A listener whose descriptor epoll can watch.
pub(super) trait Accepts: AsFd {
    type Stream: Stream;

    /// Registers it in an epoll set. A connection wakes one of the threads that share the listener.
    fn watch(&self, epoll: &OwnedFd) -> io::Result<()>;

    /// Accepts a connection that does not block; `None` if none waits.
    fn accept(&self) -> io::Result<Option<Self::Stream>>;
}

/// A connection whose calls do not wait.
pub(super) trait Stream: AsFd + Sized {
    /// Begins a connection; true if it is there already.
    fn dial(to: SocketAddr) -> io::Result<(Self, bool)>;
    /// Registers it in an epoll set.
    fn watch(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()>;
    /// Waits for something else from now on.
    fn watch_again(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()>;
    /// Sleeps until descriptors of the set are ready, and appends their data. Without any, `limit` is
    /// over.
    fn wait(epoll: &OwnedFd, ready: &mut Vec<u64>, limit: Option<Duration>) -> io::Result<()>;
    /// The outcome of a connection that was begun, once its descriptor is writable.
    fn connected(&self) -> io::Result<()>;
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize>;
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// What an epoll set waits for at a listener that other threads wait for, too.
const ACCEPTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::EXCLUSIVE);

impl Accepts for TcpListener {
    type Stream = TcpStream;

    fn watch(&self, epoll: &OwnedFd) -> io::Result<()> {
        Ok(epoll::add(epoll, self, epoll::EventData::new_u64(LISTENER), ACCEPTS)?)
    }

    fn accept(&self) -> io::Result<Option<TcpStream>> {
        match self.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Some(stream))
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Stream for TcpStream {
    fn dial(to: SocketAddr) -> io::Result<(TcpStream, bool)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        let at_once = match rustix::net::connect(&fd, &to) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(e) => return Err(e.into()),
        };
        let stream = TcpStream::from(fd);
        stream.set_nodelay(true)?;
        Ok((stream, at_once))
    }

    fn watch(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(epoll, self, epoll::EventData::new_u64(id as u64), flags)?)
    }

    fn watch_again(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::modify(epoll, self, epoll::EventData::new_u64(id as u64), flags)?)
    }

    fn wait(epoll: &OwnedFd, ready: &mut Vec<u64>, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events = Vec::with_capacity(BATCH);
        epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), limit.as_ref())?;
        ready.extend(events.iter().map(|event: &epoll::Event| event.data.u64()));
        Ok(())
    }

    fn connected(&self) -> io::Result<()> {
        self.take_error()?.map_or(Ok(()), Err)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read(bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }
}

impl Accepts for Descriptor {
    type Stream = Descriptor;

    fn watch(&self, epoll: &OwnedFd) -> io::Result<()> {
        Descriptor::watch(self, epoll.as_fd(), LISTENER, ACCEPTS.bits())
    }

    fn accept(&self) -> io::Result<Option<Descriptor>> {
        self.accept()
    }
}

impl Stream for Descriptor {
    fn dial(to: SocketAddr) -> io::Result<(Descriptor, bool)> {
        Descriptor::begin(to)
    }

    fn watch(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()> {
        Descriptor::watch(self, epoll.as_fd(), id as u64, flags.bits())
    }

    fn watch_again(&self, epoll: &OwnedFd, id: Id, flags: epoll::EventFlags) -> io::Result<()> {
        Descriptor::watch_again(self, epoll.as_fd(), id as u64, flags.bits())
    }

    fn wait(epoll: &OwnedFd, ready: &mut Vec<u64>, limit: Option<Duration>) -> io::Result<()> {
        let limit = limit.map(|limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        Descriptor::wait(epoll.as_fd(), ready, BATCH, limit)
    }

    fn connected(&self) -> io::Result<()> {
        Descriptor::connected(self)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.recv(bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Descriptor::send(self, bytes)
    }
}

struct Connection<S> {
    stream: S,
    /// Bytes of the next message that are there.
    got: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The connection is begun.
    Connecting,
    Open,
    /// The peer has ended it, which was reported.
    Ended,
}

pub(super) struct Readiness<'a, L: Accepts> {
    listener: Option<&'a L>,
    epoll: OwnedFd,
    plan: Plan,
    connections: Vec<Option<Connection<L::Stream>>>,
    free: Vec<Id>,
    /// News that no descriptor reports.
    ready: VecDeque<News>,
    /// The data of the descriptors that are ready.
    events: Vec<u64>,
    message: Vec<u8>,
}

impl<'a, L: Accepts> Readiness<'a, L> {
    pub(super) fn new(listener: Option<&'a L>, plan: Plan) -> Result<Readiness<'a, L>, Failure> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).during("epoll")?;
        if let Some(listener) = listener {
            listener.watch(&epoll).during("epoll")?;
        }
        Ok(Readiness {
            listener,
            epoll,
            plan,
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            events: Vec::with_capacity(BATCH),
            message: vec![1; plan.size],
        })
    }

    fn insert(&mut self, stream: L::Stream, stage: Stage) -> Result<Id, Failure> {
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let flags = match stage {
            Stage::Connecting => epoll::EventFlags::OUT,
            Stage::Open | Stage::Ended => epoll::EventFlags::IN,
        };
        stream.watch(&self.epoll, id, flags).during("epoll")?;
        self.connections[id] = Some(Connection { stream, got: 0, stage });
        Ok(id)
    }

    /// Sleeps until a descriptor is ready.
    fn await_ready(&mut self) -> Result<(), Failure> {
        self.events.clear();
        match L::Stream::wait(&self.epoll, &mut self.events, self.plan.patience) {
            Ok(()) if self.events.is_empty() => {
                Err(stalled(self.plan.patience.unwrap_or_default()))
            }
            Ok(()) => Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e).during("epoll"),
        }
    }

    fn accept(&mut self, news: &mut Vec<News>) -> Result<(), Failure> {
        let Some(listener) = self.listener else { return Ok(()) };
        if let Some(stream) = listener.accept().during("accept")? {
            let id = self.insert(stream, Stage::Open)?;
            news.push(News::Opened(id));
        }
        Ok(())
    }

    /// Looks at a connection whose descriptor is ready.
    fn look(&mut self, id: Id, news: &mut Vec<News>) -> Result<(), Failure> {
        // A connection that was closed in this very step has no more news.
        let Some(Some(connection)) = self.connections.get_mut(id) else { return Ok(()) };
        match connection.stage {
            Stage::Connecting => {
                connection.stream.connected().during("connect")?;
                connection.stage = Stage::Open;
                let waits = connection.stream.watch_again(&self.epoll, id, epoll::EventFlags::IN);
                waits.during("epoll")?;
                news.push(News::Opened(id));
            }
            Stage::Open => match connection.stream.receive(&mut self.message[connection.got..]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Ok(0) => connection.end(id, news),
                // The peer's process may be gone.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => connection.end(id, news),
                Ok(n) => {
                    connection.got += n;
                    if connection.got == self.plan.size {
                        connection.got = 0;
                        news.push(News::Message(id));
                    }
                }
                Err(e) => return Err(e).during("recv"),
            },
            Stage::Ended => {}
        }
        Ok(())
    }
}

impl<S> Connection<S> {
    fn end(&mut self, id: Id, news: &mut Vec<News>) {
        self.stage = Stage::Ended;
        news.push(News::Ended(id));
    }
}

impl<L: Accepts> Loop for Readiness<'_, L> {
    fn dial(&mut self, to: SocketAddr) -> Result<(), Failure> {
        let (stream, there) = L::Stream::dial(to).during("connect")?;
        let stage = if there { Stage::Open } else { Stage::Connecting };
        let id = self.insert(stream, stage)?;
        if there {
            self.ready.push_back(News::Opened(id));
        }
        Ok(())
    }

    fn send(&mut self, id: Id) -> Result<(), Failure> {
        let found = self.connections.get_mut(id).and_then(Option::as_mut);
        let connection = found.ok_or_else(|| Failure(format!("there is no connection {id}")))?;
        match connection.stream.send(&self.message) {
            Ok(n) if n == self.plan.size => Ok(()),
            // The peer is gone: its descriptor says so, too.
            Err(e) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&e.kind()) => {
                Ok(())
            }
            Ok(n) => Err(Failure(format!(
                "a send took {n} of {} bytes, with one message in flight: use smaller messages",
                self.plan.size
            ))),
            Err(e) => Err(e).during("send"),
        }
    }

    fn close(&mut self, id: Id) -> Result<(), Failure> {
        let connection = self.connections.get_mut(id).and_then(Option::take);
        let connection =
            connection.ok_or_else(|| Failure(format!("there is no connection {id}")))?;
        epoll::delete(&self.epoll, &connection.stream).during("epoll")?;
        drop(connection);
        self.free.push(id);
        self.ready.push_back(News::Closed(id));
        Ok(())
    }

    fn wait(&mut self, news: &mut Vec<News>) -> Result<(), Failure> {
        news.extend(self.ready.drain(..));
        while news.is_empty() {
            self.await_ready()?;
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                match event {
                    LISTENER => self.accept(news)?,
                    id => self.look(usize::try_from(id).unwrap_or(usize::MAX), news)?,
                }
            }
            self.events = events;
        }
        Ok(())
    }
}
