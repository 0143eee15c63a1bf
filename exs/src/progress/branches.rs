//! Accepts whose queue is of another shard than their listener.
//!
//! They are posted in the shard of the queue, at a branch of the listener (`engine/branch.rs`). The
//! handle of the listener knows its branches. So the calls that must see all accepts of the listener
//! go to each branch first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::context::{Context, Entry};
use super::engine::{Branching, Engine, ListenEnd, SockId, Ticket};
use super::handle::SocketHandle;
use super::queue::QueueCore;
use super::shards::Shard;
use crate::time::Time;

/// The shards in which accepts of a listener were posted, and its branches there. None: accepts of
/// that shard are posted at the listener.
#[derive(Default)]
pub(super) struct BranchTable(Mutex<Vec<(Shard, Option<SockId>)>>);

impl BranchTable {
    fn lock(&self) -> MutexGuard<'_, Vec<(Shard, Option<SockId>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SocketHandle {
    /// Posts an accept. Its connection will live in the shard `home`.
    pub(crate) fn accept(
        &self,
        queue: &Arc<QueueCore>,
        ticket: &Ticket<'_>,
        home: Shard,
    ) -> Result<(), Error> {
        if home == queue.shard()
            && let Some(context) = home.context().filter(|c| !Arc::ptr_eq(c, self.context()))
            && let Some(branch) = self.branch_in(context)
        {
            let posted = context
                .enter(Entry::Post(home), |engine, _| engine.accept_at_branch(branch, ticket));
            if posted {
                return Ok(());
            }
            // The listener was shut down in the meantime.
            self.branches().lock().retain(|(shard, _)| *shard != home);
        }
        self.post(queue, |engine, id, call| engine.accept(id, ticket, home, call.now()))
    }

    /// The branch of this listener in another shard. None: there can be none.
    fn branch_in(&self, context: &Arc<Context>) -> Option<SockId> {
        let shard = context.shard();
        let mut branches = self.branches().lock();
        if let Some((_, branch)) = branches.iter().find(|(there, _)| *there == shard) {
            return *branch;
        }
        let plan = match self.call(|engine, id, _| engine.plan_branch(id)) {
            Branching::Possible(plan) => plan,
            Branching::Never => {
                branches.push((shard, None));
                return None;
            }
            Branching::No => return None,
        };
        let new = context.call(|engine, _| engine.open_branch(*plan))?;
        if !self.call(|engine, id, now| engine.add_branch(id, &new, now)) {
            context.call(|engine, now| engine.end_branch(new.id, ListenEnd::Shut, now));
            return None;
        }
        branches.push((shard, Some(new.id)));
        Some(new.id)
    }

    /// Runs `f` at each branch of this listener.
    pub(crate) fn each_branch<T>(
        &self,
        mut f: impl FnMut(&mut Engine, SockId, Time) -> T,
    ) -> Vec<T> {
        let branches = self.branches().lock().clone();
        let branches = branches.into_iter().filter_map(|(shard, id)| Some((shard.context()?, id?)));
        branches.map(|(context, id)| context.call(|engine, now| f(engine, id, now))).collect()
    }

    /// The listener is about to end: ends its branches. The events of their accepts come before that
    /// of the call.
    pub(crate) fn end_branches(&self, end: ListenEnd) {
        let branches = std::mem::take(&mut *self.branches().lock());
        for (shard, id) in branches {
            if let Some(id) = id
                && let Some(context) = shard.context()
            {
                context.call(|engine, now| engine.end_branch(id, end, now));
            }
        }
    }
}
