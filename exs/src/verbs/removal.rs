//! A device that goes away while it is used.
//!
//! Kernels tell of it in three ways. Some drivers end the user's context themselves
//! (`IBV_EVENT_DEVICE_FATAL`). librdmacm's ids get `RDMA_CM_EVENT_DEVICE_REMOVAL`, if
//! the kernel unbinds `rdma_cm` from the device before `ib_uverbs`; that order is the
//! reverse of that in which they were loaded. And where `ib_uverbs` comes first and
//! the driver (rxe, siw) cannot end contexts, nobody is told anything: the kernel
//! removes the device's node from `/dev/infiniband` and waits, for as long as it
//! takes, until all programs have closed it. So the node is watched (inotify: its
//! count of links changes), and its end is the end of the device.
//!
//! Then all objects of the device are freed and its descriptors given back, while the
//! program goes on: who removes a device need not end the programs that use it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::VerbsRnic;
use super::queues::HwQueue;
use super::raw::{self, Device, Guard};
use crate::rnic::RnicError;

/// Puts descriptors into the reactor.
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

    /// None without `/proc`, or where the user has no inotify instance left: then the
    /// end of the device may not be told.
    pub(super) fn watch_node(&self, device: Device) -> Option<OwnedFd> {
        let watched = device.watch_node().and_then(|fd| {
            raw::watch(self.registry, &fd, self.base + super::TOKEN_NODE)?;
            Ok(fd)
        });
        watched
            .inspect_err(|e| {
                crate::trace::debug!("{}: its node is not watched: {e}", device.name())
            })
            .ok()
    }
}

impl VerbsRnic {
    /// # Errors
    /// ENODEV if the device is gone.
    pub(super) fn alive(&self) -> Result<(), RnicError> {
        let gone = RnicError::Os { call: "the RDMA device was removed", errno: libc::ENODEV };
        if self.dead { Err(gone) } else { Ok(()) }
    }

    /// The watch on the device's node has something to say, or may have.
    pub(super) fn node_changed(&mut self) {
        if let Some(node) = &self.node {
            raw::drain_watch(node);
        }
        if !self.vanished && self.device.is_unlinked() {
            crate::trace::debug!("{}: its device node was removed", self.caps.name);
            self.vanished = true;
            self.device_lost();
            if self.buried {
                self.device.let_go();
            }
        }
    }

    /// All connections have ended: frees what the device has for us.
    pub(super) fn release(&mut self) {
        // Windows hold their registrations, these the domain, queues their channel: in
        // whatever order they are dropped, each is freed after what hangs on it.
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
        // Events of the CM concern other devices, too, and the node may go later.
        self.unwatch();
        self.channel = None;
        Guard::let_go(self.device);
        // A device that failed and is still there belongs to librdmacm.
        if self.vanished {
            self.device.let_go();
        }
    }

    /// Takes descriptors out of the reactor.
    pub(super) fn unwatch(&mut self) {
        for fd in self.fds.drain(..) {
            let fd = fd.as_raw_fd();
            // Others may hold the same thing open: closing would not be enough. Fails
            // only if the reactor is gone.
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
    }
}

fn ids<T>(table: &crate::rnic::table::Table<T>) -> Vec<u32> {
    table.iter().map(|(id, _)| id).collect()
}
