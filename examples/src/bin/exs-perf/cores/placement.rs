//! The processors that the two processes of a run may use.
//!
//! Two processes that sleep in turn are faster on one processor, where no other one must be woken, and the
//! scheduler decides by what else runs. So round trips are measured with either choice, and freely.

use exs_tools::fail::{During, Failure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Placement {
    /// The scheduler decides.
    Free,
    /// Both processes share a processor.
    One,
    /// Each process has a processor.
    Two,
}

/// An end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Placement {
    /// The processor of a side, of those that the process may use. `None`: it keeps all.
    fn choose(self, side: Side, allowed: &[usize]) -> Result<Option<usize>, Failure> {
        let place = match (self, side) {
            (Placement::Free, _) => return Ok(None),
            (Placement::One, _) | (Placement::Two, Side::Client) => 0,
            (Placement::Two, Side::Server) => 1,
        };
        let chosen = allowed.get(place).copied().map(Some);
        chosen.ok_or_else(|| {
            Failure(format!(
                "the row needs {} processors, and the process may use {}: allow more (taskset)",
                place + 1,
                allowed.len()
            ))
        })
    }

    /// Keeps this thread, and those that it starts, on the processor of its side.
    pub(super) fn take(self, side: Side) -> Result<(), Failure> {
        let allowed = sched_getaffinity(None).during("sched_getaffinity")?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        if let Some(cpu) = self.choose(side, &allowed)? {
            let mut only = CpuSet::new();
            only.set(cpu);
            sched_setaffinity(None, &only).during("sched_setaffinity")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_share_a_processor_or_do_not() {
        let of = |p: Placement, side| p.choose(side, &[3, 5, 7]).unwrap();
        assert_eq!(of(Placement::Free, Side::Client), None);
        assert_eq!(of(Placement::One, Side::Client), Some(3));
        assert_eq!(of(Placement::One, Side::Server), Some(3));
        assert_eq!(of(Placement::Two, Side::Client), Some(3));
        assert_eq!(of(Placement::Two, Side::Server), Some(5));
        let few = Placement::Two.choose(Side::Server, &[3]).unwrap_err().to_string();
        assert!(few.contains("needs 2 processors") && few.contains("may use 1"), "{few}");
    }
}
