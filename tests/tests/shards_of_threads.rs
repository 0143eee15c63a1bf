//! How many shards a process makes by itself, and which queues get one of their own.

use std::collections::HashSet;
use std::fs::read_dir;
use std::num::NonZero;
use std::thread::available_parallelism;

use exs::{EventQueue, Shard};
use exs_tests::harness::{Starved, Watchdog};

/// The shards for each processor that any queue gets.
const USUAL: usize = 4;
/// Threads with a queue each, beyond those that the usual shards are for.
const MORE: usize = 5;

/// The queue gets its shard in this call.
fn seated() -> (EventQueue, Shard) {
    let queue = EventQueue::new(8).unwrap();
    let shard = queue.shard();
    (queue, shard)
}

/// The first queue of another thread, and its shard.
fn seated_elsewhere() -> (EventQueue, Shard) {
    std::thread::scope(|scope| scope.spawn(seated).join().unwrap())
}

#[test]
fn the_first_queue_of_each_thread_has_a_shard_of_its_own() {
    let _dog = Watchdog::new("the_first_queue_of_each_thread_has_a_shard_of_its_own");
    if read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        exs_tests::skip::skip("the locked memory of the process limits its shards");
        return;
    }
    let usual = USUAL * available_parallelism().map_or(1, NonZero::get);
    let shards_of = |queues: &[(EventQueue, Shard)]| -> HashSet<Shard> {
        queues.iter().map(|(_, shard)| *shard).collect()
    };
    // One thread with many queues drives them all, so they share the usual shards.
    let of_one: Vec<_> = (0..usual + MORE).map(|_| seated()).collect();
    let shared = shards_of(&of_one);
    assert_eq!(shared.len(), usual, "{shared:?}");
    let of_others: Vec<_> = (0..MORE).map(|_| seated_elsewhere()).collect();
    let own = shards_of(&of_others);
    assert!(own.len() == MORE && own.is_disjoint(&shared), "{own:?}, {shared:?}");
    // A process that cannot have another shard has the usual ones: here it has one descriptor left,
    // which the queue takes.
    let starved = Starved::new(1);
    let (_queue, shard) = seated_elsewhere();
    assert!(shared.contains(&shard), "{shard:?}");
    assert_ne!(shard, of_one[0].1, "the first shard has the most queues");
    drop(starved);
    let (_queue, shard) = seated_elsewhere();
    assert!(!shared.contains(&shard) && !own.contains(&shard), "{shard:?}");
    // A shard without queues is taken again.
    drop(of_one);
    assert!(shared.contains(&seated_elsewhere().1));
}
