//! The short way of a small message: from memory into the batch, and from the lookahead
//! to whoever asks, without a WR, a receive or a completion.
//!
//! It is taken only where it cannot be told from the long way: nothing is before the
//! message on its connection, and all of it lies in one FPDU. All that is out of the
//! ordinary is left to the long way, which also says what is wrong with it.

use super::batch::TxPool;
use super::rx::head_end;
use super::state::State;
use super::tx::{Fpdu, max_payload, untagged};
use super::{Engine, RxSend};
use crate::mem::MAX_SGE;
use crate::rnic::HEAD;
use crate::sys::IoVec;
use crate::wire::ddp::{self, Header, Place};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, QN_SEND};

/// Bytes of a message that takes the short way, at most.
pub(super) const MAX_SHORT: usize = 4 << 10;

/// Bytes of an FPDU before the payload of a SEND.
const BEFORE_PAYLOAD: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;

impl Engine {
    /// Puts a SEND of what `head` writes and of `payload` behind it into the batch: true,
    /// and it is as good as sent. False: nothing has happened.
    pub fn pass_send(
        &mut self,
        pool: &mut TxPool,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> bool {
        let most = HEAD + payload.len();
        let fits =
            most <= MAX_SHORT.min(max_payload(&self.settled, self.cfg.mss, ddp::UNTAGGED_LEN));
        if !fits || !self.may_pass() {
            return false;
        }
        let arena = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + most + mpa::CRC_LEN + 4;
        // One by one, where each is to be a segment of its own.
        let alone = self.settled.crc && !self.settled.large;
        if let Some(batch) = &self.tx.batch
            && !batch.is_done()
            && (alone || !batch.has_room(arena, MAX_SGE))
        {
            return false;
        }
        let mut first = [0; HEAD];
        let len = head(&mut first);
        if len == 0 {
            return false;
        }
        if self.tx.batch.as_ref().is_some_and(|b| b.is_done())
            && let Some(done) = self.tx.batch.take()
        {
            pool.give(done);
        }
        let header = untagged(Opcode::Send, QN_SEND, self.tx.next_send_msn());
        let batch = self.tx.batch.get_or_insert_with(|| pool.take());
        batch.alone = alone;
        let before = batch.len();
        let mut fpdu = Fpdu::begin(batch, self.settled.crc, &header, len + payload.len());
        fpdu.bytes(&first[..len]);
        fpdu.payload(payload);
        fpdu.end();
        self.tx.built += (batch.len() - before) as u64;
        true
    }

    /// Nothing is before the next SEND.
    fn may_pass(&self) -> bool {
        let free = self.sq.is_empty() && self.reads.is_empty() && self.startup.is_none();
        self.state == State::Rts && free && self.tx.is_free()
    }

    /// Nothing of a SEND is half here, and nothing waits to be told.
    pub fn may_take(&self) -> bool {
        let begun = !self.tx.held && (!self.initiator || self.tx.sent > self.tx.startup_end);
        self.state == State::Rts
            && begun
            && self.rx.at_boundary()
            && self.wcs.is_empty()
            && self.events.is_empty()
    }

    /// Takes a plain SEND that is whole at the beginning of `bytes` out of them, without a
    /// receive: its payload is copied to `out`. None, and nothing has happened, if there is
    /// something else, or if it does not fit.
    pub fn take_send(&mut self, bytes: &[u8], out: &mut [u8]) -> Option<RxSend> {
        let ulpdu = self.plain_send(bytes)?;
        let len = ulpdu - ddp::UNTAGGED_LEN;
        let used = head_end(ulpdu) + mpa::trailer_len(ulpdu);
        let trailer = bytes.get(head_end(ulpdu)..used)?;
        let payload = bytes.get(BEFORE_PAYLOAD..head_end(ulpdu))?;
        let to = out.get_mut(..len)?;
        if self.settled.crc {
            let pad = mpa::pad(ulpdu);
            let crc = crc32c::crc32c(bytes.get(..head_end(ulpdu) + pad)?);
            if trailer.get(pad..pad + mpa::CRC_LEN)? != mpa::emit_crc(crc) {
                return None;
            }
        }
        to.copy_from_slice(payload);
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        Some(RxSend { used, len })
    }

    /// True if `bytes` may be the beginning of a SEND that [`Engine::take_send`] would take
    /// if it were whole, and had room for `room` bytes.
    pub fn begins_send(&self, bytes: &[u8], room: usize) -> bool {
        if bytes.len() < BEFORE_PAYLOAD {
            return self.may_take();
        }
        self.plain_send(bytes).is_some_and(|ulpdu| {
            let whole = head_end(ulpdu) + mpa::trailer_len(ulpdu);
            bytes.len() < whole && ulpdu - ddp::UNTAGGED_LEN <= room
        })
    }

    /// The ULPDU length of the FPDU that begins here, if its header is that of the next
    /// SEND, plain and in one piece.
    fn plain_send(&self, bytes: &[u8]) -> Option<usize> {
        if !self.may_take() {
            return None;
        }
        let (length, rest) = bytes.split_first_chunk::<{ mpa::LENGTH_LEN }>()?;
        let place = Place::Untagged { ulp: 0, qn: QN_SEND, msn: self.rx.send_msn, mo: 0 };
        let next = Header { last: true, control: Opcode::Send.control(), place };
        let ulpdu = usize::from(u16::from_be_bytes(*length));
        let plain = Header::parse(rest).is_ok_and(|header| header == next);
        (plain && ulpdu >= ddp::UNTAGGED_LEN).then_some(ulpdu)
    }
}
