//! How a thread that waits at a queue of the program waits for one connection.
//!
//! If one connection has all operations in flight whose events go to the queue, the thread can wait as one that
//! blocks in a call, where the connection lives:
//!
//! - If the operations are receives, it attends the connection ([`attend`](super::attend)) where enough other
//!   threads block: it sleeps for that connection, and wakes no other thread. So a thread for each connection
//!   may have a queue of its own, too. Otherwise it leads, which is faster, as it can spin.
//! - If the connection lives in another shard than the queue, as one that came from a pool, the thread leads or
//!   attends there. In its own shard nothing would come, and a thread that leads two shards wakes for both.
//!
//! The thread may have to wake for other events that come to the queue. So it sleeps in a call that ends
//! when another thread rings its bell, or in a read for 10 ms at most if no other thread has posted operations
//! for this queue for long (`queue/poster.rs`). If another thread posts an operation whose event goes to the
//! queue, it calls back the threads that wait in other shards: the operation may be one of a connection in the
//! queue's shard.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::attend::Awaited;
use super::companions;
use super::context::Context;
use super::engine::SockId;
use super::pace::AT_HAND;
use super::queue::QueueCore;
use super::spin::NOBODY;
use super::wait::{WaitEnd, Waited};
use crate::sys::{HeldSignals, cold_path};

/// This many other threads that block on connections of one shard would wake each other in turn. Two threads
/// are faster if one of them leads, and spins.
const SHARING: u64 = 2;

impl Context {
    /// True if a thread that waits for a connection of this shard should attend it. `attends`: it attends
    /// one already, or has left it a moment ago.
    fn is_crowded(&self, attends: bool) -> bool {
        let others = self.blocked_threads().saturating_sub(u64::from(attends));
        others >= SHARING || self.others.fill_with(self.shard(), others)
    }

    /// Waits for an event at a queue of the program in this shard, as [`Context::wait_for_connection`], if one
    /// connection of this shard has all operations in flight there, and these are receives.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran while the thread slept.
    pub(super) fn wait_at_queue(
        &self,
        queue: &QueueCore,
        timeout: Option<Duration>,
        held: Option<&HeldSignals>,
    ) -> Result<Awaited, Error> {
        let here = |(shard, _): &(_, _)| *shard == self.shard();
        let Some((shard, id)) = queue.attendable().filter(here) else {
            return Ok(Awaited::CannotAttend);
        };
        if !self.is_crowded(queue.attends((shard, id)))
            || companions::dequeues_elsewhere(shard)
            || !self.look(|engine| engine.may_attend_at_queue(id, queue.outstanding()))
        {
            return Ok(Awaited::CannotAttend);
        }
        queue.note_attended((shard, id));
        self.attend_enlisted(queue, id, WaitEnd::at(timeout.map(|t| self.now() + t)), held)
    }

    /// The connection of another shard that most likely has all operations in flight at this queue of this
    /// shard, and its context.
    #[inline]
    pub(super) fn elsewhere(&self, queue: &QueueCore) -> Option<(&'static Arc<Context>, SockId)> {
        let (shard, id) = queue.attendable().filter(|(shard, _)| *shard != self.shard())?;
        if companions::dequeues_elsewhere(self.shard()) {
            return None;
        }
        shard.context().map(|home| (home, id))
    }

    /// Waits for an event at a queue of another shard, if this connection, which lives here, has all operations
    /// in flight there. None: the thread must wait in the queue's shard. `exact`: as in
    /// [`Context::wait`].
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran while the thread slept.
    pub(super) fn wait_away(
        &self,
        queue: &QueueCore,
        id: SockId,
        timeout: Option<Duration>,
        exact: bool,
    ) -> Result<Option<Waited>, Error> {
        // In this order: the look finds the operation of a thread that does not call back.
        let away = queue.go_away();
        let (alone, may_attend) = self.look(|engine| {
            let operations = queue.outstanding();
            (engine.has_operations(id, operations), engine.may_attend_at_queue(id, operations))
        });
        if !alone {
            return Ok(None);
        }
        self.reliance.note_wait();
        let limit = if exact { Some(AT_HAND) } else { timeout };
        // Only a thread in the queue's shard may take events past the queue.
        if self.first_peek(queue, 1, limit, NOBODY) != Waited::TooFew {
            return Ok(Some(Waited::There));
        }
        let held = exact.then(HeldSignals::new);
        let end = WaitEnd { deadline: timeout.map(|t| self.now() + t), away: Some(&away) };
        if may_attend && self.has_threads_attend() {
            queue.note_attended((self.shard(), id));
            match self.attend_enlisted(queue, id, end, held.as_ref())? {
                Awaited::There => return Ok(Some(Waited::There)),
                Awaited::TimedOut => return Ok(Some(Waited::TooFew)),
                Awaited::CannotAttend => {}
            }
        }
        Context::end_attendance(queue);
        self.wait_here(queue, 1, end, held.as_ref()).map(Some)
    }

    /// No thread that waits at this queue attends a connection from now on: the leader looks after it.
    #[inline]
    pub(super) fn end_attendance(queue: &QueueCore) {
        if let Some((shard, id)) = queue.take_attended()
            && let Some(home) = shard.context()
        {
            cold_path();
            home.call(|engine, _| engine.attendances().end_left(id));
        }
    }
}
