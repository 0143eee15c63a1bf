//! Sends of files: bytes that this end has not seen, and that may turn out to be
//! fewer than was said.
//!
//! A chunk of a file is announced after its WRITE has completed, when it is known
//! how many of its bytes the file really had. Until then no further Transfer is
//! polled, so that the chunk can be cut: for both ends it is then as if only the
//! bytes announced had ever been taken.

use crate::ids::{OpId, Outcome};

use super::{StreamTx, Want, is_direct};

impl StreamTx {
    /// As `post_send`, for bytes that are in a file: no Transfer of them is inline,
    /// as they never pass through memory of this process.
    pub fn post_file(&mut self, op: OpId, len: u64) {
        if self.is_shut() {
            self.done(op, 0, Outcome::Cancelled);
            return;
        }
        self.queue(op, Want::Send(len), false);
    }

    /// Of the last Transfer that was polled, which was `op`'s and of `len` bytes,
    /// only the first `had` are going to be announced (none, if that is 0). The
    /// operation ends, cancelled, once these are handled.
    pub fn handle_short(&mut self, op: OpId, direct: bool, len: u32, had: u32) {
        let missing = len.saturating_sub(had);
        let Some(entry) = self.ops.iter_mut().find(|o| o.op == op) else { return };
        entry.taken = entry.taken.saturating_sub(missing.into());
        entry.cancelled = true;
        self.seq = self.seq.wrapping_sub(missing.into());
        if direct {
            self.untake_advert(len, had);
        } else {
            self.ring.untake(missing);
        }
        self.settle();
    }

    /// The buffer gets its room back, unless these bytes end its receive.
    ///
    /// An indirect chunk of which nothing is left has made the phase odd although
    /// the peer will not see it end. That does no harm: its ADVERTs of the old phase
    /// are dropped, and the next bytes go into the ring.
    fn untake_advert(&mut self, len: u32, had: u32) {
        // None if the peer has withdrawn it meanwhile.
        let Some(mut before) = self.file_advert.take() else { return };
        if self.fin_sent || !is_direct(self.phase) {
            return;
        }
        if before.waitall && len < before.len {
            self.adverts.pop_front();
        }
        if before.waitall || had == 0 {
            before.addr = before.addr.wrapping_add(u64::from(had));
            before.len -= had;
            self.adverts.push_front(before);
        }
    }
}
