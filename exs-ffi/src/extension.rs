//! The parts outside of ES-API: one-sided operations, and figures.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use exs::{EventQueue, RemoteBuffer, Rights, Token};

use crate::abi::*;
use crate::blocking::{self, MOST, Patience, TOKEN, moved};
use crate::data::not_ours;
use crate::error::{Fail, Result, border};
use crate::event::{self, Call};
use crate::ptr::{Bytes, In, Out};
use crate::sockets::{self, Entry, Target};
use crate::{fork, memory, queues};

const NO_EXPORT: Fail = Fail::fixed(libc::EINVAL, "this socket has not exported such memory");

/// `exs_export`
///
/// # Safety
/// As the header says: the memory is the peer's until it is revoked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_export(
    fd: c_int,
    addr: Bytes,
    len: usize,
    rights: c_int,
    lifetime_ms: u32,
    mhandle: c_int,
    remote: Out<Remote>,
) -> c_int {
    border(|| {
        let Target::Exs(entry) = sockets::find(fd)? else { return not_ours(fd) };
        remote.check()?;
        if rights & !(EXS_RIGHT_READ | EXS_RIGHT_WRITE | EXS_RIGHT_ATOMIC) != 0 {
            let known = "rights: EXS_RIGHT_READ, EXS_RIGHT_WRITE and EXS_RIGHT_ATOMIC";
            return Err(Fail::fixed(libc::EINVAL, known));
        }
        let rights = Rights::default()
            .with_read(rights & EXS_RIGHT_READ != 0)
            .with_write(rights & EXS_RIGHT_WRITE != 0)
            .with_atomic(rights & EXS_RIGHT_ATOMIC != 0);
        let lifetime = (lifetime_ms != 0).then(|| Duration::from_millis(u64::from(lifetime_ms)));
        let buffer = memory::buffer(addr, len, mhandle)?;
        let mut state = entry.state();
        if state.gone {
            return Err(Fail::fixed(libc::EBADF, "the socket is closed"));
        }
        let export = entry.socket.export(buffer, rights, lifetime)?;
        let name = export.descriptor().to_bytes();
        state.exports.insert(name, export);
        remote.write(Remote { exs_remote_bytes: name })?;
        Ok(0)
    })
}

/// `exs_revoke`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_revoke(
    fd: c_int,
    remote: In<Remote>,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let Target::Exs(entry) = sockets::find(fd)? else { return not_ours(fd) };
        let name = remote.read()?.exs_remote_bytes;
        let way = queues::way(queue)?;
        let mut state = entry.state();
        let export = state.exports.remove(&name).ok_or(NO_EXPORT)?;
        let Some(q) = way else {
            drop(state);
            export.revoke_blocking()?;
            return Ok(0);
        };
        let place = local_place(&export.descriptor());
        let on = Call::new(EXS_EVT_REVOKE, fd).on(&q.queue, place);
        if let Err(refused) = export.revoke(&on, Token(ahandle as u64)) {
            state.exports.insert(name, refused.buffer);
            return Err(refused.error.into());
        }
        Ok(0)
    })
}

/// Returns the address of the exported memory: the descriptor holds it.
fn local_place(descriptor: &RemoteBuffer) -> u64 {
    descriptor.addr()
}

pub(crate) fn descriptor(remote: In<Remote>) -> Result<RemoteBuffer> {
    let bytes = remote.read()?.exs_remote_bytes;
    RemoteBuffer::from_bytes(&bytes).map_err(|e| Fail::text(libc::EINVAL, e.to_string()))
}

/// `exs_remote_info`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_remote_info(
    remote: In<Remote>,
    len: Out<u64>,
    rights: Out<c_int>,
) -> c_int {
    border(|| {
        let d = descriptor(remote)?;
        if !len.is_null() {
            len.write(d.len())?;
        }
        if !rights.is_null() {
            let read = if d.rights().read { EXS_RIGHT_READ } else { 0 };
            let write = if d.rights().write { EXS_RIGHT_WRITE } else { 0 };
            let atomic = if d.rights().atomic { EXS_RIGHT_ATOMIC } else { 0 };
            rights.write(read | write | atomic)?;
        }
        Ok(0)
    })
}

/// The arguments that exs_read and exs_write share.
struct OneSided {
    fd: c_int,
    buf: Bytes,
    len: usize,
    remote: In<Remote>,
    offset: u64,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
    mhandle: c_int,
}

impl OneSided {
    fn run(self, kind: c_int) -> Result<c_int> {
        let OneSided { fd, buf, queue, .. } = self;
        let Target::Exs(entry) = sockets::find(fd)? else { return not_ours(fd) };
        if self.flags != 0 {
            return Err(Fail::fixed(libc::EINVAL, "exs_read and exs_write have no flags"));
        }
        let remote = descriptor(self.remote)?;
        // A device moves the bytes: the processor need not reach them.
        drop(memory::buffer(buf, self.len, self.mhandle)?);
        let len = if queue == EXS_QHANDLE_INVALID { self.len.min(MOST) } else { self.len };
        let buffer = memory::buffer(buf, len, self.mhandle)?;
        let post = |entry: &Entry, q: &EventQueue, token| {
            let offset = self.offset;
            if kind == EXS_EVT_READ {
                Ok(entry.socket.read(q, token, &remote, offset, buffer)?)
            } else {
                Ok(entry.socket.write(q, token, &remote, offset, buffer)?)
            }
        };
        if let Some(q) = queues::way(queue)? {
            let on = Call::new(kind, fd).on(&q.queue, event::place(buf));
            post(&entry, &on, Token(self.ahandle as u64))?;
            return Ok(0);
        }
        moved(blocking::run(&entry.socket, Patience::Endless, |q| post(&entry, q, TOKEN))?)
    }
}

/// `exs_read`
///
/// # Safety
/// As the header says: the memory is the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_read(
    fd: c_int,
    buf: Bytes,
    len: usize,
    remote: In<Remote>,
    offset: u64,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
    mhandle: c_int,
) -> c_int {
    border(|| {
        let all = OneSided { fd, buf, len, remote, offset, flags, queue, ahandle, mhandle };
        all.run(EXS_EVT_READ)
    })
}

/// `exs_write`
///
/// # Safety
/// As the header says: the memory is the operation's until its event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_write(
    fd: c_int,
    buf: Bytes,
    len: usize,
    remote: In<Remote>,
    offset: u64,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
    mhandle: c_int,
) -> c_int {
    border(|| {
        let all = OneSided { fd, buf, len, remote, offset, flags, queue, ahandle, mhandle };
        all.run(EXS_EVT_WRITE)
    })
}

/// Copies the figures that both structures have.
macro_rules! figures {
    ($from:expr, $($name:ident),* $(,)?) => {
        Counters { $($name: $from.$name),* }
    };
}

/// `exs_counters`
///
/// # Safety
/// As the header says: room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_counters(fd: c_int, place: Out<Counters>, size: usize) -> c_int {
    border(|| {
        fork::used();
        let c = if fd == -1 {
            exs::counters()?
        } else {
            let Target::Exs(entry) = sockets::find(fd)? else { return not_ours(fd) };
            entry.socket.counters()
        };
        let c = figures!(
            c,
            sends,
            recvs,
            one_sided,
            sent_direct,
            sent_indirect,
            sent_inline,
            received_direct,
            received_indirect,
            received_inline,
            read_bytes,
            write_bytes,
            copies,
            copied_bytes,
            adverts_sent,
            adverts_received,
            adverts_stale,
            credit_stalls,
            queue_stalls,
            messages_sent,
            messages_received,
            events,
            engine_runs,
            sleeps,
            in_flight,
            receives_added,
            receives_dropped,
        );
        // SAFETY: a structure of 64-bit numbers without gaps, read as its bytes.
        let bytes: [u8; size_of::<Counters>()] = unsafe { std::mem::transmute(c) };
        if size > 1 << 16 {
            return Err(Fail::fixed(libc::EINVAL, "size is sizeof(exs_counters_t)"));
        }
        for i in 0..size {
            place.cast::<u8>().write_at(i, bytes.get(i).copied().unwrap_or(0))?;
        }
        Ok(0)
    })
}

/// `exs_offer_stats`
///
/// # Safety
/// As the header says: room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_offer_stats(place: Out<c_char>, size: usize) -> c_int {
    border(|| {
        fork::used();
        if size > 0 {
            place.check()?;
        }
        let path = exs::stats::offer()?.as_os_str().as_bytes();
        if size == 0 {
            return Ok(0);
        }
        if path.len() >= size {
            return Err(Fail::fixed(libc::ERANGE, "the path of the socket needs more room"));
        }
        for (i, byte) in path.iter().chain(&[0]).enumerate() {
            place.cast::<u8>().write_at(i, *byte)?;
        }
        Ok(0)
    })
}
