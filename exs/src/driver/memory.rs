//! Memory regions and windows.
//!
//! A key is random, belongs to one domain or one queue pair, and is looked up whenever bytes move.
//! So closing a window, or ending a registration, removes a key and makes sure that no work still
//! uses the memory.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::Driver;
use super::link::{Conn, Link};
use super::users::{MrUserSet, MrUsers};
use crate::mem::{Access, Grant, Key, KeyHasher, KeyTable, Scope, Segment};
use crate::rnic::{Mr, Pd, Qp, RnicError};
use crate::sys::RandomSource;

/// A memory window of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct MemoryWindow {
    pub(super) key: Key,
    mr: Key,
}

/// A window of a connection between two RNICs: its key, and what it granted to the peer.
pub(super) type MovingWindow = (Key, Grant);

/// The keys, and the work that depends on them.
pub(crate) struct Memory {
    pub(crate) keys: KeyTable,
    /// The queue pairs whose work may refer to an MR, for each MR that any work names.
    pub(crate) users: MrUsers,
    /// Windows of each MR that has any.
    window_counts: HashMap<Key, usize, BuildHasherDefault<KeyHasher>>,
    /// The source of keys, and of other numbers that no peer may guess.
    pub(crate) random: RandomSource,
}

impl Memory {
    pub(super) fn new(random: RandomSource) -> Memory {
        Memory {
            keys: KeyTable::new(),
            users: MrUsers::default(),
            window_counts: HashMap::default(),
            random,
        }
    }

    fn issue_key(&mut self, grant: Grant) -> Key {
        let random = &mut self.random;
        self.keys.insert(grant, &mut || random.next_u32())
    }

    /// Notes that a queue pair has a window onto an MR.
    fn count_window(&mut self, qp: u32, mr: Key) {
        *self.window_counts.entry(mr).or_default() += 1;
        self.users.note(qp, &[mr]);
    }

    /// Notes that a window onto an MR is gone.
    fn uncount_window(&mut self, mr: Key) {
        if let Some(n) = self.window_counts.get_mut(&mr) {
            *n -= 1;
            if *n == 0 {
                self.window_counts.remove(&mr);
            }
        }
    }

    /// A number that no peer can guess.
    pub(crate) fn random_u64(&mut self) -> u64 {
        u64::from(self.random.next_u32()) << 32 | u64::from(self.random.next_u32())
    }

    /// Removes the key of a window.
    fn close(&mut self, window: MemoryWindow) {
        self.keys.remove(window.key);
        self.uncount_window(window.mr);
    }
}

impl<L: Link> Driver<L> {
    pub(super) fn register(
        &mut self,
        pd: Pd,
        memory: &Segment,
        access: Access,
    ) -> Result<Mr, RnicError> {
        if !memory.region().is_mapped() {
            let (len, errno) = (memory.len() as u64, libc::EOPNOTSUPP);
            let why = "this transport moves memory by the processor, which cannot reach it, as its \
                       exporter lets no process map it: use an RDMA device (EXS_TRANSPORT=verbs)";
            return Err(RnicError::DmaBuf { len, errno, why });
        }
        self.objects.pds.get_mut(pd.0)?.mrs += 1;
        let scope = Scope::Domain(pd.0);
        let key = self.memory.issue_key(Grant { segment: memory.clone(), access, scope });
        if access.is_remote() {
            // The peers of all its connections may name it.
            self.memory.users.note_shared(&[key]);
        }
        Ok(Mr { key })
    }

    /// Ends a registration: closes its windows, and takes its memory away from all work that still
    /// refers to it.
    pub(super) fn deregister(&mut self, mr: Mr) -> Result<(), RnicError> {
        let pd = match self.memory.keys.get(mr.key).map(|g| g.scope) {
            Some(Scope::Domain(pd)) => pd,
            _ => return Err(RnicError::NoSuch { what: "memory region", id: mr.key }),
        };
        // The region itself is let go of here, before a link looks for regions without a user.
        drop(self.memory.keys.remove(mr.key));
        let Ok(domain) = self.objects.pds.get_mut(pd) else { return Ok(()) };
        domain.mrs = domain.mrs.saturating_sub(1);
        match self.memory.users.forget(mr.key) {
            // Registered, but no work ever named it.
            None => {}
            Some(MrUserSet::One(qp)) => self.revoke_from(qp, mr.key),
            Some(MrUserSet::Any) => {
                let (qps, srqs) = (domain.qps.clone(), domain.srqs.clone());
                for srq in srqs {
                    if let Ok(queue) = self.objects.srqs.get_mut(srq) {
                        queue.bufs.iter_mut().for_each(|b| b.revoke(mr.key));
                    }
                }
                for qp in qps {
                    self.revoke_from(qp, mr.key);
                }
            }
        }
        Ok(())
    }

    /// Takes the memory of an MR away from a queue pair, which may be gone already.
    fn revoke_from(&mut self, id: u32, key: Key) {
        if self.memory.window_counts.contains_key(&key) {
            self.drop_windows(id, |w| w.mr == key);
        }
        let Ok(qp) = self.qps.get_mut(id) else { return };
        qp.recvs.iter_mut().for_each(|b| b.revoke(key));
        if let Conn::Link(link) = qp.conn {
            L::revoke_mr(self, id, link, key);
        }
    }

    pub(super) fn open_window(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        let grant = self.grant_window(qp, mr, (addr, len), access)?;
        let key = self.memory.issue_key(grant);
        self.add_window(qp, MemoryWindow { key, mr: mr.key })?;
        Ok(key)
    }

    /// What a window of this queue pair onto `len` bytes of an MR grants to the peer.
    fn grant_window(
        &self,
        qp: Qp,
        mr: Mr,
        (addr, len): (u64, u64),
        access: Access,
    ) -> Result<Grant, RnicError> {
        let pd = self.live_qp(qp, "a live connection")?.attr.pd.0;
        // A window for writing needs a region that may be written at all (IBV_ACCESS_LOCAL_WRITE, as in
        // verbs). A window for reading needs nothing.
        let need = Access { local_write: access.writes(), ..Access::LOCAL_READ };
        let segment = self.memory.keys.check_local(pd, mr.key, addr, len, need)?;
        Ok(Grant { segment, access, scope: Scope::QueuePair(pd, qp.0) })
    }

    fn add_window(&mut self, qp: Qp, window: MemoryWindow) -> Result<(), RnicError> {
        self.qps.get_mut(qp.0)?.windows.push(window);
        self.memory.count_window(qp.0, window.mr);
        Ok(())
    }

    /// Takes the windows of a queue pair, for another RNIC that will have its connection.
    pub(super) fn take_windows(&mut self, windows: &[MemoryWindow]) -> Vec<MovingWindow> {
        let take = |window: &MemoryWindow| {
            self.memory.uncount_window(window.mr);
            Some((window.key, self.memory.keys.take(window.key)?))
        };
        windows.iter().filter_map(take).collect()
    }

    /// Opens a window that a connection has brought along, under the same key.
    pub(super) fn open_moved(
        &mut self,
        qp: Qp,
        (key, before): &MovingWindow,
        mr: Option<Mr>,
    ) -> Result<(), RnicError> {
        let key = *key;
        let mr = mr.ok_or(RnicError::NoSuch { what: "memory region for window", id: key })?;
        let part = (before.segment.addr(), before.segment.len() as u64);
        let grant = self.grant_window(qp, mr, part, before.access)?;
        if !self.memory.keys.insert_issued(key, grant) {
            return Err(RnicError::Unsupported("hand-over of a window whose key is in use"));
        }
        self.add_window(qp, MemoryWindow { key, mr: mr.key })
    }

    pub(super) fn close_window(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.qps.get(qp.0)?;
        match self.drop_windows(qp.0, |w| w.key == key) {
            0 => Err(RnicError::NoSuch { what: "memory window", id: key }),
            _ => Ok(()),
        }
    }

    /// Closes the windows of a QP that `which` selects; returns how many.
    pub(super) fn drop_windows(&mut self, qp: u32, which: impl Fn(&MemoryWindow) -> bool) -> usize {
        let Ok(pair) = self.qps.get_mut(qp) else { return 0 };
        let (mut found, mut at, mut ended) = (0, 0, false);
        while let Some(&window) = pair.windows.get(at) {
            if !which(&window) {
                at += 1;
                continue;
            }
            pair.windows.swap_remove(at);
            found += 1;
            self.memory.close(window);
            if let Conn::Link(link) = pair.conn
                && let Ok(link) = self.links.get_mut(link)
            {
                ended |= link.close_key(window.key);
            }
        }
        // A window that nothing was using closes silently.
        if ended {
            self.touch(qp);
        }
        found
    }
}
