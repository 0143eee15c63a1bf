//! How many shards a process may have, and which of them a queue gets.

use super::options::{most_by_locked_memory, processors, shards_by_environment};

/// The most shards of a process.
pub(super) const MOST: usize = 1024;
/// The usual shards for each processor. Threads that block wait for their own connections, and more
/// shards make them slower: with 128 pairs of such threads on two processors, 128 shards cost 10 to
/// 30 %.
const USUAL_PER_PROCESSOR: usize = 4;
/// The shards for each processor, those beyond the usual ones included. A thread that loses its
/// processor while it leads, or while it has the engine's lock, holds up all threads of its shard. On
/// two processors, 64 threads with a queue each move 60 to 70 % more messages of 4 KiB in 64 shards than in
/// eight (`EXS_SHARDS=8 exs-perf cores --only own --threads 64`).
const MOST_PER_PROCESSOR: usize = 32;

/// How many shards a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardLimits {
    /// Those that all queues, and all threads without a queue, share.
    pub(super) usual: usize,
    /// These, and those that a queue gets only if it is the first one of its thread.
    pub(super) most: usize,
}

impl ShardLimits {
    /// All shards are usual ones.
    pub(super) const fn exactly(number: usize) -> ShardLimits {
        ShardLimits { usual: number, most: number }
    }

    /// `EXS_SHARDS`, or numbers for each processor.
    pub(super) fn of_process() -> ShardLimits {
        let by_processors = || ShardLimits::on(processors(), most_by_locked_memory());
        shards_by_environment().map_or_else(by_processors, ShardLimits::exactly)
    }

    /// `locked`: the shards whose memory the process may lock, where there are RDMA devices.
    fn on(processors: usize, locked: Option<usize>) -> ShardLimits {
        let most = locked.map_or(MOST, |locked| locked.clamp(1, MOST));
        let each = |per_processor: usize| per_processor.saturating_mul(processors).min(most);
        ShardLimits { usual: each(USUAL_PER_PROCESSOR), most: each(MOST_PER_PROCESSOR) }
    }

    /// The index of the shard for a queue: the usual one with the fewest queues. If all of these have
    /// some, a queue that is the first one of its thread gets a shard beyond them, as long as there is
    /// one. A thread with many queues drives all of their shards while it waits, so its other queues get
    /// usual ones. `queues`: the number of queues of a shard.
    pub(super) fn choose(self, first_of_thread: bool, queues: impl Fn(usize) -> u64) -> usize {
        let fewest = |shards: usize| (0..shards).min_by_key(|&shard| queues(shard)).unwrap_or(0);
        let usual = fewest(self.usual);
        if first_of_thread && queues(usual) > 0 { fewest(self.most) } else { usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_limited_by_processors_and_locked_memory() {
        let limits = |processors, locked| {
            let ShardLimits { usual, most } = ShardLimits::on(processors, locked);
            (usual, most)
        };
        assert_eq!(limits(2, None), (8, 64));
        assert_eq!(limits(64, None), (256, MOST));
        assert_eq!(limits(1_000, None), (MOST, MOST));
        assert_eq!(limits(2, Some(20)), (8, 20));
        assert_eq!(limits(2, Some(3)), (3, 3));
        assert_eq!(limits(2, Some(0)), (1, 1));
    }

    #[test]
    fn the_first_queue_of_a_thread_gets_a_shard_of_its_own() {
        let limits = ShardLimits { usual: 2, most: 4 };
        let mut queues = [0_u64; 4];
        let mut take = |first_of_thread| {
            let shard = limits.choose(first_of_thread, |shard| queues[shard]);
            queues[shard] += 1;
            shard
        };
        assert_eq!([true, false].map(&mut take), [0, 1], "the usual ones come first");
        assert_eq!([false, true, false, true].map(&mut take), [0, 2, 1, 3]);
        assert_eq!([true, true].map(&mut take), [2, 3], "where there are the fewest queues");
        assert_eq!(take(false), 0);
        let limits = ShardLimits::exactly(2);
        assert_eq!(limits.choose(true, |shard| [5, 4][shard]), 1);
    }
}
