//! Sources of events, as the reactor and the ready list name them, and their deadlines.

use super::table::ID_BITS;

/// An object that becomes ready or falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SoftSource {
    /// A TCP connection with an engine on it.
    Link(u32),
    /// A listening socket.
    Listener(u32),
    /// A TCP connect under way.
    Dial(u32),
}

impl SoftSource {
    /// The token of this source, relative to the driver's first.
    pub(super) fn token(self) -> usize {
        let (kind, id) = match self {
            SoftSource::Link(id) => (0, id),
            SoftSource::Listener(id) => (1, id),
            SoftSource::Dial(id) => (2, id),
        };
        (kind << ID_BITS) | id as usize
    }

    /// The source of a token; None if no source of this driver can have it.
    pub(super) fn of(token: usize) -> Option<SoftSource> {
        let id = u32::try_from(token & ((1 << ID_BITS) - 1)).ok()?;
        match token >> ID_BITS {
            0 => Some(SoftSource::Link(id)),
            1 => Some(SoftSource::Listener(id)),
            2 => Some(SoftSource::Dial(id)),
            _ => None,
        }
    }
}

/// The deadlines of sources.
pub(super) type LinkTimers = crate::rnic::deadlines::Deadlines<SoftSource>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_names_its_source() {
        for source in
            [SoftSource::Link(0), SoftSource::Listener(7), SoftSource::Dial((1 << ID_BITS) - 1)]
        {
            assert!(source.token() < 1 << 32);
            assert_eq!(SoftSource::of(source.token()), Some(source));
        }
        assert_eq!(SoftSource::of(3 << ID_BITS), None);
        assert_eq!(SoftSource::of(usize::MAX), None);
    }
}
