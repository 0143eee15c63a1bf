//! Where a socket lives.
//!
//! A new socket lives in the shard of the thread that makes it. Its first connect moves it to the
//! shard of the queue that the connect names. A connection that an accept brings lives where it has
//! come up. If the first operation on a connection names a queue of another shard, the connection goes
//! there as soon as it rests (`engine/rehome.rs`). That shard is its *home*, which it never leaves. A
//! receive that blocks, or an operation that names a queue of its own shard, makes that one its home.
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

/// Operations that name a queue of another shard, and find the connection busy, until it stays where it
/// is.
const PATIENCE: u32 = 16;

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
    /// An accept has brought the socket, with its connection.
    accepted: bool,
    /// The place where its first connect was begun. Written under the engine's lock of `made`.
    dialed: OnceLock<Home>,
    /// The home of its connection. None until an operation has chosen it. Written under the engine's lock
    /// of the place before.
    home: OnceLock<Home>,
    /// Operations that have found the connection busy when they would have moved it.
    found_busy: AtomicU32,
}

impl Residence {
    pub(super) fn new(made: Home, accepted: bool) -> Residence {
        Residence {
            made,
            accepted,
            dialed: OnceLock::new(),
            home: OnceLock::new(),
            found_busy: AtomicU32::new(0),
        }
    }

    /// Where the socket lives now.
    #[inline]
    pub(super) fn place(&self) -> &Home {
        self.home.get().or_else(|| self.dialed.get()).unwrap_or(&self.made)
    }

    /// True if the socket lives at this place still.
    pub(super) fn is_at(&self, place: &Home) -> bool {
        let now = self.place();
        now.id == place.id && Arc::ptr_eq(&now.context, &place.context)
    }

    /// True if the socket is connected, or connects.
    pub(super) fn is_connected(&self) -> bool {
        self.home.get().is_some() || self.accepted || self.dialed.get().is_some()
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
            self.dialed.get_or_init(|| {
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

    /// If the queue is of another shard, the connection goes there as soon as it rests. Otherwise it stays
    /// where it is.
    #[cold]
    fn go_to(&self, queue: &QueueCore) {
        let at = self.place();
        let here = &at.context;
        let shard = queue.shard_beside(here.shard());
        let there = shard.context().filter(|there| !Arc::ptr_eq(there, here));
        let Some(there) = there.filter(|_| !queue.serves_calls()) else {
            self.stay();
            return;
        };
        let _one = MOVES.lock();
        here.look(|engine| {
            if self.home.get().is_some() {
                return;
            }
            let home = match there.look(|other| engine.rehome(at.id, other)) {
                Rehomed::To(id) => Home { context: Arc::clone(there), id },
                Rehomed::NotYet if self.found_busy.fetch_add(1, Ordering::Relaxed) < PATIENCE => {
                    return;
                }
                Rehomed::NotYet | Rehomed::Never => at.clone(),
            };
            self.home.get_or_init(|| home);
        });
    }
}
