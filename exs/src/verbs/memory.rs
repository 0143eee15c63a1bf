//! Protection domains, and what each memory key stands for.
//!
//! [`DeviceMemory`] lists each MR under the key that the floors above use: its rkey if peers may use it,
//! else its lkey. On known devices the two are one number. Each registration keeps its region alive.
//! So the memory of posted work stays mapped until the registration ends.
//!
//! Windows have keys of their own (`windows` says how they open and close). Each is listed in its MR
//! too, since a device refuses to end a registration that has windows.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::raw::{Attr, Device, Domain, HwSge, Registration, Window};
use super::registrar::MemoryRegistrar;
use super::slots::{CopySlot, CopySlots};
use crate::mem::{Access, AccessFault, Key, KeyHasher, Segment};
use crate::rnic::table::IdTable;
use crate::rnic::{Mr, Pd, RnicError, Sge};

/// Bytes of the longest window: mlx5 binds no longer ones. Longer ranges get a registration.
const MAX_WINDOW: u64 = 1 << 30;

/// A protection domain and what is in it.
struct DomainEntry {
    domain: Arc<Domain>,
    slots: CopySlots,
    /// Registrations, QPs and SRQs.
    users: usize,
}

/// A memory region.
struct VerbsMr {
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

/// A window that is open for the peer of a queue pair.
pub(super) struct OpenWindow {
    pub(super) qp: u32,
    mr: Key,
    pub(super) grant: WindowGrant,
}

/// What gives a peer its rights.
pub(super) enum WindowGrant {
    /// A window; `bind` is the number of its bind in the QP's send queue.
    Bound { window: Window, bind: u64 },
    /// A registration in place of a window.
    Exact { reg: Registration, segment: Segment, access: Access },
}

/// The object that a key stands for.
enum KeyEntry {
    Mr(VerbsMr),
    /// The lent registration of the MR with this key.
    Shadow(Key),
    Window(OpenWindow),
}

/// See the module's essay.
pub(super) struct DeviceMemory {
    device: Device,
    registrar: MemoryRegistrar,
    domains: IdTable<DomainEntry>,
    keys: HashMap<Key, KeyEntry, BuildHasherDefault<KeyHasher>>,
}

impl DeviceMemory {
    pub(super) fn new(device: Device, attr: &Attr) -> DeviceMemory {
        DeviceMemory {
            device,
            registrar: MemoryRegistrar::new(attr),
            domains: IdTable::new("protection domain"),
            keys: HashMap::default(),
        }
    }

    // ---- domains -----------------------------------------------------------------------

    pub(super) fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        let domain = Domain::new(self.device).map_err(|e| RnicError::os("ibv_alloc_pd", &e))?;
        let slots = CopySlots::new(&domain, self.registrar);
        self.domains.insert(DomainEntry { domain, slots, users: 0 }).map(Pd)
    }

    pub(super) fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        match self.domains.get(pd.0)?.users {
            0 => self.domains.remove(pd.0).map(drop),
            users => Err(RnicError::Busy { what: "protection domain", id: pd.0, users }),
        }
    }

    pub(super) fn domain(&self, pd: u32) -> Result<&Arc<Domain>, RnicError> {
        self.domains.get(pd).map(|entry| &entry.domain)
    }

    /// A QP or SRQ of the domain was made.
    pub(super) fn add_user(&mut self, pd: u32) -> Result<(), RnicError> {
        self.domains.get_mut(pd)?.users += 1;
        Ok(())
    }

    /// A QP or SRQ of the domain is gone.
    pub(super) fn remove_user(&mut self, pd: u32) -> Result<(), RnicError> {
        self.domains.get_mut(pd)?.users -= 1;
        Ok(())
    }

    /// The slots of a domain.
    pub(super) fn slots(&mut self, pd: u32) -> Result<&mut CopySlots, RnicError> {
        self.domains.get_mut(pd).map(|entry| &mut entry.slots)
    }

    /// Gives a slot back to its domain.
    pub(super) fn give_slot(&mut self, pd: u32, slot: CopySlot) {
        if let Ok(entry) = self.domains.get_mut(pd) {
            entry.slots.give(slot);
        }
    }

    /// Frees everything, as the device has gone.
    pub(super) fn release(&mut self) {
        self.keys.clear();
        let all: Vec<u32> = self.domains.iter().map(|(id, _)| id).collect();
        for id in all {
            drop(self.domains.remove(id));
        }
    }

    // ---- regions -----------------------------------------------------------------------

    pub(super) fn reg_mr(
        &mut self,
        pd: Pd,
        segment: &Segment,
        access: Access,
    ) -> Result<Mr, RnicError> {
        let domain = self.domain(pd.0)?;
        let (reg, odp, key) = if segment.is_empty() {
            (None, false, self.unused_key())
        } else {
            let (reg, odp) = self.registrar.pin(domain, segment, access)?;
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
        self.add_user(pd.0)?;
        Ok(Mr { key })
    }

    /// A key for a region of no bytes, which no device hands out.
    fn unused_key(&self) -> Key {
        (1..=Key::MAX).rev().find(|k| !self.keys.contains_key(k)).unwrap_or(Key::MAX)
    }

    fn region(&self, mr: Mr) -> Result<&VerbsMr, RnicError> {
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

    /// Takes the windows of a region out, which is about to end. The caller must drop them first.
    ///
    /// # Errors
    /// [`RnicError::NoSuch`].
    pub(super) fn take_windows_of(&mut self, mr: Mr) -> Result<Vec<(Key, OpenWindow)>, RnicError> {
        let keys = std::mem::take(&mut self.region_mut(mr.key)?.windows);
        let take = |key| self.take_window(key).map(|window| (key, window));
        Ok(keys.into_iter().filter_map(take).collect())
    }

    /// Ends a region without windows.
    pub(super) fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        let region = self.region_mut(mr.key)?;
        debug_assert!(region.windows.is_empty(), "a device refuses to end it");
        let (pd, shadow) = (region.pd, region.shadow.take());
        if let Some((key, shadow)) = shadow {
            self.keys.remove(&key);
            drop(shadow);
        }
        self.keys.remove(&mr.key);
        // The domain may be gone with the device.
        let _ = self.remove_user(pd);
        Ok(())
    }

    // ---- segments of WRs ---------------------------------------------------------------

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
            Some(KeyEntry::Window(OpenWindow {
                grant: WindowGrant::Exact { reg, segment, access },
                ..
            })) => (segment, *access, reg.keys().0),
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
            Some(KeyEntry::Window(OpenWindow {
                grant: WindowGrant::Exact { segment, .. },
                ..
            })) => segment,
            _ => return Err(RnicError::Memory(AccessFault::InvalidKey { key: sge.lkey })),
        };
        Ok(slice_of(sge.lkey, segment, sge.addr, sge.len)?)
    }

    // ---- windows -----------------------------------------------------------------------

    /// Checks the range and the rights of a window that is asked for.
    pub(super) fn check_window(
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

    /// True if a range of this length of a region can be bound; else it gets a registration.
    pub(super) fn is_bindable(&self, mr: Mr, len: u64) -> Result<bool, RnicError> {
        let region = self.region(mr)?;
        let binds = self.registrar.binds_windows() && region.reg.is_some() && !region.odp;
        Ok(binds && (1..=MAX_WINDOW).contains(&len))
    }

    /// True if transfers are lent windows of this region, rather than the key of a registration of all
    /// of it.
    pub(super) fn lends_windows(&self, mr: Mr) -> Result<bool, RnicError> {
        Ok(self.registrar.binds_windows() && !self.region(mr)?.odp)
    }

    /// The key of the registration of the whole region for remote writes, which is made when it is first
    /// lent.
    pub(super) fn lent_key(&mut self, mr: Mr) -> Result<Key, RnicError> {
        let region = self.region(mr)?;
        if let Some((key, _)) = region.shadow {
            return Ok(key);
        }
        let domain = self.domain(region.pd)?;
        let (segment, access) = (&region.segment, Access::REMOTE_WRITE);
        let shadow = self.registrar.for_peer(domain, segment, access, region.odp)?;
        let key = shadow.keys().1;
        self.region_mut(mr.key)?.shadow = Some((key, shadow));
        self.keys.insert(key, KeyEntry::Shadow(mr.key));
        Ok(key)
    }

    /// The registration that windows of a region are bound to.
    pub(super) fn registration(&self, mr: Mr) -> Result<Arc<Registration>, RnicError> {
        let none = RnicError::Unsupported("window on a region of no bytes");
        self.region(mr)?.reg.as_ref().map(Arc::clone).ok_or(none)
    }

    /// A registration of a part of a region, in place of a window.
    pub(super) fn register_part(
        &self,
        mr: Mr,
        (addr, len): (u64, u64),
        access: Access,
    ) -> Result<(Key, WindowGrant), RnicError> {
        self.registration(mr)?;
        let region = self.region(mr)?;
        let segment = slice_of(mr.key, &region.segment, addr, len)?;
        let domain = self.domain(region.pd)?;
        let reg = self.registrar.for_peer(domain, &segment, access, region.odp)?;
        Ok((reg.keys().1, WindowGrant::Exact { reg, segment, access }))
    }

    /// Lists a window that a queue pair has opened.
    pub(super) fn add_window(
        &mut self,
        key: Key,
        (qp, mr): (u32, Mr),
        grant: WindowGrant,
    ) -> Result<(), RnicError> {
        self.region_mut(mr.key)?.windows.push(key);
        self.keys.insert(key, KeyEntry::Window(OpenWindow { qp, mr: mr.key, grant }));
        Ok(())
    }

    /// The window of a key.
    pub(super) fn window(&self, key: Key) -> Option<&OpenWindow> {
        match self.keys.get(&key)? {
            KeyEntry::Window(window) => Some(window),
            KeyEntry::Mr(_) | KeyEntry::Shadow(_) => None,
        }
    }

    /// Takes a window out. It closes when it is dropped.
    pub(super) fn take_window(&mut self, key: Key) -> Option<OpenWindow> {
        self.window(key)?;
        let Some(KeyEntry::Window(window)) = self.keys.remove(&key) else { return None };
        if let Ok(region) = self.region_mut(window.mr) {
            region.windows.retain(|k| *k != key);
        }
        Some(window)
    }

    /// Closes the windows of a queue pair that is gone.
    pub(super) fn drop_windows(&mut self, keys: Vec<Key>) {
        for key in keys {
            drop(self.take_window(key));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;

    #[test]
    fn a_slice_is_within_its_region_and_does_not_wrap() {
        let region = Region::map(4096).unwrap();
        let whole = region.segment(0, 4096).unwrap();
        let base = whole.addr();
        let part = |addr, len| slice_of(7, &whole, addr, len).map(|s| (s.addr(), s.len()));
        assert_eq!(part(base, 4096), Ok((base, 4096)));
        assert_eq!(part(base + 4000, 96), Ok((base + 4000, 96)));
        assert_eq!(part(base + 4096, 0), Ok((base + 4096, 0)));
        for (addr, len) in [(base - 1, 2), (base, 4097), (base + 4000, 97), (base + 4097, 0)] {
            let bounds = AccessFault::Bounds { key: 7, addr, len, base, size: 4096 };
            assert_eq!(part(addr, len), Err(bounds));
        }
        let (addr, len) = (base, u64::MAX - base + 1);
        assert_eq!(part(addr, len), Err(AccessFault::Wrap { addr, len }));
    }
}
