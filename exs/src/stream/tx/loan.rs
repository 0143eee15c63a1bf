//! The sender's numbers, lent to threads that send small data without the machine.
//!
//! Inside of an indirect phase, and with nothing queued, a small send changes no more than the
//! position and the accounting of the peer's ring. So these can be lent. The machine stands still
//! meanwhile, and takes them back as if it had moved the data itself.

use super::super::ring::TxRing;
use super::super::{StreamViolation, is_direct};
use super::StreamTx;

/// What a [`StreamTx`] lends.
#[derive(Clone, Debug)]
pub struct TxLoan {
    ring: TxRing,
    seq: u64,
    most: u32,
}

impl TxLoan {
    /// Takes the place of an inline send of `len` bytes, as [`StreamTx::try_eager`] does. False:
    /// nothing has happened.
    #[inline]
    pub fn send(&mut self, len: u32) -> bool {
        if len == 0 || len > self.most || len > self.ring.room() {
            return false;
        }
        self.ring.take(len);
        self.seq = self.seq.wrapping_add(len.into());
        true
    }

    /// As [`StreamTx::handle_ack`].
    ///
    /// # Errors
    /// More bytes than are in use.
    #[inline]
    pub fn handle_ack(&mut self, freed: u32) -> Result<(), StreamViolation> {
        let used = self.ring.used();
        if freed > used {
            return Err(StreamViolation::AckOverrun { freed, used });
        }
        self.ring.give_back(freed);
        Ok(())
    }
}

impl StreamTx {
    /// Lends the sender's numbers. None: it is not at rest, or its phase is direct.
    pub fn lend(&self) -> Option<TxLoan> {
        let rests = self.is_idle() && !self.fin_sent;
        let plain = !is_direct(self.phase) && self.adverts.is_empty();
        let (ring, seq, most) = (self.ring.clone(), self.seq, self.eager_max());
        (rests && plain).then_some(TxLoan { ring, seq, most })
    }

    /// Takes the numbers back.
    pub fn end_loan(&mut self, loan: TxLoan) {
        let TxLoan { ring, seq, most: _ } = loan;
        (self.ring, self.seq, self.file_advert) = (ring, seq, None);
    }
}
