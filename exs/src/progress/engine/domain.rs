//! Protection domains: the groups of connections that may reach each other's memory
//! keys.
//!
//! A key that was opened to a peer works on every queue pair of its domain, as far as
//! the device has no keys of one queue pair (`Caps::windows`). So sockets that serve
//! peers of different trust belong into different domains, one for each
//! `Options::trust_group` that is in use on a device; sockets that name none share the
//! domain of the process.
//!
//! What can only be used inside of one domain is there once for each: the receive
//! slots, the pool for small unregistered memory, the pieces for files (together the
//! [`Pools`]), and a registration of each `MemoryRegion` that is used in it. The domain of
//! the process keeps its pools. Those of another end with its last connection and
//! listener; the domain itself ends with the last registration besides, since a
//! `MemoryRegion` may live longer. A domain's number is never used again in its place
//! of the table of devices, so a late completion or registration cannot mean another.

use super::device::map;
use super::files::FilePool;
use super::receives::Receives;
use crate::mem::Access;
use crate::rnic::{Pd, Rnic, RnicError};
use crate::session::Buf;

/// The pools through which small unregistered memory travels: pieces, and bytes of each.
/// The second is for devices to which registering is dear (`Caps::pins`).
const BOUNCES: [(u32, usize); 2] = [(256, 4 << 10), (32, 64 << 10)];

/// A piece of a bounce pool: which pool, and which piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pool: usize,
    slot: u32,
}

/// One pool, made when first needed.
struct BouncePool {
    buf: Buf,
    free: Vec<u32>,
}

/// Where a socket's objects are: a device, and a domain of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: usize,
    pub(super) domain: u32,
}

impl Place {
    /// The name under which a region keeps its registration here.
    pub(super) fn tag(self) -> u64 {
        u64::from(self.domain) << 32 | self.device as u64
    }

    /// The place of a name.
    pub(super) fn of_tag(tag: u64) -> Place {
        // Both are what `tag` put together.
        let device = usize::try_from(tag & 0xFFFF_FFFF).unwrap_or(usize::MAX);
        Place { device, domain: u32::try_from(tag >> 32).unwrap_or(u32::MAX) }
    }
}

/// A protection domain of a device.
pub(super) struct Domain {
    pub(super) id: u32,
    /// Its trust group; none for that of the process.
    group: Option<String>,
    pub(super) pd: Pd,
    pub(super) pools: Option<Pools>,
    /// Connections and listeners.
    pub(super) users: usize,
    /// Registrations other than those of the pools.
    pub(super) registrations: usize,
}

/// What the connections of a domain share.
pub(super) struct Pools {
    pub(super) receives: Receives,
    bounces: [Option<BouncePool>; 2],
    pub(super) files: FilePool,
}

impl Domain {
    /// Its trust group; none for the domain of the process.
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

    /// It has no connections, no listeners, and no registrations but its own.
    pub(super) fn is_unused(&self) -> bool {
        self.users == 0 && self.registrations == 0
    }

    /// Makes what its connections share, if it is not there.
    pub(super) fn open(&mut self, rnic: &mut dyn Rnic) -> Result<(), RnicError> {
        if self.pools.is_none() {
            let receives = Receives::new(rnic, self.pd, self.id)?;
            self.pools =
                Some(Pools { receives, bounces: [None, None], files: FilePool::default() });
        }
        Ok(())
    }

    /// Gives back what nothing uses any more; true if that is the domain itself.
    pub(super) fn close(&mut self, rnic: &mut dyn Rnic) -> bool {
        if self.group.is_none() || self.users > 0 {
            return false;
        }
        if let Some(pools) = self.pools.take() {
            let bounces = pools.bounces.into_iter().flatten().map(|pool| pool.buf);
            // They exist, and nothing uses them: there is nothing to go wrong, unless
            // the device is gone.
            for buf in pools.files.into_pieces().chain(bounces) {
                let _ = rnic.dereg_mr(buf.mr);
            }
            pools.receives.end(rnic);
        }
        self.registrations == 0 && rnic.dealloc_pd(self.pd).is_ok()
    }

    /// Takes a piece for `len` bytes; None if they are too many, or all are in use.
    pub(super) fn take_bounce(
        &mut self,
        rnic: &mut dyn Rnic,
        len: usize,
    ) -> Result<Option<Piece>, RnicError> {
        let pools = if rnic.caps().pins { 2 } else { 1 };
        let fits = BOUNCES[..pools].iter().position(|(_, each)| len <= *each);
        let (Some(pool), Some(own)) = (fits, &mut self.pools) else { return Ok(None) };
        let (count, each) = BOUNCES[pool];
        let made = match &mut own.bounces[pool] {
            Some(made) => made,
            none => {
                let seg = map(count as usize * each)?;
                let mr = match rnic.reg_mr(self.pd, &seg, Access::LOCAL) {
                    // What is left of locked memory may do for the operation alone.
                    Err(RnicError::MemLock { .. }) => return Ok(None),
                    other => other?,
                };
                // The first is taken first: what is never used is never touched.
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
