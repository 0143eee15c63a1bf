//! A peer that says anything at all: nothing panics, memory stays bounded, and every
//! operation ends.

use std::time::Duration;

use crate::mem::Region;
use crate::rnic::DisconnectCause;
use crate::session::{RecvOpts, SendSource, Session};
use crate::wire::exs::{AdvertRepr, MAX_HEADER, Message, Piggyback, SocketKind};

use super::link::{LinkEnd, Net};
use super::plan::Plan;
use super::rng::Rng;
use super::user::iovec;

/// A number that is likely to hit a limit.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => rng.below(4),
        1 => rng.below(200),
        2 => rng.next(),
        _ => u64::MAX - rng.below(3),
    }
}

fn message(rng: &mut Rng, stream: bool) -> Message {
    let (a, b, c) = (number(rng), number(rng), number(rng));
    let short = |n: u64| u32::try_from(n & 0xFFFF_FFFF).unwrap();
    let len = short(rng.below(100));
    match rng.below(12) {
        0 => rng.pick(&[Message::Ready, Message::Fin, Message::Close, Message::CloseAck]),
        1 => rng.pick(&[Message::Credit, Message::Ping, Message::Pong]),
        2 => {
            let number = short(a.min(9));
            let messages = short(b.min(40));
            let use_up = Message::Use { messages };
            let confirmed = Message::Confirmed { number };
            rng.pick(&[Message::Confirm { number }, confirmed, Message::More, use_up])
        }
        3 => Message::Abort { code: short(a) },
        4 => Message::Withdraw { generation: short(a.min(2)) },
        5 => Message::Withdrawn { generation: short(a.min(2)), next_msg: b.min(9) },
        6 if stream => rng.pick(&[Message::RingReq, Message::RingRelease]),
        7 if stream => Message::Ring { addr: a, key: short(b) },
        8 | 9 if stream => {
            let (waitall, phase) = (rng.one_in(2), short(number(rng)) & !1);
            let invalidate = rng.one_in(2);
            Message::Advert(AdvertRepr {
                seq: a,
                phase,
                addr: b,
                key: 1,
                len: short(c),
                waitall,
                invalidate,
            })
        }
        _ if stream => Message::Data { direct: rng.one_in(2), inline: rng.one_in(2), len },
        6 => Message::Rts { msg: a.min(5), total: b },
        7 | 8 => {
            Message::PacketAdvert { msg: a, generation: short(b.min(2)), addr: b, key: 1, len: c }
        }
        9 => Message::PacketData { len: a, total: b },
        _ => Message::Eager { len },
    }
}

/// The bytes of a message, sometimes spoiled.
fn bytes(rng: &mut Rng, stream: bool) -> Vec<u8> {
    let message = message(rng, stream);
    let pb = Piggyback {
        credits: u16::try_from(number(rng) % 3).unwrap(),
        freed: u32::try_from(rng.pick(&[0, 0, 0, 1, 60])).unwrap(),
    };
    let mut head = [0; MAX_HEADER];
    let len = message.emit(pb, &mut head);
    let mut bytes = head[..len].to_vec();
    bytes.resize(len + message.inline_len() as usize, 7);
    if rng.one_in(20) {
        let at = rng.size(0, bytes.len() - 1);
        bytes[at] ^= 1 << rng.below(8);
    }
    if rng.one_in(50) {
        bytes.truncate(rng.size(0, len));
    }
    bytes
}

/// The session under attack; it has no peer.
fn target(rng: &mut Rng) -> (Session, Net, bool) {
    let plan = Plan::draw(rng);
    let wrs = [plan.cfg[0].max_send_wr; 2];
    let mut net = Net::new(Rng::new(rng.next()), [plan.caps.clone(), plan.caps.clone()], wrs);
    net.sides[0].ord = 2;
    net.severed = true;
    let peer = Session::initiator(plan.cfg[1].clone());
    let (mut session, _) = Session::responder(plan.cfg[0].clone(), &peer.hello()).unwrap();
    session.handle_established(net.now, &[], 2, false).unwrap();
    (session, net, plan.kind == SocketKind::Stream)
}

fn attack(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let (mut session, mut net, stream) = target(&mut rng);
    let (mut posted, mut ended) = (0_u64, 0_u64);
    let mut ready = vec![0; 16];
    ready[0] = 1;
    let mut heard = 0;
    for step in 0..300 {
        net.now = net.now + Duration::from_micros(rng.below(3_000));
        let (now, len) = (net.now, rng.size(0, 90));
        let seg = Region::from_vec(vec![3; len]).segment(0, len).unwrap();
        match rng.below(10) {
            0 | 1 => {
                let iov = iovec(&[net.register(0, seg)]);
                let opts = RecvOpts { waitall: rng.one_in(2), peek: rng.one_in(5) };
                posted += u64::from(session.post_recv(now, posted, iov, opts).is_ok());
            }
            2 => {
                let source = SendSource::Memory(iovec(&[net.register(0, seg)]));
                posted += u64::from(session.post_send(now, posted, source).is_ok());
            }
            3 => drop(session.cancel(now, rng.below(posted + 1))),
            4 => session.handle_write_imm(now, u32::try_from(rng.next() >> 32).unwrap()),
            _ => {
                let data = if step < 3 { ready.clone() } else { bytes(&mut rng, stream) };
                let len = data.len();
                let slot = Region::from_vec(data).segment(0, len).unwrap();
                let mut end = LinkEnd { net: &mut net, side: 0 };
                let _ = session.handle_message(now, &mut end, &slot);
                heard += u64::from(!session.life.awaits_ready());
            }
        }
        if session.next_timeout().is_some_and(|t| t <= now) {
            session.handle_timeout(now);
        }
        session.drive(now, &mut LinkEnd { net: &mut net, side: 0 });
        if rng.one_in(2) {
            net.transmit(0);
        }
        while let Some(wc) = net.sides[0].cq.pop_front() {
            session.handle_wc(now, &wc);
        }
        session.drive(now, &mut LinkEnd { net: &mut net, side: 0 });
        ended += std::iter::from_fn(|| session.poll_done()).count() as u64;
        assert!(net.sides[0].windows.len() < 400, "seed {seed}: windows without end");
        assert!(session.out.len() < 400, "seed {seed}: messages");
    }
    session.handle_disconnected(net.now, DisconnectCause::Orderly);
    let mut end = LinkEnd { net: &mut net, side: 0 };
    session.drive(end.net.now, &mut end);
    session.close(end.net.now, posted, Duration::ZERO);
    session.drive(end.net.now, &mut end);
    ended += std::iter::from_fn(|| session.poll_done()).count() as u64;
    assert_eq!(ended, posted + 1, "seed {seed}: each operation ends once");
    assert!(session.is_finished() && net.sides[0].windows.is_empty(), "seed {seed}");
    heard
}

#[test]
fn a_hostile_peer_breaks_its_connection_only() {
    let heard: u64 = (0..3000).map(attack).sum();
    assert!(heard > 3000, "most are cut off at once: {heard} messages were taken");
}
