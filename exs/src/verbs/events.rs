//! Asynchronous events of devices that several RNICs of this process use.
//!
//! A process opens a device once, so there is one stream of asynchronous events. The RNIC that reads
//! an event hands it to every RNIC that uses the device.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::raw::{AsyncNote, Device};
use crate::sys::ProcessLock;

type Queue = Mutex<VecDeque<AsyncNote>>;

static READERS: ProcessLock<Vec<(Device, Weak<Queue>)>> = ProcessLock::new(Vec::new());

/// The events of a device for one RNIC.
pub(super) struct AsyncInbox(Arc<Queue>);

impl AsyncInbox {
    pub(super) fn new(device: Device) -> AsyncInbox {
        let queue = Arc::new(Queue::default());
        let mut readers = READERS.lock();
        readers.retain(|(_, q)| q.strong_count() > 0);
        readers.push((device, Arc::downgrade(&queue)));
        AsyncInbox(queue)
    }

    pub(super) fn take(&self) -> VecDeque<AsyncNote> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Hands an event to all RNICs that use the device.
pub(super) fn publish(device: Device, note: AsyncNote) {
    let readers = READERS.lock();
    for queue in readers.iter().filter(|r| r.0 == device).filter_map(|r| r.1.upgrade()) {
        queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(note);
    }
}
