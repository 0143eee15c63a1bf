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

use super::VerbsRnic;
use super::events::{self, DeviceNote};
use super::raw::Guard;
use crate::rnic::{DisconnectCause, RnicError};

/// How far the removal of a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalStage {
    /// The device is there.
    Present,
    /// It is gone: its connections end.
    Lost,
    /// Its connections have ended, its objects are freed, and the user knows.
    Reported,
}

/// Whether a device is there. Its stage only goes on. Its node may go before or after that.
#[derive(Debug)]
pub(super) struct Presence {
    stage: RemovalStage,
    /// The kernel has removed the node, and waits until this process frees the device.
    node_unlinked: bool,
}

impl Default for Presence {
    fn default() -> Presence {
        Presence { stage: RemovalStage::Present, node_unlinked: false }
    }
}

impl Presence {
    pub(super) fn is_lost(&self) -> bool {
        self.stage != RemovalStage::Present
    }

    /// The device is gone. True at the first report of that.
    fn lose(&mut self) -> bool {
        let first = !self.is_lost();
        if first {
            self.stage = RemovalStage::Lost;
        }
        first
    }

    /// The connections of a device have ended, as far as they had to. True if the device was lost and
    /// the user is to know of it now.
    pub(super) fn report(&mut self) -> bool {
        let due = self.stage == RemovalStage::Lost;
        if due {
            self.stage = RemovalStage::Reported;
        }
        due
    }

    fn is_reported(&self) -> bool {
        self.stage == RemovalStage::Reported
    }

    /// The node is gone. True at the first report of that.
    fn unlink_node(&mut self) -> bool {
        !std::mem::replace(&mut self.node_unlinked, true)
    }

    fn has_node(&self) -> bool {
        !self.node_unlinked
    }
}

impl VerbsRnic {
    /// # Errors
    /// ENODEV if the device is gone.
    pub(super) fn alive(&self) -> Result<(), RnicError> {
        let gone = RnicError::Os { call: "the RDMA device was removed", errno: libc::ENODEV };
        if self.presence.is_lost() { Err(gone) } else { Ok(()) }
    }

    /// Handles a change of the device's node, if there was one.
    pub(super) fn node_changed(&mut self) {
        self.watches.drain_node();
        if self.presence.has_node() && self.device.is_unlinked() {
            events::tell_others(self.device, &self.inbox, DeviceNote::NodeGone);
            self.node_gone();
        }
    }

    /// Handles the removal of the device's node.
    pub(super) fn node_gone(&mut self) {
        if !self.presence.unlink_node() {
            return;
        }
        crate::trace::debug!("{}: its device node was removed", self.profile.name());
        self.device_lost();
        if self.presence.is_reported() {
            self.let_go_if_last();
        }
    }

    /// Handles the loss of the device: completions will not come any more.
    pub(super) fn device_lost(&mut self) {
        if !self.presence.lose() {
            return;
        }
        let all: Vec<u32> = self.qps.iter().map(|(id, _)| id).collect();
        for qp in all {
            self.failed.note(qp, DisconnectCause::DeviceRemoved);
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
        self.memory.release();
        self.srqs.release();
        self.device_cqs.release();
        self.qps.clear_nums();
        self.watches.end_those_of_device();
        events::leave(&self.inbox);
        events::if_unused(self.device, || Guard::let_go(self.device));
        // A device that failed and is still there belongs to librdmacm.
        if !self.presence.has_node() {
            self.let_go_if_last();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_reported_once_when_the_device_is_lost() {
        let mut presence = Presence::default();
        assert!(!presence.report(), "it is there");
        assert!(presence.lose() && !presence.lose());
        assert!(presence.is_lost() && !presence.is_reported());
        assert!(presence.report() && !presence.report());
        assert!(presence.is_lost() && presence.is_reported());
        assert!(!presence.lose(), "it does not come back");
        assert!(presence.is_reported());
    }

    #[test]
    fn the_node_goes_once_at_any_stage() {
        for stage in [RemovalStage::Present, RemovalStage::Lost, RemovalStage::Reported] {
            let mut presence = Presence { stage, ..Presence::default() };
            assert!(presence.has_node() && presence.unlink_node());
            assert!(!presence.has_node() && !presence.unlink_node());
            assert_eq!(presence.stage, stage);
        }
    }
}
