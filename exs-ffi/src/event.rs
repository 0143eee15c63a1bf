//! Converts the library's events to `exs_event_t`.
//!
//! An operation carries two words besides its ahandle (`raw::tagged`). The first holds the call,
//! its descriptor, and a small value. The second holds the place that the caller passed. So most
//! operations need no entry in a table.

use std::ffi::c_int;

use exs::__ffi::{self as raw, ProcessLock};
use exs::{Error, EventQueue, KernelAddr, OpError, Readiness, SocketType};
use libc::c_void;
use slab::Slab;

use crate::abi::*;
use crate::accept::Prepared;
use crate::ptr::{Bytes, Out};
use crate::{error, kernel, pollable};

/// The call that posted an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// EXS_EVT_...
    pub(crate) kind: c_int,
    pub(crate) fd: c_int,
    /// POLL: the events that were asked for. RECVMSG: 1 if messages have ends. ACCEPT: see
    /// `kernel::ACCEPTS`.
    pub(crate) extra: u16,
}

impl Call {
    pub(crate) fn new(kind: c_int, fd: c_int) -> Call {
        Call { kind, fd, extra: 0 }
    }

    /// Returns the queue for operations with this tag.
    pub(crate) fn on(self, queue: &EventQueue, place: u64) -> EventQueue {
        raw::tagged(queue, self.tag(place))
    }

    /// Returns the two words that such operations carry.
    pub(crate) fn tag(self, place: u64) -> [u64; 2] {
        let word = (u64::from(self.kind as u32) << 48)
            | (u64::from(self.extra) << 32)
            | u64::from(self.fd as u32);
        [word, place]
    }

    #[allow(clippy::cast_possible_truncation)] // the fields that `tag` put together
    fn of(word: u64) -> Call {
        Call { kind: (word >> 48) as c_int, fd: word as u32 as c_int, extra: (word >> 32) as u16 }
    }
}

/// Accepts under way, with the descriptors for their connections.
static ACCEPTS: ProcessLock<Slab<Prepared>> = ProcessLock::new(Slab::new());

/// Stores what an accept has prepared. The returned number goes with the operation.
pub(crate) fn keep_accept(prepared: Prepared) -> u64 {
    ACCEPTS.lock().insert(prepared) as u64
}

/// Takes it out again. None if it was taken before.
pub(crate) fn take_accept(name: u64) -> Option<Prepared> {
    let slot = usize::try_from(name).ok()?;
    ACCEPTS.lock().try_remove(slot)
}

/// Drops an event that no thread will dequeue.
pub(crate) fn discard(event: exs::Event) {
    let [word, place] = raw::tag(&event);
    let call = Call::of(word);
    if call.kind == EXS_EVT_ACCEPT && call.extra & kernel::ACCEPTS == 0 {
        drop(take_accept(place));
    }
}

/// Converts an event to C.
pub(crate) fn to_c(mut event: exs::Event) -> Event {
    let [word, place] = raw::tag(&event);
    let call = Call::of(word);
    let mut flags = 0;
    if event.eof() {
        flags |= EXS_EVF_EOF;
    }
    if event.truncated() {
        flags |= EXS_EVF_TRUNC;
    }
    let union = union_of(&mut event, call, place);
    let ahandle = usize::try_from(event.token().0).unwrap_or(0);
    let (mut kind, mut errno) = (call.kind, 0);
    if let Some(e) = event.error() {
        (kind, errno) = (kind_of(kind, e), e.errno());
        if let Err(e) = event.into_result() {
            error::note(e);
        }
    }
    if [EXS_EVT_RECV, EXS_EVT_RECVMSG, EXS_EVT_ACCEPT].contains(&call.kind) {
        pollable::taken(call.fd);
    }
    Event {
        exs_evt_type: kind,
        exs_evt_errno: errno,
        exs_evt_socket: call.fd,
        exs_evt_flags: flags.unsigned_abs(),
        exs_evt_ahandle: ahandle,
        exs_evt_union: union,
    }
}

/// Fills the part that depends on the kind, and stores results in the caller's places.
fn union_of(event: &mut exs::Event, call: Call, place: u64) -> EventUnion {
    let (exs_evt_length, exs_evt_total) = (event.bytes(), event.total());
    let mut union = EventUnion { exs_evt_reserved: [0; 6] };
    match call.kind {
        EXS_EVT_ACCEPT if call.extra & kernel::ACCEPTS != 0 => {
            let place = Out::named(place);
            kernel::store_peer(event.peer(), place);
            let fd = raw::take_descriptor(event);
            union.exs_evt_accept = EvtAccept {
                exs_evt_newsocket: fd.map_or(-1, |fd| kernel::hand_over(fd, call.extra)),
                ..Prepared::nothing(place)
            };
        }
        EXS_EVT_ACCEPT => {
            let accept = take_accept(place).map(|p| p.finish(raw::take_accepted(event)));
            union.exs_evt_accept = accept.unwrap_or_else(|| Prepared::nothing(Out::named(0)));
        }
        EXS_EVT_POLL => {
            union.exs_evt_poll = EvtPoll {
                exs_evt_revents: revents(event.readiness(), c_int::from(call.extra)),
                exs_evt_reserved: 0,
                exs_evt_pollfd: Out::<Pollfd>::named(place).raw(),
            };
        }
        EXS_EVT_SENDMSG | EXS_EVT_RECVMSG => {
            let message = Out::<Msghdr>::named(place);
            if call.kind == EXS_EVT_RECVMSG {
                let room = message.read().map_or(0, |m| m.exs_msg_namelen as usize);
                store_flags(message, event.truncated(), call.extra);
                store_sender(message, room, event.peer());
            }
            let exs_evt_msghdr = message.raw();
            union.exs_evt_xfermsg = EvtXfermsg { exs_evt_length, exs_evt_msghdr, exs_evt_total };
        }
        EXS_EVT_SENDFILE => {
            let exs_evt_xferfile = Out::<Xferfile>::named(place).raw();
            union.exs_evt_xferfile = EvtXferfile { exs_evt_length, exs_evt_xferfile };
        }
        EXS_EVT_FETCH_ADD | EXS_EVT_COMPARE_SWAP => {
            let (place, old) = (Out::<u64>::named(place), event.old_value());
            if let Some(old) = old.filter(|_| !place.is_null()) {
                // The place is not NULL.
                let _ = place.write(old);
            }
            let (exs_evt_place, exs_evt_old) = (place.raw(), old.unwrap_or(0));
            union.exs_evt_atomic = EvtAtomic { exs_evt_length, exs_evt_place, exs_evt_old };
        }
        EXS_EVT_CONNECT | EXS_EVT_SHUTDOWN | EXS_EVT_CLOSE => {}
        _ => {
            let exs_evt_buffer = place as *mut c_void;
            union.exs_evt_xfer = EvtXfer { exs_evt_length, exs_evt_buffer, exs_evt_total };
        }
    }
    union
}

/// An operation that reached its own deadline has an event of another kind.
fn kind_of(kind: c_int, error: &Error) -> c_int {
    if !matches!(error, Error::Op(OpError::TimedOut { .. })) {
        return kind;
    }
    match kind {
        EXS_EVT_SEND | EXS_EVT_SENDMSG | EXS_EVT_SENDFILE => EXS_EVT_SENDTIMEOUT,
        EXS_EVT_RECV | EXS_EVT_RECVMSG => EXS_EVT_RECVTIMEOUT,
        other => other,
    }
}

/// Converts readiness to C: the events that were asked for, and those that are always reported.
pub(crate) fn revents(found: Readiness, asked: c_int) -> c_int {
    let mut out = 0;
    if found.readable {
        out |= EXS_POLLIN & asked;
    }
    if found.writable {
        out |= EXS_POLLOUT & asked;
    }
    if found.error {
        out |= EXS_POLLHUP;
    }
    out
}

/// Stores the flags of a received message.
pub(crate) fn store_flags(message: Out<Msghdr>, truncated: bool, ends: u16) {
    if let Ok(mut m) = message.read() {
        let cut = if truncated { libc::MSG_TRUNC } else { 0 };
        let end = if ends == 0 { 0 } else { libc::MSG_EOR };
        (m.exs_msg_flags, m.exs_msg_namelen) = (cut | end, 0);
        // The read above succeeded, so the place is not NULL.
        let _ = message.write(m);
    }
}

/// Stores the sender of a message, if the receiver has a place for it.
fn store_sender(message: Out<Msghdr>, room: usize, from: Option<&KernelAddr>) {
    let (Ok(mut m), Some(from)) = (message.read(), from) else { return };
    let (bytes, len) = from.to_sockaddr();
    let place = Out::name_of(&m).cast::<u8>();
    for (i, b) in bytes.iter().take(len.min(room)).enumerate() {
        // A receive asks for the sender only if there is a place.
        let _ = place.write_at(i, *b);
    }
    m.exs_msg_namelen = libc::socklen_t::try_from(len).unwrap_or(0);
    let _ = message.write(m);
}

/// Returns `Call::extra` for a receive.
pub(crate) fn ends(kind: SocketType) -> u16 {
    u16::from(kind == SocketType::SeqPacket)
}

/// Returns the number that stands for the memory of an operation.
pub(crate) fn place(memory: Bytes) -> u64 {
    memory.name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_gives_the_call_back() {
        for (kind, fd, extra) in
            [(EXS_EVT_REVOKE, c_int::MAX, u16::MAX), (EXS_EVT_POLL, 0, 5), (EXS_EVT_SEND, 7, 0)]
        {
            let word = (u64::from(kind as u32) << 48) | (u64::from(extra) << 32) | fd as u64;
            assert_eq!(Call::of(word), Call { kind, fd, extra });
        }
    }
}
