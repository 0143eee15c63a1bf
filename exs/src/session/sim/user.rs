//! A user of one end: its operations, and checks of their results.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ids::OpId;
use crate::mem::{Region, Segment};
use crate::rnic::FileRange;
use crate::session::{Buf, Done, IoVec, OpError, SendSource};

use super::link::{Net, overlap};

/// Bytes that were never sent.
const CANARY: u8 = 0xEE;

/// The kind of an operation.
pub(super) enum Kind {
    /// A send: its index in `sends`.
    Send(usize),
    Recv {
        peek: bool,
    },
    /// A READ of an export with this content.
    Read {
        expect: Vec<u8>,
    },
    /// A WRITE into this part of the peer's memory.
    Write {
        target: Segment,
        confirm: bool,
    },
    /// An addition of 1 to the peer's counter.
    Add,
    Shutdown,
    Close,
}

/// An operation that has not ended, with its memory.
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) bufs: Vec<Buf>,
}

/// A send in order of posting: what it holds, and how it ended.
pub(super) struct Sent {
    pub(super) data: Vec<u8>,
    /// Bytes that the source has; a file can have fewer than were asked for.
    pub(super) real: usize,
    /// It was cancelled: it can end early, and the stream goes on before the end is reported.
    pub(super) cut: bool,
    pub(super) end: Option<SentEnd>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SentEnd {
    /// These bytes are the stream's (or the message's).
    Exactly(u64),
    /// Nothing was sent.
    Not,
    /// The connection broke: any number.
    Unknown,
}

/// Data that arrived, in order.
pub(super) enum Got {
    Stream(Vec<u8>),
    /// A peek at the stream from this position.
    Peek {
        at: usize,
        data: Vec<u8>,
    },
    Message {
        data: Vec<u8>,
        total: u64,
    },
}

#[derive(Default)]
pub(super) struct User {
    pub(super) ops: BTreeMap<OpId, Op>,
    next_op: OpId,
    pub(super) sends: VecDeque<Sent>,
    pub(super) got: Vec<Got>,
    pub(super) got_bytes: usize,
    /// Memory given back, as it was then.
    returned: Vec<(Segment, Vec<u8>)>,
    /// The peer's memory that a cancelled WRITE did not write to, as its end says.
    unwritten: Vec<Segment>,
    /// What the peer may read, and where the peer may write (with the next free byte).
    pub(super) readable: Option<(Buf, u32)>,
    pub(super) writable: Option<(Buf, u32, usize)>,
    /// The counter to which the peer may add.
    pub(super) counter: Option<(Buf, u32)>,
    /// Additions of this user's that were done, and those that may have been.
    added: (u64, u64),
    pub(super) closing: bool,
    pub(super) shut: bool,
    pub(super) eof: bool,
    pub(super) errors: Vec<OpError>,
    pub(super) dones: u64,
}

impl User {
    pub(super) fn op(&mut self) -> OpId {
        self.next_op += 1;
        self.next_op
    }

    /// Memory in pieces of these sizes, filled with `data` and canaries.
    pub(super) fn memory(
        &self,
        net: &mut Net,
        side: usize,
        sizes: &[usize],
        data: &[u8],
    ) -> Vec<Buf> {
        let mut rest = data;
        let piece = |size: &usize| {
            let mut bytes = vec![CANARY; *size];
            let n = rest.len().min(*size);
            bytes[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            let seg = Region::from_vec(bytes).segment(0, *size).unwrap();
            net.register(side, seg)
        };
        sizes.iter().map(piece).collect()
    }

    /// The operation's end: its memory is checked to be free, and changed to see
    /// whether it is still used.
    pub(super) fn done(
        &mut self,
        net: &mut Net,
        side: usize,
        done: &Done,
        stream: bool,
        alive: bool,
    ) {
        let op = self.ops.remove(&done.op).expect("a Done without an operation");
        self.dones += 1;
        let data = self.give_back(net, side, &op, done);
        if let Err(error) = &done.result {
            self.errors.push(error.clone());
        }
        match op.kind {
            Kind::Send(at) => self.send_done(at, done, stream, alive),
            Kind::Recv { peek } if stream => {
                if peek {
                    self.got.push(Got::Peek { at: self.got_bytes, data });
                } else if !data.is_empty() {
                    self.got_bytes += data.len();
                    self.got.push(Got::Stream(data));
                }
                self.eof |= done.eof;
            }
            Kind::Recv { peek } => {
                self.eof |= done.eof;
                if done.result.is_ok() && !done.eof && !peek {
                    assert!(done.total >= done.bytes);
                    self.got.push(Got::Message { data, total: done.total });
                } else {
                    assert!(peek || done.bytes == 0, "bytes without a message");
                }
            }
            Kind::Read { expect } => {
                if done.result.is_ok() {
                    assert_eq!(data, expect, "READ");
                }
            }
            Kind::Write { target, confirm } => {
                if done.result.is_ok() && confirm {
                    let mut there = vec![0; target.len()];
                    target.read_at(0, &mut there);
                    assert_eq!(there, data, "WRITE");
                }
                if let Err(OpError::Cancelled) = done.result {
                    let bytes = usize::try_from(done.bytes).unwrap();
                    self.unwritten.push(target.slice(bytes, target.len() - bytes).unwrap());
                }
            }
            Kind::Add => self.addition_done(done),
            Kind::Shutdown | Kind::Close => {}
        }
    }

    /// Additions are done in order, each once, and an event says the truth.
    fn addition_done(&mut self, done: &Done) {
        match done.result {
            Ok(()) => {
                assert_eq!((done.bytes, done.total), (8, self.added.0), "the counter's old value");
                self.added.0 += 1;
            }
            Err(OpError::Cancelled) => assert_eq!(done.bytes, 0, "cancelled after it was done"),
            Err(_) => self.added.1 += 1,
        }
    }

    /// The peer's counter has what this user added.
    pub(super) fn check_counter(&self, peer: &User) {
        let Some((counter, _)) = &peer.counter else { return };
        let mut word = [0; 8];
        counter.seg.read_at(0, &mut word);
        let (value, (done, unsure)) = (u64::from_ne_bytes(word), self.added);
        assert!(
            (done..=done + unsure).contains(&value),
            "{value} in a counter after {done} additions and {unsure} that may have been done"
        );
    }

    fn give_back(&mut self, net: &mut Net, side: usize, op: &Op, done: &Done) -> Vec<u8> {
        let (bytes, ok) = (done.bytes, done.result.is_ok());
        let receives = matches!(op.kind, Kind::Recv { .. } | Kind::Read { .. });
        let mut data = Vec::new();
        for buf in &op.bufs {
            let mut now = vec![0; buf.seg.len()];
            buf.seg.read_at(0, &mut now);
            data.extend_from_slice(&now);
            if !receives {
                now.fill(0xDD);
                buf.seg.write_at(0, &now);
            }
            let open = net.sides[side].windows.values().any(|w| w.covers(&buf.seg));
            assert!(!open, "side {side}: a window is open on memory that was given back");
            let lost = net.sides[side].lost.iter().any(|range| overlap(*range, &buf.seg));
            assert!(!(ok && lost), "side {side}: done, but it never left");
            net.deregister(side, buf);
            let held = Arc::strong_count(buf.seg.region());
            assert_eq!(held, 1, "side {side}: memory that was given back is still held");
            self.returned.push((buf.seg.clone(), now));
        }
        if receives {
            data.truncate(usize::try_from(bytes).unwrap());
            assert_eq!(data.len() as u64, bytes, "more bytes than memory");
        }
        data
    }

    fn send_done(&mut self, at: usize, done: &Done, stream: bool, alive: bool) {
        let sent = &mut self.sends[at];
        assert!(done.bytes <= sent.data.len() as u64);
        let end = match &done.result {
            Ok(()) => {
                assert_eq!(done.bytes, sent.data.len() as u64, "a part of a send");
                // A message that its receive cuts off is not read to its end.
                assert!(!stream || sent.real == sent.data.len(), "more than the file had");
                SentEnd::Exactly(done.bytes)
            }
            // This side ended it: the peer gets these bytes and no more, even if the connection
            // breaks later, and it gets no message of which a part is missing.
            Err(OpError::Cancelled | OpError::TimedOut { what: "send", .. }) if stream => {
                SentEnd::Exactly(done.bytes)
            }
            Err(OpError::Cancelled | OpError::TimedOut { what: "send", .. }) => {
                assert_eq!(done.bytes, 0, "a part of a message");
                SentEnd::Not
            }
            // The connection broke: more can have arrived than this side knows.
            Err(_) if !alive => SentEnd::Unknown,
            Err(OpError::FileTooShort { .. }) => SentEnd::Exactly(done.bytes),
            Err(OpError::PeerClosed) if stream => SentEnd::Exactly(done.bytes),
            Err(OpError::PeerClosed) => {
                assert_eq!(done.bytes, 0, "a part of a message");
                SentEnd::Not
            }
            Err(_) => SentEnd::Unknown,
        };
        sent.end = Some(end);
    }

    /// Memory given back has not changed since.
    pub(super) fn check_returned(&mut self) {
        for (seg, then) in self.returned.drain(..) {
            let mut now = vec![0; seg.len()];
            seg.read_at(0, &mut now);
            assert_eq!(now, then, "memory was touched after its operation had ended");
        }
        for seg in &self.unwritten {
            let mut now = vec![0; seg.len()];
            seg.read_at(0, &mut now);
            assert!(
                now.iter().all(|b| *b == CANARY),
                "more was written than a cancelled WRITE says"
            );
        }
    }
}

pub(super) fn iovec(bufs: &[Buf]) -> IoVec {
    match bufs {
        [one] => IoVec::One(one.clone()),
        many => IoVec::Many(many.into()),
    }
}

pub(super) fn file_source(file: &Arc<std::fs::File>, offset: u64, len: u64) -> SendSource {
    SendSource::File(FileRange { file: Arc::clone(file).into(), offset, len })
}

/// Compares the data that one end got with those that the other sent.
pub(super) fn verify_stream(tx: &User, rx: &User) {
    // Certain up to the first send that has not ended, or whose end is unknown.
    let mut sent = Vec::new();
    let mut certain = true;
    for s in &tx.sends {
        let all = s.real as u64;
        let cut = s.cut || rx.closing;
        let (bytes, sure) = match s.end {
            None | Some(SentEnd::Unknown) if cut => (0, false),
            Some(SentEnd::Exactly(n)) => (n, true),
            Some(SentEnd::Not) => (0, true),
            None | Some(SentEnd::Unknown) => (all, false),
        };
        sent.extend_from_slice(&s.data[..usize::try_from(bytes).unwrap()]);
        if !sure {
            certain = false;
            break;
        }
    }
    let mut at = 0;
    for got in &rx.got {
        let (from, data) = match got {
            Got::Stream(data) => {
                at += data.len();
                (at - data.len(), data)
            }
            Got::Peek { at, data } => (*at, data),
            Got::Message { .. } => unreachable!("a stream"),
        };
        for (i, byte) in data.iter().enumerate() {
            match sent.get(from + i) {
                Some(expected) => {
                    assert_eq!(byte, expected, "byte {} of the stream", from + i);
                }
                None => assert!(!certain, "byte {} was never sent", from + i),
            }
        }
    }
}

/// As `verify_stream`, for messages.
pub(super) fn verify_packets(tx: &User, rx: &User) {
    let mut from = 0;
    for got in &rx.got {
        let Got::Message { data, total } = got else { unreachable!("packets") };
        loop {
            let s = tx.sends.get(from).expect("a message that was never sent");
            from += 1;
            let bytes = match s.end {
                Some(SentEnd::Not) => continue,
                Some(SentEnd::Exactly(n)) => n,
                Some(SentEnd::Unknown) | None => s.data.len() as u64,
            };
            let n = usize::try_from(bytes).unwrap();
            let sure = matches!(s.end, Some(SentEnd::Exactly(_)));
            let whole = bytes == *total || (s.real as u64 == *total && !sure);
            let matches = whole && s.data[..n].starts_with(data);
            if matches {
                break;
            }
            assert!(!sure, "message {} is another one", from - 1);
        }
    }
}

impl User {
    /// Everything that this user sent is at the other.
    pub(super) fn assert_all_arrived(&self, rx: &User, kind: crate::wire::exs::SocketKind) {
        use crate::wire::exs::SocketKind;
        let sent: usize = self.sends.iter().map(|s| s.data.len()).sum();
        match kind {
            SocketKind::Stream => assert_eq!(rx.got_bytes, sent, "bytes that arrived"),
            SocketKind::SeqPacket => {
                assert_eq!(rx.got.len(), self.sends.len(), "messages that arrived");
            }
        }
    }
}
