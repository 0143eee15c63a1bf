//! Slots: registered memory for bytes that a send copies when it is posted.

use std::sync::Arc;

use super::raw::{Domain, HwSge, Registration};
use super::registrar::MemoryRegistrar;
use crate::mem::{Region, Segment};
use crate::rnic::{MESSAGE, RnicError};

/// Bytes of a slot: the most that one WR may copy.
pub(super) const SLOT_LEN: usize = MESSAGE as usize;
/// Slots in one registration.
const SLOTS_PER_CHUNK: usize = 32;

/// The number of a slot in its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopySlot(u32);

#[cfg(test)]
impl CopySlot {
    /// A slot of no domain.
    pub(super) const NONE: CopySlot = CopySlot(u32::MAX);
}

/// The slots of a protection domain. They are made when first needed, a chunk at a time. There are
/// never more than the largest number of WRs outstanding at a time, rounded up to a chunk.
pub(super) struct CopySlots {
    domain: Arc<Domain>,
    chunks: Vec<(Segment, Registration)>,
    free: Vec<u32>,
    registrar: MemoryRegistrar,
}

impl CopySlots {
    pub(super) fn new(domain: &Arc<Domain>, registrar: MemoryRegistrar) -> CopySlots {
        CopySlots { domain: Arc::clone(domain), chunks: Vec::new(), free: Vec::new(), registrar }
    }

    /// Takes a slot.
    pub(super) fn take(&mut self) -> Result<CopySlot, RnicError> {
        if self.free.is_empty() {
            let no_memory = |_| RnicError::Os { call: "mmap", errno: libc::ENOMEM };
            let region = Region::map(SLOTS_PER_CHUNK * SLOT_LEN).map_err(no_memory)?;
            let segment = region.segment(0, SLOTS_PER_CHUNK * SLOT_LEN).map_err(no_memory)?;
            let reg = self.registrar.for_sends(&self.domain, &segment)?;
            let first = u32::try_from(self.chunks.len() * SLOTS_PER_CHUNK).unwrap_or(u32::MAX);
            self.chunks.push((segment, reg));
            self.free.extend((first..).take(SLOTS_PER_CHUNK));
        }
        let slot = self.free.pop();
        slot.map(CopySlot).ok_or(RnicError::Os { call: "mmap", errno: libc::ENOMEM })
    }

    pub(super) fn give(&mut self, slot: CopySlot) {
        self.free.push(slot.0);
    }

    /// The slot's memory.
    pub(super) fn segment(&self, slot: CopySlot) -> Segment {
        let (chunk, at) = (slot.0 as usize / SLOTS_PER_CHUNK, slot.0 as usize % SLOTS_PER_CHUNK);
        self.chunks[chunk].0.slice(at * SLOT_LEN, SLOT_LEN).expect("inside of its chunk")
    }

    /// The first `len` bytes of a slot, for the device.
    pub(super) fn sge(&self, slot: CopySlot, len: usize) -> HwSge {
        let chunk = slot.0 as usize / SLOTS_PER_CHUNK;
        HwSge {
            addr: self.segment(slot).addr(),
            len: u32::try_from(len).unwrap_or(0),
            lkey: self.chunks[chunk].1.keys().0,
        }
    }
}
