//! The connections whose operations end in a queue of the program.
//!
//! If one connection has all operations in flight whose events go to the queue, a thread that waits here
//! waits for that connection, where it lives (`wait_for_one`). The queue notes the connection of the last
//! post, which most likely is that one, and the connection that a thread has attended from here. Both are
//! hints: the engine knows. It also notes whether threads wait for its events in other shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::poster::Poster;
use super::{QueueCore, QueueUse};
use crate::progress::WaitPolicy;
use crate::progress::engine::SockId;
use crate::progress::shards::Shard;
use crate::progress::waiter::Waiter;
use crate::sys::cold_path;

/// A connection, and the shard in which it lives.
pub(in crate::progress) type Connection = (Shard, SockId);

/// A connection, or none.
struct ConnectionCell(AtomicU64);

/// The bits of a socket's generation and index. The shard has the rest.
const GENERATION: u32 = 32;
const INDEX: u32 = 22;
/// No connection. The index of a connection is less than the largest one.
const NONE: u64 = u64::MAX;

impl Default for ConnectionCell {
    fn default() -> ConnectionCell {
        ConnectionCell(AtomicU64::new(NONE))
    }
}

impl ConnectionCell {
    #[inline]
    fn bits((shard, id): Connection) -> u64 {
        let index = u64::from(id.index);
        if index >= (1 << INDEX) - 1 {
            return NONE;
        }
        (shard.index() as u64) << (INDEX + GENERATION)
            | index << GENERATION
            | u64::from(id.generation)
    }

    fn of_bits(bits: u64) -> Connection {
        let low = |bits: u64, width: u32| u32::try_from(bits & ((1 << width) - 1)).unwrap_or(0);
        let generation = low(bits, GENERATION);
        let index = low(bits >> GENERATION, INDEX);
        let shard = usize::try_from(bits >> (INDEX + GENERATION)).unwrap_or(0);
        (Shard::at(shard), SockId { index, generation })
    }

    fn get(&self) -> Option<Connection> {
        let bits = self.0.load(Ordering::Relaxed);
        (bits != NONE).then(|| ConnectionCell::of_bits(bits))
    }

    #[inline]
    fn is(&self, connection: Connection) -> bool {
        let bits = ConnectionCell::bits(connection);
        bits != NONE && self.0.load(Ordering::Relaxed) == bits
    }

    #[inline]
    fn set(&self, connection: Connection) {
        let bits = ConnectionCell::bits(connection);
        // Most posts name the connection that the last one has named.
        if self.0.load(Ordering::Relaxed) != bits {
            self.0.store(bits, Ordering::Relaxed);
        }
    }

    /// Takes the connection out.
    #[inline]
    fn take(&self) -> Option<Connection> {
        let connection = self.get();
        if connection.is_some() {
            self.0.store(NONE, Ordering::Relaxed);
        }
        connection
    }
}

/// The threads that wait for an event of a queue in another shard than the queue's.
///
/// Such a thread first says that it is away, and then reads how many operations are in flight at the queue. A
/// thread that posts first books a place for the event, and then asks whether a thread is away. So either the one
/// sees the operation, or the other calls it back.
#[derive(Default)]
struct AwayThreads {
    threads: AtomicU32,
    /// How often they were called back.
    recalls: AtomicU32,
}

/// The connections whose operations end in a queue, as the threads that post and wait see them.
#[derive(Default)]
pub(super) struct QueueConnections {
    /// That of the last post.
    latest: ConnectionCell,
    /// The one that a thread which waits here attends.
    attended: ConnectionCell,
    away: AwayThreads,
    pub(super) poster: Poster,
}

/// The calling thread is away while this lives.
pub(in crate::progress) struct Away<'a> {
    threads: &'a AwayThreads,
    recalls: u32,
}

impl Away<'_> {
    /// Another thread wants this one in the queue's shard.
    pub(in crate::progress) fn is_called_back(&self) -> bool {
        self.threads.recalls.load(Ordering::SeqCst) != self.recalls
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.threads.threads.fetch_sub(1, Ordering::SeqCst);
    }
}

impl QueueCore {
    /// True if the queue is for the blocking calls of one thread, each of which waits for its own
    /// operation.
    #[inline]
    pub(crate) fn serves_calls(&self) -> bool {
        self.serves == QueueUse::Blocking
    }

    /// The calling thread is about to post an operation of this connection, whose event goes here. True: the
    /// caller must wake the threads that wait here, since some of them are away.
    #[inline]
    #[must_use]
    pub(in crate::progress) fn note_post(&self, connection: Connection) -> bool {
        self.connections.latest.set(connection);
        let away = &self.connections.away;
        let calls_back = away.threads.load(Ordering::SeqCst) > 0;
        if calls_back {
            cold_path();
            away.recalls.fetch_add(1, Ordering::SeqCst);
        }
        calls_back
    }

    /// True if a thread that waits here may sleep where no other thread can wake it for some milliseconds:
    /// no other thread is likely to bring about an event here.
    pub(in crate::progress) fn is_of_caller(&self) -> bool {
        self.serves_calls() || self.connections.poster.is_caller_alone()
    }

    /// The threads that wait here.
    pub(in crate::progress) fn waiters(&self) -> Vec<Arc<Waiter>> {
        self.lock().waiters.clone()
    }

    /// The calling thread is about to wait in another shard.
    pub(in crate::progress) fn go_away(&self) -> Away<'_> {
        let threads = &self.connections.away;
        let recalls = threads.recalls.load(Ordering::SeqCst);
        threads.threads.fetch_add(1, Ordering::SeqCst);
        Away { threads, recalls }
    }

    /// The connection that a thread which is about to wait here may attend. None also if the thread must
    /// poll, or the program waits for the queue's descriptor.
    pub(in crate::progress) fn attendable(&self) -> Option<Connection> {
        let policy = self.pace().policy();
        let may = self.serves == QueueUse::Program && policy != WaitPolicy::BusyPoll;
        self.connections.latest.get().filter(|_| may && !self.has_fd())
    }

    /// A thread that waits here attends this connection, and most likely comes back to it.
    pub(in crate::progress) fn note_attended(&self, connection: Connection) {
        self.connections.attended.set(connection);
    }

    /// The connection that a thread has attended from here last, and does not come back to.
    #[inline]
    pub(in crate::progress) fn take_attended(&self) -> Option<Connection> {
        self.connections.attended.take()
    }

    /// True if a thread that posts an operation of this connection then waits for its event, and attends
    /// the connection meanwhile.
    #[inline]
    pub(in crate::progress) fn attends(&self, connection: Connection) -> bool {
        self.serves_calls() || self.connections.attended.is(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_keeps_a_connection_of_any_shard() {
        let cell = ConnectionCell::default();
        assert_eq!(cell.get(), None);
        let most = SockId { index: (1 << INDEX) - 2, generation: u32::MAX };
        for connection in [
            (Shard::at(0), SockId { index: 0, generation: 0 }),
            (Shard::at(1), SockId { index: 7, generation: 9 }),
            (Shard::at(1023), most),
        ] {
            cell.set(connection);
            assert!(cell.is(connection) && cell.get() == Some(connection));
            assert!(!cell.is((Shard::at(2), connection.1)));
        }
        let beyond = (Shard::at(3), SockId { index: most.index + 1, generation: 1 });
        cell.set(beyond);
        assert!(!cell.is(beyond) && cell.get().is_none(), "there is no room for its name");
        cell.set((Shard::at(1), most));
        assert_eq!((cell.take(), cell.take()), (Some((Shard::at(1), most)), None));
    }
}
