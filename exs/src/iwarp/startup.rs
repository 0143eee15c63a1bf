//! MPA start-up: the request, the reply, and what they negotiate.
//!
//! Revision 1 negotiates CRC only. Revision 2 (RFC 6581) also negotiates how many READs each side
//! answers and issues, and which side may send first. Markers are refused on both sides: no peer
//! asks for them since hardware without TCP reassembly is gone.

use super::state::{SendTrigger, Trigger};
use super::types::{Config, IwarpEvent, MAX_PRIVATE_DATA, MAX_READS};
use super::{IwarpEngine, StartupTerms};
use crate::rnic::RnicError;
use crate::wire::mpa::{
    ENHANCED_LEN, EnhancedRepr, FRAME_LEN, FrameKind, FrameRepr, MAX_PRIVATE, MpaError,
    READS_UNNEGOTIATED,
};

/// The state that only the start-up needs.
#[derive(Debug)]
pub(super) struct Startup {
    awaited: FrameKind,
    /// Our frame, until it is in a batch. Empty afterwards.
    pub(super) tx: Vec<u8>,
    /// The bytes of the peer's frame that have arrived.
    rx: Vec<u8>,
    /// The peer's frame without its private data. None before it is complete.
    peer: Option<(FrameRepr, Option<EnhancedRepr>)>,
}

impl Startup {
    pub(super) fn new(awaited: FrameKind) -> Box<Startup> {
        Box::new(Startup { awaited, tx: Vec::new(), rx: Vec::new(), peer: None })
    }
}

/// Builds a frame. The caller has checked the length of the private data.
fn frame(mut repr: FrameRepr, enhanced: Option<EnhancedRepr>, private_data: &[u8]) -> Vec<u8> {
    let extra = if enhanced.is_some() { ENHANCED_LEN } else { 0 };
    repr.private_len = u16::try_from(extra + private_data.len()).unwrap_or(u16::MAX);
    let mut out = Vec::with_capacity(FRAME_LEN + extra + private_data.len());
    out.extend_from_slice(&repr.emit());
    if let Some(enhanced) = enhanced {
        out.extend_from_slice(&enhanced.emit());
    }
    out.extend_from_slice(private_data);
    out
}

fn check_private(private_data: &[u8], limit: usize) -> Result<(), RnicError> {
    if private_data.len() > limit {
        let (asked, limit) = (private_data.len() as u64, limit as u64);
        return Err(RnicError::Limit { what: "bytes of private data", asked, limit });
    }
    Ok(())
}

/// Encodes our number of READs in 14 bits. No more than `MAX_READS` are promised.
fn reads(n: u32) -> u16 {
    u16::try_from(n.min(MAX_READS)).unwrap_or(0)
}

/// Decodes the peer's number. The escape value sets no bound.
fn bound(n: u16) -> u32 {
    if n == READS_UNNEGOTIATED { MAX_READS } else { u32::from(n) }
}

/// Builds the initiator's request. It has revision 2 at once: RFC 6581 section 7 lets a peer that
/// knows only revision 1 refuse it.
pub(super) fn request(cfg: &Config, private_data: &[u8]) -> Result<Vec<u8>, RnicError> {
    check_private(private_data, MAX_PRIVATE_DATA)?;
    let repr = FrameRepr {
        kind: FrameKind::Request,
        markers: false,
        crc: cfg.crc,
        reject: false,
        enhanced: true,
        large: true,
        revision: 2,
        private_len: 0,
    };
    let enhanced = EnhancedRepr {
        ird: reads(cfg.ird),
        ord: reads(cfg.ord),
        peer_to_peer: cfg.peer_to_peer,
        first_send: false,
        first_write: cfg.peer_to_peer,
        first_read: false,
    };
    Ok(frame(repr, Some(enhanced), private_data))
}

impl IwarpEngine {
    /// Takes start-up bytes and returns how many were used.
    pub(super) fn startup_received(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let Some(mut startup) = self.startup.take() else {
            return bytes.len();
        };
        if startup.awaited == FrameKind::Reply && !self.all_sent(&startup) {
            self.startup_failed(RnicError::Protocol("a reply came before our request".to_owned()));
            return bytes.len();
        }
        if startup.peer.is_some() {
            // The initiator must wait for the reply (RFC 5044 section 7.1.2).
            self.startup_failed(RnicError::Protocol(format!(
                "{} bytes came before the reply to the connection request",
                bytes.len()
            )));
            return bytes.len();
        }
        let mut used = 0;
        let outcome = loop {
            let need = match self.startup_need(&startup) {
                Ok(need) => need,
                Err(e) => break Some(Err(e)),
            };
            if startup.rx.len() == need {
                break Some(Ok(()));
            }
            if used == bytes.len() {
                break None;
            }
            let take = (need - startup.rx.len()).min(bytes.len() - used);
            startup.rx.extend_from_slice(&bytes[used..used + take]);
            used += take;
        };
        match outcome {
            None => self.startup = Some(startup),
            Some(Err(e)) => {
                self.startup_failed(RnicError::Protocol(e.to_string()));
                return bytes.len();
            }
            Some(Ok(())) if used < bytes.len() => {
                // Bytes directly behind a request or a reply were sent without waiting for the
                // other side.
                let early = bytes.len() - used;
                self.startup_failed(RnicError::Protocol(format!(
                    "{early} bytes follow the MPA {:?} too early",
                    startup.awaited
                )));
                return bytes.len();
            }
            Some(Ok(())) => self.frame_complete(startup),
        }
        used
    }

    fn all_sent(&self, startup: &Startup) -> bool {
        startup.tx.is_empty() && self.tx.sent == self.tx.built
    }

    /// Returns the length of the peer's frame as far as it is known.
    fn startup_need(&self, startup: &Startup) -> Result<usize, MpaError> {
        match startup.rx.first_chunk::<FRAME_LEN>() {
            None => Ok(FRAME_LEN),
            Some(head) => {
                let repr = FrameRepr::parse(head, startup.awaited)?;
                Ok(FRAME_LEN + usize::from(repr.private_len))
            }
        }
    }

    fn frame_complete(&mut self, mut startup: Box<Startup>) {
        let parsed = startup.rx.first_chunk::<FRAME_LEN>().map(|head| {
            let repr = FrameRepr::parse(head, startup.awaited)?;
            let private = &startup.rx[FRAME_LEN..];
            let enhanced = if repr.enhanced && repr.revision == 2 {
                Some(EnhancedRepr::parse(private)?)
            } else {
                None
            };
            let skip = if enhanced.is_some() { ENHANCED_LEN } else { 0 };
            Ok::<_, MpaError>((repr, enhanced, private[skip..].to_vec()))
        });
        let (repr, enhanced, private_data) = match parsed {
            Some(Ok(parsed)) => parsed,
            Some(Err(e)) => return self.startup_failed(RnicError::Protocol(e.to_string())),
            None => return,
        };
        startup.rx = Vec::new();
        startup.peer = Some((repr, enhanced));
        match startup.awaited {
            FrameKind::Request => self.request_complete(startup, private_data),
            FrameKind::Reply => self.reply_complete(repr, enhanced, private_data),
        }
    }

    fn request_complete(&mut self, startup: Box<Startup>, private_data: Vec<u8>) {
        let peer = startup.peer;
        self.startup = Some(startup);
        let Some((repr, enhanced)) = peer else { return };
        let refuse = if repr.markers {
            Some("it wants markers, which are not supported here".to_owned())
        } else if !(1..=2).contains(&repr.revision) {
            Some(format!("it speaks MPA revision {}; 1 and 2 are known here", repr.revision))
        } else if enhanced.is_some_and(|e| e.peer_to_peer && !e.first_write && !e.first_read) {
            Some("it offers no WRITE or READ as the first message".to_owned())
        } else {
            None
        };
        match refuse {
            None => {
                self.go(Trigger::Request);
                self.events.push_back(IwarpEvent::Request { private_data });
            }
            Some(why) => {
                self.queue_reject(&[]);
                self.events.push_back(IwarpEvent::Failed(RnicError::Protocol(why)));
            }
        }
    }

    /// Queues the reply that refuses.
    pub(super) fn queue_reject(&mut self, private_data: &[u8]) {
        let Some(startup) = self.startup.as_mut() else { return };
        let (peer, enhanced) = match startup.peer {
            Some((peer, enhanced)) => (peer.revision.clamp(1, 2), enhanced),
            None => (2, None),
        };
        let repr = FrameRepr {
            kind: FrameKind::Reply,
            markers: false,
            crc: false,
            reject: true,
            enhanced: enhanced.is_some(),
            large: false,
            revision: peer,
            private_len: 0,
        };
        startup.tx = frame(repr, enhanced.map(|_| EnhancedRepr::default()), private_data);
        self.rx.discard();
        self.go(Trigger::Reject);
    }

    /// Responder: negotiates, and queues the reply that says so.
    pub(super) fn queue_accept(
        &mut self,
        cfg: &Config,
        private_data: &[u8],
    ) -> Result<(), RnicError> {
        let Some((repr, enhanced)) = self.startup.as_ref().and_then(|s| s.peer) else {
            return Ok(());
        };
        let limit = if enhanced.is_some() { MAX_PRIVATE_DATA } else { MAX_PRIVATE };
        check_private(private_data, limit)?;
        let (mut ird, mut ord) = (cfg.ird.min(MAX_READS), cfg.ord.min(MAX_READS));
        let reply = enhanced.map(|peer| {
            // RFC 6581 section 9.1: no more than the other side can use or serve.
            (ird, ord) = (ird.min(bound(peer.ord)), ord.min(bound(peer.ird)));
            EnhancedRepr {
                ird: reads(ird),
                ord: reads(ord),
                peer_to_peer: peer.peer_to_peer,
                first_send: false,
                first_write: peer.peer_to_peer && peer.first_write,
                first_read: peer.peer_to_peer && !peer.first_write && peer.first_read,
            }
        });
        let crc = cfg.crc || repr.crc;
        let out = FrameRepr {
            kind: FrameKind::Reply,
            markers: false,
            crc,
            reject: false,
            enhanced: enhanced.is_some(),
            large: repr.large,
            revision: repr.revision,
            private_len: 0,
        };
        if let Some(startup) = self.startup.as_mut() {
            startup.tx = frame(out, reply, private_data);
        }
        self.cfg = *cfg;
        self.settled = StartupTerms { crc, large: repr.large, ird, ord };
        // RFC 5044 section 7.1.2: the responder may send FPDUs only after the initiator's first,
        // which proves that the initiator understood the reply.
        self.tx.go(SendTrigger::Accept);
        self.established(Vec::new());
        self.go(Trigger::Accept);
        Ok(())
    }

    fn reply_complete(
        &mut self,
        repr: FrameRepr,
        enhanced: Option<EnhancedRepr>,
        private_data: Vec<u8>,
    ) {
        let fail = |engine: &mut IwarpEngine, why: String| {
            engine.startup_failed(RnicError::Protocol(why));
        };
        if repr.reject {
            return self.startup_refused(private_data);
        }
        if repr.markers {
            return fail(self, "it wants markers, which are not supported here".to_owned());
        }
        if !(1..=2).contains(&repr.revision) {
            return fail(self, format!("it answers with MPA revision {}", repr.revision));
        }
        let (mut ird, mut ord) = (self.cfg.ird.min(MAX_READS), self.cfg.ord.min(MAX_READS));
        if let Some(peer) = enhanced {
            if peer.ord != READS_UNNEGOTIATED && u32::from(peer.ord) > ird {
                // RFC 6581 section 9.1: insufficient IRD resources.
                let why = format!("it wants {} READs answered at a time, we offer {ird}", peer.ord);
                return fail(self, why);
            }
            (ird, ord) = (ird.min(bound(peer.ord)), ord.min(bound(peer.ird)));
        }
        if self.cfg.peer_to_peer {
            if enhanced.is_some_and(|e| e.peer_to_peer && !e.first_write) {
                return fail(self, "it wants another first message than was offered".to_owned());
            }
            // A zero-length WRITE does no harm at a peer without peer-to-peer mode, and lets it
            // send as well.
            self.tx.go(SendTrigger::PeerToPeer);
        }
        let crc = self.cfg.crc || repr.crc;
        self.settled = StartupTerms { crc, large: repr.large, ird, ord };
        self.established(private_data);
        self.go(Trigger::Reply);
    }

    fn established(&mut self, private_data: Vec<u8>) {
        let StartupTerms { ird, ord, .. } = self.settled;
        self.rx.begin();
        self.events.push_back(IwarpEvent::Established { private_data, ord, ird });
    }
}
