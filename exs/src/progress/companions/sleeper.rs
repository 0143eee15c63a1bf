//! A companion leaves the lead to a program that waits for a descriptor.

use super::*;
use crate::progress::devices::Devices;
use crate::progress::drive::Driven;
use crate::progress::edge_loop::EdgeLoop;
use crate::progress::options::QueueOptions;
use crate::progress::queue::QueueCore;

/// A dequeue that does not wait, of a program that waits for the queue's descriptor.
fn dequeue(context: &Context, queue: &QueueCore) -> Driven {
    let driven = context.drive_once(queue, 1);
    assert!(queue.is_empty(), "there is no operation");
    driven
}

/// A program that waits for the descriptor of a queue in a shard that a companion leads. The program
/// has asked for the lead, has seen the wake-up of the companion, and sleeps again.
fn asleep(shard: Shard) -> (EdgeLoop, Companions) {
    // A shard of the test's own, in which no other thread dequeues.
    let context = Context::in_shard(shard, Devices::of_host()).unwrap();
    let context: &Arc<Context> = Box::leak(Box::new(context));
    let queue = Box::leak(Box::new(QueueCore::new(&QueueOptions::default()).unwrap()));
    let mut program = EdgeLoop::new(&context.program_fd(queue));
    let mut companions = Companions(vec![Companion { context, reactor: None }]);
    while companions.0[0].reactor.is_none() {
        // The background thread leads if no thread has come for a tick. A dequeue asks it to leave.
        dequeue(context, queue);
        companions.turn(false, None).unwrap();
    }
    loop {
        while program.was_told() {}
        assert_eq!(dequeue(context, queue), Driven::Asleep, "the companion leads");
        // The first dequeue asks for the lead, which wakes the companion: the descriptor is readable.
        if !program.was_told() {
            break;
        }
    }
    assert!(context.lead.must_leave(), "the program has asked for the lead");
    (program, companions)
}

/// The companion may have taken from the reactor what made the descriptor readable, without having
/// looked for what came after. The kernel reports that change to the program once. So the companion
/// tells the program that has asked for the lead.
#[test]
fn a_companion_that_leaves_tells_the_program_that_has_asked_for_the_lead() {
    let (mut program, mut companions) = asleep(Shard::at(1002));
    companions.turn(false, None).unwrap();
    assert!(companions.0[0].reactor.is_none(), "the companion has left");
    assert!(program.was_told(), "the program sleeps for ever");
}

/// The same, when the thread ends its wait for another reason.
#[test]
fn a_companion_that_ends_its_wait_tells_the_program_too() {
    let (mut program, companions) = asleep(Shard::at(1003));
    drop(companions);
    assert!(program.was_told(), "the program sleeps for ever");
}
