//! Tables of a driver's objects, under ids that are not reused soon.

use std::collections::VecDeque;

use super::RnicError;

/// Bits of an id. The two bits above stay clear, because reactor tokens tell tables apart by
/// them.
pub(crate) const ID_BITS: u32 = 30;
/// Bits of an id that are the index in the table. The bits above count how often the index was
/// used.
const INDEX_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (ID_BITS - INDEX_BITS);

/// Free indices that rest before one is used again. With the generations this makes an id unique
/// over 32,768 objects made in a row, so a stale readiness report or a stale handle finds no
/// object rather than a wrong one.
const RESTING: usize = 32;

/// Objects of one kind.
pub(crate) struct IdTable<T> {
    what: &'static str,
    slots: Vec<TableSlot<T>>,
    free: VecDeque<u32>,
}

struct TableSlot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> IdTable<T> {
    /// Makes an empty table. `what` names its objects in errors.
    pub(crate) fn new(what: &'static str) -> IdTable<T> {
        IdTable { what, slots: Vec::new(), free: VecDeque::new() }
    }

    /// Returns the number of indices in the table, used or not.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Returns the object at an index.
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.slots.get_mut(place)?.value.as_mut()
    }

    /// Returns the id of the object at an index.
    pub(crate) fn id_at(&self, place: usize) -> Option<u32> {
        let slot = self.slots.get(place).filter(|slot| slot.value.is_some())?;
        Some(slot.generation << INDEX_BITS | u32::try_from(place).ok()?)
    }

    /// Adds an object and returns its id. Fails with `Exhausted` at 2^20 objects.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, RnicError> {
        let limit = 1usize << INDEX_BITS;
        let index = if self.free.len() > RESTING || self.slots.len() == limit {
            let asked = limit as u64 + 1;
            let full = RnicError::Exhausted {
                what: self.what,
                asked,
                limit: limit as u64,
                errno: libc::EMFILE,
            };
            self.free.pop_front().ok_or(full)? as usize
        } else {
            self.slots.push(TableSlot { generation: 0, value: None });
            self.slots.len() - 1
        };
        let slot = &mut self.slots[index];
        slot.value = Some(value);
        let index = u32::try_from(index).expect("below the limit of 2^20");
        Ok(slot.generation << INDEX_BITS | index)
    }

    #[cold]
    fn no_such(&self, id: u32) -> RnicError {
        RnicError::NoSuch { what: self.what, id }
    }

    /// Returns the object with this id.
    pub(crate) fn get(&self, id: u32) -> Result<&T, RnicError> {
        let (index, generation) = split(id);
        match self.slots.get(index) {
            Some(TableSlot { generation: g, value: Some(v) }) if *g == generation => Ok(v),
            _ => Err(self.no_such(id)),
        }
    }

    /// Returns the object with this id.
    pub(crate) fn get_mut(&mut self, id: u32) -> Result<&mut T, RnicError> {
        let (index, generation) = split(id);
        match self.slots.get_mut(index) {
            Some(TableSlot { generation: g, value: Some(v) }) if *g == generation => Ok(v),
            _ => Err(RnicError::NoSuch { what: self.what, id }),
        }
    }

    /// Takes an object out. Its id stays invalid.
    pub(crate) fn remove(&mut self, id: u32) -> Result<T, RnicError> {
        let (index, generation) = split(id);
        let missing = self.no_such(id);
        let slot = self.slots.get_mut(index).filter(|s| s.generation == generation);
        let slot = slot.ok_or(missing.clone())?;
        let value = slot.value.take().ok_or(missing)?;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.push_back(u32::try_from(index).expect("below the limit of 2^20"));
        Ok(value)
    }

    /// Iterates over all objects, with their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| {
            slot.value.as_ref().map(|v| (slot.generation << INDEX_BITS | index, v))
        })
    }
}

/// Returns the index of an object in its table.
pub(crate) fn place_of(id: u32) -> u32 {
    id & ((1 << INDEX_BITS) - 1)
}

fn split(id: u32) -> (usize, u32) {
    (place_of(id) as usize, id >> INDEX_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_dies_with_its_object_and_rests_long() {
        let mut table = IdTable::new("thing");
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first).unwrap(), 'a');
        assert_eq!(table.remove(first), Err(RnicError::NoSuch { what: "thing", id: first }));
        for _ in 0..30_000 {
            let id = table.insert('b').unwrap();
            assert_ne!(id, first);
            assert!(id < 1 << ID_BITS);
            assert!(table.get(first).is_err());
            table.remove(id).unwrap();
        }
        assert_eq!(table.places(), RESTING + 1);
    }

    #[test]
    fn objects_are_found_by_id_only() {
        let mut table = IdTable::new("thing");
        let (a, b) = (table.insert(1).unwrap(), table.insert(2).unwrap());
        *table.get_mut(b).unwrap() = 3;
        assert_eq!(table.iter().collect::<Vec<_>>(), [(a, &1), (b, &3)]);
        assert!(table.get(b + 1).is_err());
        assert!(table.get(u32::MAX).is_err());
        table.remove(a).unwrap();
        let at = |id| table.id_at(place_of(id) as usize);
        assert_eq!((at(a), at(b), table.id_at(2)), (None, Some(b), None));
    }
}
