//! The receiver's numbers, lent to threads that read small data without the machine
//! ([`TxLoan`](super::super::TxLoan) is the other half).

use super::super::is_direct;
use super::super::ring::RxRing;
use super::StreamRx;

/// What a [`StreamRx`] lends.
#[derive(Clone, Debug)]
pub struct RxLoan {
    ring: RxRing,
    seq: u64,
}

impl RxLoan {
    /// Inline data of `len` bytes have come, and go straight to a read, as with
    /// [`StreamRx::try_pass`]. False: nothing has happened.
    #[inline]
    pub fn pass(&mut self, len: u32) -> bool {
        if len == 0 || len > self.ring.room() {
            return false;
        }
        self.ring.pass(len);
        self.seq = self.seq.wrapping_add(len.into());
        true
    }

    /// As [`StreamRx::take_freed`].
    #[inline]
    pub fn take_freed(&mut self) -> u32 {
        self.ring.take_freed()
    }

    /// True if an acknowledgement is due (R6): the machine must send it.
    #[inline]
    pub fn wants_ack(&self) -> bool {
        self.ring.has_much_freed()
    }
}

impl StreamRx {
    /// Lends the receiver's numbers. None: it is not at rest, or its phase is direct.
    pub fn lend(&self) -> Option<RxLoan> {
        let rests = self.recvs.is_empty() && self.is_quiet() && !self.readable();
        let owes = self.withdrawing || self.ack_all || self.ack_told || self.ring.has_much_freed();
        let (ring, seq) = (self.ring.clone(), self.seq);
        (rests && !owes && !is_direct(self.phase)).then_some(RxLoan { ring, seq })
    }

    /// Takes the numbers back.
    pub fn end_loan(&mut self, loan: RxLoan) {
        let RxLoan { ring, seq } = loan;
        (self.ring, self.seq) = (ring, seq);
    }
}
