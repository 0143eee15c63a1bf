//! Keys (STags) and the one function that decides whether a key may be used.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::{Segment, WORD};
use crate::sys::{IoVec, IoVecMut};

/// A key: the STag on an iWARP wire, lkey or rkey in verbs terms.
pub type Key = u32;

/// The rights of a key. Local reads are always allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The RNIC may write here on behalf of a local receive or READ.
    pub local_write: bool,
    /// A peer may READ.
    pub remote_read: bool,
    /// A peer may WRITE.
    pub remote_write: bool,
    /// A peer may do atomic operations.
    pub remote_atomic: bool,
}

impl Access {
    /// Local reads only, for the source of a send.
    pub const LOCAL_READ: Access = Access {
        local_write: false,
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
    };
    /// Local reads and writes.
    pub const LOCAL: Access = Access { local_write: true, ..Access::LOCAL_READ };
    /// A peer may READ.
    pub const REMOTE_READ: Access = Access { remote_read: true, ..Access::LOCAL_READ };
    /// A peer may WRITE. As in verbs, this implies local writes.
    pub const REMOTE_WRITE: Access = Access { remote_write: true, ..Access::LOCAL };
    /// A peer may do atomic operations. As in verbs, this implies local writes.
    pub const REMOTE_ATOMIC: Access = Access { remote_atomic: true, ..Access::LOCAL };
    /// A peer may READ and WRITE.
    pub const ALL: Access = Access { remote_read: true, ..Access::REMOTE_WRITE };

    /// Returns true if `self` has every right in `need`.
    pub const fn allows(self, need: Access) -> bool {
        (self.local_write || !need.local_write)
            && (self.remote_read || !need.remote_read)
            && (self.remote_write || !need.remote_write)
            && (self.remote_atomic || !need.remote_atomic)
    }

    /// Returns true if a peer has any right.
    pub const fn is_remote(self) -> bool {
        self.remote_read || self.remote_write || self.remote_atomic
    }

    /// Returns true if the RNIC may write here, on behalf of either side.
    pub const fn writes(self) -> bool {
        self.local_write || self.remote_write || self.remote_atomic
    }
}

/// The queue pairs that may use a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every queue pair of this protection domain: a memory region.
    Domain(u32),
    /// One queue pair only, as (domain, queue pair): a type-2 memory window.
    QueuePair(u32, u32),
}

/// The memory and the rights that a key gives.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The memory.
    pub segment: Segment,
    /// The rights.
    pub access: Access,
    /// The queue pairs that may use it.
    pub scope: Scope,
}

/// The reason why a key, or the bytes named with it, were refused. The numbers are those that the
/// user of the key gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessFault {
    /// The key was never issued, was revoked, or belongs to another connection.
    #[error("key {key:#010x} is not valid here (never issued, revoked, or another connection's)")]
    InvalidKey {
        /// The key in the request.
        key: Key,
    },
    /// `addr + len` is beyond 2^64.
    #[error("{len} bytes at {addr:#x} wrap around the end of the address space")]
    Wrap {
        /// The address in the request.
        addr: u64,
        /// The length in the request, in bytes.
        len: u64,
    },
    /// The bytes are outside of the key's memory.
    #[error("{len} bytes at {addr:#x} are outside of key {key:#010x} ({size} bytes at {base:#x})")]
    Bounds {
        /// The key in the request.
        key: Key,
        /// The address in the request.
        addr: u64,
        /// The length in the request, in bytes.
        len: u64,
        /// First address covered by the key.
        base: u64,
        /// Number of bytes covered by the key.
        size: u64,
    },
    /// The bytes are inside, but the right is missing.
    #[error("key {key:#010x} does not allow this (needed {need:?}, granted {have:?})")]
    Rights {
        /// The key in the request.
        key: Key,
        /// The rights needed.
        need: Access,
        /// The rights granted.
        have: Access,
    },
    /// The bytes are inside, and may be used, but an atomic operation needs an aligned word.
    #[error("an atomic operation at {addr:#x}, which is no multiple of 8")]
    Alignment {
        /// The address in the request.
        addr: u64,
    },
}

/// Keys are random, so the key itself is a good hash, and no peer can choose which keys exist.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 << 8) | u64::from(*b);
        }
    }
    fn write_u32(&mut self, key: u32) {
        // The table looks at the top bits and the low bits, so the product spreads the key to
        // both.
        self.0 = u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Number of revoked keys that stay reserved, so that none of them comes back while an old
/// message that names it may still be on its way.
const QUARANTINE: usize = 4096;

/// All keys of one RNIC.
#[derive(Default)]
pub struct KeyTable {
    grants: HashMap<Key, Grant, BuildHasherDefault<KeyHasher>>,
    retired: VecDeque<Key>,
    retired_set: HashMap<Key, (), BuildHasherDefault<KeyHasher>>,
}

impl KeyTable {
    /// Makes an empty table.
    pub fn new() -> KeyTable {
        KeyTable::default()
    }

    /// Issues a key. `draw` returns random numbers. The table draws again for zero (which peers
    /// read as "no key"), for keys in use, and for the last 4096 revoked keys.
    pub fn insert(&mut self, grant: Grant, draw: &mut dyn FnMut() -> u32) -> Key {
        loop {
            let key = draw();
            if self.is_free(key) {
                self.grants.insert(key, grant);
                return key;
            }
        }
    }

    /// Enters a key that another table had issued. Returns false if the key is not free here.
    pub fn insert_issued(&mut self, key: Key, grant: Grant) -> bool {
        let free = self.is_free(key);
        if free {
            self.grants.insert(key, grant);
        }
        free
    }

    /// Returns true if the table has no such key, and has had none lately.
    pub fn is_free(&self, key: Key) -> bool {
        key != 0 && !self.grants.contains_key(&key) && !self.retired_set.contains_key(&key)
    }

    /// Takes a key out that another table will have. The peer may go on to name it, so it may come
    /// back at once.
    pub fn take(&mut self, key: Key) -> Option<Grant> {
        self.grants.remove(&key)
    }

    /// Revokes a key and returns its grant. None if the key was not valid.
    pub fn remove(&mut self, key: Key) -> Option<Grant> {
        let grant = self.grants.remove(&key)?;
        if self.retired.len() == QUARANTINE
            && let Some(old) = self.retired.pop_front()
        {
            self.retired_set.remove(&old);
        }
        self.retired.push_back(key);
        self.retired_set.insert(key, ());
        Some(grant)
    }

    /// Returns the grant of a key. None if the key is not valid.
    pub fn get(&self, key: Key) -> Option<&Grant> {
        self.grants.get(&key)
    }

    /// Returns the number of valid keys.
    #[cfg(any(test, feature = "internals"))]
    pub fn len(&self) -> usize {
        self.grants.len()
    }

    /// Returns true if no key is valid.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Returns the bytes that a local work request names, if its key allows `need`. Only a key of
    /// the whole domain is a local key.
    pub fn check_local(
        &self,
        domain: u32,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Segment, AccessFault> {
        match self.grants.get(&key) {
            Some(g) if g.scope == Scope::Domain(domain) => {
                find(key, g, addr, len, need).map(GrantedPart::to_segment)
            }
            _ => Err(AccessFault::InvalidKey { key }),
        }
    }

    /// Returns the bytes that a peer's WRITE or READ names, if the key is valid on the queue pair
    /// that it came by and allows `need`. The result borrows the region and holds no reference
    /// count: to change a count waits for all earlier stores, which are mostly the copy of a
    /// message.
    pub fn check_remote(
        &self,
        domain: u32,
        queue_pair: u32,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<GrantedPart<'_>, AccessFault> {
        match self.grants.get(&key) {
            Some(g)
                if g.scope == Scope::QueuePair(domain, queue_pair)
                    || g.scope == Scope::Domain(domain) =>
            {
                find(key, g, addr, len, need)
            }
            _ => Err(AccessFault::InvalidKey { key }),
        }
    }
}

/// A checked part of the memory of a key.
#[derive(Clone, Copy, Debug)]
pub struct GrantedPart<'a> {
    segment: &'a Segment,
    offset: usize,
    len: usize,
}

impl GrantedPart<'_> {
    /// Returns the first `len` bytes as the target of a copy. Panics if the part has fewer.
    pub fn io_vec_mut(&self, len: usize) -> IoVecMut<'_> {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        self.segment.io_vec_mut(self.offset, len)
    }

    /// Returns the first `len` bytes as the source of a copy. Panics if the part has fewer.
    pub fn io_vec(&self, len: usize) -> IoVec<'_> {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        self.segment.io_vec(self.offset, len)
    }

    /// Returns the segment and the offset in it of the word with which the part begins. Panics if
    /// the part is shorter.
    pub(super) fn word_place(&self) -> (&Segment, usize) {
        assert!(WORD <= self.len, "a word of {} bytes", self.len);
        (self.segment, self.offset)
    }

    /// Returns the bytes with a reference to their region, for a caller that keeps them.
    pub fn to_segment(self) -> Segment {
        self.segment.slice(self.offset, self.len).expect("inside of it, as was found")
    }
}

/// Checks bounds first, then rights: the order in which RFC 5040 section 7 lists the checks and
/// their error codes.
fn find(
    key: Key,
    g: &Grant,
    addr: u64,
    len: u64,
    need: Access,
) -> Result<GrantedPart<'_>, AccessFault> {
    let end = addr.checked_add(len).ok_or(AccessFault::Wrap { addr, len })?;
    let (base, size) = (g.segment.addr(), g.segment.len() as u64);
    let bounds = AccessFault::Bounds { key, addr, len, base, size };
    if addr < base || end > base + size {
        return Err(bounds);
    }
    if !g.access.allows(need) {
        return Err(AccessFault::Rights { key, need, have: g.access });
    }
    let offset = usize::try_from(addr - base).map_err(|_| bounds)?;
    let len = usize::try_from(len).map_err(|_| bounds)?;
    Ok(GrantedPart { segment: &g.segment, offset, len })
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;

    fn table() -> (KeyTable, Key, u64) {
        let mut t = KeyTable::new();
        let segment = Region::from_vec(vec![0; 64]).segment(16, 32).unwrap();
        let addr = segment.addr();
        let scope = Scope::QueuePair(1, 7);
        let key = t.insert(Grant { segment, access: Access::REMOTE_WRITE, scope }, &mut || 42);
        (t, key, addr)
    }

    #[test]
    fn bounds_rights_scope_and_life_are_checked() {
        let (mut t, key, addr) = table();
        let need = Access::REMOTE_WRITE;
        assert_eq!(t.check_remote(1, 7, key, addr + 4, 28, need).unwrap().to_segment().len(), 28);
        assert!(matches!(
            t.check_remote(1, 7, key, addr + 4, 29, need),
            Err(AccessFault::Bounds { .. })
        ));
        assert!(matches!(
            t.check_remote(1, 7, key, addr - 1, 1, need),
            Err(AccessFault::Bounds { .. })
        ));
        assert!(matches!(
            t.check_remote(1, 7, key, u64::MAX, 2, need),
            Err(AccessFault::Wrap { .. })
        ));
        assert!(matches!(
            t.check_remote(1, 7, key, addr, u64::MAX, need),
            Err(AccessFault::Wrap { .. })
        ));
        assert!(matches!(
            t.check_remote(1, 7, key, addr, 1, Access::REMOTE_READ),
            Err(AccessFault::Rights { .. })
        ));
        for (domain, qp) in [(1, 8), (2, 7)] {
            assert!(matches!(
                t.check_remote(domain, qp, key, addr, 1, need),
                Err(AccessFault::InvalidKey { .. })
            ));
        }
        assert!(t.check_local(1, key, addr, 1, Access::LOCAL_READ).is_err(), "a window is remote");
        t.remove(key);
        assert!(t.check_remote(1, 7, key, addr, 1, need).is_err());
    }

    #[test]
    fn keys_do_not_come_back_soon() {
        let (mut t, key, _) = table();
        let grant = t.remove(key).unwrap();
        let mut draws = [0, key, 43].into_iter();
        assert_eq!(t.insert(grant.clone(), &mut || draws.next().unwrap()), 43);
        for fresh in (1000..).take(QUARANTINE) {
            let k = t.insert(grant.clone(), &mut || fresh);
            t.remove(k);
        }
        assert_eq!(t.insert(grant, &mut || key), key, "forgotten after {QUARANTINE} others");
    }

    #[test]
    fn a_key_goes_to_another_table_and_back() {
        let ((mut here, key, addr), mut there) = (table(), KeyTable::new());
        let allowed =
            |t: &KeyTable| t.check_remote(1, 7, key, addr, 1, Access::REMOTE_WRITE).is_ok();
        for _ in 0..2 {
            assert!(there.insert_issued(key, here.take(key).unwrap()));
            assert!(allowed(&there) && !allowed(&here));
            std::mem::swap(&mut here, &mut there);
        }
        let grant = here.get(key).unwrap().clone();
        assert!(!here.insert_issued(key, grant.clone()), "it is in use");
        here.remove(key);
        assert!(!here.insert_issued(key, grant.clone()), "a message may name the revoked one");
        assert!(!here.insert_issued(0, grant));
    }
}
