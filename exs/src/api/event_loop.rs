//! Event loops that wait for the descriptors of sockets, and drive the shards of these.

use std::os::fd::{AsRawFd, RawFd};

use super::{Driven, EventQueue, Socket};
use crate::progress::{Error, LoopId, QueueOptions, Shard, Standing};

/// What drives one shard for an event loop of the program's. Its descriptor is readable while the shard
/// has something to do, and the loop then calls [`LoopDriver::drive`].
///
/// ```
/// use exs::__ffi::{LoopDriver, LoopId, FIRST_SHARD};
/// let driver = LoopDriver::new(FIRST_SHARD)?;
/// assert!(driver.drive(LoopId::new(1), || false)?, "nothing happens, and the loop may sleep");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug)]
pub struct LoopDriver(EventQueue);

impl LoopDriver {
    /// A driver of this shard.
    ///
    /// # Errors
    /// As [`EventQueue::with_options`].
    pub fn new(shard: Shard) -> Result<LoopDriver, Error> {
        let options = QueueOptions::default().with_depth(1).with_shard(Some(shard));
        EventQueue::with_options(&options).map(LoopDriver)
    }

    /// A thread leaves the loop, and another one may sleep: announces its sleep. If this one `leaves`
    /// something, the descriptor becomes readable.
    pub fn leave(&self, leaves: bool) {
        self.0.core().context().leave_loop(leaves);
    }

    /// Moves data, without waiting, until `found` returns true. Changes of sockets go to
    /// [`Watch::changed_in`](super::raw::Watch::changed_in). Returns true if there is nothing to do: the
    /// descriptor becomes readable when there is.
    ///
    /// # Errors
    /// The kernel's, of the reactor.
    pub fn drive(&self, event_loop: LoopId, found: impl Fn() -> bool) -> Result<bool, Error> {
        let driven = self.0.core().context().drive_loop(event_loop, found)?;
        Ok(driven == Driven::Asleep)
    }
}

impl AsRawFd for LoopDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// The state that the watch keeps for an event loop.
    pub(super) fn kept_standing(&self) -> Standing {
        self.handle().look(|engine, id| engine.kept_standing_of(id))
    }
}
