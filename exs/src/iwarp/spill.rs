//! Spill: a half-received SEND gives its receive back.
//!
//! A SEND takes a receive of the SRQ when it begins. A peer that sends a part of one and stops
//! could keep that receive for ever, and enough such peers would leave none for the others. So
//! when the SRQ is dry the driver can take a receive back ([`IwarpEngine::spill`]). The engine
//! keeps the received part of the message, which is no more than the peer has sent and than a
//! receive holds. When the next byte of the message comes, it takes another receive, and waits
//! for one like a SEND that begins.

use super::IwarpEngine;
use super::place::SrqSource;
use super::rx::{OpenRecv, PayloadTarget, RxPhase};
use super::types::RxBuf;

/// The received part of a message that has no receive.
#[derive(Debug)]
pub(super) struct Spill {
    /// The payload that has arrived.
    bytes: Vec<u8>,
    /// As in [`Receive`].
    got: usize,
}

impl IwarpEngine {
    /// Returns true if a half-received message holds a receive of the SRQ.
    pub fn can_spill(&self) -> bool {
        self.cfg.uses_srq && self.rx.receive.is_some()
    }

    /// Takes the receive back from a half-received message, for the SRQ. None if no message holds
    /// one.
    pub fn spill(&mut self) -> Option<RxBuf> {
        if !self.can_spill() {
            return None;
        }
        let OpenRecv { buf, got } = self.rx.receive.take()?;
        let filling = self.filling();
        let mut bytes = vec![0; got + if filling { self.rx.done() } else { 0 }];
        buf.sgl.read_at(0, &mut bytes);
        self.rx.spilled = Some(Spill { bytes, got });
        Some(buf)
    }

    /// Returns true if the current payload belongs to a SEND.
    fn filling(&self) -> bool {
        let begun = matches!(self.rx.phase, RxPhase::Payload | RxPhase::Trailer);
        begun && matches!(self.rx.target, PayloadTarget::Receive)
    }

    /// Gives a spilled message a receive, before more bytes are taken in. Returns false if the
    /// SRQ is empty.
    #[cold]
    pub(super) fn unspill(&mut self, srq: &mut SrqSource<'_>) -> bool {
        let Some(buf) = srq.as_mut().and_then(|srq| srq.pop()) else { return false };
        let Some(Spill { bytes, got }) = self.rx.spilled.take() else { return true };
        let need = if self.filling() { got + self.rx.len } else { got };
        let fits = need <= buf.sgl.len();
        if fits {
            buf.sgl.write_at(0, &bytes);
        }
        self.rx.receive = Some(OpenRecv { buf, got });
        if !fits {
            self.refuse_too_long();
        }
        true
    }
}
