//! Signs of life, while one side does what takes time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Channel, Life};
use crate::error::CpError;
use crate::wire::frame::Frame;

const EVERY: Duration = Duration::from_secs(1);

/// When a side last said `Busy`.
pub(super) enum Signs {
    /// The peer does not know the frame.
    Never,
    Since(Instant),
}

impl Channel {
    /// From now on the peer knows `Busy`.
    pub(crate) fn say_busy(&mut self, known: bool) {
        self.signs = if known { Signs::Since(Instant::now()) } else { Signs::Never };
    }

    /// Called while this side reads, hashes or waits for its disk, as often as is convenient.
    /// False: it is to stop, as the user or a broken connection wants.
    pub(crate) fn busy(&mut self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        let Signs::Since(last) = &mut self.signs else { return true };
        if last.elapsed() < EVERY {
            return true;
        }
        *last = Instant::now();
        self.send(&Frame::Busy).and_then(|()| self.flush()).is_ok()
    }

    /// The next frame, if it comes within that time; what was gathered leaves first.
    pub(crate) fn frame_soon(&mut self, limit: Duration) -> Result<Option<Frame>, CpError> {
        if let Some(frame) = self.ready_frame()? {
            return Ok(Some(frame));
        }
        if self.life != Life::Open {
            return Err(self.vanished());
        }
        self.flush()?;
        self.make_room()?;
        self.await_buffer()?;
        self.pump(limit)?;
        self.ready_frame()
    }
}
