//! The vocabulary of the `Rnic` trait.

use std::net::SocketAddr;
use std::time::Duration;

use super::fault::{DisconnectCause, RnicError};
use super::grouping::{GroupRule, TakesGroups};
use super::path::PathAttr;
use super::starved::StarvedListener;
use crate::mem::{AccessFault, AtomicOp, Atomics, Key};
pub use crate::sys::FileRange;

/// Most bytes in the header of a message that leaves by
/// [`try_send_eager`](super::Rnic::try_send_eager).
pub const HEAD: usize = 48;
/// Most bytes in a message with all the data that it may carry: 8 KiB, and a cache line for the
/// header.
pub const MESSAGE: u32 = (8 << 10) + 64;

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
    /// Name in logs and reports ("soft", "rxe0", ...).
    pub name: String,
    /// WRITE WITH IMMEDIATE exists (InfiniBand, RoCE; not iWARP).
    pub write_imm: bool,
    /// The initiator of a connection must be the first to send (iWARP).
    pub initiator_first: bool,
    /// The local buffer of a READ must have the remote-write right (iWARP).
    pub read_sink_remote_write: bool,
    /// A WRITE's completion means that the peer has the bytes (InfiniBand, RoCE). Otherwise it
    /// means only that the local memory is free again (iWARP).
    pub write_acked: bool,
    /// The peer answers READs of no bytes correctly, whatever else this RNIC is sending, so that
    /// it can confirm WRITEs by them. It also answers READs of a few bytes that lie in two pages.
    /// False for siw, which fails at both.
    pub small_reads: bool,
    /// Registration pins memory, by system calls. For some tens of KiB that costs more than a
    /// copy.
    pub pins: bool,
    /// WRs may take their payload from a file.
    pub file_source: bool,
    /// [`bind_mw`](super::Rnic::bind_mw) makes true windows (type 2: for one QP, with their own
    /// bounds). Otherwise a window is a registration of its own, whose key serves every QP of the
    /// domain.
    pub windows: bool,
    /// A QP whose SRQ is empty makes its peer wait (RNR on InfiniBand and RoCE, TCP's window in
    /// software). Otherwise the connection is lost, so the SRQ must always hold as many receives
    /// as all peers together may send messages (siw).
    /// Such an SRQ may be a pool from which QPs take the receives of their own queues, each
    /// [`STRICT_CREDITS`].
    pub srq_waits: bool,
    /// Its listeners take the host's TCP ports (iWARP): a TCP connection to such an address
    /// reaches this RNIC, and no other socket can listen there.
    pub owns_tcp_port: bool,
    /// What the peer's atomic operations, which this RNIC executes, are atomic with. An RNIC that
    /// executes none issues none either.
    pub atomics: Atomics,
    /// Its peers are on this host.
    pub within_host: bool,
    /// The doorbell is a system call of its own, which WRs that are posted together share.
    pub doorbell_calls: bool,
    /// Keys are drawn at random from all 32 bits.
    pub random_keys: bool,
    /// Private data arrive padded with zeros (InfiniBand, RoCE).
    pub pads_private_data: bool,
    /// The receiver's completion says whether the peer asked for a solicited event.
    pub tells_solicited: bool,
    /// A QP notices at once that its peer's process is gone, or that the peer refused something,
    /// and gets the reason (TERMINATE). Otherwise the reason may be lost.
    pub tells_reasons: bool,
    /// Segments per WR.
    pub max_sge: usize,
    /// Most bytes that `inline` may copy at post time, `head` included. Where `max_sge` is 1, also
    /// the most of a head and the payload behind it.
    pub max_inline: usize,
    /// Most bytes that one WR may move.
    pub max_msg: u64,
    /// READs and atomic operations that may be outstanding towards the peer (ORD).
    pub max_ord: u32,
    /// READs and atomic operations that may be outstanding from the peer (IRD).
    pub max_ird: u32,
    /// Most bytes of private data in a connection request or reply.
    pub max_private_data: usize,
    /// WRs that a send queue may hold.
    pub max_send_wr: usize,
    /// Receives that an SRQ may hold.
    pub max_srq_wr: usize,
    /// Receives that a QP may hold, with those that [`add_receives`](super::Rnic::add_receives) adds
    /// to its [`STRICT_CREDITS`]. 0: it adds none.
    pub max_receives: u16,
}

/// The receives that each connection has for itself where a peer cannot wait for one
/// ([`Caps::srq_waits`]).
pub const STRICT_CREDITS: u16 = 8;

/// The receives that a QP holds beyond the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraReceives {
    /// How many are left.
    pub left: u16,
    /// After how many more messages none is left. They use up usual receives, too.
    pub messages: u16,
}

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpAttr {
    /// Protection domain.
    pub pd: Pd,
    /// The queue in which sends complete.
    pub send_cq: Cq,
    /// The queue in which receives complete.
    pub recv_cq: Cq,
    /// The queue that receives come from. None: the QP has a receive queue of its own.
    pub srq: Option<Srq>,
    /// Most sends that may be outstanding.
    pub max_send_wr: usize,
    /// Most receives that may be outstanding. Not used with an SRQ.
    pub max_recv_wr: usize,
    /// The user's own number for the QP (`qp_context` of verbs), which comes back in
    /// [`EagerRecv`](super::EagerRecv).
    pub context: u32,
}

/// States of a queue pair: those of RFC 5040 and the iWARP verbs, under the names of the verbs.
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
    /// Length in bytes.
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
        /// The peer's key that its RNIC invalidates on delivery. None: a SEND without Invalidate.
        invalidate: Option<Key>,
        /// Asks for a notification at the peer.
        solicited: bool,
    },
    /// RDMA WRITE.
    Write {
        /// Address in the peer's memory.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
    },
    /// RDMA WRITE that also completes a receive at the peer.
    WriteImm {
        /// Address in the peer's memory.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
        /// The value delivered with the receive's completion.
        imm: u32,
    },
    /// RDMA READ into the local segments (at most one on iWARP).
    Read {
        /// Address in the peer's memory.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
    },
    /// Atomic operation. The local segment, of one word, gets what was there before. It takes one of
    /// the READs that may be outstanding.
    Atomic {
        /// Address of the word in the peer's memory.
        raddr: u64,
        /// The peer's key.
        rkey: Key,
        /// The operation.
        op: AtomicOp,
    },
}

/// A work request for the send queue.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// The caller's number, which comes back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Bytes that go before the segments. The call copies them; at most `max_inline`. Empty for
    /// READ and for atomic operations.
    pub head: &'a [u8],
    /// The payload; for READ and for atomic operations, the sink.
    pub sges: &'a [Sge],
    /// Payload from a file after `head` and `sges` (WRITE only, `file_source`).
    pub file: Option<FileRange>,
    /// The call also copies the bytes of the segments, so their memory is free when `post_send`
    /// returns.
    pub inline: bool,
    /// Asks for a completion. A WR that fails completes in any case.
    pub signaled: bool,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The caller's number, which comes back in the completion.
    pub wr_id: u64,
    /// The memory that a message is placed in.
    pub sges: &'a [Sge],
}

/// The kind of work that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOp {
    /// A SEND left.
    Send,
    /// A WRITE (with or without immediate) left.
    Write,
    /// The data of a READ have arrived.
    Read,
    /// An atomic operation was executed, and the old value has arrived.
    Atomic,
    /// A message arrived.
    Recv,
    /// A peer's WRITE WITH IMMEDIATE consumed a receive.
    RecvWriteImm,
}

impl SendOp {
    /// Returns the kind of its completion.
    pub const fn wc_op(self) -> WcOp {
        match self {
            SendOp::Send { .. } => WcOp::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOp::Write,
            SendOp::Read { .. } => WcOp::Read,
            SendOp::Atomic { .. } => WcOp::Atomic,
        }
    }
}

/// How a WR ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// The WR is done.
    Success,
    /// The WR is not done: the QP went to the error state first (IBV_WC_WR_FLUSH_ERR).
    Flushed,
    /// The RNIC refused the local memory (IBV_WC_LOC_PROT_ERR).
    LocalProtection(AccessFault),
    /// The message is longer than the receive (IBV_WC_LOC_LEN_ERR).
    LocalLength,
    /// The peer refused the access (IBV_WC_REM_ACCESS_ERR), as its TERMINATE says.
    RemoteAccess,
    /// The peer refused the request for another reason (IBV_WC_REM_INV_REQ_ERR).
    RemoteInvalidRequest,
    /// The peer failed (IBV_WC_REM_OP_ERR).
    RemoteOperation,
    /// The source file could not be read. The number is an errno.
    FileRead(i32),
    /// Another failure of a device. The number is its `ibv_wc_status` (12 is
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
    /// The `wr_id` of the WR.
    pub wr_id: u64,
    /// The QP that the WR was posted to. With an SRQ, the QP that received the message.
    pub qp: Qp,
    /// The outcome.
    pub status: WcStatus,
    /// The kind of the WR.
    pub op: WcOp,
    /// Number of bytes moved. 0 for a WR that failed.
    pub byte_len: u64,
    /// Immediate data. None if the message carried none.
    pub imm: Option<u32>,
    /// The key of this side that the peer's SEND invalidated. None if it invalidated none.
    pub invalidated: Option<Key>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

/// Parameters of connect and accept.
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Bytes that the peer gets with its request or reply event.
    pub private_data: &'a [u8],
    /// READs that this side answers at a time.
    pub ird: u32,
    /// READs that this side issues at a time.
    pub ord: u32,
    /// Time after which an attempt without an answer fails.
    pub timeout: Duration,
    /// Protects the connection by CRC32C. Only for iWARP in software, which asks for it in the
    /// MPA start-up; it is on if either side asks. Devices have their own checks.
    pub crc: bool,
    /// Small messages leave at once (TCP_NODELAY, where there is TCP).
    pub no_delay: bool,
    /// Source address to bind to before connecting. None: the kernel chooses.
    pub bind: Option<SocketAddr>,
    /// The path through the network.
    pub path: PathAttr,
    /// When the connection shares the TCP connection of a link group, where there is TCP.
    pub grouping: GroupRule,
}

/// Parameters of listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenOpts {
    /// Most connections that may wait in the kernel.
    pub backlog: u32,
    /// Refuses IPv4-mapped connections on an IPv6 wildcard.
    pub v6_only: bool,
    /// Time that a started connection has to send its request.
    pub handshake_timeout: Duration,
    /// The caller holds the TCP port of this address, because another device of the same program
    /// listens there. If false, an RNIC whose own listeners are not TCP's, but stand for them on
    /// this host, takes the port itself.
    pub port_held: bool,
    /// The path of the connections through the network.
    pub path: PathAttr,
    /// Whether it takes link groups.
    pub groups: TakesGroups,
}

/// How to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// The WRs that are posted leave first.
    Orderly,
    /// As `Orderly`, after the peer's last message: this end need not wait for the end of the peer's side.
    Answered,
    /// At once (a TCP reset).
    Abort,
}

impl Disconnect {
    /// True if the WRs that are posted leave first.
    pub(crate) fn is_orderly(self) -> bool {
        self != Disconnect::Abort
    }
}

/// What happened to connections.
#[derive(Clone, Debug)]
pub enum CmEvent {
    /// A peer asks to connect to a listener. `accept` or `reject` answers.
    ConnectRequest {
        /// The listener.
        listener: Listener,
        /// The request.
        req: ConnReq,
        /// The peer's address.
        peer: SocketAddr,
        /// Our address, as the peer dialled it.
        local: SocketAddr,
        /// The private data of the request.
        private_data: Vec<u8>,
    },
    /// A QP is connected (either side).
    Established {
        /// The queue pair.
        qp: Qp,
        /// The acceptor's private data. Empty on the acceptor's side.
        private_data: Vec<u8>,
        /// READs that this side may issue at a time, as negotiated.
        ord: u32,
        /// READs that this side answers at a time, as negotiated.
        #[cfg_attr(
            not(any(test, feature = "internals")),
            expect(dead_code, reason = "the contract suite reads it")
        )]
        ird: u32,
    },
    /// The acceptor refused.
    Rejected {
        /// The queue pair.
        qp: Qp,
        /// The private data of the refusal.
        private_data: Vec<u8>,
    },
    /// A connection attempt failed.
    ConnectFailed {
        /// The queue pair.
        qp: Qp,
        /// The reason.
        error: RnicError,
    },
    /// A connection that was established is over. The last event of a QP.
    Disconnected {
        /// The queue pair.
        qp: Qp,
        /// The reason.
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
    /// The RNIC needs a connection back that it has lent.
    EndLoan(Qp),
    /// A listener is starved. Attempts on this RNIC have been dealt with; those on other RNICs of the
    /// process are left ([`Rnic::fail_attempts`](super::Rnic::fail_attempts)).
    Starved(StarvedListener),
    /// The device is gone. Its QPs have had their last events, its listeners accept nothing any
    /// more, and calls on it fail from now on.
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
    /// The peer ended its side, or the connection broke (EPOLLRDHUP, EPOLLHUP, EPOLLERR).
    /// Readiness is edge-triggered, and no edge follows for an end of file that was reported
    /// together with the last bytes. Without this flag a driver could not take a short read as
    /// "all is read".
    pub hup: bool,
}
