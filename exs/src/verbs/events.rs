//! Asynchronous events of devices that several RNICs of this process use.
//!
//! A device is opened once in a process, and so has one stream of asynchronous
//! events. Whoever reads one hands it to everybody who uses the device.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::raw::{AsyncNote, Device};

type Queue = Mutex<VecDeque<AsyncNote>>;

static READERS: Mutex<Vec<(Device, Weak<Queue>)>> = Mutex::new(Vec::new());

/// What one RNIC gets of a device's events.
pub(super) struct AsyncInbox(Arc<Queue>);

impl AsyncInbox {
    pub(super) fn new(device: Device) -> AsyncInbox {
        let queue = Arc::new(Queue::default());
        let mut readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|(_, q)| q.strong_count() > 0);
        readers.push((device, Arc::downgrade(&queue)));
        AsyncInbox(queue)
    }

    pub(super) fn take(&self) -> VecDeque<AsyncNote> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hands an event to all that use the device.
pub(super) fn publish(device: Device, note: AsyncNote) {
    let readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
    for queue in readers.iter().filter(|r| r.0 == device).filter_map(|r| r.1.upgrade()) {
        queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(note);
    }
}
