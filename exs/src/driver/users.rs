//! Which queue pairs have work that refers to a memory region.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::mem::{Key, KeyHasher};

/// The queue pairs that may have work which refers to an MR. A registration for one operation is
/// short, and a second queue pair almost never uses it. So ending one need not search ten
/// thousand queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MrUserSet {
    /// One queue pair, at most.
    One(u32),
    /// Any queue pair or SRQ of the domain.
    Any,
}

/// The users of each MR that has any.
#[derive(Default)]
pub(crate) struct MrUsers(HashMap<Key, MrUserSet, BuildHasherDefault<KeyHasher>>);

impl MrUsers {
    /// Records that a queue pair's work refers to these MRs. Key 0 is none.
    pub(crate) fn note(&mut self, qp: u32, lkeys: &[Key]) {
        for key in lkeys.iter().filter(|k| **k != 0) {
            let users = self.0.entry(*key).or_insert(MrUserSet::One(qp));
            if *users != MrUserSet::One(qp) {
                *users = MrUserSet::Any;
            }
        }
    }

    /// Records that buffers of an SRQ refer to these MRs, or that peers of any queue pair may
    /// name them. Key 0 is none.
    pub(crate) fn note_shared(&mut self, lkeys: &[Key]) {
        self.0.extend(lkeys.iter().filter(|k| **k != 0).map(|k| (*k, MrUserSet::Any)));
    }

    /// Removes an ended MR and returns its users. None if no work ever referred to it.
    pub(crate) fn forget(&mut self, key: Key) -> Option<MrUserSet> {
        self.0.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mr_has_one_user_or_any() {
        let mut users = MrUsers::default();
        users.note(1, &[10, 20, 0]);
        users.note(1, &[10, 30]);
        users.note(2, &[20]);
        users.note_shared(&[30, 40, 0]);
        users.note(1, &[40]);
        assert_eq!(users.forget(10), Some(MrUserSet::One(1)));
        for shared in [20, 30, 40] {
            assert_eq!(users.forget(shared), Some(MrUserSet::Any));
        }
        assert_eq!((users.forget(10), users.forget(0)), (None, None));
    }
}
