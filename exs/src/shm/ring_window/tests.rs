//! Laps: by a writer and a reader of one ring, of which only the positions are simulated.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::record::MAX_RECORD;
use super::super::ring::LINE;
use super::super::tell::Told;
use super::*;

/// A ring with a writer and a reader.
struct Pipe {
    tx: Tx,
    ours: Mem,
    theirs: Mem,
    /// Ends of records that were not taken, and the lap that a skip tells of.
    records: VecDeque<(u64, Option<u64>)>,
    taken: u64,
    told: u64,
    pace: Told,
}

impl Pipe {
    fn new(side: usize) -> Pipe {
        let (a, b) = Mem::both([1, 2]);
        let (ours, theirs) = if side == 0 { (a, b) } else { (b, a) };
        let (tx, pace) = (Tx::default(), Told::default());
        Pipe { tx, ours, theirs, records: VecDeque::new(), taken: 0, told: 0, pace }
    }

    fn send(&mut self, len: u64) -> bool {
        let Some(skip) = self.tx.room(len, &self.ours) else { return false };
        if skip > 0 {
            assert_eq!(skip, self.ours.to_end(Whose::Ours, self.tx.pos), "to the beginning");
            self.records.push_back((self.tx.pos + skip, Some(self.tx.lap.len)));
        }
        let from = self.tx.pos + skip;
        self.tx.pos = from + len;
        assert!(self.tx.pos - self.told <= RING, "nothing is written over");
        assert!(
            self.ours.is_first(from) || self.ours.to_end(Whose::Ours, from) >= len,
            "one piece"
        );
        self.records.push_back((self.tx.pos, None));
        true
    }

    /// The reader takes a record; it tells of it when it must.
    fn take(&mut self) -> bool {
        let Some((end, lap)) = self.records.pop_front() else { return false };
        self.taken = end;
        if self.taken - self.told > self.pace.untold_after(lap) {
            self.told = self.taken;
            self.theirs.set(Word::Consumed, self.told);
        }
        true
    }

    fn take_all(&mut self) {
        while self.take() {}
    }

    /// A stream through a ring that is always full.
    fn stream(&mut self, records: u32, len: u64) {
        for _ in 0..records {
            while !self.send(len) {
                assert!(self.take(), "room for the first");
            }
        }
    }

    /// Messages one at a time, each answered.
    fn converse(&mut self, messages: u32, len: u64) {
        for _ in 0..messages {
            assert!(self.send(len));
            self.take_all();
            self.told = self.taken;
            self.theirs.set(Word::Consumed, self.told);
        }
    }
}

#[test]
fn who_waits_for_the_reader_gets_all_of_the_ring() {
    for side in 0..2 {
        let mut pipe = Pipe::new(side);
        pipe.stream(2000, 1088);
        assert_eq!(pipe.tx.lap.len, RING);
    }
}

#[test]
fn one_message_at_a_time_needs_a_short_lap() {
    for side in 0..2 {
        let mut pipe = Pipe::new(side);
        pipe.stream(2000, 1088);
        pipe.converse(10_000, 1088);
        assert_eq!(pipe.tx.lap.len, LEAST);
    }
}

#[test]
fn those_that_are_busy_together_share() {
    let mut pipe = Pipe::new(0);
    pipe.stream(2000, 1088);
    for (busy, most) in
        [(2, 64 << 10), (4, 32 << 10), (8, LEAST_OF_ALL), (1000, LEAST_OF_ALL), (1, RING)]
    {
        pipe.tx.lap.share(busy);
        pipe.stream(4000, 1088);
        assert_eq!(pipe.tx.lap.len, most, "{busy}");
        let at = RING - pipe.ours.to_end(Whose::Ours, pipe.tx.pos);
        assert!(at <= most, "at {at} of {most}");
    }
}

#[test]
fn a_peer_that_says_nonsense_gets_no_room() {
    let mut pipe = Pipe::new(0);
    pipe.stream(2000, 1088);
    pipe.theirs.set(Word::Consumed, pipe.tx.pos + 100 * RING);
    while pipe.send(1088) {}
    assert_eq!(pipe.tx.catch_up(&pipe.ours), None);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None, // (Miri has no directories.)
        ..ProptestConfig::default()
    })]
    #[test]
    fn who_has_taken_all_has_made_room(
        side in 0usize..2,
        deeds in proptest::collection::vec((0u8..8, 1u64..=MAX_RECORD / LINE, 1usize..40), 1..400),
    ) {
        let mut pipe = Pipe::new(side);
        for (deed, lines, busy) in deeds {
            match deed {
                0 => pipe.tx.lap.share(busy),
                1 => (0..busy).for_each(|_| _ = pipe.take()),
                2 => pipe.stream(100, lines * LINE),
                3 => {
                    pipe.take_all();
                    prop_assert!(pipe.send(lines * LINE), "{lines} lines");
                }
                _ => _ = pipe.send(lines * LINE),
            }
        }
        pipe.take_all();
        prop_assert!(pipe.send(MAX_RECORD));
    }
}
