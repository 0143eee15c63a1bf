//! F6: who moves the bytes, and when.
//!
//! Operations are asynchronous, so something must carry them on while the
//! program computes; but handing work from thread to thread costs microseconds, and a lock that all
//! threads share costs the other cores. So a process has several [`Context`]s, its *shards*
//! (`shards`): each has one engine behind one lock, and a thread that has a reason to runs it:
//!
//! - A thread that posts an operation drives that socket at once, up to and
//!   including the system call; what is not urgent may wait for the next doorbell,
//!   if no thread leads.
//! - A thread that waits on a queue *leads* the queue's shard: it owns the reactor (mio), sleeps in
//!   it, and runs whatever became ready, for every socket there.
//! - Other threads that wait in the same shard *follow*: each sleeps on its own eventfd until its
//!   queue has what it waits for, or until it is woken to lead.
//! - A thread that has used other shards lately drives them as a *companion* while it waits
//!   (`companions`), if no thread leads there.
//! - A background thread for each shard sees to it that a thread leads: when none has for a
//!   millisecond, it wakes a follower, or leads itself.
//!
//! What this floor promises: invariant 1 of the whole (every accepted operation
//! yields exactly one event), no lost wake-up, and that no lock is held across a
//! wait. What it must never know: the types of the public interface; it deals in
//! [`RawEvent`]s, and the floor above dresses them.
//!
//! Shape: [`Context`] (lock, reactor, background thread) owns the `Engine`
//! (devices, sockets, operations, timers); `leader` is the hand-over of the lead;
//! `reliance` whether the program polls descriptors instead of waiting here;
//! `handle` where a socket lives; `queue` is the event queue that both sides meet at, `wait` and
//! `spin` how a thread waits there.

mod alone;
mod attend;
mod background;
mod companions;
mod context;
mod devices;
mod drive;
mod engine;
mod error;
mod event;
mod exit;
mod flags;
mod handle;
mod lazy_now;
mod leader;
mod options;
mod patience;
mod queue;
mod reactor;
mod reliance;
mod report;
mod route;
mod shards;
mod spin;
mod values;
mod wait;
mod waiter;

pub use crate::session::Standing;
pub(crate) use attend::Awaited;
pub use context::Context;
#[cfg(any(test, feature = "internals"))]
pub use devices::Devices;
pub(crate) use devices::describe_transports;
pub(crate) use engine::Short;
#[cfg(any(test, feature = "internals"))]
pub use engine::SockId;
pub use engine::{ExportId, FileSend, Part, Remote, Watch};
pub(crate) use engine::{OwnTicket, Ticket};
pub use error::Error;
pub use event::{Bufs, EventKind, Guest, RawEvent, Readiness, Untaken};
pub use flags::{Interest, RecvFlags, Rights};
pub use handle::SocketHandle;
pub use options::{Options, QueueOptions, Transport, WaitPolicy};
pub(crate) use queue::Want;
pub use queue::{FdUse, QueueCore};
pub use report::{Candidate, DeviceInfo, PortInfo, TransportInfo};
pub use route::Route;
pub use shards::Shard;
pub(crate) use shards::{
    Figures, figures_of_all as figures_of_all_shards, first as first_shard,
    note_own as note_own_shard, note_service, of_next_accept as shard_of_next_accept,
};
#[cfg(any(test, feature = "internals"))]
pub use shards::{attending_threads, leading_threads, limit_shards};
pub use values::{parse_size, parse_time};
pub(crate) use wait::Waited;
pub(crate) use waiter::prepare_to_wait;
