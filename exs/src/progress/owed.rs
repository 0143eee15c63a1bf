//! Doorbells that a thread owes to shards other than that of its queue.
//!
//! A thread may post work on connections of another shard than that of its queue. A worker does so that
//! serves what another thread has accepted, if the connections are in a link group of that thread's shard. No
//! leader of that shard runs for the worker. If each of its doorbells rang at once, each answer would take a
//! system call, where a thread that dequeues in the shard sends the answers of a group together.
//!
//! So a thread that dequeues where its events go leaves such doorbells, notes the shard here, and rings them
//! when it next dequeues. If it does not come back, a turn rings them by the time of a sweep
//! (`Engine::leave_doorbells`). Of a thread that does not dequeue nothing says that it will.

use std::cell::{Cell, RefCell};

use super::context::Context;
use super::shards::Shard;

thread_local! {
    /// The shard of the queue at which the thread has dequeued last.
    static DEQUEUED: Cell<Option<Shard>> = const { Cell::new(None) };
    /// The shards with doorbells that the thread has left.
    static OWED: RefCell<Vec<Shard>> = const { RefCell::new(Vec::new()) };
}

/// True if the calling thread has dequeued in this shard last, so that it most likely comes back. A program
/// that waits for the descriptor of a queue there comes back when there is an event, and not before.
pub(super) fn comes_back_to(queue: Shard) -> bool {
    DEQUEUED.get() == Some(queue) && !queue.context().is_some_and(|context| context.is_armed())
}

/// The calling thread has left doorbells in this shard.
pub(super) fn note(shard: Shard) {
    // A thread that ends has no locals any more, and dequeues no more.
    let _ = OWED.try_with(|owed| {
        let mut owed = owed.borrow_mut();
        if !owed.contains(&shard) {
            owed.push(shard);
        }
    });
}

/// The calling thread dequeues in this shard: it rings what it has left in others.
#[inline]
pub(super) fn ring(dequeues: Shard) {
    DEQUEUED.set(Some(dequeues));
    while let Some(context) = next().and_then(Shard::context) {
        ring_in(context);
    }
}

/// Takes the next shard with doorbells of the calling thread.
fn next() -> Option<Shard> {
    OWED.try_with(|owed| owed.borrow_mut().pop()).ok().flatten()
}

#[cold]
fn ring_in(context: &Context) {
    // A leader may have rung them in the meantime.
    if context.outlook.get().lazy() {
        context.turn(None, false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_owes_a_shard_once() {
        let [here, there, elsewhere] = [0, 1, 2].map(Shard::at);
        assert!(!comes_back_to(here), "it has not dequeued");
        DEQUEUED.set(Some(here));
        assert!(comes_back_to(here) && !comes_back_to(there));
        for shard in [there, elsewhere, there] {
            note(shard);
        }
        assert_eq!([next(), next(), next()], [Some(elsewhere), Some(there), None]);
    }
}
