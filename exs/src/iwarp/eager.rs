//! Eager messages: a small SEND goes from memory into the batch, or from the lookahead to the
//! caller, without a WR, a receive or a completion.
//!
//! The wire shows no difference to a posted SEND. The engine declines unless nothing is before
//! the message on its connection and all of it lies in one FPDU. Anything unusual goes through
//! the posted path, which also finds out what is wrong with it.

use super::batch::{Gather, SendStep, TxPool};
use super::rx::head_end;
use super::state::{ConnState, SendHalf};
use super::tx::{Fpdu, max_payload, untagged};
use super::{IwarpEngine, RxEager};
use crate::mem::MAX_SGE;
use crate::rnic::HEAD;
use crate::sys::IoVec;
use crate::wire::ddp::{self, DdpBuffer, Header};
use crate::wire::mpa;
use crate::wire::rdmap::{Opcode, QN_SEND};

/// Most bytes in an eager message.
pub(super) const MAX_EAGER: usize = 4 << 10;

/// Bytes of an FPDU before the payload of a SEND.
const BEFORE_PAYLOAD: usize = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;

impl IwarpEngine {
    /// Puts a SEND into the batch: the header that `head` writes, and `payload` behind it.
    /// Returns true if the SEND is complete; it leaves with the batch. Returns false if nothing
    /// has happened, and then the caller posts the message.
    pub fn try_send_eager(
        &mut self,
        pool: &mut TxPool,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> bool {
        let most = HEAD + payload.len();
        let fits =
            most <= MAX_EAGER.min(max_payload(&self.settled, self.cfg.mss, ddp::UNTAGGED_LEN));
        if !fits || !self.can_send_eager() {
            return false;
        }
        let arena = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + most + mpa::CRC_LEN + 4;
        // An FPDU that must be a TCP segment of its own gets a batch of its own.
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
        self.release_batch(pool);
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

    /// Returns what leaves next, if it is nothing but SENDs of [`IwarpEngine::try_send_eager`] and
    /// nothing follows them.
    pub fn eager_batch(&self) -> Option<Gather<'_>> {
        let batch = self.tx.batch.as_ref().filter(|b| !b.is_done() && self.can_send_eager())?;
        match batch.step(false) {
            SendStep::Gather(gather) => Some(gather),
            SendStep::File { .. } | SendStep::Idle | SendStep::Shutdown => None,
        }
    }

    /// Returns true if nothing comes before the next SEND.
    pub(super) fn can_send_eager(&self) -> bool {
        let free = self.sq.is_empty() && self.reads.is_empty() && self.startup.is_none();
        self.state == ConnState::Rts && free && self.tx.is_free()
    }

    /// Returns true if no SEND has arrived in part and no completion or event waits for the
    /// driver.
    pub fn can_recv_eager(&self) -> bool {
        let begun = self.tx.half != SendHalf::Held
            && (!self.initiator || self.tx.sent > self.tx.startup_end);
        self.state == ConnState::Rts
            && begun
            && self.rx.at_boundary()
            && self.wcs.is_empty()
            && self.events.is_empty()
    }

    /// Takes a plain, whole SEND at the beginning of `bytes` without a receive and copies its
    /// payload to `out`. Returns None, and changes nothing, if `bytes` begins with anything else
    /// or if the payload does not fit.
    pub fn next_eager(&mut self, bytes: &[u8], out: &mut [u8]) -> Option<RxEager> {
        if !self.can_recv_eager() {
            return None;
        }
        let PlainSend { payload, used } =
            find_plain_send(bytes, self.rx.send_msn, self.settled.crc)?;
        out.get_mut(..payload.len())?.copy_from_slice(payload);
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        Some(RxEager { used, len: payload.len() })
    }

    /// Returns true if `bytes` may be the beginning of a SEND that [`IwarpEngine::next_eager`]
    /// would take if it were whole and `out` had `room` bytes.
    pub fn begins_eager(&self, bytes: &[u8], room: usize) -> bool {
        if bytes.len() < BEFORE_PAYLOAD {
            return self.can_recv_eager();
        }
        let next = plain_send_len(bytes, self.rx.send_msn).filter(|_| self.can_recv_eager());
        next.is_some_and(|ulpdu| {
            let whole = head_end(ulpdu) + mpa::trailer_len(ulpdu);
            bytes.len() < whole && ulpdu - ddp::UNTAGGED_LEN <= room
        })
    }
}

/// A SEND that is plain and in one piece.
pub(super) struct PlainSend<'b> {
    pub(super) payload: &'b [u8],
    /// The bytes of its FPDU.
    pub(super) used: usize,
}

/// Returns the whole SEND of this sequence number at the beginning of `bytes`. None if `bytes` begins
/// with anything else.
#[inline]
pub(super) fn find_plain_send(bytes: &[u8], msn: u32, crc: bool) -> Option<PlainSend<'_>> {
    let ulpdu = plain_send_len(bytes, msn)?;
    let used = head_end(ulpdu) + mpa::trailer_len(ulpdu);
    let trailer = bytes.get(head_end(ulpdu)..used)?;
    let payload = bytes.get(BEFORE_PAYLOAD..head_end(ulpdu))?;
    if crc {
        let pad = mpa::pad(ulpdu);
        let crc = crc32c::crc32c(bytes.get(..head_end(ulpdu) + pad)?);
        if trailer.get(pad..pad + mpa::CRC_LEN)? != mpa::emit_crc(crc) {
            return None;
        }
    }
    Some(PlainSend { payload, used })
}

/// Returns the ULPDU length of the FPDU that begins here. None if its header is not that of the SEND of
/// this sequence number, plain and in one piece.
#[inline]
fn plain_send_len(bytes: &[u8], msn: u32) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<{ mpa::LENGTH_LEN }>()?;
    let place = DdpBuffer::Untagged { ulp: 0, qn: QN_SEND, msn, mo: 0 };
    let next = Header { last: true, control: Opcode::Send.control(), place };
    let ulpdu = usize::from(u16::from_be_bytes(*length));
    let plain = Header::parse(rest).is_ok_and(|header| header == next);
    (plain && ulpdu >= ddp::UNTAGGED_LEN).then_some(ulpdu)
}
