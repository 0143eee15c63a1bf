//! A message that gave its receive back in the middle.
//!
//! A SEND takes a receive of the SRQ when it begins, and who sends a part of one and stops
//! could keep it for ever: enough of them, and nobody else has any. So when the SRQ is dry
//! the driver may have a receive back ([`Engine::yield_recv`]). What has come of the message
//! is kept beside (no more than the peer has sent, and than a receive holds); when its next
//! byte comes, it takes another receive, and waits for one like a SEND that begins.

use super::Engine;
use super::place::Source;
use super::rx::{Phase, Receive, Target};
use super::types::RxBuf;

/// What is kept of a message without a receive.
#[derive(Debug)]
pub(super) struct Spill {
    /// The payload that has come.
    bytes: Vec<u8>,
    /// As in [`Receive`].
    got: usize,
}

impl Engine {
    /// A message is half here, in a receive of the SRQ.
    pub fn holds_shared(&self) -> bool {
        self.cfg.uses_srq && self.rx.receive.is_some()
    }

    /// Takes the receive of a message that is half here back from it: the SRQ's again.
    pub fn yield_recv(&mut self) -> Option<RxBuf> {
        if !self.holds_shared() {
            return None;
        }
        let Receive { buf, got } = self.rx.receive.take()?;
        let filling = self.filling();
        let mut bytes = vec![0; got + if filling { self.rx.done() } else { 0 }];
        buf.sgl.read_at(0, &mut bytes);
        self.rx.aside = Some(Spill { bytes, got });
        Some(buf)
    }

    /// The payload under way is a SEND's.
    fn filling(&self) -> bool {
        let begun = matches!(self.rx.phase, Phase::Payload | Phase::Trailer);
        begun && matches!(self.rx.target, Target::Receive)
    }

    /// Before more bytes are taken in: a message that is aside needs a receive. False if
    /// there is none.
    #[cold]
    pub(super) fn resume(&mut self, srq: &mut Source<'_>) -> bool {
        let Some(buf) = srq.as_mut().and_then(|srq| srq.pop()) else { return false };
        let Some(Spill { bytes, got }) = self.rx.aside.take() else { return true };
        let need = if self.filling() { got + self.rx.len } else { got };
        let fits = need <= buf.sgl.len();
        if fits {
            buf.sgl.write_at(0, &bytes);
        }
        self.rx.receive = Some(Receive { buf, got });
        if !fits {
            self.refuse_too_long();
        }
        true
    }
}
