//! Event sources as the reactor and the ready list name them, and their deadlines.

use std::collections::{BTreeSet, HashMap};

use super::table::ID_BITS;
use crate::time::Time;

/// Something that becomes ready or falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    /// A TCP connection with an engine on it.
    Link(u32),
    /// A listening socket.
    Listener(u32),
    /// A TCP connect under way.
    Dial(u32),
}

impl Source {
    /// The token of this source, relative to the driver's first.
    pub(super) fn token(self) -> usize {
        let (kind, id) = match self {
            Source::Link(id) => (0, id),
            Source::Listener(id) => (1, id),
            Source::Dial(id) => (2, id),
        };
        (kind << ID_BITS) | id as usize
    }

    /// The source that a token stands for, if it can be one of ours.
    pub(super) fn of(token: usize) -> Option<Source> {
        let id = u32::try_from(token & ((1 << ID_BITS) - 1)).ok()?;
        match token >> ID_BITS {
            0 => Some(Source::Link(id)),
            1 => Some(Source::Listener(id)),
            2 => Some(Source::Dial(id)),
            _ => None,
        }
    }
}

/// One deadline for each source that has one.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeSet<(Time, Source)>,
    set: HashMap<Source, Time>,
}

impl Timers {
    /// Sets or moves the deadline of a source.
    pub(super) fn set(&mut self, source: Source, at: Time) {
        if let Some(old) = self.set.insert(source, at) {
            self.due.remove(&(old, source));
        }
        self.due.insert((at, source));
    }

    /// Takes a source's deadline away.
    pub(super) fn clear(&mut self, source: Source) {
        if let Some(old) = self.set.remove(&source) {
            self.due.remove(&(old, source));
        }
    }

    /// True if the source has a deadline.
    pub(super) fn is_set(&self, source: Source) -> bool {
        self.set.contains_key(&source)
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes one source that is due.
    pub(super) fn expire(&mut self, now: Time) -> Option<Source> {
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
    fn tokens_name_their_source() {
        for source in [Source::Link(0), Source::Listener(7), Source::Dial((1 << ID_BITS) - 1)] {
            assert!(source.token() < 1 << 32);
            assert_eq!(Source::of(source.token()), Some(source));
        }
        assert_eq!(Source::of(3 << ID_BITS), None);
        assert_eq!(Source::of(usize::MAX), None);
    }

    #[test]
    fn deadlines_move_and_fall_due_in_order() {
        let mut t = Timers::default();
        let (a, b) = (Source::Link(1), Source::Dial(1));
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
