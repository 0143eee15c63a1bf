//! Protection domains, memory regions and windows.

use super::SoftRnic;
use super::qp::SoftConn;
use crate::mem::{Access, Grant, Key, Scope, Segment};
use crate::rnic::users::MrUserSet;
use crate::rnic::{Mr, Pd, Qp, QpState, RnicError};

/// A memory window of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct SoftWindow {
    key: Key,
    mr: Key,
}

impl SoftRnic {
    fn issue_key(&mut self, grant: Grant) -> Key {
        let random = &mut self.random;
        self.keys.insert(grant, &mut || random.next_u32())
    }

    pub(super) fn reg_mr(
        &mut self,
        pd: Pd,
        memory: &Segment,
        access: Access,
    ) -> Result<Mr, RnicError> {
        self.objects.pds.get_mut(pd.0)?.mrs += 1;
        let scope = Scope::Domain(pd.0);
        let key = self.issue_key(Grant { segment: memory.clone(), access, scope });
        if access.remote_read || access.remote_write {
            // The peers of all its connections may name it.
            self.users.note_shared(&[key]);
        }
        Ok(Mr { key })
    }

    /// The domain of an MR.
    fn mr_domain(&self, mr: Mr) -> Result<u32, RnicError> {
        match self.keys.get(mr.key).map(|g| g.scope) {
            Some(Scope::Domain(pd)) => Ok(pd),
            _ => Err(RnicError::NoSuch { what: "memory region", id: mr.key }),
        }
    }

    pub(super) fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        let pd = self.mr_domain(mr)?;
        self.keys.remove(mr.key);
        self.drop_region(pd, mr.key);
        Ok(())
    }

    /// After an MR's key was removed: closes its windows, and takes its memory away from all work that
    /// still refers to it.
    fn drop_region(&mut self, pd: u32, key: Key) {
        let Ok(domain) = self.objects.pds.get_mut(pd) else { return };
        domain.mrs = domain.mrs.saturating_sub(1);
        match self.users.forget(key) {
            // Registered, but no work ever named it.
            None => {}
            Some(MrUserSet::One(qp)) => self.revoke_from(qp, key),
            Some(MrUserSet::Any) => {
                let (qps, srqs) = (domain.qps.clone(), domain.srqs.clone());
                for srq in srqs {
                    if let Ok(queue) = self.objects.srqs.get_mut(srq) {
                        queue.bufs.iter_mut().for_each(|b| b.revoke(key));
                    }
                }
                for qp in qps {
                    self.revoke_from(qp, key);
                }
            }
        }
    }

    /// Takes the memory of an MR away from a queue pair, which may be gone already.
    fn revoke_from(&mut self, id: u32, key: Key) {
        if self.window_counts.contains_key(&key) {
            self.drop_windows(id, |w| w.mr == key);
        }
        let Ok(qp) = self.qps.get_mut(id) else { return };
        qp.early_recvs.iter_mut().for_each(|b| b.revoke(key));
        if let SoftConn::Link(link) = qp.conn
            && let Ok(link) = self.links.get_mut(link)
        {
            link.engine.mr_revoked(key);
            if link.engine.state() != QpState::Rts {
                self.touch(id);
            }
        }
    }

    pub(super) fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        let pd = self.live_qp(qp, "a live connection")?.attr.pd.0;
        // A window for writing needs a region that may be written at all (IBV_ACCESS_LOCAL_WRITE, as in
        // verbs). A window for reading needs nothing.
        let local_write = access.local_write || access.remote_write;
        let need = Access { local_write, ..Access::LOCAL_READ };
        let segment = self.keys.check_local(pd, mr.key, addr, len, need)?;
        let scope = Scope::QueuePair(pd, qp.0);
        let key = self.issue_key(Grant { segment, access, scope });
        *self.window_counts.entry(mr.key).or_default() += 1;
        self.users.note(qp.0, &[mr.key]);
        self.qps.get_mut(qp.0)?.windows.push(SoftWindow { key, mr: mr.key });
        Ok(key)
    }

    pub(super) fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.qps.get(qp.0)?;
        match self.drop_windows(qp.0, |w| w.key == key) {
            0 => Err(RnicError::NoSuch { what: "memory window", id: key }),
            _ => Ok(()),
        }
    }

    /// Closes the windows of a QP that `which` selects; returns how many.
    pub(super) fn drop_windows(&mut self, qp: u32, which: impl Fn(&SoftWindow) -> bool) -> usize {
        let Ok(pair) = self.qps.get_mut(qp) else { return 0 };
        let (mut found, mut at, mut ended) = (0, 0, false);
        while let Some(&window) = pair.windows.get(at) {
            if !which(&window) {
                at += 1;
                continue;
            }
            pair.windows.swap_remove(at);
            found += 1;
            self.keys.remove(window.key);
            if let Some(n) = self.window_counts.get_mut(&window.mr) {
                *n -= 1;
                if *n == 0 {
                    self.window_counts.remove(&window.mr);
                }
            }
            if let SoftConn::Link(link) = pair.conn
                && let Ok(link) = self.links.get_mut(link)
            {
                link.engine.key_revoked(window.key);
                ended |= link.engine.state() != QpState::Rts;
            }
        }
        // A window that nothing was using closes silently.
        if ended {
            self.touch(qp);
        }
        found
    }

    /// Records that a peer has invalidated a window by SEND WITH INVALIDATE. The engine has removed the
    /// key already. It lets a peer end windows of its own connection only.
    pub(super) fn forget_invalidated(&mut self, qp: u32, key: Key) {
        self.drop_windows(qp, |w| w.key == key);
    }
}
