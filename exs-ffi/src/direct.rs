//! Small sends on TCP sockets of the kernel: one system call, where other calls look at the
//! descriptor first (`sockets`).
//!
//! If a number was a TCP socket at the last look, the call sends to it as to one, in a form that every
//! other file refuses before it takes a byte (`exs::__ffi::kernel::send_at_once`). A refused send goes
//! the usual way, which looks. So the memory of the last look need not be true: it only says which
//! way to try first.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use exs::__ffi::ProcessNumber;
use exs::__ffi::kernel::{book, is_tcp, send_at_once, send_kept, send_tcp_only};
use exs::Token;
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL};

use crate::abi::{AHandle, EXS_QHANDLE_INVALID};
use crate::error::{Fail, Result};
use crate::event::{self, Call};
use crate::ptr::Bytes;
use crate::{kernel, memory, queues};

/// Bytes of the largest such send. For longer ones one more system call costs little.
const MOST: usize = 64 << 10;

/// By number: the inode that was seen there last, shifted left by one, and in the lowest bit whether it
/// is a TCP socket. Calls on higher numbers always look.
static SEEN: [ProcessNumber; 4096] = [const { ProcessNumber::new(0) }; 4096];

fn place(fd: c_int) -> Option<&'static ProcessNumber> {
    SEEN.get(usize::try_from(fd).ok()?)
}

/// Notes that a program has sent to a kernel socket with this inode by this number.
pub(crate) fn note(fd: c_int, inode: u64) {
    let Some(place) = place(fd) else { return };
    if place.get() >> 1 == inode {
        return;
    }
    // SAFETY: the caller of C keeps the descriptor open during the call that it gives it to;
    // if it does not, the system call fails.
    let tcp = is_tcp(unsafe { BorrowedFd::borrow_raw(fd) });
    place.set(inode << 1 | u64::from(tcp));
}

/// Notes that the number stands for something else now.
pub(crate) fn forget(fd: c_int) {
    if let Some(place) = place(fd).filter(|p| p.get() != 0) {
        place.set(0);
    }
}

/// The arguments of a call of exs_send.
pub(crate) struct Asked {
    pub(crate) fd: c_int,
    pub(crate) memory: Bytes,
    pub(crate) len: usize,
    pub(crate) flags: c_int,
    pub(crate) queue: c_int,
    pub(crate) ahandle: AHandle,
    pub(crate) mhandle: c_int,
}

impl Asked {
    /// Sends, if the number was a TCP socket at the last look. None: nothing was done, and the caller
    /// must go the usual way.
    pub(crate) fn send(&self, call: Call) -> Option<Result<c_int>> {
        let tcp = place(self.fd)?.get() & 1 == 1;
        let plain = self.flags & !(MSG_DONTWAIT | MSG_NOSIGNAL) == 0 && !kernel::has_limits();
        if !tcp || !plain || !(1..=MOST).contains(&self.len) {
            return None;
        }
        let buffer = memory::buffer(self.memory, self.len, self.mhandle).ok()?;
        if self.queue == EXS_QHANDLE_INVALID {
            return self.try_send_eager();
        }
        let (token, tag) = (Token(self.ahandle as u64), call.tag(event::place(self.memory)));
        let place = book(&queues::find(self.queue).ok()?.queue, token, tag)?;
        // SAFETY: as in `note`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        send_at_once(fd, place, buffer).ok()?;
        Some(Ok(0))
    }

    /// Sends without a queue: by the system call itself, which may wait.
    fn try_send_eager(&self) -> Option<Result<c_int>> {
        send_kept();
        // SAFETY: as in `note`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        // SAFETY: the caller's promise is that of send(2).
        let sent = unsafe { send_tcp_only(fd, self.memory.raw().cast(), self.len, self.flags) };
        let failed = match sent {
            Ok(n) => return c_int::try_from(n).ok().map(Ok),
            Err(e) => e,
        };
        match failed.raw_os_error() {
            // A signal came, there is no room, or the next call would not report the error again.
            Some(
                libc::EINTR
                | libc::EAGAIN
                | libc::ECONNRESET
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH,
            ) => Some(Err(Fail::io("send", &failed))),
            _ => None,
        }
    }
}
