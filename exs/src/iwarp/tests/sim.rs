//! Thousands of seeded runs of two engines on a link that splits at random.
//!
//! A seed decides everything: configurations, memory, mixtures of requests,
//! sizes, the order of steps, and how the run ends. A failing seed is named in
//! the panic and replays alone: `EXS_SEED=<seed> cargo test iwarp::tests::sim`.

use super::link::*;
use super::world::*;
use crate::iwarp::*;
use crate::rnic::{Disconnect, DisconnectCause, SendOp};

/// Runs of each kind.
const SEEDS: u64 = 2000;

fn seeds(run: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("EXS_SEED") {
        return run(seed.parse().expect("EXS_SEED is a number"));
    }
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = outcome {
            eprintln!("seed {seed} failed: replay with EXS_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn steps(sim: &mut Sim, most: usize) {
    for _ in 0..sim.pair.rng.below(most) {
        sim.step();
    }
}

#[test]
fn everything_arrives_and_the_end_is_orderly() {
    seeds(|seed| {
        let mut sim = Sim::new(seed);
        steps(&mut sim, 400);
        // So that the responder may send, and its held messages can leave.
        let (_, side, book, _, _) = sim.sides(true);
        let hello = wr(book.next_wr, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[]);
        if side.engine.post_send(hello).is_ok() {
            book.wr_id(true);
        }
        sim.settle();
        sim.accounts(false);
        sim.memory(true);
        assert!(sim.a.coming.is_empty() && sim.b.coming.is_empty());

        if sim.pair.rng.chance(2) {
            sim.pair.a.engine.disconnect(Disconnect::Orderly);
        }
        sim.pair.b.engine.disconnect(Disconnect::Orderly);
        sim.settle();
        for side in [&sim.pair.a, &sim.pair.b] {
            let end =
                matches!(side.events[..], [IwarpEvent::Disconnected(DisconnectCause::Orderly)]);
            assert!(end && side.engine.closed(), "{:?}", side.engine);
        }
        sim.accounts(true);
    });
}

#[test]
fn an_orderly_end_lets_posted_work_leave() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 1_000_000);
        steps(&mut sim, 300);
        let (_, side, ..) = sim.sides(true);
        side.engine.disconnect(Disconnect::Orderly);
        sim.settle();
        // The peer's READs may come too late for a response, which breaks the connection. If the
        // initiator never sent, the responder may not.
        let broken = |side: &Side| {
            matches!(side.events[..], [IwarpEvent::Disconnected(DisconnectCause::Broken(_))])
        };
        if broken(&sim.pair.a) || broken(&sim.pair.b) {
            for side in [&mut sim.pair.a, &mut sim.pair.b] {
                side.engine.handle_broken(libc::ECONNRESET);
                side.drain();
            }
            sim.check(true);
            sim.check(false);
        } else {
            assert!(sim.pair.a.engine.closed() && sim.pair.b.engine.closed());
            let spoke = sim.pair.a.engine.tx.sent > sim.pair.a.engine.tx.startup_end;
            assert!(!sim.a.sends_failed, "what was posted left");
            assert!(!sim.b.sends_failed || !spoke, "what was posted left");
            sim.memory(spoke);
        }
        sim.accounts(true);
        sim.memory(false);
    });
}

/// Ends both sides, whatever their states, and checks the accounts.
fn wreck(sim: &mut Sim) {
    for side in [&mut sim.pair.a, &mut sim.pair.b] {
        side.engine.handle_broken(libc::ECONNRESET);
        side.engine.handle_broken(libc::ECONNRESET);
        side.drain();
        assert!(side.engine.closed());
        assert!(matches!(side.events[..], [IwarpEvent::Disconnected(_)]), "{:?}", side.events);
        assert!(!side.send(&mut Rng(0), Bite::Whole));
        side.engine.rx_direct(&mut |_, _, _| panic!("a dead engine receives"));
        let rx = side.engine.handle_received(0, b"late", &mut side.keys, None);
        assert_eq!(rx, RxResult { consumed: 4, stalled: false });
    }
    sim.check(true);
    sim.check(false);
    sim.accounts(true);
    sim.memory(false);
}

#[test]
fn a_cut_at_any_byte_completes_everything() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 2_000_000);
        steps(&mut sim, 300);
        let first = sim.pair.rng.chance(2);
        let Pair { a, b, rng, .. } = &mut sim.pair;
        let (side, peer) = if first { (a, b) } else { (b, a) };
        // The rest of the peer's bytes is lost from some byte on. An end of file follows, or an
        // error.
        let keep = rng.below(peer.wire.len() + 1);
        peer.wire.truncate(keep);
        if rng.chance(2) {
            while side.receive(rng, Bite::Whole, &mut peer.wire, true) {}
        }
        wreck(&mut sim);
    });
}

#[test]
fn an_abort_completes_everything_at_once() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 3_000_000);
        steps(&mut sim, 300);
        let side = &mut sim.pair.a;
        side.engine.disconnect(Disconnect::Abort);
        side.drain();
        assert!(matches!(side.events[..], [IwarpEvent::Disconnected(DisconnectCause::Aborted)]));
        sim.check(true);
        wreck(&mut sim);
    });
}

#[test]
fn a_violation_in_the_middle_ends_both_sides_with_a_terminate() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 4_000_000);
        steps(&mut sim, 300);
        let first = sim.pair.rng.chance(2);
        let (rng, side, book, _, peer_book) = sim.sides(first);
        // A key that was never issued, or an access that is one byte too long.
        let (raddr, rkey) = match rng.below(2) {
            0 => (peer_book.sink.addr(), 0xdead_0000),
            _ => (peer_book.sink.addr() + MEMORY as u64, peer_book.sink_key),
        };
        let mut bad = wr(book.next_wr, SendOp::Write { raddr, rkey }, b"!", &[]);
        if rng.chance(2) {
            let op = SendOp::Read { raddr, rkey };
            let sink = book.sink.slice(MEMORY - 1, 1).unwrap();
            bad = wr(book.next_wr, op, b"", &[sink]);
            bad.lkeys[0] = book.sink_key;
        }
        if side.engine.post_send(bad).is_err() {
            return;
        }
        book.wr_id(true);
        // An initiator that has sent nothing leaves the responder waiting.
        if !first {
            let hello = wr(sim.a.next_wr, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[]);
            if sim.pair.a.engine.post_send(hello).is_ok() {
                sim.a.wr_id(true);
            }
        }
        sim.settle();
        for side in [&sim.pair.a, &sim.pair.b] {
            let end = matches!(
                side.events[..],
                [IwarpEvent::Disconnected(
                    DisconnectCause::TerminatedByUs(_) | DisconnectCause::TerminatedByPeer(_)
                )]
            );
            assert!(end && side.engine.closed(), "{:?}", side.events);
        }
        sim.accounts(true);
        sim.memory(false);
    });
}

#[test]
fn a_window_closed_at_any_time_protects_its_memory() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 5_000_000);
        steps(&mut sim, 300);
        let first = sim.pair.rng.chance(2);
        let (rng, side, book, ..) = sim.sides(first);
        // The sink is open for the peer's WRITEs and our READs' responses, the source for the
        // peer's READs.
        let writes = rng.chance(2);
        let key = if writes { book.sink_key } else { book.source_key };
        side.keys.remove(key);
        side.engine.key_revoked(key);
        side.drain();
        let then = contents(&book.sink);
        sim.settle();
        let (_, _, book, ..) = sim.sides(first);
        assert!(!writes || contents(&book.sink) == then, "a byte came after the end");
        sim.memory(false);
        wreck(&mut sim);
    });
}

#[test]
fn damage_on_the_wire_never_panics_and_completes_everything() {
    seeds(|seed| {
        let mut sim = Sim::new(seed + 6_000_000);
        steps(&mut sim, 200);
        (sim.a.tampered, sim.b.tampered) = (true, true);
        for _ in 0..1 + sim.pair.rng.below(4) {
            let first = sim.pair.rng.chance(2);
            let (rng, side, ..) = sim.sides(first);
            let len = side.wire.len();
            if len > 0 {
                // Two times of three near the front, where the next header is.
                let at = if rng.chance(3) { rng.below(len) } else { rng.below(len.min(24)) };
                side.wire[at] = u8::try_from(rng.below(256)).unwrap();
            } else {
                for _ in 0..rng.below(100) {
                    side.wire.push_back(u8::try_from(rng.below(256)).unwrap());
                }
            }
            steps(&mut sim, 40);
        }
        sim.settle_some();
        for side in [&mut sim.pair.a, &mut sim.pair.b] {
            side.engine.handle_broken(libc::ECONNRESET);
            side.drain();
            assert!(side.engine.closed());
        }
        sim.check(true);
        sim.check(false);
        sim.accounts(true);
        for book in [&sim.a, &sim.b] {
            let spare = &contents(&book.source)[..];
            assert!(spare == contents(&filled(MEMORY, book.seed)), "the spare memory is untouched");
        }
    });
}
