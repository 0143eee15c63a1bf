//! A thread that accepts, and others that serve what it has accepted. Each of these waits for all of its
//! connections at one place: at its event queue, or over TCP at its epoll set.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use exs::{Buffer, Completion, EventKind, EventQueue, RecvFlags, Socket, Token};
use exs_tools::fail::{During, Failure};
use exs_tools::registered::dequeue;
use rustix::event::epoll;
use rustix::io::Errno;

use super::ask::{ask, dial_all};
use super::carrier::Carrier;
use super::clock::rate;
use super::loops::{BATCH, Door, Way};
use super::serve::{Accepting, Service};

/// Bytes of a question and of an answer.
const SIZE: usize = 64;

/// Answers in a second. As many threads ask as serve, and share the connections.
pub(super) fn measure(
    carrier: Carrier,
    (threads, connections, answers): (usize, u32, bool),
    duration: Duration,
) -> Result<f64, Failure> {
    let service = Service {
        threads,
        connections,
        accepting: if answers { Accepting::OneThatAnswers } else { Accepting::One },
        ..Service::new(carrier, Way::Dequeue, SIZE)
    };
    let server = service.start()?;
    let share = connections / u32::try_from(threads).unwrap_or(u32::MAX);
    rate(threads, duration, |_, clock| {
        let made = dial_all(carrier, Way::Dequeue, share, server.addr());
        clock.ready();
        let (mut asks, ids) = made?;
        ask(&mut *asks, ids, clock)
    })
}

/// Accepts the connections of a service, and hands each to the next of its threads. These call `failed`
/// if they fail. The clients ask when all are connected.
pub(super) fn serve(
    door: &Door,
    service: &Service,
    failed: impl Fn(Failure) + Clone + Send + 'static,
) -> Result<(), Failure> {
    let (threads, connections) = (service.threads, service.connections as usize);
    let answers = service.accepting == Accepting::OneThatAnswers;
    match door {
        Door::Tcp(listener) => {
            listener.set_nonblocking(false).during("TCP listener")?;
            let workers = Worker::<EpollSet>::start(threads, connections, failed)?;
            let accept = || {
                let (stream, _) = listener.accept().during("accept")?;
                stream.set_nodelay(true).during("TCP_NODELAY")?;
                Ok(stream)
            };
            hand_out(connections, &workers, accept, |stream| {
                if answers {
                    answer_one(stream).during("send or recv")?;
                }
                stream.set_nonblocking(true).during("accept")
            })
        }
        Door::Exs(listener) => {
            let queue = EventQueue::new(1).during("event queue")?;
            let workers = Worker::<EventQueue>::start(threads, connections, failed)?;
            let accept = || {
                listener.accept(&queue, Token(0)).during("accept")?;
                match queue.next().during("accept")?.into_completion().during("accept")? {
                    Completion::Accept { socket, .. } => Ok(socket),
                    other => Err(Failure(format!("an accept ended with {other:?}"))),
                }
            };
            hand_out(connections, &workers, accept, |socket| {
                if answers {
                    WaitingPlace::add(&queue, 0, socket)?;
                    let came = queue.next().during("recv")?.into_completion().during("recv")?;
                    let Completion::Recv { buffer: question, .. } = came else {
                        return Err(Failure(format!("a receive ended with {came:?}")));
                    };
                    socket.send(&queue, Token(0), question).during("send")?;
                    queue.next().during("send")?.into_result().during("send")?;
                }
                Ok(())
            })
        }
        Door::Sockets(_) => Err(Failure("descriptors are not handed over".to_owned())),
    }
}

fn hand_out<P: WaitingPlace>(
    connections: usize,
    workers: &[Worker<P>],
    accept: impl Fn() -> Result<P::Connection, Failure>,
    begin: impl Fn(&P::Connection) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let all = (0..connections).map(|_| accept()).collect::<Result<Vec<_>, _>>()?;
    for ((number, worker), connection) in workers.iter().cycle().enumerate().zip(all) {
        begin(&connection)?;
        worker.take(number, connection)?;
    }
    Ok(())
}

/// Where a thread waits for all of its connections.
trait WaitingPlace: Clone + Send + 'static {
    type Connection: Send + Sync + 'static;

    fn new(connections: usize) -> Result<Self, Failure>;

    /// The thread that waits here gets the messages of this connection from now on.
    fn add(&self, number: usize, connection: &Self::Connection) -> Result<(), Failure>;

    /// Sends back each message that comes.
    fn answer(&self, all: &Table<Self::Connection>) -> Result<(), Failure>;
}

/// Connections by number.
type Table<C> = [OnceLock<C>];

/// A thread that serves connections.
struct Worker<P: WaitingPlace> {
    at: P,
    all: Arc<Table<P::Connection>>,
}

impl<P: WaitingPlace> Worker<P> {
    fn start(
        threads: usize,
        connections: usize,
        failed: impl Fn(Failure) + Clone + Send + 'static,
    ) -> Result<Vec<Worker<P>>, Failure> {
        let all: Arc<Table<_>> = (0..connections).map(|_| OnceLock::new()).collect();
        let start = |_| {
            let worker = Worker { at: P::new(connections)?, all: Arc::clone(&all) };
            let (at, all, failed) = (worker.at.clone(), Arc::clone(&all), failed.clone());
            thread::spawn(move || {
                if let Err(e) = at.answer(&all) {
                    failed(e);
                }
            });
            Ok(worker)
        };
        (0..threads).map(start).collect()
    }

    fn take(&self, number: usize, connection: P::Connection) -> Result<(), Failure> {
        self.at.add(number, self.all[number].get_or_init(|| connection))
    }
}

impl WaitingPlace for EventQueue {
    type Connection = Socket;

    fn new(connections: usize) -> Result<EventQueue, Failure> {
        EventQueue::new(2 * connections).during("event queue")
    }

    fn add(&self, number: usize, socket: &Socket) -> Result<(), Failure> {
        let (token, buffer) = (Token(number as u64), Buffer::from(vec![1; SIZE]));
        socket.recv(self, token, buffer, RecvFlags::WAITALL).during("recv")
    }

    fn answer(&self, all: &Table<Socket>) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(BATCH);
        loop {
            dequeue(self, &mut events, 1, None)?;
            for mut event in events.drain(..) {
                let (kind, token, whole) = (event.kind(), event.token(), event.bytes() == SIZE);
                let found = usize::try_from(token.0).ok().and_then(|number| all.get(number)?.get());
                let (Some(socket), Some(buffer)) = (found, event.take_buffer()) else { continue };
                // A peer that has gone asks no more.
                if event.into_result().is_err() || !whole {
                    continue;
                }
                let posted = match kind {
                    EventKind::Recv => socket.send(self, token, buffer),
                    _ => socket.recv(self, token, buffer, RecvFlags::WAITALL),
                };
                // Nor does one that has gone since.
                if let Err(e) = posted.map_err(exs::Error::from)
                    && !has_gone(&e)
                {
                    return Err(e).during("send or recv");
                }
            }
        }
    }
}

/// True if a call has failed because the peer has ended the connection.
fn has_gone(e: &exs::Error) -> bool {
    let ends = [Errno::PIPE, Errno::CONNRESET, Errno::NOTCONN];
    ends.iter().any(|errno| errno.raw_os_error() == e.errno())
}

/// An epoll set.
#[derive(Clone)]
struct EpollSet(Arc<OwnedFd>);

impl WaitingPlace for EpollSet {
    type Connection = TcpStream;

    fn new(_: usize) -> Result<EpollSet, Failure> {
        epoll::create(epoll::CreateFlags::CLOEXEC).during("epoll").map(|fd| EpollSet(Arc::new(fd)))
    }

    fn add(&self, number: usize, stream: &TcpStream) -> Result<(), Failure> {
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.0, stream, data, epoll::EventFlags::IN).during("epoll")
    }

    fn answer(&self, all: &Table<TcpStream>) -> Result<(), Failure> {
        let mut ready = Vec::with_capacity(BATCH);
        loop {
            match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut ready), None) {
                Err(Errno::INTR) => {}
                other => other.map(drop).during("epoll")?,
            }
            for event in ready.drain(..) {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(stream) = all.get(number).and_then(OnceLock::get) else { continue };
                if !answer_one(stream).during("send or recv")? {
                    epoll::delete(&self.0, stream).during("epoll")?;
                }
            }
        }
    }
}

/// Sends back a message, which has come whole since it is short. False: the peer has gone.
fn answer_one(mut stream: &TcpStream) -> io::Result<bool> {
    let mut message = [0; SIZE];
    match stream.read(&mut message) {
        Ok(0) => return Ok(false),
        Ok(n) => stream.write_all(&message[..n])?,
        Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(false),
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => return Err(e),
    }
    Ok(true)
}
