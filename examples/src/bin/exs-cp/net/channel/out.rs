//! The way out: frames are gathered, buffers leave when they are full.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{Buffer, Channel, Life};
use crate::error::CpError;
use crate::wire::frame::{DATA_HEADER, Frame, MAX_DATA, data_header, encode};

/// A data frame is not begun for less than this, if there is more to send.
const WORTH_A_FRAME: usize = 64 << 10;
/// The other side is told this often that work goes on which has nothing to send.
const BUSY: Duration = Duration::from_secs(10);

impl Channel {
    /// Queues a frame; it leaves with the next full buffer or [`Self::flush`].
    pub(crate) fn send(&mut self, frame: &Frame) -> Result<(), CpError> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        encode(frame, &mut bytes);
        let done = self.write(&bytes);
        self.scratch = bytes;
        done
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), CpError> {
        while !bytes.is_empty() {
            let (buffer, used) = self.fillable(1)?;
            let n = bytes.len().min(buffer.len() - *used);
            buffer[*used..*used + n].copy_from_slice(&bytes[..n]);
            *used += n;
            self.since += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// The buffer being filled, with at least `room` bytes free.
    fn fillable(&mut self, room: usize) -> Result<&mut (Buffer, usize), CpError> {
        if self.filling.as_ref().is_some_and(|(b, used)| b.len() - used < room) {
            self.flush()?;
        }
        let next = match self.filling.take() {
            Some(filling) => filling,
            None => (self.free_buffer()?, 0),
        };
        Ok(self.filling.insert(next))
    }

    fn free_buffer(&mut self) -> Result<Buffer, CpError> {
        loop {
            if let Some(b) = self.free.pop() {
                return Ok(b);
            }
            self.wait(None)?;
        }
    }

    /// Sends the gathered frames.
    pub(crate) fn flush(&mut self) -> Result<(), CpError> {
        match self.filling.take() {
            Some((buffer, 0)) => self.free.push(buffer),
            Some((buffer, used)) => {
                self.alive()?;
                self.pipe.send(buffer, used).map_err(|e| self.lost(e))?;
                // Only an accepted send has an event, which counts it back.
                self.in_flight += 1;
            }
            None => {}
        }
        Ok(())
    }

    /// Registered memory to read up to `want` bytes of file data into; the
    /// room for their header is kept before it. [`Self::commit_data`] follows.
    pub(crate) fn data_slot(&mut self, want: u64) -> Result<&mut [u8], CpError> {
        let want = usize::try_from(want).unwrap_or(usize::MAX).min(MAX_DATA as usize);
        let (buffer, used) = self.fillable(DATA_HEADER + want.min(WORTH_A_FRAME))?;
        let start = *used + DATA_HEADER;
        let end = buffer.len().min(start + want);
        Ok(&mut buffer[start..end])
    }

    /// The first `len` bytes of the slot are data from `offset` on.
    pub(crate) fn commit_data(&mut self, offset: u64, len: usize) -> Result<(), CpError> {
        if let Some((buffer, used)) = &mut self.filling {
            let n = u32::try_from(len).unwrap_or(MAX_DATA);
            buffer[*used..*used + DATA_HEADER].copy_from_slice(&data_header(offset, n));
            *used += DATA_HEADER + len;
            self.since += DATA_HEADER + len;
            if buffer.len() - *used < WORTH_A_FRAME {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Waits until everything sent has left this process.
    pub(crate) fn drain(&mut self) -> Result<(), CpError> {
        self.flush()?;
        while self.in_flight > 0 {
            self.wait(None)?;
        }
        Ok(())
    }

    /// Closes in order: the peer gets all frames that were sent.
    pub(crate) fn close(mut self) -> Result<(), CpError> {
        self.hang_up()
    }

    /// The same through a reference. No frame can be sent afterwards.
    pub(crate) fn hang_up(&mut self) -> Result<(), CpError> {
        if self.life == Life::Over {
            return Ok(());
        }
        self.drain()?;
        self.life = Life::Over;
        self.pipe.close();
        Ok(())
    }

    /// Waits for other threads of this side, while the peer is told that it is alive.
    pub(crate) fn while_waiting<T: Send>(&mut self, wait: impl FnOnce() -> T + Send) -> T {
        let (done, ended) = channel();
        std::thread::scope(|s| {
            let me = &mut *self;
            let ticker = s.spawn(move || {
                while ended.recv_timeout(BUSY) == Err(RecvTimeoutError::Timeout) {
                    // A failure comes up again at the next frame.
                    let _ = me.send(&Frame::Busy).and_then(|()| me.flush());
                }
            });
            let result = wait();
            drop::<Sender<()>>(done);
            let _ = ticker.join();
            result
        })
    }
}
