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
//! So a small CQ, used for nothing, lies across that page as long as the device is used: it
//! begins before it. That costs 68 KiB. Nothing is known of which library is loaded, so each
//! iWARP device has one; where memory is laid out otherwise, it does no good and no harm.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{CompQueue, Device};

/// 129 pages, of which page 128 is the last: what is made next begins at 129.
const FILL: u32 = 16384;
/// 17 pages: from 129 to 145.
const ACROSS: u32 = 2048;

/// One for each device of the process, as its RNICs share the device's context.
static GUARDS: Mutex<Vec<(Device, Weak<Guard>)>> = Mutex::new(Vec::new());

/// Holds the place.
pub(in super::super) struct Guard(#[expect(dead_code, reason = "held, not read")] CompQueue);

impl Guard {
    /// Before anything else is made on the device. None if it cannot be held: then what
    /// lies there cannot be made, as without it.
    pub(in super::super) fn hold(device: Device) -> Option<Arc<Guard>> {
        let mut guards = GUARDS.lock().unwrap_or_else(PoisonError::into_inner);
        guards.retain(|(_, guard)| guard.strong_count() > 0);
        let held = guards.iter().find(|(d, _)| *d == device);
        if let Some(guard) = held.and_then(|(_, guard)| guard.upgrade()) {
            return Some(guard);
        }
        let fill = CompQueue::silent(device, FILL).ok()?;
        let guard = Arc::new(Guard(CompQueue::silent(device, ACROSS).ok()?));
        drop(fill);
        guards.push((device, Arc::downgrade(&guard)));
        Some(guard)
    }
}
