//! Protection domains, registrations and windows.
//!
//! The driver's table lists each MR under the key that the floors above use: its rkey if peers may
//! use it, else its lkey. On known devices the two are one number. Each registration keeps its
//! region alive. So the memory of posted work stays mapped until the registration ends.
//!
//! Windows. A device with type-2 memory windows binds one to the queue pair, with the bounds and
//! rights asked for. A device without them (siw, most iWARP) gets
//! - for a strict window (`bind_mw`) a registration of exactly these bytes: it is closed at once,
//!   but valid for every peer in the domain that knows the key;
//! - for a lent window (`lend_mw`) the key of a second registration of the whole MR for remote
//!   writes. It is made when first lent and lives as long as the MR, since to register for each
//!   transfer costs more than the transfer.
//!
//! The bind of a window waits in the send queue behind earlier WRs. A peer may hold them up for so
//! long that the budget for binds is used up (`send_budget`). Then a strict window is refused, and a
//! lent one becomes a registration of exactly these bytes.

use std::sync::Arc;

use super::VerbsRnic;
use super::raw::{Domain, HwOp, HwSge, Registration, Window};
use super::slots::CopySlots;
use crate::mem::{Access, AccessFault, Key, Segment};
use crate::rnic::{Mr, Pd, Qp, RnicError, Sge};

/// `IBV_ACCESS_` bits.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;
const MW_BIND: u32 = 16;
pub(super) const ON_DEMAND: u32 = 64;
/// The bits that the kernel knows of registrations of dma-bufs.
pub(super) const KNOWN_TO_DMABUFS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// Bytes of the longest window: mlx5 binds no longer ones. Longer ranges get a registration.
const MAX_WINDOW: u64 = 1 << 30;

/// Closed windows that a queue pair keeps for later binds.
const MAX_SPARE_WINDOWS: usize = 64;

/// A protection domain and what is in it.
pub(super) struct DomainEntry {
    pub(super) pd: Arc<Domain>,
    pub(super) slots: CopySlots,
    /// Registrations, QPs and SRQs.
    pub(super) users: usize,
}

/// A memory region.
pub(super) struct VerbsMr {
    pd: u32,
    /// None for a region of no bytes, which devices do not register.
    reg: Option<Arc<Registration>>,
    segment: Segment,
    access: Access,
    /// Paged in on demand, or read-only for the program, or a dma-buf: no window can be bound to it.
    odp: bool,
    /// The registration that is lent on devices without windows, and its key.
    shadow: Option<(Key, Registration)>,
    /// Keys of its windows, and of registrations in their place.
    windows: Vec<Key>,
}

/// The object that a key stands for.
pub(super) enum KeyEntry {
    /// A memory region.
    Mr(VerbsMr),
    /// The lent registration of the MR with this key.
    Shadow(Key),
    /// A registration in place of a window.
    Exact { qp: u32, mr: Key, reg: Registration, segment: Segment, access: Access },
    /// A window; `bind` is the number of its bind in the QP's send queue.
    Window { qp: u32, mr: Key, window: Window, bind: u64 },
}

fn bits(access: Access) -> u32 {
    let mut bits = 0;
    if access.writes() {
        bits |= LOCAL_WRITE;
    }
    if access.remote_write {
        bits |= REMOTE_WRITE;
    }
    if access.remote_read {
        bits |= REMOTE_READ;
    }
    if access.remote_atomic {
        bits |= REMOTE_ATOMIC;
    }
    bits
}

/// Registers a segment. The error says what to do if the limit on locked memory forbids it.
pub(super) fn register(
    pd: &Arc<Domain>,
    segment: &Segment,
    access: u32,
) -> Result<Registration, RnicError> {
    if let Some(place) = segment.region().dmabuf() {
        return super::dmabuf::register(pd, segment, place, access);
    }
    Registration::new(pd, segment.addr(), segment.len(), access).map_err(|e| {
        match (e.raw_os_error(), crate::sys::memlock_limit()) {
            (Some(libc::ENOMEM | libc::EAGAIN), Some(limit)) => {
                RnicError::MemLock { len: segment.len() as u64, limit }
            }
            _ => RnicError::os("ibv_reg_mr", &e),
        }
    })
}

/// True if pinning was refused for a reason that does not concern paging on demand: a limit, or pages
/// of a file that the kernel does not pin.
fn may_be_paged(e: &RnicError) -> bool {
    matches!(
        e,
        RnicError::MemLock { .. } | RnicError::Os { errno: libc::EFAULT | libc::EOPNOTSUPP, .. }
    )
}

impl VerbsRnic {
    pub(super) fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        let pd = Domain::new(self.device).map_err(|e| RnicError::os("ibv_alloc_pd", &e))?;
        self.pds.insert(DomainEntry { pd, slots: CopySlots::new(self.attr.odp), users: 0 }).map(Pd)
    }

    pub(super) fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        match self.pds.get(pd.0)?.users {
            0 => self.pds.remove(pd.0).map(drop),
            users => Err(RnicError::Busy { what: "protection domain", id: pd.0, users }),
        }
    }

    /// Registers with pinned pages, or with paging on demand if pinning is refused. True beside the
    /// registration if no window can be bound to it.
    fn pin(
        &self,
        pd: &Arc<Domain>,
        segment: &Segment,
        access: u32,
    ) -> Result<(Registration, bool), RnicError> {
        if segment.region().dmabuf().is_some() {
            return register(pd, segment, access).map(|reg| (reg, true));
        }
        let window = if self.caps.windows { MW_BIND } else { 0 };
        match register(pd, segment, access | window) {
            // To the kernel, the right to bind windows is a right to write. Memory that the program
            // itself may only read has to do without it.
            Err(RnicError::Os { errno: libc::EFAULT, .. }) if access == 0 && window != 0 => {
                register(pd, segment, access).map(|reg| (reg, true))
            }
            Err(e) if self.attr.odp && may_be_paged(&e) => {
                register(pd, segment, access | ON_DEMAND).map(|reg| (reg, true))
            }
            Err(RnicError::Os { errno: errno @ (libc::EFAULT | libc::EOPNOTSUPP), .. }) => {
                Err(RnicError::Unpinnable { len: segment.len() as u64, errno })
            }
            other => other.map(|reg| (reg, false)),
        }
    }

    pub(super) fn reg_mr(
        &mut self,
        pd: Pd,
        segment: &Segment,
        access: Access,
    ) -> Result<Mr, RnicError> {
        let domain = Arc::clone(&self.pds.get(pd.0)?.pd);
        let (reg, odp, key) = if segment.is_empty() {
            (None, false, self.unused_key())
        } else {
            let (reg, odp) = self.pin(&domain, segment, bits(access))?;
            let (lkey, rkey) = reg.keys();
            (Some(Arc::new(reg)), odp, if access.is_remote() { rkey } else { lkey })
        };
        let region = VerbsMr {
            pd: pd.0,
            reg,
            segment: segment.clone(),
            access,
            odp,
            shadow: None,
            windows: Vec::new(),
        };
        self.keys.insert(key, KeyEntry::Mr(region));
        self.pds.get_mut(pd.0)?.users += 1;
        Ok(Mr { key })
    }

    /// A key for a region of no bytes, which no device hands out.
    fn unused_key(&self) -> Key {
        (1..=Key::MAX).rev().find(|k| !self.keys.contains_key(k)).unwrap_or(Key::MAX)
    }

    pub(super) fn region(&self, mr: Mr) -> Result<&VerbsMr, RnicError> {
        match self.keys.get(&mr.key) {
            Some(KeyEntry::Mr(r)) => Ok(r),
            _ => Err(RnicError::NoSuch { what: "memory region", id: mr.key }),
        }
    }

    fn region_mut(&mut self, mr: Key) -> Result<&mut VerbsMr, RnicError> {
        match self.keys.get_mut(&mr) {
            Some(KeyEntry::Mr(r)) => Ok(r),
            _ => Err(RnicError::NoSuch { what: "memory region", id: mr }),
        }
    }

    pub(super) fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.region(mr)?;
        let Some(KeyEntry::Mr(region)) = self.keys.remove(&mr.key) else {
            unreachable!("looked up")
        };
        // A device refuses to end a registration that has windows.
        for key in &region.windows {
            let qp = match self.keys.remove(key) {
                Some(KeyEntry::Window { qp, window, bind, .. }) => {
                    self.wait_for_bind(qp, bind);
                    drop(window);
                    qp
                }
                Some(KeyEntry::Exact { qp, .. }) => qp,
                _ => continue,
            };
            self.forget_window(qp, *key);
        }
        if let Some((key, shadow)) = region.shadow {
            self.keys.remove(&key);
            drop(shadow);
        }
        // Receives that are not with the device yet must not get there any more.
        self.revoke_early_recvs(mr.key);
        if let Ok(pd) = self.pds.get_mut(region.pd) {
            pd.users -= 1;
        }
        Ok(())
    }

    /// Checks a local segment of a WR, and gives it the device's own key.
    pub(super) fn resolve(&self, pd: u32, sge: &Sge, need: Access) -> Result<HwSge, RnicError> {
        let key = sge.lkey;
        let invalid = RnicError::Memory(AccessFault::InvalidKey { key });
        let (segment, have, lkey) = match self.keys.get(&key) {
            Some(KeyEntry::Mr(r)) if r.pd == pd => {
                let lkey = r.reg.as_ref().map_or(0, |reg| reg.keys().0);
                (&r.segment, r.access, lkey)
            }
            Some(KeyEntry::Shadow(mr)) => match self.keys.get(mr) {
                Some(KeyEntry::Mr(r)) if r.pd == pd => {
                    let lkey = r.shadow.as_ref().map_or(0, |(_, reg)| reg.keys().0);
                    (&r.segment, Access::REMOTE_WRITE, lkey)
                }
                _ => return Err(invalid),
            },
            Some(KeyEntry::Exact { reg, segment, access, .. }) => (segment, *access, reg.keys().0),
            _ => return Err(invalid),
        };
        if need.local_write && !have.writes() || need.remote_write && !have.remote_write {
            return Err(RnicError::Memory(AccessFault::Rights { key, need, have }));
        }
        slice_of(key, segment, sge.addr, sge.len)?;
        let len = u32::try_from(sge.len).map_err(|_| RnicError::Limit {
            what: "bytes of a segment",
            asked: sge.len,
            limit: u64::from(u32::MAX),
        })?;
        Ok(HwSge { addr: sge.addr, len, lkey })
    }

    /// The bytes of a segment that a send copies.
    pub(super) fn source(&self, sge: &Sge) -> Result<Segment, RnicError> {
        let segment = match self.keys.get(&sge.lkey) {
            Some(KeyEntry::Mr(r)) => &r.segment,
            Some(KeyEntry::Exact { segment, .. }) => segment,
            _ => return Err(RnicError::Memory(AccessFault::InvalidKey { key: sge.lkey })),
        };
        Ok(slice_of(sge.lkey, segment, sge.addr, sge.len)?)
    }

    /// Opens a window of exactly these bytes. It is open when this returns.
    pub(super) fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        let key = self.open_window(qp, mr, addr, len, access, true)?;
        // The peer may get the key by another way than this queue pair, and rxe executes a bind late.
        // A peer that holds up our sends is not waited for.
        if let Some(KeyEntry::Window { bind, .. }) = self.keys.get(&key) {
            let bind = *bind;
            self.bind_completes(qp.0, bind, 1000);
        }
        Ok(key)
    }

    /// Opens a window for a transfer. It opens with the next doorbell.
    pub(super) fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        if self.caps.windows && !self.region(mr)?.odp {
            return self.open_window(qp, mr, addr, len, access, false);
        }
        let pd = self.live_qp(qp)?;
        self.check_window(pd, mr, addr, len, access)?;
        if access.remote_read || access.remote_atomic {
            return self.open_window(qp, mr, addr, len, access, false);
        }
        let domain = Arc::clone(&self.pds.get(pd)?.pd);
        let region = self.region(mr)?;
        let key = match &region.shadow {
            Some((key, _)) => *key,
            None => {
                let more = if region.odp && self.attr.odp { ON_DEMAND } else { 0 };
                let shadow = register(&domain, &region.segment, LOCAL_WRITE | REMOTE_WRITE | more)?;
                let key = shadow.keys().1;
                self.region_mut(mr.key)?.shadow = Some((key, shadow));
                self.keys.insert(key, KeyEntry::Shadow(mr.key));
                key
            }
        };
        *self.qps.get_mut(qp.0)?.lent_keys.entry(key).or_default() += 1;
        Ok(key)
    }

    fn check_window(
        &self,
        pd: u32,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(), RnicError> {
        let region = self.region(mr)?;
        let (key, have) = (mr.key, region.access);
        if region.pd != pd {
            return Err(RnicError::Memory(AccessFault::InvalidKey { key }));
        }
        // As in verbs: a window for writing needs memory that may be written at all.
        if (access.remote_write || access.remote_atomic) && !have.writes() {
            let need = Access::LOCAL;
            return Err(RnicError::Memory(AccessFault::Rights { key, need, have }));
        }
        slice_of(key, &region.segment, addr, len)?;
        Ok(())
    }

    fn open_window(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
        strict: bool,
    ) -> Result<Key, RnicError> {
        let pd = self.live_qp(qp)?;
        self.check_window(pd, mr, addr, len, access)?;
        let domain = Arc::clone(&self.pds.get(pd)?.pd);
        let region = self.region(mr)?;
        // A range that cannot be bound gets a registration.
        let binds = self.caps.windows && region.reg.is_some() && !region.odp;
        let binds = binds && (1..=MAX_WINDOW).contains(&len) && self.reserve_bind(qp.0, strict)?;
        let region = self.region(mr)?;
        let whole = region.segment.clone();
        let segment = slice_of(mr.key, &whole, addr, len)?;
        let (key, entry) = match &region.reg {
            Some(reg) if binds => {
                let reg = Arc::clone(reg);
                let spare = self.qps.get_mut(qp.0)?.spare.pop();
                let mut window = spare
                    .map_or_else(|| Window::new(&domain), Ok)
                    .map_err(|e| RnicError::os("ibv_alloc_mw", &e))?;
                let rights = bits(access) & !LOCAL_WRITE;
                let op = HwOp::bind(&window, &reg, addr, len, rights);
                let bind = self.stage_bind(qp.0, op)?;
                window.bind_to(&reg);
                (window.key(), KeyEntry::Window { qp: qp.0, mr: mr.key, window, bind })
            }
            None => return Err(RnicError::Unsupported("window on a region of no bytes")),
            Some(_) => {
                let odp = if region.odp && self.attr.odp { ON_DEMAND } else { 0 };
                let reg = register(&domain, &segment, bits(access) | odp)?;
                let key = reg.keys().1;
                (key, KeyEntry::Exact { qp: qp.0, mr: mr.key, reg, segment, access })
            }
        };
        self.keys.insert(key, entry);
        self.region_mut(mr.key)?.windows.push(key);
        self.qps.get_mut(qp.0)?.windows.push(key);
        Ok(key)
    }

    pub(super) fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        let no_such = RnicError::NoSuch { what: "memory window", id: key };
        let lent = &mut self.qps.get_mut(qp.0)?.lent_keys;
        if let Some(count) = lent.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                lent.remove(&key);
            }
            return Ok(());
        }
        match self.keys.get(&key) {
            Some(KeyEntry::Window { qp: owner, .. } | KeyEntry::Exact { qp: owner, .. })
                if *owner == qp.0 => {}
            _ => return Err(no_such),
        }
        self.forget_window(qp.0, key);
        match self.keys.remove(&key) {
            Some(KeyEntry::Window { mr, window, bind, .. }) => {
                self.wait_for_bind(qp.0, bind);
                // Freeing a window closes it before the call returns. A work request would close it at some
                // later time.
                drop(window);
                self.drop_from_region(mr, key);
            }
            Some(KeyEntry::Exact { mr, reg, .. }) => {
                drop(reg);
                self.drop_from_region(mr, key);
            }
            _ => {}
        }
        Ok(())
    }

    /// True if the key is that of a window. To close it takes one system call, to open another one.
    pub(super) fn invalidate_is_costly(&self, key: Key) -> bool {
        matches!(self.keys.get(&key), Some(KeyEntry::Window { .. }))
    }

    /// Records that the device has closed a window by itself (SEND with Invalidate). The window is kept
    /// for a later transfer: to bind it again takes no system call of its own.
    pub(super) fn closed_by_peer(&mut self, qp: u32, key: Key) {
        if !matches!(self.keys.get(&key), Some(KeyEntry::Window { qp: owner, .. }) if *owner == qp)
        {
            return;
        }
        let Some(KeyEntry::Window { mr, mut window, .. }) = self.keys.remove(&key) else { return };
        self.forget_window(qp, key);
        self.drop_from_region(mr, key);
        if let Ok(q) = self.qps.get_mut(qp)
            && q.spare.len() < MAX_SPARE_WINDOWS
        {
            window.was_closed();
            q.spare.push(window);
        }
    }

    fn drop_from_region(&mut self, mr: Key, key: Key) {
        if let Ok(region) = self.region_mut(mr) {
            region.windows.retain(|k| *k != key);
        }
    }

    fn forget_window(&mut self, qp: u32, key: Key) {
        if let Ok(qp) = self.qps.get_mut(qp) {
            qp.windows.retain(|k| *k != key);
        }
    }

    /// Frees the windows of a queue pair that is gone.
    pub(super) fn drop_windows(&mut self, windows: Vec<Key>) {
        for key in windows {
            let (Some(KeyEntry::Window { mr, .. }) | Some(KeyEntry::Exact { mr, .. })) =
                self.keys.remove(&key)
            else {
                continue;
            };
            self.drop_from_region(mr, key);
        }
    }
}

/// The part of a region that `addr` and `len` name.
fn slice_of(key: Key, segment: &Segment, addr: u64, len: u64) -> Result<Segment, AccessFault> {
    let (base, size) = (segment.addr(), segment.len() as u64);
    if addr.checked_add(len).is_none() {
        return Err(AccessFault::Wrap { addr, len });
    }
    let bounds = AccessFault::Bounds { key, addr, len, base, size };
    let offset = addr.checked_sub(base).ok_or(bounds)?;
    let fits = |n: u64| usize::try_from(n).map_err(|_| bounds);
    segment.slice(fits(offset)?, fits(len)?).map_err(|_| bounds)
}
