//! How a thread that waits at a queue of the program attends a connection.
//!
//! If one connection has all operations in flight whose events go to the queue, the thread does as one
//! that blocks in a call ([`attend`](super::attend)): it sleeps for that connection, and wakes no other
//! thread. So a thread for each connection may have a queue of its own, too. It does so only where enough
//! other threads block. Otherwise it leads, which is faster, as it can spin.
//!
//! The thread may have to wake for other events that come to the queue. So it sleeps in a call that ends
//! when another thread rings its bell, and never in a read.

use std::time::Duration;

use super::Error;
use super::attend::Awaited;
use super::companions::Companions;
use super::context::Context;
use super::queue::QueueCore;
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

    /// Waits for an event at a queue of the program, as [`Context::wait_for_connection`], if one
    /// connection has all operations in flight there, and these are receives.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran while the thread slept.
    pub(super) fn wait_at_queue(
        &self,
        queue: &QueueCore,
        timeout: Option<Duration>,
        held: Option<&HeldSignals>,
    ) -> Result<Awaited, Error> {
        // The connection may live in another shard than the queue.
        let Some((shard, id)) = queue.attendable() else { return Ok(Awaited::CannotAttend) };
        let Some(home) = shard.context() else { return Ok(Awaited::CannotAttend) };
        if !home.is_crowded(queue.attends((shard, id)))
            || !Companions::of_thread(self.shard()).are_only(shard)
            || !home.look(|engine| engine.may_attend_at_queue(id, queue.outstanding()))
        {
            return Ok(Awaited::CannotAttend);
        }
        queue.note_attended((shard, id));
        home.attend_enlisted(queue, id, timeout.map(|t| home.now() + t), held)
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
