//! Each number of each message, at its extremes, in each state of a connection.
//!
//! A peer's number is checked before it is used and before it is counted. So no value makes
//! anything panic (the tests check for overflow), each operation ends once, and a message that
//! is refused leaves no trace in the counters.

use std::time::Duration;

use crate::mem::Region;
use crate::rnic::{Caps, DisconnectCause};
use crate::session::{Counters, OpError, RecvOpts, SendSource, Session, SessionConfig};
use crate::time::Time;
use crate::wire::exs::{
    AdvertRepr, HELLO_LEN, MAX_HEADER, Message, MessageKind, Piggyback, SocketKind,
};

use super::link::{LinkEnd, Net};
use super::rng::Rng;
use super::user::iovec;

const VALUES: [u64; 9] =
    [0, 1, 0x7FFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63, u64::MAX - 1, u64::MAX];

/// The numbers of the fixed part: where, and how many bytes.
const COMMON: [(usize, usize); 4] = [(2, 2), (4, 4), (8, 4), (12, 4)];

/// The messages that an honest peer could send, before one number is changed.
fn honest() -> Vec<Message> {
    let advert = |waitall, invalidate| {
        Message::Advert(AdvertRepr {
            seq: 0,
            phase: 0,
            addr: 4096,
            key: 1,
            len: 9,
            waitall,
            invalidate,
        })
    };
    let mut all = vec![
        Message::Ready,
        Message::Credit,
        Message::Ping,
        Message::Pong,
        Message::Confirm { number: 1 },
        Message::Confirmed { number: 1 },
        Message::More,
        Message::Use { messages: 1 },
        advert(false, true),
        advert(true, false),
        Message::RingReq,
        Message::Ring { addr: 4096, key: 1 },
        Message::RingRelease,
        Message::Withdraw { generation: 0 },
        Message::Withdrawn { generation: 0, next_msg: 0 },
        Message::Fin,
        Message::Close,
        Message::CloseAck,
        Message::Abort { code: 1 },
        Message::Eager { len: 3 },
        Message::Rts { msg: 0, total: 100 },
        Message::PacketAdvert { msg: 0, generation: 0, addr: 4096, key: 1, len: 9 },
        Message::PacketData { len: 100, total: 100 },
    ];
    for (direct, inline) in [(false, false), (false, true), (true, false), (true, true)] {
        all.push(Message::Data { direct, inline, len: 3 });
    }
    assert!(MessageKind::ALL.iter().all(|kind| all.iter().any(|m| m.kind() == *kind)));
    all
}

/// Where the numbers of a message lie.
fn fields(kind: MessageKind) -> Vec<(usize, usize)> {
    let end = kind.header_len();
    let words = (16..end).step_by(8).map(|at| (at, (end - at).min(8)));
    COMMON.into_iter().chain(words).collect()
}

/// A message with one number changed. The data behind it are as many as it says, if they are few.
fn spoiled(message: Message, (at, width): (usize, usize), value: u64) -> Vec<u8> {
    let mut head = [0; MAX_HEADER];
    let len = message.emit(Piggyback::default(), &mut head);
    head[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
    let behind = match Message::parse_prefix(&head[..len], len) {
        Err(_) if message.inline_len() == 0 => 0,
        _ => u32::from_be_bytes([head[8], head[9], head[10], head[11]]).min(600),
    };
    let inline = if message.inline_len() > 0 { behind as usize } else { 0 };
    let mut bytes = head[..len].to_vec();
    bytes.resize(len + inline, 7);
    bytes
}

/// The situation in which the message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    Mute,
    Ready,
    Receiving,
    Withdrawing,
    Sending,
    Cancelled,
    /// Data of the peer's wait, and its end has come.
    Fin,
    Closing,
    PeerClosed,
    /// The counters are close to their greatest value.
    Counted,
}

const SITUATIONS: [Situation; 10] = [
    Situation::Mute,
    Situation::Ready,
    Situation::Receiving,
    Situation::Withdrawing,
    Situation::Sending,
    Situation::Cancelled,
    Situation::Fin,
    Situation::Closing,
    Situation::PeerClosed,
    Situation::Counted,
];

/// A session whose peer is this test.
struct Subject {
    session: Session,
    net: Net,
    posted: u64,
    ended: u64,
}

fn config(kind: SocketKind) -> SessionConfig {
    SessionConfig {
        kind,
        ring: 1000,
        inline_max: 16,
        max_msg: 1 << 40,
        credits: 8,
        slot: 100,
        confirm: true,
        linger: Duration::from_secs(3),
        ..SessionConfig::default()
    }
}

impl Subject {
    fn new(kind: SocketKind, hello: &[u8]) -> Option<Subject> {
        let caps = Caps {
            name: "extremes".into(),
            write_imm: true,
            initiator_first: true,
            small_reads: true,
            windows: true,
            max_sge: 4,
            max_inline: 256,
            max_msg: 1 << 30,
            ..Caps::default()
        };
        let cfg = config(kind);
        let mut net = Net::new(Rng::new(1), [caps.clone(), caps], [cfg.max_send_wr; 2]);
        net.sides[0].ord = 2;
        net.severed = true;
        let (mut session, _) = Session::responder(cfg, hello).ok()?;
        session.handle_established(net.now, &[], 2, false).unwrap();
        Some(Subject { session, net, posted: 0, ended: 0 })
    }

    fn now(&self) -> Time {
        self.net.now
    }

    fn hear(&mut self, bytes: Vec<u8>) {
        let (now, len) = (self.now(), bytes.len());
        let slot = Region::from_vec(bytes).segment(0, len).unwrap();
        let _ =
            self.session.handle_message(now, &mut LinkEnd { net: &mut self.net, side: 0 }, &slot);
        self.drive();
    }

    fn say(&mut self, message: Message) {
        let mut head = [0; MAX_HEADER];
        let len = message.emit(Piggyback::default(), &mut head);
        let mut bytes = head[..len].to_vec();
        bytes.resize(len + message.inline_len() as usize, 7);
        self.hear(bytes);
    }

    fn drive(&mut self) {
        for _ in 0..3 {
            let now = self.now();
            self.session.drive(now, &mut LinkEnd { net: &mut self.net, side: 0 });
            for _ in 0..8 {
                self.net.transmit(0);
            }
            while let Some(wc) = self.net.sides[0].cq.pop_front() {
                self.session.handle_wc(now, &wc);
            }
            self.ended += std::iter::from_fn(|| self.session.poll_done()).count() as u64;
        }
    }

    fn recv(&mut self, len: usize, waitall: bool) {
        let seg = Region::from_vec(vec![0; len]).segment(0, len).unwrap();
        let iov = iovec(&[self.net.register(0, seg)]);
        let (now, op) = (self.now(), self.posted);
        let opts = RecvOpts { waitall, peek: false };
        self.posted += u64::from(self.session.post_recv(now, op, iov, opts).is_ok());
    }

    fn send(&mut self, len: usize) {
        let seg = Region::from_vec(vec![0; len]).segment(0, len).unwrap();
        let source = SendSource::Memory(iovec(&[self.net.register(0, seg)]));
        let (now, op) = (self.now(), self.posted);
        self.posted += u64::from(self.session.post_send(now, op, source).is_ok());
    }

    fn reach(&mut self, state: Situation) {
        if state == Situation::Mute {
            return;
        }
        self.say(Message::Ready);
        match state {
            Situation::Mute | Situation::Ready => {}
            Situation::Receiving | Situation::Withdrawing => {
                self.recv(100, true);
                self.recv(5000, false);
                self.drive();
                if state == Situation::Withdrawing {
                    let now = self.now();
                    self.session.cancel(now, 1);
                }
            }
            Situation::Sending | Situation::Cancelled => {
                self.send(4000);
                self.send(10);
                self.drive();
                if state == Situation::Cancelled {
                    let now = self.now();
                    self.session.cancel(now, 0);
                }
            }
            Situation::Fin => {
                self.say(match self.session.cfg.kind {
                    SocketKind::Stream => Message::Data { direct: false, inline: true, len: 40 },
                    SocketKind::SeqPacket => Message::Eager { len: 40 },
                });
                self.say(Message::Fin);
            }
            Situation::Closing => {
                let now = self.now();
                self.session.close(now, 1 << 40, Duration::from_secs(1));
            }
            Situation::PeerClosed => self.say(Message::Close),
            Situation::Counted => {
                self.recv(100, false);
                let c = &mut self.session.counters;
                (c.rx_direct, c.rx_inline, c.rx_indirect) =
                    (u64::MAX - 1, u64::MAX - 1, u64::MAX - 1);
                (c.copies, c.copied_bytes, c.adverts_received) = (u64::MAX, u64::MAX - 1, u64::MAX);
            }
        }
        self.drive();
        assert!(self.session.is_connected(), "{state:?}");
    }

    /// The counters of data that arrived.
    fn counted(&self) -> [u64; 6] {
        let Counters { rx_direct, rx_inline, rx_indirect, .. } = self.session.counters;
        let Counters { copies, copied_bytes, adverts_received, .. } = self.session.counters;
        [rx_direct, rx_inline, rx_indirect, copies, copied_bytes, adverts_received]
    }

    fn is_refused(&self) -> bool {
        matches!(self.session.life.reason(), Some(OpError::Protocol(_)))
    }

    /// Breaks the connection: each operation has ended once.
    fn finish(mut self) {
        let closing = u64::from(self.session.life.is_closing());
        self.drive();
        let now = self.now();
        self.session.handle_disconnected(now, DisconnectCause::Orderly);
        self.drive();
        self.session.close(now, 2 << 40, Duration::ZERO);
        self.drive();
        assert_eq!(self.ended, self.posted + closing + 1, "each operation ends once");
        assert!(self.session.is_finished() && self.net.sides[0].windows.is_empty());
    }
}

fn hello(kind: SocketKind) -> Vec<u8> {
    Session::initiator(config(kind)).hello()
}

/// Runs one case; true if the message was refused.
fn case(kind: SocketKind, state: Situation, act: impl Fn(&mut Subject)) -> bool {
    let mut target = Subject::new(kind, &hello(kind)).unwrap();
    target.reach(state);
    let before = target.counted();
    act(&mut target);
    let refused = target.is_refused();
    if refused {
        assert_eq!(target.counted(), before, "counted, and refused");
    }
    target.finish();
    refused
}

fn all_messages(kind: SocketKind) {
    let (mut refused, mut taken) = (0, 0);
    for state in SITUATIONS {
        for message in honest() {
            for field in fields(message.kind()) {
                for value in VALUES {
                    let bytes = spoiled(message, field, value);
                    let why = format!("{kind:?} {state:?} {message:?} {field:?} {value:#x}");
                    let run = || case(kind, state, |t| t.hear(bytes.clone()));
                    match std::panic::catch_unwind(run) {
                        Ok(true) => refused += 1,
                        Ok(false) => taken += 1,
                        Err(_) => panic!("{why}"),
                    }
                }
            }
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}

#[test]
fn numbers_of_messages_on_a_stream() {
    all_messages(SocketKind::Stream);
}

#[test]
fn numbers_of_messages_on_a_seqpacket_socket() {
    all_messages(SocketKind::SeqPacket);
}

#[test]
fn immediate_data() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        for state in SITUATIONS {
            for imm in [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0x8000_0001, u32::MAX] {
                case(kind, state, |t| {
                    let now = t.now();
                    t.session.handle_write_imm(now, imm);
                    t.drive();
                });
            }
        }
    }
}

/// The numbers of a hello limit what this side may do.
#[test]
fn numbers_of_a_hello() {
    let mut agreed = 0;
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let honest = hello(kind);
        assert_eq!(honest.len(), HELLO_LEN);
        for (at, width) in [(8, 4), (12, 2), (16, 4), (20, 4), (24, 8)] {
            for value in VALUES {
                let mut bytes = honest.clone();
                bytes[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
                let mut initiator = Session::initiator(config(kind));
                let met = initiator.handle_established(Time::ZERO, &bytes, 2, false);
                let Some(mut target) = Subject::new(kind, &bytes) else {
                    assert!(met.is_err(), "{kind:?} {at} {value:#x}");
                    continue;
                };
                agreed += 1;
                target.reach(Situation::Sending);
                // The peer takes what it was sent, and gives more room than there was.
                target.say(match kind {
                    SocketKind::Stream => Message::Ring { addr: 1 << 20, key: 1 },
                    SocketKind::SeqPacket => Message::PacketAdvert {
                        msg: 0,
                        generation: 0,
                        addr: 1 << 20,
                        key: 1,
                        len: u64::MAX >> 1,
                    },
                });
                target.send(90);
                target.drive();
                target.finish();
            }
        }
    }
    assert!(agreed > 40, "{agreed}");
}
