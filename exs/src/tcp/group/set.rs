//! The groups among which a dialer spreads its streams to an address.
//!
//! A group lives in one shard of each end. A listener whose accepts are of several shards says so in its
//! answer. The dialer then opens further groups, which the kernel brings to these shards in turn, as it does
//! with connections. It opens one when each of those before has [`STREAMS_EACH`] streams: with fewer, few
//! of their messages would leave together.

use std::collections::HashMap;

use super::dial::GroupKey;
use super::{LinkGroup, LinkGroups};
use crate::rnic::table::IdTable;

/// The streams of each group of a set before the dialer opens another group.
pub(super) const STREAMS_EACH: usize = 16;

/// The groups of a key that take further streams.
#[derive(Debug, Default)]
struct GroupSet {
    ids: Vec<u32>,
    /// The number of groups that the other end takes, as far as it has said so.
    most: usize,
}

/// The sets of all keys.
#[derive(Debug, Default)]
pub(super) struct GroupSets(HashMap<GroupKey, GroupSet>);

impl GroupSets {
    /// Adds a group that connects.
    pub(super) fn add(&mut self, key: GroupKey, id: u32) {
        self.0.entry(key).or_default().ids.push(id);
    }

    /// A group takes no further streams. True if there are others.
    pub(super) fn leave(&mut self, key: &GroupKey, id: u32) -> bool {
        let Some(set) = self.0.get_mut(key) else { return false };
        set.ids.retain(|of| *of != id);
        let others = !set.ids.is_empty();
        if !others {
            self.0.remove(key);
        }
        others
    }

    /// The other end has said how many groups it takes.
    pub(super) fn note_most(&mut self, key: &GroupKey, most: u32) {
        if let Some(set) = self.0.get_mut(key) {
            set.most = usize::try_from(most).unwrap_or(usize::MAX);
        }
    }

    /// No further group could be opened. Those that there are must do.
    pub(super) fn note_failed(&mut self, key: &GroupKey) {
        if let Some(set) = self.0.get_mut(key) {
            set.most = 0;
        }
    }

    /// The group for the next stream. None: one must be opened.
    fn choose(&self, key: &GroupKey, table: &IdTable<LinkGroup>) -> Option<u32> {
        let set = self.0.get(key)?;
        let loads = set.ids.iter().filter_map(|id| Some((table.get(*id).ok()?.load(), *id)));
        let (load, id) = loads.min()?;
        let another = load >= STREAMS_EACH && set.ids.len() < set.most;
        (!another).then_some(id)
    }
}

impl LinkGroups {
    /// The group for the next stream to an address. None: one must be opened.
    pub(super) fn choose(&self, key: &GroupKey) -> Option<u32> {
        self.sets.choose(key, &self.table)
    }
}
