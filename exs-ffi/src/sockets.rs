//! Descriptors: which EXS socket one names.
//!
//! An EXS socket is given to the program as one end of a socketpair(2), and the library
//! keeps the other. So it is a real descriptor, which may be duplicated, waited for and
//! closed like any other, and whose end the library sees: when the last copy is closed,
//! our end hangs up (`watch`).
//!
//! What names the socket is the inode of the program's end, not its number: a number
//! may be closed with close(2) and given to another file at any moment, an inode lives
//! for as long as a copy is open. So each call asks fstat(2), the cost of two of the
//! cheapest system calls, and can never reach the wrong socket.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use exs::{Export, Socket, SocketType};

use crate::abi::EXS_REMOTE_SIZE;
use crate::error::{Fail, Result};
use crate::late::Late;
use crate::pollable::{self, Face};
use crate::timeouts::Limits;
use crate::told::Dialled;
use crate::{poll, watch};

/// What a descriptor names.
pub(crate) enum Target {
    /// A socket that exs_socket or exs_accept made.
    Exs(Arc<Entry>),
    /// A socket of the kernel's, with this inode: (st_dev, st_ino).
    Kernel((u64, u64)),
    /// A file of another kind.
    File,
}

/// An EXS socket of a C program.
pub(crate) struct Entry {
    pub(crate) socket: Socket,
    /// AF_INET or AF_INET6.
    pub(crate) family: c_int,
    pub(crate) kind: SocketType,
    /// Time limits of operations.
    pub(crate) limits: Limits,
    /// SO_LINGER with a time of zero.
    pub(crate) cut: AtomicBool,
    /// What poll(2) finds at the descriptor.
    pub(crate) face: Face,
    /// Sends of calls that did not wait for them.
    pub(crate) late: Late,
    pair: Pair,
    state: Mutex<State>,
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// Closed: not in the table any more.
    pub(crate) gone: bool,
    /// Memory open to the peer, by its descriptor.
    pub(crate) exports: HashMap<[u8; EXS_REMOTE_SIZE as usize], Export>,
    /// SO_ERROR: how a connect that nobody waited for, or a send, failed.
    pub(crate) error: c_int,
    /// How far such a connect is.
    pub(crate) dialled: Dialled,
    /// That the connection has broken was told.
    pub(crate) told: bool,
    /// What was set of options that change nothing, to be read again.
    pub(crate) habits: HashMap<(c_int, c_int), c_int>,
    /// SO_SNDTIMEO and SO_RCVTIMEO.
    pub(crate) patience: [Option<Duration>; 2],
}

impl Entry {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inode(&self) -> u64 {
        self.pair.inode
    }

    /// Our end of the pair.
    pub(crate) fn ours(&self) -> &OwnedFd {
        &self.pair.ours
    }

    /// True if the program has closed the last copy of its end.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut pfd = libc::pollfd { fd: self.pair.ours.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one pollfd that is alive for the call, which does not wait.
        unsafe { libc::poll(&raw mut pfd, 1, 0) };
        pfd.revents & libc::POLLHUP != 0
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // An export is a handle of its socket, which would not close before it is gone.
        self.state().exports.clear();
    }
}

/// The two ends of a socket to be: all that can fail has been done.
#[derive(Debug)]
pub(crate) struct Pair {
    ours: OwnedFd,
    theirs: Option<OwnedFd>,
    inode: u64,
}

impl Pair {
    /// Makes the ends.
    pub(crate) fn new(nonblocking: bool) -> Result<Pair> {
        let flags = libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        let mut fds = [-1; 2];
        // SAFETY: room for two descriptors.
        let made = unsafe {
            libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | flags, 0, fds.as_mut_ptr())
        };
        if made != 0 {
            return Err(Fail::os("socketpair"));
        }
        // SAFETY: just made, and nobody else's.
        let theirs = unsafe { OwnedFd::from_raw_fd(fds[0]) };
        // SAFETY: as above.
        let ours = unsafe { OwnedFd::from_raw_fd(fds[1]) };
        let inode = stat(theirs.as_raw_fd())?.st_ino;
        // Its buffer is as small as can be, so that little fills it (`pollable`).
        let least: c_int = 0;
        let len = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
        let at = (&raw const least).cast();
        // SAFETY: an int that is alive for the call.
        unsafe { libc::setsockopt(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, len) };
        poll::inner()?;
        watch::socket(&ours, inode)?;
        Ok(Pair { ours, theirs: Some(theirs), inode })
    }
}

/// Inodes are distinct numbers already.
#[derive(Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The table looks at the upper bits, too.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Table = HashMap<u64, Arc<Entry>, BuildHasherDefault<Plain>>;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// What fstat(2) says of a descriptor.
pub(crate) fn stat(fd: c_int) -> Result<libc::stat> {
    let mut st = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for one stat; a number that is no descriptor is an error.
    if unsafe { libc::fstat(fd, st.as_mut_ptr()) } != 0 {
        return Err(Fail::fixed(libc::EBADF, "this number is not an open descriptor"));
    }
    // SAFETY: filled by the call above, which succeeded.
    Ok(unsafe { st.assume_init() })
}

/// What a descriptor names.
pub(crate) fn find(fd: c_int) -> Result<Target> {
    let st = stat(fd)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return Ok(Target::File);
    }
    Ok(by_inode(st.st_ino).map_or(Target::Kernel((st.st_dev, st.st_ino)), Target::Exs))
}

/// The EXS socket with this inode.
pub(crate) fn by_inode(inode: u64) -> Option<Arc<Entry>> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).get(&inode).cloned()
}

/// Gives a socket its descriptor.
pub(crate) fn install(socket: Socket, kind: SocketType, family: c_int, mut pair: Pair) -> c_int {
    let fd = pair.theirs.take().map_or(-1, std::os::fd::IntoRawFd::into_raw_fd);
    let entry = Entry {
        limits: Limits::new(&socket.options()),
        socket,
        family,
        kind,
        cut: AtomicBool::new(false),
        face: Face::default(),
        late: Late::default(),
        state: Mutex::default(),
        pair,
    };
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let entry = Arc::new(entry);
    table.insert(entry.inode(), Arc::clone(&entry));
    drop(table);
    pollable::begin(&entry);
    fd
}

/// Takes a socket off the table; false if it was off already. `state` is the socket's.
pub(crate) fn remove(entry: &Entry, state: &mut State) -> bool {
    if std::mem::replace(&mut state.gone, true) {
        return false;
    }
    TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&entry.inode());
    true
}

/// Our end has hung up: if no call is about to close the socket, it closes in the
/// background now.
pub(crate) fn hung_up(inode: u64) {
    let Some(entry) = by_inode(inode) else { return };
    let mut state = entry.state();
    if entry.is_hung_up() && remove(&entry, &mut state) && entry.cut.load(Ordering::Relaxed) {
        entry.socket.abort();
    }
}
