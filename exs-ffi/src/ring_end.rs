//! Where the peer rings while a program that polls descriptors sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::arrivals::Arrivals;
use crate::sockets::Entry;

/// The descriptor at which the peer rings.
pub(crate) enum RingEnd {
    /// Nowhere: the kernel rings, or a thread of the library shows what comes.
    None,
    /// At the socket's arrival descriptor.
    ArrivalFd(Arc<OwnedFd>),
    /// At the descriptor itself.
    Descriptor(Arc<OwnedFd>),
}

impl RingEnd {
    pub(crate) fn of(entry: &Entry) -> RingEnd {
        if let Some(end) = Arrivals::ring_end(entry) {
            return end;
        }
        entry.face.lend().map_or(RingEnd::None, RingEnd::Descriptor)
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            RingEnd::None => None,
            RingEnd::ArrivalFd(end) | RingEnd::Descriptor(end) => Some(end.as_fd()),
        }
    }

    /// Notes the outcome of an announcement. Returns the number of messages that the peer has left at
    /// the descriptor since the one before.
    pub(crate) fn note(&self, entry: &Entry, rings: Option<Option<u32>>) -> u32 {
        match (self, rings) {
            (RingEnd::ArrivalFd(_), Some(Some(rings))) => {
                Arrivals::count(entry, rings);
                0
            }
            (RingEnd::Descriptor(_), Some(Some(rings))) => rings,
            (RingEnd::Descriptor(_), Some(None)) => {
                entry.face.note_unringable();
                0
            }
            _ => 0,
        }
    }
}
