//! What a thread brings back that has slept for its own connection.

use std::cell::Cell;
use std::io;

use crate::rnic::{ATTENDED_READ, AttendedEnd, Ready};

thread_local! {
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The memory into which a thread reads. It stays with the thread.
#[derive(Default)]
pub(super) struct Room {
    bytes: Vec<u8>,
}

impl Room {
    pub(super) fn take() -> Room {
        Room { bytes: ROOM.try_with(Cell::take).unwrap_or_default() }
    }

    /// As memory that grows as needed.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Memory for a read.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.bytes.resize(ATTENDED_READ, 0);
        &mut self.bytes
    }

    /// The first `n` bytes, which were read.
    pub(super) fn first(&self, n: usize) -> &[u8] {
        &self.bytes[..n]
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Memory that was moved on leaves nothing here.
        if self.bytes.capacity() > 0 {
            let kept = std::mem::take(&mut self.bytes);
            let _ = ROOM.try_with(|room| room.set(kept));
        }
    }
}

/// How a sleep ended.
pub(super) enum Slept {
    /// The connection may be ready.
    Ready(Ready),
    /// The thread has read this many bytes, or could not.
    Read(io::Result<usize>),
}

impl Slept {
    /// The same for the engine. `room` has the bytes.
    pub(super) fn end(self, room: &Room) -> AttendedEnd<'_> {
        match self {
            Slept::Ready(ready) => AttendedEnd::Ready(ready),
            Slept::Read(read) => AttendedEnd::Read(read.map(|n| room.first(n))),
        }
    }
}

/// The outcome of a read that the thread did not begin, with the kernel's number.
pub(super) fn not_yet() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}
