//! A place that siw's objects must not have.
//!
//! A CQ, an SRQ or a queue pair of siw is memory that its library maps. The kernel says
//! where by an offset: it lays the objects of a context side by side, each on the first
//! pages that are free. The library has a number that means "there is none", 0x90000, from a
//! time when offsets were numbered otherwise (`SIW_INVAL_UOBJ_KEY`; so it is in
//! Linux 7.2 and rdma-core 44). So what comes to lie at page 144 cannot be made: the call
//! returns nothing, and not even an error. Trying again ends in the same place, and so a
//! program would take no more connections.
//!
//! So a small CQ, used for nothing, lies across that page for as long as the process has the
//! device: it begins before it. That costs 68 KiB. It has to be the first object of all, or
//! it would lie elsewhere: so it stays when nobody uses the device for a while, as what is left of an
//! attempt that was given up may live on. Nothing is known of which library is loaded, so each
//! iWARP device has one; where memory is laid out otherwise, it does no good and no harm.

use std::sync::{Mutex, PoisonError};

use super::{CompQueue, Device};

/// 129 pages, of which page 128 is the last: what is made next begins at 129.
const FILL: u32 = 16384;
/// 17 pages: from 129 to 145.
const ACROSS: u32 = 2048;

/// One for each device of the process, as its RNICs share the device's context.
static GUARDS: Mutex<Vec<(Device, Guard)>> = Mutex::new(Vec::new());

/// Holds the place.
pub(in super::super) struct Guard(#[expect(dead_code, reason = "held, not read")] CompQueue);

impl Guard {
    /// Holds the place on a device of iWARP, before anything else is made there. If that
    /// fails, what comes to lie there cannot be made.
    pub(in super::super) fn hold_if(iwarp: bool, device: Device) {
        if !iwarp {
            return;
        }
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The device is gone, or about to go: it waits for its objects to be freed.
    pub(in super::super) fn let_go(device: Device) {
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        guards.retain(|(d, _)| *d != device);
    }
}
