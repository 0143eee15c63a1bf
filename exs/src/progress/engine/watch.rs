//! Watches: the state of a socket, shown on a descriptor that the program polls.
//!
//! The C library shows on the descriptor of each socket what a receive would find. The engine notes
//! a change when it serves the socket. The thread that holds the engine calls [`Watch::changed`]
//! after it has released the lock (`Context::finish`). While the program does not rely on
//! descriptors, it leaves that for later (`progress/reliance.rs`). The watch reads the state
//! itself, by [`SocketTable::standing_of`], which also marks all changes up to then as shown. So it does
//! no harm if the engine notes a change late, twice, or after the watch has read it.

use std::sync::Arc;

use super::sock::Sock;
use super::sockets::SocketTable;
use super::{Engine, SockId};
use crate::session::Standing;

/// An object that shows a socket's state.
pub trait Watch: Send + Sync {
    /// The state may have changed: read it, and show it. The caller is a thread that moves data, of
    /// the library or of the program. It holds no lock of the library.
    fn changed(&self);
}

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
    /// The program polls the stream of the connection beside the descriptor (`polled`).
    pub(super) polls_stream: bool,
}

impl Watched {
    /// Its socket has come to another shard, where it is on no list.
    pub(super) fn settle_in(&mut self) {
        self.listing = Listing::Off;
    }
}

impl SocketTable {
    /// The state of a socket. The caller must show it: the engine counts it as shown.
    pub(crate) fn standing_of(&mut self, id: SockId) -> Standing {
        let Ok(s) = self.find(id) else { return Standing::default() };
        let standing = s.standing();
        if let Some(w) = &mut s.watch {
            w.seen = standing;
            if w.listing == Listing::Aged {
                w.listing = Listing::New;
            }
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
            let (listing, polls_stream) = (Listing::Off, false);
            s.watch = watch.map(|watch| Box::new(Watched { watch, seen, listing, polls_stream }));
        }
    }

    /// Takes the watches that have news, each once. With `aged`, takes those that already had news
    /// at the last such call.
    pub(in crate::progress) fn take_news(&mut self, aged: bool) -> Vec<Arc<dyn Watch>> {
        self.delivery.news.take(&mut self.sockets, aged)
    }
}

/// The sockets with changes that no descriptor shows yet, each once.
#[derive(Default)]
pub(super) struct News(Vec<SockId>);

impl News {
    /// Puts a socket on the list, if its watch has not shown its state.
    #[inline]
    pub(super) fn check(&mut self, index: u32, s: &mut Sock) {
        if s.watch.as_ref().is_some_and(|w| w.listing == Listing::Off) && has_news(s) {
            let id = SockId { index, generation: s.generation };
            if let Some(w) = &mut s.watch {
                w.listing = Listing::New;
            }
            self.0.push(id);
        }
    }

    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.0.is_empty()
    }

    fn take(&mut self, sockets: &mut SocketTable, aged: bool) -> Vec<Arc<dyn Watch>> {
        let mut due = Vec::new();
        self.0.retain(|id| {
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
