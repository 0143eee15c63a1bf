//! Accepts connections.

use std::ffi::c_int;
use std::net::SocketAddr;

use exs::__ffi as raw;
use exs::{Socket, SocketType, Token};

use crate::abi::*;
use crate::blocking::{self, Patience, TOKEN, refusal};
use crate::data::not_ours;
use crate::epoll_set::EpollSet;
use crate::error::{Fail, Result, border};
use crate::event::{Call, keep_accept, take_accept};
use crate::pair::Pair;
use crate::ptr::Out;
use crate::sockets::{self, Entry, Target};
use crate::timeouts::Way;
use crate::{connect, kernel, options, pollable, queues};

/// The objects that an accepted connection needs. They are made when the accept is posted. So
/// nothing can fail, and no connection is lost, when the event is dequeued.
#[derive(Debug)]
pub(crate) struct Prepared {
    pair: Pair,
    family: c_int,
    kind: SocketType,
    place: Out<Acceptaddr>,
}

// SAFETY: the place is the caller's until the event. The thread that dequeues the event stores
// there.
unsafe impl Send for Prepared {}

impl Prepared {
    fn new(entry: &Entry, place: Out<Acceptaddr>, flags: c_int) -> Result<Prepared> {
        let pair = Pair::new(flags & libc::SOCK_NONBLOCK != 0)?;
        Ok(Prepared { pair, family: entry.family, kind: entry.kind, place })
    }

    /// Installs the accepted socket and returns the content of the event.
    pub(crate) fn finish(self, accepted: Option<(Socket, SocketAddr)>) -> EvtAccept {
        let Prepared { pair, family, kind, place } = self;
        let mut out = Prepared::nothing(place);
        if let Some((socket, peer)) = accepted {
            if !place.is_null() {
                let len = connect::store_whole(connect::as_family(peer, family), place.cast());
                if let Ok(mut a) = place.read() {
                    a.exs_aa_addrlen = len;
                    // The read above succeeded, so the place is not NULL.
                    let _ = place.write(a);
                }
            }
            out.exs_evt_newsocket = sockets::install(socket, kind, family, pair);
        }
        out
    }

    /// Returns the content of the event for an accept that brought no connection.
    pub(crate) fn nothing(place: Out<Acceptaddr>) -> EvtAccept {
        EvtAccept { exs_evt_newsocket: -1, exs_evt_reserved: 0, exs_evt_acceptaddr: place.raw() }
    }
}

fn known_flags(flags: c_int) -> Result<()> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        let why = "exs_accept knows the flags SOCK_NONBLOCK and SOCK_CLOEXEC only";
        return Err(Fail::fixed(libc::EINVAL, why));
    }
    Ok(())
}

/// `exs_accept`
///
/// # Safety
/// As the header says: `place` is kept until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_accept(
    fd: c_int,
    place: Out<Acceptaddr>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let target = sockets::find(fd)?;
        let way = queues::way(queue)?;
        known_flags(flags)?;
        let entry = match target {
            Target::Exs(entry) => entry,
            Target::Kernel(_) => {
                let Some(q) = way else { return kernel::accept_now(fd, place, flags) };
                let extra = kernel::accept_extra(flags);
                let call = Call { extra, ..Call::new(EXS_EVT_ACCEPT, fd) };
                let token = Token(ahandle as u64);
                let answer = kernel::Answer { call, queue: q, place: place.name(), token };
                return kernel::accept(fd, &answer);
            }
            Target::File => return not_ours(fd),
        };
        let prepared = Prepared::new(&entry, place, flags)?;
        let Some(q) = way else { return accept_now(&entry, fd, prepared) };
        let name = keep_accept(prepared);
        let on = Call::new(EXS_EVT_ACCEPT, fd).on(&q.queue, name);
        if let Err(e) = entry.socket.accept(&on, Token(ahandle as u64)) {
            drop(take_accept(name));
            return Err(e.into());
        }
        pollable::by_queue(&entry, fd);
        Ok(0)
    })
}

/// Accepts without a queue.
fn accept_now(entry: &Entry, fd: c_int, prepared: Prepared) -> Result<c_int> {
    let patience = options::patience(entry, fd, 0, Way::Recv);
    let socket = &entry.socket;
    let in_loop = EpollSet::of_thread().is_some_and(|set| set.event_loop.serves_accepted());
    let result = match patience {
        _ if in_loop => {
            blocking::run(socket, patience, |q| Ok(raw::accept_in_loop(socket, q, TOKEN)?))
        }
        Patience::None => {
            blocking::run(socket, patience, |q| Ok(raw::accept_in_turn(socket, q, TOKEN)?))
        }
        Patience::Limited(_) | Patience::Endless | Patience::Deaf => {
            let (queue, home) = raw::private_queue_for_accept(socket)?;
            blocking::run_on(queue, socket, patience, |q| {
                Ok(raw::accept_at_home(socket, q, TOKEN, home)?)
            })
        }
    };
    pollable::refresh(entry, fd);
    let mut event = result?;
    let accepted = exs::__ffi::take_accepted(&mut event);
    if accepted.is_none() {
        event.into_result()?;
        pollable::found_nothing(entry);
        return Err(refusal(libc::EAGAIN));
    }
    debug_assert_ne!(patience, Patience::Deaf);
    Ok(prepared.finish(accepted).exs_evt_newsocket)
}
