//! F6: the threads that move the bytes, and when they do it.
//!
//! Operations are asynchronous, so a thread must carry them on while the program computes. But to
//! hand work from thread to thread costs microseconds, and a lock that all threads share costs time
//! on every core. So a process has several [`Context`]s, its *shards* (`shards`). Each has one
//! engine behind one lock. A thread with a reason to run the engine runs it:
//!
//! - A thread that posts an operation drives that socket at once, up to and including the system
//!   call. If no thread leads, work that is not urgent may wait for the next doorbell.
//! - A thread that waits on a queue *leads* the shard of the queue: it owns the reactor (mio),
//!   sleeps in it, and serves every socket there that becomes ready.
//! - Other threads that wait in the same shard *follow*. Each sleeps on its own eventfd until its
//!   queue has the events that it waits for, or until it is woken to lead.
//! - A thread that has used other shards a short time ago drives them as a *companion* while it
//!   waits (`companions`), if no thread leads there.
//! - Each shard has a background thread. When no thread has led for a millisecond, it wakes a
//!   follower, or leads itself.
//!
//! What this floor promises: invariant 1 of the whole (every accepted operation yields exactly one
//! event), no lost wake-up, and that no thread holds a lock while it waits. What it must never
//! know: the types of the public interface. It deals in [`RawEvent`]s, from which the floor above
//! makes its events.
//!
//! Shape: a [`Context`] (lock, reactor, background thread) owns the `Engine` (devices, sockets,
//! operations, timers). `lead` has the states of the lead, and `leader` hands it over. `reliance` decides whether the program polls
//! descriptors or waits here. `handle` knows the shard of a socket. `queue` is the event queue at
//! which both sides meet. `wait` and `spin` are the ways in which a thread waits there.

mod alone;
mod attend;
mod background;
mod branches;
pub(crate) mod busy;
mod call;
mod companions;
mod context;
mod crowding;
mod devices;
mod drive;
#[cfg(all(test, feature = "tokio"))]
mod edge_loop;
mod engine;
mod error;
mod event;
mod event_loop;
mod exit;
mod flags;
mod grouping;
mod handle;
mod host;
mod lazy_now;
mod lead;
mod leader;
mod loan;
#[cfg(feature = "tokio")]
mod loop_look;
mod options;
mod owed;
mod pace;
mod passing;
mod path;
mod queue;
mod race;
mod reactor;
mod reactor_bell;
mod reliance;
mod report;
mod residence;
mod room;
mod route;
mod sentry;
mod shard_limits;
mod shards;
mod sleep_end;
mod spin;
mod stats;
#[cfg(feature = "tokio")]
mod tasks;
mod ticks;
mod tries;
mod values;
mod wait;
mod wait_for_one;
mod waiter;

pub use crate::session::Standing;
pub(crate) use attend::Awaited;
pub use context::Context;
#[cfg(any(test, feature = "internals"))]
pub use devices::Devices;
pub(crate) use devices::describe_transports;
pub(crate) use drive::Driven;
#[cfg(all(test, feature = "tokio"))]
pub(crate) use edge_loop::EdgeLoop;
#[cfg(any(test, feature = "internals"))]
pub use engine::SockId;
#[cfg(feature = "tokio")]
pub(crate) use engine::TaskSend;
pub use engine::{ExportId, FileSend, LoopId, Part, RecvAtOnce, Remote, Watch};
pub(crate) use engine::{ListenEnd, Op, Ringer, Short};
pub(crate) use engine::{OwnTicket, Posting, Ticket};
pub use error::Error;
pub use event::{Bufs, EventKind, Guest, RawEvent, Readiness, Untaken};
pub(crate) use exit::owns_sockets;
pub use flags::{Interest, RecvFlags, Rights};
pub use grouping::Grouping;
pub(crate) use grouping::ServedBy;
pub use handle::SocketHandle;
pub use host::Host;
pub(crate) use loan::LentRecv;
#[cfg(feature = "tokio")]
pub(crate) use loop_look::LoopLook;
pub use options::{Options, QueueOptions, Transport, WaitPolicy};
pub(crate) use passing::{Destination, PassingRecv};
pub use path::PathOptions;
#[cfg(feature = "futures")]
pub(crate) use queue::Workers;
pub use queue::{FdUse, QueueCore};
pub(crate) use queue::{QueueUse, Want};
pub use report::{Candidate, DeviceInfo, PortInfo, TransportInfo};
pub use route::Route;
pub use shards::Shard;
pub(crate) use shards::{
    Figures, figures_of_all as figures_of_all_shards, first as first_shard,
    note_own as note_own_shard, note_service, of_loop as shard_of_loop,
    of_new_socket as shard_of_new_socket, of_next_accept as shard_of_next_accept,
};
#[cfg(any(test, feature = "internals"))]
pub use shards::{attending_threads, leading_threads, limit_shards, waiting_threads};
pub use stats::directories as stats_directories;
#[cfg(feature = "metrics")]
pub(crate) use stats::{Totals, totals as stats_totals};
pub(crate) use stats::{offer as offer_stats, snapshot as stats_snapshot};
pub use values::{parse_size, parse_time};
pub(crate) use wait::Waited;
pub(crate) use waiter::prepare_to_wait;
