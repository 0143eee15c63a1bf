//! F1: the few system calls and instructions that have no safe form in the standard library (an
//! `unsafe` island).
//!
//! Each function is safe to call: it checks its arguments as far as safety needs, and returns an
//! `io::Error` with the kernel's errno. What it must never know: protocols.
#![allow(unsafe_code)]

mod addr;
mod cache;
mod clock;
mod cold;
mod congestion;
mod count;
mod deferred;
mod diag;
mod doorbell;
mod epoll;
mod eventfd;
mod exit;
mod foreign;
mod futex;
mod helpers;
mod ifaddrs;
mod iovec;
mod kernel_info;
mod limits;
mod map;
mod memfd;
mod message;
mod poll_bell;
mod ports;
mod process;
mod random;
mod resolve;
mod shared_stream;
mod signal;
mod sockaddr;
mod source;
mod staging;
mod tcp;
mod thread_time;
mod unix;
mod uring;
mod words;

#[cfg(feature = "verbs")]
pub(crate) use addr::{RawAddr, from_raw};
pub(crate) use cache::{Hint, hint};
pub use clock::{Clock, cycles};
pub(crate) use cold::cold_path;
pub use congestion::{Paced, paced_between_hosts, roomy_within_host, unpaced_listener};
pub(crate) use count::{note_calls, system_calls, yield_now};
pub use deferred::{DeferredEnd, DeferredWrite};
pub use diag::listener_uid;
pub use doorbell::{Button, WakeSocket};
#[cfg(feature = "tokio")]
pub use epoll::duplicate;
pub use epoll::{
    EpollSet, MOST_EPOLL_EVENTS, TimerFd, take_epoll_events, unwatch, watch_exclusively,
};
pub use eventfd::EventFd;
pub(crate) use exit::at_exit;
pub use foreign::{ForeignFd, PeerListener, PeerSocket, close_elsewhere};
pub use futex::{FutexBell, SharedWord, waits_for_words, wake_shared};
pub use ifaddrs::local_addrs;
pub use iovec::{IoVec, IoVecMut};
pub use kernel_info::{TcpFigures, TcpState, local_name, peer_name, tcp_figures, waiting_bytes};
#[cfg(feature = "verbs")]
pub use limits::memlock_limit;
pub use limits::{has_descriptors, most_strangers};
pub use map::map_anonymous;
pub(crate) use map::{map_shared, page_size, reserve_addresses, size_of_fd, unmap};
pub use memfd::{SharedMap, memfd_id, memfd_size, open_shared, share, share_readable};
pub use message::{
    Identity, PIECES_MAX, Received, accept, close_may_wait, connect, identify, is_duplicate,
    is_hung_up, is_nonblocking, is_readable, poll_now, receive_message, send_message,
    send_piece_tcp_only, send_tcp_only, shutdown, socket_option, wait_writable,
};
pub use poll_bell::PollBell;
pub use ports::next_reported_port;
pub use process::{ProcessLock, ProcessNumber, ProcessTable};
#[cfg(any(test, feature = "internals"))]
pub use process::{process_touches, thread_touches};
pub use random::RandomSource;
pub use resolve::{ResolveError, resolve, resolve_later};
pub use shared_stream::SharedStream;
pub use signal::{HeldSignals, wait_any_readable, wait_readable};
pub(crate) use signal::{wait_ready, which_are_readable};
pub use sockaddr::KernelAddr;
#[cfg(any(test, feature = "internals"))]
pub use sockaddr::SOCKADDR_MAX;
pub use source::{FileRange, SourceFile};
pub use staging::{FetchDone, FileBytes, Staging};
#[cfg(any(test, feature = "internals", feature = "verbs"))]
pub use tcp::reserve_port;
#[cfg(any(test, feature = "internals"))]
pub use tcp::user_timeout;
pub use tcp::{
    TcpSendFlags, abort_on_close, claim_port, connect_nonblocking, hold_port, listen, max_segment,
    no_delay, read_at, receive, send, send_file, shutdown_write, starved, traffic_class, will_need,
};
pub(crate) use thread_time::{is_runnable, processor_time, this_thread};
#[cfg(any(test, feature = "internals"))]
pub use unix::pair;
pub use unix::{
    PeerCred, accept_unix, connect_abstract, effective_uid, listen_abstract, peer_cred,
    recv_with_fds, send_with_fds,
};
pub use uring::IoRing;
#[cfg(any(test, feature = "internals"))]
pub use uring::RingReply;
pub use words::SharedWords;
