//! The decisions of a seed before anything happens.

use std::time::Duration;

use crate::rnic::{Atomics, Caps};
use crate::session::{Announce, Demand, SessionConfig};
use crate::time::Time;
use crate::wire::exs::{Hello, SocketKind};

use super::rng::Rng;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kind: SocketKind,
    /// Nothing goes wrong: then all that is sent arrives.
    pub(super) calm: bool,
    /// Steps of each user.
    pub(super) steps: u64,
    /// Largest send and receive.
    pub(super) max_len: usize,
    pub(super) cfg: [SessionConfig; 2],
    pub(super) caps: Caps,
    pub(super) delay: u64,
    /// When the cable is cut.
    pub(super) cut_at: Option<Time>,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let kind = rng.pick(&[SocketKind::Stream, SocketKind::Stream, SocketKind::SeqPacket]);
        let calm = rng.one_in(3);
        let max_len = rng.pick(&[40, 300, 3_000, 20_000]);
        // Tiny, but not so tiny that a run takes for ever.
        let ring = rng.pick(&[1, 7, 64, 1000, 1 << 16]).max(u32::try_from(max_len / 64).unwrap());
        let caps = Caps {
            name: "sim".into(),
            write_imm: rng.one_in(2),
            initiator_first: true,
            read_sink_remote_write: false,
            write_acked: rng.one_in(3),
            small_reads: true,
            file_source: true,
            windows: true,
            atomics: Atomics::Host,
            max_sge: rng.size(1, 6),
            max_inline: rng.pick(&[48, 64, 256]),
            max_msg: rng.pick(&[17, 1000, 1 << 30]),
            max_ord: 4,
            max_ird: 4,
            max_private_data: 56,
            ..Caps::default()
        };
        let mut cfg = || SessionConfig {
            kind,
            ring,
            inline_max: rng.pick(&[0, 16, 100, 4096]),
            max_chunk: rng.pick(&[1, 50, 1000, 1 << 20]).max(u32::try_from(max_len / 64).unwrap()),
            max_msg: max_len as u64 - rng.below(2),
            credits: rng.pick(&[4, 4, 5, 8, 32]),
            most_credits: rng.pick(&[0, 9, 32]),
            demand: Demand {
                busy_stalls: rng.range(1, 4),
                busy_within: Duration::from_micros(rng.range(1, 20_000)),
                idle_messages: rng.pick(&[1, 10, 1000]),
                idle_within: Duration::from_micros(rng.range(1, 20_000)),
            },
            slot: rng.pick(&[48, 100, 1000]),
            max_send_wr: rng.size(4, 20),
            keepalive: rng.one_in(2).then(|| Duration::from_millis(rng.range(1, 2000))),
            dead_after: Some(Duration::from_millis(rng.range(500, 5000))),
            send_timeout: (!calm && rng.one_in(6)).then(|| Duration::from_millis(rng.range(1, 60))),
            recv_timeout: (!calm && rng.one_in(6)).then(|| Duration::from_millis(rng.range(1, 60))),
            linger: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(5),
            ring_idle: rng.one_in(2).then(|| Duration::from_millis(rng.range(1, 20))),
            confirm: rng.one_in(2),
            atomics: rng.pick(&[Atomics::None, Atomics::Device, Atomics::Host]),
            features: rng.pick(&[Hello::FEATURES, Hello::FEATURES, Hello::INVALIDATE, 0]),
            force_announce: rng.one_in(3).then_some(Announce::WriteSend),
        };
        let mut cfg = [cfg(), cfg()];
        if calm && rng.one_in(2) {
            // Probes carry credits and acknowledgements, and would heal a lock-up.
            for cfg in &mut cfg {
                (cfg.keepalive, cfg.dead_after, cfg.ring_idle) = (None, None, None);
            }
        }
        let delay = rng.pick(&[1_000, 50_000, 2_000_000]);
        let steps = rng.range(3, 40);
        let cut_at = (!calm && rng.one_in(5)).then(|| Time::from_nanos(rng.below(40_000_000)));
        Plan { kind, calm, steps, max_len, cfg, caps, delay, cut_at }
    }
}
