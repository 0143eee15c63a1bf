//! The queues on which a thread waits for its own calls.

use std::cell::RefCell;

use super::{EventQueue, Socket};
use crate::progress::{
    Error, QueueOptions, Shard, note_service, prepare_to_wait, shard_of_next_accept,
};

thread_local! {
    /// Queues of this thread's blocking calls, of any shard. More than one of a shard, as a call
    /// may happen inside another one. A signal handler must not call: that would not be sound in C
    /// either.
    static QUEUES: RefCell<Vec<EventQueue>> = const { RefCell::new(Vec::new()) };
}

/// A queue of this thread's, on which the thread can wait for an operation of the socket: in the
/// socket's home, so that no event crosses, or in the thread's if it has none yet. The descriptor
/// that a wait takes must be there before an operation holds borrowed memory.
pub(super) fn queue_for(socket: &Socket) -> Result<EventQueue, Error> {
    if socket.handle().is_connected() {
        note_service();
    }
    queue_in(socket.handle().shard())
}

/// A queue on which the thread can wait for an accept, and the home of the connection. A thread that
/// serves its connections waits where they live. So it leads the shard to which they come.
pub(super) fn queue_for_accept(listener: &Socket) -> Result<(EventQueue, Shard), Error> {
    let next = shard_of_next_accept();
    let queue = if next.serves { queue_in(next.home)? } else { queue_for(listener)? };
    Ok((queue, next.home))
}

/// A queue of this thread's in this shard.
fn queue_in(shard: Shard) -> Result<EventQueue, Error> {
    prepare_to_wait()?;
    let take = |queues: &RefCell<Vec<EventQueue>>| {
        let mut queues = queues.borrow_mut();
        let found = queues.iter().rposition(|queue| queue.shard() == shard)?;
        Some(queues.swap_remove(found))
    };
    // A thread that ends has no stack any more.
    match QUEUES.try_with(take) {
        Ok(Some(queue)) => Ok(queue),
        _ => {
            let options = QueueOptions::default().with_depth(4).with_shard(Some(shard));
            EventQueue::for_blocking_calls(&options)
        }
    }
}

/// Keeps the queue for the thread's next call, unless it still has an operation.
pub(super) fn keep(queue: EventQueue) {
    if queue.outstanding() == 0 {
        let _ = QUEUES.try_with(|q| q.borrow_mut().push(queue));
    }
}
