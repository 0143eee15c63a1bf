//! Operations by number, oldest first.

use std::collections::VecDeque;

/// Entries with numbers that rise and never return. So a number kept in a timer or a WR can be
/// stale, but never means another entry. Most entries leave from the front. The table allocates
/// no more once it has grown to what is in flight.
#[derive(Debug)]
pub(super) struct Table<T> {
    next: u64,
    entries: VecDeque<(u64, T)>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table { next: 0, entries: VecDeque::new() }
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: T) -> u64 {
        let id = self.next;
        self.next += 1;
        self.entries.push_back((id, entry));
        id
    }

    #[inline]
    fn index(&self, id: u64) -> Option<usize> {
        // The front is the usual answer.
        match self.entries.front() {
            Some((front, _)) if *front == id => Some(0),
            _ => self.entries.binary_search_by_key(&id, |(i, _)| *i).ok(),
        }
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<&T> {
        self.index(id).map(|i| &self.entries[i].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.index(id).map(|i| &mut self.entries[i].1)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        match self.index(id)? {
            0 => self.entries.pop_front(),
            i => self.entries.remove(i),
        }
        .map(|(_, entry)| entry)
    }

    /// Takes the oldest entry out, if it has this number and `f` is true of it.
    #[inline]
    pub(super) fn take_first_if(&mut self, id: u64, f: impl Fn(&T) -> bool) -> Option<T> {
        let (first, entry) = self.entries.front()?;
        if *first != id || !f(entry) {
            return None;
        }
        self.entries.pop_front().map(|(_, entry)| entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, entry)| entry)
    }

    /// The oldest entry.
    pub(super) fn first(&self) -> Option<(u64, &T)> {
        self.entries.front().map(|(id, entry)| (*id, entry))
    }

    /// The oldest entry of which `f` is true.
    pub(super) fn find_id(&self, f: impl Fn(&T) -> bool) -> Option<u64> {
        self.entries.iter().find(|(_, entry)| f(entry)).map(|(id, _)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_return() {
        let mut t = Table::new();
        let ids: Vec<u64> = "abc".chars().map(|c| t.insert(c)).collect();
        assert_eq!(t.remove(ids[1]), Some('b'));
        assert_eq!((t.get(ids[0]), t.get(ids[1]), t.get(ids[2])), (Some(&'a'), None, Some(&'c')));
        assert_eq!(t.remove(ids[2]), Some('c'));
        assert!(t.insert('d') > ids[2]);
        assert_eq!(t.find_id(|c| *c > 'a'), Some(3));
        assert_eq!(t.take_first_if(3, |_| true), None, "it is not the oldest");
        assert_eq!(t.take_first_if(ids[0], |c| *c == 'x'), None);
        assert_eq!(t.take_first_if(ids[0], |c| *c == 'a'), Some('a'));
    }
}
