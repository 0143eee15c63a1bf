//! The inputs and outputs of a session.

use std::time::Duration;

use crate::ids::OpId;
use crate::mem::{Access, Atomics, Key, Segment};
use crate::rnic::{
    Caps, Disconnect, EagerSend, ExtraReceives, FileRange, HEAD, Mr, RnicError, SendWr, Sge,
};
use crate::sys::IoVec as Bytes;
use crate::wire::exs::{Hello, SocketKind};

use super::OpError;
use super::demand::Demand;

/// A registered piece of memory. The MR's key is its lkey.
#[derive(Clone, Debug)]
pub struct Buf {
    /// The bytes.
    pub seg: Segment,
    /// The registration that covers them.
    pub mr: Mr,
}

/// The memory of one operation.
#[derive(Clone, Debug)]
pub enum IoVec {
    /// One piece.
    One(Buf),
    /// Several, which count as one stretch of bytes.
    Many(Box<[Buf]>),
}

impl IoVec {
    /// The pieces in order.
    pub fn bufs(&self) -> &[Buf] {
        match self {
            IoVec::One(b) => std::slice::from_ref(b),
            IoVec::Many(v) => v,
        }
    }

    /// Bytes in all pieces together.
    pub fn len(&self) -> u64 {
        self.bufs().iter().map(|b| b.seg.len() as u64).sum()
    }

    /// True if there are no bytes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `f(piece, offset in it, bytes)` for each piece of the range, cut off
    /// at the end of the list.
    pub fn for_range(&self, off: u64, len: u64, mut f: impl FnMut(&Buf, usize, usize)) {
        let (mut skip, mut left) = (off, len);
        for buf in self.bufs() {
            let size = buf.seg.len() as u64;
            if skip >= size {
                skip -= size;
                continue;
            }
            if left == 0 {
                break;
            }
            let n = (size - skip).min(left);
            // Both fit: they are at most the length of a segment, a usize.
            let (at, count) = (usize::try_from(skip).unwrap_or(0), usize::try_from(n).unwrap_or(0));
            f(buf, at, count);
            skip = 0;
            left -= n;
        }
    }

    /// Cuts the range at `off` into at most `out.len()` segments; returns how
    /// many, and the bytes that they cover (fewer than `len` if the pieces are
    /// more than `out` holds).
    pub fn sges(&self, off: u64, len: u64, out: &mut [Sge]) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        self.for_range(off, len, |buf, at, n| {
            if count < out.len() {
                let addr = buf.seg.addr() + at as u64;
                out[count] = Sge { addr, len: n as u64, lkey: buf.mr.key };
                count += 1;
                bytes += n as u64;
            }
        });
        (count, bytes)
    }
}

/// Where a send takes its bytes from.
#[derive(Clone, Debug)]
pub enum SendSource {
    /// Memory.
    Memory(IoVec),
    /// A file.
    File(FileRange),
}

impl SendSource {
    /// Bytes to send.
    pub fn len(&self) -> u64 {
        match self {
            SendSource::Memory(m) => m.len(),
            SendSource::File(f) => f.len,
        }
    }

    /// True if there are no bytes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Options of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvOpts {
    /// Complete only when full, at the end, or when cancelled (stream).
    pub waitall: bool,
    /// Leave the data in the stream.
    pub peek: bool,
}

/// What a connection needs of its queue pair.
pub trait Port {
    /// What the RNIC can do.
    fn caps(&self) -> &Caps;
    /// Posts to the send queue.
    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), RnicError>;
    /// Sends a small message at once (`Rnic::try_send_eager`).
    fn try_send_eager(
        &mut self,
        _payload: &Bytes<'_>,
        _head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        EagerSend::Declined
    }
    /// Bytes of this range of a file that one WRITE may take now. 0: later; then the caller must
    /// drive the session again.
    fn file_room(&mut self, _range: &FileRange) -> u64 {
        self.caps().max_msg
    }
    /// Posts up to `count` further receives for this connection. Returns how many it has posted; 0
    /// where there are none.
    fn add_receives(&mut self, _count: u16) -> u16 {
        0
    }
    /// Posts further receives no more once messages have used them up. Says which are left; the
    /// caller asks again until none is.
    fn drop_receives(&mut self) -> ExtraReceives {
        ExtraReceives::default()
    }
    /// Opens a window for the peer.
    fn bind(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError>;
    /// Opens a window for one transfer (`Rnic::lend_mw`).
    fn lend(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        self.bind(mr, addr, len, access)
    }
    /// Closing this window costs less if the peer does it, by a SEND with Invalidate
    /// (`Rnic::invalidate_is_costly`).
    fn invalidate_is_costly(&self, _key: Key) -> bool {
        false
    }
    /// Closes a window, if the peer has not. Harmless if the queue pair is gone: its windows went
    /// with it.
    fn invalidate(&mut self, key: Key);
    /// Registered memory on which windows may be bound (ring, stash, bounce).
    fn alloc(&mut self, len: usize) -> Result<Buf, RnicError>;
    /// Gives back what `alloc` gave.
    fn free(&mut self, buf: Buf);
    /// Ends the connection; `handle_disconnected` must follow.
    fn disconnect(&mut self, how: Disconnect);
}

/// Settings of one connection.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Stream or seqpacket.
    pub kind: SocketKind,
    /// Bytes of this side's hidden ring (stream) or stash (seqpacket).
    pub ring: u32,
    /// Data up to this many bytes ride inside their announcement, as far as the
    /// peer's slots allow. 0 turns that off (stream).
    pub inline_max: u32,
    /// Data of one announcement, at most (stream).
    pub max_chunk: u32,
    /// Bytes of one message that this side takes (seqpacket).
    pub max_msg: u64,
    /// Receives that this side keeps posted for this connection: at least 4.
    pub credits: u16,
    /// Receives that this side may have posted for this connection while its peer is busy. Not more
    /// than `credits`: it keeps to these.
    pub most_credits: u16,
    /// When the peer is busy, and when idle.
    pub demand: Demand,
    /// Bytes of each of them.
    pub slot: u32,
    /// WRs that the send queue takes: at least 4.
    pub max_send_wr: usize,
    /// Probe a peer that has been silent this long; none: never, unless `dead_after` wants it.
    pub keepalive: Option<Duration>,
    /// A peer that owes an answer, or must take data, and has been silent this long is dead; none:
    /// never.
    pub dead_after: Option<Duration>,
    /// Each send must end within this time; none: no limit.
    pub send_timeout: Option<Duration>,
    /// Each receive must end within this time; none: no limit.
    pub recv_timeout: Option<Duration>,
    /// How long a withdrawal of a cancelled operation may wait for the peer's answer, if there is
    /// no `dead_after`.
    pub linger: Duration,
    /// The first message of the side that connects must arrive within this time.
    pub handshake_timeout: Duration,
    /// Give the peer's ring back after this long without use (stream); none: never.
    pub ring_idle: Option<Duration>,
    /// This side's RNIC answers small READs wrongly (`Caps::small_reads`): the peer must confirm
    /// its WRITEs by messages (`confirm.rs`), and cut some READs (`sided.rs`).
    pub confirm: bool,
    /// What this side's RNIC executes the peer's atomic operations with (`Caps::atomics`). The hello
    /// says so.
    pub atomics: Atomics,
    /// What the hello offers of [`Hello::FEATURES`]. With less, this side looks to its peer like
    /// an older build (for tests).
    pub features: u32,
    /// Use this style of announcement even if the RNIC could do better (for tests).
    pub force_announce: Option<Announce>,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        SessionConfig {
            kind: SocketKind::Stream,
            ring: 256 << 10,
            inline_max: 4 << 10,
            max_chunk: 4 << 20,
            max_msg: 1 << 32,
            credits: 32,
            most_credits: 0,
            demand: Demand::default(),
            slot: 8 << 10,
            max_send_wr: 64,
            keepalive: None,
            dead_after: None,
            send_timeout: None,
            recv_timeout: None,
            linger: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            ring_idle: Some(Duration::from_secs(30)),
            confirm: false,
            atomics: Atomics::None,
            features: Hello::FEATURES,
            force_announce: None,
        }
    }
}

/// How data that were written into the peer's memory are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// WRITE WITH IMMEDIATE, where a message has nothing more to say.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "simulations force it")
    )]
    WriteImm,
    /// WRITE, then SEND.
    WriteSend,
}

/// An operation has ended. The order of the fields is that of memory: with the numbers first, a move
/// of `Option<Done>` copies them whole, and a load that follows does not wait for two stores.
#[derive(Debug)]
#[repr(C)]
pub struct Done {
    /// Which.
    pub op: OpId,
    /// Bytes moved (also if it failed or was cancelled on the way).
    pub bytes: u64,
    /// True length of a seqpacket message: more than `bytes` if it was cut off. Of an atomic operation
    /// that was done: the value that was there before. Else as `bytes`.
    pub total: u64,
    /// A receive met the end of the data.
    pub eof: bool,
    /// How it ended.
    pub result: Result<(), OpError>,
}

impl Done {
    /// A result without an error: all `bytes` were moved.
    pub(super) fn whole(op: OpId, bytes: u64) -> Done {
        Done { op, bytes, total: bytes, eof: false, result: Ok(()) }
    }
}

/// What a receive and a send would find, for a descriptor in poll(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// A receive, or an accept, would not wait.
    pub readable: bool,
    /// Grows with everything that arrives for a receive.
    pub arrived: u64,
    /// Bytes that a receive would get without waiting: of a seqpacket socket those of the
    /// next message.
    pub available: u64,
    /// The peer sends nothing more, or this side wants nothing more.
    pub ended: bool,
    /// This side sends nothing more.
    pub shut: bool,
    /// Something other than a close in order has ended the connection.
    pub broken: bool,
}

impl Standing {
    /// True if this is news after `before`: more has arrived and can be taken, or a direction has
    /// ended.
    pub fn is_news(&self, before: &Standing) -> bool {
        self.readable && (self.arrived != before.arrived || !before.readable)
            || (self.ended, self.shut, self.broken) != (before.ended, before.shut, before.broken)
    }
}

/// Adds a number of the peer's, which was checked, to one of the [`Counters`]. A counter stops at
/// its greatest value: it must neither end the connection nor begin again at 0.
#[inline]
pub(super) fn count(counter: &mut u64, n: u64) {
    *counter = counter.saturating_add(n);
}

/// What a connection counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sends that ended.
    pub sends: u64,
    /// Receives that ended.
    pub recvs: u64,
    /// READs, WRITEs and atomic operations of the program that ended.
    pub one_sided: u64,
    /// Bytes written into advertised buffers of the peer.
    pub tx_direct: u64,
    /// Bytes written into the peer's ring.
    pub tx_indirect: u64,
    /// Bytes sent inside of messages.
    pub tx_inline: u64,
    /// Bytes that arrived in advertised buffers.
    pub rx_direct: u64,
    /// Bytes that arrived in this side's ring.
    pub rx_indirect: u64,
    /// Bytes that arrived inside of messages.
    pub rx_inline: u64,
    /// Bytes of READs.
    pub read_bytes: u64,
    /// Bytes of WRITEs of the program.
    pub write_bytes: u64,
    /// Copies made (ring, stash, bounce buffers, inline data).
    pub copies: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// ADVERTs sent.
    pub adverts_sent: u64,
    /// ADVERTs received.
    pub adverts_received: u64,
    /// ADVERTs whose buffer was closed again before it was used.
    pub adverts_stale: u64,
    /// Times that a message waited for the peer's receives.
    pub credit_stalls: u64,
    /// Receives posted beyond the usual ones, as the peer was busy.
    pub receives_added: u64,
    /// Those of them that were given back, as it was idle.
    pub receives_dropped: u64,
    /// Times that a WR waited for room in the send queue.
    pub queue_stalls: u64,
    /// Messages sent (SENDs and immediates).
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// CONFIRMs sent; each confirms one or more WRITEs of the program.
    pub confirms: u64,
    /// Rings handed to the peer.
    pub rings_granted: u64,
}

impl Counters {
    /// Bytes of the program's sends that have left.
    pub fn sent(&self) -> u64 {
        self.tx_direct.saturating_add(self.tx_indirect).saturating_add(self.tx_inline)
    }

    /// Bytes that arrived for the program's receives.
    pub fn received(&self) -> u64 {
        self.rx_direct.saturating_add(self.rx_indirect).saturating_add(self.rx_inline)
    }
}
