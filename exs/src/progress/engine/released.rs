//! Work that other threads leave for the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::SockId;
use super::hosts::Resolved;
use super::spread::Parcel;
use crate::mem::{Key, ReleaseRegistration};
use crate::progress::context::{Context, Weak};
use crate::progress::shards::Shard;
use crate::rnic::Qp;
use crate::sys::FetchDone;

/// Work that other threads leave for the engine without its lock: handles that were dropped,
/// registrations that have ended, and more. The next run of the engine takes it.
pub(in crate::progress) struct Released {
    /// A thread sets this before it looks whether the leader sleeps, and the leader looks at this after
    /// it has announced its sleep. Both are sequentially consistent, so one sees the other.
    any: AtomicBool,
    /// Sockets whose last handle was dropped. False: the program never took the handle.
    pub(super) sockets: Mutex<Vec<(SockId, bool)>>,
    /// Registrations that have ended: the tag of their place, and their key.
    pub(super) keys: Mutex<Vec<(u64, Key)>>,
    /// Kernel sockets that the program may have closed: (device, inode).
    pub(super) kernel: Mutex<Vec<(u64, u64)>>,
    /// Bytes of files that have been fetched, and the device of their connection.
    pub(super) fetched: Mutex<Vec<(usize, FetchDone<Qp>)>>,
    /// Names that resolvers have answered.
    pub(super) resolved: Mutex<Vec<Resolved>>,
    /// Parcels of other shards, with their senders.
    pub(super) parcels: Mutex<Vec<(Shard, Parcel)>>,
    /// The context of the engine, to wake it.
    context: Weak,
}

impl Released {
    pub(in crate::progress) fn new(context: Weak) -> Released {
        let (sockets, keys, kernel) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (fetched, resolved) = (Mutex::default(), Mutex::default());
        let (any, parcels) = (AtomicBool::new(false), Mutex::default());
        Released { any, sockets, keys, kernel, fetched, resolved, parcels, context }
    }

    /// The context of the engine. None: the context is gone.
    pub(super) fn context(&self) -> Option<Arc<Context>> {
        self.context.upgrade()
    }

    /// True if there is work.
    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// True if there is work, which the caller is about to take.
    pub(super) fn take_any(&self) -> bool {
        self.any.swap(false, Ordering::SeqCst)
    }

    pub(in crate::progress) fn socket(&self, id: SockId, taken: bool) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push((id, taken));
        self.any.store(true, Ordering::SeqCst);
    }

    pub(in crate::progress) fn kernel(&self, dev: u64, ino: u64) {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).push((dev, ino));
        self.any.store(true, Ordering::SeqCst);
    }

    pub(in crate::progress) fn parcel(&self, from: Shard, parcel: Parcel) {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner).push((from, parcel));
        self.any.store(true, Ordering::SeqCst);
    }

    /// Hands over bytes of a file. Called by the threads that read files. Wakes the leader.
    pub(super) fn fetched(&self, device: usize, came: FetchDone<Qp>) {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner).push((device, came));
        self.any.store(true, Ordering::SeqCst);
        if let Some(context) = self.context.upgrade() {
            context.wake();
        }
    }

    /// Hands over the addresses of a name. Called by the threads that resolve names. Wakes the
    /// leader.
    pub(super) fn resolved(&self, resolved: Resolved) {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner).push(resolved);
        self.any.store(true, Ordering::SeqCst);
        if let Some(context) = self.context.upgrade() {
            context.wake();
        }
    }
}

impl ReleaseRegistration for Released {
    fn release(&self, place: u64, key: Key) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push((place, key));
        // Wakes the leader, so that pinned memory does not wait for another event.
        if !self.any.swap(true, Ordering::SeqCst)
            && let Some(context) = self.context.upgrade()
        {
            context.wake();
        }
    }
}
