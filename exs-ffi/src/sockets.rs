//! Descriptors, and the EXS socket that one names.
//!
//! The program gets an EXS socket as one end of a socketpair(2), and the library keeps the other.
//! So it is a real descriptor, which the program can duplicate, poll and close like any other.
//! The library sees its end: when the last copy is closed, the library's end hangs up (`watch`).
//!
//! The inode of the program's end names the socket, not the number: close(2) can free a number
//! for another file at any moment, while an inode lives as long as a copy is open. So each call
//! asks fstat(2), which costs as much as two of the cheapest system calls, and can never reach
//! the wrong socket.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::BuildHasherDefault;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use exs::__ffi::ProcessTable;
use exs::{Export, Socket, SocketType};

use crate::abi::EXS_REMOTE_SIZE;
use crate::arrivals::Arrivals;
use crate::error::{Fail, Result};
use crate::late::Late;
use crate::pair::Pair;
use crate::pollable::{self, Face};
use crate::recent::{ByNumber, Recent, Recents};
use crate::timeouts::Limits;
use crate::told::Dialled;

/// The object that a descriptor names.
pub(crate) enum Target {
    /// A socket that exs_socket or exs_accept made.
    Exs(Arc<Entry>),
    /// A kernel socket with this inode: (st_dev, st_ino).
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
    /// The program set SO_LINGER with a time of zero.
    pub(crate) cut: AtomicBool,
    /// A receive has found that the descriptor does not block (O_NONBLOCK), when it last asked.
    pub(crate) never_waits: AtomicBool,
    /// The readiness that poll(2) finds at the descriptor.
    pub(crate) face: Face,
    /// What epoll sets watch beside the descriptor.
    pub(crate) arrivals: Arrivals,
    /// Sends of calls that did not wait for them.
    pub(crate) late: Late,
    /// A weak reference to itself, for objects that must not keep it alive.
    pub(crate) me: Weak<Entry>,
    inode: u64,
    state: Mutex<State>,
}

/// The mutable part of a socket.
#[derive(Default)]
pub(crate) struct State {
    /// The socket is closed, and no longer in the table.
    pub(crate) gone: bool,
    /// Memory open to the peer, by its descriptor.
    pub(crate) exports: HashMap<[u8; EXS_REMOTE_SIZE as usize], Export>,
    /// The errno of SO_ERROR: of a connect for which no call waited, or of a send. 0: no error.
    pub(crate) error: c_int,
    /// The state of such a connect.
    pub(crate) dialled: Dialled,
    /// A call or SO_ERROR has reported that the connection broke.
    pub(crate) told: bool,
    /// Values of options that have no effect, so that the program reads what it set.
    pub(crate) habits: HashMap<(c_int, c_int), c_int>,
    /// SO_SNDTIMEO and SO_RCVTIMEO. None: no limit.
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
        // An export holds its socket, which would not close before the export is gone.
        self.state().exports.clear();
    }
}

thread_local! {
    static FOUND: RefCell<Recent<Entry>> = const { Recent::new() };
}

static RECENTS: Recents<Entry> = Recents::new(&FOUND);

/// The sockets by their inodes.
static TABLE: ProcessTable<ByNumber<Arc<Entry>>> =
    ProcessTable::new(HashMap::with_hasher(BuildHasherDefault::new()));

/// Returns what fstat(2) reports about a descriptor.
pub(crate) fn stat(fd: c_int) -> Result<libc::stat> {
    let mut st = MaybeUninit::<libc::stat>::uninit();
    // glibc's fstat is newfstatat(2) with an empty name, which takes 15 % longer.
    // SAFETY: room for one stat. A number that is no descriptor is an error.
    #[cfg(target_pointer_width = "64")]
    let failed = unsafe { libc::syscall(libc::SYS_fstat, fd, st.as_mut_ptr()) } != 0;
    // SAFETY: as above.
    #[cfg(not(target_pointer_width = "64"))]
    let failed = unsafe { libc::fstat(fd, st.as_mut_ptr()) } != 0;
    if failed {
        return Err(Fail::fixed(libc::EBADF, "this number is not an open descriptor"));
    }
    // SAFETY: filled by the call above, which succeeded.
    Ok(unsafe { st.assume_init() })
}

/// Returns the object that a descriptor names.
pub(crate) fn find(fd: c_int) -> Result<Target> {
    let st = stat(fd)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return Ok(Target::File);
    }
    Ok(by_inode(st.st_ino).map_or(Target::Kernel((st.st_dev, st.st_ino)), Target::Exs))
}

/// Returns the EXS socket with this inode.
pub(crate) fn by_inode(inode: u64) -> Option<Arc<Entry>> {
    RECENTS.find(inode, || TABLE.read().get(&inode).cloned())
}

/// Gives a socket its descriptor and returns it.
pub(crate) fn install(socket: Socket, kind: SocketType, family: c_int, mut pair: Pair) -> c_int {
    let fd = pair.give().map_or(-1, std::os::fd::IntoRawFd::into_raw_fd);
    let entry = Arc::new_cyclic(|me| Entry {
        me: me.clone(),
        limits: Limits::new(&socket.options()),
        socket,
        family,
        kind,
        cut: AtomicBool::new(false),
        never_waits: AtomicBool::new(false),
        inode: pair.inode(),
        face: Face::new(pair),
        arrivals: Arrivals::default(),
        late: Late::default(),
        state: Mutex::default(),
    });
    TABLE.write().insert(entry.inode(), Arc::clone(&entry));
    pollable::begin(&entry);
    fd
}

/// Removes a socket from the table. Returns false if it was removed before. `state` is the
/// socket's.
pub(crate) fn remove(entry: &Entry, state: &mut State) -> bool {
    if std::mem::replace(&mut state.gone, true) {
        return false;
    }
    let mut table = TABLE.write();
    RECENTS.note_removal();
    table.remove(&entry.inode());
    true
}

/// Closes the broken connections whose descriptors the program has closed.
pub(crate) fn sweep() {
    let table = TABLE.read();
    let broken: Vec<Arc<Entry>> = table.values().filter(|e| e.face.is_broken()).cloned().collect();
    drop(table);
    for entry in broken {
        entry.face.insist();
        hung_up(entry.inode);
    }
}

/// Handles a hang-up of the library's end: closes the socket in the background, unless a call is
/// about to close it.
pub(crate) fn hung_up(inode: u64) {
    let Some(entry) = by_inode(inode) else { return };
    let mut state = entry.state();
    if entry.face.is_hung_up() && remove(&entry, &mut state) {
        Arrivals::close(&entry);
        if entry.cut.load(Ordering::Relaxed) {
            entry.socket.abort();
        }
    }
}
