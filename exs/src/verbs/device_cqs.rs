//! The CQs of the device: how many there are, how much room is reserved in them, and what the last
//! poll has found.
//!
//! A CQ that overflows breaks its queue pairs. So a queue pair *reserves* the entries that it may
//! fill, before it can fill them, and a CQ lends no more entries than it has. Another is made when no
//! CQ of the role has room.
//!
//! One CQ is polled at a time. What it has given is handled, or left for `eager`, before the
//! next is polled. So completions of one CQ are handled in the order in which the device reports them.

use std::sync::Arc;

use super::raw::{BATCH, CompChannel, CompQueue, Device, RawWc};
use crate::rnic::RnicError;

/// Entries of the first CQ of the device for a purpose, unless its limit is lower. Each further CQ is
/// twice as long, so that few are polled for many connections.
const CQ_DEPTH: u32 = 4096;
/// The most entries of a CQ, unless a single queue pair needs more.
const MAX_CQ_DEPTH: u32 = 64 << 10;

/// The completions that a CQ of the device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Sends,
    Receives,
    /// Receives of this SRQ's queue pairs.
    Shared(u32),
    /// Receives of queue pairs that take them from the pool of this SRQ.
    Pooled(u32),
}

impl Role {
    /// True if it holds messages for the SRQ of a domain.
    pub(super) fn has_messages(self) -> bool {
        matches!(self, Role::Shared(_) | Role::Pooled(_))
    }

    /// True if it holds messages for queue pairs that have receives of their own.
    pub(super) fn is_pooled(self) -> bool {
        matches!(self, Role::Pooled(_))
    }

    /// Entries of a new CQ for `need`, where there are `earlier` CQs of the role.
    fn depth(self, need: u32, earlier: usize, limit: u32) -> u32 {
        let usual = match self {
            // There is one.
            Role::Shared(_) => CQ_DEPTH,
            _ => (CQ_DEPTH << earlier.min(8)).min(MAX_CQ_DEPTH),
        };
        need.max(usual).min(limit)
    }
}

/// The entries of a CQ.
struct Entries {
    role: Role,
    depth: u32,
    /// Entries that queue pairs may fill. The receives of an SRQ are counted once, however many queue
    /// pairs share it.
    reserved: u32,
}

impl Entries {
    fn room(&self) -> u32 {
        self.depth - self.reserved
    }

    /// Reserves `need` entries for another queue pair, if it fits. A quarter of the entries for pooled
    /// receives is for the extra ones of queue pairs that are there.
    fn admit(&mut self, role: Role, need: u32) -> bool {
        let kept = if role.is_pooled() && self.reserved > 0 { self.depth / 4 } else { 0 };
        let shared = matches!(role, Role::Shared(_));
        let fits = self.role == role && (shared || self.room() >= need + kept);
        if fits && !shared {
            self.reserved += need;
        }
        fits
    }

    /// Reserves up to `count` more entries for a queue pair that is there. Returns how many.
    fn add(&mut self, count: u32) -> u32 {
        let count = count.min(self.room());
        self.reserved += count;
        count
    }

    fn give_back(&mut self, count: u32) {
        if !matches!(self.role, Role::Shared(_)) {
            self.reserved -= count;
        }
    }
}

/// A CQ of the device.
struct DeviceCq {
    cq: Arc<CompQueue>,
    entries: Entries,
    /// A notification was requested.
    armed: bool,
}

/// The completions of the last poll, which are those of one CQ.
#[derive(Default)]
struct PolledWcs {
    wcs: Vec<RawWc>,
    role: Role,
    index: usize,
    /// Completions of `wcs` that are handled: the first ones.
    handled: usize,
    /// Completions handled since the start, of all polls.
    count: usize,
}

impl PolledWcs {
    fn is_handled(&self) -> bool {
        self.handled == self.wcs.len()
    }

    fn next(&mut self) -> Option<(Role, RawWc)> {
        let wc = self.wcs.get(self.handled).copied()?;
        self.handled += 1;
        self.count += 1;
        Some((self.role, wc))
    }
}

/// See the module's essay.
pub(super) struct DeviceCqs {
    device: Device,
    /// Entries of the longest CQ.
    max_cqe: u32,
    /// None once the device was removed.
    channel: Option<Arc<CompChannel>>,
    cqs: slab::Slab<DeviceCq>,
    polled: PolledWcs,
}

impl DeviceCqs {
    pub(super) fn new(device: Device, max_cqe: u32, channel: Arc<CompChannel>) -> DeviceCqs {
        let (cqs, polled) = (slab::Slab::new(), PolledWcs::default());
        DeviceCqs { device, max_cqe, channel: Some(channel), cqs, polled }
    }

    // ---- room --------------------------------------------------------------------------

    /// Reserves `need` entries in a CQ; makes a CQ if none has room. Returns its index.
    pub(super) fn reserve(&mut self, role: Role, need: u32) -> Result<usize, RnicError> {
        let mut cqs = self.cqs.iter_mut();
        if let Some(index) = cqs.find_map(|(i, q)| q.entries.admit(role, need).then_some(i)) {
            return Ok(index);
        }
        let limit = self.max_cqe;
        if need > limit {
            let (asked, limit) = (u64::from(need), u64::from(limit));
            return Err(RnicError::Limit { what: "completion queue depth", asked, limit });
        }
        let gone = RnicError::Os { call: "ibv_create_cq", errno: libc::ENODEV };
        let channel = self.channel.as_ref().ok_or(gone)?;
        let earlier = self.cqs.iter().filter(|(_, q)| q.entries.role == role).count();
        let depth = role.depth(need, earlier, limit);
        let vacant = self.cqs.vacant_entry();
        let index = vacant.key();
        let cq = CompQueue::new(self.device, depth, channel, index)
            .map_err(|e| RnicError::os("ibv_create_cq", &e))?;
        let entries = Entries { role, depth, reserved: need };
        vacant.insert(DeviceCq { cq, entries, armed: false });
        Ok(index)
    }

    /// Reserves up to `count` more entries for a queue pair of the CQ at `index`. Returns how many.
    pub(super) fn reserve_more(&mut self, index: usize, count: u32) -> u32 {
        self.cqs.get_mut(index).map_or(0, |q| q.entries.add(count))
    }

    /// Gives reserved entries back.
    pub(super) fn unreserve(&mut self, index: usize, count: u32) {
        if let Some(q) = self.cqs.get_mut(index) {
            q.entries.give_back(count);
        }
    }

    /// The CQ at an index, for a queue pair that has reserved entries there.
    pub(super) fn cq(&self, index: usize) -> Arc<CompQueue> {
        Arc::clone(&self.cqs[index].cq)
    }

    /// Frees the CQs of an SRQ that has gone.
    pub(super) fn end_srq(&mut self, srq: u32) {
        let of_it = |role| role == Role::Shared(srq) || role == Role::Pooled(srq);
        self.cqs.retain(|_, q| !of_it(q.entries.role));
    }

    /// Frees all CQs, as the device has gone.
    pub(super) fn release(&mut self) {
        let cqs: Vec<DeviceCq> = self.cqs.drain().collect();
        drop(cqs);
        self.channel = None;
    }

    // ---- polling -----------------------------------------------------------------------

    /// CQs are at indices below this one.
    pub(super) fn places(&self) -> usize {
        self.cqs.capacity()
    }

    /// Polls the CQ at an index, if its role is wanted. `has_receives` tells the SRQs that have any. Returns
    /// the number of completions. All those of the last poll must be handled.
    pub(super) fn poll(
        &mut self,
        index: usize,
        wanted: impl Fn(Role) -> bool,
        has_receives: impl Fn(u32) -> bool,
    ) -> usize {
        let Some(q) = self.cqs.get(index) else { return 0 };
        let role = q.entries.role;
        // A CQ that no queue pair uses has no completions.
        let in_use = match role {
            Role::Shared(srq) => has_receives(srq),
            Role::Sends | Role::Receives | Role::Pooled(_) => q.entries.reserved > 0,
        };
        if !in_use || !wanted(role) {
            return 0;
        }
        let polled = &mut self.polled;
        (polled.index, polled.role, polled.handled) = (index, role, 0);
        polled.wcs.clear();
        if let Err(e) = q.cq.poll(&mut polled.wcs) {
            crate::trace::warn!("{}: ibv_poll_cq: {e}", self.device.name());
        }
        polled.wcs.len()
    }

    /// Takes the next completion of the last poll, with the role of its CQ.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(Role, RawWc)> {
        self.polled.next()
    }

    /// The next completion of the last poll, which stays.
    #[inline]
    pub(super) fn peek(&self) -> Option<(Role, RawWc)> {
        self.polled.wcs.get(self.polled.handled).map(|wc| (self.polled.role, *wc))
    }

    /// True if all completions of the last poll are handled.
    #[inline]
    pub(super) fn is_handled(&self) -> bool {
        self.polled.is_handled()
    }

    /// The CQ of the last poll, if all that it gave is handled and it may have more.
    pub(super) fn may_have_more(&self) -> Option<usize> {
        let full = self.is_handled() && self.polled.wcs.len() == BATCH;
        full.then_some(self.polled.index)
    }

    /// Completions handled since the start.
    pub(super) fn handled_total(&self) -> usize {
        self.polled.count
    }

    // ---- notifications -----------------------------------------------------------------

    /// Requests notifications; those of sends only if `sends` are awaited. What has come before is not
    /// notified.
    pub(super) fn arm(&mut self, sends: bool) {
        for (_, q) in &mut self.cqs {
            if !q.armed && (q.entries.role != Role::Sends || sends) {
                match q.cq.arm() {
                    Ok(()) => q.armed = true,
                    Err(e) => crate::trace::warn!("ibv_req_notify_cq: {e}"),
                }
            }
        }
    }

    /// Takes the notifications that are there.
    pub(super) fn drain_notifications(&mut self) {
        let Some(channel) = &self.channel else { return };
        while let Some(tag) = channel.next() {
            if let Some(q) = self.cqs.get_mut(tag) {
                q.armed = false;
                q.cq.notified();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(role: Role) -> Entries {
        Entries { role, depth: 100, reserved: 0 }
    }

    #[test]
    fn a_cq_lends_no_more_entries_than_it_has() {
        let mut sends = entries(Role::Sends);
        assert!(!sends.admit(Role::Receives, 1), "of another role");
        assert!(sends.admit(Role::Sends, 60) && !sends.admit(Role::Sends, 41));
        assert!(sends.admit(Role::Sends, 40) && !sends.admit(Role::Sends, 1));
        sends.give_back(60);
        assert_eq!((sends.room(), sends.add(70), sends.room()), (60, 60, 0));
    }

    #[test]
    fn receives_of_an_srq_are_counted_once() {
        let mut shared = Entries { reserved: 80, ..entries(Role::Shared(1)) };
        assert!(shared.admit(Role::Shared(1), 80) && !shared.admit(Role::Shared(2), 1));
        assert_eq!(shared.room(), 20);
        shared.give_back(80);
        assert_eq!(shared.room(), 20);
    }

    #[test]
    fn a_quarter_is_kept_for_extra_receives() {
        let mut pooled = entries(Role::Pooled(1));
        assert!(pooled.admit(Role::Pooled(1), 90), "a first queue pair may take all");
        pooled.give_back(40);
        assert!(!pooled.admit(Role::Pooled(1), 26), "25 of the 50 that are free are kept");
        assert!(pooled.admit(Role::Pooled(1), 25));
        assert_eq!((pooled.add(20), pooled.add(20)), (20, 5), "for those that are there");
    }

    #[test]
    fn each_further_cq_is_longer() {
        let depth = |earlier| Role::Sends.depth(8, earlier, u32::MAX);
        assert_eq!([0, 1, 2, 9, 400].map(depth), [4096, 8192, 16384, 65536, 65536]);
        assert_eq!(Role::Sends.depth(100_000, 0, u32::MAX), 100_000, "what a queue pair needs");
        assert_eq!(Role::Sends.depth(8, 3, 1000), 1000, "the device has no longer ones");
        assert_eq!(Role::Shared(1).depth(8, 3, u32::MAX), 4096);
    }

    #[test]
    fn polled_completions_come_once_with_their_role() {
        let mut polled = PolledWcs { role: Role::Shared(3), ..PolledWcs::default() };
        assert!(polled.is_handled() && polled.next().is_none());
        polled.wcs = vec![RawWc::default(); 2];
        let roles: Vec<_> = std::iter::from_fn(|| polled.next()).map(|(role, _)| role).collect();
        assert_eq!(roles, [Role::Shared(3); 2]);
        assert!(polled.is_handled());
        assert_eq!(polled.count, 2);
    }
}
