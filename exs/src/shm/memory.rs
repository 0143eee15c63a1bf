//! Protection domains, memory regions and windows.
//!
//! As on the software RNIC, a key is random, belongs to one domain or one queue pair, and is looked
//! up whenever bytes move. So closing a window, or ending a registration, removes a key and makes
//! sure that no work still uses the memory.

use super::ShmRnic;
use super::qp::ShmConn;
use crate::mem::{Access, Grant, Key, Scope, Segment};
use crate::rnic::users::MrUserSet;
use crate::rnic::{Mr, Pd, Qp, RnicError, TermCode};

/// A memory window of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct MemoryWindow {
    key: Key,
    mr: Key,
}

impl MemoryWindow {
    /// True if this window has this key.
    pub(super) fn is(&self, key: Key) -> bool {
        self.key == key
    }
}

impl ShmRnic {
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
        Ok(Mr { key })
    }

    pub(super) fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        let pd = match self.keys.get(mr.key).map(|g| g.scope) {
            Some(Scope::Domain(pd)) => pd,
            _ => return Err(RnicError::NoSuch { what: "memory region", id: mr.key }),
        };
        let grant = self.keys.remove(mr.key);
        if let Ok(domain) = self.objects.pds.get_mut(pd) {
            domain.mrs = domain.mrs.saturating_sub(1);
        }
        let qps = match self.users.forget(mr.key) {
            // Registered, but no work ever named it.
            None => Vec::new(),
            Some(MrUserSet::One(qp)) => vec![qp],
            Some(MrUserSet::Any) => {
                let (qps, srqs) = match self.objects.pds.get(pd) {
                    Ok(d) => (d.qps.iter().copied().collect(), d.srqs.clone()),
                    Err(_) => (Vec::new(), Vec::new()),
                };
                for srq in srqs {
                    if let Ok(queue) = self.objects.srqs.get_mut(srq) {
                        queue.bufs.iter_mut().for_each(|b| b.revoke(mr.key));
                    }
                }
                qps
            }
        };
        // Dropped before `sweep` looks for regions that have no user left here.
        drop(grant);
        for qp in qps {
            self.revoke_from(qp, mr.key);
        }
        Ok(())
    }

    /// Takes the memory of an MR away from a queue pair, which may be gone already.
    fn revoke_from(&mut self, id: u32, key: Key) {
        self.drop_windows(id, |w| w.mr == key);
        let Ok(qp) = self.qps.get_mut(id) else { return };
        qp.recvs.iter_mut().for_each(|b| b.revoke(key));
        let ShmConn::Link(link) = qp.conn else { return };
        let Ok(l) = self.links.get_mut(link) else { return };
        if l.tx.uses(key) || l.rx.uses(key) {
            // The peer may be reading the memory, or about to. Its connection is cut before this
            // returns, so the peer discards what it has read.
            let code = TermCode { layer: 0, etype: 0, code: 0 };
            self.cut(link, crate::rnic::DisconnectCause::TerminatedByUs(code), Some(key));
        } else if l.shares.any()
            && let Some(sock) = l.sock.as_ref()
        {
            l.shares.sweep(std::os::fd::AsFd::as_fd(sock));
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
        // A window for writing needs a region that may be written at all, as in verbs.
        let local_write = access.local_write || access.remote_write;
        let need = Access { local_write, ..Access::LOCAL_READ };
        let segment = self.keys.check_local(pd, mr.key, addr, len, need)?;
        let scope = Scope::QueuePair(pd, qp.0);
        let key = self.issue_key(Grant { segment, access, scope });
        self.users.note(qp.0, &[mr.key]);
        self.qps.get_mut(qp.0)?.windows.push(MemoryWindow { key, mr: mr.key });
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
    pub(super) fn drop_windows(&mut self, qp: u32, which: impl Fn(&MemoryWindow) -> bool) -> usize {
        let Ok(pair) = self.qps.get_mut(qp) else { return 0 };
        let before = pair.windows.len();
        let keys = &mut self.keys;
        pair.windows.retain(|w| {
            let ends = which(w);
            if ends {
                keys.remove(w.key);
            }
            !ends
        });
        before - pair.windows.len()
    }
}
