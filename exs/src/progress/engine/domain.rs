//! Protection domains: groups of connections whose peers can use each other's memory keys.
//!
//! Where a device has no keys for a single queue pair (`Caps::windows`), a key that is open to one
//! peer works on every queue pair of its domain. So sockets that serve peers of different trust
//! belong in different domains. A device has one domain for each `Options::trust_group` in use.
//! Sockets without a trust group share the domain of the process.
//!
//! Some objects work inside one domain only, so each domain has its own: the receive slots, the
//! pool for small unregistered memory, and the pieces for files (together the [`Pools`]), and a
//! registration of each `MemoryRegion` that is used in it. The domain of the process keeps its
//! pools. The pools of a trust group end with its last connection and listener. Its domain ends
//! when the last registration has ended, too, since a `MemoryRegion` may live longer. A device
//! never uses the number of a domain again, so a late completion or registration cannot mean
//! another domain.

use std::ops::Range;

use super::device::map;
use super::files::FilePool;
use super::receives::Receives;
use crate::mem::Access;
use crate::rnic::{Caps, Pd, Rnic, RnicError};
use crate::session::Buf;

/// The pools through which small unregistered memory travels: the number of pieces, and the bytes
/// of each.
const BOUNCES: [(u32, usize); 3] = [(4096, 256), (256, 4 << 10), (32, 64 << 10)];

/// The pools that a device uses. Only devices that pin memory (`Caps::pins`) use the pool of the
/// largest pieces, since registering costs much there. They do without that of the smallest ones,
/// whose memory would be pinned, too.
fn pools_of(caps: &Caps) -> Range<usize> {
    if caps.pins { 1..3 } else { 0..2 }
}

/// A piece of a bounce pool: the index of the pool, and of the piece in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pool: usize,
    slot: u32,
}

/// A bounce pool. The domain makes it when it first needs it.
struct BouncePool {
    buf: Buf,
    free: Vec<u32>,
}

/// The place of a socket's objects: a device, and a domain of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: usize,
    pub(super) domain: u32,
}

impl Place {
    /// The tag under which a region keeps its registration in this place.
    pub(super) fn tag(self) -> u64 {
        u64::from(self.domain) << 32 | self.device as u64
    }

    /// The place that a tag stands for.
    pub(super) fn of_tag(tag: u64) -> Place {
        // `tag` has put both numbers together, so they fit.
        let device = usize::try_from(tag & 0xFFFF_FFFF).unwrap_or(usize::MAX);
        Place { device, domain: u32::try_from(tag >> 32).unwrap_or(u32::MAX) }
    }
}

/// A protection domain of a device.
pub(super) struct Domain {
    pub(super) id: u32,
    /// The trust group. None: this is the domain of the process.
    group: Option<String>,
    pub(super) pd: Pd,
    pub(super) pools: Option<Pools>,
    /// The connections and listeners in the domain.
    pub(super) users: usize,
    /// The registrations, without those of the pools.
    pub(super) registrations: usize,
}

/// The objects that the connections of a domain share.
pub(super) struct Pools {
    pub(super) receives: Receives,
    bounces: [Option<BouncePool>; 3],
    pub(super) files: FilePool,
}

impl Domain {
    /// The trust group. None: this is the domain of the process.
    pub(super) fn group(&self) -> Option<String> {
        self.group.clone()
    }

    pub(super) fn new(
        rnic: &mut dyn Rnic,
        id: u32,
        group: Option<&str>,
    ) -> Result<Domain, RnicError> {
        let (pd, group) = (rnic.alloc_pd()?, group.map(str::to_owned));
        Ok(Domain { id, group, pd, pools: None, users: 0, registrations: 0 })
    }

    pub(super) fn is_of(&self, group: Option<&str>) -> bool {
        self.group.as_deref() == group
    }

    /// True if it has no connections, no listeners, and no registrations but those of its pools.
    pub(super) fn is_unused(&self) -> bool {
        self.users == 0 && self.registrations == 0
    }

    /// Makes the pools, unless they exist.
    pub(super) fn open(&mut self, rnic: &mut dyn Rnic) -> Result<(), RnicError> {
        if self.pools.is_none() {
            let receives = Receives::new(rnic, self.pd, self.id)?;
            self.pools =
                Some(Pools { receives, bounces: [None, None, None], files: FilePool::default() });
        }
        Ok(())
    }

    /// Frees the pools and the domain, as far as nothing uses them any more. True: the domain
    /// itself is gone.
    pub(super) fn close(&mut self, rnic: &mut dyn Rnic) -> bool {
        if self.group.is_none() || self.users > 0 {
            return false;
        }
        if let Some(pools) = self.pools.take() {
            let bounces = pools.bounces.into_iter().flatten().map(|pool| pool.buf);
            // The registrations exist, and nothing uses them, so this fails only if the device is
            // gone.
            for buf in pools.files.into_pieces().chain(bounces) {
                let _ = rnic.dereg_mr(buf.mr);
            }
            pools.receives.end(rnic);
        }
        self.registrations == 0 && rnic.dealloc_pd(self.pd).is_ok()
    }

    /// Takes a piece for `len` bytes. None: no pool has pieces of that length, or all are in use.
    pub(super) fn take_bounce(
        &mut self,
        rnic: &mut dyn Rnic,
        len: usize,
    ) -> Result<Option<Piece>, RnicError> {
        let fits = pools_of(rnic.caps()).find(|pool| len <= BOUNCES[*pool].1);
        let (Some(pool), Some(own)) = (fits, &mut self.pools) else { return Ok(None) };
        let (count, each) = BOUNCES[pool];
        let made = match &mut own.bounces[pool] {
            Some(made) => made,
            none => {
                let seg = map(count as usize * each)?;
                let mr = match rnic.reg_mr(self.pd, &seg, Access::LOCAL) {
                    // The rest of the memory that may be locked may suffice for this operation
                    // alone.
                    Err(RnicError::MemLock { .. }) => return Ok(None),
                    other => other?,
                };
                // Low numbers first, so that pages that are never needed are never touched.
                none.insert(BouncePool { buf: Buf { seg, mr }, free: (0..count).rev().collect() })
            }
        };
        Ok(made.free.pop().map(|slot| Piece { pool, slot }))
    }

    /// The first `len` bytes of a piece.
    pub(super) fn bounce(&self, piece: Piece, len: usize) -> Option<Buf> {
        let pool = self.pools.as_ref()?.bounces[piece.pool].as_ref()?;
        let at = piece.slot as usize * BOUNCES[piece.pool].1;
        Some(Buf { seg: pool.buf.seg.slice(at, len).ok()?, mr: pool.buf.mr })
    }

    pub(super) fn give_bounce(&mut self, piece: Piece) {
        if let Some(pool) = self.pools.as_mut().and_then(|p| p.bounces[piece.pool].as_mut()) {
            pool.free.push(piece.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_has_a_name() {
        for (device, domain) in [(0, 0), (3, 0), (0, 7), (5, u32::MAX)] {
            let place = Place { device, domain };
            assert_eq!(Place::of_tag(place.tag()), place);
        }
        assert_ne!(Place { device: 1, domain: 0 }.tag(), Place { device: 0, domain: 1 }.tag());
    }
}
