//! Asynchronous events of devices that several RNICs of this process use.
//!
//! librdmacm opens a device once for the process, so its asynchronous events come by one
//! descriptor. The RNICs of all shards watch it, and any of them may read an event. That RNIC hands
//! the event on: that of a queue pair to the RNIC that made the queue pair, and that of a whole
//! device to all RNICs on it. It also wakes them, by an eventfd that each has in its own reactor.
//! Their own watch on the device would not do: an edge that is gone when epoll looks is not
//! reported.
//!
//! The removal of a device's node (`removal`) goes the same way.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::raw::{AsyncNote, Device};
use crate::sys::{EventFd, ProcessLock};

/// What one RNIC says to another on the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceNote {
    Async(AsyncNote),
    /// The device's node was removed.
    NodeGone,
}

/// What an RNIC has to look after on behalf of its device.
pub(super) struct DeviceInbox {
    notes: Mutex<VecDeque<DeviceNote>>,
    /// Signalled when there are notes, and by the owner's dialer. Its owner has it in its reactor.
    wake: Arc<EventFd>,
    /// Sees the device's node. All RNICs on the device have the same: a user has few inotify
    /// instances. None: the node is not watched.
    node: Option<Arc<OwnedFd>>,
}

impl DeviceInbox {
    pub(super) fn node(&self) -> Option<&OwnedFd> {
        self.node.as_deref()
    }

    pub(super) fn wake(&self) -> &Arc<EventFd> {
        &self.wake
    }

    /// Takes the notes. The owner drains `wake` before this.
    pub(super) fn take(&self) -> VecDeque<DeviceNote> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, note: DeviceNote) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push_back(note);
        self.wake.signal();
    }
}

/// The inboxes of the process. `D` names a device.
struct DeviceInboxes<D> {
    all: Vec<(D, Weak<DeviceInbox>)>,
    /// The inbox of the RNIC that made a queue pair, by the serial of its id.
    of_qp: BTreeMap<usize, Weak<DeviceInbox>>,
}

static INBOXES: ProcessLock<DeviceInboxes<Device>> = ProcessLock::new(DeviceInboxes::new());

impl<D: Copy + PartialEq> DeviceInboxes<D> {
    const fn new() -> DeviceInboxes<D> {
        DeviceInboxes { all: Vec::new(), of_qp: BTreeMap::new() }
    }

    fn on(&self, device: D) -> impl Iterator<Item = Arc<DeviceInbox>> {
        self.all.iter().filter(move |i| i.0 == device).filter_map(|i| i.1.upgrade())
    }

    fn join(
        &mut self,
        device: D,
        wake: EventFd,
        watch: impl FnOnce() -> Option<OwnedFd>,
    ) -> Arc<DeviceInbox> {
        self.all.retain(|i| i.1.strong_count() > 0);
        self.of_qp.retain(|_, i| i.strong_count() > 0);
        let shared = self.on(device).find_map(|inbox| inbox.node.clone());
        let node = shared.or_else(|| watch().map(Arc::new));
        let inbox = Arc::new(DeviceInbox { notes: Mutex::default(), wake: Arc::new(wake), node });
        self.all.push((device, Arc::downgrade(&inbox)));
        inbox
    }

    fn leave(&mut self, inbox: &DeviceInbox) {
        self.all.retain(|i| !std::ptr::eq(i.1.as_ptr(), inbox));
    }

    fn deliver(&self, serial: usize, note: DeviceNote) {
        // The queue pair may be gone by now.
        if let Some(inbox) = self.of_qp.get(&serial).and_then(Weak::upgrade) {
            inbox.put(note);
        }
    }

    fn tell_others(&self, device: D, me: &DeviceInbox, note: DeviceNote) {
        self.on(device)
            .filter(|inbox| !std::ptr::eq(&raw const **inbox, me))
            .for_each(|inbox| inbox.put(note));
    }
}

/// An inbox for a new RNIC on a device, which is the first thing that it needs: the device is kept
/// for RNICs with an inbox.
///
/// # Errors
/// Of eventfd(2).
pub(super) fn join(device: Device) -> io::Result<Arc<DeviceInbox>> {
    let wake = EventFd::new()?;
    let watch = || {
        let watched = device.watch_node();
        let unwatched =
            |e: &_| crate::trace::debug!("{}: its node is not watched: {e}", device.name());
        watched.inspect_err(unwatched).ok()
    };
    Ok(INBOXES.lock().join(device, wake, watch))
}

/// The owner of the inbox has nothing on its device any more.
pub(super) fn leave(inbox: &DeviceInbox) {
    INBOXES.lock().leave(inbox);
}

/// Runs `f` if no RNIC of this process is on the device any more.
pub(super) fn if_unused(device: Device, f: impl FnOnce()) {
    let inboxes = INBOXES.lock();
    if inboxes.on(device).next().is_none() {
        // Under the lock: no RNIC may join meanwhile.
        f();
    }
}

/// The RNIC of the inbox is about to make a queue pair with this serial.
pub(super) fn claim(serial: usize, inbox: &Arc<DeviceInbox>) {
    INBOXES.lock().of_qp.insert(serial, Arc::downgrade(inbox));
}

/// Events of that queue pair concern no RNIC any more.
pub(super) fn disclaim(serial: usize) {
    INBOXES.lock().of_qp.remove(&serial);
}

/// Hands an event of a queue pair to the RNIC that made it.
pub(super) fn deliver(serial: usize, note: DeviceNote) {
    INBOXES.lock().deliver(serial, note);
}

/// Hands an event to all other RNICs on the device.
pub(super) fn tell_others(device: Device, me: &DeviceInbox, note: DeviceNote) {
    INBOXES.lock().tell_others(device, me, note);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE_PORT: DeviceNote =
        DeviceNote::Async(AsyncNote { event: 10, serial: None, port: Some(1) });

    fn rnic(inboxes: &mut DeviceInboxes<u8>, device: u8) -> Arc<DeviceInbox> {
        inboxes.join(device, EventFd::new().unwrap(), || None)
    }

    fn is_woken(inbox: &DeviceInbox) -> bool {
        inbox.wake.wait(Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn the_event_of_a_queue_pair_wakes_the_rnic_that_made_it() {
        let mut inboxes = DeviceInboxes::new();
        let [a, b] = [(); 2].map(|()| rnic(&mut inboxes, 7));
        inboxes.of_qp.insert(41, Arc::downgrade(&b));
        let last = DeviceNote::Async(AsyncNote { event: 16, serial: Some(41), port: None });
        inboxes.deliver(41, last);
        assert!(is_woken(&b) && !is_woken(&a));
        assert_eq!((Vec::from(a.take()), Vec::from(b.take())), (vec![], vec![last]));
        b.wake.drain();
        // That of a queue pair that is gone wakes none.
        inboxes.deliver(42, last);
        assert!(!is_woken(&a) && !is_woken(&b));
    }

    #[test]
    fn the_event_of_a_device_wakes_all_others_on_it() {
        let mut inboxes = DeviceInboxes::new();
        let [a, b, c] = [(); 3].map(|()| rnic(&mut inboxes, 7));
        let other = rnic(&mut inboxes, 8);
        inboxes.leave(&c);
        inboxes.tell_others(7, &a, ONE_PORT);
        assert!(is_woken(&b));
        assert_eq!(Vec::from(b.take()), [ONE_PORT]);
        for inbox in [&a, &c, &other] {
            assert!(!is_woken(inbox) && inbox.take().is_empty());
        }
    }

    #[test]
    fn a_device_is_used_until_its_last_rnic_leaves() {
        let mut inboxes = DeviceInboxes::new();
        let [a, b] = [(); 2].map(|()| rnic(&mut inboxes, 7));
        inboxes.leave(&a);
        assert_eq!(inboxes.on(7).count(), 1);
        // An RNIC that is dropped has left, too.
        drop(b);
        assert_eq!(inboxes.on(7).count(), 0);
    }

    #[test]
    fn rnics_on_a_device_share_the_watch_of_its_node() {
        let mut inboxes = DeviceInboxes::new();
        let wake = || EventFd::new().unwrap();
        let null = || std::fs::File::open("/dev/null").ok().map(OwnedFd::from);
        let first = inboxes.join(7, wake(), null);
        let second = inboxes.join(7, wake(), || panic!("it is watched"));
        let other = inboxes.join(8, wake(), null);
        let fd = |inbox: &DeviceInbox| std::os::fd::AsRawFd::as_raw_fd(inbox.node().unwrap());
        assert_eq!(fd(&first), fd(&second));
        assert_ne!(fd(&first), fd(&other));
    }
}
