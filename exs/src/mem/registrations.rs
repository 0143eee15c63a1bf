//! Under which keys a region is registered.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Key;

/// Told when a region's memory is no longer used, so that its registrations end.
pub trait ReleaseRegistration: Send + Sync {
    /// The region whose key at `place` is `key` is gone.
    fn release(&self, place: u64, key: Key);
}

/// One registration of a region, at one place (a device and a protection domain) of
/// one context.
struct Registration {
    context: u64,
    place: u64,
    key: Key,
    home: Arc<dyn ReleaseRegistration>,
}

/// The registrations of one region, which end with it.
#[derive(Default)]
pub(super) struct Registrations {
    /// Most regions have but one. It is looked up for each operation: without a lock.
    first: OnceLock<Registration>,
    others: Mutex<Vec<Registration>>,
}

impl Registrations {
    /// The key at a place of a context; `register` is called if there is none yet.
    pub(super) fn key<E>(
        &self,
        context: u64,
        place: u64,
        register: impl FnOnce() -> Result<(Key, Arc<dyn ReleaseRegistration>), E>,
    ) -> Result<Key, E> {
        let wanted = |r: &&Registration| r.context == context && r.place == place;
        if let Some(r) = self.first.get().filter(wanted) {
            return Ok(r.key);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have become the first meanwhile.
        if let Some(r) = self.first.get().into_iter().chain(others.iter()).find(wanted) {
            return Ok(r.key);
        }
        let (key, home) = register()?;
        others.extend(self.first.set(Registration { context, place, key, home }).err());
        Ok(key)
    }
}

impl Drop for Registrations {
    fn drop(&mut self) {
        let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
        for r in self.first.take().into_iter().chain(others.drain(..)) {
            r.home.release(r.place, r.key);
        }
    }
}
