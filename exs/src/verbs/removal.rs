//! Device removal: a device goes away while it is used.
//!
//! Kernels report it in three ways.
//! - Some drivers end the user's context themselves (`IBV_EVENT_DEVICE_FATAL`).
//! - librdmacm's ids get `RDMA_CM_EVENT_DEVICE_REMOVAL` if the kernel unbinds `rdma_cm` from the
//!   device before `ib_uverbs`. It unbinds the two in the reverse of the order in which they were
//!   loaded.
//! - If `ib_uverbs` comes first and the driver (rxe, siw) cannot end contexts, nothing is reported.
//!   The kernel removes the device's node from `/dev/infiniband` and waits, however long it takes,
//!   until all programs have closed it.
//!
//! For the third case the driver watches the node (inotify: its count of links changes). When the
//! node goes, the device has gone. The RNIC that sees it first tells the others on the device
//! (`events`). Each RNIC frees its objects of the device, and the last one gives the device's
//! descriptors back, while the program goes on. So an administrator can remove a device without
//! ending the programs that use it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::VerbsRnic;
use super::events::{self, DeviceInbox, DeviceNote};
use super::queues::HwQueue;
use super::raw::{self, CompChannel, Device, Guard};
use crate::rnic::RnicError;

/// Registers descriptors with the reactor.
pub(super) struct Watcher<'a> {
    pub(super) registry: &'a mio::Registry,
    /// The first of the RNIC's tokens.
    pub(super) base: usize,
}

impl Watcher<'_> {
    pub(super) fn watch(&self, fd: i32, token: usize) -> io::Result<OwnedFd> {
        let fd = raw::duplicate(fd)?;
        raw::watch(self.registry, &fd, self.base + token)?;
        Ok(fd)
    }

    /// Watches what concerns one RNIC alone.
    pub(super) fn watch_device(
        &self,
        device: Device,
        channel: &CompChannel,
        inbox: &DeviceInbox,
    ) -> io::Result<Vec<OwnedFd>> {
        let watched = [
            (device.async_fd()?, super::TOKEN_ASYNC),
            (channel.fd(), super::TOKEN_CQ),
            (inbox.wake().as_raw_fd(), super::TOKEN_WAKE),
        ];
        watched.into_iter().map(|(fd, token)| self.watch(fd, token)).collect()
    }

    /// Watches the device's node. There is no watch without `/proc`, or if the user has no inotify
    /// instance left: then the removal of the device may go unnoticed.
    pub(super) fn watch_node(&self, node: Option<&OwnedFd>) -> io::Result<Option<OwnedFd>> {
        node.map(|fd| self.watch(fd.as_raw_fd(), super::TOKEN_NODE)).transpose()
    }
}

impl VerbsRnic {
    /// # Errors
    /// ENODEV if the device is gone.
    pub(super) fn alive(&self) -> Result<(), RnicError> {
        let gone = RnicError::Os { call: "the RDMA device was removed", errno: libc::ENODEV };
        if self.removed { Err(gone) } else { Ok(()) }
    }

    /// Handles a change of the device's node, if there was one.
    pub(super) fn node_changed(&mut self) {
        if let Some(node) = &self.node {
            raw::drain_watch(node);
        }
        if !self.node_unlinked && self.device.is_unlinked() {
            events::tell_others(self.device, &self.inbox, DeviceNote::NodeGone);
            self.node_gone();
        }
    }

    /// Handles the removal of the device's node.
    pub(super) fn node_gone(&mut self) {
        if std::mem::replace(&mut self.node_unlinked, true) {
            return;
        }
        crate::trace::debug!("{}: its device node was removed", self.caps.name);
        self.device_lost();
        if self.removal_reported {
            self.let_go_if_last();
        }
    }

    /// Gives the descriptors of a removed device back, if no RNIC of this process has objects there.
    /// The last one to free its objects does it for all.
    fn let_go_if_last(&self) {
        events::if_unused(self.device, || self.device.let_go());
    }

    /// Frees everything that the device has for this process. All connections must have ended.
    pub(super) fn release(&mut self) {
        // Windows hold their registrations, these the domain, and queues their channel. So each object
        // is freed after those that depend on it, in whatever order they are dropped here.
        self.keys.clear();
        for id in ids(&self.srqs) {
            drop(self.srqs.remove(id));
        }
        for id in ids(&self.pds) {
            drop(self.pds.remove(id));
        }
        let queues: Vec<HwQueue> = self.hw.drain().collect();
        drop(queues);
        self.by_num.clear();
        // Events of the CM concern other devices too, and the node may go later.
        self.unwatch();
        self.channel = None;
        events::leave(&self.inbox);
        events::if_unused(self.device, || Guard::let_go(self.device));
        // A device that failed and is still there belongs to librdmacm.
        if self.node_unlinked {
            self.let_go_if_last();
        }
    }

    /// Takes descriptors out of the reactor.
    pub(super) fn unwatch(&mut self) {
        for fd in self.fds.drain(..) {
            let fd = fd.as_raw_fd();
            // Other descriptors may refer to the same file: closing would not be enough. Fails only if the
            // reactor is gone.
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
    }
}

fn ids<T>(table: &crate::rnic::table::IdTable<T>) -> Vec<u32> {
    table.iter().map(|(id, _)| id).collect()
}
