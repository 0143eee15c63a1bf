//! Sockets whose state is shown elsewhere: on a descriptor that the program polls.
//!
//! The C library shows on each socket's descriptor what a receive would find. A change is
//! noted here when the engine looks after the socket, and the thread that has the engine calls
//! [`Watch::changed`] once it has let go of the lock (`Context::finish`), or leaves that for
//! later while no program relies on it (`progress/reliance.rs`). What is called reads the
//! state itself, by [`Engine::standing_of`], which also says that everything up to then has been
//! shown. So a change that is noted late, twice, or after it was read shows nothing wrong.

use std::sync::Arc;

use super::sock::Sock;
use super::{Engine, SockId};
use crate::session::Standing;

/// What shows a socket's state.
pub trait Watch: Send + Sync {
    /// The state may have changed: read it, and show it. Called by any thread of the library
    /// or of the program that moves data, without a lock of the library's.
    fn changed(&self);
}

/// The watch of one socket.
pub(super) struct Watched {
    watch: Arc<dyn Watch>,
    /// What was read last.
    seen: Standing,
    /// On the list of those with news.
    listed: bool,
    /// The news have been there for a tick of the background thread.
    aged: bool,
}

impl Watched {
    /// Its socket has come to another shard, where it is on no list.
    pub(super) fn settle_in(&mut self) {
        (self.listed, self.aged) = (false, false);
    }
}

impl Engine {
    /// Shows a socket's state by `watch` from now on, or no longer.
    pub(crate) fn set_watch(&mut self, id: SockId, watch: Option<Arc<dyn Watch>>) {
        self.unattend_left(id);
        if let Ok(s) = self.sock(id) {
            let seen = Standing::default();
            s.watch =
                watch.map(|watch| Box::new(Watched { watch, seen, listed: false, aged: false }));
        }
    }

    /// The state of a socket, which the caller is about to show.
    pub(crate) fn standing_of(&mut self, id: SockId) -> Standing {
        let Ok(s) = self.sock(id) else { return Standing::default() };
        let standing = s.standing();
        if let Some(w) = &mut s.watch {
            (w.seen, w.aged) = (standing, false);
        }
        standing
    }

    /// Notes whether there is something to be shown of a socket.
    #[inline]
    pub(super) fn check_watch(&mut self, index: u32) {
        let s = &mut self.socks[index as usize];
        if s.watch.as_ref().is_some_and(|w| !w.listed) && has_news(s) {
            let id = SockId { index, generation: s.generation };
            if let Some(w) = &mut s.watch {
                w.listed = true;
            }
            self.news.push(id);
        }
    }

    /// Something is to be shown.
    #[inline]
    pub(in crate::progress) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// What has something to show, each once. With `aged` only what had it at the last such
    /// call already.
    pub(in crate::progress) fn take_news(&mut self, aged: bool) -> Vec<Arc<dyn Watch>> {
        let mut due = Vec::new();
        let mut news = std::mem::take(&mut self.news);
        news.retain(|id| {
            let Ok(s) = self.sock(*id) else { return false };
            let has_news = has_news(s);
            let Some(w) = &mut s.watch else { return false };
            if has_news && aged && !w.aged {
                w.aged = true;
                return true;
            }
            if has_news {
                due.push(Arc::clone(&w.watch));
            }
            (w.listed, w.aged) = (false, false);
            false
        });
        self.news = news;
        due
    }
}

fn has_news(s: &Sock) -> bool {
    s.watch.as_ref().is_some_and(|w| s.standing().is_news(&w.seen))
}
