//! The vocabulary of the `Rnic` trait.

use std::net::SocketAddr;
use std::time::Duration;

use super::fault::{DisconnectCause, RnicError};
use crate::mem::{AccessFault, Key, Segment};
pub use crate::sys::FileRange;

/// Bytes of the header of a message that leaves by [`try_send_eager`](super::Rnic::try_send_eager), at
/// most.
pub const HEAD: usize = 48;
/// Bytes of a message with all the data that may ride in it: 8 KiB, and a cache line for the
/// header.
pub const MESSAGE: u32 = (8 << 10) + 64;

/// The outcome of [`try_send_eager`](super::Rnic::try_send_eager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EagerSend {
    /// The RNIC took nothing: the caller posts the message as a SEND.
    Declined,
    /// The message is on the wire.
    Sent,
    /// The SEND is complete, and the message leaves with the next doorbell.
    Batched,
}

/// A message that [`next_eager`](super::Rnic::next_eager) returns.
#[derive(Debug)]
pub struct EagerRecv {
    /// The queue pair that received it.
    pub qp: Qp,
    /// The number that the user of the queue pair gave it ([`QpAttr::context`]).
    pub context: u32,
    /// The length of the message in bytes.
    pub len: usize,
    /// Where the message is.
    pub at: EagerPayload,
}

/// Where an eager message is.
#[derive(Debug)]
pub enum EagerPayload {
    /// In the slice that the caller passed.
    Copied,
    /// In memory of the device, where the peer can still write. The caller reads each byte once,
    /// and then calls [`release_eager`](super::Rnic::release_eager).
    Lent(Segment),
    /// In the receive of this `wr_id`, which was posted to the SRQ of the queue pair and belongs
    /// to its user again.
    #[cfg_attr(
        not(any(test, feature = "internals", feature = "verbs")),
        expect(dead_code, reason = "drivers of devices construct it")
    )]
    InReceive(u64),
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    )*};
}

ids! {
    /// A protection domain.
    Pd,
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A queue pair.
    Qp,
    /// A listening endpoint.
    Listener,
    /// A connection request that waits for `accept` or `reject`.
    ConnReq,
}

/// A memory region: its key is the lkey, and the rkey if it has remote rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mr {
    /// lkey and rkey.
    pub key: Key,
}

/// What an RNIC can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Name for logs and reports ("soft", "rxe0", ...).
    pub name: String,
    /// WRITE WITH IMMEDIATE exists (InfiniBand, RoCE; not iWARP).
    pub write_imm: bool,
    /// The initiator of a connection must be the first to send (iWARP).
    pub initiator_first: bool,
    /// The local buffer of a READ needs the remote-write right (iWARP).
    pub read_sink_remote_write: bool,
    /// A WRITE's completion says that the peer has the bytes (InfiniBand, RoCE);
    /// else only that the local memory is free again (iWARP).
    pub write_acked: bool,
    /// READs from here of no bytes are answered rightly, whatever else this RNIC is
    /// sending, so that peers can confirm their WRITEs by them; and so are those of a few
    /// bytes that lie in two pages (siw: neither).
    pub small_reads: bool,
    /// To register memory pins it, by system calls: for some tens of KiB that costs
    /// more than to copy them.
    pub pins: bool,
    /// WRs may take their payload from a file.
    pub file_source: bool,
    /// [`bind_mw`](super::Rnic::bind_mw) makes true windows (type 2: of one QP, with
    /// bounds of their own); else a window is a registration of its own, whose key
    /// serves every QP of the domain.
    pub windows: bool,
    /// A QP whose SRQ is empty makes its peer wait (RNR on InfiniBand and RoCE, TCP's
    /// window in software); else the connection is lost, and the SRQ must always hold
    /// as many receives as all peers together may send messages (siw).
    pub srq_waits: bool,
    /// Its listeners take the host's TCP ports (iWARP): what connects by TCP to such
    /// an address reaches this RNIC, and nothing else can listen there.
    pub owns_tcp_port: bool,
    /// Its peers are on this host.
    pub within_host: bool,
    /// The doorbell is a system call of its own, which WRs that wait for each other share.
    pub doorbell_calls: bool,
    /// Keys are drawn at random from all 32 bits.
    pub random_keys: bool,
    /// Private data arrive padded with zeros (InfiniBand, RoCE).
    pub pads_private_data: bool,
    /// The receiver's completion tells that a solicited event was asked for.
    pub tells_solicited: bool,
    /// A QP notices at once that its peer's process is gone or that the peer refused
    /// something, with the reason (TERMINATE); else the reason may be lost.
    pub tells_reasons: bool,
    /// Segments per WR.
    pub max_sge: usize,
    /// Bytes that `inline` may copy at post time (`head` included).
    pub max_inline: usize,
    /// Bytes one WR may move.
    pub max_msg: u64,
    /// READs that may be outstanding towards the peer (ORD) and from it (IRD).
    pub max_ord: u32,
    /// See `max_ord`.
    pub max_ird: u32,
    /// Bytes of private data in a connection request or reply.
    pub max_private_data: usize,
    /// WRs that a send queue may hold.
    pub max_send_wr: usize,
    /// Receives that an SRQ may hold.
    pub max_srq_wr: usize,
}

/// How to make a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpAttr {
    /// Protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Receives come from here, if given.
    pub srq: Option<Srq>,
    /// Sends that may be outstanding.
    pub max_send_wr: usize,
    /// Receives that may be outstanding (without SRQ).
    pub max_recv_wr: usize,
    /// The user's own number for it (`qp_context` of verbs): comes with [`EagerRecv`] messages.
    pub context: u32,
}

/// States of a queue pair, those of RFC 5040/iWARP verbs in the names of verbs:
/// Init takes receives; Rts (ready to send) takes all; Sqd has ended its sending
/// side in order; Error flushes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// Made, not connected: receives may be posted.
    Init,
    /// Start-up is under way.
    Connecting,
    /// Connected.
    Rts,
    /// An orderly disconnect is under way: nothing more may be posted.
    Closing,
    /// Dead: everything posted is flushed.
    Error,
}

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key of the MR that covers them.
    pub lkey: Key,
}

/// What a send WR does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, in its four forms (RDMAP: Send, Send with Invalidate, Send with
    /// Solicited Event, Send with Solicited Event and Invalidate).
    Send {
        /// Key of the peer's that its RNIC is to invalidate on delivery.
        invalidate: Option<Key>,
        /// Ask for a notification at the peer.
        solicited: bool,
    },
    /// RDMA WRITE.
    Write {
        /// Address at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
    },
    /// RDMA WRITE that also completes a receive at the peer.
    WriteImm {
        /// Address at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
        /// The value delivered with the receive's completion.
        imm: u32,
    },
    /// RDMA READ into the local segments (at most one on iWARP).
    Read {
        /// Address at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
    },
}

/// A work request for the send queue.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Bytes that go before the segments; copied at post time (at most
    /// `max_inline`). Not for READ.
    pub head: &'a [u8],
    /// The payload (or the sink, for READ).
    pub sges: &'a [Sge],
    /// Payload from a file after `head` and `sges` (WRITE only, `file_source`).
    pub file: Option<FileRange>,
    /// Copy the segments' bytes at post time too: their memory is free when
    /// `post_send` returns.
    pub inline: bool,
    /// Ask for a completion. Failures complete in any case.
    pub signaled: bool,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message goes.
    pub sges: &'a [Sge],
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOp {
    /// A SEND left.
    Send,
    /// A WRITE (with or without immediate) left.
    Write,
    /// A READ's data are here.
    Read,
    /// A message arrived.
    Recv,
    /// A peer's WRITE WITH IMMEDIATE consumed a receive.
    RecvWriteImm,
}

/// How a WR ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Not done: the QP went to the error state first (IBV_WC_WR_FLUSH_ERR).
    Flushed,
    /// The local memory was refused (IBV_WC_LOC_PROT_ERR).
    LocalProtection(AccessFault),
    /// The message is longer than the receive (IBV_WC_LOC_LEN_ERR).
    LocalLength,
    /// The peer refused the access (IBV_WC_REM_ACCESS_ERR), as its TERMINATE says.
    RemoteAccess,
    /// The peer refused the request for another reason (IBV_WC_REM_INV_REQ_ERR).
    RemoteInvalidRequest,
    /// The peer failed (IBV_WC_REM_OP_ERR).
    RemoteOperation,
    /// The source file could not be read: errno.
    FileRead(i32),
    /// Another failure of a device: its `ibv_wc_status` (12 is
    /// IBV_WC_RETRY_EXC_ERR: no acknowledgement).
    #[cfg_attr(
        not(any(test, feature = "internals", feature = "verbs")),
        expect(dead_code, reason = "only RDMA devices have one")
    )]
    Device(u32),
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The WR's.
    pub wr_id: u64,
    /// Where it was posted, or (SRQ) where the message came from.
    pub qp: Qp,
    /// Outcome.
    pub status: WcStatus,
    /// Kind.
    pub op: WcOp,
    /// Bytes moved.
    pub byte_len: u64,
    /// Immediate data, if any came.
    pub imm: Option<u32>,
    /// The key of ours that the peer's SEND invalidated.
    pub invalidated: Option<Key>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

/// Parameters of connect and accept.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Handed to the peer's request or reply event.
    pub private_data: &'a [u8],
    /// READs we answer at a time.
    pub ird: u32,
    /// READs we issue at a time.
    pub ord: u32,
    /// Give up after this long without an answer.
    pub timeout: Duration,
    /// Protect the connection by CRC32C (iWARP: asked for in the MPA start-up,
    /// and on if either side asks; devices have their own).
    pub crc: bool,
    /// Small messages leave at once (TCP_NODELAY, where there is TCP).
    pub no_delay: bool,
    /// Source address to bind to before connecting.
    pub bind: Option<SocketAddr>,
}

/// Parameters of listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenOpts {
    /// Connections that may wait in the kernel.
    pub backlog: u32,
    /// Refuse IPv4-mapped connections on an IPv6 wildcard.
    pub v6_only: bool,
    /// Give a started connection this long to send its request.
    pub handshake_timeout: Duration,
    /// The caller has the TCP port of this address: another device of the same program
    /// listens there. (An RNIC whose own listeners are not TCP's, but stand for them on
    /// this host, takes the port itself if not.)
    pub port_held: bool,
}

/// How to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// What was posted leaves first.
    Orderly,
    /// At once (a TCP reset).
    Abort,
}

/// What happened to connections.
#[derive(Clone, Debug)]
pub enum CmEvent {
    /// Somebody wants to connect to a listener.
    ConnectRequest {
        /// Where.
        listener: Listener,
        /// To be answered by `accept` or `reject`.
        req: ConnReq,
        /// Who.
        peer: SocketAddr,
        /// Our address as the peer dialled it.
        local: SocketAddr,
        /// What came along.
        private_data: Vec<u8>,
    },
    /// A QP is connected (either side). Posted receives count from here.
    Established {
        /// Which.
        qp: Qp,
        /// The acceptor's private data (initiator side only).
        private_data: Vec<u8>,
        /// READs we may issue at a time, as negotiated.
        ord: u32,
        /// READs we answer at a time, as negotiated.
        #[cfg_attr(
            not(any(test, feature = "internals")),
            expect(dead_code, reason = "the contract suite reads it")
        )]
        ird: u32,
    },
    /// The acceptor said no.
    Rejected {
        /// Which.
        qp: Qp,
        /// What came along.
        private_data: Vec<u8>,
    },
    /// The connection was not made.
    ConnectFailed {
        /// Which.
        qp: Qp,
        /// Why.
        error: RnicError,
    },
    /// A connection that was established is over. The last event of a QP.
    Disconnected {
        /// Which.
        qp: Qp,
        /// Why.
        cause: DisconnectCause,
    },
}

/// What `poll_event` yields.
#[derive(Clone, Debug)]
pub enum RnicEvent {
    /// A connection event.
    Cm(CmEvent),
    /// An armed CQ has completions.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "the contract suite arms CQs")
    )]
    CqReady(Cq),
    /// The device is gone: its QPs have had their last events, its listeners take
    /// nothing any more, and calls on it fail from now on.
    #[cfg_attr(
        not(any(test, feature = "internals", feature = "verbs")),
        expect(dead_code, reason = "only RDMA devices go away")
    )]
    DeviceRemoved,
}

/// Readiness as the reactor saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Bytes, a connection, or an end of file can be read.
    pub readable: bool,
    /// There is room to write, or a connect has ended.
    pub writable: bool,
    /// The peer ended its side, or the connection broke (EPOLLRDHUP, EPOLLHUP,
    /// EPOLLERR). Readiness is edge-triggered: without this a driver could not
    /// take a short read for "all read", as no edge follows for an end of file
    /// that was reported together with the last bytes.
    pub hup: bool,
}
