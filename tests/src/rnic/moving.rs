//! Connections at rest that go to another RNIC of the same kind.
//!
//! RNIC 0 connects to RNIC 1, and RNIC 2 takes the connection over.

use exs::mem::Access;
use exs::rnic::{DetachedConnection, Disconnect, DisconnectCause, Rnic, RnicError, WcStatus};

use super::skip;
use super::world::{End, Harness, Pair, World, param, pattern, send_wr};

/// A connection between RNIC 0 and RNIC 1 that has carried bytes both ways. Its second end is on an SRQ
/// if asked for.
fn connected<H: Harness>(on_srq: bool) -> (World<H>, Pair) {
    let mut w = World::<H>::new(3);
    let a = w.end(0);
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = on_srq.then(|| w.rnics[1].create_srq(pd, 16).unwrap());
    let b = w.end_in(1, pd, srq);
    let pair = w.join(a, b, &param(&[]));
    w.assert_alive(pair);
    (w, pair)
}

/// Takes a connection at rest out of its RNIC. None: the RNIC cannot.
fn detach<H: Harness>(w: &mut World<H>, end: End) -> Option<DetachedConnection> {
    w.settle();
    match w.rnics[end.node].detach_connection(end.qp) {
        Err(RnicError::Unsupported(_)) => {
            skip("this device hands no connections over");
            None
        }
        other => Some(other.expect("detach_connection")),
    }
}

fn assert_stays<H: Harness>(w: &mut World<H>, end: End, why: &str) {
    let stays = w.rnics[end.node].detach_connection(end.qp);
    assert!(matches!(stays, Err(RnicError::State { .. })), "{why}: {stays:?}");
}

/// It goes from RNIC to RNIC, and back, and carries bytes both ways in each. Then it ends in order.
pub fn a_connection_goes_on_in_another_rnic<H: Harness>() {
    for on_srq in [false, true] {
        let (mut w, mut pair) = connected::<H>(on_srq);
        let addrs = w.rnics[1].addrs(pair.b.qp);
        for node in [2, 1, 2] {
            let Some(connection) = detach(&mut w, pair.b) else { return };
            let gone = w.rnics[pair.b.node].addrs(pair.b.qp);
            assert!(matches!(gone, Err(RnicError::NoSuch { .. })), "it is here still: {gone:?}");
            // As between the threads of a program.
            let connection = std::thread::spawn(move || connection).join().unwrap();
            pair.b = w.adopt(node, connection, on_srq);
            w.settle();
            assert!(w.cm.iter().all(|events| events.is_empty()), "{:?}", w.cm);
            assert_eq!(w.rnics[node].addrs(pair.b.qp), addrs);
            w.assert_alive(pair);
        }
        let long = w.long(1 << 20);
        w.assert_moves(pair, long);
        w.disconnect(pair.b, Disconnect::Orderly);
        w.ended(pair.a, |cause| cause == DisconnectCause::Orderly);
        w.ended(pair.b, |cause| cause == DisconnectCause::Orderly);
    }
}

/// What the peer sends before the connection leaves, and while it is on its way, comes to the new RNIC.
pub fn what_was_sent_meanwhile_arrives<H: Harness>() {
    let (mut w, mut pair) = connected::<H>(true);
    let sent: Vec<_> = (1..3).map(|n| w.buf(pair.a, pattern(n, 300), Access::LOCAL_READ)).collect();
    w.settle();
    w.send(pair.a, &send_wr(1, &[sent[0].sge()]));
    // RNIC 1 has not looked since.
    let Some(connection) = detach_now(&mut w, pair.b) else { return };
    w.send(pair.a, &send_wr(2, &[sent[1].sge()]));
    w.step_alone(0);
    pair.b = w.adopt(2, connection, true);
    let places: Vec<_> = (0..2).map(|_| w.zeros(pair.b, 300)).collect();
    for (n, place) in (0..).zip(&places) {
        w.recv(pair.b, n, &[place.sge()]);
    }
    for (n, (place, sent)) in (0..).zip(places.iter().zip(&sent)) {
        let wc = w.received(pair.b);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (n, WcStatus::Success, 300));
        assert_eq!(place.bytes(), sent.bytes());
    }
    w.completed(pair.a);
    w.completed(pair.a);
    w.assert_alive(pair);
}

fn detach_now<H: Harness>(w: &mut World<H>, end: End) -> Option<DetachedConnection> {
    match w.rnics[end.node].detach_connection(end.qp) {
        Err(RnicError::Unsupported(_)) => None,
        other => Some(other.expect("detach_connection")),
    }
}

/// A connection with work under way stays, and goes on as if nothing had been asked.
pub fn a_busy_connection_stays<H: Harness>() {
    let (mut w, pair) = connected::<H>(false);
    let bytes = w.buf(pair.b, pattern(3, 100), Access::LOCAL_READ);
    let place = w.zeros(pair.a, 100);
    w.settle();
    let now = w.now();
    w.rnics[1].post_send(pair.b.qp, &send_wr(7, &[bytes.sge()])).unwrap();
    if let Err(RnicError::Unsupported(_)) = w.rnics[1].detach_connection(pair.b.qp) {
        return skip("this device hands no connections over");
    }
    assert_stays(&mut w, pair.b, "a send has not left");
    w.recv(pair.a, 8, &[place.sge()]);
    w.rnics[1].flush(pair.b.qp, now);
    assert_eq!(w.received(pair.a).wr_id, 8);
    assert_eq!(place.bytes(), bytes.bytes());
    assert_eq!(w.completed(pair.b).wr_id, 7);
    let open = w.zeros(pair.b, 64);
    let key = w.bind((pair.b, pair.a), &open, open.sge(), Access::REMOTE_WRITE);
    assert_stays(&mut w, pair.b, "a window is open");
    w.rnics[1].invalidate_mw(pair.b.qp, key).unwrap();
    w.recv(pair.b, 9, &[]);
    assert_stays(&mut w, pair.b, "it has a receive");
    w.send(pair.a, &send_wr(10, &[]));
    assert_eq!((w.received(pair.b).wr_id, w.completed(pair.a).wr_id), (9, 10));
    assert!(detach(&mut w, pair.b).is_some(), "it rests");
}

/// The same if a message waits for a receive of the SRQ.
pub fn a_message_that_waits_keeps_the_connection<H: Harness>() {
    let (mut w, pair) = connected::<H>(true);
    w.send(pair.a, &send_wr(11, &[]));
    w.settle();
    if let Err(RnicError::Unsupported(_)) = w.rnics[1].detach_connection(pair.b.qp) {
        return skip("this device hands no connections over");
    }
    assert_stays(&mut w, pair.b, "a message waits");
    w.recv(pair.b, 12, &[]);
    assert_eq!((w.received(pair.b).wr_id, w.completed(pair.a).wr_id), (12, 11));
    assert!(detach(&mut w, pair.b).is_some(), "it rests");
}

/// If no RNIC takes it over, its peer sees it break.
pub fn a_dropped_connection_breaks<H: Harness>() {
    let (mut w, pair) = connected::<H>(false);
    let Some(connection) = detach(&mut w, pair.b) else { return };
    drop(connection);
    w.ended(pair.a, |cause| matches!(cause, DisconnectCause::Broken(_) | DisconnectCause::Aborted));
}

/// A peer that goes while the connection is on its way ends it in the new RNIC.
pub fn a_peer_that_goes_meanwhile_is_noticed<H: Harness>() {
    let (mut w, pair) = connected::<H>(true);
    let Some(connection) = detach(&mut w, pair.b) else { return };
    w.rnics[0].destroy_qp(pair.a.qp).unwrap();
    w.settle();
    let b = w.adopt(2, connection, true);
    w.ended(b, |cause| cause != DisconnectCause::Orderly);
}
