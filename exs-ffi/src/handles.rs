//! Handles: small numbers for C, objects behind them.
//!
//! A handle is a slot and the slot's generation, so a stale handle does not name the object that has
//! its slot now. The slot that is free for longest is used first: a stale handle names another object
//! only after some two thousand objects in the very same slot.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, PoisonError, RwLock};

/// Bits of a handle that are the slot. The 11 bits above are the generation.
const SLOT_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << 11;

struct Slot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

/// A table of objects.
pub(crate) struct Handles<T> {
    inner: RwLock<Slots<T>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new() -> Handles<T> {
        Handles { inner: RwLock::new(Slots { slots: Vec::new(), free: VecDeque::new() }) }
    }

    /// Adds an object; returns its handle, or None if there are a million objects already.
    pub(crate) fn insert(&self, object: T) -> Option<c_int> {
        let mut t = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        // Keeps some slots spare: the longer a slot is unused, the better.
        let slot = if t.free.len() > 64 || t.slots.len() >= 1 << SLOT_BITS {
            t.free.pop_front()?
        } else {
            t.slots.push(Slot { generation: 0, object: None });
            u32::try_from(t.slots.len() - 1).ok()?
        };
        let s = t.slots.get_mut(slot as usize)?;
        // Never 0, so that no handle is 0.
        s.generation = if s.generation + 1 < GENERATIONS { s.generation + 1 } else { 1 };
        s.object = Some(Arc::new(object));
        c_int::try_from((s.generation << SLOT_BITS) | slot).ok()
    }

    fn split(handle: c_int) -> Option<(usize, u32)> {
        let bits = u32::try_from(handle).ok()?;
        Some(((bits & ((1 << SLOT_BITS) - 1)) as usize, bits >> SLOT_BITS))
    }

    /// The object of a handle; None if the handle is not valid.
    pub(crate) fn get(&self, handle: c_int) -> Option<Arc<T>> {
        let (slot, generation) = Self::split(handle)?;
        let t = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let s = t.slots.get(slot).filter(|s| s.generation == generation)?;
        s.object.clone()
    }

    /// Lends the object of a handle to `at`, under the lock of the table: no thread removes the object
    /// meanwhile, and no reference is counted. `at` must not wait, nor use the table.
    pub(crate) fn look<R>(&self, handle: c_int, at: impl FnOnce(&T) -> R) -> Option<R> {
        let (slot, generation) = Self::split(handle)?;
        let t = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let s = t.slots.get(slot).filter(|s| s.generation == generation)?;
        s.object.as_deref().map(at)
    }

    /// Removes the object if `may` agrees; its handle is not valid then. None: it was not valid before.
    pub(crate) fn remove_if<E>(
        &self,
        handle: c_int,
        may: impl FnOnce(&Arc<T>) -> Result<(), E>,
    ) -> Result<Option<Arc<T>>, E> {
        let Some((slot, generation)) = Self::split(handle) else { return Ok(None) };
        let mut t = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let s = t.slots.get_mut(slot).filter(|s| s.generation == generation);
        let Some(s) = s else { return Ok(None) };
        let Some(object) = s.object.as_ref() else { return Ok(None) };
        may(object)?;
        let object = s.object.take();
        t.free.push_back(u32::try_from(slot).unwrap_or(0));
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove<T>(t: &Handles<T>, h: c_int) -> bool {
        t.remove_if(h, |_| Ok::<(), ()>(())).unwrap().is_some()
    }

    #[test]
    fn a_stale_handle_names_nothing() {
        let t = Handles::new();
        let a = t.insert('a').unwrap();
        assert_eq!(t.get(a).as_deref(), Some(&'a'));
        assert_eq!(t.look(a, |c| *c), Some('a'));
        assert!(remove(&t, a) && !remove(&t, a));
        assert!(t.get(a).is_none() && t.look(a, |_| ()).is_none());
        // Long enough for the slot to be used again many times.
        for _ in 0..10_000 {
            let b = t.insert('b').unwrap();
            assert!(b > 0 && b != a && t.get(a).is_none());
            assert!(remove(&t, b));
        }
        for bad in [0, -1, -2, c_int::MIN, c_int::MAX] {
            assert!(t.get(bad).is_none() && !remove(&t, bad));
        }
    }

    #[test]
    fn a_refused_removal_keeps_the_handle() {
        let t = Handles::new();
        let a = t.insert('a').unwrap();
        assert_eq!(t.remove_if(a, |_| Err("busy")).unwrap_err(), "busy");
        assert!(t.get(a).is_some());
    }
}
