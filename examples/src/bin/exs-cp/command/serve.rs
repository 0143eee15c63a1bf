//! `exs-cp serve`: one thread per connection, one request per connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::door::{Door, NoPlace, Ticket};
use super::receive::serve_put;
use crate::auth::Secret;
use crate::cli::Serve;
use crate::disk::relpath::{Purpose, RelPath};
use crate::disk::root::Root;
use crate::disk::tree::{Entry, Found, walk};
use crate::error::{CpError, Trouble};
use crate::net::channel::{Channel, Intake};
use crate::net::pipe::{Listener, Pipe, Via};
use crate::net::session::{refuse, resolve, unexpected, welcome};
use crate::report::{Progress, Summary, tell};
use crate::transfer::sender::{Answers, Outgoing, SINCE, Sent, changed, send_file};
use crate::transfer::tally::{Proof, Tally};
use crate::transfer::{MOST_CHUNKS, MOST_OUTSTANDING, weight};
use crate::wire::frame::{Flags, Frame, Have, Id};

/// How often the accepting thread looks at the stop flag.
const TICK: Duration = Duration::from_millis(200);

struct Server {
    root: Root,
    secret: Option<Secret>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    via: Via,
    door: Arc<Door>,
    idle: Duration,
    /// Set-user-ID and the like may be set.
    special: bool,
}

pub(crate) fn run(args: &Serve, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let address = resolve(&args.listen)?[0];
    let secret = args.token_file.as_deref().map(Secret::from_file).transpose()?;
    check_exposure(address, secret.is_some(), args.allow_anonymous)?;
    if args.dir == Path::new("-") {
        return Err(CpError::no_stdio("a standard stream"));
    }
    let root = Root::open(&args.dir).map_err(|e| CpError::local("serve", &args.dir, e))?;
    let mut listener = Listener::bind(address, &args.road)
        .map_err(|e| CpError::Usage(format!("{e}; choose another address with --listen")))?;
    let server = Arc::new(Server {
        root,
        secret,
        stop: Arc::clone(stop),
        tally: Arc::new(Tally::default()),
        via: Via::default(),
        door: Arc::default(),
        idle: Duration::from_secs(args.idle_timeout),
        special: args.preserve_special,
    });
    tell(&format!("serving {} on {} (not encrypted)", args.dir.display(), listener.addr()?));
    let start = Instant::now();
    let progress = Progress::start(&server.tally, true);
    let served = accept_all(&server, &mut listener);
    progress.finish();
    // A client that is lost here is told by its connection's end.
    let patience = Instant::now() + Duration::from_secs(5);
    while server.door.count() > 0 && Instant::now() < patience {
        // sleep-ok: a farewell: looks every so often whether the last client has gone.
        std::thread::sleep(Duration::from_millis(10));
    }
    let seconds = start.elapsed().as_secs_f64();
    Summary::new(&server.tally, seconds, None, server.via.names()).print(args.json);
    served.map(|()| 0)
}

/// Refuses an address that other hosts reach, unless a token or the user's word allows it.
fn check_exposure(address: SocketAddr, token: bool, anonymous: bool) -> Result<(), CpError> {
    if token || anonymous || address.ip().is_loopback() {
        return Ok(());
    }
    Err(CpError::Usage(format!(
        "{address} is not a loopback address, so every host that reaches it could read and write \
         the directory: give --token-file FILE, or --allow-anonymous if that is what you want"
    )))
}

fn accept_all(server: &Arc<Server>, listener: &mut Listener) -> Result<(), CpError> {
    while !server.stop.load(Ordering::Relaxed) {
        let Some((peer, pipe)) = listener.accept(TICK)? else { continue };
        let pipe = match pipe {
            Ok(pipe) => pipe,
            // Other connections go on, and what is lacking comes back when they end.
            Err(e) => {
                tell(&format!("{peer}: the connection was dropped: {e}"));
                // sleep-ok: peers that come again at once would keep a processor busy.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let ticket = loop {
            match server.door.enter(peer.ip(), pipe.cut(), TICK) {
                None if !server.stop.load(Ordering::Relaxed) => {}
                ticket => break ticket,
            }
        };
        let Some(ticket) = ticket else { break };
        let mine = Arc::clone(server);
        // The ticket ends with the closure, also if there can be no thread.
        let spawned = std::thread::Builder::new()
            .name("connection".into())
            .spawn(move || connection(&mine, pipe, ticket));
        if let Err(e) = spawned {
            tell(&format!("{peer}: cannot start a thread for it: {e}; it was dropped"));
        }
    }
    Ok(())
}

fn connection(server: &Server, pipe: Pipe, mut ticket: Ticket) {
    let peer = pipe.peer();
    server.via.note(&pipe);
    let served = Channel::new(pipe, peer.clone(), Arc::clone(&server.stop)).and_then(|mut ch| {
        let done = request(server, &mut ch, &mut ticket);
        match &done {
            Ok(()) => return ch.close(),
            Err(e @ (CpError::Wire(_) | CpError::Protocol(_) | CpError::Busy)) => {
                refuse(&mut ch, e.to_string())?;
            }
            // A client that is still at its proof would take this for an answer to it.
            Err(e @ CpError::Interrupted) if ticket.is_proved() => refuse(&mut ch, e.to_string())?,
            Err(_) => {}
        }
        done
    });
    if let Err(e) = served {
        let e = if ticket.was_sent_away() { CpError::SentAway } else { e };
        let text = e.to_string();
        // Some errors name the peer themselves.
        let prefix = if text.contains(&peer) { String::new() } else { format!("{peer}: ") };
        tell(&format!("{prefix}{text}"));
    }
}

fn request(server: &Server, ch: &mut Channel, ticket: &mut Ticket) -> Result<(), CpError> {
    let secret = server.secret.as_ref();
    let prove = || match ticket.prove(secret.is_none()) {
        Ok(()) => Ok(()),
        Err(NoPlace::Full) => Err(CpError::Busy),
        Err(NoPlace::SentAway) => Err(CpError::SentAway),
    };
    let request = welcome(ch, secret, prove)?;
    ch.set_idle(server.idle);
    if let Err(e) = server.root.check_there() {
        tell(&e.to_string());
        return refuse(ch, e.to_string());
    }
    match request {
        Frame::List { path } => serve_list(server, ch, &path, false),
        Frame::Walk { path } => serve_list(server, ch, &path, true),
        Frame::Put { flags, .. } if flags.special && !server.special => {
            let why = "it does not take set-user-ID, set-group-ID and sticky bits: start it with \
                       --preserve-special, or leave the option off here";
            refuse(ch, why.to_owned())
        }
        Frame::Put { into, flags } => match place(server, &into) {
            Ok(root) => serve_put(ch, &root, flags, &server.tally),
            Err(t) => {
                server.tally.trouble(&t);
                refuse(ch, t.to_string())
            }
        },
        Frame::Fetch { flags } => serve_fetch(server, ch, flags),
        other => Err(unexpected(&other)),
    }
}

/// The directory that a client puts things into.
fn place(server: &Server, into: &RelPath) -> Result<Root, Trouble> {
    into.check(Purpose::Place).map_err(|e| Trouble::of(into, e))?;
    server.root.below(into).map_err(|e| Trouble::at_destination("use the directory", into, e))
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
    /// Sent, with their sizes; the client has the last word.
    gone: HashMap<Id, u64>,
    verify: bool,
    current: Option<Id>,
    bye: bool,
}

impl Answers for Counter<'_> {
    fn on_frame(&mut self, frame: Frame) -> Result<(), CpError> {
        match frame {
            Frame::Want { id, path, source, have } if !self.bye => {
                self.chunks += weight(&path, have.chunks.len());
                if self.wanted.len() >= MOST_OUTSTANDING || self.chunks > MOST_CHUNKS {
                    return Err(CpError::Protocol("more requests than this program makes".into()));
                }
                self.wanted.push_back(Wanted { id, path, source, have });
                Ok(())
            }
            // Of the file that is on its way, or of a file that has been sent.
            Frame::Done { id, ok, .. } => {
                let gone = self.gone.remove(&id);
                if let (Some(size), true) = (gone, ok) {
                    self.tally.file_done(size, Proof::by(self.verify));
                } else if self.current == Some(id) && !ok {
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
    ch.say_busy(flags.compare);
    let root = server.root.fresh().map_err(|e| CpError::local("read", ".", e))?;
    let mut counter = Counter {
        tally: &server.tally,
        wanted: VecDeque::new(),
        chunks: 0,
        given_up: HashSet::new(),
        gone: HashMap::new(),
        verify: flags.verify,
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
        counter.chunks -= weight(&w.path, w.have.chunks.len());
        counter.current = Some(w.id);
        let size = w.source.size;
        let Wanted { id, path, source: listed, have } = w;
        let out = Outgoing { id, root: &root, path: &path, listed, have, verify: flags.verify };
        match send_file(ch, &mut counter, &out)? {
            Sent::Gone if !counter.given_up.is_empty() => {}
            Sent::Gone if flags.compare => {
                counter.gone.insert(id, size);
                if counter.gone.len() > MOST_OUTSTANDING {
                    return Err(CpError::Protocol("more files than it took".into()));
                }
            }
            // An older client says nothing of what it has done with the file.
            Sent::Gone => server.tally.file_done(size, Proof::Unchecked),
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
