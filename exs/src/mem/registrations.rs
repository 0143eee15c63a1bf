//! The keys under which a region is registered.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Key;

/// Ends registrations when a region's memory is no longer used.
pub trait ReleaseRegistration: Send + Sync {
    /// Ends the registration `key` at `place`, because its region is gone.
    fn release(&self, place: u64, key: Key);
}

/// One registration of a region, at one place (a device and a protection domain) of one context.
struct RegisteredKey {
    context: u64,
    place: u64,
    key: Key,
    home: Arc<dyn ReleaseRegistration>,
}

/// The registrations of one region, which end with it.
#[derive(Default)]
pub(super) struct Registrations {
    /// Most regions have only one registration. Each operation looks it up, so this one needs no
    /// lock.
    first: OnceLock<RegisteredKey>,
    others: Mutex<Vec<RegisteredKey>>,
}

impl Registrations {
    /// Returns true if the region was never registered.
    pub(super) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// Returns the key at a place of a context, if it is that of the first registration. Takes no
    /// lock.
    #[inline]
    pub(super) fn first_key(&self, context: u64, place: u64) -> Option<Key> {
        let first = self.first.get()?;
        (first.context == context && first.place == place).then_some(first.key)
    }

    /// Returns the key at a place of a context. Calls `register` if there is none yet. An error
    /// of `register` leaves everything as it was.
    pub(super) fn key<E>(
        &self,
        context: u64,
        place: u64,
        register: impl FnOnce() -> Result<(Key, Arc<dyn ReleaseRegistration>), E>,
    ) -> Result<Key, E> {
        let wanted = |r: &&RegisteredKey| r.context == context && r.place == place;
        if let Some(r) = self.first.get().filter(wanted) {
            return Ok(r.key);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have registered the region meanwhile.
        if let Some(r) = self.first.get().into_iter().chain(others.iter()).find(wanted) {
            return Ok(r.key);
        }
        let (key, home) = register()?;
        others.extend(self.first.set(RegisteredKey { context, place, key, home }).err());
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
