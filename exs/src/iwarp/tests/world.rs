//! The records of a seeded run: requests, memories, messages; and the checks of the invariants.

use std::collections::VecDeque;

use super::atomics::{atomic, value, words};
use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, AtomicOp, Key, Region, Segment};
use crate::rnic::{RnicError, SendOp, Wc, WcOp, WcStatus};

type Posted = Result<(), RnicError>;

/// Bytes of each memory. Destinations are cut from them one after the other.
pub(super) const MEMORY: usize = 250_000;
pub(super) const FILLER: u8 = 0xee;
/// Most additions of one side.
const ADDITIONS: usize = 500;

/// The requests of one side, and its expectations.
pub(super) struct Book {
    /// The source of sends and of the peer's READs: a fixed pattern.
    pub(super) source: Segment,
    pub(super) source_key: Key,
    /// The target of the peer's WRITEs and of our READs.
    pub(super) sink: Segment,
    pub(super) sink_key: Key,
    /// The content that the sink must have at the end, and how much of it is in use.
    pub(super) expect: Vec<u8>,
    pub(super) used: usize,
    /// A counter to which the peer adds 1 at a time.
    pub(super) counter: Segment,
    counter_key: Key,
    /// The old values that our additions to the peer's counter bring, in order, and their number.
    olds: Segment,
    added: usize,
    /// Send WRs: (wr_id, signalled).
    pub(super) sends: VecDeque<(u64, bool)>,
    pub(super) next_wr: u64,
    /// Receives in the order of posting: (wr_id, slot).
    pub(super) receives: VecDeque<(u64, Vec<Segment>)>,
    /// Messages on their way to this side: (bytes, solicited, key to invalidate).
    pub(super) coming: VecDeque<(Vec<u8>, bool, Option<Key>)>,
    /// Receives that the peer may still use.
    pub(super) credits: usize,
    /// Completions checked.
    pub(super) seen: usize,
    pub(super) failed: bool,
    pub(super) sends_failed: bool,
    /// The run damaged the wire, so contents do not count.
    pub(super) tampered: bool,
    pub(super) seed: u64,
}

pub(super) fn filled(len: usize, seed: u64) -> Segment {
    let mut rng = Rng(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    Region::from_vec(bytes).segment(0, len).unwrap()
}

impl Book {
    pub(super) fn new(side: &mut Side, seed: u64) -> Book {
        let source = filled(MEMORY, seed);
        let sink = segment(&vec![FILLER; MEMORY]);
        let source_key = side.window(&source, Access::REMOTE_READ);
        let sink_key = side.window(&sink, Access::REMOTE_WRITE);
        let counter = words(1);
        let counter_key = side.window(&counter, Access::REMOTE_ATOMIC);
        Book {
            counter,
            counter_key,
            olds: filled(8 * ADDITIONS, 0),
            added: 0,
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

    /// Takes a fresh part of the sink, which must hold `bytes` at the end, with a gap behind it.
    fn place(&mut self, bytes: &[u8]) -> Option<usize> {
        let at = self.used;
        if at + bytes.len() + 8 > MEMORY {
            return None;
        }
        self.used += bytes.len() + 8;
        self.expect[at..at + bytes.len()].copy_from_slice(bytes);
        Some(at)
    }

    /// Gives back the last `place`.
    fn unplace(&mut self, at: usize) {
        self.expect[at..self.used].fill(FILLER);
        self.used = at;
    }

    pub(super) fn wr_id(&mut self, signaled: bool) -> u64 {
        let id = self.next_wr;
        self.next_wr += 1;
        self.sends.push_back((id, signaled));
        id
    }
}

pub(super) struct Sim {
    pub(super) pair: Pair,
    pub(super) a: Book,
    pub(super) b: Book,
    pub(super) slot: usize,
    pub(super) large: usize,
}

impl Sim {
    pub(super) fn new(seed: u64) -> Sim {
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
        // With bites of single bytes messages are small, or a seed would take seconds.
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
    pub(super) fn sides(
        &mut self,
        first: bool,
    ) -> (&mut Rng, &mut Side, &mut Book, &mut Side, &mut Book) {
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

    pub(super) fn post_recv(&mut self, first: bool) {
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

    /// Returns a payload from the source memory in up to 3 segments, with its first bytes perhaps
    /// inline, and its content.
    fn payload(rng: &mut Rng, book: &Book, len: usize) -> (Vec<u8>, Vec<Segment>, Vec<u8>) {
        let at = rng.below(MEMORY - len);
        let bytes = contents(&book.source.slice(at, len).unwrap());
        let head = rng.below(len.min(MAX_INLINE) + 1) * rng.below(2);
        let mut cuts = [head, head + rng.below(len - head + 1), len];
        cuts.sort_unstable();
        let segs =
            cuts.windows(2).map(|w| book.source.slice(at + w[0], w[1] - w[0]).unwrap()).collect();
        (bytes[..head].to_vec(), segs, bytes)
    }

    fn post_send(&mut self, first: bool) {
        let kind = self.pair.rng.below(4);
        let (_, side, ..) = self.sides(first);
        if side.engine.outstanding().0 >= 20 {
            return;
        }
        let posted = match kind {
            0 => self.post_message(first),
            1 => self.post_write(first),
            2 => self.post_addition(first),
            _ => self.post_read(first),
        };
        let full =
            |e: &RnicError| matches!(e, RnicError::QueueFull { .. } | RnicError::State { .. });
        let refused = posted.and_then(Result::err);
        assert!(refused.as_ref().is_none_or(full), "{refused:?}");
    }

    /// Posts with a new number, signalled or not.
    fn post(rng: &mut Rng, side: &mut Side, book: &mut Book, mut wr: TxWr) -> Posted {
        wr.wr_id = book.next_wr;
        wr.signaled = !rng.chance(3);
        let signaled = wr.signaled;
        side.engine.post_send(wr).inspect(|()| {
            book.wr_id(signaled);
        })
    }

    fn post_message(&mut self, first: bool) -> Option<Posted> {
        let slot = self.slot;
        let (rng, side, book, peer_side, peer) = self.sides(first);
        // With an SRQ the peer may run out of buffers; without one it must not.
        if peer_side.srq.is_none() && peer.credits == 0 {
            return None;
        }
        let len = Sim::size(rng, slot);
        let (head, segs, bytes) = Sim::payload(rng, book, len);
        let solicited = rng.chance(2);
        let invalidate =
            rng.chance(4).then(|| peer_side.window(&segment(&[0; 4]), Access::REMOTE_READ));
        let op = SendOp::Send { invalidate, solicited };
        let posted = Sim::post(rng, side, book, wr(0, op, &head, &segs));
        if posted.is_ok() {
            peer.coming.push_back((bytes, solicited, invalidate));
            peer.credits = peer.credits.saturating_sub(1);
        }
        Some(posted)
    }

    fn post_write(&mut self, first: bool) -> Option<Posted> {
        let large = self.large;
        let (rng, side, book, _, peer) = self.sides(first);
        let len = Sim::size(rng, large);
        let (head, segs, bytes) = Sim::payload(rng, book, len);
        let at = peer.place(&bytes)?;
        let op = SendOp::Write { raddr: peer.sink.addr() + at as u64, rkey: peer.sink_key };
        let posted = Sim::post(rng, side, book, wr(0, op, &head, &segs));
        if posted.is_err() {
            peer.unplace(at);
        }
        Some(posted)
    }

    fn post_read(&mut self, first: bool) -> Option<Posted> {
        let large = self.large;
        let (rng, side, book, _, peer) = self.sides(first);
        let len = Sim::size(rng, large);
        let from = rng.below(MEMORY - len);
        let at = book.place(&contents(&peer.source.slice(from, len).unwrap()))?;
        let sink = book.sink.slice(at, len).unwrap();
        let raddr = peer.source.addr() + from as u64;
        let wr = read(0, raddr, peer.source_key, &[sink], book.sink_key);
        let posted = Sim::post(rng, side, book, wr);
        if posted.is_err() {
            book.unplace(at);
        }
        Some(posted)
    }

    fn post_addition(&mut self, first: bool) -> Option<Posted> {
        let (rng, side, book, _, peer) = self.sides(first);
        if book.added == ADDITIONS {
            return None;
        }
        let old = book.olds.slice(8 * book.added, 8).unwrap();
        let (raddr, rkey) = (peer.counter.addr(), peer.counter_key);
        let wr = atomic(0, AtomicOp::FetchAdd(1), raddr, rkey, &old);
        let posted = Sim::post(rng, side, book, wr);
        book.added += usize::from(posted.is_ok());
        Some(posted)
    }

    /// Checks the counters: each addition was done once, in order, and all of them if `all`.
    fn counters(&self, all: bool) {
        for (book, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            let sum = usize::try_from(value(&peer.counter, 0)).unwrap();
            assert!(sum <= book.added && (!all || sum == book.added), "{sum} of {}", book.added);
            let untouched = filled(8 * ADDITIONS, 0);
            for i in 0..ADDITIONS {
                let word = |of: &Segment| contents(&of.slice(8 * i, 8).unwrap());
                let done = word(&book.olds) == (i as u64).to_ne_bytes();
                assert!(done || word(&book.olds) == word(&untouched), "old value {i}");
                assert!(if all { done == (i < book.added) } else { !done || i < sum }, "{i}");
            }
        }
    }

    /// Checks the completions that came since the last time.
    pub(super) fn check(&mut self, first: bool) {
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

    pub(super) fn step(&mut self) {
        let first = self.pair.rng.chance(2);
        match self.pair.rng.below(24) {
            0 | 1 => self.post_recv(first),
            2 | 3 => self.post_send(first),
            4 => self.sides(first).1.engine.trim(),
            5 => self.sides(first).1.spill(),
            _ => {
                self.pair.step();
            }
        }
        self.check(true);
        self.check(false);
    }

    /// Runs until nothing moves, and fills SRQs as needed.
    pub(super) fn settle(&mut self) {
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
    pub(super) fn settle_some(&mut self) {
        for _ in 0..20 {
            self.pair.settle();
            self.post_recv(true);
            self.post_recv(false);
        }
        self.check(true);
        self.check(false);
    }

    /// Checks the memory. If the run ended well, all of it has its final content. Otherwise each
    /// byte has its final or its first value.
    pub(super) fn memory(&self, all: bool) {
        self.counters(all);
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

    /// Checks that everything posted has completed, and nothing twice.
    pub(super) fn accounts(&self, flushed: bool) {
        for (side, book) in [(&self.pair.a, &self.a), (&self.pair.b, &self.b)] {
            assert_eq!(side.engine.outstanding().0, 0, "sends outstanding");
            // The rest in the book succeeded without a completion.
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
    // Completions come in the order of posting. Those skipped were unsignalled and must have
    // succeeded.
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
