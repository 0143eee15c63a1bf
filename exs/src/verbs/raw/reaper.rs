//! Where ids of librdmacm are freed: in threads of their own.
//!
//! `rdma_destroy_id` sleeps in the kernel until nothing refers to the id any more: not a
//! message of the connection manager that waits for its answer or its next try, not a work
//! that is under way. Mostly that is nothing; but what is to come from a peer that is
//! silent takes as long as the manager tries (a minute on RoCE, 10 s on siw). Whoever
//! holds the engine's lock must not wait for it, or the whole process would. So dropping
//! an id hands it over to here.
//!
//! What must have happened before somebody goes on is no business of this place, since
//! the driver has done it: the queue pair is freed at once (but for attempts on iWARP,
//! whose queue pair is in the error state), so no memory is touched any more; and a listener
//! is waited for, so that its port can be bound again (`CmId::close`).
//!
//! Threads are made when there is something to do, and end when there is no more: at most
//! [`THREADS`], so that one which waits for long does not hold up the others. What is here
//! holds its event channel, and with it the descriptor that it needs. Events need no care:
//! librdmacm waits for the acknowledgement of those that were taken, and the kernel forgets
//! the others. A device that is removed meanwhile has its ids freed by the kernel; to free
//! them once more does nothing.
//!
//! Nobody joins the threads: the end of the process ends them, and the kernel then frees
//! ids with their channel's descriptor. A child of fork(2) has none of them, and may not use
//! the library.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rdma_sys as sys;

use super::cm::{CmChannel, Users};

/// As many ids may be waited for at once.
const THREADS: usize = 4;
/// As many may lie here. Who drops more frees them itself: that is slow, and so bounds
/// what a peer can make this process and its kernel keep.
const MOST: usize = 4096;

/// A queue pair, taken away from its id, and what it uses: to drop it frees it.
pub(super) struct Pair {
    pub(super) qp: Option<NonNull<sys::ibv_qp>>,
    #[expect(dead_code, reason = "held, not read, until the queue pair is gone")]
    pub(super) users: Option<Users>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(qp) = self.qp {
            // SAFETY: made by `rdma_create_qp` with queues of ours, so that librdmacm has
            // nothing more to do with it than this; its id names it no more; freed once.
            unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
        }
    }
}

/// What is left of an id: to drop it frees the queue pair, if there is one, and the id.
pub(super) struct Corpse {
    pub(super) pair: Pair,
    pub(super) id: NonNull<sys::rdma_cm_id>,
    #[expect(dead_code, reason = "held, not read")]
    pub(super) channel: Arc<CmChannel>,
    /// Its end tells that of the corpse, whose fields are dropped after all else.
    #[expect(dead_code, reason = "held, not read")]
    pub(super) told: Option<mpsc::Sender<()>>,
}

// SAFETY: ids and queue pairs may be used from any thread, and nobody else has these any more.
unsafe impl Send for Corpse {}

impl Drop for Corpse {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.pair, Pair { qp: None, users: None }));
        // SAFETY: ours, without a queue pair; events of it that were taken are acknowledged,
        // or about to be by whoever took them, for which the call waits.
        unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
    }
}

struct State {
    queue: VecDeque<Corpse>,
    threads: usize,
}

static STATE: Mutex<State> = Mutex::new(State { queue: VecDeque::new(), threads: 0 });

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees an id soon, in another thread.
pub(super) fn bury(corpse: Corpse) {
    let mut state = lock();
    if state.queue.len() >= MOST {
        drop(state);
        return drop(corpse);
    }
    state.queue.push_back(corpse);
    if state.threads == THREADS {
        return;
    }
    state.threads += 1;
    drop(state);
    // It inherits the mask: the program's signals are for the program's threads.
    let _held = crate::sys::HeldSignals::new();
    let thread = std::thread::Builder::new().name("exs-verbs-end".to_owned());
    if let Err(e) = thread.spawn(work) {
        crate::trace::debug!("a thread to free connections: {e}");
        // Slowly, but it is done.
        work();
    }
}

/// A thread: until there is nothing left.
fn work() {
    loop {
        let mut state = lock();
        let Some(corpse) = state.queue.pop_front() else {
            state.threads -= 1;
            return;
        };
        drop(state);
        drop(corpse);
    }
}
