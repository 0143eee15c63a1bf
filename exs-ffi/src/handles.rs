//! Handles: small numbers for C, which name objects.
//!
//! A handle holds a slot and the slot's generation, so a handle that was given back does not name
//! the object that has its slot now. Slots are used in turn, the longest unused first. So a stale
//! handle names another object only after some two thousand objects in the same slot.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::thread::LocalKey;

use exs::__ffi::ProcessTable;

use crate::recent::{Recent, Recents};

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
pub(crate) struct Handles<T: 'static> {
    recents: Recents<T>,
    inner: ProcessTable<Slots<T>>,
}

impl<T> Handles<T> {
    /// `of_thread`: what a thread has found in this table.
    pub(crate) const fn new(of_thread: &'static LocalKey<RefCell<Recent<T>>>) -> Handles<T> {
        let slots = Slots { slots: Vec::new(), free: VecDeque::new() };
        Handles { recents: Recents::new(of_thread), inner: ProcessTable::new(slots) }
    }

    /// Adds an object and returns its handle. None if there are a million objects already.
    pub(crate) fn insert(&self, object: T) -> Option<c_int> {
        let mut t = self.inner.write();
        // Some slots stay spare: the longer a slot rests, the better.
        let slot = if t.free.len() > 64 || t.slots.len() >= 1 << SLOT_BITS {
            t.free.pop_front()?
        } else {
            t.slots.push(Slot { generation: 0, object: None });
            u32::try_from(t.slots.len() - 1).ok()?
        };
        let s = t.slots.get_mut(slot as usize)?;
        // A generation is never 0, so no handle is 0.
        s.generation = if s.generation + 1 < GENERATIONS { s.generation + 1 } else { 1 };
        s.object = Some(Arc::new(object));
        c_int::try_from((s.generation << SLOT_BITS) | slot).ok()
    }

    fn split(handle: c_int) -> Option<(usize, u32)> {
        let bits = u32::try_from(handle).ok()?;
        Some(((bits & ((1 << SLOT_BITS) - 1)) as usize, bits >> SLOT_BITS))
    }

    /// Returns the object of a valid handle.
    pub(crate) fn get(&self, handle: c_int) -> Option<Arc<T>> {
        let (slot, generation) = Self::split(handle)?;
        let number = u64::try_from(handle).ok()?;
        self.recents.find(number, || {
            let t = self.inner.read();
            let s = t.slots.get(slot).filter(|s| s.generation == generation)?;
            s.object.clone()
        })
    }

    /// Calls `at` with the object of a handle, without a reference count. No thread can remove
    /// the object meanwhile, and it does not count as in use. Takes the table's lock, so it is not for
    /// calls that move data.
    pub(crate) fn look<R>(&self, handle: c_int, at: impl FnOnce(&T) -> R) -> Option<R> {
        let (slot, generation) = Self::split(handle)?;
        let t = self.inner.read();
        let s = t.slots.get(slot).filter(|s| s.generation == generation)?;
        s.object.as_deref().map(at)
    }

    /// Removes the object if `may` agrees. The handle is then no longer valid.
    pub(crate) fn remove_if<E>(
        &self,
        handle: c_int,
        may: impl FnOnce(&Arc<T>) -> Result<(), E>,
    ) -> Result<Option<Arc<T>>, E> {
        let Some((slot, generation)) = Self::split(handle) else { return Ok(None) };
        let mut t = self.inner.write();
        let s = t.slots.get_mut(slot).filter(|s| s.generation == generation);
        let Some(s) = s else { return Ok(None) };
        let Some(object) = s.object.as_ref() else { return Ok(None) };
        self.recents.note_removal();
        may(object)?;
        let object = s.object.take();
        t.free.push_back(u32::try_from(slot).unwrap_or(0));
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static OF_THREAD: RefCell<Recent<char>> = const { Recent::new() };
    }

    fn remove<T>(t: &Handles<T>, h: c_int) -> bool {
        t.remove_if(h, |_| Ok::<(), ()>(())).unwrap().is_some()
    }

    #[test]
    fn a_stale_handle_names_nothing() {
        let t = Handles::new(&OF_THREAD);
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
    fn an_objection_keeps_the_handle() {
        let t = Handles::new(&OF_THREAD);
        let a = t.insert('a').unwrap();
        assert_eq!(t.remove_if(a, |_| Err("busy")).unwrap_err(), "busy");
        assert!(t.get(a).is_some());
    }
}
