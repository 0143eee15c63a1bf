//! Link groups of the software RNIC: which connections share a TCP connection, and what they owe each
//! other.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use exs::mem::Access;
use exs::rnic::{
    CmEvent, ConnParam, Disconnect, DisconnectCause, ListenOpts, QpState, Rnic, SendWr,
    TakesGroups, WcStatus,
};
use exs::wire::group::{GroupKind, HELLO_LEN, HelloRepr};
use exs_tests::rnic::groups::{All, Third, addrs, call, carrier};
use exs_tests::rnic::world::{End, Pair, listen_opts, param, pattern, send_wr};
use exs_tests::rnic::{Harness, World};

#[test]
fn connections_beyond_the_limit_share_a_tcp_connection() {
    let mut w = World::<Third>::new(2);
    let (_, addr) = w.listen(1, Third::local());
    let pairs: Vec<Pair> = (0..5).map(|_| call(&mut w, addr)).collect();
    let local: Vec<SocketAddr> = pairs.iter().map(|p| carrier(&w, p.a)).collect();
    assert!(local[0] != local[1] && local[1] != local[2] && local[0] != local[2], "{local:?}");
    assert!(local[2..].iter().all(|l| *l == local[2]), "{local:?}");
    for p in &pairs {
        let ((near, far), (theirs, ours)) = (addrs(&w, p.a), addrs(&w, p.b));
        assert_eq!((near, far), (ours, theirs));
        w.assert_alive(*p);
    }
    // A program can tell them by their addresses.
    let names: HashSet<SocketAddr> = pairs.iter().map(|p| addrs(&w, p.b).1).collect();
    assert_eq!(names.len(), pairs.len());
    assert!(names.iter().all(|name| name.ip() == addr.ip() && name.port() != 0), "{names:?}");
    // One that goes makes place for one with a TCP connection of its own.
    w.disconnect(pairs[0].a, Disconnect::Abort);
    w.disconnect(pairs[1].a, Disconnect::Abort);
    w.disconnect(pairs[2].a, Disconnect::Abort);
    w.disconnect(pairs[3].a, Disconnect::Abort);
    for p in &pairs[..4] {
        w.ended(p.a, |_| true);
    }
    let own = call(&mut w, addr);
    assert!(!local.contains(&carrier(&w, own.a)));
    w.assert_alive(pairs[4]);
}

/// An end that knows no groups: the dial goes on by a TCP connection, and the next ones begin there.
#[test]
fn an_end_without_groups_is_called_by_tcp() {
    let mut w = World::<All>::new(1);
    let server = TcpListener::bind(All::local()).unwrap();
    let addr = server.local_addr().unwrap();
    server.set_nonblocking(true).unwrap();
    let first = |w: &mut World<All>, len: usize| {
        let mut stream = w.until("a call", |_| server.accept().ok()).0;
        stream.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; len];
        w.until("its first bytes", |_| stream.read(&mut bytes).ok().filter(|n| *n > 0));
        (stream, bytes)
    };
    let connect = |w: &mut World<All>| {
        let (a, now) = (w.end(0), w.now());
        w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
        a
    };
    let a = connect(&mut w);
    let (stream, bytes) = first(&mut w, HELLO_LEN);
    assert!(HelloRepr::parse(bytes.first_chunk().unwrap(), false).is_ok());
    drop(stream);
    let (_mpa, bytes) = first(&mut w, 16);
    assert_eq!(bytes, b"MPA ID Req Frame");
    connect(&mut w);
    let (_second, bytes) = first(&mut w, 16);
    assert_eq!(bytes, b"MPA ID Req Frame", "it is remembered");
    assert_eq!(w.rnics[0].qp_state(a.qp), Ok(QpState::Connecting));
}

/// Thousands of dials that wait for the same answer do not overflow the queue of the other end.
#[test]
fn dials_that_get_no_group_go_on_a_few_at_a_time() {
    const DIALS: usize = 800;
    let mut w = World::<All>::new(1);
    let server = exs::sys::listen(&All::local(), 4096, false).unwrap();
    let addr = server.local_addr().unwrap();
    server.set_nonblocking(true).unwrap();
    let ends: Vec<End> = (0..DIALS).map(|_| w.end(0)).collect();
    for end in &ends {
        let now = w.now();
        w.rnics[0].connect(end.qp, addr, &param(&[]), now).unwrap();
    }
    // It knows no groups.
    drop(w.until("the hello", |_| server.accept().ok()));
    let (mut called, mut largest) = (0, 0);
    while called < DIALS {
        w.settle();
        let calls: Vec<_> = std::iter::from_fn(|| server.accept().ok()).collect();
        (called, largest) = (called + calls.len(), largest.max(calls.len()));
        // Each that fails makes place for another.
    }
    assert_eq!(called, DIALS);
    assert!((64..=256).contains(&largest), "{largest} at once");
    for _ in &ends {
        assert!(matches!(w.event(0), CmEvent::ConnectFailed { .. }));
    }
}

/// An end that takes a single stream gets the next call by TCP.
#[test]
fn no_more_streams_are_opened_than_the_other_end_takes() {
    let mut w = World::<All>::new(1);
    let server = TcpListener::bind(All::local()).unwrap();
    let addr = server.local_addr().unwrap();
    server.set_nonblocking(true).unwrap();
    for _ in 0..2 {
        let (end, now) = (w.end(0), w.now());
        w.rnics[0].connect(end.qp, addr, &param(&[]), now).unwrap();
    }
    let (mut group, _) = w.until("the hello", |_| server.accept().ok());
    group
        .write_all(
            &HelloRepr {
                answer: true,
                kind: GroupKind::Many,
                window: 1 << 16,
                streams: 1,
                groups: 1,
                token: 0,
            }
            .emit(),
        )
        .unwrap();
    for _ in 0..2 {
        let (mut own, _) = w.until("a call", |_| server.accept().ok());
        own.set_nonblocking(true).unwrap();
        let mut bytes = [0; 16];
        w.until("its request", |_| own.read_exact(&mut bytes).ok());
        assert_eq!(&bytes, b"MPA ID Req Frame");
        // The group has a stream by now.
        let (end, now) = (w.end(0), w.now());
        w.rnics[0].connect(end.qp, addr, &param(&[]), now).unwrap();
    }
}

/// A listener that cannot say yet whether it takes groups is called by TCP, and asked again soon. One that
/// takes none any more refuses further streams.
#[test]
fn a_listener_takes_groups_when_it_says_so() {
    let mut w = World::<All>::new(2);
    let opts = ListenOpts { groups: TakesGroups::NotYet, ..listen_opts() };
    let listener = w.rnics[1].listen(All::local(), &opts).unwrap();
    let addr = w.rnics[1].listener_addr(listener).unwrap();
    let mut locals: Vec<SocketAddr> = Vec::new();
    let mut connect = |w: &mut World<All>| {
        let pair = call(w, addr);
        let local = carrier(w, pair.a);
        let known = locals.contains(&local);
        locals.push(local);
        (pair, known)
    };
    let (first, _) = connect(&mut w);
    w.rnics[1].take_groups(listener, TakesGroups::Yes);
    assert!(!connect(&mut w).1, "it was asked a moment ago");
    w.skip(Duration::from_secs(2));
    let (grouped, known) = connect(&mut w);
    assert!(!known && connect(&mut w).1, "a new group");
    w.rnics[1].take_groups(listener, TakesGroups::No);
    assert!(!connect(&mut w).1, "refused, and dialed by TCP");
    w.rnics[1].take_groups(listener, TakesGroups::Yes);
    w.skip(Duration::from_secs(30));
    assert!(!connect(&mut w).1, "it is remembered");
    w.skip(Duration::from_secs(31));
    assert!(!connect(&mut w).1 && connect(&mut w).1, "another group");
    w.assert_alive(first);
    w.assert_alive(grouped);
}

/// A program whose threads wait for the first connections themselves will do so for others.
#[test]
fn connections_that_threads_wait_for_keep_others_out_of_groups() {
    for dialer in [true, false] {
        let mut w = World::<Third>::new(2);
        let (_, addr) = w.listen(1, Third::local());
        let first = [call(&mut w, addr), call(&mut w, addr)];
        w.settle();
        let end = if dialer { first[0].a } else { first[0].b };
        assert!(w.rnics[end.node].attend(end.qp));
        w.rnics[end.node].keep_apart(end.qp);
        let more = [call(&mut w, addr), call(&mut w, addr)];
        assert_ne!(carrier(&w, more[0].a), carrier(&w, more[1].a), "dialer: {dialer}");
        assert!(w.rnics[end.node].unattend(end.qp));
        first.iter().chain(&more).for_each(|pair| w.assert_alive(*pair));
    }
}

/// A receiver without receives keeps its own peer waiting, and no other link of the group.
#[test]
fn a_slow_link_blocks_no_other() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, 64).unwrap();
    let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
    let now = w.now();
    w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
    let (req, _) = w.request(1);
    w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    let other = call(&mut w, addr);
    assert_eq!(carrier(&w, a), carrier(&w, other.a));
    // More than the window of a stream.
    let (len, count) = (100_000, 10);
    let bytes = pattern(3, len);
    let src = w.buf(a, bytes.clone(), Access::LOCAL_READ);
    for n in 0..count {
        w.send(a, &send_wr(n, &[src.sge()]));
    }
    w.settle();
    assert!(w.drain(b).1.is_empty());
    for _ in 0..5 {
        w.assert_moves(other, 300_000);
    }
    let dst = w.zeros(b, len);
    for n in 0..count {
        w.recv(b, n, &[dst.sge()]);
        let wc = w.received(b);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (n, WcStatus::Success, len as u64));
        assert!(dst.bytes() == bytes);
    }
}

/// Large messages of several links fill the connection in both directions, so frames leave in parts, while
/// the credit for what comes is due.
#[test]
fn large_data_of_several_links_move_both_ways_at_once() {
    const LEN: usize = 500_000;
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let pairs: Vec<Pair> = (0..48).map(|_| call(&mut w, addr)).collect();
    for round in 0..2 {
        let mut expected = Vec::new();
        for (n, pair) in (round..).zip(&pairs) {
            for (from, to) in [(pair.a, pair.b), (pair.b, pair.a)] {
                let bytes = pattern(n, LEN);
                let src = w.buf(from, bytes.clone(), Access::LOCAL_READ);
                let dst = w.zeros(to, bytes.len());
                w.recv(to, n, &[dst.sge()]);
                w.send(from, &send_wr(n, &[src.sge()]));
                expected.push((to, bytes, src, dst));
            }
        }
        for (to, bytes, _src, dst) in expected {
            let wc = w.received(to);
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, bytes.len() as u64));
            assert!(dst.bytes() == bytes);
        }
        pairs.iter().for_each(|pair| {
            w.completed(pair.a);
            w.completed(pair.b);
        });
    }
}

/// The peer's process is gone: every link ends with ECONNRESET.
#[test]
fn all_links_end_with_the_tcp_connection() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let pairs: Vec<Pair> = (0..20).map(|_| call(&mut w, addr)).collect();
    for p in &pairs {
        w.recv(p.a, 1, &[]);
    }
    w.rnics.truncate(1);
    for p in &pairs {
        w.ended(p.a, |cause| cause == DisconnectCause::Broken(libc::ECONNRESET));
        assert_eq!(w.received(p.a).status, WcStatus::Flushed);
    }
}

/// The kernel reports bytes and the end at the same time, and no more after that.
#[test]
fn an_end_behind_the_last_bytes_is_seen() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let p = call(&mut w, addr);
    w.assert_alive(p);
    w.settle();
    let into = w.zeros(p.a, 64);
    w.recv(p.a, 1, &[into.sge()]);
    let (now, qp) = (w.now(), p.b.qp);
    w.rnics[1].post_send(qp, &SendWr { head: b"last", ..send_wr(2, &[]) }).unwrap();
    w.rnics[1].flush(qp, now);
    w.rnics.truncate(1);
    assert_eq!(w.received(p.a).status, WcStatus::Success);
    w.ended(p.a, |cause| cause == DisconnectCause::Broken(libc::ECONNRESET));
}

/// A closed listener refuses, and one that came to its port instead is called anew.
#[test]
fn a_new_listener_at_the_port_gets_the_calls() {
    let mut w = World::<All>::new(3);
    let (listener, addr) = w.listen(1, All::local());
    let before = call(&mut w, addr);
    w.rnics[1].close_listener(listener).unwrap();
    let (a, now) = (w.end(0), w.now());
    w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
    let refused = |event: &CmEvent| match event {
        CmEvent::ConnectFailed { qp, error } if *qp == a.qp => Some(error.clone()),
        _ => None,
    };
    let error = w.event_of(0, "the refusal", refused);
    assert!(format!("{error:?}").contains(&libc::ECONNREFUSED.to_string()), "{error:?}");
    w.listen(2, addr);
    let (a, b, now) = (w.end(0), w.end(2), w.now());
    w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
    let (req, _) = w.request(2);
    w.rnics[2].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    w.established(b);
    w.assert_alive(Pair { a, b });
    w.assert_alive(before);
}

/// Both sides close a group that has no link, and a later call makes another.
#[test]
fn a_group_without_links_is_closed() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let first = call(&mut w, addr);
    let tcp = carrier(&w, first.a);
    w.recv(first.b, 1, &[]);
    w.send(first.a, &SendWr { signaled: false, ..send_wr(1, &[]) });
    w.received(first.b);
    w.disconnect(first.a, Disconnect::Orderly);
    w.ended(first.a, |cause| cause == DisconnectCause::Orderly);
    w.ended(first.b, |cause| cause == DisconnectCause::Orderly);
    let soon = call(&mut w, addr);
    assert_eq!(carrier(&w, soon.a), tcp, "the group lingers");
    w.disconnect(soon.a, Disconnect::Abort);
    w.ended(soon.a, |_| true);
    w.settle();
    w.skip(Duration::from_secs(11));
    w.settle();
    let late = call(&mut w, addr);
    assert_ne!(carrier(&w, late.a), tcp);
}

/// A dial whose program has chosen the port has a TCP connection of its own, with that port.
#[test]
fn a_port_that_was_bound_is_that_of_the_connection() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let free = TcpListener::bind(All::local()).unwrap().local_addr().unwrap();
    let (a, b) = (w.end(0), w.end(1));
    let now = w.now();
    let bound = ConnParam { bind: Some(free), ..param(&[]) };
    w.rnics[0].connect(a.qp, addr, &bound, now).unwrap();
    let (req, _) = w.request(1);
    let now = w.now();
    w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    w.established(b);
    assert_eq!((carrier(&w, a), addrs(&w, a).0, addrs(&w, b).1), (free, free, free));
}
