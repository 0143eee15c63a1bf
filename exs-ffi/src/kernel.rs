//! The calls on ordinary kernel sockets, whose peers know nothing of EXS.
//!
//! With a queue they are operations of `exs::__ffi::kernel`. Without a queue they are the system
//! calls themselves. The socket's flags and options stay as its owner set them. The kernel has no
//! place for EXS's time limits, so this module keeps them by the socket's inode.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::BuildHasherDefault;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use exs::__ffi::kernel::{Descriptor, send_file_now, send_kept};
use exs::__ffi::{ProcessLock, ProcessNumber};
use exs::{EventQueue, Interest, KernelAddr, Part, Token};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, c_void, iovec, msghdr, sockaddr, socklen_t};

use crate::abi::*;
use crate::blocking::MOST;
use crate::data::Memory;
use crate::error::{Fail, Result};
use crate::event::Call;
use crate::ptr::{Bytes, In, Out};
use crate::queues::{self, Queue};
use crate::recent::ByNumber;
use crate::timeouts::Way;
use crate::{fork, sockets};

/// Returns the descriptor for the raw layer.
fn descriptor<'a>(fd: c_int) -> Result<Descriptor<'a>> {
    Ok(Descriptor::new(borrowed(fd)?)?)
}

fn borrowed<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Fail::fixed(libc::EBADF, "this number is not an open descriptor"));
    }
    // SAFETY: the C caller keeps the descriptor open during the call. If it does not, the system
    // calls fail.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A socket with the inode that the call has just found.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) fd: c_int,
    pub(crate) inode: (u64, u64),
}

impl Seen {
    fn descriptor<'a>(self) -> Result<Descriptor<'a>> {
        Ok(Descriptor::of_socket(borrowed(self.fd)?, self.inode))
    }
}

/// The destination of a result: the call, the queue and the caller's place.
pub(crate) struct Answer {
    pub(crate) call: Call,
    pub(crate) queue: Arc<Queue>,
    pub(crate) place: u64,
    pub(crate) token: Token,
}

impl Answer {
    /// The destination for a call with this queue; None: the call has no queue.
    pub(crate) fn of(
        call: Call,
        queue: c_int,
        place: u64,
        ahandle: AHandle,
    ) -> Result<Option<Answer>> {
        let token = Token(ahandle as u64);
        Ok(queues::way(queue)?.map(|queue| Answer { call, queue, place, token }))
    }

    fn on(&self) -> EventQueue {
        self.call.on(&self.queue.queue, self.place)
    }
}

// ---- Time limits ---------------------------------------------------------------

#[derive(Clone, Copy, Default)]
struct Limits {
    usual: [Option<Duration>; 2],
    once: [Option<Duration>; 2],
}

#[derive(Default)]
struct Known {
    limits: ByNumber<Limits>,
    /// Number of entries at which those of closed sockets are removed.
    prune: usize,
}

static LIMITS: ProcessLock<Known> =
    ProcessLock::new(Known { limits: HashMap::with_hasher(BuildHasherDefault::new()), prune: 0 });
/// 1: some limit was set. While it is 0, operations do not look for one.
static ANY: ProcessNumber = ProcessNumber::new(0);

fn known() -> MutexGuard<'static, Known> {
    LIMITS.lock()
}

/// The kernel does not report the end of its sockets. So now and then this function removes the
/// limits of sockets that no descriptor names.
fn prune(known: &mut Known) {
    if known.limits.len() < known.prune.max(64) {
        return;
    }
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let inodes: std::collections::HashSet<u64> = numbers
        .filter_map(|e| e.file_name().to_str()?.parse::<c_int>().ok())
        .filter_map(|fd| sockets::stat(fd).ok().map(|st| st.st_ino))
        .collect();
    known.limits.retain(|inode, _| inodes.contains(inode));
    known.prune = known.limits.len() * 2;
}

/// Sets a limit for all later operations, or for the next one. None: no limit.
pub(crate) fn set_limit(fd: c_int, way: Way, time: Option<Duration>, once: bool) -> Result<()> {
    let inode = sockets::stat(fd)?.st_ino;
    let mut known = known();
    prune(&mut known);
    let limits = known.limits.entry(inode).or_default();
    *(if once { &mut limits.once[way as usize] } else { &mut limits.usual[way as usize] }) = time;
    ANY.set(1);
    Ok(())
}

/// Returns true if any socket may have a limit.
pub(crate) fn has_limits() -> bool {
    ANY.get() != 0
}

/// Returns the limit that an operation posted now would have.
pub(crate) fn limit(fd: c_int, way: Way) -> Result<Option<Duration>> {
    if !has_limits() {
        return Ok(None);
    }
    let inode = sockets::stat(fd)?.st_ino;
    let limits = known().limits.get(&inode).copied().unwrap_or_default();
    Ok(limits.once[way as usize].or(limits.usual[way as usize]))
}

/// Posts with the current limit. A limit for the next operation only is then used up.
fn limited<T, E>(
    fd: c_int,
    way: Way,
    post: impl FnOnce(Option<Duration>) -> std::result::Result<T, E>,
) -> Result<T>
where
    Fail: From<E>,
{
    let posted = post(limit(fd, way)?)?;
    if has_limits() {
        let inode = sockets::stat(fd)?.st_ino;
        if let Some(limits) = known().limits.get_mut(&inode) {
            limits.once[way as usize] = None;
        }
    }
    Ok(posted)
}

// ---- With a queue ----------------------------------------------------------------

pub(crate) fn send(
    seen: Seen,
    memory: Memory,
    to: Option<KernelAddr>,
    flags: c_int,
    answer: &Answer,
) -> Result<c_int> {
    let (d, on, token) = (seen.descriptor()?, answer.on(), answer.token);
    limited(seen.fd, Way::Send, |limit| match (memory, to) {
        (Memory::One(b), None) => d.send(&on, token, b, flags, limit).map_err(Fail::from),
        (Memory::One(b), to) => Ok(d.send_message(&on, token, vec![b], to, flags, limit)?),
        (Memory::Many(v), to) => Ok(d.send_message(&on, token, v, to, flags, limit)?),
    })?;
    Ok(0)
}

pub(crate) fn recv(
    seen: Seen,
    memory: Memory,
    from: bool,
    flags: c_int,
    answer: &Answer,
) -> Result<c_int> {
    let (d, on, token) = (seen.descriptor()?, answer.on(), answer.token);
    limited(seen.fd, Way::Recv, |limit| match memory {
        Memory::One(b) if !from => d.recv(&on, token, b, flags, limit).map_err(Fail::from),
        Memory::One(b) => Ok(d.recv_message(&on, token, vec![b], from, flags, limit)?),
        Memory::Many(v) => Ok(d.recv_message(&on, token, v, from, flags, limit)?),
    })?;
    Ok(0)
}

pub(crate) fn send_parts(
    fd: c_int,
    parts: Vec<Part>,
    shut: bool,
    answer: &Answer,
) -> Result<c_int> {
    let d = descriptor(fd)?;
    limited(fd, Way::Send, |limit| d.send_parts(&answer.on(), answer.token, parts, shut, limit))?;
    Ok(0)
}

pub(crate) fn connect(fd: c_int, to: KernelAddr, answer: &Answer) -> Result<c_int> {
    descriptor(fd)?.connect(&answer.on(), answer.token, to, limit(fd, Way::Send)?)?;
    Ok(0)
}

pub(crate) fn accept(fd: c_int, answer: &Answer) -> Result<c_int> {
    descriptor(fd)?.accept(&answer.on(), answer.token, limit(fd, Way::Recv)?)?;
    Ok(0)
}

pub(crate) fn shutdown(fd: c_int, how: Shutdown, answer: &Answer) -> Result<c_int> {
    descriptor(fd)?.shutdown(&answer.on(), answer.token, how)?;
    Ok(0)
}

/// Polls any descriptor.
pub(crate) fn poll(fd: c_int, want: Interest, answer: &Answer) -> Result<c_int> {
    descriptor(fd)?.poll(&answer.on(), answer.token, want, None)?;
    Ok(0)
}

pub(crate) fn cancel(fd: c_int, token: Option<Token>) -> Result<usize> {
    // This starts the library, even if there is nothing to cancel.
    fork::used();
    Ok(descriptor(fd)?.cancel(token))
}

// ---- Accepted connections ----------------------------------------------------------

/// Encodes the flags of exs_accept in `Call::extra`. The highest bit marks a kernel socket.
pub(crate) fn accept_extra(flags: c_int) -> u16 {
    let bit = |flag, bit| if flags & flag != 0 { bit } else { 0 };
    ACCEPTS | bit(libc::SOCK_NONBLOCK, 1) | bit(libc::SOCK_CLOEXEC, 2)
}

/// The bit of `Call::extra` that marks an accept of a kernel socket.
pub(crate) const ACCEPTS: u16 = 0x8000;

/// Gives an accepted connection to the program, with the flags that it asked for.
pub(crate) fn hand_over(fd: OwnedFd, extra: u16) -> c_int {
    let fd = fd.into_raw_fd();
    if extra & 2 == 0 {
        // SAFETY: takes no pointers. The descriptor is this connection's.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    }
    if extra & 1 != 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK | libc::O_RDWR) };
    }
    fd
}

/// Stores the peer's address in the place that the caller of exs_accept passed, if any.
pub(crate) fn store_peer(addr: Option<&KernelAddr>, place: Out<Acceptaddr>) {
    let Some(addr) = addr.filter(|_| !place.is_null()) else { return };
    let (bytes, len) = addr.to_sockaddr();
    for (i, b) in bytes.iter().take(len).enumerate() {
        // It is not NULL.
        let _ = place.cast::<u8>().write_at(i, *b);
    }
    if let Ok(mut a) = place.read() {
        a.exs_aa_addrlen = socklen_t::try_from(len).unwrap_or(0);
        let _ = place.write(a);
    }
}

// ---- Without a queue: the system calls -----------------------------------------------
//
// Sends that were posted before such a call leave before it, if there is room.

fn moved(call: &str, n: isize) -> Result<c_int> {
    if n < 0 { Err(Fail::os(call)) } else { Ok(c_int::try_from(n).unwrap_or(c_int::MAX)) }
}

pub(crate) fn send_now(fd: c_int, memory: Bytes, len: usize, flags: c_int) -> Result<c_int> {
    send_kept();
    let len = len.min(MOST);
    // SAFETY: the caller's promise is that of send(2).
    moved("send", unsafe { libc::send(fd, memory.raw(), len, flags | MSG_NOSIGNAL) })
}

pub(crate) fn recv_now(fd: c_int, memory: Bytes, len: usize, flags: c_int) -> Result<c_int> {
    send_kept();
    let len = len.min(MOST);
    // SAFETY: the caller's promise is that of recv(2).
    moved("recv", unsafe { libc::recv(fd, memory.raw(), len, flags) })
}

/// Converts the message to the form of the system calls.
fn system_message(m: &Msghdr, pieces: &mut [iovec]) -> msghdr {
    // SAFETY: a structure of numbers and pointers, for which zeros are valid.
    let mut out: msghdr = unsafe { std::mem::zeroed() };
    (out.msg_name, out.msg_namelen) = (m.exs_msg_name, m.exs_msg_namelen);
    // The length is a usize on glibc, an int on musl. At most IOV_MAX pieces come here.
    (out.msg_iov, out.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
    out
}

/// Returns the pieces of a message, after a check of each.
fn pieces(m: &Msghdr) -> Result<Vec<iovec>> {
    let list = Out::pieces(m).list(m.exs_msg_iovlen, EXS_IOV_MAX)?;
    list.map(|p| {
        crate::memory::check(Bytes::of(&p), p.exs_iov_len, p.exs_iov_mhandle)?;
        Ok(iovec { iov_base: p.exs_iov_base, iov_len: p.exs_iov_len })
    })
    .collect()
}

pub(crate) fn sendmsg_now(fd: c_int, m: &Msghdr, flags: c_int) -> Result<c_int> {
    send_kept();
    let mut pieces = pieces(m)?;
    let message = system_message(m, &mut pieces);
    // SAFETY: the pieces are alive. The caller's promise for their memory is that of sendmsg(2).
    moved("sendmsg", unsafe { libc::sendmsg(fd, &raw const message, flags | MSG_NOSIGNAL) })
}

pub(crate) fn recvmsg_now(fd: c_int, place: Out<Msghdr>, flags: c_int) -> Result<c_int> {
    send_kept();
    let mut m = place.read()?;
    let mut pieces = pieces(&m)?;
    let mut message = system_message(&m, &mut pieces);
    // SAFETY: the pieces are alive. The caller's promise for their memory is that of recvmsg(2).
    let n = moved("recvmsg", unsafe { libc::recvmsg(fd, &raw mut message, flags) })?;
    (m.exs_msg_namelen, m.exs_msg_flags) = (message.msg_namelen, message.msg_flags);
    place.write(m)?;
    Ok(n)
}

pub(crate) fn connect_now(fd: c_int, addr: In<sockaddr>, len: socklen_t) -> Result<c_int> {
    // SAFETY: the caller's promise is that of connect(2).
    crate::connect::os("connect", unsafe { libc::connect(fd, addr.raw(), len) })
}

pub(crate) fn accept_now(fd: c_int, place: Out<Acceptaddr>, flags: c_int) -> Result<c_int> {
    let mut len = socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
    let (addr, room): (*mut sockaddr, *mut socklen_t) = if place.is_null() {
        (std::ptr::null_mut(), std::ptr::null_mut())
    } else {
        (place.cast().raw(), &raw mut len)
    };
    // SAFETY: the caller has room for an address of any family, or gave NULL.
    let n = crate::connect::os("accept", unsafe { libc::accept4(fd, addr, room, flags) })?;
    if let Ok(mut a) = place.read() {
        a.exs_aa_addrlen = len;
        place.write(a)?;
    }
    Ok(n)
}

pub(crate) fn shutdown_now(fd: c_int, how: c_int) -> Result<c_int> {
    send_kept();
    // SAFETY: takes no pointers.
    crate::connect::os("shutdown", unsafe { libc::shutdown(fd, how) })
}

/// Sends parts one after the other and returns the bytes sent before an error.
///
/// A short count ends the call: a signal may have come, and another system call would wait as if
/// none had.
pub(crate) fn send_parts_now(fd: c_int, parts: Vec<Part>, shut: bool) -> Result<c_int> {
    send_kept();
    let mut sent = 0usize;
    let mut all = true;
    for part in parts {
        match send_part(fd, &part, &mut sent) {
            Ok(true) => {}
            Err(e) if sent == 0 => return Err(e),
            Ok(false) | Err(_) => {
                all = false;
                break;
            }
        }
    }
    if shut && all {
        shutdown_now(fd, libc::SHUT_WR)?;
    }
    Ok(c_int::try_from(sent).unwrap_or(c_int::MAX))
}

/// `exs_sendfile` makes parts of memory and of files only.
pub(crate) const NO_SUCH_PART: &str = "this part is neither memory nor a file";

/// Sends one part. Returns true if all of it was sent.
fn send_part(fd: c_int, part: &Part, sent: &mut usize) -> Result<bool> {
    match part {
        Part::Memory(list) => {
            // A piece of no bytes sends nothing, not even a message.
            for buffer in list.iter().filter(|b| !b.is_empty()) {
                let from = buffer.as_ptr().cast::<c_void>();
                // SAFETY: memory that the caller has promised for the call.
                let n = unsafe { libc::send(fd, from, buffer.len(), MSG_NOSIGNAL) };
                let n = usize::try_from(moved("send", n)?).unwrap_or(0);
                *sent += n;
                if n < buffer.len() {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        Part::File { file, offset, len } => {
            let len = usize::try_from(*len).unwrap_or(usize::MAX);
            if len == 0 {
                return Ok(true);
            }
            let sent_now = send_file_now(borrowed(fd)?, file, *offset, len);
            let n = sent_now.map_err(|e| Fail::io("sendfile", &e))?;
            if n == 0 {
                return Err(Fail::fixed(libc::EIO, "the file is shorter than the list says"));
            }
            *sent += n;
            Ok(n == len)
        }
        _ => Err(Fail::fixed(libc::EOPNOTSUPP, NO_SUCH_PART)),
    }
}

/// The kernel's flags that operations with a queue take.
pub(crate) const SEND_FLAGS: c_int = MSG_DONTWAIT
    | MSG_NOSIGNAL
    | libc::MSG_OOB
    | libc::MSG_DONTROUTE
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_CONFIRM;
