//! Laps of a writer and a reader of one ring. Only the positions are simulated.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::consumer_index::ConsumerIndex;
use super::super::record::MAX_RECORD;
use super::super::ring::LINE;
use super::*;

/// A ring with a writer and a reader.
struct Pipe {
    tx: RingWriter,
    ours: Mem,
    theirs: Mem,
    /// Ends of unread records; for a skip, also the lap that it announces.
    records: VecDeque<(u64, Option<u64>)>,
    read_upto: u64,
    reported: u64,
    index: ConsumerIndex,
}

impl Pipe {
    fn new(side: usize) -> Pipe {
        let (a, b) = Mem::both([1, 2]);
        let (ours, theirs) = if side == 0 { (a, b) } else { (b, a) };
        let (tx, index) = (RingWriter::default(), ConsumerIndex::default());
        Pipe { tx, ours, theirs, records: VecDeque::new(), read_upto: 0, reported: 0, index }
    }

    fn send(&mut self, len: u64) -> bool {
        let Some(skip) = self.tx.skip_for(len, &self.ours) else { return false };
        if skip > 0 {
            assert_eq!(skip, self.ours.to_end(MemSide::Ours, self.tx.pos), "to the beginning");
            self.records.push_back((self.tx.pos + skip, Some(self.tx.window.len)));
        }
        let from = self.tx.pos + skip;
        self.tx.pos = from + len;
        assert!(self.tx.pos - self.reported <= RING, "nothing is written over");
        assert!(
            self.ours.is_first(from) || self.ours.to_end(MemSide::Ours, from) >= len,
            "one piece"
        );
        self.records.push_back((self.tx.pos, None));
        true
    }

    /// The reader takes a record, and reports it when it must.
    fn take(&mut self) -> bool {
        let Some((end, lap)) = self.records.pop_front() else { return false };
        self.read_upto = end;
        if self.read_upto - self.reported > self.index.max_unreported_after(lap) {
            self.reported = self.read_upto;
            self.theirs.set(Word::Consumed, self.reported);
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

    /// Sends messages one at a time; each is answered.
    fn converse(&mut self, messages: u32, len: u64) {
        for _ in 0..messages {
            assert!(self.send(len));
            self.take_all();
            self.reported = self.read_upto;
            self.theirs.set(Word::Consumed, self.reported);
        }
    }
}

#[test]
fn a_sender_that_waits_for_the_reader_gets_the_whole_ring() {
    for side in 0..2 {
        let mut pipe = Pipe::new(side);
        pipe.stream(2000, 1088);
        assert_eq!(pipe.tx.window.len, RING);
    }
}

#[test]
fn one_message_at_a_time_needs_a_short_lap() {
    for side in 0..2 {
        let mut pipe = Pipe::new(side);
        pipe.stream(2000, 1088);
        pipe.converse(10_000, 1088);
        assert_eq!(pipe.tx.window.len, MIN_LAP_ALONE);
    }
}

#[test]
fn connections_that_are_busy_together_share_the_budget() {
    let mut pipe = Pipe::new(0);
    pipe.stream(2000, 1088);
    for (busy, most) in [(2, 64 << 10), (4, 32 << 10), (8, MIN_LAP), (1000, MIN_LAP), (1, RING)] {
        pipe.tx.window.set_busy_links(busy);
        pipe.stream(4000, 1088);
        assert_eq!(pipe.tx.window.len, most, "{busy}");
        let at = RING - pipe.ours.to_end(MemSide::Ours, pipe.tx.pos);
        assert!(at <= most, "at {at} of {most}");
    }
}

#[test]
fn a_peer_with_an_impossible_index_gets_no_room() {
    let mut pipe = Pipe::new(0);
    pipe.stream(2000, 1088);
    pipe.theirs.set(Word::Consumed, pipe.tx.pos + 100 * RING);
    while pipe.send(1088) {}
    assert_eq!(pipe.tx.read_consumed(&pipe.ours), None);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None, // Miri has no directories.
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_reader_that_has_read_everything_leaves_room(
        side in 0usize..2,
        steps in proptest::collection::vec((0u8..8, 1u64..=MAX_RECORD / LINE, 1usize..40), 1..400),
    ) {
        let mut pipe = Pipe::new(side);
        for (step, lines, busy) in steps {
            match step {
                0 => pipe.tx.window.set_busy_links(busy),
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
