//! Signs of life, while one side does what takes time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Channel, Life};
use crate::error::CpError;
use crate::wire::frame::Frame;

const EVERY: Duration = Duration::from_secs(1);

/// The time of the last `Busy` frame.
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

    /// Sends a sign of life if the last one is a second old. This side calls it while it reads,
    /// hashes or waits for its disk. False: stop, as the user asked for it or the connection broke.
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

    /// The next frame, if it comes within `limit`. Gathered frames leave first.
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
