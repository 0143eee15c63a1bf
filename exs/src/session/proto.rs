//! The two protocols behind one interface: what they want done, in one vocabulary.
//!
//! The machines speak of operations and lengths. A [`TxStep`] or an [`RxStep`] is what that means
//! for memory, windows and messages, for either protocol.

use crate::ids::Outcome;
use crate::packet::{PacketConfig, PacketRx, PacketRxAction, PacketTx, PacketTxAction};
use crate::stream::{
    ChunkTarget, EagerTarget, RecvPost, RxAction, StreamConfig, StreamRx, StreamTx, TxAction,
};
use crate::wire::exs::{AdvertRepr, Message};

use super::Violation;

/// A chunk that must be written into the peer's memory and announced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// The send.
    pub(super) op: u64,
    /// First byte of the send's data that is not yet posted.
    pub(super) off: u64,
    /// End of the chunk in the send's data.
    pub(super) end: u64,
    /// Bytes of the chunk; fewer if a file turns out to be shorter.
    pub(super) len: u64,
    /// True length of the message (seqpacket).
    pub(super) total: u64,
    /// Where byte `off` goes.
    pub(super) raddr: u64,
    /// The peer's key.
    pub(super) rkey: u32,
    /// Into an advertised receive, not the ring.
    pub(super) direct: bool,
    /// The announcement closes the key (SEND with Invalidate). For the peer that costs less than
    /// closing it by itself.
    pub(super) close: bool,
    /// Bytes of the WRITE from a file that is out, and whose completion says how to go on; 0: none
    /// is out.
    pub(super) reading: u64,
}

/// What the sending half wants done.
#[derive(Clone, Copy, Debug)]
pub(super) enum TxStep {
    /// Write and announce.
    Write(Job),
    /// Send this message with the bytes at `off` behind it.
    Inline { op: u64, off: u64, len: u32, message: Message },
    /// Send this message.
    Say(Message),
    /// The operation has ended.
    Done { op: u64, bytes: u64, outcome: Outcome },
}

/// What the receiving half wants done.
#[derive(Clone, Copy, Debug)]
pub(super) enum RxStep {
    /// Open a window onto the receive's buffer and send the ADVERT.
    Show { op: u64, off: u64, len: u64, advert: ShownAs },
    /// Close the window.
    Retract { op: u64 },
    /// Copy from the ring, round its end, to the receive.
    CopyRing { ring_off: u32, op: u64, off: u64, len: u32 },
    /// Copy from the current message to the receive.
    CopyMessage { from: u32, op: u64, off: u64, len: u32 },
    /// Copy from the current message to the ring, round its end.
    Stash { from: u32, ring_off: u32, len: u32 },
    /// Send this message.
    Say(Message),
    /// An ACK is due.
    Ack,
    /// Make the ring and answer with RING.
    GrantRing,
    /// Free the ring.
    DropRing,
    /// The receive has ended.
    Done { op: u64, bytes: u64, total: Option<u64>, eof: bool, outcome: Outcome },
}

/// The ADVERT of a window, but for address and key.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShownAs {
    Stream { seq: u64, phase: u32, waitall: bool },
    Packet { msg: u64, generation: u32 },
}

impl ShownAs {
    pub(super) fn advert(self, addr: u64, key: u32, len: u64, invalidate: bool) -> Message {
        match self {
            ShownAs::Stream { seq, phase, waitall } => {
                // The machine shows at most `u32::MAX` bytes at once.
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                Message::Advert(AdvertRepr { seq, phase, addr, key, len, waitall, invalidate })
            }
            ShownAs::Packet { msg, generation } => {
                Message::PacketAdvert { msg, generation, addr, key, len }
            }
        }
    }
}

/// The machines of a stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tx: StreamTx,
    pub(super) rx: StreamRx,
}

/// The machines of a seqpacket socket, and the stash as a queue in the ring.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) tx: PacketTx,
    pub(super) rx: PacketRx,
    /// Bytes of one message that the peer takes.
    pub(super) max_out: u64,
    size: u32,
    oldest: u32,
    fill: u32,
}

/// Both halves of a connection.
#[derive(Debug)]
pub(super) enum Proto {
    Stream(Box<Stream>),
    Packet(Box<Packet>),
}

impl Proto {
    pub(super) fn stream(theirs: StreamConfig, ours: StreamConfig) -> Proto {
        let (tx, rx) = (StreamTx::new(theirs), StreamRx::new(ours));
        Proto::Stream(Box::new(Stream { tx, rx }))
    }

    pub(super) fn packet(theirs: PacketConfig, ours: PacketConfig) -> Proto {
        let (tx, rx) = (PacketTx::new(theirs), PacketRx::new(ours));
        let (max_out, size) = (theirs.max_msg, ours.stash);
        Proto::Packet(Box::new(Packet { tx, rx, max_out, size, oldest: 0, fill: 0 }))
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Proto::Stream(_))
    }

    pub(super) fn tx_step(&mut self, can_transfer: bool) -> Option<TxStep> {
        match self {
            Proto::Stream(s) => s.tx_step(can_transfer),
            Proto::Packet(p) => p.tx_step(can_transfer),
        }
    }

    /// The message that carries a send of `len` bytes, if it can leave as an eager message. None:
    /// nothing has happened, and the send must be posted.
    #[inline]
    pub(super) fn try_send_eager(&mut self, len: u32) -> Option<Message> {
        match self {
            Proto::Stream(s) => {
                s.tx.try_eager(len).map(|direct| Message::Data { direct, inline: true, len })
            }
            Proto::Packet(p) => p.tx.try_eager(len).then_some(Message::Eager { len }),
        }
    }

    /// Where the first data of an eager message go. `packet`: the data are a message of their own.
    /// If they do not all go there, call it again for the rest. None: nothing has happened, and the
    /// data must be handled as a message.
    #[inline(always)]
    pub(super) fn try_recv_eager(&mut self, len: u32, packet: bool) -> Option<EagerTarget> {
        match self {
            Proto::Stream(s) if !packet => s.rx.try_eager(len),
            Proto::Packet(p) if packet => p.pass(len),
            _ => None,
        }
    }

    /// Neither half wants anything done, and all sends have ended.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Proto::Stream(s) => s.tx.is_idle() && s.rx.is_quiet(),
            Proto::Packet(p) => p.tx.is_idle() && p.rx.is_quiet(),
        }
    }

    /// The bytes of the ring for a receive that finds all it wants there ([`StreamRx::try_take`]).
    #[inline]
    pub(super) fn try_take(&mut self, len: u64, waitall: bool) -> Option<[(u32, u32); 2]> {
        match self {
            Proto::Stream(s) => s.rx.try_take(len, waitall),
            Proto::Packet(_) => None,
        }
    }

    /// The receiving half wants nothing done.
    #[inline]
    pub(super) fn rx_is_quiet(&self) -> bool {
        match self {
            Proto::Stream(s) => s.rx.is_quiet(),
            Proto::Packet(p) => p.rx.is_quiet(),
        }
    }

    pub(super) fn wants_transfer(&self) -> bool {
        match self {
            Proto::Stream(s) => s.tx.wants_transfer(),
            Proto::Packet(p) => p.tx.wants_transfer(),
        }
    }

    pub(super) fn rx_step(&mut self) -> Option<RxStep> {
        match self {
            Proto::Stream(s) => s.rx.poll().map(stream_rx_step),
            Proto::Packet(p) => p.rx_step(),
        }
    }

    /// Queues a send; it was checked against the limits.
    pub(super) fn post_send(&mut self, op: u64, len: u64, file: bool) {
        match self {
            Proto::Stream(s) if file => s.tx.post_file(op, len),
            Proto::Stream(s) => s.tx.post_send(op, len),
            Proto::Packet(p) => {
                let posted = if file { p.tx.post_file(op, len) } else { p.tx.post_send(op, len) };
                debug_assert!(posted.is_ok(), "limits were checked");
            }
        }
    }

    pub(super) fn shutdown(&mut self, op: u64) {
        match self {
            Proto::Stream(s) => s.tx.shutdown(op),
            Proto::Packet(p) => p.tx.shutdown(op),
        }
    }

    pub(super) fn is_shut(&self) -> bool {
        match self {
            Proto::Stream(s) => s.tx.is_shut(),
            Proto::Packet(p) => p.tx.is_shut_down(),
        }
    }

    pub(super) fn cancel_send(&mut self, op: u64) {
        match self {
            Proto::Stream(s) => s.tx.cancel(op),
            Proto::Packet(p) => p.tx.cancel(op),
        };
    }

    pub(super) fn handle_sent(&mut self, op: u64, len: u64) {
        match self {
            Proto::Stream(s) => s.tx.handle_sent(op, u32::try_from(len).unwrap_or(u32::MAX)),
            Proto::Packet(p) => p.tx.handle_sent(op),
        }
    }

    pub(super) fn post_recv(&mut self, post: RecvPost) {
        match self {
            Proto::Stream(s) => s.rx.post_recv(post),
            Proto::Packet(p) => p.rx.post_recv(post.op, post.len, post.advertise, post.peek),
        }
    }

    pub(super) fn cancel_recv(&mut self, op: u64) {
        match self {
            Proto::Stream(s) => s.rx.cancel(op),
            Proto::Packet(p) => p.rx.cancel(op),
        };
    }

    pub(super) fn take_freed(&mut self) -> u32 {
        match self {
            Proto::Stream(s) => s.rx.take_freed(),
            Proto::Packet(p) => p.rx.take_freed(),
        }
    }

    pub(super) fn handle_ack(&mut self, freed: u32) -> Result<(), Violation> {
        match self {
            Proto::Stream(s) => s.tx.handle_ack(freed)?,
            Proto::Packet(p) => p.tx.handle_ack(freed)?,
        }
        Ok(())
    }

    /// Data were written, as the machine's own message or an immediate says.
    pub(super) fn handle_data(
        &mut self,
        direct: bool,
        inline: bool,
        len: u32,
    ) -> Result<(), Violation> {
        match self {
            Proto::Stream(s) => {
                s.rx.handle_data(crate::stream::Data { direct, inline, len })?;
            }
            // Only immediate data arrive here: the whole message, uncut.
            Proto::Packet(p) => p.rx.handle_data(len.into(), len.into())?,
        }
        Ok(())
    }

    pub(super) fn handle_fin(&mut self) -> Result<(), Violation> {
        match self {
            Proto::Stream(s) => s.rx.handle_fin()?,
            Proto::Packet(p) => p.rx.handle_fin()?,
        }
        Ok(())
    }

    pub(super) fn readable(&self) -> bool {
        match self {
            Proto::Stream(s) => s.rx.readable(),
            Proto::Packet(p) => p.rx.readable(),
        }
    }

    /// Data lie in the ring or the stash.
    pub(super) fn holds_data(&self) -> bool {
        match self {
            Proto::Stream(s) => s.rx.buffered() > 0,
            Proto::Packet(p) => p.rx.holds_message(),
        }
    }

    /// Whether FIN has arrived, how much has arrived (a number that only grows), and how many bytes
    /// a receive would get.
    pub(super) fn incoming(&self) -> (bool, u64, u64) {
        match self {
            Proto::Stream(s) => (s.rx.has_fin(), s.rx.position(), s.rx.buffered().into()),
            Proto::Packet(p) => (p.rx.has_fin(), p.rx.arrivals(), p.rx.next_len()),
        }
    }

    /// FIN has arrived, and all data before it are delivered.
    pub(super) fn at_eof(&self) -> bool {
        match self {
            Proto::Stream(s) => s.rx.at_eof(),
            Proto::Packet(p) => p.rx.at_eof(),
        }
    }

    /// The connection is gone. Gives the sends that have not ended, with the bytes moved.
    pub(super) fn abort_tx(&mut self) -> Vec<(u64, u64)> {
        match self {
            Proto::Stream(s) => s.tx.abort(),
            Proto::Packet(p) => p.tx.abort().into_iter().map(|op| (op, 0)).collect(),
        }
    }

    /// No data can arrive any more. Gives the receives that have not ended, with the bytes they
    /// hold. The caller must do the steps that are left before it ends them.
    pub(super) fn abort_rx(&mut self) -> Vec<(u64, u64)> {
        match self {
            Proto::Stream(s) => s.rx.abort(),
            Proto::Packet(p) => p.rx.abort().into_iter().map(|op| (op, 0)).collect(),
        }
    }
}

impl Stream {
    fn tx_step(&mut self, can_transfer: bool) -> Option<TxStep> {
        Some(match self.tx.poll(can_transfer)? {
            TxAction::Transfer { op, op_off, len, target, inline } => {
                let (direct, close, raddr, rkey) = match target {
                    ChunkTarget::Direct { addr, key, close } => (true, close, addr, key),
                    ChunkTarget::Ring { offset } => {
                        // Unknown only if inline, and then not used.
                        let (addr, key) = self.tx.ring().map_or((0, 0), |r| (r.addr, r.key));
                        (false, false, addr.wrapping_add(offset.into()), key)
                    }
                };
                if inline {
                    let message = Message::Data { direct, inline: true, len };
                    return Some(TxStep::Inline { op, off: op_off, len, message });
                }
                let (len, end) = (u64::from(len), op_off + u64::from(len));
                TxStep::Write(Job {
                    op,
                    off: op_off,
                    end,
                    len,
                    total: len,
                    raddr,
                    rkey,
                    direct,
                    close,
                    reading: 0,
                })
            }
            TxAction::RequestRing => TxStep::Say(Message::RingReq),
            TxAction::ReleaseRing => TxStep::Say(Message::RingRelease),
            TxAction::Withdrawn => TxStep::Say(Message::Withdrawn { generation: 0, next_msg: 0 }),
            TxAction::Fin => TxStep::Say(Message::Fin),
            TxAction::Done { op, bytes, outcome } => TxStep::Done { op, bytes, outcome },
        })
    }
}

fn stream_rx_step(action: RxAction) -> RxStep {
    match action {
        RxAction::Advertise { op, op_off, len, seq, phase, waitall } => RxStep::Show {
            op,
            off: op_off,
            len: len.into(),
            advert: ShownAs::Stream { seq, phase, waitall },
        },
        RxAction::Retract { op } => RxStep::Retract { op },
        RxAction::CopyFromRing { ring_off, op, op_off, len } => {
            RxStep::CopyRing { ring_off, op, off: op_off, len }
        }
        RxAction::CopyInline { from, op, op_off, len } => {
            RxStep::CopyMessage { from, op, off: op_off, len }
        }
        RxAction::StashInline { from, ring_off, len } => RxStep::Stash { from, ring_off, len },
        RxAction::Ack => RxStep::Ack,
        RxAction::Withdraw => RxStep::Say(Message::Withdraw { generation: 0 }),
        RxAction::GrantRing => RxStep::GrantRing,
        RxAction::DropRing => RxStep::DropRing,
        RxAction::Done { op, bytes, outcome } => {
            RxStep::Done { op, bytes, total: None, eof: false, outcome }
        }
    }
}

impl Packet {
    #[inline(never)]
    fn pass(&mut self, len: u32) -> Option<EagerTarget> {
        self.rx.try_eager(len).map(|op| EagerTarget { op, op_off: 0, len, ends: true })
    }

    fn tx_step(&mut self, can_transfer: bool) -> Option<TxStep> {
        Some(match self.tx.poll(can_transfer)? {
            PacketTxAction::Eager { op, len } => {
                TxStep::Inline { op, off: 0, len, message: Message::Eager { len } }
            }
            PacketTxAction::Write { op, addr, key, len, total } => TxStep::Write(Job {
                op,
                off: 0,
                end: len,
                len,
                total,
                raddr: addr,
                rkey: key,
                direct: true,
                close: false,
                reading: 0,
            }),
            PacketTxAction::Rts { msg, total } => TxStep::Say(Message::Rts { msg, total }),
            PacketTxAction::Withdrawn { next_msg, generation } => {
                TxStep::Say(Message::Withdrawn { generation, next_msg })
            }
            PacketTxAction::Fin => TxStep::Say(Message::Fin),
            PacketTxAction::Done { op, bytes, outcome } => TxStep::Done { op, bytes, outcome },
        })
    }

    fn rx_step(&mut self) -> Option<RxStep> {
        Some(match self.rx.poll()? {
            PacketRxAction::Advertise { op, msg, generation, len } => {
                RxStep::Show { op, off: 0, len, advert: ShownAs::Packet { msg, generation } }
            }
            PacketRxAction::Retract { op } => RxStep::Retract { op },
            PacketRxAction::CopyInline { op, len } => {
                RxStep::CopyMessage { from: 0, op, off: 0, len }
            }
            PacketRxAction::Stash { len } => {
                let ring_off = self.offset(self.fill);
                self.fill += len;
                RxStep::Stash { from: 0, ring_off, len }
            }
            PacketRxAction::Unstash { op, len, stashed, keep } => {
                let ring_off = self.oldest;
                if !keep {
                    self.oldest = self.offset(stashed);
                    self.fill -= stashed;
                }
                RxStep::CopyRing { ring_off, op, off: 0, len }
            }
            PacketRxAction::Ack => RxStep::Ack,
            PacketRxAction::Withdraw { generation } => {
                RxStep::Say(Message::Withdraw { generation })
            }
            PacketRxAction::Done { op, bytes, total, eof, outcome } => {
                RxStep::Done { op, bytes, total: Some(total), eof, outcome }
            }
        })
    }

    /// The place `ahead` bytes (at most the stash's size) after the oldest.
    fn offset(&self, ahead: u32) -> u32 {
        let to_end = self.size - self.oldest;
        if ahead >= to_end { ahead - to_end } else { self.oldest + ahead }
    }
}
