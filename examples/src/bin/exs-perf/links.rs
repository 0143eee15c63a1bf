//! The connections of a job: the server waits for them, the client makes them, and both hand
//! them to parts.
//!
//! A connection lives in the shard of the queue with which it was made. So there is such a queue for
//! each thread, its door, and the threads share nothing.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use exs::{Completion, EventQueue, Socket, Token};
use exs_tools::args::Wait;
use exs_tools::fail::{During, Failure};
use exs_tools::plain::Plain;
use exs_tools::registered::stalled;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{Control, Place};
use crate::crew::Part;
use crate::exs_echo::{Ping, Pong};
use crate::exs_flow::Flow;
use crate::job::{Job, Test, Way};
use crate::plain_part::PlainPart;

/// How often a server that waits for connections looks whether the client is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Connected sockets of a job.
pub(crate) enum Links {
    Exs(Vec<Socket>),
    Plain(Vec<Plain>),
}

impl Links {
    fn none(job: &Job) -> Links {
        if job.way.is_plain() { Links::Plain(Vec::new()) } else { Links::Exs(Vec::new()) }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Links::Exs(all) => all.len(),
            Links::Plain(all) => all.len(),
        }
    }

    /// What carries them, as people read it.
    pub(crate) fn route(&self, way: Way) -> String {
        let route = match self {
            Links::Exs(all) => all.first().and_then(Socket::transport).map(|r| r.to_string()),
            Links::Plain(_) => None,
        };
        route.unwrap_or_else(|| way.to_string())
    }

    /// The name of the transport that carries them: what `auto` has come to.
    pub(crate) fn transport(&self, way: Way) -> String {
        let chosen = match self {
            Links::Exs(all) => all.first().and_then(Socket::transport),
            Links::Plain(_) => None,
        };
        chosen.map_or_else(|| way.to_string(), |route| route.transport.to_string())
    }

    /// A part for each thread; of plain sockets for each connection.
    pub(crate) fn parts(self, job: &Job, is_client: bool) -> Result<Vec<Box<dyn Part>>, Failure> {
        let sockets = match self {
            Links::Plain(all) => {
                let part = |s| Box::new(PlainPart::new(job, s, is_client)) as Box<dyn Part>;
                return Ok(all.into_iter().map(part).collect());
            }
            Links::Exs(all) => all,
        };
        let mut shares: Vec<Vec<Socket>> = (0..parts_of(job)).map(|_| Vec::new()).collect();
        let parts = shares.len();
        for (n, socket) in sockets.into_iter().enumerate() {
            shares[n % parts].push(socket);
        }
        let mut parts = Vec::new();
        for share in shares {
            let part: Box<dyn Part> = match (job.test, is_client) {
                (Test::Lat, true) => Box::new(Ping::new(job, share)?),
                (Test::Lat, false) => Box::new(Pong::new(job, share)?),
                _ => Box::new(Flow::new(job, share, is_client)?),
            };
            parts.push(part);
        }
        Ok(parts)
    }
}

/// How many threads move the EXS connections of a job.
fn parts_of(job: &Job) -> usize {
    job.threads.min(job.connections).max(1) as usize
}

/// The queues with which the connections are made, in turns: one for each thread.
fn doors(job: &Job) -> Result<Vec<EventQueue>, Failure> {
    (0..parts_of(job)).map(|_| EventQueue::new(2).during("event queue")).collect()
}

/// The client's: connects to where the server waits. `first` is called when the first of them
/// is there.
pub(crate) fn connect(
    job: &Job,
    server: SocketAddr,
    place: &Place,
    mut first: impl FnMut() -> Result<(), Failure>,
) -> Result<Links, Failure> {
    let mut links = Links::none(job);
    let doors = doors(job)?;
    for n in 0..job.connections {
        match (&mut links, place) {
            (Links::Exs(all), Place::Port(port)) => {
                let socket =
                    Socket::with_options(job.kind.into(), job.options()).during("socket")?;
                let addr = SocketAddr::new(server.ip(), *port);
                let what = format!("connection {} by {}", n + 1, job.way);
                let door = &doors[n as usize % doors.len()];
                socket.connect(door, Token(0), addr).during(what.clone())?;
                door.next().during(what.clone())?.into_result().during(what)?;
                all.push(socket);
            }
            (Links::Plain(all), Place::Port(port)) => {
                let addr = SocketAddr::new(server.ip(), *port);
                let stream = TcpStream::connect_timeout(&addr, job.patience());
                all.push(plain_tcp(stream.during("TCP connect")?, job)?);
            }
            (Links::Plain(all), Place::Abstract(name)) => {
                let addr = UnixAddr::from_abstract_name(name).during("UNIX-domain address")?;
                let stream = UnixStream::connect_addr(&addr)
                    .during("UNIX-domain sockets reach only servers on this host")?;
                all.push(plain_unix(stream, job)?);
            }
            (Links::Exs(_), Place::Abstract(_)) => {
                return Err(Failure("the server waits at an address of no network".to_owned()));
            }
        }
        if n == 0 {
            first()?;
        }
    }
    Ok(links)
}

/// Waits for a descriptor, for as long as [`LOOK`].
fn ready(fd: BorrowedFd<'_>) -> Result<(), Failure> {
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e).during("poll"),
    }
}

/// Where the server waits for one job's connections.
pub(crate) enum Listener {
    Exs(Socket),
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on the address that the client has called, or one of this host.
    pub(crate) fn new(job: &Job, here: SocketAddr) -> Result<(Listener, Place), Failure> {
        let any = SocketAddr::new(here.ip(), 0);
        match job.way {
            Way::Exs(_) => {
                let listener =
                    Socket::with_options(job.kind.into(), job.options()).during("socket")?;
                listener.bind(any)?;
                listener.listen(512).during(format!("listen by {}", job.way))?;
                let port = listener.local_addr().during("local address")?.port();
                Ok((Listener::Exs(listener), Place::Port(port)))
            }
            Way::Tcp => {
                let listener = TcpListener::bind(any).during("TCP listener")?;
                listener.set_nonblocking(true).during("TCP listener")?;
                let port = listener.local_addr().during("local address")?.port();
                Ok((Listener::Tcp(listener), Place::Port(port)))
            }
            Way::Unix => {
                // Of this process alone, one at a time: the control connection's port is its own.
                let name = format!("exs-perf-{}-{}", std::process::id(), here.port());
                let addr = UnixAddr::from_abstract_name(&name).during("UNIX-domain address")?;
                let listener = UnixListener::bind_addr(&addr).during("UNIX-domain listener")?;
                listener.set_nonblocking(true).during("UNIX-domain listener")?;
                Ok((Listener::Unix(listener), Place::Abstract(name)))
            }
        }
    }

    /// Takes all connections of the job, while the client is there.
    pub(crate) fn accept(
        &self,
        job: &Job,
        control: &Control,
        mut first: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Links, Failure> {
        let patience = job.patience();
        let doors = doors(job)?;
        let mut links = Links::none(job);
        if let Listener::Exs(listener) = self {
            listener.accept(&doors[0], Token(0)).during("accept")?;
        }
        let mut since = Instant::now();
        while links.len() < job.connections as usize {
            let before = links.len();
            self.take(job, &doors, &mut links)?;
            if before == 0 && links.len() > 0 {
                first()?;
            }
            if links.len() > before {
                since = Instant::now();
            } else if since.elapsed() >= patience {
                return Err(stalled(patience));
            }
            if control.is_over() {
                return Err(Failure("the client has gone before it connected".to_owned()));
            }
        }
        Ok(links)
    }

    /// The next connection, if one comes soon.
    fn take(&self, job: &Job, doors: &[EventQueue], links: &mut Links) -> Result<(), Failure> {
        match (self, links) {
            (Listener::Exs(listener), Links::Exs(all)) => {
                let door = |n: usize| &doors[n % doors.len()];
                let came = door(all.len()).dequeue(1, Some(LOOK)).during("accept")?.pop();
                let Some(event) = came else { return Ok(()) };
                if let Completion::Accept { socket, .. } =
                    event.into_completion().during("accept")?
                {
                    all.push(socket);
                }
                if all.len() < job.connections as usize {
                    listener.accept(door(all.len()), Token(0)).during("accept")?;
                }
            }
            (Listener::Tcp(listener), Links::Plain(all)) => {
                match some(listener.accept()).during("TCP accept")? {
                    Some((stream, _)) => all.push(plain_tcp(stream, job)?),
                    None => ready(listener.as_fd())?,
                }
            }
            (Listener::Unix(listener), Links::Plain(all)) => {
                match some(listener.accept()).during("accept")? {
                    Some((stream, _)) => all.push(plain_unix(stream, job)?),
                    None => ready(listener.as_fd())?,
                }
            }
            _ => return Err(Failure("the listener is of another kind".to_owned())),
        }
        Ok(())
    }
}

fn plain_tcp(stream: TcpStream, job: &Job) -> Result<Plain, Failure> {
    let plain = Plain::tcp(stream, job.wait == Wait::Busy);
    plain.and_then(|p| p.limit(job.patience())).during("TCP options")
}

fn plain_unix(stream: UnixStream, job: &Job) -> Result<Plain, Failure> {
    let plain = Plain::unix(stream, job.wait == Wait::Busy);
    plain.and_then(|p| p.limit(job.patience())).during("UNIX-domain socket")
}

/// None: not yet.
fn some<T>(accepted: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match accepted {
        Err(e) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&e.kind()) => Ok(None),
        other => other.map(Some),
    }
}
