//! Registered memory for the bytes that a send copies when it is posted.

use std::sync::Arc;

use super::raw::{Domain, HwSge, Registration};
use crate::mem::{Region, Segment};
use crate::rnic::{MESSAGE, RnicError};

/// Bytes of a slot: what one WR may copy.
pub(super) const SLOT: usize = MESSAGE as usize;
/// Slots that are registered together.
const CHUNK: usize = 32;

/// A slot: its place among those of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// The slots of a protection domain. They are made when first needed, a chunk at a
/// time; there are never more than WRs were outstanding at a time.
#[derive(Default)]
pub(super) struct Slots {
    chunks: Vec<(Segment, Registration)>,
    free: Vec<u32>,
    /// The device can page on demand, where pinning is refused.
    odp: bool,
}

impl Slots {
    pub(super) fn new(odp: bool) -> Slots {
        Slots { odp, ..Slots::default() }
    }

    /// Takes a slot.
    pub(super) fn take(&mut self, pd: &Arc<Domain>) -> Result<Slot, RnicError> {
        if self.free.is_empty() {
            let no_memory = |_| RnicError::Os { call: "mmap", errno: libc::ENOMEM };
            let region = Region::map(CHUNK * SLOT).map_err(no_memory)?;
            let segment = region.segment(0, CHUNK * SLOT).map_err(no_memory)?;
            let reg = match super::memory::register(pd, &segment, 0) {
                Err(RnicError::MemLock { .. }) if self.odp => {
                    super::memory::register(pd, &segment, super::memory::ON_DEMAND)?
                }
                other => other?,
            };
            let first = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX);
            self.chunks.push((segment, reg));
            self.free.extend((first..).take(CHUNK));
        }
        let slot = self.free.pop();
        slot.map(Slot).ok_or(RnicError::Os { call: "mmap", errno: libc::ENOMEM })
    }

    pub(super) fn give(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }

    /// The slot's memory.
    pub(super) fn segment(&self, slot: Slot) -> Segment {
        let (chunk, at) = (slot.0 as usize / CHUNK, slot.0 as usize % CHUNK);
        self.chunks[chunk].0.slice(at * SLOT, SLOT).expect("inside of its chunk")
    }

    /// The slot's first `len` bytes, for the device.
    pub(super) fn sge(&self, slot: Slot, len: usize) -> HwSge {
        let chunk = slot.0 as usize / CHUNK;
        HwSge {
            addr: self.segment(slot).addr(),
            len: u32::try_from(len).unwrap_or(0),
            lkey: self.chunks[chunk].1.keys().0,
        }
    }
}
