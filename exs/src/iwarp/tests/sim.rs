//! Thousands of seeded runs of two engines on a link that splits at random.
//!
//! A seed decides everything: configurations, memory, mixtures of requests,
//! sizes, the order of steps, and how the run ends. A failing seed is named in
//! the panic and replays alone: `EXS_SIM_SEED=<seed> cargo test iwarp::tests::sim`.

use std::collections::VecDeque;

use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, Key, Region, Segment};
use crate::rnic::{Disconnect, DisconnectCause, SendOp, Wc, WcOp, WcStatus};

const SEEDS: u64 = 2000;
/// Bytes of each memory; destinations are cut from them one after the other.
const MEMORY: usize = 250_000;
const FILLER: u8 = 0xee;

/// What one side has asked for and may expect.
struct Book {
    /// Read by the peer, and the source of what is sent: a fixed pattern.
    source: Segment,
    source_key: Key,
    /// Written by the peer's WRITEs and by our READs.
    sink: Segment,
    sink_key: Key,
    /// What the sink holds when all is done, and how much of it is given away.
    expect: Vec<u8>,
    used: usize,
    /// Send WRs: (wr_id, signalled).
    sends: VecDeque<(u64, bool)>,
    next_wr: u64,
    /// Receives in the order of posting: (wr_id, slot).
    receives: VecDeque<(u64, Vec<Segment>)>,
    /// Messages on their way to this side: (bytes, solicited, key to end).
    coming: VecDeque<(Vec<u8>, bool, Option<Key>)>,
    /// Receives that the peer may still use.
    credits: usize,
    /// Completions checked.
    seen: usize,
    failed: bool,
    sends_failed: bool,
    /// The wire was tampered with: contents are not to be trusted.
    tampered: bool,
    seed: u64,
}

fn filled(len: usize, seed: u64) -> Segment {
    let mut rng = Rng(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    Region::from_vec(bytes).segment(0, len).unwrap()
}

impl Book {
    fn new(side: &mut Side, seed: u64) -> Book {
        let source = filled(MEMORY, seed);
        let sink = segment(&vec![FILLER; MEMORY]);
        let source_key = side.window(&source, Access::REMOTE_READ);
        let sink_key = side.window(&sink, Access::REMOTE_WRITE);
        Book {
            source,
            source_key,
            sink,
            sink_key,
            expect: vec![FILLER; MEMORY],
            used: 0,
            sends: VecDeque::new(),
            next_wr: 1,
            receives: VecDeque::new(),
            coming: VecDeque::new(),
            credits: 0,
            seen: 0,
            failed: false,
            sends_failed: false,
            tampered: false,
            seed,
        }
    }

    /// A fresh part of the sink that shall hold `bytes`, with a gap after it.
    fn place(&mut self, bytes: &[u8]) -> Option<usize> {
        let at = self.used;
        if at + bytes.len() + 8 > MEMORY {
            return None;
        }
        self.used += bytes.len() + 8;
        self.expect[at..at + bytes.len()].copy_from_slice(bytes);
        Some(at)
    }

    /// Takes the last `place` back.
    fn unplace(&mut self, at: usize) {
        self.expect[at..self.used].fill(FILLER);
        self.used = at;
    }

    fn wr_id(&mut self, signaled: bool) -> u64 {
        let id = self.next_wr;
        self.next_wr += 1;
        self.sends.push_back((id, signaled));
        id
    }
}

struct Sim {
    pair: Pair,
    a: Book,
    b: Book,
    slot: usize,
    large: usize,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut rng = Rng(seed);
        let mut configs = [config(1), config(2)];
        for cfg in &mut configs {
            cfg.crc = rng.chance(3);
            cfg.ird = 1 + u32::try_from(rng.below(6)).unwrap();
            cfg.ord = 1 + u32::try_from(rng.below(6)).unwrap();
            cfg.max_send_wr = 1 + rng.below(20);
            cfg.uses_srq = rng.chance(3);
            cfg.mss = 100 + rng.below(9000);
        }
        configs[0].peer_to_peer = rng.chance(2);
        let mut pair = Pair::raw(configs[0], b"", rng.next());
        if rng.chance(2) {
            // As if one of the two were of another make.
            while pair.a.send(&mut rng, Bite::Whole) {}
            pair.a.wire[16] &= !0x08;
        }
        pair.bite = Bite::UpTo([1, 7, 100, 5_000, 70_000, 500_000][rng.below(6)]);
        pair.settle();
        for (cfg, side) in configs.iter().zip([&mut pair.a, &mut pair.b]) {
            side.srq = cfg.uses_srq.then(Shared::default);
        }
        pair.b.engine.accept(configs[1], b"").unwrap();
        pair.settle();
        pair.b.drain();
        pair.a.events.clear();
        pair.b.events.clear();
        // Bites of single bytes get small messages, or a seed takes seconds.
        let large = match pair.bite {
            Bite::UpTo(n) if n < 10 => 300,
            Bite::UpTo(n) if n < 1000 => 5_000,
            _ => 100_000,
        };
        let slot = [64, 2_000, 100_000][rng.below(3)].min(large);
        let (a, b) = (Book::new(&mut pair.a, seed ^ 1), Book::new(&mut pair.b, seed ^ 2));
        Sim { pair, a, b, slot, large }
    }

    /// The acting side with its book, and the peer's.
    fn sides(&mut self, first: bool) -> (&mut Rng, &mut Side, &mut Book, &mut Side, &mut Book) {
        let Pair { a, b, rng, .. } = &mut self.pair;
        if first {
            (rng, a, &mut self.a, b, &mut self.b)
        } else {
            (rng, b, &mut self.b, a, &mut self.a)
        }
    }

    fn size(rng: &mut Rng, most: usize) -> usize {
        match rng.below(6) {
            0 => 0,
            1 => most,
            2 => rng.below(most + 1),
            _ => rng.below(most.min(200) + 1),
        }
    }

    fn post_recv(&mut self, first: bool) {
        let slot = self.slot;
        let (rng, side, book, ..) = self.sides(first);
        let mut segs = Vec::new();
        let mut left = slot;
        for _ in 0..rng.below(3) {
            let n = rng.below(left + 1);
            segs.push(segment(&vec![FILLER; n]));
            left -= n;
        }
        segs.push(segment(&vec![FILLER; left]));
        let id = 1_000_000 + book.next_wr;
        book.next_wr += 1;
        let buf = recv(id, &segs);
        match &mut side.srq {
            Some(srq) if srq.0.len() < 8 => srq.0.push_back(buf),
            Some(_) => return,
            None => {
                if side.engine.post_recv(buf).is_err() {
                    return;
                }
            }
        }
        book.receives.push_back((id, segs));
        book.credits += 1;
    }

    /// Payload from the source memory in up to 3 segments, the first bytes
    /// perhaps inline; and what it is.
    fn payload(rng: &mut Rng, book: &Book, len: usize) -> (Vec<u8>, Vec<Segment>, Vec<u8>) {
        let at = rng.below(MEMORY - len);
        let bytes = contents(&book.source.slice(at, len).unwrap());
        let head = rng.below(len.min(MAX_INLINE) + 1) * rng.below(2);
        let mut cuts = [head, head + rng.below(len - head + 1), len];
        cuts.sort_unstable();
        let segs = cuts
            .windows(2)
            .map(|w| book.source.slice(at + w[0], w[1] - w[0]).unwrap())
            .collect();
        (bytes[..head].to_vec(), segs, bytes)
    }

    fn post_send(&mut self, first: bool) {
        let (slot, large) = (self.slot, self.large);
        let (rng, side, book, peer_side, peer) = self.sides(first);
        if side.engine.outstanding().0 >= 20 {
            return;
        }
        let kind = rng.below(3);
        let signaled = !rng.chance(3);
        let posted = match kind {
            0 => {
                // With an SRQ the peer may be out of buffers; else it must not be.
                if peer_side.srq.is_none() && peer.credits == 0 {
                    return;
                }
                let len = Sim::size(rng, slot);
                let (head, segs, bytes) = Sim::payload(rng, book, len);
                let solicited = rng.chance(2);
                let invalidate = rng.chance(4).then(|| {
                    peer_side.window(&segment(&[0; 4]), Access::REMOTE_READ)
                });
                let op = SendOp::Send { invalidate, solicited };
                let mut wr = wr(book.next_wr, op, &head, &segs);
                wr.signaled = signaled;
                let posted = side.engine.post_send(wr);
                if posted.is_ok() {
                    peer.coming.push_back((bytes, solicited, invalidate));
                    peer.credits = peer.credits.saturating_sub(1);
                }
                posted
            }
            1 => {
                let len = Sim::size(rng, large);
                let (head, segs, bytes) = Sim::payload(rng, book, len);
                let Some(at) = peer.place(&bytes) else { return };
                let raddr = peer.sink.addr() + at as u64;
                let op = SendOp::Write { raddr, rkey: peer.sink_key };
                let mut wr = wr(book.next_wr, op, &head, &segs);
                wr.signaled = signaled;
                let posted = side.engine.post_send(wr);
                if posted.is_err() {
                    peer.unplace(at);
                }
                posted
            }
            _ => {
                let len = Sim::size(rng, large);
                let from = rng.below(MEMORY - len);
                let bytes = contents(&peer.source.slice(from, len).unwrap());
                let Some(at) = book.place(&bytes) else { return };
                let sink = book.sink.slice(at, len).unwrap();
                let raddr = peer.source.addr() + from as u64;
                let mut wr =
                    read(book.next_wr, raddr, peer.source_key, &[sink], book.sink_key);
                wr.signaled = signaled;
                let posted = side.engine.post_send(wr);
                if posted.is_err() {
                    book.unplace(at);
                }
                posted
            }
        };
        match posted {
            Ok(()) => {
                book.wr_id(signaled);
            }
            Err(e) => assert!(
                matches!(
                    e,
                    crate::rnic::RnicError::QueueFull { .. } | crate::rnic::RnicError::State { .. }
                ),
                "{e}"
            ),
        }
    }

    /// Checks the completions that came since the last time.
    fn check(&mut self, first: bool) {
        let (_, side, book, ..) = self.sides(first);
        while let Some(wc) = side.wcs.get(book.seen).copied() {
            book.seen += 1;
            if wc.op == WcOp::Recv {
                check_recv(side, book, &wc);
            } else {
                check_send(book, &wc);
            }
            if wc.status != WcStatus::Success {
                book.failed = true;
            } else {
                assert!(!book.failed, "nothing succeeds after a failure: {wc:?}");
            }
        }
    }

    fn step(&mut self) {
        let first = self.pair.rng.chance(2);
        match self.pair.rng.below(24) {
            0 | 1 => self.post_recv(first),
            2 | 3 => self.post_send(first),
            4 => self.sides(first).1.engine.trim(),
            _ => {
                self.pair.step();
            }
        }
        self.check(true);
        self.check(false);
    }

    /// Runs until nothing moves; SRQs are filled up as needed.
    fn settle(&mut self) {
        loop {
            self.pair.settle();
            self.check(true);
            self.check(false);
            let (a, b) = (self.pair.a.stalled, self.pair.b.stalled);
            if !a && !b {
                return;
            }
            for (first, stalled) in [(true, a), (false, b)] {
                if stalled {
                    self.post_recv(first);
                }
            }
        }
    }

    /// As `settle`, for ends that may wait for each other for ever.
    fn settle_some(&mut self) {
        for _ in 0..20 {
            self.pair.settle();
            self.post_recv(true);
            self.post_recv(false);
        }
        self.check(true);
        self.check(false);
    }

    /// Memory holds what it should: all of it if the run ended well; else each
    /// byte is either what was to come or untouched.
    fn memory(&self, all: bool) {
        for book in [&self.a, &self.b] {
            let got = contents(&book.sink);
            let good = got
                .iter()
                .zip(&book.expect)
                .all(|(got, expect)| got == expect || (!all && *got == FILLER));
            assert!(good, "memory differs from what was written and read");
            let spare = &got[book.used.min(MEMORY)..];
            assert!(spare.iter().all(|b| *b == FILLER), "bytes outside of any destination");
        }
    }

    /// Everything posted has completed; nothing did twice.
    fn accounts(&self, flushed: bool) {
        for (side, book) in [(&self.pair.a, &self.a), (&self.pair.b, &self.b)] {
            assert_eq!(side.engine.outstanding().0, 0, "sends outstanding");
            // What is left in the book succeeded silently.
            assert!(book.sends.iter().all(|(_, signaled)| !signaled), "{:?}", book.sends);
            if flushed {
                assert_eq!(side.engine.outstanding().1, 0, "receives outstanding");
                let rest = side.srq.as_ref().map_or(0, |srq| srq.0.len());
                assert_eq!(book.receives.len(), rest, "receives without completion");
            }
        }
    }
}

fn check_send(book: &mut Book, wc: &Wc) {
    // Completions come in the order of posting; those skipped were unsignalled
    // and must have succeeded.
    loop {
        let (id, signaled) = book.sends.pop_front().expect("a completion for each request");
        if id == wc.wr_id {
            book.sends_failed |= wc.status != WcStatus::Success;
            assert!(signaled || wc.status != WcStatus::Success, "unsignalled");
            return;
        }
        assert!(!signaled, "{id} was signalled, but {wc:?} came before it");
        assert!(!book.sends_failed, "{id} is lost");
    }
}

fn check_recv(side: &Side, book: &mut Book, wc: &Wc) {
    let (id, segs) = book.receives.pop_front().expect("a completion for each receive");
    assert_eq!(wc.wr_id, id, "receives complete in order");
    if wc.status != WcStatus::Success || book.tampered {
        return;
    }
    let (bytes, solicited, invalidate) = book.coming.pop_front().expect("a message was sent");
    assert_eq!(wc.byte_len, bytes.len() as u64);
    assert_eq!((wc.solicited, wc.invalidated), (solicited, invalidate));
    assert!(invalidate.is_none_or(|key| side.keys.get(key).is_none()));
    let slot: Vec<u8> = segs.iter().flat_map(contents).collect();
    assert!(slot[..bytes.len()] == bytes[..], "message differs");
    assert!(slot[bytes.len()..].iter().all(|b| *b == FILLER), "bytes after the message");
}

fn seeds(run: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("EXS_SIM_SEED") {
        return run(seed.parse().expect("EXS_SIM_SEED is a number"));
    }
    for seed in 0..SEEDS {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = outcome {
            eprintln!("seed {seed} failed: replay with EXS_SIM_SEED={seed}");
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
fn all_arrives_and_ends_in_order() {
    seeds(|seed| {
        let mut sim = Sim::new(seed);
        steps(&mut sim, 400);
        // So that the responder may speak, and what it holds can leave.
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
            let end = matches!(side.events[..], [Event::Disconnected(DisconnectCause::Orderly)]);
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
        // The peer's READs may come too late to be answered, which breaks the
        // connection; and if the initiator never spoke, the responder may not.
        let broken = |side: &Side| {
            matches!(side.events[..], [Event::Disconnected(DisconnectCause::Broken(_))])
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

/// Ends both sides, whatever state they are in, and checks the accounts.
fn wreck(sim: &mut Sim) {
    for side in [&mut sim.pair.a, &mut sim.pair.b] {
        side.engine.handle_broken(libc::ECONNRESET);
        side.engine.handle_broken(libc::ECONNRESET);
        side.drain();
        assert!(side.engine.closed());
        assert!(matches!(side.events[..], [Event::Disconnected(_)]), "{:?}", side.events);
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
        // The rest of what the peer sent is lost from some byte on; an end of
        // file follows, or an error.
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
        assert!(matches!(side.events[..], [Event::Disconnected(DisconnectCause::Aborted)]));
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
        // A key that was never issued, or bounds passed by one byte.
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
                [Event::Disconnected(
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
        // The sink is open for the peer's WRITEs and our READs' responses; the
        // source for the peer's READs.
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
                // Mostly near the front, where the next header is.
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
            assert!(spare == contents(&filled(MEMORY, book.seed)), "nobody may write there");
        }
    });
}
