//! The socketpair(2) behind a descriptor, and how it is made to look like a connection.
//!
//! The program holds one end, the library the other. poll(2) and its kin report of the program's end
//! what the kernel knows of the pair:
//!
//! | the program must see | what the library does |
//! |---|---|
//! | POLLIN | a message lies in the queue of the program's end |
//! | a new edge of EPOLLET | one more message is sent there, perhaps of no bytes |
//! | FIONREAD | these messages have that many bytes in all |
//! | no POLLOUT | messages of the program's end fill its send buffer |
//! | POLLIN and POLLRDHUP, for ever | the library's end is shut down for writing |
//! | POLLHUP beside them | it is shut down for both |
//! | POLLERR beside them | it is closed while a message of the program's end lies there unread: the kernel takes that for a reset |
//!
//! So one byte of the program's end always lies in the queue of the library's end ([`Pair::new`]).
//!
//! When the last copy of the program's end is closed, the library's end hangs up. After both directions
//! were shut down, it has hung up already; after the library has closed its end, there is nothing to
//! see. Then the library looks at the descriptors of the process ([`is_open`]): at the number that a call
//! gave last, and if that names another file by now, at all of them. An end that is shut down has
//! another edge when the program's end is closed, and the watching thread looks then. At the ends of
//! broken connections it looks every [`SWEEP`].
//!
//! The pair is of the type SOCK_SEQPACKET, whose messages may have no bytes.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL};

use crate::error::{Fail, Result};
use crate::{poll, sockets, watch};

/// The time between two looks for broken connections that the program has closed.
pub(crate) const SWEEP: Duration = Duration::from_secs(10);

/// Connections that broke and are not yet closed.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// True if there are connections to look at every [`SWEEP`].
pub(crate) fn any_broken() -> bool {
    BROKEN.load(Ordering::Relaxed) > 0
}

/// Most bytes that FIONREAD can report.
pub(crate) const MOST_SHOWN: usize = 4096;

/// Bytes to send.
static BYTES: [u8; MOST_SHOWN] = [0; MOST_SHOWN];

/// The send buffer of the program's end, which the kernel doubles: some ten messages fill it.
static SMALL: c_int = 4096;

/// How much of a connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// Nothing.
    #[default]
    None,
    /// The peer's direction.
    Peers,
    /// Both directions.
    Both,
    /// It broke.
    Broken,
}

/// The two ends of a socket that is being made. Everything that can fail is done.
#[derive(Debug)]
pub(crate) struct Pair {
    inode: u64,
    /// The program's end; None once the program has it.
    theirs: Option<OwnedFd>,
    /// The library's end; None once the connection has broken.
    ours: Option<OwnedFd>,
    end: End,
    /// Lengths of the messages that lie in the queue of the program's end.
    lying: VecDeque<u16>,
    /// Messages that fill the send buffer of the program's end.
    plugs: usize,
    /// The last known number of the program's end.
    number: c_int,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.end == End::Broken {
            BROKEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// True if a descriptor of this process names the socket.
fn is_open(inode: u64, number: c_int) -> bool {
    let names = |fd: c_int| sockets::stat(fd).is_ok_and(|st| st.st_ino == inode);
    if names(number) {
        return true;
    }
    // Without /proc the library cannot know.
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return true };
    all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).any(names)
}

/// Sends a message of `len` bytes without waiting; false if the kernel does not take it.
fn send(fd: &OwnedFd, len: usize) -> bool {
    let bytes = &BYTES[..len.min(MOST_SHOWN)];
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: bytes that are alive for the call.
    let n = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    n >= 0
}

/// Takes a message without waiting; false if there is none.
fn take(fd: &OwnedFd) -> bool {
    let mut byte = 0u8;
    let to = (&raw mut byte).cast();
    // SAFETY: room for one byte; the kernel throws the rest of the message away.
    let n = unsafe { libc::recv(fd.as_raw_fd(), to, 1, MSG_DONTWAIT) };
    n >= 0
}

impl Pair {
    /// Makes the ends.
    pub(crate) fn new(nonblocking: bool) -> Result<Pair> {
        let flags = libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        let mut fds = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | flags;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
        if made != 0 {
            return Err(Fail::os("socketpair"));
        }
        // SAFETY: just made, with no other owner.
        let [theirs, ours] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let inode = sockets::stat(theirs.as_raw_fd())?.st_ino;
        let len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
        let at = (&raw const SMALL).cast();
        // SAFETY: an int that is alive for the call.
        unsafe { libc::setsockopt(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, len) };
        if !send(&theirs, 1) {
            return Err(Fail::os("send"));
        }
        poll::inner()?;
        watch::socket(ours.as_raw_fd(), inode)?;
        let (lying, end) = (VecDeque::new(), End::None);
        let (theirs, ours) = (Some(theirs), Some(ours));
        Ok(Pair { inode, theirs, ours, end, lying, plugs: 0, number: -1 })
    }

    /// The name of the socket.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// The program's end, for the program.
    pub(crate) fn give(&mut self) -> Option<OwnedFd> {
        self.number = self.theirs.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        self.theirs.take()
    }

    /// Notes the number that a call has used.
    pub(crate) fn note(&mut self, fd: c_int) {
        self.number = fd;
    }

    /// True if the program has closed the last copy of its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        match (&self.ours, self.end) {
            (Some(ours), End::None | End::Peers) => hung_up(ours),
            _ => !is_open(self.inode, self.number),
        }
    }

    /// The same for the copy that `exs_close` has just closed. If nothing can be read or sent any more,
    /// that copy counts as the last one. A search for others would take long in a program that has many
    /// descriptors, and the kernel reports the end at such a copy anyway.
    pub(crate) fn is_closed(&self, unread: bool) -> bool {
        match self.end {
            End::Both | End::Broken if !unread => true,
            _ => self.is_hung_up(),
        }
    }

    /// The messages that lie in the program's queue, and their bytes.
    pub(crate) fn lying(&self) -> (usize, usize) {
        (self.lying.len(), self.lying.iter().map(|len| usize::from(*len)).sum())
    }

    /// True while messages can be sent to the program's end.
    pub(crate) fn is_open(&self) -> bool {
        self.end == End::None
    }

    /// True if it shows that the connection broke.
    pub(crate) fn is_broken(&self) -> bool {
        self.end == End::Broken
    }

    /// Makes the program's end readable, with `len` bytes more, and an edge. It does nothing if hundreds of
    /// messages lie there, because the program has not read since the first of them.
    pub(crate) fn put(&mut self, len: usize) {
        let len = len.min(MOST_SHOWN);
        if let Some(ours) = &self.ours
            && self.is_open()
            && send(ours, len)
        {
            self.lying.push_back(u16::try_from(len).unwrap_or(u16::MAX));
        }
    }

    /// Takes the oldest messages back, which needs a copy of the program's end.
    pub(crate) fn take_back(&mut self, fd: c_int, count: usize) {
        if count > 0
            && let Some(theirs) = self.theirs(fd)
        {
            for _ in self.lying.drain(..count.min(self.lying.len())) {
                take(&theirs);
            }
        }
    }

    /// Takes the oldest messages back while at least `len` bytes stay in the others. Makes no edge.
    pub(crate) fn shorten(&mut self, fd: c_int, len: usize) {
        let mut left = self.lying().1;
        let too_many = |n: &&u16| {
            left -= usize::from(**n);
            len == 0 || left >= len
        };
        let count = self.lying.iter().take_while(too_many).count();
        self.take_back(fd, count);
    }

    /// The program's end, under a number that the program cannot close, if `fd` still names it.
    fn theirs(&self, fd: c_int) -> Option<OwnedFd> {
        // SAFETY: takes no pointers.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return None;
        }
        // SAFETY: just made, with no other owner.
        let own = unsafe { OwnedFd::from_raw_fd(copy) };
        sockets::stat(copy).is_ok_and(|st| st.st_ino == self.inode).then_some(own)
    }

    /// Makes the program's end not writable.
    pub(crate) fn plug(&mut self, fd: c_int) {
        if self.plugs == 0
            && let Some(theirs) = self.theirs(fd)
        {
            while send(&theirs, 1) {
                self.plugs += 1;
            }
        }
    }

    /// Makes it writable again. One message stays, as always.
    pub(crate) fn unplug(&mut self) {
        for _ in 0..std::mem::take(&mut self.plugs) {
            self.ours.as_ref().map(take);
        }
    }

    /// The connection has ended so far.
    pub(crate) fn end(&mut self, to: End) {
        if to <= self.end {
            return;
        }
        self.end = to;
        match (to, &self.ours) {
            (End::Broken, _) => {
                BROKEN.fetch_add(1, Ordering::Relaxed);
                self.ours = None;
                watch::look_again();
            }
            (End::Both, Some(ours)) => shut_down(ours, libc::SHUT_RDWR),
            (_, Some(ours)) => shut_down(ours, libc::SHUT_WR),
            (_, None) => {}
        }
    }

    /// Gives one more edge to a program that has read all data before the end: one edge may have
    /// announced both.
    pub(crate) fn remind(&self) {
        if let (Some(ours), End::Peers | End::Both) = (&self.ours, self.end) {
            shut_down(ours, libc::SHUT_WR);
        }
    }

    /// Notes that the program knows the error: poll(2) no longer reports POLLERR.
    pub(crate) fn forgive(&mut self) {
        if self.end != End::Broken {
            return;
        }
        let Some(theirs) = self.theirs(self.number) else { return };
        let mut error: c_int = 0;
        let mut len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
        let at = (&raw mut error).cast();
        // SAFETY: an int that is alive for the call, and its length.
        unsafe {
            libc::getsockopt(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, at, &raw mut len)
        };
    }
}

fn shut_down(end: &OwnedFd, how: c_int) {
    // SAFETY: takes no pointers.
    unsafe { libc::shutdown(end.as_raw_fd(), how) };
}

fn hung_up(fd: &OwnedFd) -> bool {
    let mut pfd = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one pollfd that is alive for the call, which does not wait.
    unsafe { libc::poll(&raw mut pfd, 1, 0) };
    pfd.revents & libc::POLLHUP != 0
}
