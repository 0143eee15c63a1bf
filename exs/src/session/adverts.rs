//! ADVERT batching: several receives in one message.
//!
//! In bulk, each message that arrives frees a receive, and the next one is advertised. One
//! message for each would interrupt a sender that knows of enough others. So ADVERTs gather here
//! while the sender has enough, and leave together.

use crate::stream::Advert;
use crate::wire::exs::{AdvertRepr, FURTHER, MAX_FURTHER, Message, MessageKind};

use super::out::Outbox;
use super::proto::Proto;
use super::rx::{MessageBytes, index};
use super::types::count;
use super::{Port, Session, Violation};

/// ADVERTs, and their bytes, that the peer must have left while others are held back. With less,
/// it might have to wait for those. The bytes are few in tests, so that the simulation gets
/// there. A peer on this host gets an ADVERT sooner, so it needs less.
const HOLD_COUNT: usize = 4;
const HOLD_BYTES: u64 = if cfg!(test) { 64 } else { 256 << 10 };
const HOLD_BYTES_NEAR: u64 = HOLD_BYTES / 8;

/// Bytes of the receives behind the first one of an ADVERT, at most.
pub(super) const MAX_COMPANY: usize = MAX_FURTHER * FURTHER;

/// The receives behind the first one of an ADVERT that leaves.
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
    /// Takes the receives that `message` can take along out of the queue, `most` at most.
    pub(super) fn take_company(&mut self, message: Message, most: usize) -> Company {
        let mut company = Company { bytes: [0; MAX_COMPANY], count: 0 };
        let Message::Advert(mut last) = message else { return company };
        while company.count < most
            && let Some(Message::Advert(next)) = self.first_rx()
            && let Some(raw) = last.emit_further(&next)
        {
            self.drop_rx();
            company.bytes[company.count * FURTHER..][..FURTHER].copy_from_slice(&raw);
            company.count += 1;
            last = next;
        }
        company
    }
}

impl Session {
    /// ADVERTs wait for others while the peer knows of twice as many unused ones, and these last
    /// for a while: then one message takes all. The session looks again with every message of the
    /// peer's, so they leave before the peer has used up what it knows.
    fn holds_back(&self) -> bool {
        let Some(Proto::Stream(stream)) = &self.proto else { return false };
        let (shown, bytes) = stream.rx.shown();
        let unknown = self.out.rx_len();
        let known = shown.saturating_sub(unknown);
        // The average serves: receives of one stream are alike as a rule.
        let left = if shown == 0 { 0 } else { bytes / shown as u64 * known as u64 };
        let enough = if self.peer.is_near() { HOLD_BYTES_NEAR } else { HOLD_BYTES };
        known >= HOLD_COUNT && known >= 2 * unknown && left >= enough
    }

    /// Receives that an ADVERT may take along: as many as the peer's slots and the port take.
    pub(super) fn most_further(&self, message: Message, port: &dyn Port) -> usize {
        if !self.is_large(&message) {
            return 0;
        }
        let most = port.caps().max_inline.min(index(self.peer.several()));
        (most.saturating_sub(MessageKind::Advert.header_len()) / FURTHER).min(MAX_FURTHER)
    }

    /// Only ADVERTs wait in the receiving half's queue, and they may go on waiting.
    pub(super) fn gathers(&self) -> bool {
        self.peer.several() > 0
            && self.out.rx_len() > 0
            && self.out.rx_len() <= MAX_FURTHER
            && !self.out.is_ack_due()
            && !self.credits.peer_is_short()
            && !self.credits.must_return()
            && self.holds_back()
            && self.out.rx_messages().all(|m| self.is_large(m))
    }

    /// No message is waiting that data must not overtake. ADVERTs that gather wait for others of
    /// their direction, not for room.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_flushed() || self.out.tx_is_flushed() && self.gathers()
    }

    /// An ADVERT of a receive whose data will not ride in their announcement.
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
