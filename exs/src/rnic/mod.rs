//! F3: the RNIC as the rest of EXS sees it: work requests go in, completions come out.
//!
//! The shape is that of the verbs: protection domains (PD), memory regions (MR) and windows (MW),
//! completion queues (CQ), shared receive queues (SRQ), queue pairs (QP) and work requests (WR).
//! Connection management is that of librdmacm: connect, listen, accept, reject and disconnect,
//! with private data. Each driver (`tcp`, `shm`, `verbs`) implements [`Rnic`]. The contract suite
//! in `tests/` runs over every driver.
//!
//! What this floor promises:
//! - Every signalled WR, and every WR that fails, yields exactly one [`Wc`]. A QP that enters the
//!   error state flushes all its outstanding WRs, signalled or not, with [`WcStatus::Flushed`],
//!   before its [`CmEvent::Disconnected`].
//! - WRs of one QP complete in the order in which they were posted. Sends and receives are two
//!   orders.
//! - A WRITE is placed at the peer before a later SEND of the same QP completes a receive there.
//! - The RNIC does not touch the memory of a WR after its completion. The memory of an
//!   unsignalled WR is free after the completion of a later WR of the same queue.
//!
//! What it must never know: sockets, streams, messages of EXS.

mod atomic;
mod attend;
mod eager;
mod fault;
mod grouping;
mod handover;
mod loan;
mod path;
pub(crate) mod siw_quirk;
mod starved;
pub(crate) mod table;
mod types;

pub use crate::mem::{Access, Atomics, Key};
pub use crate::sys::{DeferredEnd, DeferredWrite};
pub use atomic::check_atomic;
pub use attend::{
    ATTENDED_READ, ATTENDED_READ_LIMIT, Attended, AttendedBlock, AttendedEnd, AttendedWait,
    PolledSleep,
};
pub use eager::{EagerPayload, EagerRecv, EagerSend};
#[cfg(any(test, feature = "internals"))]
pub use fault::wc_status_name;
pub use fault::{DisconnectCause, RnicError, TermCode, kernel_text};
pub use grouping::{GroupRule, TakesGroups};
pub use handover::{DetachedConnection, DetachedRequest, SharedPort};
pub use loan::{LentConnection, LentSend, LentWait};
pub use path::PathAttr;
pub use starved::{AttemptNumber, StarvedListener};
pub use types::*;

use crate::mem::Segment;
use crate::sys::{IoVec, SharedStream};
use crate::time::Time;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An RNIC: a device, or software that stands in for one.
///
/// No call blocks. [`Rnic::flush`] (the doorbell) puts WRs on the wire, so WRs that the caller
/// posts one after the other leave together. Other traffic of the same QP may take them along
/// earlier.
pub trait Rnic: Send {
    /// What this RNIC can do.
    fn caps(&self) -> &Caps;

    // ---- objects -------------------------------------------------------------

    /// Makes a protection domain.
    fn alloc_pd(&mut self) -> Result<Pd, RnicError>;
    /// Frees a protection domain. Fails with `Busy` while it has regions, queues or queue pairs.
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError>;
    /// Registers memory. The MR's key is its lkey. If `access` has remote rights, the key is also
    /// an rkey for every QP of the domain.
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError>;
    /// Ends a registration. WRs that still use it complete with an error or with success, but the
    /// RNIC does not touch the memory after this call.
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError>;
    /// Makes a completion queue for at least `depth` completions.
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError>;
    /// Frees a completion queue. Fails with `Busy` while a QP uses it.
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError>;
    /// Moves up to `max` completions to `out` and returns their number. Completions that
    /// `poll_memory` or `poll_syscall` has found may appear here only after [`Rnic::poll_event`].
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError>;
    /// Asks for one notification ([`RnicEvent::CqReady`]) when the next completion is added. As
    /// in verbs, the caller must poll once more after this call, for completions that came before
    /// it.
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError>;
    /// Makes a receive queue from which several QPs take their buffers. A QP on an empty SRQ
    /// makes its peer wait; it does not fail.
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError>;
    /// Frees a shared receive queue and drops its buffers. Fails with `Busy` while a QP uses it.
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError>;
    /// Posts a receive buffer to a shared receive queue.
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError>;
    /// Returns how many receives of this queue may have been lost with destroyed queue pairs. A
    /// lost receive takes no message and does not come back until the queue is destroyed.
    fn lost_receives(&self, _srq: Srq) -> usize {
        0
    }
    /// Posts up to `count` receives of the queue `from` to a QP, beyond those that it has of its own
    /// SRQ. It gets another receive of `from` for each that a message uses up. Returns how many were
    /// posted: no more than `from` has, and than the queues of the QP have room for
    /// ([`Caps::max_receives`]).
    fn add_receives(&mut self, _qp: Qp, _from: Srq, _count: u16) -> u16 {
        0
    }
    /// Gives a QP no other receive from now on for those that [`Rnic::add_receives`] has posted.
    /// Returns how many are still posted.
    fn drop_receives(&mut self, _qp: Qp) -> ExtraReceives {
        ExtraReceives::default()
    }
    /// Takes back receives of an SRQ that no QP has, and no message has used: those whose `wr_id` is
    /// `first` or more. Appends their `wr_id` to `out`; they get no completion. Returns how many such
    /// receives the SRQ still has. It takes none back where QPs share one queue of receives.
    fn reclaim_receives(&mut self, _srq: Srq, _first: u64, _out: &mut Vec<u64>) -> usize {
        0
    }
    /// Makes a queue pair in [`QpState::Init`].
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError>;
    /// Frees a queue pair. A live connection is cut abruptly. Outstanding WRs vanish without a
    /// completion, so a caller that needs them must poll them out first.
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError>;
    /// The state of a queue pair.
    #[cfg(any(test, feature = "internals"))]
    fn qp_state(&self, qp: Qp) -> Result<QpState, RnicError>;

    // ---- work ----------------------------------------------------------------

    /// Posts a send, a WRITE, a READ or an atomic operation.
    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError>;
    /// Posts a receive buffer.
    #[cfg(any(test, feature = "internals"))]
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError>;
    /// Opens a part of an MR to the peer of one QP (a type-2 memory window) and returns its rkey.
    /// The bind takes effect before any WR that is posted to the QP later.
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError>;
    /// As `bind_mw`, for a window that is open for one transfer (an ADVERT, the sink of a READ, a
    /// ring). A correct peer leaves such a window alone afterwards. An RNIC without true windows
    /// (`Caps::windows`) may return a key of the whole MR, which stays open until the MR ends: a
    /// registration for each transfer would cost more than the transfer.
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
    /// Returns true if `invalidate_mw` of this window costs a system call or as much. A peer that
    /// closes the window by a SEND with Invalidate saves that cost.
    fn invalidate_is_costly(&self, _key: Key) -> bool {
        false
    }
    /// Closes a window at once. The RNIC refuses bytes that are still on their way to it, like
    /// any access without a key.
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError>;
    /// Rings the doorbell: puts posted WRs on the wire, as many as it takes now.
    fn flush(&mut self, qp: Qp, now: Time);
    /// True if the connection shares a stream to its peer with others ([`Rnic::flush_later`]).
    fn shares_stream(&self, _qp: Qp) -> bool {
        false
    }
    /// Rings the doorbell of a connection that shares a stream to its peer with others, but leaves the
    /// write to the next doorbell, or to [`Rnic::progress`]. False, and nothing has happened: the
    /// connection has a stream of its own.
    fn flush_later(&mut self, _qp: Qp, _now: Time) -> bool {
        false
    }
    /// Keeps what leaves from now on together, for connections that share a stream to their peer, until
    /// as many calls of [`Rnic::release_writes`]. False, and nothing has happened: no connections do.
    fn hold_writes(&mut self) -> bool {
        false
    }
    /// Ends the effect of a call of [`Rnic::hold_writes`] that returned true. With the last of them, what
    /// was kept leaves.
    fn release_writes(&mut self) {}
    /// Rings the doorbell, but leaves the write to the caller, which makes it when it no longer has
    /// the RNIC. Returns None, and does nothing, if that is not possible: the caller must call
    /// [`Rnic::flush`].
    fn defer_flush(&mut self, _qp: Qp, _now: Time) -> Option<DeferredWrite> {
        None
    }
    /// Reports the end of such a write: not all bytes have left, or the RNIC has more to write.
    fn end_deferred(&mut self, _end: DeferredEnd, _now: Time) {}
    /// The threads that have such a write do not come back. Most likely each has made it. If not, the
    /// peer misses a message, and ends the connection.
    fn forget_deferred(&mut self) {}
    /// Sends a small message eagerly: `head` writes the header and returns its length, and
    /// `payload` follows. The message is complete when this returns, as an unsignalled inline
    /// SEND is. It is on the wire too, unless a doorbell costs a system call. The peer gets it by
    /// a receive, or by [`Rnic::next_eager`] where its RNIC has that.
    ///
    /// Returns [`EagerSend::Declined`] if other work is before it on this QP, or
    /// [`EagerSend::NoRoom`]; `head` then has written nothing, and the caller posts the message.
    fn try_send_eager(
        &mut self,
        _qp: Qp,
        _payload: &IoVec<'_>,
        _head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        EagerSend::Declined
    }
    /// Takes the next message without a completion: copies it to `out`, or lends it, if it is a
    /// whole plain SEND that fits `out`; or names the receive in which [`Rnic::poll_memory`] has
    /// found it. Returns None if there is no such message, or if completions or events come
    /// before it.
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
    /// Returns true only if `poll_cq` and `poll_event` would return nothing. Returns false if
    /// they may return something, or if finding out costs as much as calling them.
    fn is_quiet(&self) -> bool {
        false
    }

    // ---- connections ---------------------------------------------------------

    /// Listens. `backlog` bounds the connections that wait in the kernel.
    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError>;
    /// Returns the address that a listener is bound to.
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError>;
    /// Stops listening and drops the requests that have no answer yet.
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError>;
    /// Lets other RNICs of the same kind in this process listen at the port of a listener
    /// ([`Rnic::join_listener`]). Each connection comes to one of them: if threads wait in several of
    /// their reactors, to these in turn.
    ///
    /// # Errors
    /// `Unsupported`: this RNIC cannot do that. Or the kernel's.
    fn share_listener(&mut self, _listener: Listener) -> Result<SharedPort, RnicError> {
        Err(RnicError::Unsupported("several listeners at one port"))
    }
    /// Listens at a port at which another RNIC listens.
    ///
    /// # Errors
    /// The RNIC is of another kind, or the kernel's error.
    fn join_listener(&mut self, _shared: SharedPort) -> Result<Listener, RnicError> {
        Err(RnicError::Unsupported("several listeners at one port"))
    }
    /// Leaves the connections of a shared listener to the other RNICs at its port, or takes its share
    /// of them again. Connections that came before the call may still come to the listener.
    ///
    /// # Errors
    /// The listener is unknown.
    fn rest_listener(&mut self, _listener: Listener, _rests: bool) -> Result<(), RnicError> {
        Ok(())
    }
    /// Lets a listener take link groups from now on, or not. Connections that have come stay.
    fn take_groups(&mut self, _listener: Listener, _takes: TakesGroups) {}
    /// Starts to connect. The outcome is a [`CmEvent`] for this QP.
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError>;
    /// Checks that a connection to `addr` (from `bind`, if given) would go through this RNIC, as
    /// far as this host knows.
    ///
    /// # Errors
    /// The reason: no route, or a route through another device.
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
    /// Takes a connection request out of this RNIC, so that another RNIC of the same kind in this
    /// process can answer it ([`Rnic::adopt_request`]). From now on `req` does not exist here, the
    /// request does not count against the backlog of its listener, and it outlives that listener.
    ///
    /// # Errors
    /// `NoSuch`: the request does not exist, or its peer has gone. `Unsupported`: this RNIC cannot
    /// hand requests over. Then the request is still here, and `accept` or `reject` answers it.
    fn detach_request(&mut self, _req: ConnReq) -> Result<DetachedRequest, RnicError> {
        Err(RnicError::Unsupported("hand-over of connection requests"))
    }
    /// Takes over a connection request from another RNIC of the same kind, and returns its number
    /// here. The caller must answer it by `accept` or `reject`, as if a listener of this RNIC had
    /// reported it. No [`CmEvent::ConnectRequest`] follows: the RNIC of the listener had it. The
    /// request belongs to no listener here.
    ///
    /// A peer that goes before the answer takes the request with it: the answer fails with
    /// `NoSuch`, or the accepted QP gets [`CmEvent::ConnectFailed`].
    ///
    /// # Errors
    /// The RNIC is of another kind, or lacks the room. The peer's attempt then fails.
    fn adopt_request(&mut self, _request: DetachedRequest) -> Result<ConnReq, RnicError> {
        Err(RnicError::Unsupported("hand-over of connection requests"))
    }
    /// Takes an established connection out of this RNIC, so that another RNIC of the same kind in this
    /// process can have it ([`Rnic::adopt_connection`]). Its QP is destroyed. What the peer has sent and
    /// no message has brought yet goes along, and so do the windows of the QP. Nothing is lost.
    ///
    /// # Errors
    /// `State`: the connection does not rest. It rests if no work request is outstanding on its QP, no
    /// message has come in part, and no completion or event waits to be polled.
    /// `Unsupported`: this RNIC cannot hand connections over. In both cases the connection is unchanged.
    fn detach_connection(&mut self, _qp: Qp) -> Result<DetachedConnection, RnicError> {
        Err(RnicError::Unsupported("hand-over of connections"))
    }
    /// Takes over an established connection from another RNIC of the same kind, for a new QP with these
    /// attributes. Its windows are open again, under the keys that the peer knows. `region` holds their
    /// memory here. No [`CmEvent::Established`] follows. If the RNIC lacks what it needs to serve the
    /// connection, it breaks, and [`CmEvent::Disconnected`] follows.
    ///
    /// # Errors
    /// The RNIC is of another kind, or has no room for the QP; or a window has no memory in `region`, or a
    /// key that [is not free](Rnic::is_key_free). The connection breaks.
    fn adopt_connection(
        &mut self,
        _attr: &QpAttr,
        _connection: DetachedConnection,
        _region: Option<Mr>,
    ) -> Result<Qp, RnicError> {
        Err(RnicError::Unsupported("hand-over of connections"))
    }
    /// Returns true if a connection may bring a window with this key along.
    fn is_key_free(&self, _key: Key) -> bool {
        false
    }
    /// Fails connection attempts to a starved listener of another RNIC of this process, apart from those
    /// that were accepted.
    fn fail_attempts(&mut self, _starved: &StarvedListener, _now: Time) {}
    /// Ends a connection. Unless it is a [`Disconnect::Abort`], WRs that are already posted leave first.
    /// In each case the remaining WRs are flushed, and [`CmEvent::Disconnected`] follows.
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError>;
    /// Returns the addresses of a QP's connection: (ours, the peer's).
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError>;

    // ---- progress ------------------------------------------------------------

    /// Reports that the reactor saw this token of the RNIC become ready.
    fn handle_ready(&mut self, token: usize, ready: Ready);
    /// Moves what can be moved now, including timeouts, within a fair budget. Returns true if it
    /// must be called again at once.
    fn progress(&mut self, now: Time) -> bool;
    /// Tries for bytes without waiting for the reactor to report them. A busy-polling thread
    /// calls this. Returns true if it found something.
    fn spin(&mut self, now: Time) -> bool;
    /// True if `spin` leaves connections to the reactor: more of them had bytes recently than it reads, and
    /// the kernel tells sooner which have some now.
    fn spins_by_reactor(&self) -> bool {
        false
    }
    /// Looks for completions in memory only, without a system call, for a thread that spins.
    /// Returns true if `progress` is due. Returns None if this RNIC has no connections or has
    /// nothing in memory to look at.
    fn poll_memory(&mut self) -> Option<bool> {
        None
    }
    /// As `poll_memory`, by system calls, for an RNIC that finds nothing in memory.
    fn poll_syscall(&mut self) -> Option<bool> {
        None
    }
    /// Prepares for the caller's sleep in the reactor: asks for notifications that the RNIC does
    /// not arm while threads poll. Returns true if there is something to do already, and then the
    /// caller must not sleep.
    fn prepare_sleep(&mut self) -> bool {
        false
    }
    /// Takes the connection of a QP out of the reactor, for a thread that waits for it itself: no
    /// `handle_ready` comes for it before [`Rnic::unattend`]. Returns false if this RNIC cannot do
    /// that, or not in the state of this connection.
    fn attend(&mut self, _qp: Qp) -> bool {
        false
    }
    /// The program waits for each of its connections by itself: in a thread, or by the connection's
    /// descriptor. Most likely it uses others so that it dials to the same address as this one, or accepts
    /// at the same port. From now on they need a stream of their own.
    fn keep_apart(&mut self, _qp: Qp) {}
    /// Gives the connection back to the reactor, which also finds what has happened meanwhile.
    /// Returns false if the kernel has no memory for that: the caller must try again soon.
    fn unattend(&mut self, _qp: Qp) -> bool {
        true
    }
    /// Looks at a connection that a thread attends, without a system call. Returns None if no thread
    /// can attend it any more.
    fn peek_attended(&mut self, _qp: Qp) -> Option<Attended> {
        None
    }
    /// Announces that the thread which attends the connection is about to sleep, and says what it
    /// must wait for. Returns None if no thread can attend it any more.
    fn sleep_attended(&mut self, _qp: Qp, _how: AttendedBlock) -> Option<AttendedWait> {
        None
    }
    /// Lends the stream of a connection, so that the program can wait for it in an epoll set of its
    /// own, edge-triggered. Only the RNIC reads the stream. Returns None if the connection has no
    /// stream, or if no thread can attend it.
    fn lend_stream(&mut self, _qp: Qp) -> Option<Arc<SharedStream>> {
        None
    }
    /// Lends the connection to the threads that block on it, or to the event loop that has its stream
    /// ([`Rnic::lend_stream`]). One of the threads has announced its sleep ([`Rnic::sleep_attended`]), and
    /// waits by [`LentConnection::wait`] instead. Returns None if anything but the next message is under
    /// way.
    fn lend(&mut self, _qp: Qp) -> Option<Box<dyn LentConnection>> {
        None
    }
    /// A loan has ended. `reads`: a thread waits there, as after [`Rnic::sleep_attended`], and is on its
    /// way back.
    fn end_loan(&mut self, _qp: Qp, _loan: Box<dyn LentConnection>, _reads: bool, _now: Time) {}
    /// Reports what ended the wait of the thread that attends the connection.
    fn wake_attended(&mut self, _qp: Qp, _end: AttendedEnd<'_>) {}
    /// As `poll_memory`, for one connection, which a thread attends. Returns true if there is
    /// something to do. Returns None if memory does not show that.
    fn poll_attended(&mut self, _qp: Qp) -> Option<bool> {
        None
    }
    /// True if the peer of this connection can make a descriptor readable that the program polls.
    fn can_sleep_polled(&self, _qp: Qp) -> bool {
        false
    }
    /// Announces that the program sleeps in poll(2) or epoll. It polls the other end of `end`, an
    /// end of a socket pair of the type SOCK_SEQPACKET, for data of this connection, which was taken
    /// out of the reactor by [`Rnic::attend`].
    fn sleep_polled(&mut self, _qp: Qp, _end: BorrowedFd<'_>) -> PolledSleep {
        PolledSleep::Unable
    }
    /// The number of messages that the peer has left, or is about to leave, at the descriptor since
    /// the last such call.
    fn take_polled_rings(&mut self, _qp: Qp) -> u32 {
        0
    }
    /// Returns the time by which [`Rnic::progress`] must be called. None: there is no deadline.
    fn next_timeout(&self) -> Option<Time>;
    /// Takes the next event. An event comes before the completions that are there at the time, so
    /// the caller must take all events before it calls [`Rnic::poll_cq`].
    fn poll_event(&mut self) -> Option<RnicEvent>;
}
