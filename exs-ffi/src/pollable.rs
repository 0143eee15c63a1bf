//! What poll(2), select(2) and epoll find at the descriptor of an EXS socket.
//!
//! The descriptor is one end of a socketpair(2), and what the kernel says of it is what
//! lies in that pair. So the library puts something there:
//! - a byte that its own end sends: then the program's end is readable (POLLIN). It lies
//!   there while `exs_recv` or `exs_accept` would not wait;
//! - bytes that the program's end sends to ours, more than there is room for: then it is
//!   not writable (POLLOUT). They lie there while a connect is under way, and from the
//!   moment on that a send found no room until there is some (`late`).
//!
//! A POLLIN too many does no harm (the call that follows says EAGAIN); one too few would
//! make a program sleep for ever. So a byte is taken back only when nothing is there, and
//! then a poll of the engine's is *armed* in the same step, which has the watching thread
//! put the byte back.
//!
//! All this costs something each time that it changes, and who receives through a queue
//! does not need it. So the first receive or accept that is given a queue ends it (`AUTO`),
//! unless the program has asked for it (`ON`, by EXS_SO_POLLABLE).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use exs::{Interest, Token};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL};

use crate::error::Result;
use crate::poll::{INNER, inner};
use crate::sockets::{self, Entry, Target};

/// Nothing is shown.
const OFF: u8 = 0;
/// Until something is received through a queue.
const AUTO: u8 = 1;
/// The program has asked for it.
const ON: u8 = 2;

/// Sockets that are `ON`: only while there are some, the events of receives are looked at.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// More than the program's end can send when its buffer is as small as can be.
static PLUG: [u8; 4096] = [0; 4096];

/// What is shown of a socket.
#[derive(Default)]
pub(crate) struct Face {
    mode: AtomicU8,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    /// The byte lies there.
    readable: bool,
    /// A poll will tell of what comes.
    armed: bool,
    /// It cannot be written.
    plugged: bool,
}

impl Drop for Face {
    fn drop(&mut self) {
        if *self.mode.get_mut() == ON {
            ASKED.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Face {
    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is held no copy of the program's end is made: who closes it sees whether
    /// it was the last.
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.shown()
    }

    /// For EXS_SO_POLLABLE.
    pub(crate) fn is_shown(&self) -> bool {
        self.mode() != OFF
    }
}

/// A new socket has its descriptor.
pub(crate) fn begin(entry: &Entry) {
    entry.face.mode.store(AUTO, Ordering::Release);
    arm(entry, &mut entry.face.shown());
}

/// EXS_SO_POLLABLE.
pub(crate) fn set(entry: &Entry, fd: c_int, on: bool) -> Result<()> {
    inner()?;
    let before = entry.face.mode.swap(if on { ON } else { OFF }, Ordering::AcqRel);
    match (before == ON, on) {
        (false, true) => _ = ASKED.fetch_add(1, Ordering::AcqRel),
        (true, false) => _ = ASKED.fetch_sub(1, Ordering::AcqRel),
        _ => {}
    }
    if on {
        refresh(entry, fd)
    } else {
        clear(entry, fd)
    }
    Ok(())
}

/// A receive or an accept was posted with a queue.
pub(crate) fn by_queue(entry: &Entry, fd: c_int) {
    if entry.face.mode() == AUTO {
        let turned =
            entry.face.mode.compare_exchange(AUTO, OFF, Ordering::AcqRel, Ordering::Acquire);
        if turned.is_ok() {
            clear(entry, fd);
        }
    }
}

/// Something was received, or accepted, or was not there: shows what there is now.
pub(crate) fn refresh(entry: &Entry, fd: c_int) {
    if entry.face.mode() == OFF {
        return;
    }
    let mut shown = entry.face.shown();
    let ready = entry.socket.readiness();
    if ready.readable || ready.error {
        put(entry, &mut shown);
        return;
    }
    take_back(entry, fd, &mut shown);
    // What came just now is told by this one.
    arm(entry, &mut shown);
}

/// The same, after an event of a socket that is known by its number.
pub(crate) fn taken(fd: c_int) {
    if ASKED.load(Ordering::Relaxed) > 0
        && let Ok(Target::Exs(entry)) = sockets::find(fd)
    {
        refresh(&entry, fd);
    }
}

/// The poll that was armed has ended. (The watching thread.)
pub(crate) fn found(entry: &Entry) {
    let mut shown = entry.face.shown();
    shown.armed = false;
    if entry.face.mode() == OFF {
        return;
    }
    let ready = entry.socket.readiness();
    if ready.readable || ready.error {
        put(entry, &mut shown);
    } else {
        // Somebody has taken it meanwhile.
        arm(entry, &mut shown);
    }
}

fn arm(entry: &Entry, shown: &mut Shown) {
    let Some(queue) = INNER.get().filter(|_| !shown.armed) else { return };
    let posted = entry.socket.poll(queue, Token(entry.inode()), Interest::READABLE);
    shown.armed = posted.is_ok();
}

/// Makes the program's end readable.
fn put(entry: &Entry, shown: &mut Shown) {
    if !std::mem::replace(&mut shown.readable, true) {
        let ours = entry.ours().as_raw_fd();
        // SAFETY: sends one byte that is alive for the call. If it fails, the program's end
        // is closed, or so full that it is readable.
        unsafe { libc::send(ours, PLUG.as_ptr().cast(), 1, MSG_DONTWAIT | MSG_NOSIGNAL) };
    }
}

/// The program's end, under a number that nobody closes, if `fd` still names it.
fn theirs(entry: &Entry, fd: c_int) -> Option<OwnedFd> {
    // SAFETY: takes no pointers.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return None;
    }
    // SAFETY: just made, and nobody else's.
    let own = unsafe { OwnedFd::from_raw_fd(copy) };
    sockets::stat(copy).is_ok_and(|st| st.st_ino == entry.inode()).then_some(own)
}

fn drain(fd: &OwnedFd) {
    let mut bytes = [0u8; PLUG.len()];
    loop {
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: room for as many bytes as it is told; there may be none.
        let n = unsafe { libc::recv(fd.as_raw_fd(), to, bytes.len(), MSG_DONTWAIT) };
        if n <= 0 {
            return;
        }
    }
}

/// Takes the byte back.
fn take_back(entry: &Entry, fd: c_int, shown: &mut Shown) {
    if shown.readable
        && let Some(theirs) = theirs(entry, fd)
    {
        drain(&theirs);
        shown.readable = false;
    }
}

fn clear(entry: &Entry, fd: c_int) {
    take_back(entry, fd, &mut entry.face.shown());
    unplug(entry);
}

/// A connect is under way, or a send has found no room: it is not writable.
pub(crate) fn plug(entry: &Entry, fd: c_int) {
    let mut shown = entry.face.shown();
    if entry.face.mode() == OFF || shown.plugged {
        return;
    }
    let Some(theirs) = theirs(entry, fd) else { return };
    shown.plugged = true;
    loop {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: sends bytes that are alive for the call.
        let n = unsafe { libc::send(theirs.as_raw_fd(), PLUG.as_ptr().cast(), 1024, flags) };
        if n < 0 {
            return;
        }
    }
}

/// There is room again, or the connect has ended.
pub(crate) fn unplug(entry: &Entry) {
    let mut shown = entry.face.shown();
    if std::mem::take(&mut shown.plugged) {
        drain(entry.ours());
    }
}
