//! Sending and receiving memory.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use exs::__ffi as raw;
use exs::{Buffer, Error, EventQueue, KernelAddr, Part, RecvFlags, SocketType, Token};
use libc::{MSG_DONTWAIT, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_WAITALL};

use crate::abi::*;
use crate::arrivals::Arrivals;
use crate::blocking::{self, MOST, Patience, TOKEN, moved, refusal};
use crate::error::{Fail, Result, border};
use crate::event::{self, Call};
use crate::ptr::{Bytes, In, Out};
use crate::sockets::{self, Entry, Target};
use crate::timeouts::{Way, posting};
use crate::{connect, direct, few, kernel, late, memory, options, pollable, queues, told};

/// Checks the flags of a send on an EXS socket. EXS ignores the flags that TCP ignores, and refuses
/// urgent data, which it does not have.
pub(crate) fn send_flags(flags: c_int) -> Result<()> {
    match flags & MSG_OOB {
        0 => Ok(()),
        _ => Err(Fail::fixed(libc::EOPNOTSUPP, "EXS has no urgent data (MSG_OOB)")),
    }
}

/// Checks the flags of a receive: there are never urgent data or queued errors.
pub(crate) fn recv_flags(flags: c_int) -> Result<()> {
    if flags & MSG_ERRQUEUE != 0 {
        return Err(refusal(libc::EAGAIN));
    }
    match flags & MSG_OOB {
        0 => Ok(()),
        _ => Err(Fail::fixed(libc::EINVAL, "there are no urgent data (MSG_OOB)")),
    }
}

/// Checks the flags of a receive on a kernel socket, which may have both. With a queue neither is
/// allowed.
fn kernel_recv_flags(flags: c_int, queue: c_int) -> Result<()> {
    if flags & (MSG_OOB | MSG_ERRQUEUE) == 0 || queue == EXS_QHANDLE_INVALID {
        return Ok(());
    }
    let why = "urgent data and queued errors of a kernel socket are received without a queue";
    Err(Fail::fixed(libc::EOPNOTSUPP, why))
}

/// The memory of an operation, in one piece or several.
pub(crate) enum Memory {
    One(Buffer),
    Many(Vec<Buffer>),
}

impl Memory {
    fn post_send(self, entry: &Entry, queue: &EventQueue, token: Token) -> Result<()> {
        posting(entry, Way::Send, || match self {
            Memory::One(b) => Ok(entry.socket.send(queue, token, b)?),
            Memory::Many(v) => Ok(entry.socket.send_vectored(queue, token, v)?),
        })
    }

    /// The call that has used the memory is over.
    fn end(self) {
        if let Memory::One(buffer) = self {
            memory::end(buffer);
        }
    }

    fn into_list(self) -> Vec<Buffer> {
        match self {
            Memory::One(b) => vec![b],
            Memory::Many(v) => v,
        }
    }

    /// Posts a receive for a call that does not wait: EAGAIN if there is nothing to receive. Then
    /// `back` gets the memory.
    fn post_ready(
        self,
        entry: &Entry,
        queue: &EventQueue,
        flags: c_int,
        back: &mut Option<Memory>,
    ) -> Result<()> {
        // It takes what is there, also with MSG_WAITALL.
        let flags = RecvFlags::NONE.with_peek(flags & MSG_PEEK != 0);
        posting(entry, Way::Recv, || {
            raw::recv_ready(&entry.socket, queue, TOKEN, self.into_list(), flags)
        })
        .map_err(|r| match r.error {
            Error::WouldBlock { .. } => {
                *back = Some(Memory::Many(r.buffer));
                refusal(libc::EAGAIN)
            }
            error => error.into(),
        })
    }

    fn post_recv(
        self,
        entry: &Entry,
        queue: &EventQueue,
        token: Token,
        flags: c_int,
    ) -> Result<()> {
        let flags =
            RecvFlags::NONE.with_waitall(flags & MSG_WAITALL != 0).with_peek(flags & MSG_PEEK != 0);
        posting(entry, Way::Recv, || match self {
            Memory::One(b) => Ok(entry.socket.recv(queue, token, b, flags)?),
            Memory::Many(v) => Ok(entry.socket.recv_vectored(queue, token, v, flags)?),
        })
    }
}

/// The queue of an event, and what the event carries.
#[derive(Clone, Copy)]
struct Answer {
    queue: c_int,
    ahandle: AHandle,
    call: Call,
    place: u64,
}

fn send(entry: &Entry, memory: Memory, flags: c_int, answer: Answer) -> Result<c_int> {
    send_flags(flags)?;
    let Answer { ahandle, call, place, .. } = answer;
    if let Some(q) = queues::way(answer.queue)? {
        memory.post_send(entry, &call.on(&q.queue, place), Token(ahandle as u64))?;
        return Ok(0);
    }
    // A small send completes at once, whether the descriptor blocks or not. If there are limits, the
    // next send may have one of its own.
    if let Memory::One(buffer) = &memory
        && !entry.limits.any()
        && few::send_now(entry, buffer)
    {
        let sent = c_int::try_from(buffer.len()).unwrap_or(c_int::MAX);
        memory.end();
        return Ok(sent);
    }
    let patience = options::patience(entry, call.fd, flags, Way::Send);
    if patience == Patience::None {
        let parts = [Part::Memory(memory.into_list())];
        let n = told::send(entry, late::send(entry, call.fd, &parts, false))?;
        return Ok(c_int::try_from(n).unwrap_or(c_int::MAX));
    }
    let sent = blocking::run(&entry.socket, patience, |q| memory.post_send(entry, q, TOKEN));
    told::send(entry, sent.and_then(moved))
}

fn recv(entry: &Entry, memory: Memory, flags: c_int, answer: Answer) -> Result<exs::Event> {
    let fd = answer.call.fd;
    let (got, sleeps) = receive(entry, memory, flags, fd);
    match sleeps {
        true => pollable::refresh_for_sleep(entry, fd, got.is_err()),
        false => pollable::refresh(entry, fd),
    }
    if got.as_ref().map_or(true, |event| event.error().is_some()) {
        pollable::forgive(entry);
    }
    got
}

/// Receives without a queue. Also returns whether the program does not wait in receives, so that it
/// sleeps elsewhere.
fn receive(entry: &Entry, memory: Memory, flags: c_int, fd: c_int) -> (Result<exs::Event>, bool) {
    // The first caller takes what has come, at once. A long message is only announced by then, so a
    // socket with messages waits for its bytes.
    let now = match entry.kind {
        SocketType::Stream => Patience::None,
        _ => Patience::Endless,
    };
    let mut left = Some(memory);
    let ready = |left: &mut Option<Memory>| {
        Arrivals::prepare(entry);
        let memory = left.take().unwrap_or(Memory::Many(Vec::new()));
        blocking::run(&entry.socket, now, |q| memory.post_ready(entry, q, flags, left))
    };
    // If there are data, it does not matter whether the descriptor blocks. It is asked for a call
    // that finds none, and for one that might have to wait for more.
    let mut got = None;
    if flags & MSG_WAITALL == 0 && entry.never_waits.load(Ordering::Relaxed) {
        let tried = ready(&mut left);
        if left.is_none() {
            return (tried, true);
        }
        got = Some(tried);
    }
    let patience = options::patience(entry, fd, flags, Way::Recv);
    let never = patience == Patience::None;
    if flags & MSG_DONTWAIT == 0 {
        entry.never_waits.store(never, Ordering::Relaxed);
    }
    if !never {
        let memory = left.take().unwrap_or(Memory::Many(Vec::new()));
        let post = |q: &EventQueue| memory.post_recv(entry, q, TOKEN, flags);
        return (blocking::run(&entry.socket, patience, post), false);
    }
    let got = got.unwrap_or_else(|| ready(&mut left));
    if left.is_some() {
        pollable::found_nothing(entry);
    }
    (got, true)
}

/// `exs_send`
///
/// # Safety
/// As the header says: the memory is the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_send(
    fd: c_int,
    buf: Bytes,
    len: usize,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
    mhandle: c_int,
) -> c_int {
    border(|| {
        let call = Call::new(EXS_EVT_SEND, fd);
        let asked = direct::Asked { fd, memory: buf, len, flags, queue, ahandle, mhandle };
        if let Some(sent) = asked.send(call) {
            return sent;
        }
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => {
                direct::forget(fd);
                entry
            }
            Target::Kernel(inode) => {
                direct::note(fd, inode.1);
                let memory = Memory::One(memory::buffer(buf, len, mhandle)?);
                let place = event::place(buf);
                let Some(answer) = kernel::Answer::of(call, queue, place, ahandle)? else {
                    return kernel::send_now(fd, buf, len, flags);
                };
                let flags = flags & kernel::SEND_FLAGS;
                return kernel::send(kernel::Seen { fd, inode }, memory, None, flags, &answer);
            }
            Target::File => return not_ours(fd),
        };
        let len = if queue == EXS_QHANDLE_INVALID {
            // Checked as the caller gave it; used as far as one call goes.
            memory::check(buf, len, mhandle)?;
            options::clip(&entry, len)?
        } else {
            len
        };
        let memory = Memory::One(memory::buffer(buf, len, mhandle)?);
        send(&entry, memory, flags, Answer { queue, ahandle, call, place: event::place(buf) })
    })
}

/// `exs_recv`
///
/// # Safety
/// As the header says: the memory is the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_recv(
    fd: c_int,
    buf: Bytes,
    len: usize,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
    mhandle: c_int,
) -> c_int {
    border(|| {
        let call = Call::new(EXS_EVT_RECV, fd);
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(inode) => {
                kernel_recv_flags(flags, queue)?;
                let memory = Memory::One(memory::buffer(buf, len, mhandle)?);
                let place = event::place(buf);
                let Some(answer) = kernel::Answer::of(call, queue, place, ahandle)? else {
                    return kernel::recv_now(fd, buf, len, flags);
                };
                return kernel::recv(kernel::Seen { fd, inode }, memory, false, flags, &answer);
            }
            Target::File => return not_ours(fd),
        };
        recv_flags(flags)?;
        let answer = Answer { queue, ahandle, call, place: 0 };
        if queue == EXS_QHANDLE_INVALID && throws_away(&entry, flags) {
            return received(&entry, recv(&entry, nowhere(len), flags, answer), flags);
        }
        let len = if queue == EXS_QHANDLE_INVALID {
            memory::check(buf, len, mhandle)?;
            len.min(MOST)
        } else {
            len
        };
        let memory = Memory::One(memory::buffer(buf, len, mhandle)?);
        if let Some(q) = queues::way(queue)? {
            let on = call.on(&q.queue, event::place(buf));
            memory.post_recv(&entry, &on, Token(ahandle as u64), flags)?;
            pollable::by_queue(&entry, fd);
            return Ok(0);
        }
        let at_once = few::recv_at_once(&entry, &memory, flags, fd);
        if let Some(received) = at_once.or_else(|| few::recv_passing(&entry, &memory, flags, fd)) {
            memory.end();
            return received;
        }
        received(&entry, recv(&entry, memory, flags, answer), flags)
    })
}

/// A receive of a stream that throws the bytes away instead of storing them (tcp(7)).
fn throws_away(entry: &Entry, flags: c_int) -> bool {
    flags & MSG_TRUNC != 0 && entry.kind == SocketType::Stream
}

/// Memory for bytes to be thrown away, at most 1 MiB: a longer receive is partial.
fn nowhere(len: usize) -> Memory {
    Memory::One(Buffer::from(vec![0; len.min(1 << 20)]))
}

/// The result of a receive without a queue.
fn received(entry: &Entry, got: Result<exs::Event>, flags: c_int) -> Result<c_int> {
    let n = got.and_then(|event| {
        let total = event.total();
        let n = moved(event)?;
        let whole = c_int::try_from(total).unwrap_or(c_int::MAX);
        Ok(if flags & MSG_TRUNC != 0 { whole.max(n) } else { n })
    });
    told::recv(entry, n, 0)
}

/// The pieces of a message as memory; clipped if the call has no queue.
fn pieces(message: &Msghdr, clip: bool) -> Result<Memory> {
    if !message.exs_msg_control.is_null() || message.exs_msg_controllen != 0 {
        return Err(Fail::fixed(libc::EOPNOTSUPP, "messages of EXS have no ancillary data"));
    }
    let mut left = if clip { MOST } else { usize::MAX };
    let mut buffers = Vec::new();
    for piece in Out::pieces(message).list(message.exs_msg_iovlen, EXS_IOV_MAX)? {
        let len = piece.exs_iov_len.min(left);
        // Checked as the caller gave it; used as far as one call goes.
        memory::check(Bytes::of(&piece), piece.exs_iov_len, piece.exs_iov_mhandle)?;
        buffers.push(memory::buffer(Bytes::of(&piece), len, piece.exs_iov_mhandle)?);
        left -= len;
    }
    // One piece takes a shorter path.
    Ok(match buffers.pop() {
        Some(only) if buffers.is_empty() => Memory::One(only),
        Some(last) => {
            buffers.push(last);
            Memory::Many(buffers)
        }
        None => Memory::Many(buffers),
    })
}

/// The bytes of a message, before clipping.
fn length(message: &Msghdr) -> Result<usize> {
    let pieces = Out::pieces(message).list(message.exs_msg_iovlen, EXS_IOV_MAX)?;
    Ok(pieces.map(|p| p.exs_iov_len).fold(0, usize::saturating_add))
}

/// The address of a message; None: the peer.
fn destination(m: &Msghdr) -> Result<Option<KernelAddr>> {
    if m.exs_msg_name.is_null() {
        return Ok(None);
    }
    let name = In::from(Out::name_of(m));
    connect::any_address(name.cast(), m.exs_msg_namelen).map(Some)
}

/// `exs_sendmsg`
///
/// # Safety
/// As the header says: the pieces are the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_sendmsg(
    fd: c_int,
    msg: Out<Msghdr>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let m = msg.read()?;
        let call = Call::new(EXS_EVT_SENDMSG, fd);
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(inode) => {
                let memory = pieces(&m, false)?;
                let Some(answer) = kernel::Answer::of(call, queue, msg.name(), ahandle)? else {
                    return kernel::sendmsg_now(fd, &m, flags);
                };
                return kernel::send(
                    kernel::Seen { fd, inode },
                    memory,
                    destination(&m)?,
                    flags & kernel::SEND_FLAGS,
                    &answer,
                );
            }
            Target::File => return not_ours(fd),
        };
        let clip = queue == EXS_QHANDLE_INVALID;
        let memory = pieces(&m, clip)?;
        if clip {
            options::clip(&entry, length(&m)?)?;
        }
        send(&entry, memory, flags, Answer { queue, ahandle, call, place: msg.name() })
    })
}

/// `exs_recvmsg`
///
/// # Safety
/// As the header says: the pieces and `msg` are the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_recvmsg(
    fd: c_int,
    msg: Out<Msghdr>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let m = msg.read()?;
        let entry = match sockets::find(fd)? {
            Target::Exs(entry) => entry,
            Target::Kernel(inode) => {
                kernel_recv_flags(flags, queue)?;
                let memory = pieces(&m, false)?;
                let call = Call::new(EXS_EVT_RECVMSG, fd);
                let Some(answer) = kernel::Answer::of(call, queue, msg.name(), ahandle)? else {
                    return kernel::recvmsg_now(fd, msg, flags);
                };
                return kernel::recv(
                    kernel::Seen { fd, inode },
                    memory,
                    !m.exs_msg_name.is_null(),
                    flags,
                    &answer,
                );
            }
            Target::File => return not_ours(fd),
        };
        recv_flags(flags)?;
        let memory = match queue == EXS_QHANDLE_INVALID && throws_away(&entry, flags) {
            true => nowhere(length(&m)?),
            false => pieces(&m, queue == EXS_QHANDLE_INVALID)?,
        };
        let extra = event::ends(entry.kind);
        let call = Call { extra, ..Call::new(EXS_EVT_RECVMSG, fd) };
        if let Some(q) = queues::way(queue)? {
            let on = call.on(&q.queue, msg.name());
            memory.post_recv(&entry, &on, Token(ahandle as u64), flags)?;
            pollable::by_queue(&entry, fd);
            return Ok(0);
        }
        let answer = Answer { queue, ahandle, call, place: 0 };
        let got = recv(&entry, memory, flags, answer);
        event::store_flags(msg, got.as_ref().is_ok_and(exs::Event::truncated), extra);
        received(&entry, got, flags)
    })
}

/// The failure of a call on a descriptor that is no EXS socket.
pub(crate) fn not_ours(fd: c_int) -> Result<c_int> {
    match sockets::find(fd)? {
        Target::File => Err(Fail::fixed(libc::ENOTSOCK, "this descriptor is of no socket")),
        _ => Err(Fail::fixed(
            libc::EOPNOTSUPP,
            "this is a socket of the kernel's, and the call is for those of exs_socket",
        )),
    }
}
