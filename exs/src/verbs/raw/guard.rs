//! The guard: it keeps siw's objects away from a bad place.
//!
//! A CQ, an SRQ or a queue pair of siw is memory that its library maps. The kernel gives the place
//! as an offset. It lays the objects of a context side by side, each on the first free pages. But
//! the library has a number that means "there is none", 0x90000, from a time when offsets were
//! numbered in another way (`SIW_INVAL_UOBJ_KEY`; Linux 7.2 and rdma-core 44 have it). So an object
//! at page 144 cannot be made: the call returns nothing, and not even an error. Another try gets the
//! same place. So the program could make no more connections.
//!
//! So a small CQ, which is used for nothing, begins before that page and extends across it, for as
//! long as the process has the device. That costs 68 KiB. It must be the first object of all, or it
//! would lie elsewhere. So it stays while no RNIC uses the device for a while, since parts of an
//! abandoned attempt may live on. It is not known which library is loaded, so each iWARP device gets
//! a guard. Where memory is laid out in another way, the guard does no good and no harm.

use super::{CompQueue, Device};
use crate::sys::ProcessLock;

/// Entries of a CQ of 129 pages, of which page 128 is the last. So the next object begins at 129.
const FILL: u32 = 16384;
/// Entries of a CQ of 17 pages: from 129 to 145.
const ACROSS: u32 = 2048;

/// The guard of each device. A device has one, as the RNICs of a process share its context.
static GUARDS: ProcessLock<Vec<(Device, Guard)>> = ProcessLock::new(Vec::new());

/// Occupies the place.
pub(in super::super) struct Guard(#[expect(dead_code, reason = "held, not read")] CompQueue);

impl Guard {
    /// Occupies the place on an iWARP device. Must come before any other object is made there. If it
    /// fails, an object that would lie there cannot be made.
    pub(in super::super) fn hold_if(iwarp: bool, device: Device) {
        if !iwarp {
            return;
        }
        let mut guards = GUARDS.lock();
        if guards.iter().any(|(d, _)| *d == device) {
            return;
        }
        let made = CompQueue::silent(device, FILL).and_then(|fill| {
            let guard = CompQueue::silent(device, ACROSS);
            drop(fill);
            guard
        });
        match made {
            Ok(guard) => guards.push((device, Guard(guard))),
            Err(e) => crate::trace::debug!("{}: ibv_create_cq of a guard: {e}", device.name()),
        }
    }

    /// Frees the guard of a device that is removed, or about to be: the kernel waits for its objects.
    pub(in super::super) fn let_go(device: Device) {
        let mut guards = GUARDS.lock();
        guards.retain(|(d, _)| *d != device);
    }
}
