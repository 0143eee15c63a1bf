//! The table of queue pairs, by the trait's id and by the number that the device knows them by.
//!
//! A number belongs to at most one queue pair, and for as long as completions of that one may come.
//! The device gives the number of a destroyed queue pair to the next one, so it is taken back here
//! before that.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::mem::KeyHasher;
use crate::rnic::RnicError;
use crate::rnic::table::IdTable;

/// See the module's essay. `Q` is a queue pair.
pub(super) struct QpTable<Q> {
    qps: IdTable<Q>,
    /// The ids by the device's number.
    ids: HashMap<u32, u32, BuildHasherDefault<KeyHasher>>,
}

impl<Q> Default for QpTable<Q> {
    fn default() -> QpTable<Q> {
        QpTable { qps: IdTable::new("queue pair"), ids: HashMap::default() }
    }
}

impl<Q> QpTable<Q> {
    pub(super) fn insert(&mut self, qp: Q) -> Result<u32, RnicError> {
        self.qps.insert(qp)
    }

    /// Takes out a queue pair without a number.
    pub(super) fn remove(&mut self, id: u32) -> Result<Q, RnicError> {
        debug_assert!(self.ids.values().all(|owner| *owner != id), "QP {id} has a number");
        self.qps.remove(id)
    }

    pub(super) fn get(&self, id: u32) -> Result<&Q, RnicError> {
        self.qps.get(id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Result<&mut Q, RnicError> {
        self.qps.get_mut(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Q)> {
        self.qps.iter()
    }

    // ---- numbers -----------------------------------------------------------------------

    /// The device has a queue pair of this number for the one with this id.
    pub(super) fn set_num(&mut self, num: u32, id: u32) {
        self.ids.insert(num, id);
    }

    /// Completions of the device's queue pair of this number concern none any more.
    pub(super) fn clear_num(&mut self, num: u32) {
        self.ids.remove(&num);
    }

    /// The device has no queue pairs any more.
    pub(super) fn clear_nums(&mut self) {
        self.ids.clear();
    }

    /// The queue pair that has this number.
    #[inline]
    pub(super) fn id_of(&self, num: u32) -> Option<u32> {
        self.ids.get(&num).copied()
    }

    /// True if the device has a queue pair for any of them.
    #[inline]
    pub(super) fn has_numbers(&self) -> bool {
        !self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_goes_from_one_queue_pair_to_the_next() {
        let mut table = QpTable::default();
        let (a, b) = (table.insert('a').unwrap(), table.insert('b').unwrap());
        assert!(!table.has_numbers() && table.id_of(7).is_none());
        table.set_num(7, a);
        assert_eq!((table.has_numbers(), table.id_of(7)), (true, Some(a)));
        table.clear_num(7);
        assert_eq!(table.remove(a), Ok('a'));
        table.set_num(7, b);
        assert_eq!(table.id_of(7), Some(b));
        assert_eq!((table.get(a), table.get(b)), (Err(no_such(a)), Ok(&'b')));
        table.clear_nums();
        assert!(!table.has_numbers());
        assert_eq!(table.get(b), Ok(&'b'), "it is there, if without a number");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "has a number")]
    fn a_queue_pair_with_a_number_does_not_go() {
        let mut table = QpTable::default();
        let id = table.insert(()).unwrap();
        table.set_num(7, id);
        let _ = table.remove(id);
    }

    fn no_such(id: u32) -> RnicError {
        RnicError::NoSuch { what: "queue pair", id }
    }
}
