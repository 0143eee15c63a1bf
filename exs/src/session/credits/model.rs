//! Every order of events of a small world: two sides' [`Credits`], and the messages between them.
//!
//! Each side has a few data messages to send, posts further receives at any time, and retires them
//! at any later time. The search asserts that each credit is at one place at any time, that no
//! message meets no receive, and that no side waits for ever.

use std::collections::{HashSet, VecDeque};

use super::{Credits, Level};

/// Receives of a side at first, and those that come and go.
const USUAL: u16 = 4;
const EXTRA: u16 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    returned: u16,
    /// Messages that the sender asks for.
    wants: u16,
}

/// How far a side's extra receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Extra {
    Never,
    There,
    /// The request is to be sent.
    Due,
    Asked,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    credits: Credits,
    /// Data messages that are still to be sent.
    data: u8,
    extra: Extra,
    /// On their way to this side.
    inbound: VecDeque<Frame>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World([End; 2]);

impl World {
    fn new(data: u8) -> World {
        let end = End {
            credits: Credits::new(USUAL, USUAL, USUAL + EXTRA),
            data,
            extra: Extra::Never,
            inbound: VecDeque::new(),
        };
        World([end.clone(), end])
    }

    fn say(&mut self, side: usize, wants: u16) {
        let credits = &mut self.0[side].credits;
        let returned = credits.take_owed();
        credits.spend();
        self.0[1 - side].inbound.push_back(Frame { returned, wants });
    }

    /// What may happen next. `moves`: some of it is no decision of a side's.
    fn next(&self, moves: &mut bool) -> Vec<World> {
        let mut all = Vec::new();
        for side in 0..2 {
            let mut then = |moves_on: bool, act: &dyn Fn(&mut World)| {
                let mut world = self.clone();
                act(&mut world);
                *moves |= moves_on;
                all.push(world);
            };
            let End { credits, data, extra, inbound } = &self.0[side];
            if *data > 0 && credits.may(Level::Data) {
                then(true, &|w| {
                    w.0[side].data -= 1;
                    w.say(side, 0);
                });
            }
            if credits.must_return() && credits.may(Level::Return) {
                then(true, &|w| w.say(side, 0));
            }
            if credits.must_use() && credits.may(Level::Data) {
                then(true, &|w| w.say(side, 0));
            }
            if *extra == Extra::Due && credits.may(Level::Control) {
                then(true, &|w| {
                    w.0[side].extra = Extra::Asked;
                    // As many as use up all receives, in whatever order they lie.
                    w.say(side, USUAL + EXTRA);
                });
            }
            if *extra == Extra::Never {
                then(false, &|w| {
                    w.0[side].credits.grow(EXTRA);
                    w.0[side].extra = Extra::There;
                });
            }
            if *extra == Extra::There {
                then(false, &|w| {
                    w.0[side].credits.retire(EXTRA);
                    w.0[side].extra = Extra::Due;
                });
            }
            if let Some(frame) = inbound.front().copied() {
                then(true, &|w| {
                    let end = &mut w.0[side];
                    end.inbound.pop_front();
                    end.credits.handle_received().expect("a message meets no receive");
                    end.credits.handle_returned(frame.returned).expect("too many credits");
                    if frame.wants > 0 {
                        end.credits.ask_to_use(frame.wants.into()).unwrap();
                    }
                });
            }
        }
        all
    }

    fn check(&self) {
        for (here, there) in [(&self.0[0], &self.0[1]), (&self.0[1], &self.0[0])] {
            let (ours, theirs) = (&here.credits, &there.credits);
            let returned: u16 = there.inbound.iter().map(|f| f.returned).sum();
            let coming = u16::try_from(here.inbound.len()).unwrap();
            assert_eq!(
                ours.granted,
                theirs.avail + returned + coming,
                "a credit is lost: {self:?}"
            );
            assert_eq!(ours.ours, ours.granted + ours.owed, "{self:?}");
            assert!(ours.ours >= USUAL, "{self:?}");
        }
    }
}

#[test]
fn credits_come_and_go_in_every_order() {
    let mut seen = HashSet::from([World::new(3)]);
    let mut left: Vec<World> = seen.iter().cloned().collect();
    let (mut ends, mut both) = (0, 0);
    while let Some(world) = left.pop() {
        world.check();
        let mut moves = false;
        let next = world.next(&mut moves);
        if !moves {
            ends += 1;
            for end in &world.0 {
                assert!(end.data == 0 && !end.credits.must_use(), "stuck: {world:?}");
                assert!(end.credits.has_retired() && end.extra != Extra::Due, "stuck: {world:?}");
                let extra = if end.extra == Extra::There { EXTRA } else { 0 };
                assert_eq!(end.credits.ours(), USUAL + extra, "{world:?}");
            }
        }
        both += u64::from(world.0.iter().all(|end| end.extra == Extra::Asked));
        for world in next {
            if seen.insert(world.clone()) {
                left.push(world);
            }
        }
    }
    println!("{} states, {ends} ends, {both} with both sides shrinking or done", seen.len());
    assert!(ends > 0 && both > 0);
}
