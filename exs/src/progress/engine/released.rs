//! What other threads leave for the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::SockId;
use super::spread::Parcel;
use crate::mem::{Key, ReleaseRegistration};
use crate::progress::context::Weak;
use crate::progress::shards::Shard;
use crate::rnic::Qp;
use crate::sys::FetchDone;

/// What other threads leave for the engine without taking its lock: handles
/// dropped and registrations ended.
pub(in crate::progress) struct Released {
    any: AtomicBool,
    /// Sockets without a handle, and whether the program ever took them.
    pub(super) sockets: Mutex<Vec<(SockId, bool)>>,
    pub(super) keys: Mutex<Vec<(u64, Key)>>,
    /// Kernel sockets whose owner may have closed them: (device, inode).
    pub(super) kernel: Mutex<Vec<(u64, u64)>>,
    /// Bytes of files that have come for connections of a device.
    pub(super) fetched: Mutex<Vec<(usize, FetchDone<Qp>)>>,
    /// What other shards have sent, and which.
    pub(super) parcels: Mutex<Vec<(Shard, Parcel)>>,
    /// Whose they are.
    context: Weak,
}

impl Released {
    pub(in crate::progress) fn new(context: Weak) -> Released {
        let (sockets, keys, kernel) = (Mutex::default(), Mutex::default(), Mutex::default());
        let fetched = Mutex::default();
        let (any, parcels) = (AtomicBool::new(false), Mutex::default());
        Released { any, sockets, keys, kernel, fetched, parcels, context }
    }

    /// There is something.
    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The same; it is about to be taken.
    pub(super) fn take_any(&self) -> bool {
        self.any.swap(false, Ordering::AcqRel)
    }

    pub(in crate::progress) fn socket(&self, id: SockId, taken: bool) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push((id, taken));
        self.any.store(true, Ordering::Release);
    }

    pub(in crate::progress) fn kernel(&self, dev: u64, ino: u64) {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).push((dev, ino));
        self.any.store(true, Ordering::Release);
    }

    pub(in crate::progress) fn parcel(&self, from: Shard, parcel: Parcel) {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner).push((from, parcel));
        self.any.store(true, Ordering::Release);
    }

    /// Called by the threads that read files.
    pub(super) fn fetched(&self, device: usize, came: FetchDone<Qp>) {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner).push((device, came));
        self.any.store(true, Ordering::Release);
        if let Some(context) = self.context.upgrade() {
            context.wake();
        }
    }
}

impl ReleaseRegistration for Released {
    fn release(&self, place: u64, key: Key) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push((place, key));
        // Pinned memory is not to wait for the next thing that happens.
        if !self.any.swap(true, Ordering::AcqRel)
            && let Some(context) = self.context.upgrade()
        {
            context.wake();
        }
    }
}
