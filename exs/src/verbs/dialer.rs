//! Connects that block.
//!
//! siw makes the TCP connection inside of `rdma_connect`, and waits there for the peer's SYN-ACK, for
//! minutes if need be. So on iWARP devices each connect has a thread of its own. The thread reports
//! only a failure: success comes as an event of the CM.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::raw::{CmId, ConnAttr};
use crate::sys::EventFd;

/// Runs connects in threads, and collects their failures.
pub(super) struct Dialer {
    failed: Mutex<Vec<(usize, io::Error)>>,
    /// Signalled when there is a failure to take.
    wake: Arc<EventFd>,
}

impl Dialer {
    pub(super) fn new(wake: &Arc<EventFd>) -> Arc<Dialer> {
        Arc::new(Dialer { failed: Mutex::default(), wake: Arc::clone(wake) })
    }

    /// Connects in a thread. If the attempt is given up meanwhile, the thread holds the id last, and
    /// frees it.
    pub(super) fn connect(
        self: &Arc<Self>,
        id: &Arc<CmId>,
        private_data: Vec<u8>,
        (ird, ord): (u8, u8),
        retries: (u8, u8),
    ) -> io::Result<()> {
        let (dialer, id) = (Arc::clone(self), Arc::clone(id));
        // The thread inherits the mask: the program's signals are for the program's threads.
        let _held = crate::sys::HeldSignals::new();
        let thread = std::thread::Builder::new().name("exs-verbs-dial".to_owned());
        let dial = move || {
            let attr = ConnAttr { private_data: &private_data, ird, ord, retries };
            if let Err(e) = id.connect(&attr) {
                let mut failed = dialer.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push((id.serial(), e));
                drop(failed);
                dialer.wake.signal();
            }
        };
        thread.spawn(dial).map(drop)
    }

    /// The connects that failed: the id's serial, and the error. The caller drains `wake` before
    /// this.
    pub(super) fn take(&self) -> Vec<(usize, io::Error)> {
        std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
