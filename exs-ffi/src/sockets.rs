//! Descriptors: which EXS socket one names.
//!
//! The program gets one end of a socketpair(2) as the descriptor of an EXS socket, and the library keeps
//! the other end. So it is a real descriptor, which the program can duplicate, wait for and close like
//! any other. When the last copy is closed, the library's end hangs up (`watch`).
//!
//! The name of a socket is the inode of the program's end, not its number. The program may close a
//! number with close(2) and give it to another file at any moment; an inode lives as long as a copy is
//! open. So each call asks fstat(2), which costs as much as two of the cheapest system calls, and
//! never reaches the wrong socket.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use exs::{Export, Socket, SocketType};

use crate::abi::EXS_REMOTE_SIZE;
use crate::error::{Fail, Result};
use crate::late::Late;
use crate::pair::Pair;
use crate::pollable::{self, Face};
use crate::timeouts::Limits;
use crate::told::Dialled;

/// What a descriptor names.
pub(crate) enum Target {
    /// A socket that exs_socket or exs_accept made.
    Exs(Arc<Entry>),
    /// A socket of the kernel, with this inode: (st_dev, st_ino).
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
    /// A reference to itself, for holders that must not keep it alive.
    pub(crate) me: Weak<Entry>,
    inode: u64,
    state: Mutex<State>,
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// The socket is closed, and no longer in the table.
    pub(crate) gone: bool,
    /// Memory open to the peer, by its descriptor.
    pub(crate) exports: HashMap<[u8; EXS_REMOTE_SIZE as usize], Export>,
    /// SO_ERROR: the failure of a connect that no call waited for, or of a send.
    pub(crate) error: c_int,
    /// How far such a connect is.
    pub(crate) dialled: Dialled,
    /// A call has reported that the connection broke.
    pub(crate) told: bool,
    /// Values of options that change nothing, to be read again.
    pub(crate) habits: HashMap<(c_int, c_int), c_int>,
    /// SO_SNDTIMEO and SO_RCVTIMEO.
    pub(crate) patience: [Option<Duration>; 2],
}

impl Entry {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // An export is a handle of its socket, which would not close before it is gone.
        self.state().exports.clear();
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
        // The table uses the upper bits, too.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Table = HashMap<u64, Arc<Entry>, BuildHasherDefault<Plain>>;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// The result of fstat(2) on a descriptor.
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
    let fd = pair.give().map_or(-1, std::os::fd::IntoRawFd::into_raw_fd);
    let entry = Arc::new_cyclic(|me| Entry {
        me: me.clone(),
        limits: Limits::new(&socket.options()),
        socket,
        family,
        kind,
        cut: AtomicBool::new(false),
        inode: pair.inode(),
        face: Face::new(pair),
        late: Late::default(),
        state: Mutex::default(),
    });
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.insert(entry.inode(), Arc::clone(&entry));
    drop(table);
    pollable::begin(&entry);
    fd
}

/// Removes a socket from the table; false if it was removed before. `state` is the socket's.
pub(crate) fn remove(entry: &Entry, state: &mut State) -> bool {
    if std::mem::replace(&mut state.gone, true) {
        return false;
    }
    TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&entry.inode());
    true
}

/// Looks at broken connections, and closes those whose descriptors the program has closed.
pub(crate) fn sweep() {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let broken: Vec<u64> = table.values().filter(|e| e.face.is_broken()).map(|e| e.inode).collect();
    drop(table);
    broken.into_iter().for_each(hung_up);
}

/// The library's end of a socket has hung up: closes the socket in the background, unless a call is
/// about to close it.
pub(crate) fn hung_up(inode: u64) {
    let Some(entry) = by_inode(inode) else { return };
    let mut state = entry.state();
    if entry.face.is_hung_up() && remove(&entry, &mut state) && entry.cut.load(Ordering::Relaxed) {
        entry.socket.abort();
    }
}
