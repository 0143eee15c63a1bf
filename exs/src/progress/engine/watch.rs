//! Watches: the state of a socket, shown on a descriptor that the program polls.
//!
//! The C library shows on the descriptor of each socket what a receive would find. The engine notes
//! a change when it serves the socket. The thread that holds the engine calls [`Watch::changed`]
//! after it has released the lock (`Context::finish`). While the program does not rely on
//! descriptors, it leaves that for later (`progress/reliance.rs`). The watch reads the state
//! itself, by [`SocketTable::standing_of`], which also marks all changes up to then as shown. So it does
//! no harm if the engine notes a change late, twice, or after the watch has read it.
//!
//! An event loop that drives the shard (`progress/event_loop.rs`) gets the changes that its own turns
//! have brought, and keeps them in memory, since it is about to return them to the program.
//! The engine counts a change as shown then, for some ticks of the background thread. If no call has
//! read the state by that time, the program is occupied, or waits for the descriptor itself. The
//! background thread shows the change.

use std::sync::Arc;

use super::sock::Sock;
use super::sockets::SocketTable;
use super::{Engine, SockId};
use crate::session::Standing;
use crate::time::Time;

/// An object that shows a socket's state.
pub trait Watch: Send + Sync {
    /// The state may have changed: read it, and show it. The caller is a thread that moves data, of
    /// the library or of the program. It holds no lock of the library.
    fn changed(&self);

    /// The same, for a change that the thread of this event loop has found, and will look for before
    /// it sleeps. So if the program waits for the socket in this loop alone, the watch may keep the
    /// change in memory, and read the state by [`kept_standing`](crate::__ffi::kept_standing).
    fn changed_in(&self, _event_loop: LoopId) {
        self.changed();
    }
}

/// The number of an event loop of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopId(u64);

impl LoopId {
    /// The loop with this number, which no other loop of the process has.
    pub fn new(number: u64) -> LoopId {
        LoopId(number)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Ticks of the background thread for which an event loop may keep a change in memory: some 20 ms in
/// a process that moves data, and 200 ms at most.
const KEPT_TICKS: u8 = 20;

/// Whether a socket is on the list of those with news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// It is not.
    Off,
    /// It is, for less than a tick of the background thread.
    New,
    /// It is, for a tick or longer.
    Aged,
}

/// The watch of one socket.
pub(super) struct Watched {
    watch: Arc<dyn Watch>,
    /// The state that the watch has read last.
    seen: Standing,
    listing: Listing,
    /// The ticks for which an event loop may still keep what was `seen`; 0: a call has read the state
    /// since, or the loop has had its time. None: it is not on the list of such sockets.
    kept: Option<u8>,
    /// The program polls the stream of the connection beside the descriptor (`polled`).
    pub(super) polls_stream: bool,
    /// The program waits for the socket in an event loop that drives shards (`event_loop`).
    pub(super) in_loop: bool,
    /// Before this time threads wait for messages with operations alone (`attend`).
    pub(super) passes_from: Time,
}

impl Watched {
    /// Its socket has come to another shard, where it is on no list.
    pub(super) fn settle_in(&mut self) {
        self.listing = Listing::Off;
        self.kept = None;
    }

    /// A call has read the state, and shows it.
    fn note_read(&mut self, standing: Standing) {
        self.seen = standing;
        if self.listing == Listing::Aged {
            self.listing = Listing::New;
        }
        self.kept = self.kept.map(|_| 0);
    }
}

impl SocketTable {
    /// The state of a socket. The caller must show it: the engine counts it as shown.
    pub(crate) fn standing_of(&mut self, id: SockId) -> Standing {
        let Ok(s) = self.find(id) else { return Standing::default() };
        let standing = s.standing();
        if let Some(w) = &mut s.watch {
            w.note_read(standing);
        }
        standing
    }
}

impl Engine {
    /// Sets the watch of a socket. `None` ends the watching.
    pub(crate) fn set_watch(&mut self, id: SockId, watch: Option<Arc<dyn Watch>>) {
        self.attendances().end_left(id);
        if let Ok(s) = self.sockets.find(id) {
            let seen = Standing::default();
            let (listing, kept) = (Listing::Off, None);
            let ([polls_stream, in_loop], passes_from) = ([false; 2], Time::ZERO);
            s.watch = watch.map(|watch| {
                Box::new(Watched { watch, seen, listing, kept, polls_stream, in_loop, passes_from })
            });
        }
    }

    /// As [`SocketTable::standing_of`], for an event loop that keeps the state in memory.
    pub(crate) fn kept_standing_of(&mut self, id: SockId) -> Standing {
        let standing = self.sockets.standing_of(id);
        if let Ok(Sock { watch: Some(w), .. }) = self.sockets.find(id)
            && w.kept.replace(KEPT_TICKS).is_none()
        {
            self.delivery.news.kept.push(id);
        }
        standing
    }

    /// Takes the watches that have news, each once. With `aged`, takes those that already had news
    /// at the last such call. None while the process ends: its threads see nothing of that, and the one that
    /// ends it may have been interrupted by a signal while it held the lock of a watch.
    pub(in crate::progress) fn take_news(&mut self, aged: bool) -> Vec<Arc<dyn Watch>> {
        if self.delivery.leaver().is_some() {
            return Vec::new();
        }
        self.delivery.news.take(&mut self.sockets, aged)
    }

    /// Notes that a tick is over, and takes the watches whose changes an event loop has kept for too
    /// long. With `all`, takes all of them.
    pub(in crate::progress) fn take_kept_news(&mut self, all: bool) -> Vec<Arc<dyn Watch>> {
        self.delivery.news.take_kept(&mut self.sockets, all)
    }
}

/// The sockets with changes that no descriptor shows yet, each once.
#[derive(Default)]
pub(super) struct News {
    due: Vec<SockId>,
    /// The sockets whose changes an event loop keeps in memory, each once.
    kept: Vec<SockId>,
}

impl News {
    /// Puts a socket on the list, if its watch has not shown its state.
    #[inline]
    pub(super) fn check(&mut self, index: u32, s: &mut Sock) {
        if s.watch.as_ref().is_some_and(|w| w.listing == Listing::Off) && has_news(s) {
            let id = SockId { index, generation: s.generation };
            if let Some(w) = &mut s.watch {
                w.listing = Listing::New;
            }
            self.due.push(id);
        }
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.due.is_empty()
    }

    /// True if an event loop keeps changes in memory.
    #[inline]
    pub(super) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// A tick is over. Returns the watches whose changes an event loop has kept for too long, or all.
    fn take_kept(&mut self, sockets: &mut SocketTable, all: bool) -> Vec<Arc<dyn Watch>> {
        let mut due = Vec::new();
        self.kept.retain(|id| {
            let Some(w) = sockets.get_mut(*id).and_then(|s| s.watch.as_mut()) else { return false };
            let ticks = w.kept.take().unwrap_or(0);
            if ticks > 1 && !all {
                w.kept = Some(ticks - 1);
            } else if ticks > 0 {
                due.push(Arc::clone(&w.watch));
            }
            w.kept.is_some()
        });
        due
    }

    fn take(&mut self, sockets: &mut SocketTable, aged: bool) -> Vec<Arc<dyn Watch>> {
        let mut due = Vec::new();
        self.due.retain(|id| {
            let Some(s) = sockets.get_mut(*id) else { return false };
            let has_news = has_news(s);
            let Some(w) = &mut s.watch else { return false };
            if has_news && aged && w.listing != Listing::Aged {
                w.listing = Listing::Aged;
                return true;
            }
            if has_news {
                due.push(Arc::clone(&w.watch));
            }
            w.listing = Listing::Off;
            false
        });
        due
    }
}

fn has_news(s: &Sock) -> bool {
    s.watch.as_ref().is_some_and(|w| s.standing().is_news(&w.seen))
}
