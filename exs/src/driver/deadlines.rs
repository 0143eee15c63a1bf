//! Deadlines: at most one for each source.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

use crate::time::Time;

/// One deadline for each source that has one.
pub(crate) struct Deadlines<S> {
    /// The deadlines in order of time.
    due: BTreeSet<(Time, S)>,
    /// The deadline of each source that has one.
    set: HashMap<S, Time, BuildHasherDefault<DefaultHasher>>,
}

impl<S> Default for Deadlines<S> {
    fn default() -> Deadlines<S> {
        Deadlines { due: BTreeSet::new(), set: HashMap::default() }
    }
}

impl<S: Copy + Ord + Hash> Deadlines<S> {
    /// Sets or moves the deadline of a source.
    pub(crate) fn set(&mut self, source: S, at: Time) {
        if let Some(old) = self.set.insert(source, at) {
            self.due.remove(&(old, source));
        }
        self.due.insert((at, source));
    }

    /// Takes a source's deadline away.
    pub(crate) fn clear(&mut self, source: S) {
        if let Some(old) = self.set.remove(&source) {
            self.due.remove(&(old, source));
        }
    }

    /// True if the source has a deadline.
    pub(crate) fn is_set(&self, source: S) -> bool {
        self.set.contains_key(&source)
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes one source whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) -> Option<S> {
        let (at, source) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.clear(source);
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_move_and_fall_due_in_order() {
        let mut t = Deadlines::default();
        let (a, b) = (1, 2);
        t.set(a, Time::from_nanos(10));
        t.set(b, Time::from_nanos(20));
        t.set(a, Time::from_nanos(30));
        assert_eq!(t.next(), Some(Time::from_nanos(20)));
        assert_eq!(t.expire(Time::from_nanos(19)), None);
        assert_eq!(t.expire(Time::from_nanos(40)), Some(b));
        assert_eq!(t.expire(Time::from_nanos(40)), Some(a));
        assert_eq!(t.expire(Time::from_nanos(40)), None);
        t.set(a, Time::from_nanos(1));
        t.clear(a);
        assert_eq!((t.next(), t.is_set(a)), (None, false));
    }
}
