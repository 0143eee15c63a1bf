//! Ids that move from one event channel to another.

use std::io;
use std::sync::Arc;

use super::abi as sys;
use super::check;
use super::cm::{CmChannel, CmId};

impl CmId {
    /// Moves the id to another event channel, by which its events come from now on. It must be that
    /// of a connection request without an answer: the call waits for the acknowledgement of all
    /// events of the id, and of such an id there are none.
    pub(in super::super) fn migrate(&mut self, to: &Arc<CmChannel>) -> io::Result<()> {
        // SAFETY: a live id, which no other code uses (`&mut`), and two live channels: that of the id
        // is held until the id has the other one.
        check(unsafe { sys::rdma_migrate_id(self.id.as_ptr(), to.raw.as_ptr()) })?;
        self.channel = Arc::clone(to);
        Ok(())
    }
}
