//! The reaper: threads that free ids of librdmacm.
//!
//! `rdma_destroy_id` sleeps in the kernel until nothing refers to the id any more: no message of the
//! connection manager that waits for its answer or its next try, and no work in progress. Usually
//! nothing does. But the manager awaits the answer of a silent peer as long as it tries: a minute on
//! RoCE, 10 s on siw. A thread with the engine's lock must not wait for that, or the whole process
//! would. So dropping an id hands it to the reaper.
//!
//! Nothing depends on when that happens, as the driver has done before what others wait for. The
//! queue pair is freed at once, so no memory is touched any more. Attempts on iWARP are the
//! exception: their queue pair is in the error state. And the driver waits for a listener
//! (`CmId::close`), so that its port can be bound again.
//!
//! Threads are made when there is work, and end when there is none. There are up to [`THREADS`], so
//! that a long wait does not hold up the others. An id here holds its event channel, and with it the
//! descriptor that it needs. Events need no care: librdmacm waits for the acknowledgement of those
//! that were taken, and the kernel forgets the others. If a device is removed meanwhile, the kernel
//! frees its ids. To free them once more does nothing.
//!
//! No thread joins these threads. The end of the process ends them, and the kernel then frees the ids
//! with their channel's descriptor. A child of fork(2) has none of them, and must not use the
//! library.
//! the library.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, MutexGuard, mpsc};

use super::abi as sys;
use super::cm::{CmChannel, QpObjects};
use crate::sys::ProcessLock;

/// Ids that can be waited for at a time.
const THREADS: usize = 4;
/// Ids in the queue. A thread that drops one more frees that id itself. This is slow, and so limits
/// what a peer can make this process and its kernel keep.
const MAX_QUEUED: usize = 4096;

/// A queue pair detached from its id, with the objects that it uses. Dropping it frees the queue pair.
pub(super) struct QpToFree {
    pub(super) qp: Option<NonNull<sys::ibv_qp>>,
    #[expect(dead_code, reason = "held, not read, until the queue pair is gone")]
    pub(super) users: Option<QpObjects>,
}

impl Drop for QpToFree {
    fn drop(&mut self) {
        if let Some(qp) = self.qp {
            // SAFETY: made by `rdma_create_qp` with queues of ours, so librdmacm keeps nothing else
            // for it; its id does not name it any more; freed once.
            unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
        }
    }
}

/// An id to be freed. Dropping it frees the queue pair, if there is one, and the id.
pub(super) struct IdToFree {
    pub(super) pair: QpToFree,
    pub(super) id: NonNull<sys::rdma_cm_id>,
    #[expect(dead_code, reason = "held, not read")]
    pub(super) channel: Arc<CmChannel>,
    /// Dropped after the id was freed, which its receiver notices.
    #[expect(dead_code, reason = "held, not read")]
    pub(super) done_tx: Option<mpsc::Sender<()>>,
}

// SAFETY: ids and queue pairs may be used from any thread, and no other thread has these any more.
unsafe impl Send for IdToFree {}

impl Drop for IdToFree {
    fn drop(&mut self) {
        drop(std::mem::replace(&mut self.pair, QpToFree { qp: None, users: None }));
        // SAFETY: ours, without a queue pair. Events of it that were taken are acknowledged, or will be
        // by the thread that took them; the call waits for that.
        unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
    }
}

struct ReaperState {
    queue: VecDeque<IdToFree>,
    threads: usize,
}

static STATE: ProcessLock<ReaperState> =
    ProcessLock::new(ReaperState { queue: VecDeque::new(), threads: 0 });

fn lock() -> MutexGuard<'static, ReaperState> {
    STATE.lock()
}

/// Frees an id soon, in another thread.
pub(super) fn free_soon(id: IdToFree) {
    let mut state = lock();
    if state.queue.len() >= MAX_QUEUED {
        drop(state);
        return drop(id);
    }
    state.queue.push_back(id);
    if state.threads == THREADS {
        return;
    }
    state.threads += 1;
    drop(state);
    // The thread inherits the mask: the program's signals are for the program's threads.
    let _held = crate::sys::HeldSignals::new();
    let thread = std::thread::Builder::new().name("exs-verbs-end".to_owned());
    if let Err(e) = thread.spawn(work) {
        crate::trace::debug!("a thread to free connections: {e}");
        // Slow, but the id is freed.
        work();
    }
}

/// Frees ids until the queue is empty.
fn work() {
    loop {
        let mut state = lock();
        let Some(id) = state.queue.pop_front() else {
            state.threads -= 1;
            return;
        };
        drop(state);
        drop(id);
    }
}
