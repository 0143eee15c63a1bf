//! The host: what the RDMA devices of a shard share, librdmacm's event channel and the listeners.
//!
//! A listener on a wildcard address belongs to no device. Each of its connection requests names the
//! device by which it came. So every device of the shard may join a listener, and the host hands
//! each event to the device that it concerns.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::raw::{CmChannel, CmId, CmNote, Device};
use super::route::any_port;

/// Wait for a listener to be freed. That takes the kernel microseconds, or it waits for peers.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// An event for a device; for a connection request also the number of its listener there.
pub(super) type RoutedEvent = (Option<u32>, CmNote);

struct SharedListener {
    id: CmId,
    addr: SocketAddr,
    /// Devices that have joined, each with the number of its listener there.
    members: Vec<(usize, u32)>,
}

#[derive(Default)]
struct HostState {
    /// The device of each id, by the id's serial.
    routes: HashMap<usize, usize>,
    listeners: Vec<SharedListener>,
    /// All devices, also removed ones, and the events that wait for each.
    devices: Vec<Device>,
    inboxes: Vec<VecDeque<RoutedEvent>>,
}

/// See the module's essay.
pub(super) struct CmHost {
    channel: Arc<CmChannel>,
    state: Mutex<HostState>,
    readable: AtomicBool,
    /// Events in all inboxes.
    waiting: AtomicUsize,
}

impl CmHost {
    pub(super) fn new() -> io::Result<Arc<CmHost>> {
        let (state, readable) = (Mutex::default(), AtomicBool::new(true));
        let (channel, waiting) = (CmChannel::new()?, AtomicUsize::new(0));
        Ok(Arc::new(CmHost { channel, state, readable, waiting }))
    }

    /// Adds a device. Returns its number here.
    pub(super) fn join(&self, device: Device) -> usize {
        let mut state = self.lock();
        state.devices.push(device);
        state.inboxes.push(VecDeque::new());
        state.devices.len() - 1
    }

    pub(super) fn fd(&self) -> i32 {
        self.channel.fd()
    }

    pub(super) fn channel(&self) -> &Arc<CmChannel> {
        &self.channel
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the channel has become readable.
    pub(super) fn note_readable(&self) {
        self.readable.store(true, Ordering::Release);
    }

    /// Makes an id whose events go to the device `owner`.
    pub(super) fn new_id(&self, owner: usize) -> io::Result<CmId> {
        let id = CmId::new(&self.channel)?;
        self.own(&id, owner);
        Ok(id)
    }

    /// Sends the events of an id to the device `owner`.
    pub(super) fn own(&self, id: &CmId, owner: usize) {
        self.lock().routes.insert(id.serial(), owner);
    }

    /// Drops further events of an id that is about to be freed.
    pub(super) fn disown(&self, id: &CmId) {
        self.lock().routes.remove(&id.serial());
    }

    /// The device that has a local address.
    ///
    /// # Errors
    /// ENODEV if no device has it.
    pub(super) fn device_of(&self, addr: SocketAddr) -> io::Result<Option<Device>> {
        let id = CmId::new(&self.channel)?;
        let bound = id.bind(any_port(addr));
        let device = id.device();
        id.free();
        bound.map(|()| device)
    }

    /// Opens a listener, or joins the listener that another device has opened. Returns the address that
    /// it is bound to.
    pub(super) fn listen(
        &self,
        member: (usize, u32),
        addr: SocketAddr,
        backlog: u32,
        v6_only: bool,
    ) -> io::Result<SocketAddr> {
        // Checked first: a taken port does not matter if the address is that of another device.
        let device = self.lock().devices[member.0];
        let ours =
            addr.ip().is_unspecified() || self.device_of(addr).ok().flatten() == Some(device);
        if !ours {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        let mut state = self.lock();
        if addr.ip().is_unspecified() && addr.port() != 0 {
            let open = state.listeners.iter_mut().find(|l| {
                l.addr == addr && l.members.iter().all(|(device, _)| *device != member.0)
            });
            if let Some(open) = open {
                open.members.push(member);
                return Ok(addr);
            }
        }
        let mut tries = if addr.port() == 0 { 32 } else { 1 };
        let id = loop {
            tries -= 1;
            match self.listener(addr, backlog, v6_only) {
                // A port that is free for librdmacm may be taken in TCP, where siw listens.
                Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) && tries > 0 => {}
                other => break other?,
            }
        };
        let addr = id.local_addr().unwrap_or(addr);
        state.listeners.push(SharedListener { id, addr, members: vec![member] });
        Ok(addr)
    }

    fn listener(&self, addr: SocketAddr, backlog: u32, v6_only: bool) -> io::Result<CmId> {
        let id = CmId::new(&self.channel)?;
        let only = if addr.is_ipv6() && v6_only { id.v6_only() } else { Ok(()) };
        match only.and_then(|()| id.bind(addr)).and_then(|()| id.listen(backlog)) {
            Ok(()) => Ok(id),
            Err(e) => {
                // Freed at once: the address may be tried again.
                id.free();
                Err(e)
            }
        }
    }

    /// Leaves a listener; the last device to leave closes it. The port is free again when this returns,
    /// unless the kernel takes longer than `CLOSE_TIMEOUT`.
    pub(super) fn leave(&self, member: (usize, u32)) {
        let mut state = self.lock();
        for l in &mut state.listeners {
            l.members.retain(|m| *m != member);
        }
        let over: Vec<SharedListener> =
            state.listeners.extract_if(.., |l| l.members.is_empty()).collect();
        drop(state);
        for l in over {
            if !l.id.close(CLOSE_TIMEOUT) {
                crate::trace::warn!("the kernel is slow to free the listener on {}", l.addr);
            }
        }
    }

    /// Takes the events for the device `owner`. True if there are events for other devices.
    pub(super) fn take(&self, owner: usize, out: &mut VecDeque<RoutedEvent>) -> bool {
        if self.readable.swap(false, Ordering::AcqRel) {
            // Taken without the lock, which other threads need for less time than this takes.
            while let Some(note) = self.channel.next() {
                self.deliver(note);
            }
        }
        if self.waiting.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = self.lock();
        if let Some(inbox) = state.inboxes.get_mut(owner) {
            self.waiting.fetch_sub(inbox.len(), Ordering::AcqRel);
            out.append(inbox);
        }
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn deliver(&self, note: CmNote) {
        let mut state = self.lock();
        let to = match &note.request {
            None => state.routes.get(&note.serial).map(|owner| (*owner, None)),
            Some(id) => {
                let device = state.devices.iter().position(|d| id.device() == Some(*d));
                let listener = state.listeners.iter().find(|l| l.id.serial() == note.serial);
                device.zip(listener).and_then(|(device, l)| {
                    let member = l.members.iter().find(|m| m.0 == device)?;
                    Some((device, Some(member.1)))
                })
            }
        };
        match to {
            Some((owner, listener)) => {
                state.inboxes[owner].push_back((listener, note));
                self.waiting.fetch_add(1, Ordering::AcqRel);
            }
            // A request by a device that is not ours is rejected, as its id is dropped. An event of an id
            // that is gone concerns no device.
            None => drop(state),
        }
    }
}
