//! Whose work refers to memory regions, for drivers in software.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::mem::{Key, KeyHasher};

/// Who may have work that refers to an MR. Registrations for one operation are many
/// and short, and all but never used by a second queue pair: so ending one need not
/// look at ten thousand others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// One queue pair, at most.
    One(u32),
    /// Any queue pair or SRQ of the domain.
    Any,
}

/// The users of each MR that has any.
#[derive(Default)]
pub(crate) struct MrUsers(HashMap<Key, Users, BuildHasherDefault<KeyHasher>>);

impl MrUsers {
    /// A queue pair's work refers to MRs (0 is none).
    pub(crate) fn note(&mut self, qp: u32, lkeys: &[Key]) {
        for key in lkeys.iter().filter(|k| **k != 0) {
            let users = self.0.entry(*key).or_insert(Users::One(qp));
            if *users != Users::One(qp) {
                *users = Users::Any;
            }
        }
    }

    /// Buffers of an SRQ refer to MRs, or peers of any queue pair may name them (0 is none).
    pub(crate) fn note_shared(&mut self, lkeys: &[Key]) {
        self.0.extend(lkeys.iter().filter(|k| **k != 0).map(|k| (*k, Users::Any)));
    }

    /// An MR is no more: who may have had work with it.
    pub(crate) fn forget(&mut self, key: Key) -> Option<Users> {
        self.0.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_or_any() {
        let mut users = MrUsers::default();
        users.note(1, &[10, 20, 0]);
        users.note(1, &[10, 30]);
        users.note(2, &[20]);
        users.note_shared(&[30, 40, 0]);
        users.note(1, &[40]);
        assert_eq!(users.forget(10), Some(Users::One(1)));
        for shared in [20, 30, 40] {
            assert_eq!(users.forget(shared), Some(Users::Any));
        }
        assert_eq!((users.forget(10), users.forget(0)), (None, None));
    }
}
