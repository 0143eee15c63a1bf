//! The devices of a shard, as a table.
//!
//! A device's index is its name in the shard: the software RNIC comes first, then shared memory, then
//! the RDMA devices, which the table opens when a socket first needs them (`choose`). A removed
//! device keeps its place until nothing refers to it. Sockets, registrations and tokens of the
//! reactor name their device by this index.
//!
//! The table polls all devices, and says which of them has found something. It knows no sockets:
//! what a device reports, the engine takes to the sockets.

mod choose;

use std::net::{IpAddr, SocketAddr};
use std::ops::{Index, IndexMut};
use std::time::Duration;

pub(in crate::progress) use self::choose::Verbs;
pub(super) use self::choose::uses_soft;
use super::device::{Device, Registrar};
use super::domain::Place;
use super::slots;
use super::unreachable::Unreachable;
use super::{COMPLETIONS, TOKENS_PER_DEVICE};
use crate::mem::{Buffer, Key};
use crate::progress::options::Transport;
use crate::rnic::{EagerRecv, Ready, Rnic, Wc};
use crate::time::Time;

/// The index of the software RNIC in the table.
pub(super) const SOFT: usize = 0;
/// The index of shared memory in the table, if the host has any.
const SHM: usize = 1;

/// The devices.
pub(crate) struct DeviceTable {
    list: Vec<Device>,
    verbs: Verbs,
    /// The peers that did not answer.
    unreachable: Unreachable,
    registrar: Registrar,
    /// Memory for the completions that the engine takes at a time.
    wcs: Vec<Wc>,
    /// Room for one message on the eager path.
    room: Box<[u8]>,
}

/// The devices at which a poll has found something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) struct DeviceSet(u64);

impl DeviceSet {
    /// The set of one device. The devices from the 64th on share a mark: the engine looks at all of
    /// them if any of them is marked.
    fn of(device: usize) -> DeviceSet {
        DeviceSet(1 << device.min(63))
    }

    fn with(self, other: DeviceSet) -> DeviceSet {
        DeviceSet(self.0 | other.0)
    }

    #[inline]
    pub(in crate::progress) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn contains(self, device: usize) -> bool {
        self.0 & DeviceSet::of(device).0 != 0
    }
}

/// True if the set has devices, and no RDMA device. `pins`: for each device, whether it pins memory,
/// as only RDMA devices do.
fn by_processes(set: DeviceSet, pins: impl Iterator<Item = bool>) -> bool {
    let mut devices = pins.enumerate().filter(|(_, pins)| *pins);
    !set.is_empty() && !devices.any(|(index, _)| set.contains(index))
}

impl Index<usize> for DeviceTable {
    type Output = Device;

    #[inline]
    fn index(&self, device: usize) -> &Device {
        &self.list[device]
    }
}

impl IndexMut<usize> for DeviceTable {
    #[inline]
    fn index_mut(&mut self, device: usize) -> &mut Device {
        &mut self.list[device]
    }
}

impl DeviceTable {
    /// A table with the software RNIC, and shared memory if the host has it. The RDMA devices follow
    /// when a socket needs them.
    pub(super) fn new(
        registrar: Registrar,
        soft: Box<dyn Rnic>,
        shm: Option<Box<dyn Rnic>>,
        verbs: Verbs,
    ) -> DeviceTable {
        let device = |index, rnic, transport| Device::new(index, rnic, transport, &registrar);
        let mut list = vec![device(SOFT, soft, Transport::Soft)];
        list.extend(shm.map(|rnic| device(SHM, rnic, Transport::Shm)));
        DeviceTable {
            list,
            verbs,
            unreachable: Unreachable::default(),
            registrar,
            wcs: Vec::with_capacity(COMPLETIONS),
            room: vec![0; slots::SLOT as usize].into_boxed_slice(),
        }
    }

    /// The number of devices. The removed devices count.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn get_mut(&mut self, device: usize) -> Option<&mut Device> {
        self.list.get_mut(device)
    }

    /// A device, and room for one message.
    #[inline]
    pub(super) fn with_room(&mut self, device: usize) -> (&mut Device, &mut [u8]) {
        (&mut self.list[device], &mut self.room)
    }

    /// Takes the next small message out of a device. The room of the table then has the bytes of a
    /// message that was copied.
    #[inline]
    pub(super) fn next_eager(&mut self, device: usize) -> Option<EagerRecv> {
        self.list[device].rnic.next_eager(&mut self.room)
    }

    /// The key of a buffer that this shard has registered first of all, in this place. None: take
    /// the general path.
    #[inline]
    pub(super) fn first_key(&self, buffer: &Buffer, place: Place) -> Option<Key> {
        buffer.first_registration(self.registrar.context(), place.tag())
    }

    // ---- progress --------------------------------------------------------------

    /// A device became ready.
    pub(super) fn handle_ready(&mut self, token: usize, ready: Ready) {
        if let Some(d) = self.list.get_mut(token / TOKENS_PER_DEVICE) {
            d.rnic.handle_ready(token, ready);
        }
    }

    /// Looks where the reactor has reported nothing. True if there is something.
    pub(super) fn spin(&mut self, now: Time) -> bool {
        self.list.iter_mut().fold(false, |any, d| d.rnic.spin(now) | any)
    }

    /// True if a thread that spins must ask the kernel in each round.
    pub(in crate::progress) fn spin_by_reactor(&self) -> bool {
        self.list.iter().any(|d| d.rnic.spins_by_reactor())
    }

    /// No thread comes back that has a write of a device.
    pub(super) fn forget_deferred(&mut self) {
        self.list.iter_mut().for_each(|d| d.rnic.forget_deferred());
    }

    /// Keeps what connections send together until the end of a run. Only over the software RNIC do
    /// connections share a stream.
    pub(super) fn hold_writes(&mut self) {
        let d = &mut self[SOFT];
        d.shares_streams = d.rnic.hold_writes();
    }

    /// Lets go what was held.
    pub(super) fn release_writes(&mut self) {
        if self[SOFT].shares_streams {
            self[SOFT].rnic.release_writes();
        }
    }

    /// Moves what the devices can move. True if there is more to do at once.
    pub(super) fn progress(&mut self, now: Time) -> bool {
        self.list.iter_mut().fold(false, |more, d| d.rnic.progress(now) | more)
    }

    /// Asks the devices to report what happens during a sleep. True if something has happened
    /// already.
    pub(in crate::progress) fn prepare_sleep(&mut self) -> bool {
        self.list.iter_mut().fold(false, |found, d| found | d.rnic.prepare_sleep())
    }

    /// The earliest deadline of a device. None: no device has one.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.list.iter().filter_map(|d| d.rnic.next_timeout()).min()
    }

    /// Takes the memory for completions. The caller gives it back by `reuse`.
    pub(super) fn take_wcs(&mut self) -> Vec<Wc> {
        std::mem::take(&mut self.wcs)
    }

    /// Takes the memory back.
    pub(super) fn reuse(&mut self, wcs: Vec<Wc>) {
        self.wcs = wcs;
    }

    // ---- polls -----------------------------------------------------------------

    /// Looks for completions and messages at the devices where that takes no system call. None:
    /// there is no such device.
    pub(in crate::progress) fn poll_memory(&mut self) -> Option<DeviceSet> {
        self.ask_each(|rnic| rnic.poll_memory())
    }

    /// The same by system calls, at the devices that need them.
    pub(in crate::progress) fn poll_syscall(&mut self) -> Option<DeviceSet> {
        self.ask_each(|rnic| rnic.poll_syscall())
    }

    #[inline]
    fn ask_each(&mut self, finds: impl Fn(&mut dyn Rnic) -> Option<bool>) -> Option<DeviceSet> {
        let mut any = None;
        for (index, d) in self.list.iter_mut().enumerate() {
            let Some(found) = finds(&mut *d.rnic) else { continue };
            let before = any.unwrap_or_default();
            any = Some(if found { DeviceSet::of(index).with(before) } else { before });
        }
        any
    }

    /// True if a poll has found only the work of processes of this host, and none of an RDMA device.
    pub(in crate::progress) fn are_processes(&self, found: DeviceSet) -> bool {
        by_processes(found, self.list.iter().map(|d| d.rnic.caps().pins))
    }

    // ---- peers that did not answer -----------------------------------------------

    /// A peer did not answer by this device.
    pub(super) fn note_silence(&mut self, device: usize, peer: IpAddr, now: Time) {
        self.unreachable.note(device, peer, now);
    }

    /// A peer has answered by this device.
    pub(super) fn note_answer(&mut self, device: usize, peer: SocketAddr) {
        self.unreachable.forget(device, peer.ip());
    }

    /// The time since the peer did not answer by this device. None: it did, or that was long ago.
    pub(super) fn silent_for(&self, device: usize, peer: IpAddr, now: Time) -> Option<Duration> {
        self.unreachable.since(device, peer, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_of_processes_and_of_rdma_devices_differ() {
        // The devices are the software RNIC, shared memory, and an RDMA device.
        let found = |set| by_processes(set, [false, false, true].into_iter());
        let [soft, shm, verbs] = [0, 1, 2].map(DeviceSet::of);
        assert!(!found(DeviceSet::default()), "no device is marked");
        assert!(found(soft) && found(shm) && found(soft.with(shm)));
        assert!(!found(verbs) && !found(shm.with(verbs)), "a device, too");
        // A shared mark may belong to any of the devices that share it.
        let many = (0..70).map(|index| index == 66);
        let marks = |device| by_processes(DeviceSet::of(device), many.clone());
        assert!(!marks(64) && marks(62));
    }
}
