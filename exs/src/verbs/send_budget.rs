//! The budget of a queue pair's send queue: the entries that each kind of work may use.
//!
//! A device refuses more WRs than its queue was made for, and that ends the connection. So each kind
//! of work has entries of its own, which no other kind can take, and the queue is as deep as all of
//! them together. A WR uses its entry until it has completed. That takes as long as a peer holds up
//! earlier WRs.

/// The most entries for WRs of the user. The device allocates memory for them with every queue pair.
const MAX_CALLER: usize = 128;
/// The most entries for binds of windows.
const MAX_BINDS: usize = 64;
/// The most entries for eager messages.
const MAX_EAGER: usize = 32;

/// How the send queues of a device are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) caller: usize,
    pub(super) binds: usize,
    pub(super) eager: usize,
}

impl Shares {
    /// The shares in queues of at most `most` WRs (`max_qp_wr`).
    pub(super) fn of(most: u32) -> Shares {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let (binds, eager) = (MAX_BINDS.min(most / 4), MAX_EAGER.min(most / 8));
        Shares { caller: MAX_CALLER.min(most - binds - eager), binds, eager }
    }
}

/// The kind of a WR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A WR of the user.
    Caller,
    /// The bind of a window.
    Bind,
    /// An eager message.
    Eager,
}

/// The entries of one queue pair, by kind.
#[derive(Debug)]
pub(super) struct SendBudget {
    limits: [usize; 3],
    used: [usize; 3],
}

impl SendBudget {
    /// The budget of a queue pair whose user may have `caller` WRs outstanding.
    pub(super) fn new(caller: usize, shares: Shares) -> SendBudget {
        SendBudget { limits: [caller, shares.binds, shares.eager], used: [0; 3] }
    }

    /// WRs that the device's queue must take.
    pub(super) fn depth(&self) -> u32 {
        u32::try_from(self.limits.iter().sum::<usize>()).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(super) fn has(&self, work: Work) -> bool {
        self.used[work as usize] < self.limits[work as usize]
    }

    /// Takes an entry; there must be one.
    #[inline]
    pub(super) fn take(&mut self, work: Work) {
        debug_assert!(self.has(work), "{work:?} without a place");
        self.used[work as usize] += 1;
    }

    #[inline]
    pub(super) fn give(&mut self, work: Work) {
        self.used[work as usize] -= 1;
    }

    /// Frees all entries: the device's queue is gone.
    pub(super) fn clear(&mut self) {
        self.used = [0; 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_queue_has_a_share_for_each_work() {
        for most in [32, 64, 128, 223, 224, 256, 4096, u32::MAX] {
            let shares = Shares::of(most);
            let depth = SendBudget::new(shares.caller, shares).depth();
            assert!(depth <= most && shares.binds >= 8 && shares.eager >= 4, "{most}: {shares:?}");
            assert!(shares.caller >= most.min(128) as usize / 2, "{most}: {shares:?}");
        }
        assert_eq!(Shares::of(4096), Shares { caller: 128, binds: 64, eager: 32 });
    }

    #[test]
    fn no_work_takes_the_entries_of_another() {
        let all = [Work::Caller, Work::Bind, Work::Eager];
        for greedy in all {
            let mut budget = SendBudget::new(128, Shares::of(1024));
            let mut taken = 0;
            for work in [greedy].into_iter().chain(all) {
                while budget.has(work) {
                    budget.take(work);
                    taken += 1;
                }
                assert!(
                    taken > 0 && taken <= budget.depth(),
                    "{greedy:?} first, then {work:?}: {taken}"
                );
            }
            assert_eq!(taken, budget.depth(), "each has found its budget");
            budget.give(greedy);
            assert_eq!(all.map(|work| budget.has(work)), all.map(|work| work == greedy));
        }
    }
}
