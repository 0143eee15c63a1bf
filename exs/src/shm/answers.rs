//! READs and atomic operations of the peer, and the answers to them.
//!
//! An atomic operation is executed by the owner of the memory, when its record is taken: after the
//! WRITEs before it, and once. The owner's processor does it in one step, so it is atomic with
//! operations by all other ways on this host. The peer's processor never does it: the peer gets no
//! writable mapping of memory that is not its own.

use super::link::{Env, LinkError, ShmLink};
use super::record::{RecordHead, RecordKind};
use super::ring::Area;
use super::rx::{INVALID_RECORD, UNEXPECTED, access_error, code};
use crate::mem::{Access, AtomicOp, Key};
use crate::sys::{IoVec, IoVecMut};

/// Bytes of one answer to a READ.
const ANSWER_STEP: u64 = 8 << 10;
/// A READ with a key that was revoked.
const READ_STAG: LinkError = code(0, 1, 0);

/// Bytes of the operands of an atomic operation, in its record.
pub(super) const OPERANDS_LEN: usize = 24;

/// An answer that this side owes.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwedAnswer {
    /// To a READ: `left` bytes from `raddr` on.
    Read { raddr: u64, key: Key, left: u64 },
    /// To an atomic operation: the value that was there before.
    Atomic(u64),
}

/// An atomic operation as a record has it: the operation (0 adds, 1 compares and swaps), the value
/// to add or to store, and the value that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicOperands([u64; 3]);

impl AtomicOperands {
    pub(super) fn of(op: AtomicOp) -> AtomicOperands {
        AtomicOperands(match op {
            AtomicOp::FetchAdd(add) => [0, add, 0],
            AtomicOp::CompareSwap { expected, new } => [1, new, expected],
        })
    }

    /// The operation. None if there is no such operation.
    fn op(self) -> Option<AtomicOp> {
        match self.0 {
            [0, add, _] => Some(AtomicOp::FetchAdd(add)),
            [1, new, expected] => Some(AtomicOp::CompareSwap { expected, new }),
            _ => None,
        }
    }

    pub(super) fn emit(self) -> [u8; OPERANDS_LEN] {
        let mut out = [0; OPERANDS_LEN];
        for (to, word) in out.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        out
    }

    fn parse(raw: &[u8; OPERANDS_LEN]) -> AtomicOperands {
        AtomicOperands(std::array::from_fn(|word| {
            u64::from_ne_bytes(std::array::from_fn(|i| raw[8 * word + i]))
        }))
    }
}

impl ShmLink {
    /// True if a READ or an atomic operation of the peer waits for its answer.
    pub(super) fn owes_answers(&self) -> bool {
        !self.rx.owed.is_empty()
    }

    /// Checks that the peer has no more requests outstanding than were agreed on.
    fn may_ask(&self) -> Result<(), LinkError> {
        if self.rx.owed.len() < self.peer.ird as usize { Ok(()) } else { Err(UNEXPECTED) }
    }

    pub(super) fn begin_read(&mut self, head: &RecordHead, env: &Env<'_>) -> Result<(), LinkError> {
        self.may_ask()?;
        if head.total > 0 {
            let (key, raddr, left) = (head.key, head.raddr, head.total);
            let need = Access::REMOTE_READ;
            let granted = env.keys.check_remote(env.pd, env.qp, key, raddr, left, need);
            granted.map_err(|fault| access_error(&fault))?;
            self.rx.owed.push_back(OwedAnswer::Read { raddr, key, left });
        }
        self.rx.ring.pos += head.len();
        Ok(())
    }

    /// Executes an atomic operation of the peer.
    pub(super) fn execute_atomic(
        &mut self,
        head: &RecordHead,
        env: &Env<'_>,
    ) -> Result<(), LinkError> {
        self.may_ask()?;
        let mut raw = [0; OPERANDS_LEN];
        let at = self.rx.ring.pos + head.payload_at();
        self.mem.get(Area::Ring, at, &IoVecMut::new(&mut raw));
        let op = AtomicOperands::parse(&raw).op().ok_or(INVALID_RECORD)?;
        let word = env.keys.check_word(env.pd, env.qp, head.key, head.raddr);
        let word = word.map_err(|fault| access_error(&fault))?;
        let old = word.update_word(|old| op.apply(old));
        self.rx.owed.push_back(OwedAnswer::Atomic(old));
        self.rx.ring.pos += head.len();
        Ok(())
    }

    /// Answers READs and atomic operations of the peer, up to `left` bytes.
    pub(super) fn answer(&mut self, env: &Env<'_>, left: &mut u64) -> Result<(), LinkError> {
        while let Some(&owed) = self.rx.owed.front() {
            let n = match owed {
                OwedAnswer::Read { left, .. } => left.min(ANSWER_STEP),
                OwedAnswer::Atomic(_) => 8,
            };
            let inline = usize::try_from(n).map_err(|_| UNEXPECTED)?;
            let head = RecordHead::short(RecordKind::Answer, 0, inline);
            if *left == 0 || !self.reserve(head.len()) {
                return Ok(());
            }
            match owed {
                OwedAnswer::Atomic(old) => {
                    let old = old.to_ne_bytes();
                    self.append(&head, |mem, at| mem.put(Area::Ring, at, &IoVec::new(&old)), &[]);
                }
                OwedAnswer::Read { raddr, key, .. } => {
                    // Looked up for each answer: the key may be revoked in between.
                    let need = Access::REMOTE_READ;
                    let source = env.keys.check_remote(env.pd, env.qp, key, raddr, n, need);
                    let source = source.map_err(|_| READ_STAG)?;
                    let from = source.io_vec(inline);
                    self.append(&head, |mem, at| mem.put(Area::Ring, at, &from), &[]);
                }
            }
            *left = left.saturating_sub(n);
            match self.rx.owed.front_mut() {
                Some(OwedAnswer::Read { raddr, left, .. }) if *left > n => {
                    (*left, *raddr) = (*left - n, *raddr + n);
                }
                _ => drop(self.rx.owed.pop_front()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_survive_the_record() {
        for op in [
            AtomicOp::FetchAdd(0x0102_0304_0506_0708),
            AtomicOp::CompareSwap { expected: 5, new: u64::MAX },
        ] {
            assert_eq!(AtomicOperands::parse(&AtomicOperands::of(op).emit()).op(), Some(op));
        }
        assert_eq!(AtomicOperands([2, 0, 0]).op(), None);
    }
}
