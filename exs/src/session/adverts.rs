//! ADVERTs in company: several receives in one message.
//!
//! In bulk, each message that comes frees a receive, and the next one is advertised. One
//! message for each would interrupt a sender that knows of enough others. So ADVERTs gather
//! here while it does, and leave together.

use crate::stream::Advert;
use crate::wire::exs::{AdvertRepr, FURTHER, MAX_FURTHER, Message, MessageKind};

use super::out::Outbox;
use super::proto::Proto;
use super::rx::{MessageBytes, index};
use super::types::count;
use super::{Port, Session, Violation};

/// With fewer ADVERTs left, or for fewer bytes (small, so that the simulation gets
/// there), the peer might have to wait for those that are held back. A peer on this
/// host has them so much sooner.
const HOLD_COUNT: usize = 4;
const HOLD_BYTES: u64 = if cfg!(test) { 64 } else { 256 << 10 };
const HOLD_BYTES_NEAR: u64 = HOLD_BYTES / 8;

/// Bytes of the receives that an ADVERT takes along.
pub(super) const MAX_COMPANY: usize = MAX_FURTHER * FURTHER;

/// What stands behind an ADVERT that leaves: the receives that it takes along.
pub(super) struct Company {
    bytes: [u8; MAX_COMPANY],
    pub(super) count: usize,
}

impl Company {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count * FURTHER]
    }
}

impl Outbox {
    /// Takes the receives off that `message` can take along, `most` of them at most.
    pub(super) fn take_company(&mut self, message: Message, most: usize) -> Company {
        let mut company = Company { bytes: [0; MAX_COMPANY], count: 0 };
        let Message::Advert(mut last) = message else { return company };
        while company.count < most
            && let Some(Message::Advert(next)) = self.rx.front().copied()
            && let Some(raw) = last.emit_further(&next)
        {
            self.rx.pop_front();
            company.bytes[company.count * FURTHER..][..FURTHER].copy_from_slice(&raw);
            company.count += 1;
            last = next;
        }
        company
    }
}

impl Session {
    /// ADVERTs wait for company as long as the peer has twice as many unused ones that it
    /// knows of, and enough for a while: one message takes them all. Looked at again
    /// with every message of the peer's, so before it has used them up they leave.
    fn holds_back(&self) -> bool {
        let Some(Proto::Stream(stream)) = &self.proto else { return false };
        let (shown, bytes) = stream.rx.shown();
        let unknown = self.out.rx.len();
        let known = shown.saturating_sub(unknown);
        // The average serves: receives of one stream are alike as a rule.
        let left = if shown == 0 { 0 } else { bytes / shown as u64 * known as u64 };
        let enough = if self.near { HOLD_BYTES_NEAR } else { HOLD_BYTES };
        known >= HOLD_COUNT && known >= 2 * unknown && left >= enough
    }

    /// Receives that an ADVERT may take along, by what the peer's slots and the port take.
    pub(super) fn most_further(&self, message: Message, port: &dyn Port) -> usize {
        if !self.is_large(&message) {
            return 0;
        }
        let most = port.caps().max_inline.min(index(self.several));
        (most.saturating_sub(MessageKind::Advert.header_len()) / FURTHER).min(MAX_FURTHER)
    }

    /// Only ADVERTs wait for the receiving half, and may go on to.
    pub(super) fn gathers(&self) -> bool {
        self.several > 0
            && !self.out.rx.is_empty()
            && self.out.rx.len() <= MAX_FURTHER
            && !self.out.ack_due
            && !self.flow.peer_is_short()
            && !self.flow.must_return()
            && self.holds_back()
            && self.out.rx.iter().all(|m| self.is_large(m))
    }

    /// No message is waiting that data must not overtake: ADVERTs that gather wait for
    /// others of their direction, not for room.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_flushed() || self.out.tx_is_flushed() && self.gathers()
    }

    /// An ADVERT that data will not ride in the announcement for.
    pub(super) fn is_large(&self, message: &Message) -> bool {
        matches!(message, Message::Advert(a) if a.len > self.cfg.inline_max)
    }

    /// The receives that follow the first in the same ADVERT.
    pub(super) fn handle_further(
        &mut self,
        mut advert: AdvertRepr,
        came: MessageBytes<'_>,
        header: usize,
    ) -> Result<(), Violation> {
        for at in (header..came.len()).step_by(FURTHER) {
            let mut raw = [0; FURTHER];
            match came {
                MessageBytes::Memory(seg) => seg.read_at(at, &mut raw),
                MessageBytes::Copy(bytes) => raw.copy_from_slice(&bytes[at..at + FURTHER]),
            }
            advert = advert.parse_further(&raw)?;
            self.handle_advert(advert)?;
        }
        Ok(())
    }

    /// An ADVERT, or one of the receives behind it.
    pub(super) fn handle_advert(&mut self, a: AdvertRepr) -> Result<(), Violation> {
        let Some(Proto::Stream(s)) = &mut self.proto else { return Ok(()) };
        let advert = Advert {
            seq: a.seq,
            phase: a.phase,
            addr: a.addr,
            key: a.key,
            len: a.len,
            waitall: a.waitall,
            invalidate: a.invalidate,
        };
        s.tx.handle_advert(advert)?;
        count(&mut self.counters.adverts_received, 1);
        Ok(())
    }
}
