//! The socketpair(2) behind a descriptor, and how it is made to look like a connection.
//!
//! The program holds one end, the library the other. The readiness that poll(2) and its relatives
//! find at the program's end is that of the pair:
//!
//! | the program sees | the library's action |
//! |---|---|
//! | POLLIN | a message lies in the queue of the program's end |
//! | a new edge of EPOLLET | one more message is sent there, perhaps of no bytes |
//! | FIONREAD | these messages have that many bytes in all |
//! | no POLLOUT | messages of the program's end fill its send buffer |
//! | POLLIN and POLLRDHUP, for ever | the library's end is shut down for writing |
//! | POLLHUP beside them | it is shut down for both |
//! | POLLERR beside them | it is closed while a message of the program's end lies there unread: the kernel takes that for a reset |
//!
//! A peer that shares memory with this process gets a copy of the library's end ([`Pair::lend`]).
//! It leaves messages at the program's end itself, and the library counts them.
//!
//! So one byte of the program's end always lies in the queue of the library's end
//! ([`Pair::new`]).
//!
//! When the program closes the last copy of its end, the library's end hangs up. After both
//! directions were shut down it has done so already, and once it is closed it shows nothing. In
//! these cases the library looks at the descriptors of the process ([`is_open`]): at the number
//! that a call gave last, and, if that number names another file by now, at all of them. An end
//! that is shut down gets another edge when the program's end is closed, and the watching thread
//! looks then. It looks at broken connections every [`SWEEP`].
//!
//! The pair is of the type SOCK_SEQPACKET, whose messages may have no bytes.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use exs::__ffi::ProcessNumber;
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL};

use crate::error::{Fail, Result};
use crate::{poll, sockets, watch};

/// Time between two looks at broken connections, to find those that the program has closed.
pub(crate) const SWEEP: Duration = Duration::from_secs(10);

/// Number of connections that broke and are not yet closed.
static BROKEN: ProcessNumber = ProcessNumber::new(0);

/// Returns true if there are connections to look at every [`SWEEP`].
pub(crate) fn any_broken() -> bool {
    BROKEN.get() > 0
}

/// Most bytes that FIONREAD can report.
pub(crate) const MOST_SHOWN: usize = 4096;

/// Bytes to send.
static BYTES: [u8; MOST_SHOWN] = [0; MOST_SHOWN];

/// Size of the send buffer of the program's end, which the kernel doubles: some ten messages fill
/// it.
static SMALL: c_int = 4096;

/// The option of a socket that takes descriptors, as on x86-64 and AArch64.
const SO_PASSRIGHTS: c_int = 83;
static NONE: c_int = 0;

/// The directions of a connection that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// No direction has ended.
    #[default]
    None,
    /// The peer's direction has ended.
    Peers,
    /// Both directions have ended.
    Both,
    /// The connection broke.
    Broken,
}

/// The two ends of a future socket. Every step that can fail has been done.
#[derive(Debug)]
pub(crate) struct Pair {
    inode: u64,
    /// The program's end, until the program has it. Then None.
    theirs: Option<OwnedFd>,
    /// The library's end. None after the connection broke.
    ours: Option<Arc<OwnedFd>>,
    end: End,
    /// Lengths of the messages that lie in the queue of the program's end.
    lying: VecDeque<u16>,
    /// The peer has a copy of the library's end, and leaves messages at the program's end itself.
    lent: bool,
    /// Number of messages that the peer has left at the program's end, or is about to leave.
    rings: usize,
    /// Number of messages that fill the send buffer of the program's end.
    plugs: usize,
    /// The last known number of the program's end.
    number: c_int,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.end == End::Broken {
            BROKEN.subtract(1);
        }
    }
}

/// Returns true if a descriptor of this process names the socket.
fn is_open(inode: u64, number: c_int) -> bool {
    let names = |fd: c_int| sockets::stat(fd).is_ok_and(|st| st.st_ino == inode);
    if names(number) {
        return true;
    }
    // Without /proc there is no answer.
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return true };
    all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).any(names)
}

/// Sends a message of `len` bytes without waiting. Returns false if the kernel does not take it.
fn send(fd: &OwnedFd, len: usize) -> bool {
    let bytes = &BYTES[..len.min(MOST_SHOWN)];
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: the bytes are alive for the call.
    let n = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    n >= 0
}

/// Takes a message without waiting. Returns false if there is none.
fn take(fd: &OwnedFd) -> bool {
    let mut byte = 0u8;
    let to = (&raw mut byte).cast();
    // SAFETY: room for one byte. The kernel discards the rest of the message.
    let n = unsafe { libc::recv(fd.as_raw_fd(), to, 1, MSG_DONTWAIT) };
    n >= 0
}

/// Makes a pair. The first end takes no descriptors, since Linux 6.16: a peer to which the second one
/// is lent could send some there, whose close waits for that peer.
pub(crate) fn ends(flags: c_int) -> Result<[OwnedFd; 2]> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
    if made != 0 {
        return Err(Fail::os("socketpair"));
    }
    // SAFETY: just made, with no other owner.
    let ends = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    let at = (&raw const NONE).cast();
    // SAFETY: an int that is alive for the call.
    unsafe { libc::setsockopt(ends[0].as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) };
    Ok(ends)
}

/// Takes all messages of an end without waiting, by a few system calls.
pub(crate) fn empty(end: &OwnedFd) {
    const AT_ONCE: u16 = 32;
    // SAFETY: headers without room or address are of zeros: the kernel discards the bytes.
    let mut messages: [libc::mmsghdr; AT_ONCE as usize] = unsafe { std::mem::zeroed() };
    let (at, limit) = (messages.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: the headers are alive for the calls, and name no other memory.
    let take =
        || unsafe { libc::recvmmsg(end.as_raw_fd(), at, AT_ONCE.into(), MSG_DONTWAIT, limit) };
    while take() == AT_ONCE.into() {}
}

impl Pair {
    /// Makes the two ends.
    pub(crate) fn new(nonblocking: bool) -> Result<Pair> {
        let [theirs, ours] = ends(if nonblocking { libc::SOCK_NONBLOCK } else { 0 })?;
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
        let (theirs, ours) = (Some(theirs), Some(Arc::new(ours)));
        let (lent, rings) = (false, 0);
        Ok(Pair { inode, theirs, ours, end, lying, lent, rings, plugs: 0, number: -1 })
    }

    /// Returns the inode, which names the socket.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Takes the program's end, to give it to the program.
    pub(crate) fn give(&mut self) -> Option<OwnedFd> {
        self.number = self.theirs.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        self.theirs.take()
    }

    /// Records the descriptor number that a call used.
    pub(crate) fn note(&mut self, fd: c_int) {
        self.number = fd;
    }

    /// Returns true if the program has closed the last copy of its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        match (&self.ours, self.end) {
            (Some(ours), End::None | End::Peers) => hung_up(ours),
            _ => !is_open(self.inode, self.number),
        }
    }

    /// As `is_hung_up`, for the copy that `exs_close` has just closed. If nothing can be read or
    /// sent any more, the copy counts as the last. A search for other copies would take long in a
    /// program with many descriptors, and the pair shows everything that such copies could find.
    pub(crate) fn is_closed(&self, unread: bool) -> bool {
        match self.end {
            End::Both | End::Broken if !unread => true,
            _ => self.is_hung_up(),
        }
    }

    /// Returns the number of messages that lie there, and the bytes of the library's own.
    pub(crate) fn lying(&self) -> (usize, usize) {
        (self.lying.len() + self.rings, self.lying.iter().map(|len| usize::from(*len)).sum())
    }

    /// Returns the library's end, of which the peer may get a copy to leave messages at the
    /// program's end.
    pub(crate) fn lend(&mut self) -> Option<Arc<OwnedFd>> {
        if !self.is_open() {
            return None;
        }
        self.lent = true;
        self.ours.clone()
    }

    /// Returns true if the peer may have a copy of the library's end.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Records messages that the peer has left, or is about to leave.
    pub(crate) fn count_rings(&mut self, rings: u32) {
        self.rings = self.rings.saturating_add(usize::try_from(rings).unwrap_or(usize::MAX));
    }

    /// Returns true if the peer has left messages that the library must count.
    pub(crate) fn has_rings(&self) -> bool {
        self.rings > 0
    }

    /// Takes a message that was not counted. Returns false if there is none.
    pub(crate) fn take_stray(&self, fd: c_int) -> bool {
        let mut byte = 0u8;
        let to = (&raw mut byte).cast();
        // SAFETY: room for one byte. The call takes nothing, whatever the number names.
        let n = unsafe { libc::recv(fd, to, 1, MSG_DONTWAIT | libc::MSG_PEEK) };
        n >= 0 && self.theirs(fd).is_some_and(|theirs| take(&theirs))
    }

    /// Returns true while messages can be sent to the program's end.
    pub(crate) fn is_open(&self) -> bool {
        self.end == End::None
    }

    /// Returns true if it shows that the connection broke.
    pub(crate) fn is_broken(&self) -> bool {
        self.end == End::Broken
    }

    /// Makes the program's end readable, with `len` more bytes, and gives an edge. Does nothing
    /// if hundreds of messages lie there, because then the program has not read for long.
    pub(crate) fn put(&mut self, len: usize) {
        let len = len.min(MOST_SHOWN);
        if let Some(ours) = &self.ours
            && self.is_open()
            && send(ours, len)
        {
            self.lying.push_back(u16::try_from(len).unwrap_or(u16::MAX));
        }
    }

    /// Takes `count` messages back, the oldest ones, first those of the peer. This needs the program's end.
    pub(crate) fn take_back(&mut self, fd: c_int, count: usize) {
        if count > 0
            && let Some(theirs) = self.theirs(fd)
        {
            let rings = count.min(self.rings);
            let own = (count - rings).min(self.lying.len());
            self.rings -= rings;
            self.lying.drain(..own);
            for _ in 0..rings + own {
                take(&theirs);
            }
        }
    }

    /// Reduces the bytes that lie there to `len`, as far as whole messages allow. Gives no edge.
    pub(crate) fn shorten(&mut self, fd: c_int, len: usize) {
        let mut left = self.lying().1;
        let too_many = |n: &&u16| {
            left -= usize::from(**n);
            len == 0 || left >= len
        };
        let count = self.lying.iter().take_while(too_many).count();
        self.take_back(fd, count);
    }

    /// Duplicates the program's end, so that the program cannot close the copy. None if `fd` no
    /// longer names it.
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

    /// Makes it writable again. One message always stays.
    pub(crate) fn unplug(&mut self) {
        for _ in 0..std::mem::take(&mut self.plugs) {
            self.ours.as_ref().map(|ours| take(ours));
        }
    }

    /// Shows that the connection has ended, up to `to`.
    pub(crate) fn end(&mut self, to: End) {
        if to <= self.end {
            return;
        }
        self.end = to;
        match (to, &self.ours) {
            (End::Broken, _) => {
                BROKEN.add(1);
                // The program sees it when a peer that has a copy has closed that, too. It does so as
                // soon as the connection is gone. `insist` is for a peer that does not run.
                self.ours = None;
                watch::look_again();
            }
            (End::Both, Some(ours)) => shut_down(ours, libc::SHUT_RDWR),
            (_, Some(ours)) => shut_down(ours, libc::SHUT_WR),
            (_, None) => {}
        }
    }

    /// Gives one more edge to a program that has read everything before the end, because one edge
    /// may have announced both.
    pub(crate) fn remind(&self) {
        if let (Some(ours), End::Peers | End::Both) = (&self.ours, self.end) {
            shut_down(ours, libc::SHUT_WR);
        }
    }

    /// Shows the end of a broken connection whose peer keeps its copy of the library's end.
    pub(crate) fn insist(&self) {
        if self.lent
            && let Some(theirs) = self.theirs(self.number)
            && !hung_up(&theirs)
        {
            shut_down(&theirs, libc::SHUT_RDWR);
        }
    }

    /// Consumes the error of the pair, so that poll(2) shows POLLERR no longer.
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
