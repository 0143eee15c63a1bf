//! Single cases, where the simulation would need luck.

mod atomics;
pub(super) mod ends;
mod loans;

use std::time::Duration;

use super::sim::Pair;
use super::*;
use crate::wire::exs::{Message, SocketKind};

fn cfg() -> SessionConfig {
    SessionConfig { dead_after: None, linger: Duration::from_secs(7), ..SessionConfig::default() }
}

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn a_withdrawal_without_answer_is_bounded() {
    let mut p = Pair::new(cfg(), true);
    p.recv(0, 1, 100_000, RecvOpts::default());
    p.run();
    p.sever();
    let now = p.now();
    assert!(p.with(0, |s, _| s.cancel(now, 1)));
    p.run();
    let done = p.done(0).expect("it ends");
    assert_eq!(done.result, Err(OpError::Cancelled));
    // The linger time, as there is no dead-peer time, and the delay of the link.
    let took = p.now().since(now);
    assert!(took >= secs(7) && took < secs(8), "{took:?}");
}

#[test]
fn a_mute_initiator_is_given_up() {
    let mut p = Pair::unmet(cfg());
    p.established(1);
    assert!(!p.session(1).is_connected());
    p.run();
    let took = p.now().since(Time::ZERO);
    assert!(took >= cfg().handshake_timeout && took < secs(11), "{took:?}");
    assert!(p.session(1).is_finished());
}

#[test]
fn a_silent_peer_is_probed_and_given_up() {
    let dead = SessionConfig { keepalive: Some(secs(4)), dead_after: Some(secs(5)), ..cfg() };
    let mut p = Pair::new(dead, true);
    p.recv(0, 1, 10, RecvOpts::default());
    p.run_for(secs(60));
    assert!(p.done(0).is_none(), "an idle peer answers, however long");
    p.sever();
    let now = p.now();
    p.run_for(secs(60));
    let done = p.done(0).expect("it ends");
    assert!(matches!(done.result, Err(OpError::Unreachable { .. })), "{done:?}");
    assert_eq!(done.result.unwrap_err().errno(), libc::ETIMEDOUT);
    assert!(p.now() > now);
}

#[test]
fn a_close_by_the_peer_ends_sends_and_leaves_data_readable() {
    let mut p = Pair::new(cfg(), true);
    let data = p.send(0, 1, 300);
    p.close(0, 2);
    p.run();
    assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()));
    assert!(p.done(0).is_some_and(|d| d.op == 2 && d.result.is_ok()), "closed in order");
    assert_eq!(p.try_send(1, 3, 10).unwrap_err().errno(), libc::EPIPE);
    assert!(p.session(1).readable());
    let got = p.recv(1, 4, 1000, RecvOpts::default());
    p.run();
    assert!(p.done(1).is_some_and(|d| d.op == 4 && d.bytes == 300 && !d.eof));
    assert_eq!(got.read(300), data);
    p.recv(1, 5, 1000, RecvOpts::default());
    p.run();
    assert!(p.done(1).is_some_and(|d| d.op == 5 && d.bytes == 0 && d.eof && d.result.is_ok()));
    assert!(p.session(0).is_finished() && p.session(1).is_finished());
}

#[test]
fn the_answer_to_a_close_leaves_with_the_close_that_follows() {
    for (closes, bell) in [(false, Doorbell::Next), (true, Doorbell::Now)] {
        let mut p = Pair::new(cfg(), true);
        p.run();
        if closes {
            p.close(1, 1);
            p.settle(1);
        }
        p.deliver(1, Message::Close);
        let now = p.now();
        assert_eq!(p.with(1, |s, port| s.drive(now, port)), bell, "this side has closed: {closes}");
    }
}

#[test]
fn immediates_announce_where_the_rnic_has_them() {
    for (imm, messages) in [(true, 1), (false, 2)] {
        let mut p = Pair::new(SessionConfig { inline_max: 0, ..cfg() }, imm);
        p.recv(1, 1, 50_000, RecvOpts::default());
        p.run();
        let before = p.frames(1);
        p.send(0, 2, 50_000);
        p.run();
        assert!(p.done(1).is_some_and(|d| d.bytes == 50_000));
        assert_eq!(p.frames(1) - before, messages, "WRITE, or WRITE and SEND");
        let c = *p.session(0).counters();
        assert_eq!((c.tx_direct, c.tx_indirect, c.tx_inline), (50_000, 0, 0));
    }
}

/// A sender with enough ADVERTs gets the next ones several at a time, and never runs out.
#[test]
fn adverts_leave_in_company() {
    let mut p = Pair::new(
        SessionConfig { inline_max: 0, credits: 64, keepalive: None, ring_idle: None, ..cfg() },
        false,
    );
    for op in 0..12 {
        p.recv(1, op, 200, RecvOpts::default());
        p.run();
    }
    let sent = p.session(1).counters().adverts_sent;
    assert!((5..12).contains(&sent), "{sent} of 12 left");
    for op in 0..11 {
        p.send(0, 1000 + op, 200);
        p.run();
        assert!(p.done(1).is_some_and(|d| d.bytes == 200));
    }
    assert_eq!(p.session(1).counters().adverts_sent, 12, "the last one came before it was missed");
    assert!(p.frames(0) < 12, "{} messages for 12 ADVERTs", p.frames(0));
    assert_eq!(p.session(0).counters().tx_direct, 11 * 200);
}

/// To a peer that does not know of several receives in an ADVERT they go one by one, and at once.
#[test]
fn adverts_leave_alone_to_an_older_peer() {
    let cfg = SessionConfig {
        features: Hello::INVALIDATE,
        inline_max: 0,
        credits: 64,
        keepalive: None,
        ring_idle: None,
        ..cfg()
    };
    let mut p = Pair::new(cfg, false);
    for op in 0..12 {
        p.recv(1, op, 200, RecvOpts::default());
        p.run();
        assert_eq!(p.session(1).counters().adverts_sent, op + 1);
    }
    // The responder also has its first message, READY.
    assert!((12..=13).contains(&p.frames(0)), "{} messages for 12 ADVERTs", p.frames(0));
    for op in 0..12 {
        p.send(0, 1000 + op, 200);
    }
    p.run();
    assert_eq!(p.session(0).counters().tx_direct, 12 * 200);
}

/// ADVERTs that wait for company at both ends keep no data from going.
#[test]
fn data_go_both_ways_while_adverts_gather() {
    let mut p = Pair::new(
        SessionConfig { inline_max: 0, keepalive: None, ring_idle: None, ..cfg() },
        false,
    );
    for side in [0, 1] {
        for op in 0..8 {
            p.recv(side, op, 1_000, RecvOpts::default());
        }
    }
    p.run();
    for op in 0..100 {
        for side in [0, 1] {
            p.send(side, 1_000 + op, 1_000);
        }
        p.run_for(Duration::from_millis(10));
        for side in [0, 1] {
            let mut ops = [p.done(side), p.done(side)].map(|d| d.expect("both have ended").op);
            ops.sort_unstable();
            assert_eq!(ops, [op, 1_000 + op], "side {side}");
            p.recv(side, 8 + op, 1_000, RecvOpts::default());
        }
    }
    p.run();
    let c = *p.session(0).counters();
    assert_eq!((c.tx_direct, c.tx_indirect), (100_000, 0));
    assert!(c.messages_sent < 160, "{} messages for 100 of data and 107 ADVERTs", c.messages_sent);
}

/// A sender that always has more, and a receiver whose ADVERTs wait for credits: once that had
/// it by the ring, it went on so for ever.
#[test]
fn a_busy_stream_turns_direct_with_few_credits() {
    const EACH: u64 = 1_000;
    for credits in [4, 5, 6, 8, 12] {
        let few = SessionConfig { inline_max: 0, ring: 4_000, credits, keepalive: None, ..cfg() };
        let mut p = Pair::new(few, false);
        for op in 0..200 {
            p.send(0, op, 1_000);
        }
        p.run();
        for op in 1_000..1_200 {
            p.recv(1, op, 1_000, RecvOpts::default());
        }
        p.run();
        let c = *p.session(0).counters();
        assert_eq!(c.tx_direct + c.tx_indirect, 200 * EACH, "all of it");
        assert!(
            c.tx_direct >= 190 * EACH,
            "{credits} credits: {} of 200 direct",
            c.tx_direct / EACH
        );
    }
}

/// A receiver that keeps enough receives before the sender is waited for, but not for ever.
#[test]
fn a_send_waits_for_a_receiver_that_keeps_up() {
    let quiet =
        SessionConfig { inline_max: 0, ring: 4_000, keepalive: None, ring_idle: None, ..cfg() };
    let mut p = Pair::new(quiet, false);
    let moment = Duration::from_millis(40);
    for op in 0..4 {
        p.recv(1, op, 1_000, RecvOpts::default());
    }
    p.run();
    for op in 10..18 {
        p.send(0, op, 1_000);
    }
    p.run_for(moment);
    let moved = |p: &Pair| (p.session(0).counters().tx_direct, p.session(0).counters().tx_indirect);
    assert_eq!(moved(&p), (4_000, 0), "the others wait");
    for op in 4..6 {
        p.recv(1, op, 1_000, RecvOpts::default());
    }
    p.run_for(moment);
    assert_eq!(moved(&p), (6_000, 0));
    // A moment of the second wait is over.
    p.run_for(moment);
    assert_eq!(moved(&p), (6_000, 0));
    p.run();
    assert_eq!(moved(&p), (6_000, 2_000), "for 400 ms");
    assert_eq!(p.session(0).next_timeout(), None);
}

#[test]
fn small_data_are_copied_and_done_at_once() {
    let mut p = Pair::new(cfg(), true);
    p.run();
    p.send(0, 1, 20);
    p.settle(0);
    assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()), "before it has left");
}

#[test]
fn a_waitall_receive_in_pieces_is_one_operation() {
    let mut p = Pair::new(cfg(), true);
    let opts = RecvOpts { waitall: true, peek: false };
    let got = p.recv_pieces(1, 1, &[1000, 0, 9000, 5], opts);
    let mut data = p.send(0, 2, 9_000);
    p.run();
    assert!(p.done(1).is_none(), "not full");
    data.extend(p.send(0, 3, 1_005));
    p.run();
    assert!(p.done(1).is_some_and(|d| d.op == 1 && d.bytes == 10_005 && !d.eof));
    assert!(p.done(1).is_none());
    assert_eq!(got.read(10_005), data);
}

#[test]
fn refusals_say_why() {
    let packet = SessionConfig { kind: SocketKind::SeqPacket, ..cfg() };
    let a = Session::initiator(packet);
    let refusal = Session::responder(cfg(), &a.hello()).unwrap_err();
    assert!(Session::refusal(&refusal.private_data).to_string().contains("SOCK_SEQPACKET"));
    let mut future = a.hello();
    (future[4], future[5]) = (9, 12);
    let refusal = Session::responder(cfg(), &future).unwrap_err();
    let text = Session::refusal(&refusal.private_data).to_string();
    assert!(text.contains("version") && text.contains("update"), "{text}");
    assert!(Session::responder(cfg(), b"GET / HTTP/1.0").is_err());
    let poor = Session::initiator(SessionConfig { credits: 3, ..cfg() });
    assert!(Session::responder(cfg(), &poor.hello()).is_err(), "three credits are too few");
    assert_eq!(Session::refusal(b""), SessionError::RefusedSilently);
}

/// Data that found no receive leave no memory behind, though nothing moves but a few small data that
/// come: whether the program reads them soon, or when all has long been quiet.
#[test]
fn memory_of_a_burst_is_given_back() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let mut p = Pair::new(SessionConfig { kind, ..cfg() }, true);
        let mut op = 0;
        for (before, unread) in [(0, 1), (100, 1), (0, 25), (100, 50), (0, 1), (3, 29), (100, 31)] {
            p.pass(secs(before));
            for _ in 0..3 {
                p.send(0, op, 100);
                op += 1;
            }
            p.pass(secs(unread));
            assert_eq!(p.held(1), 1, "{kind:?}: they lie there");
            for _ in 0..3 {
                p.recv(1, op, 100, RecvOpts::default());
                op += 1;
            }
            p.pass(Duration::from_millis(1));
            assert_eq!(std::iter::from_fn(|| p.done(1)).filter(|d| d.bytes == 100).count(), 3);
            assert_eq!(p.held(1), usize::from(unread < 30), "{kind:?}: not before it is quiet");
            p.pass(secs(28_u64.saturating_sub(unread)));
            assert_eq!(p.held(1), usize::from(unread < 30), "{kind:?}: not before it is quiet");
            p.pass(secs(3));
            assert_eq!(p.held(1), 0, "{kind:?}: {before} s, read after {unread} s");
        }
    }
}

/// A shutdown that is cancelled takes the end along, but not that of a close behind it.
#[test]
fn a_cancelled_shutdown_leaves_the_end_of_a_close() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let mut p = Pair::new(SessionConfig { kind, inline_max: 0, ring: 4_000, ..cfg() }, true);
        let data = p.send(0, 1, 50_000);
        p.run_for(secs(1));
        let now = p.now();
        for op in [2, 3] {
            p.with(0, |s, _| s.shutdown_send(now, op)).unwrap();
        }
        p.close(0, 4);
        for op in [2, 3] {
            assert!(p.with(0, |s, _| s.cancel(now, op)), "it waits behind the data");
        }
        let opts = RecvOpts { waitall: kind == SocketKind::Stream, peek: false };
        let got = p.recv(1, 1, 50_000, opts);
        p.recv(1, 2, 100, RecvOpts::default());
        p.run();
        let done = [p.done(1), p.done(1)].map(|d| d.expect("both have ended"));
        assert_eq!((done[0].bytes, &done[0].result), (50_000, &Ok(())), "{kind:?}");
        assert_eq!((done[1].eof, &done[1].result), (true, &Ok(())), "{kind:?}");
        assert_eq!(got.read(50_000), data);
        let ends: Vec<_> = std::iter::from_fn(|| p.done(0)).map(|d| (d.op, d.result)).collect();
        let cancelled = Err(OpError::Cancelled);
        assert_eq!(ends, [(2, cancelled.clone()), (3, cancelled), (1, Ok(())), (4, Ok(()))]);
    }
}

/// It ends at once, although the send before it waits; and the connection goes on.
#[test]
fn a_cancelled_shutdown_does_not_wait() {
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let mut p = Pair::new(SessionConfig { kind, inline_max: 0, ring: 4_000, ..cfg() }, true);
        p.send(0, 1, 50_000);
        p.run();
        let now = p.now();
        p.with(0, |s, _| s.shutdown_send(now, 2)).unwrap();
        p.settle(0);
        assert!(p.with(0, |s, _| s.cancel(now, 2)));
        p.settle(0);
        let done = p.done(0).expect("it ends");
        assert_eq!((done.op, done.result), (2, Err(OpError::Cancelled)), "{kind:?}");
        p.pass(secs(100));
        assert!(p.done(0).is_none(), "{kind:?}: nothing is expected of the peer but to take data");
        p.send(0, 3, 100);
        let opts = RecvOpts { waitall: kind == SocketKind::Stream, peek: false };
        p.recv(1, 1, 50_000, opts);
        p.recv(1, 2, 100, opts);
        p.run();
        let ends: Vec<_> = std::iter::from_fn(|| p.done(0)).map(|d| (d.op, d.result)).collect();
        assert_eq!(ends, [(1, Ok(())), (3, Ok(()))], "{kind:?}");
    }
}

/// The end of the direction is out, but not told, as a message before it is on its way.
#[test]
fn a_shutdown_that_is_cancelled_too_late_is_told_at_once() {
    let mut p = Pair::new(SessionConfig { kind: SocketKind::SeqPacket, ..cfg() }, true);
    p.recv(1, 1, 50_000, RecvOpts::default());
    p.run();
    p.send(0, 1, 50_000);
    let now = p.now();
    p.with(0, |s, _| s.shutdown_send(now, 2)).unwrap();
    p.settle(0);
    assert!(p.done(0).is_none(), "nothing has completed");
    assert!(p.with(0, |s, _| s.cancel(now, 2)));
    p.settle(0);
    assert!(p.done(0).is_some_and(|d| d.op == 2 && d.result.is_ok()));
    assert!(!p.with(0, |s, _| s.cancel(now, 2)), "it has ended");
    p.recv(1, 2, 100, RecvOpts::default());
    p.run();
    assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()));
    assert!(p.done(1).is_some_and(|d| d.bytes == 50_000));
    assert!(p.done(1).is_some_and(|d| d.eof));
}

/// However many shutdowns wait for one message: none ends inside of another.
#[test]
fn shutdowns_end_one_after_the_other() {
    const MANY: u64 = 100_000;
    for kind in [SocketKind::Stream, SocketKind::SeqPacket] {
        let mut p = Pair::new(SessionConfig { kind, inline_max: 0, ..cfg() }, true);
        p.recv(1, 1, 50_000, RecvOpts::default());
        p.run();
        p.send(0, 0, 50_000);
        let now = p.now();
        for op in 1..=MANY {
            p.with(0, |s, _| s.shutdown_send(now, op)).unwrap();
        }
        p.settle(0);
        assert!(p.done(0).is_none(), "{kind:?}: the message has not completed");
        p.run();
        let ends: Vec<u64> = std::iter::from_fn(|| p.done(0)).map(|d| d.op).collect();
        assert_eq!(ends, (0..=MANY).collect::<Vec<_>>(), "{kind:?}");
    }
}

/// An operation that was cancelled and has ended is watched no more.
#[test]
fn an_ended_operation_is_no_longer_watched() {
    let mut p = Pair::new(cfg(), true);
    for op in 0..10 {
        p.recv(0, op, 100_000, RecvOpts::default());
        p.run();
        let now = p.now();
        assert!(p.with(0, |s, _| s.cancel(now, op)));
        p.settle(0);
        assert_eq!(p.session(0).timers.watched(), 1, "the peer has not answered");
        p.run();
        assert!(p.done(0).is_some_and(|d| d.op == op && d.result == Err(OpError::Cancelled)));
        assert_eq!(p.session(0).timers.watched(), 0);
    }
}

/// It would fill a receive that the peer was shown, as immediate data do.
#[test]
fn streams_data_on_a_seqpacket_socket_break_the_protocol() {
    let mut p = Pair::new(SessionConfig { kind: SocketKind::SeqPacket, ..cfg() }, true);
    p.recv(0, 1, 50_000, RecvOpts::default());
    p.run();
    assert_eq!(p.session(0).counters().adverts_sent, 1);
    p.hear(0, Message::Data { direct: true, inline: false, len: 50_000 });
    let done = p.done(0).expect("it ends");
    assert!(matches!(done.result, Err(OpError::Protocol(Violation::Unexpected(_)))), "{done:?}");
}

#[test]
fn posts_that_cannot_be_are_handed_back() {
    let packet = SessionConfig { kind: SocketKind::SeqPacket, max_msg: 100, ..cfg() };
    let mut p = Pair::new(packet.clone(), true);
    assert_eq!(p.try_send(0, 1, 101), Err(OpError::TooLong { len: 101, limit: 100 }));
    let now = p.now();
    p.with(0, |s, _| s.shutdown_send(now, 2)).unwrap();
    assert_eq!(p.try_send(0, 3, 1).unwrap_err().errno(), libc::EPIPE);
    let mut p = Pair::unmet(packet);
    assert_eq!(p.try_send(0, 1, 1), Err(OpError::NotConnected));
}

/// A send waits for an ADVERT, and its thread does not run until the send's own limit is over too. It
/// goes by the ring, where there is room. One that finds no room there ends by its limit.
#[test]
fn a_late_thread_sends_by_the_ring_what_fits() {
    const SIZE: usize = 65_536;
    let ring = u32::try_from(SIZE).unwrap();
    let limit = Some(Duration::from_millis(390));
    let limited =
        SessionConfig { inline_max: 0, ring, send_timeout: limit, keepalive: None, ..cfg() };
    let mut p = Pair::new(limited, false);
    for op in 0..2 {
        p.recv(1, op, SIZE, RecvOpts::default());
    }
    p.run();
    for op in 10..12 {
        p.send(0, op, SIZE);
    }
    p.run();
    assert!((0..2).all(|_| p.done(0).is_some_and(|d| d.result.is_ok())));
    assert_eq!(p.session(0).counters().tx_direct, 2 * SIZE as u64);

    for (op, fits) in [(12, true), (13, false)] {
        p.send(0, op, SIZE);
        p.settle(0);
        assert!(p.done(0).is_none(), "it waits");
        p.stall(secs(1));
        p.run();
        let done = p.done(0).expect("it ends");
        assert_eq!((done.op, done.result.is_ok()), (op, fits), "{done:?}");
    }
    assert_eq!(p.session(0).counters().tx_indirect, SIZE as u64);
}
