//! `exs-cp serve`: one thread per connection, one request per connection.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::receive::serve_put;
use crate::auth::Secret;
use crate::cli::Serve;
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::disk::tree::{Entry, Found, walk};
use crate::error::{CpError, Trouble};
use crate::net::channel::{Channel, Intake};
use crate::net::pipe::{Listener, Pipe, Via};
use crate::net::session::{refuse, resolve, unexpected, welcome};
use crate::report::{Progress, Summary, tell};
use crate::transfer::sender::{Answers, Outgoing, SINCE, Sent, changed, send_file};
use crate::transfer::tally::Tally;
use crate::transfer::{MOST_CHUNKS, MOST_OUTSTANDING};
use crate::wire::frame::{Flags, Frame, Have, Id};

/// Connections served at once; each takes a thread and its buffers.
const MOST_CONNECTIONS: usize = 128;
/// Connections beyond those that are told so at once; that takes as much.
const MOST_REFUSALS: usize = 16;

struct Server {
    root: Root,
    secret: Option<Secret>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    via: Via,
    connections: AtomicUsize,
}

pub(crate) fn run(args: &Serve, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let address = resolve(&args.listen)?;
    let secret = args.token_file.as_deref().map(Secret::from_file).transpose()?;
    check_exposure(address, secret.is_some(), args.allow_anonymous)?;
    let root = Root::open(&args.dir).map_err(|e| CpError::local("serve", &args.dir, e))?;
    let mut listener = Listener::bind(address, &args.road).map_err(|e| {
        CpError::Usage(format!("cannot listen on {address}: {e}; choose another with --listen"))
    })?;
    let server = Arc::new(Server {
        root,
        secret,
        stop: Arc::clone(stop),
        tally: Arc::new(Tally::default()),
        via: Via::default(),
        connections: AtomicUsize::new(0),
    });
    tell(&format!("serving {} on {} (not encrypted)", args.dir.display(), listener.addr()?));
    let start = Instant::now();
    let progress = Progress::start(&server.tally, true);
    let served = accept_all(&server, &mut listener);
    progress.finish();
    // A client that is lost here is told by its connection's end.
    let patience = Instant::now() + Duration::from_secs(5);
    while server.connections.load(Ordering::Acquire) > 0 && Instant::now() < patience {
        // sleep-ok: a farewell: looks every so often whether the last client has gone.
        std::thread::sleep(Duration::from_millis(10));
    }
    let seconds = start.elapsed().as_secs_f64();
    Summary::new(&server.tally, seconds, true, server.via.names()).print(args.json);
    served.map(|()| 0)
}

/// Nobody is to serve a directory to the whole network by accident.
fn check_exposure(address: SocketAddr, token: bool, anonymous: bool) -> Result<(), CpError> {
    if token || anonymous || address.ip().is_loopback() {
        return Ok(());
    }
    Err(CpError::Usage(format!(
        "{address} is not a loopback address, so whoever reaches it could read and write the \
         directory: give --token-file FILE, or --allow-anonymous if that is what you want"
    )))
}

fn accept_all(server: &Arc<Server>, listener: &mut Listener) -> Result<(), CpError> {
    while !server.stop.load(Ordering::Relaxed) {
        let Some((peer, pipe)) = listener.accept(Duration::from_millis(200))? else { continue };
        let pipe = match pipe {
            Ok(pipe) => pipe,
            // Those that are served go on, and what is lacking comes back when they end.
            Err(e) => {
                tell(&format!("{peer}: the connection was dropped: {e}"));
                // sleep-ok: peers that come again at once are not to keep a processor busy.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let taken = server.connections.fetch_add(1, Ordering::AcqRel);
        if taken >= MOST_CONNECTIONS + MOST_REFUSALS {
            server.connections.fetch_sub(1, Ordering::AcqRel);
            tell(&format!("{peer}: too many connections; it was dropped without a word"));
            continue;
        }
        let mine = Arc::clone(server);
        let spawned = std::thread::Builder::new().name("connection".into()).spawn(move || {
            let place = Place(mine);
            connection(&place.0, pipe, taken >= MOST_CONNECTIONS);
        });
        if let Err(e) = spawned {
            server.connections.fetch_sub(1, Ordering::AcqRel);
            tell(&format!("cannot start a thread for a connection: {e}; it was dropped"));
        }
    }
    Ok(())
}

/// One of the connections served at once; free again whatever happens to it.
struct Place(Arc<Server>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

fn connection(server: &Server, pipe: Pipe, too_many: bool) {
    let peer = pipe.peer();
    server.via.note(&pipe);
    let served = Channel::new(pipe, peer.clone(), Arc::clone(&server.stop)).and_then(|mut ch| {
        if too_many {
            refuse(&mut ch, format!("{MOST_CONNECTIONS} connections are open already; try again"));
            return Err(CpError::Protocol("too many connections".into()));
        }
        let done = request(server, &mut ch);
        match done {
            Ok(()) => ch.close(),
            Err(e) => {
                if matches!(e, CpError::Wire(_) | CpError::Protocol(_) | CpError::Interrupted) {
                    refuse(&mut ch, e.to_string());
                }
                Err(e)
            }
        }
    });
    if let Err(e) = served {
        tell(&format!("{peer}: {e}"));
    }
}

fn request(server: &Server, ch: &mut Channel) -> Result<(), CpError> {
    match welcome(ch, server.secret.as_ref())? {
        Frame::List { path } => serve_list(server, ch, &path, false),
        Frame::Walk { path } => serve_list(server, ch, &path, true),
        Frame::Put { into, flags } => match server.root.below(&into) {
            Ok(root) => serve_put(ch, &root, flags, &server.tally),
            Err(e) => {
                let t = Trouble::io("use the directory", &into, e);
                refuse(ch, t.to_string());
                server.tally.trouble(&t);
                Ok(())
            }
        },
        Frame::Fetch { flags } => serve_fetch(server, ch, flags),
        other => Err(unexpected(&other)),
    }
}

/// `List` and `Walk`: entries, warnings, an end.
fn serve_list(
    server: &Server,
    ch: &mut Channel,
    path: &RelPath,
    deep: bool,
) -> Result<(), CpError> {
    walk(&server.root, path, deep, &mut |found| {
        ch.send(&match found {
            Found::Entry(Entry { path, meta, target }) => Frame::Entry { path, meta, target },
            Found::Skipped(t) => Frame::Warn { error: false, text: t.to_string() },
            Found::Failed(t) => Frame::Warn { error: true, text: t.to_string() },
        })
    })?;
    ch.send(&Frame::EndOfList)?;
    // The client closes first: so it has everything.
    ch.drain()
}

/// A file that a client asked for.
struct Wanted {
    id: Id,
    path: RelPath,
    source: crate::disk::meta::Meta,
    have: Have,
}

/// What one client still wants.
struct Counter<'a> {
    tally: &'a Tally,
    wanted: VecDeque<Wanted>,
    chunks: usize,
    given_up: HashSet<Id>,
    current: Option<Id>,
    bye: bool,
}

impl Answers for Counter<'_> {
    fn on_frame(&mut self, frame: Frame) -> Result<(), CpError> {
        match frame {
            Frame::Want { id, path, source, have } if !self.bye => {
                self.chunks += have.chunks.len();
                if self.wanted.len() >= MOST_OUTSTANDING || self.chunks > MOST_CHUNKS {
                    return Err(CpError::Protocol("more requests than this program makes".into()));
                }
                self.wanted.push_back(Wanted { id, path, source, have });
                Ok(())
            }
            // Only said of the file that is on its way; else it came too late.
            Frame::Done { id, ok: false, .. } => {
                if self.current == Some(id) {
                    self.given_up.insert(id);
                }
                Ok(())
            }
            Frame::Bye => {
                self.bye = true;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
    fn given_up(&self, id: Id) -> bool {
        self.given_up.contains(&id)
    }
    fn moved(&mut self, bytes: u64) {
        self.tally.moved(bytes);
    }
    fn resumed(&mut self, bytes: u64) {
        self.tally.resumed(bytes);
    }
}

/// `Fetch`: send what the client wants until it says bye.
fn serve_fetch(server: &Server, ch: &mut Channel, flags: Flags) -> Result<(), CpError> {
    ch.set_intake(Intake::Copy)?;
    let root = server.root.anew().map_err(|e| CpError::local("read", ".", e))?;
    let mut counter = Counter {
        tally: &server.tally,
        wanted: VecDeque::new(),
        chunks: 0,
        given_up: HashSet::new(),
        current: None,
        bye: false,
    };
    loop {
        while let Some(frame) = ch.try_frame()? {
            counter.on_frame(frame)?;
        }
        let Some(w) = counter.wanted.pop_front() else {
            if counter.bye {
                ch.send(&Frame::Bye)?;
                return ch.drain();
            }
            let frame = ch.frame()?;
            counter.on_frame(frame)?;
            continue;
        };
        counter.chunks -= w.have.chunks.len();
        counter.current = Some(w.id);
        let size = w.source.size;
        let Wanted { id, path, source: listed, have } = w;
        let out = Outgoing { id, root: &root, path: &path, listed, have, verify: flags.verify };
        match send_file(ch, &mut counter, &out)? {
            Sent::Gone if counter.given_up.is_empty() => server.tally.file_done(size),
            Sent::Gone => {}
            // The client has the list, and so has to ask again.
            Sent::Changed(_) => server.tally.trouble(&changed(&out, SINCE)),
            Sent::Failed(t) => server.tally.trouble(&t),
        }
        counter.given_up.clear();
        counter.current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_served_to_anybody() {
        let open = |a: &str, token, anonymous| {
            check_exposure(a.parse().unwrap(), token, anonymous).is_ok()
        };
        assert!(open("127.0.0.1:1", false, false) && open("[::1]:1", false, false));
        assert!(!open("0.0.0.0:1", false, false) && !open("[::]:1", false, false));
        assert!(!open("192.0.2.1:1", false, false));
        assert!(open("192.0.2.1:1", true, false) && open("0.0.0.0:1", false, true));
    }
}
