//! Where a socket lives.
//!
//! A new socket lives in the shard of the thread that makes it. Its first connect moves it to the
//! shard of the queue that the connect names. A connection that an accept brings lives where it has
//! come up. If one of the first operations on a connection names a queue of another shard, the connection
//! goes there as soon as it rests (`engine/rehome.rs`). That shard is its *home*, which it never leaves. A
//! receive that blocks makes the shard where the connection is its home, and so do many operations that
//! name queues of that shard. Few of them do not: a thread that accepts may say some words to the peer
//! before it gives the connection to another thread.
//!
//! So a call finds the home by one load, and the move needs no lock on the data path: it happens under
//! the locks of both engines. A call that has looked up the old place finds out under the old engine's
//! lock that the socket has moved ([`Residence::is_at`]).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::context::Context;
use super::engine::{Rehomed, SockId};
use super::queue::QueueCore;
use crate::sys::ProcessLock;

/// Operations that name queues of the shard where a connection is, until it stays there.
const SETTLED_AFTER: u32 = 64;

/// The first operations that name a queue of another shard all try to take the connection there.
const FIRST_TRIES: u32 = 16;
/// If they find it busy, as many operations in a row try after each power of two: a send may find a
/// connection at rest that each receive finds busy.
const LATER_TRIES: u32 = 4;

/// True if the operation of this number tries to take a busy connection along.
fn tries(number: u32) -> bool {
    let power = number.checked_ilog2().map_or(0, |log| 1 << log);
    number < FIRST_TRIES || number - power < LATER_TRIES
}

/// Held by a thread that moves a socket. Only such threads lock two engines at a time, so no other order
/// of locks can deadlock with theirs.
static MOVES: ProcessLock<()> = ProcessLock::new(());

/// A place to live: a shard, and the socket's name there.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) context: Arc<Context>,
    pub(super) id: SockId,
}

/// The places of a socket. It leaves each of them once at most.
pub(super) struct Residence {
    /// The place where the socket was made.
    made: Home,
    /// The place where its connection began: with its first connect, or with the accept that has brought
    /// the socket. None: it has no connection. Written under the engine's lock of `made`.
    began: OnceLock<Home>,
    /// The home of its connection. None until an operation has chosen it. Written under the engine's lock
    /// of the place before.
    home: OnceLock<Home>,
    /// Operations that have named a queue of the shard where the connection is, while there was no home.
    own_posts: AtomicU32,
    /// Operations that have named a queue of another shard, while there was no home.
    foreign_posts: AtomicU32,
}

impl Residence {
    /// Of a socket without a connection.
    pub(super) fn new(made: Home) -> Residence {
        Residence {
            made,
            began: OnceLock::new(),
            home: OnceLock::new(),
            own_posts: AtomicU32::new(0),
            foreign_posts: AtomicU32::new(0),
        }
    }

    /// Of a socket that an accept brings, with its connection.
    pub(super) fn accepted(made: Home) -> Residence {
        Residence { began: made.clone().into(), ..Residence::new(made) }
    }

    /// Where the socket lives now.
    #[inline]
    pub(super) fn place(&self) -> &Home {
        self.home.get().or_else(|| self.began.get()).unwrap_or(&self.made)
    }

    /// True if the socket lives at this place still.
    pub(super) fn is_at(&self, place: &Home) -> bool {
        let now = self.place();
        now.id == place.id && Arc::ptr_eq(&now.context, &place.context)
    }

    /// True if the socket is connected, or connects.
    pub(super) fn is_connected(&self) -> bool {
        self.began.get().is_some()
    }

    /// The home of the connection. None: no operation has chosen it.
    #[inline]
    pub(super) fn home(&self) -> Option<&Home> {
        self.home.get()
    }

    /// The home of a socket with a connection, which stays there from now on. None: it has no connection.
    #[inline]
    pub(super) fn stay(&self) -> Option<&Home> {
        match self.home.get() {
            Some(home) => Some(home),
            None if self.is_connected() => Some(self.stay_here()),
            None => None,
        }
    }

    #[cold]
    fn stay_here(&self) -> &Home {
        let at = self.place();
        at.context.look(|_| self.home.get_or_init(|| at.clone()))
    }

    /// Moves a socket that connects for the first time to the shard of this queue.
    pub(super) fn dial_from(&self, queue: &QueueCore) {
        if self.is_connected() {
            return;
        }
        let there = queue.shard().context().filter(|there| !Arc::ptr_eq(there, &self.made.context));
        let _one = there.is_some().then(|| MOVES.lock());
        self.made.context.look(|engine| {
            self.began.get_or_init(|| {
                let moved =
                    there.and_then(|there| Some((there, engine.sockets.take_fresh(self.made.id)?)));
                match moved {
                    None => self.made.clone(),
                    Some((there, sock)) => Home {
                        context: Arc::clone(there),
                        id: there.look(|engine| engine.sockets.put_fresh(sock)),
                    },
                }
            });
        });
    }

    /// An operation names `queue`. It chooses the home of a connection that has none.
    #[inline]
    pub(super) fn choose(&self, queue: &QueueCore) {
        if self.home.get().is_none() && self.is_connected() {
            self.go_to(queue);
        }
    }

    /// If the queue is of another shard, the connection goes there as soon as it rests. Otherwise it will
    /// stay where it is.
    #[cold]
    fn go_to(&self, queue: &QueueCore) {
        let at = self.place();
        let here = &at.context;
        let shard = queue.shard_beside(here.shard());
        let there = shard.context().filter(|there| !Arc::ptr_eq(there, here));
        let Some(there) = there.filter(|_| !queue.serves_calls()) else {
            let own_posts = self.own_posts.fetch_add(1, Ordering::Relaxed);
            if queue.serves_calls() || own_posts >= SETTLED_AFTER {
                self.stay();
            }
            return;
        };
        if !tries(self.foreign_posts.fetch_add(1, Ordering::Relaxed)) {
            return;
        }
        if !self.try_move(at, there) {
            // A thread may have read ahead of what it wanted. The turn deals with the rest.
            here.turn(None, false, None);
            self.try_move(at, there);
        }
    }

    /// Takes the connection to another shard. False: it is busy now.
    fn try_move(&self, at: &Home, there: &Arc<Context>) -> bool {
        let _one = MOVES.lock();
        at.context.look(|engine| {
            if self.home.get().is_some() {
                return true;
            }
            let home = match there.look(|other| engine.rehome(at.id, other)) {
                Rehomed::To(id) => Home { context: Arc::clone(there), id },
                Rehomed::NotYet => return false,
                Rehomed::Never => at.clone(),
            };
            self.home.get_or_init(|| home);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_a_busy_connection_try_ever_more_rarely() {
        let mut tried = (0..100).filter(|number| tries(*number));
        assert!(tried.by_ref().take(16).eq(0..16));
        assert!(tried.eq([16, 17, 18, 19, 32, 33, 34, 35, 64, 65, 66, 67]));
        assert!(tries(1 << 31) && !tries(u32::MAX));
    }
}
