//! Receives that wait for the next small message without an operation.

use crate::mem::Segment;

/// Memory of a receive.
pub(crate) enum Destination<'a> {
    Slice(&'a mut [u8]),
    Memory(&'a Segment),
}

impl Destination<'_> {
    /// The number of bytes for which there is room.
    pub(super) fn len(&self) -> usize {
        match self {
            Destination::Slice(slice) => slice.len(),
            Destination::Memory(memory) => memory.len(),
        }
    }

    /// Copies bytes to an offset. False: they do not fit, and nothing has happened.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.len().saturating_sub(at);
        match self {
            _ if !fits => {}
            Destination::Slice(slice) => slice[at..][..bytes.len()].copy_from_slice(bytes),
            Destination::Memory(memory) => memory.write_at(at, bytes),
        }
        fits
    }
}

/// A receive that waits for the bytes of the next small message without an operation.
pub(crate) struct PassingRecv<'a> {
    pub(crate) out: Destination<'a>,
    /// A signal handler that runs while the thread sleeps ends the wait.
    pub(crate) ends_at_signal: bool,
}
