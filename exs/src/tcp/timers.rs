//! Event sources as the reactor and the ready list name them, and their deadlines.

use super::table::ID_BITS;

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

/// The deadlines of sources.
pub(super) type Timers = crate::rnic::deadlines::Deadlines<Source>;

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
}
