//! Connections at rest that go to another RNIC of the same kind.
//!
//! RNIC 0 connects to RNIC 1, and RNIC 2 takes the connection over.

use exs::mem::{Access, Key, Region, Segment};
use exs::rnic::{
    DetachedConnection, Disconnect, DisconnectCause, Rnic, RnicError, SendWr, WcStatus,
};

use super::skip;
use super::world::{End, Harness, Pair, World, param, pattern, send_wr, write_wr};

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

/// A connection whose peer may write into the middle of its memory.
struct Open<H: Harness> {
    w: World<H>,
    pair: Pair,
    memory: Segment,
    key: Key,
}

impl<H: Harness> Open<H> {
    fn new() -> Open<H> {
        let (mut w, pair) = connected::<H>(true);
        let buf = w.zeros(pair.b, 300);
        let memory = buf.region.segment(0, 300).unwrap();
        let key = w.bind((pair.b, pair.a), &buf, buf.part(100, 100), Access::REMOTE_WRITE);
        Open { w, pair, memory, key }
    }

    /// Goes to the RNIC of `node`, with its window onto this memory there.
    fn go(&mut self, node: usize, memory: Option<&Segment>) -> Option<Result<(), RnicError>> {
        let connection = detach_now(&mut self.w, self.pair.b)?;
        let adopted = self.w.try_adopt(node, connection, true, memory);
        Some(adopted.map(|end| self.pair.b = end))
    }

    /// The peer writes `byte` into the window, and reports it by a SEND. Both wait in the stream.
    fn write(&mut self, byte: u8) {
        let write = write_wr(1, &[], self.memory.addr() + 100, self.key);
        self.w.send(self.pair.a, &SendWr { head: &[byte; 100], signaled: false, ..write });
        self.w.send(self.pair.a, &SendWr { signaled: false, ..send_wr(2, &[]) });
        self.w.step_alone(0);
    }

    fn assert_written(&mut self, byte: u8) {
        self.w.recv(self.pair.b, 3, &[]);
        assert_eq!(self.w.received(self.pair.b).status, WcStatus::Success);
        let mut bytes = [0; 300];
        self.memory.read_at(0, &mut bytes);
        let (written, around) = (&bytes[100..200], bytes[..100].iter().chain(&bytes[200..]));
        assert!(written.iter().all(|got| *got == byte) && around.copied().all(|got| got == 0));
    }
}

/// The peer goes on to write into a window, by the key that it knows. What is on its way when the
/// connection leaves arrives as well. The window then ends as any other.
pub fn a_window_goes_along<H: Harness>() {
    let mut open = Open::<H>::new();
    let memory = open.memory.clone();
    for (byte, node) in [(1, 2), (2, 1), (3, 2)] {
        open.w.settle();
        open.write(byte);
        match open.go(node, Some(&memory)) {
            None => return skip("this device hands no connections over"),
            Some(gone) => gone.unwrap(),
        }
        open.assert_written(byte);
        open.write(byte + 10);
        open.assert_written(byte + 10);
    }
    let Open { mut w, pair, key, .. } = open;
    w.rnics[2].invalidate_mw(pair.b.qp, key).unwrap();
    assert!(w.rnics[2].invalidate_mw(pair.b.qp, key).is_err(), "twice");
    let late = write_wr(1, &[], memory.addr() + 100, key);
    w.send(pair.a, &SendWr { head: &[9; 100], ..late });
    w.ended(pair.b, |cause| cause != DisconnectCause::Orderly);
}

/// A window without memory in the new RNIC breaks the connection.
pub fn a_window_needs_memory_there<H: Harness>() {
    for memory in [None, Some(Region::from_vec(vec![0; 300]).segment(0, 300).unwrap())] {
        let mut open = Open::<H>::new();
        open.w.settle();
        match open.go(2, memory.as_ref()) {
            None => return skip("this device hands no connections over"),
            Some(gone) => assert!(gone.is_err()),
        }
        open.w.ended(open.pair.a, |cause| cause != DisconnectCause::Orderly);
    }
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
