//! F3: the RNIC as the rest of EXS sees it: work requests in, completions out.
//!
//! The shape is that of the verbs: protection domains (PD), memory regions (MR)
//! and windows (MW), completion queues (CQ), shared receive queues (SRQ), queue
//! pairs (QP) and work requests (WR). Connection management is that of librdmacm:
//! connect, listen, accept, reject, disconnect, with private data. A driver
//! (`tcp`, `verbs`) implements [`Rnic`]; the contract that each of
//! them must meet is the suite in `tests/`, run over every driver.
//!
//! What this floor promises:
//! - Every signalled WR, and every WR that fails, yields exactly one [`Wc`];
//!   when a QP enters the error state all its outstanding WRs are flushed with
//!   [`WcStatus::Flushed`], signalled or not, before its
//!   [`CmEvent::Disconnected`].
//! - WRs of one QP complete in the order in which they were posted (sends and
//!   receives are two orders).
//! - A WRITE is placed at the peer before a later SEND of the same QP completes
//!   a receive there.
//! - The memory of a WR is untouched by the RNIC after its completion (or, if it
//!   was unsignalled, after the completion of a later WR of the same queue).
//!
//! What it must never know: sockets, streams, messages of EXS.

mod fault;
pub(crate) mod objects;
pub(crate) mod queues;
pub(crate) mod siw_quirk;
pub(crate) mod table;
pub(crate) mod timers;
mod types;
pub(crate) mod users;

pub use crate::mem::{Access, Key};
#[cfg(any(test, feature = "internals"))]
pub use fault::wc_status_name;
pub use fault::{DisconnectCause, RnicError, TermCode, kernel_text};
pub use types::*;

use crate::mem::Segment;
use crate::sys::IoVec;
use crate::time::Time;
use std::net::SocketAddr;

/// An RNIC: a device, or software that stands in for one.
///
/// All calls are non-blocking. WRs are put on the wire by [`Rnic::flush`] (the
/// doorbell), so those posted one after the other leave together; other traffic of
/// the same QP may take them along before.
pub trait Rnic: Send {
    /// What this RNIC can do.
    fn caps(&self) -> &Caps;

    // ---- objects -------------------------------------------------------------

    /// Makes a protection domain.
    fn alloc_pd(&mut self) -> Result<Pd, RnicError>;
    /// Frees a protection domain that nothing uses any more.
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError>;
    /// Registers memory. The MR's key is an lkey, and an rkey for every QP of the
    /// domain if `access` has remote rights.
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError>;
    /// Ends a registration. WRs that still use it complete with an error or with
    /// success, but touch the memory no more after this call.
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError>;
    /// Makes a completion queue for at least `depth` completions.
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError>;
    /// Frees a completion queue that no QP uses.
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError>;
    /// Moves up to `max` completions to `out`; returns how many. (What a look has found may only
    /// be here after [`Rnic::poll_event`].)
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError>;
    /// Asks for one notification (a [`RnicEvent::CqReady`]) when the next
    /// completion is added. As in verbs, poll once more after arming.
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError>;
    /// Makes a receive queue that several QPs take their buffers from. A QP on an
    /// empty SRQ makes its peer wait; it does not fail.
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError>;
    /// Frees a shared receive queue that no QP uses; its buffers are dropped.
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError>;
    /// Posts a receive buffer to a shared receive queue.
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError>;
    /// How many receives of this queue may have been lost with queue pairs that are gone:
    /// they serve nobody and do not come back, until the queue is destroyed.
    fn lost_receives(&self, _srq: Srq) -> usize {
        0
    }
    /// Makes a queue pair in [`QpState::Init`].
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError>;
    /// Frees a queue pair; a live connection is cut abruptly, outstanding WRs
    /// vanish without completion (poll them out first if they matter).
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError>;
    /// The state of a queue pair.
    #[cfg(any(test, feature = "internals"))]
    fn qp_state(&self, qp: Qp) -> Result<QpState, RnicError>;

    // ---- work ----------------------------------------------------------------

    /// Posts a send, WRITE or READ.
    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError>;
    /// Posts a receive buffer.
    #[cfg(any(test, feature = "internals"))]
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError>;
    /// Opens a part of an MR to the peer of one QP (a type-2 memory window). The
    /// bind takes effect before any WR posted to the QP after it.
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError>;
    /// As `bind_mw`, for a window that is open for one transfer (an ADVERT, the sink
    /// of a READ, a ring) and that a correct peer leaves alone afterwards. An RNIC
    /// without true windows (`Caps::windows`) may hand out a key of the whole MR,
    /// which stays open until the MR ends: a registration for each transfer would
    /// cost more than the transfer.
    fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.bind_mw(qp, mr, addr, len, access)
    }
    /// To close this window by `invalidate_mw` costs a system call, or as much, which a
    /// peer that closes it by a SEND with Invalidate spares.
    fn invalidate_is_costly(&self, _key: Key) -> bool {
        false
    }
    /// Closes a window at once: bytes of it that are still on their way are
    /// refused like any other access without a key.
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError>;
    /// Rings the doorbell: puts posted WRs on the wire as far as it takes them.
    fn flush(&mut self, qp: Qp, now: Time);
    /// Sends a small message eagerly: `head` writes the header and returns its length, and
    /// `payload` follows. The message is complete when this returns, as an unsignalled inline
    /// SEND is. It is on the wire too, unless a doorbell costs a system call. The peer gets it by
    /// a receive, or by [`Rnic::next_eager`] where its RNIC has that.
    ///
    /// Returns [`EagerSend::Declined`] if other work is before it on this QP, or if there is no
    /// room; `head` then has written nothing, and the caller posts the message.
    fn try_send_eager(
        &mut self,
        _qp: Qp,
        _payload: &IoVec<'_>,
        _head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        EagerSend::Declined
    }
    /// Takes the next message without a completion: copies it to `out`, or lends it, if it is a
    /// whole plain SEND that fits `out`; or names the receive in which [`Rnic::poll_memory`] has found
    /// it. Returns None if there is no such message, or if completions or events come before it.
    fn next_eager(&mut self, _out: &mut [u8]) -> Option<EagerRecv> {
        None
    }
    /// Ends the loan of a message ([`EagerPayload::Lent`]). The caller must do that before its
    /// next call of `next_eager`.
    fn release_eager(&mut self, _qp: Qp) {}
    /// Leaves further messages of this QP where they are, until [`Rnic::resume_eager`], as the
    /// QP's user is about to post receives for them. Returns false if no messages of other QPs
    /// can come. A device may ignore this: then `next_eager` returns the messages of this QP too.
    fn pause_eager(&mut self, _qp: Qp) -> bool {
        true
    }
    /// Ends the pause of every QP.
    fn resume_eager(&mut self) {}
    /// Returns true only if `poll_cq` and `poll_event` would return nothing. Returns false if they
    /// may return something, or if to find out costs as much as to call them.
    fn is_quiet(&self) -> bool {
        false
    }

    // ---- connections ---------------------------------------------------------

    /// Listens; `backlog` bounds the connections that wait in the kernel.
    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError>;
    /// The address a listener is bound to.
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError>;
    /// Stops listening; requests not yet answered are dropped.
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError>;
    /// Starts to connect. The outcome is a [`CmEvent`] for this QP.
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError>;
    /// Whether a connection to `addr` (from `bind`, if given) would go through this
    /// RNIC, as far as this host knows.
    ///
    /// # Errors
    /// Why not: no route, or one by another device.
    fn reaches(&self, addr: SocketAddr, bind: Option<SocketAddr>) -> Result<(), RnicError>;
    /// Answers a connection request with a QP in [`QpState::Init`].
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError>;
    /// Refuses a connection request.
    fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) -> Result<(), RnicError>;
    /// Ends a connection. Orderly: WRs already posted leave first. Either way
    /// WRs that remain are flushed and a [`CmEvent::Disconnected`] follows.
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError>;
    /// The addresses of a QP's connection: (ours, the peer's).
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError>;

    // ---- progress ------------------------------------------------------------

    /// The reactor saw this token of ours become ready.
    fn handle_ready(&mut self, token: usize, ready: Ready);
    /// Moves what can be moved now, timeouts included, within a fair budget.
    /// Returns true if there is more to do at once.
    fn progress(&mut self, now: Time) -> bool;
    /// Tries for bytes without waiting for the reactor to report them: what a
    /// busy-polling thread calls.
    fn spin(&mut self, now: Time) -> bool;
    /// Looks for completions by looking at memory only, for a thread that spins: true
    /// if `progress` is due. None if this RNIC has no connections, or cannot.
    fn poll_memory(&mut self) -> Option<bool> {
        None
    }
    /// The same by system calls, for an RNIC that finds nothing in memory.
    fn poll_syscall(&mut self) -> Option<bool> {
        None
    }
    /// The caller is about to sleep in the reactor: asks for notifications that are
    /// not armed while somebody polls. True if there is something to do already.
    fn prepare_sleep(&mut self) -> bool {
        false
    }
    /// When [`Rnic::progress`] must be called at the latest.
    fn next_timeout(&self) -> Option<Time>;
    /// Takes the next event. What is there comes before the completions that are there: so ask
    /// for all events before [`Rnic::poll_cq`].
    fn poll_event(&mut self) -> Option<RnicEvent>;
}
