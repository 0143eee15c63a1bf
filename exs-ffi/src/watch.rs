//! The watching thread sees what no call is there to see: descriptors that the program closes,
//! and queues that announce their events by a signal.
//!
//! It sleeps in a poll of its own, apart from the reactor that moves data. It starts with the
//! first socket or queue that needs it.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use exs::__ffi::ProcessLock;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use crate::error::{Fail, Result};
use crate::{late, pair, poll, queues, sockets};

static REGISTRY: ProcessLock<Option<Registry>> = ProcessLock::new(None);

/// The kind of a token: its two lowest bits.
const SOCKET: usize = 0;
const QUEUE: usize = 1;
const INNER: usize = 2;
const LATE: usize = 3;
/// The token of the waker. No inode is so large.
const WAKE: usize = usize::MAX - 3;

/// Wakes the thread.
static WAKER: OnceLock<Waker> = OnceLock::new();

/// Registers with the thread's poll, and starts the thread if there is none.
fn with<T>(f: impl FnOnce(&Registry) -> io::Result<T>) -> Result<T> {
    let mut registry = REGISTRY.lock();
    let registry = match &mut *registry {
        Some(r) => r,
        none => none.insert(start().map_err(|e| Fail::io("starting the watching thread", &e))?),
    };
    f(registry).map_err(|e| Fail::io("epoll_ctl", &e))
}

fn start() -> io::Result<Registry> {
    let poll = Poll::new()?;
    let registry = poll.registry().try_clone()?;
    let _ = WAKER.set(Waker::new(&registry, Token(WAKE))?);
    let before = set_mask(&all_signals());
    // The new thread inherits the mask: the program's signals are for the program's threads.
    let started = std::thread::Builder::new().name("exs-watch".into()).spawn(|| run(poll));
    set_mask(&before);
    started.map(|_| registry)
}

fn all_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: filled by the call above.
    unsafe { all.assume_init() }
}

/// Sets the thread's mask and returns the one before.
fn set_mask(mask: &libc::sigset_t) -> libc::sigset_t {
    let mut before = *mask;
    // SAFETY: two sets that are initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before) };
    before
}

fn run(mut poll: Poll) {
    let mut events = Events::with_capacity(64);
    loop {
        // The kernel does not report when the program closes a broken connection.
        let sweep = pair::any_broken().then_some(pair::SWEEP);
        match poll.poll(&mut events, sweep) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // The epoll is the thread's own, and no other thread closes it, so this does not
            // happen.
            Err(_) => return,
        }
        if events.is_empty() && sweep.is_some() {
            sockets::sweep();
        }
        for e in &events {
            let (name, of) = (e.token().0 >> 2, e.token().0 & 3);
            match of {
                SOCKET => sockets::hung_up(name as u64),
                LATE => {
                    if let Some(entry) = sockets::by_inode(name as u64) {
                        late::reap(&entry, false);
                    }
                }
                QUEUE => queues::announce(c_int::try_from(name).unwrap_or(-1)),
                _ => poll::inner_events(),
            }
        }
    }
}

/// Watches for the close of the program's end of a pair. `inode` names the pair. The kernel
/// always reports a hang-up; nothing else that happens there matters.
pub(crate) fn socket(fd: RawFd, inode: u64) -> Result<()> {
    let name = usize::try_from(inode).unwrap_or(usize::MAX);
    with(|r| r.register(&mut SourceFd(&fd), Token((name << 2) | SOCKET), Interest::PRIORITY))
}

/// Watches the descriptor of a queue with this handle.
pub(crate) fn queue(fd: c_int, handle: c_int) -> Result<()> {
    let name = usize::try_from(handle).unwrap_or(0);
    with(|r| r.register(&mut SourceFd(&fd), Token((name << 2) | QUEUE), Interest::READABLE))
}

/// Watches the descriptor of the library's own queue.
pub(crate) fn inner(fd: c_int) -> Result<()> {
    with(|r| r.register(&mut SourceFd(&fd), Token(INNER), Interest::READABLE))
}

/// Watches the queue of a socket's own sends. `inode` names the socket.
pub(crate) fn late(fd: c_int, inode: u64) -> Result<()> {
    let name = usize::try_from(inode).unwrap_or(usize::MAX);
    with(|r| r.register(&mut SourceFd(&fd), Token((name << 2) | LATE), Interest::READABLE))
}

/// Wakes the thread because a connection broke: it must now look at broken connections.
pub(crate) fn look_again() {
    // If there are others, it does so already.
    if let Some(waker) = WAKER.get() {
        let _ = waker.wake();
    }
}

/// Stops watching a descriptor.
pub(crate) fn forget(fd: c_int) {
    // If it was not watched, nothing is left to do.
    let _ = with(|r| r.deregister(&mut SourceFd(&fd)));
}
