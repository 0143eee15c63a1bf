//! The thread that serves readers.
//!
//! It sleeps in the kernel until a reader connects. Several readers are served in turns, a piece of
//! the snapshot at a time, so none waits for another.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener as StdListener;
use std::time::{Duration, Instant};

use mio::net::{UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token};

use super::text::Snapshot;
use crate::sys::{HeldSignals, effective_uid, peer_cred};

/// The most readers at a time. Others wait in the listener's backlog.
const READERS: usize = 8;
/// The time for which a reader may take nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause after an error of the kernel, as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The token of the listener. Readers have the tokens below it.
const LISTENER: Token = Token(READERS);

/// A reader that is being served.
struct Served {
    stream: UnixStream,
    snapshot: Snapshot,
    text: String,
    /// The bytes of `text` that the reader has taken.
    taken: usize,
    /// The time at which the reader last took something.
    took: Instant,
}

impl Served {
    /// Writes as much as the reader takes. False: the reader is served, or has gone.
    fn write(&mut self) -> bool {
        loop {
            if self.taken == self.text.len() {
                self.text.clear();
                self.taken = 0;
                if !self.snapshot.next_piece(&mut self.text) {
                    return false;
                }
            }
            // The thread holds all signals, so a reader that has gone raises no SIGPIPE.
            match self.stream.write(&self.text.as_bytes()[self.taken..]) {
                Ok(n) => {
                    self.taken += n;
                    self.took = Instant::now();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// True if the process at the other end may read the figures of this process.
fn may_read(stream: &UnixStream) -> bool {
    peer_cred(stream.as_fd()).is_ok_and(|cred| cred.uid == 0 || cred.uid == effective_uid())
}

struct Server {
    poll: Poll,
    listener: UnixListener,
    readers: [Option<Served>; READERS],
    /// A reader may wait to be accepted.
    calls: bool,
}

/// Starts the thread.
///
/// # Errors
/// The kernel's error.
pub(super) fn start(listener: StdListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut listener = UnixListener::from_std(listener);
    let poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut server = Server { poll, listener, readers: Default::default(), calls: false };
    // The thread inherits this mask: the program's signals are for the program's threads.
    let _held = HeldSignals::new();
    let run = move || {
        let mut events = Events::with_capacity(READERS + 1);
        loop {
            server.turn(&mut events);
        }
    };
    std::thread::Builder::new().name("exs-stats".into()).spawn(run).map(drop)
}

impl Server {
    /// Sleeps until there is something to do, and does it.
    fn turn(&mut self, events: &mut Events) {
        let waits =
            self.readers.iter().flatten().map(|r| PATIENCE.saturating_sub(r.took.elapsed()));
        let retry = self.calls.then_some(PAUSE);
        let polled = self.poll.poll(events, waits.chain(retry).min());
        if polled.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted) {
            // sleep-ok: the thread cannot sleep in its poll, and must not spin
            std::thread::sleep(PAUSE);
        }
        for event in events.iter() {
            match self.readers.get_mut(event.token().0) {
                Some(reader) => serve(reader),
                None => self.calls = true,
            }
        }
        for reader in &mut self.readers {
            if reader.as_ref().is_some_and(|r| r.took.elapsed() >= PATIENCE) {
                crate::trace::debug!("a reader of the figures stalls, and is dropped");
                *reader = None;
            }
        }
        if self.calls {
            self.calls = self.accept();
        }
    }

    /// Accepts the readers that wait. True: one may wait still.
    fn accept(&mut self) -> bool {
        while let Some(free) = self.readers.iter().position(Option::is_none) {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) => {
                    crate::trace::debug!("a reader of the figures cannot be accepted: {e}");
                    return true;
                }
            };
            if !may_read(&stream) {
                crate::trace::info!("a process of another user may not read the figures");
                continue;
            }
            if self.poll.registry().register(&mut stream, Token(free), Interest::WRITABLE).is_err()
            {
                continue;
            }
            let (snapshot, text, took) = (Snapshot::default(), String::new(), Instant::now());
            self.readers[free] = Some(Served { stream, snapshot, text, taken: 0, took });
            serve(&mut self.readers[free]);
        }
        true
    }
}

fn serve(reader: &mut Option<Served>) {
    if reader.as_mut().is_some_and(|r| !r.write()) {
        *reader = None;
    }
}
