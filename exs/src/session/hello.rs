//! The handshake: two hellos in the private data, and READY.

use crate::mem::Atomics;
use crate::packet::PacketConfig;
use crate::stream::StreamConfig;
use crate::wire::exs::{
    COMMON_HEADER, Hello, MAX_HELLO, Refusal as WireRefusal, SocketKind, VERSIONS, negotiate,
};

use super::proto::Proto;
use super::{Credits, Refusal, SessionConfig, SessionError};

/// Properties of the peer, beside the numbers for the protocol machines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// It understands ADVERTs that ask it to close their windows.
    closes_windows: bool,
    /// It is on this host.
    near: bool,
    /// Bytes of an ADVERT of several receives that its slots take; 0: it takes one receive each.
    several: u32,
    /// What its RNIC executes atomic operations with.
    atomics: Atomics,
}

impl Peer {
    pub(super) fn new(hello: &Hello) -> Peer {
        let has = |feature| hello.features & feature != 0;
        Peer {
            closes_windows: has(Hello::INVALIDATE),
            near: false,
            several: if has(Hello::SEVERAL) { hello.slot } else { 0 },
            atomics: match (has(Hello::ATOMICS), has(Hello::ATOMICS_HOST)) {
                (false, _) => Atomics::None,
                (true, false) => Atomics::Device,
                (true, true) => Atomics::Host,
            },
        }
    }

    pub(super) fn set_near(&mut self, near: bool) {
        self.near = near;
    }

    pub(super) fn closes_windows(&self) -> bool {
        self.closes_windows
    }

    pub(super) fn is_near(&self) -> bool {
        self.near
    }

    pub(super) fn several(&self) -> u32 {
        self.several
    }

    pub(super) fn atomics(&self) -> Atomics {
        self.atomics
    }
}

/// What this side says of itself.
pub(super) fn ours(cfg: &SessionConfig) -> Hello {
    Hello {
        versions: VERSIONS,
        kind: cfg.kind,
        features: cfg.features | of_one_side(cfg),
        credits: cfg.credits,
        most: cfg.most_credits,
        slot: cfg.slot,
        ring: cfg.ring,
        max_msg: cfg.max_msg,
    }
}

/// The features that describe this side alone.
fn of_one_side(cfg: &SessionConfig) -> u32 {
    let atomics = match cfg.atomics {
        Atomics::None => 0,
        Atomics::Device => Hello::ATOMICS,
        Atomics::Host => Hello::ATOMICS | Hello::ATOMICS_HOST,
    };
    atomics | if cfg.confirm { Hello::CONFIRM } else { 0 }
}

pub(super) fn emit(hello: &Hello) -> Vec<u8> {
    let mut out = [0; MAX_HELLO];
    let len = hello.emit(&mut out);
    out[..len].to_vec()
}

/// Reads the peer's hello and compares it with this side's.
///
/// # Errors
/// The two sides do not fit, with the reason for the log and for the peer.
pub(super) fn agree(cfg: &SessionConfig, theirs: &[u8]) -> Result<Hello, Refusal> {
    let refuse = |error, wire: WireRefusal| Refusal { error, private_data: wire.emit().to_vec() };
    let theirs = Hello::parse(theirs).map_err(|e| refuse(e.into(), e.refusal()))?;
    match negotiate(&ours(cfg), &theirs) {
        Ok(_) => Ok(theirs),
        // The refusal that the peer gets is also this side's error.
        Err(wire) => Err(refuse(SessionError::Mismatch(wire), wire)),
    }
}

/// Bytes of data that fit a slot behind the header that goes with them.
fn behind_header(slot: u32) -> u32 {
    slot.saturating_sub(u32::try_from(COMMON_HEADER).unwrap_or(u32::MAX))
}

/// The machines, fitted to both sides' numbers, and the credits.
///
/// Each half follows the numbers of the side that receives. The sender alone decides how much
/// rides inside a message, below what the slot allows. The receiving half of a stream guesses
/// that number, to know which receives are worth an ADVERT: the peer is most likely configured
/// as this side is.
pub(super) fn machines(cfg: &SessionConfig, peer: &Hello) -> (Proto, Credits) {
    let (out_max, in_max) = (behind_header(peer.slot), behind_header(cfg.slot));
    let inline_max = cfg.inline_max.min(out_max);
    let proto = match cfg.kind {
        SocketKind::Stream => {
            // An announcement's length is a 32-bit number, an immediate's has 31 bits.
            let max_chunk = cfg.max_chunk.clamp(1, i32::MAX as u32);
            let tx = StreamConfig { ring: peer.ring.max(1), inline_max, max_chunk };
            let inline_max = cfg.inline_max.min(in_max);
            let rx = StreamConfig { ring: cfg.ring.max(1), inline_max, max_chunk };
            Proto::stream(tx, rx)
        }
        SocketKind::SeqPacket => Proto::packet(
            PacketConfig { eager_max: inline_max, stash: peer.ring, max_msg: peer.max_msg },
            PacketConfig { eager_max: in_max, stash: cfg.ring, max_msg: cfg.max_msg },
        ),
    };
    (proto, Credits::new(cfg.credits, peer.credits, most_credits(cfg, peer)))
}

/// The most credits that the peer ever gives. 0: as many as it has given in its hello.
fn most_credits(cfg: &SessionConfig, peer: &Hello) -> u16 {
    if cfg.features & peer.features & Hello::MORE != 0 { peer.most } else { 0 }
}
