//! Streams with large data leave their link group for a TCP connection of their own.

use std::net::SocketAddr;
use std::time::Duration;

use exs::mem::Access;
use exs::rnic::{Disconnect, DisconnectCause, Rnic, WcStatus};
use exs::sys::RandomSource;
use exs_tests::rnic::Harness;
use exs_tests::rnic::World;
use exs_tests::rnic::groups::{All, addrs, call, carrier};
use exs_tests::rnic::world::{Buf, End, Pair, pattern, send_wr};

/// Bytes of a message that leaves in large frames.
const LEN: usize = 300_000;

/// A message under way, and its buffers.
struct Sent {
    from: End,
    to: End,
    bytes: Vec<u8>,
    _src: Buf,
    dst: Buf,
}

fn begin(w: &mut World<All>, from: End, to: End, (n, len): (u64, usize)) -> Sent {
    let bytes = pattern(n, len);
    let src = w.buf(from, bytes.clone(), Access::LOCAL_READ);
    let dst = w.zeros(to, len);
    w.recv(to, n, &[dst.sge()]);
    w.send(from, &send_wr(n, &[src.sge()]));
    Sent { from, to, bytes, _src: src, dst }
}

/// Waits until the message has come, and until the sender may use its buffer again.
fn end(w: &mut World<All>, sent: &Sent) {
    let wc = w.received(sent.to);
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, sent.bytes.len() as u64));
    assert!(sent.dst.bytes() == sent.bytes);
    w.completed(sent.from);
}

/// Moves a large message.
fn moves(w: &mut World<All>, from: End, to: End) {
    let sent = begin(w, from, to, (1, LEN));
    end(w, &sent);
}

/// Calls, and lets the dialer send first, as MPA demands.
fn join(w: &mut World<All>, addr: SocketAddr) -> Pair {
    let pair = call(w, addr);
    w.assert_alive(pair);
    pair
}

/// The TCP connections of both ends.
fn carriers(w: &World<All>, pair: Pair) -> (SocketAddr, SocketAddr) {
    (carrier(w, pair.a), carrier(w, pair.b))
}

#[test]
fn large_data_take_a_connection_of_their_own() {
    for from_dialer in [true, false] {
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let (bulk, small) = (join(&mut w, addr), join(&mut w, addr));
        let group = carriers(&w, small);
        assert_eq!(carriers(&w, bulk), group);
        let names = (addrs(&w, bulk.a), addrs(&w, bulk.b));
        let (from, to) = if from_dialer { (bulk.a, bulk.b) } else { (bulk.b, bulk.a) };
        for _ in 0..3 {
            moves(&mut w, from, to);
        }
        w.settle();
        let own = carriers(&w, bulk);
        assert!(own.0 != group.0, "from the dialer: {from_dialer}");
        assert_eq!(own.1, group.1, "the port of the listener");
        assert_eq!((addrs(&w, bulk.a), addrs(&w, bulk.b)), names, "the program sees the same");
        for _ in 0..3 {
            moves(&mut w, to, from);
            w.assert_alive(bulk);
            w.assert_alive(small);
        }
        assert_eq!(carriers(&w, small), group, "small messages stay");
        assert_eq!(carriers(&w, bulk), own);
        w.disconnect(bulk.a, Disconnect::Orderly);
        w.ended(bulk.a, |cause| cause == DisconnectCause::Orderly);
        w.ended(bulk.b, |cause| cause == DisconnectCause::Orderly);
        w.assert_alive(small);
    }
}

/// Where no connection can be had, large data stay in the group.
#[test]
fn large_data_stay_if_the_listener_is_gone() {
    let mut w = World::<All>::new(2);
    let (listener, addr) = w.listen(1, All::local());
    let pairs: Vec<Pair> = (0..8).map(|_| join(&mut w, addr)).collect();
    let group = carriers(&w, pairs[0]);
    w.rnics[1].close_listener(listener).unwrap();
    for round in 0..4 {
        let mut sent = Vec::new();
        for pair in &pairs {
            sent.push(begin(&mut w, pair.a, pair.b, (round, LEN)));
            sent.push(begin(&mut w, pair.b, pair.a, (round + 100, LEN)));
        }
        sent.iter().for_each(|sent| end(&mut w, sent));
    }
    pairs.iter().for_each(|pair| assert_eq!(carriers(&w, *pair), group));
}

/// Messages of all sizes in both directions, on links that stay and links that leave: each byte comes once,
/// in order.
#[test]
fn no_byte_is_lost_on_the_way_out() {
    for seed in 0..20 {
        let mut random = RandomSource::seeded(seed);
        let mut below = |n: u32| (random.next_u32() % n) as usize;
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let pairs: Vec<Pair> = (0..6).map(|_| join(&mut w, addr)).collect();
        let mut under_way = std::collections::VecDeque::new();
        for n in 0..120 {
            let pair = pairs[below(6)];
            let (from, to) = if below(2) == 0 { (pair.a, pair.b) } else { (pair.b, pair.a) };
            let len = [1, 700, 9_000, 70_000, LEN][below(5)];
            under_way.push_back(begin(&mut w, from, to, (n, len)));
            for _ in 0..below(4) {
                w.step(Duration::ZERO);
            }
            while under_way.len() > below(24) {
                let sent = under_way.pop_front().unwrap();
                end(&mut w, &sent);
            }
        }
        under_way.iter().for_each(|sent| end(&mut w, sent));
        w.settle();
        let group = pairs.iter().map(|pair| carrier(&w, pair.a)).collect::<Vec<_>>();
        assert!(group.iter().any(|local| *local != group[0]), "none has left");
    }
}

/// The sides make progress at different times, so that the group is full again and again, and frames leave
/// in parts.
#[test]
fn no_byte_is_lost_where_the_group_is_full() {
    for seed in 0..12 {
        let mut random = RandomSource::seeded(seed);
        let mut below = |n: u32| (random.next_u32() % n) as usize;
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let pairs: Vec<Pair> = (0..80).map(|_| join(&mut w, addr)).collect();
        let mut sent = Vec::new();
        for n in 0..3 {
            for pair in &pairs {
                sent.push(begin(&mut w, pair.a, pair.b, (n, LEN + below(100_000))));
                sent.push(begin(&mut w, pair.b, pair.a, (n, LEN + below(100_000))));
            }
        }
        for _ in 0..below(400) {
            let node = below(2);
            (0..below(12)).for_each(|_| w.step_alone(node));
        }
        sent.iter().for_each(|sent| end(&mut w, sent));
        pairs.iter().for_each(|pair| w.assert_alive(*pair));
    }
}

/// An end at any time of the way out is seen by the other side, and hurts no other link.
#[test]
fn links_end_on_the_way_out() {
    for (steps, dialer, how) in (0..40).flat_map(|steps| {
        [true, false].into_iter().flat_map(move |dialer| {
            [Disconnect::Orderly, Disconnect::Abort].map(|how| (steps, dialer, how))
        })
    }) {
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let (bulk, other) = (join(&mut w, addr), join(&mut w, addr));
        let _first = begin(&mut w, bulk.a, bulk.b, (1, LEN));
        let _second = begin(&mut w, bulk.b, bulk.a, (2, LEN));
        for _ in 0..steps {
            w.step(Duration::ZERO);
        }
        let end = if dialer { bulk.a } else { bulk.b };
        w.disconnect(end, how);
        let now = w.now();
        w.ended(bulk.a, |_| true);
        w.ended(bulk.b, |_| true);
        assert!(w.now().since(now) < Duration::from_secs(5), "{steps} steps, {dialer}, {how:?}");
        w.assert_alive(other);
    }
}

/// The other process is gone at any time of the way out.
#[test]
fn a_peer_dies_on_the_way_out() {
    for steps in 0..40 {
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let bulk = join(&mut w, addr);
        let _first = begin(&mut w, bulk.a, bulk.b, (1, LEN));
        let _second = begin(&mut w, bulk.b, bulk.a, (2, LEN));
        for _ in 0..steps {
            w.step(Duration::ZERO);
        }
        w.rnics.truncate(1);
        // Over a connection of its own, the end of the process looks like that of the connection.
        let broken = DisconnectCause::Broken(libc::ECONNRESET);
        w.ended(bulk.a, |cause| cause == broken || cause == DisconnectCause::Orderly);
    }
}

/// The kernel brings the connection of a stream to an RNIC that does not have its group.
#[test]
fn a_connection_finds_the_rnic_of_its_group() {
    let mut w = World::<All>::new(3);
    let (listener, addr) = w.listen(1, All::local());
    let shared = w.rnics[1].share_listener(listener).unwrap();
    w.rnics[2].join_listener(shared).unwrap();
    // The group is to come to the first one.
    let now = w.now();
    w.rnics[1].progress(now);
    let (bulk, small) = (join(&mut w, addr), join(&mut w, addr));
    let group = carriers(&w, small);
    assert_eq!(carriers(&w, bulk), group);
    w.rnics[1].rest_listener(listener, true).unwrap();
    w.settle();
    for _ in 0..3 {
        moves(&mut w, bulk.a, bulk.b);
    }
    w.settle();
    assert_ne!(carrier(&w, bulk.a), group.0);
    moves(&mut w, bulk.b, bulk.a);
    w.assert_alive(small);
}

/// Thousands of connects at once would overflow the queue of the listening socket.
#[test]
fn streams_leave_a_few_at_a_time() {
    const LINKS: usize = 400;
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let pairs: Vec<Pair> = (0..LINKS).map(|_| join(&mut w, addr)).collect();
    let group = carrier(&w, pairs[0].a);
    for _ in 0..2 {
        let sent: Vec<Sent> =
            pairs.iter().map(|pair| begin(&mut w, pair.a, pair.b, (1, LEN))).collect();
        sent.iter().for_each(|sent| end(&mut w, sent));
    }
    w.settle();
    let left = pairs.iter().filter(|pair| carrier(&w, pair.a) != group).count();
    assert_eq!(left, LINKS);
    pairs.iter().for_each(|pair| w.assert_alive(*pair));
}
