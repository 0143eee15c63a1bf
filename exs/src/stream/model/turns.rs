//! How soon a stream turns direct whose first data cross the first ADVERTs.

use super::tests::plan;
use super::{Event, Fwd, MAX_MISSES, Plan, RecvState, SendState, World, some};

const RING: u32 = 64;
const LEN: u32 = 4;
const COUNT: usize = 100;

/// Bytes that go by the ring within a host, where the program keeps one send on its way and
/// two receives posted, and a message takes as long as the next send; no wait misses.
fn by_ring(max_misses: u32) -> u32 {
    let plan = Plan { max_misses, ..plan(RING, 0, LEN, &[LEN; COUNT], &[some(LEN); COUNT]) };
    let mut world = World::new(&plan);
    world.tx.set_near(true);
    let mut indirect = 0;
    let mut apply = |world: &mut World, event| {
        let sent = world.sent;
        world.apply(&plan, event).unwrap();
        if let Some(Fwd::Data { direct: false, len, .. }) = world.fwd.back()
            && world.sent > sent
        {
            indirect += len;
        }
    };
    let (mut sends, mut recvs) = (0, 0);
    while world.recvs.iter().any(|r| *r != RecvState::Ended) {
        if sends < COUNT && world.sends[..sends].iter().all(|s| *s == SendState::Ended) {
            apply(&mut world, Event::PostSend(u16::try_from(sends).unwrap()));
            sends += 1;
        }
        // The messages on their way now arrive after those that this round adds.
        let (there, back) = (world.fwd.len(), world.back.len());
        if world.tx.wants_transfer() {
            apply(&mut world, Event::Transfer);
        }
        while !world.local.is_empty() {
            apply(&mut world, Event::Local);
        }
        // The first receives are posted when the first bytes are on their way.
        while world.sent > 0 && recvs < COUNT && world.rx.pending() < 2 {
            apply(&mut world, Event::PostRecv(u16::try_from(recvs).unwrap()));
            recvs += 1;
        }
        if there > 0 {
            apply(&mut world, Event::ToReceiver);
        }
        if back > 0 {
            apply(&mut world, Event::ToSender);
        }
    }
    indirect
}

#[test]
fn a_stream_that_begins_by_the_ring_turns_direct_at_once() {
    let held_back = by_ring(1);
    assert!(held_back >= RING, "{held_back} bytes by the ring");
    let paused = by_ring(MAX_MISSES);
    assert!(paused <= 3 * LEN, "{paused} bytes by the ring, {held_back} where it is held back");
}
