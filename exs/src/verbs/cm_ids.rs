//! The ids of librdmacm that a device's RNIC has: whose they are, and the listeners.
//!
//! An id of a connection belongs to a queue pair from its start until it is freed. The host routes
//! the events of the id to this RNIC for as long, and no longer. So an event of an id that was freed
//! meets no queue pair, nor does one that was on its way when the id was freed.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::host::{CmHost, RoutedEvent};
use super::raw::{CmId, Device};
use crate::rnic::table::IdTable;
use crate::rnic::{ListenOpts, Listener, RnicError};

/// See the module's essay.
pub(super) struct CmIds {
    host: Arc<CmHost>,
    /// Number of this device in `host`.
    index: usize,
    /// The queue pair of each id, by the id's serial.
    owners: HashMap<usize, u32>,
    /// The address that each listener is bound to.
    listeners: IdTable<SocketAddr>,
    /// Events for this device that the host has handed over.
    events: VecDeque<RoutedEvent>,
}

impl CmIds {
    /// Joins the host.
    pub(super) fn new(host: &Arc<CmHost>, device: Device) -> CmIds {
        CmIds {
            host: Arc::clone(host),
            index: host.join(device),
            owners: HashMap::new(),
            listeners: IdTable::new("listener"),
            events: VecDeque::new(),
        }
    }

    // ---- ids ---------------------------------------------------------------------------

    /// Makes an id without a queue pair, whose events come here.
    pub(super) fn new_id(&self) -> io::Result<CmId> {
        self.host.new_id(self.index)
    }

    /// Moves the id of a request that another RNIC has taken to the host of this one.
    pub(super) fn adopt(&self, id: &mut CmId) -> io::Result<()> {
        id.migrate(self.host.channel())
    }

    /// Gives an id to a queue pair.
    pub(super) fn assign(&mut self, id: &CmId, qp: u32) {
        self.host.own(id, self.index);
        self.owners.insert(id.serial(), qp);
    }

    /// An id is about to be freed, whether it has a queue pair or not.
    pub(super) fn release(&mut self, id: &CmId) {
        self.host.disown(id);
        self.owners.remove(&id.serial());
    }

    /// The queue pair that has the id with this serial.
    pub(super) fn owner(&self, serial: usize) -> Option<u32> {
        self.owners.get(&serial).copied()
    }

    /// The device that has a local address.
    ///
    /// # Errors
    /// ENODEV if no device has it.
    pub(super) fn device_of(&self, addr: SocketAddr) -> io::Result<Option<Device>> {
        self.host.device_of(addr)
    }

    // ---- listeners ---------------------------------------------------------------------

    /// Opens a listener, or joins that of another device of the host.
    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        let id = self.listeners.insert(addr)?;
        match self.host.listen((self.index, id), addr, opts.backlog, opts.v6_only) {
            Ok(bound) => {
                *self.listeners.get_mut(id)? = bound;
                Ok(Listener(id))
            }
            Err(e) => {
                self.listeners.remove(id)?;
                Err(RnicError::os("rdma_listen", &e))
            }
        }
    }

    /// # Errors
    /// [`RnicError::NoSuch`].
    pub(super) fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        self.listeners.get(listener.0).copied()
    }

    /// # Errors
    /// [`RnicError::NoSuch`].
    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.listeners.remove(listener.0)?;
        self.host.leave((self.index, listener.0));
        Ok(())
    }

    pub(super) fn is_listening(&self, listener: u32) -> bool {
        self.listeners.get(listener).is_ok()
    }

    // ---- events ------------------------------------------------------------------------

    /// The reactor reports that the host has events, for whichever device.
    pub(super) fn note_readable(&self) {
        self.host.note_readable();
    }

    /// Takes the events for this device from the host. True if there are events for other devices.
    pub(super) fn fetch_events(&mut self) -> bool {
        self.host.take(self.index, &mut self.events)
    }

    /// The next event that was fetched.
    pub(super) fn next_event(&mut self) -> Option<RoutedEvent> {
        self.events.pop_front()
    }
}

impl Drop for CmIds {
    fn drop(&mut self) {
        for (id, _) in self.listeners.iter() {
            self.host.leave((self.index, id));
        }
    }
}
