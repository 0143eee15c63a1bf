//! How many shards a process makes by itself, and which queues get one of their own.

use std::collections::HashSet;
use std::fs::read_dir;
use std::num::NonZero;
use std::sync::Barrier;
use std::thread::available_parallelism;

use exs::{EventQueue, Shard};
use exs_tests::harness::Watchdog;

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

#[test]
fn the_first_queue_of_each_thread_has_a_shard_of_its_own() {
    let _dog = Watchdog::new("the_first_queue_of_each_thread_has_a_shard_of_its_own");
    if read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        // The locked memory of the process limits its shards there.
        return;
    }
    let usual = USUAL * available_parallelism().map_or(1, NonZero::get);
    let threads = usual + MORE;
    let all_have_one = Barrier::new(threads);
    let shards: Vec<Shard> = std::thread::scope(|scope| {
        let begin = || {
            scope.spawn(|| {
                let (_queue, shard) = seated();
                all_have_one.wait();
                shard
            })
        };
        let threads: Vec<_> = (0..threads).map(|_| begin()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: HashSet<Shard> = shards.iter().copied().collect();
    assert_eq!(distinct.len(), threads, "{shards:?}");
    // One thread with as many queues drives them all, so they share the usual shards.
    let (queues, shards): (Vec<EventQueue>, HashSet<Shard>) =
        (0..threads).map(|_| seated()).unzip();
    assert_eq!((queues.len(), shards.len()), (threads, usual), "{shards:?}");
}
