//! Connecting, accepting, refusing, failing to.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use exs::rnic::{
    AttemptNumber, CmEvent, ConnParam, ConnReq, Disconnect, DisconnectCause, ListenOpts, QpState,
    RecvWr, Rnic, RnicError, StarvedListener,
};

use super::world::{End, Harness, Pair, World, listen_opts, param, pattern, read_wr, send_wr};
use super::{skip, skip_part};

fn connect_failed<H: Harness>(w: &mut World<H>, end: End) -> RnicError {
    w.event_of(end.node, "ConnectFailed", |e| match e {
        CmEvent::ConnectFailed { qp, error } if *qp == end.qp => Some(error.clone()),
        _ => None,
    })
}

/// Waits until an attempt has come to nothing: at a listener that is gone or away.
pub(super) fn came_to_nothing<H: Harness>(w: &mut World<H>, end: End) {
    if H::is_software(0) && H::is_software(1) {
        connect_failed(w, end);
        return;
    }
    // A device drops a request by refusing it.
    w.event_of(end.node, "ConnectFailed or Rejected", |e| match e {
        CmEvent::ConnectFailed { qp, .. } | CmEvent::Rejected { qp, .. } if *qp == end.qp => {
            Some(())
        }
        _ => None,
    });
}

pub(super) fn connect<H: Harness>(w: &mut World<H>, end: End, addr: SocketAddr, p: &ConnParam<'_>) {
    let now = w.now();
    w.rnics[end.node].connect(end.qp, addr, p, now).expect("connect");
}

/// Private data up to the limit arrives with the request and with the answer; the
/// READ limits are negotiated; both sides know the addresses.
pub fn private_data_goes_both_ways<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let max = w.caps(0).max_private_data.min(w.caps(1).max_private_data);
    let (question, answer) = (pattern(1, max), pattern(2, max));
    let too_long = vec![0; w.caps(0).max_private_data + 1];
    let (listener, addr) = w.listen(1, H::local());
    let now = w.now();
    let r = w.rnics[0].connect(a.qp, addr, &param(&too_long), now);
    assert!(matches!(r, Err(RnicError::Limit { .. })), "{r:?}");
    connect(&mut w, a, addr, &ConnParam { ird: 3, ord: 5, ..param(&question) });
    assert_eq!(w.rnics[0].qp_state(a.qp), Ok(QpState::Connecting));
    let (req, peer, asked) = w.event_of(1, "ConnectRequest", |e| match e {
        CmEvent::ConnectRequest { listener: l, req, peer, local, private_data } => {
            assert_eq!((l, local), (&listener, &addr));
            Some((*req, *peer, private_data.clone()))
        }
        _ => None,
    });
    w.assert_private(1, &asked, &question);
    let now = w.now();
    let p = ConnParam { ird: 4, ord: 8, ..param(&answer) };
    w.rnics[1].accept(req, b.qp, &p, now).unwrap();
    let (data, a_ord, a_ird) = w.established(a);
    let (_, b_ord, b_ird) = w.established(b);
    w.assert_private(0, &data, &answer);
    // A device may answer more READs than it was asked to.
    let most = if H::is_software(1) { 4 } else { 5 };
    assert!(a_ord <= most && b_ord <= 3, "ORD beyond the other side's IRD: {a_ord} {b_ord}");
    assert!(a_ird >= b_ord, "IRD below the other side's ORD");
    assert!(b_ird >= a_ord || !H::is_software(1), "IRD below the other side's ORD");
    assert!(a_ord > 0 && b_ord > 0);
    assert_eq!(w.rnics[0].addrs(a.qp), Ok((peer, addr)));
    assert_eq!(w.rnics[1].addrs(b.qp), Ok((addr, peer)));
    let again = w.rnics[1].accept(req, b.qp, &p, now);
    assert!(matches!(again, Err(RnicError::NoSuch { .. })), "answered twice: {again:?}");
}

/// IPv6 works, and so does an RNIC that connects to itself, in one thread.
pub fn ipv6_and_self_connect<H: Harness>() {
    let mut w = World::<H>::new(1);
    let (a, b) = (w.end(0), w.end(0));
    let local = H::local6().unwrap_or_else(|| {
        skip_part("there is no IPv6 address here; the rest runs over IPv4");
        H::local()
    });
    let (_, addr) = w.listen(0, local);
    connect(&mut w, a, addr, &param(b"me"));
    let (req, data) = w.request(0);
    w.assert_private(0, &data, b"me");
    let now = w.now();
    w.rnics[0].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    w.established(b);
    assert_eq!(w.rnics[0].addrs(a.qp).unwrap().1, addr);
    w.assert_alive(Pair { a, b });
}

/// A refusal, with data, ends the attempt and nothing else.
pub fn a_reject_carries_private_data<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let (_, addr) = w.listen(1, H::local());
    w.recv(a, 77, &[]);
    connect(&mut w, a, addr, &param(b"may I?"));
    let (req, _) = w.request(1);
    let now = w.now();
    w.rnics[1].reject(req, b"no: full", now).unwrap();
    let data = w.event_of(0, "Rejected", |e| match e {
        CmEvent::Rejected { qp, private_data } if *qp == a.qp => Some(private_data.clone()),
        _ => None,
    });
    w.assert_private(0, &data, b"no: full");
    let wc = w.received(a);
    assert_eq!((wc.wr_id, wc.status), (77, exs::rnic::WcStatus::Flushed));
    assert_eq!(w.rnics[0].qp_state(a.qp), Ok(QpState::Error));
    let c = w.end(0);
    connect(&mut w, c, addr, &param(&[]));
    let (req, _) = w.request(1);
    let now = w.now();
    w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(c);
    w.established(b);
    w.assert_alive(Pair { a: c, b });
}

/// A refused TCP connection says so.
pub fn without_a_listener_it_is_refused<H: Harness>() {
    let mut w = World::<H>::new(1);
    let a = w.end(0);
    // A port that was free a moment ago, bound but not listening: no other program gets it.
    let addr = H::local();
    let (listener, free) = w.listen(0, addr);
    w.rnics[0].close_listener(listener).unwrap();
    let now = w.now();
    // The kernel may say so at once or later.
    let error = match w.rnics[0].connect(a.qp, free, &param(&[]), now) {
        Err(e) => e,
        Ok(()) => connect_failed(&mut w, a),
    };
    assert!(
        matches!(error, RnicError::Os { errno: libc::ECONNREFUSED, .. }),
        "expected ECONNREFUSED, not {error:?}"
    );
}

/// Calls a peer that accepts the TCP connection and says nothing, for as long as what is given
/// back lives.
fn call_a_silent_address<H: Harness>(
    w: &mut World<H>,
    a: End,
    p: &ConnParam<'_>,
) -> (TcpListener, TcpStream) {
    let silent = TcpListener::bind(H::local()).unwrap();
    silent.set_nonblocking(true).unwrap();
    connect(w, a, silent.local_addr().unwrap(), p);
    let (stream, _) = w.until("a call", |_| silent.accept().ok());
    (silent, stream)
}

/// A peer that accepts the TCP connection and says nothing: the attempt ends at
/// its timeout.
pub fn a_silent_listener_times_out<H: Harness>() {
    if !H::dials_by_tcp(0) {
        return skip("there is no server beside RDMA's that this device could call");
    }
    let mut w = World::<H>::new(1);
    let a = w.end(0);
    let timeout = Duration::from_secs(3600);
    let _held = call_a_silent_address(&mut w, a, &ConnParam { timeout, ..param(&[]) });
    w.settle();
    assert!(w.cm[0].is_empty(), "too early: {:?}", w.cm[0]);
    assert!(w.rnics[0].next_timeout().is_some());
    w.skip(timeout);
    assert_eq!(connect_failed(&mut w, a), RnicError::Timeout(timeout));
    assert_eq!(w.rnics[0].qp_state(a.qp), Ok(QpState::Error));
}

/// A kernel may keep the remains of an abandoned attempt for seconds: they block no later attempt.
pub fn an_abandoned_attempt_blocks_no_later_one<H: Harness>() {
    if !H::dials_by_tcp(0) {
        return skip("there is no server beside RDMA's that this device could call");
    }
    let mut w = World::<H>::new(1);
    let a = w.end(0);
    let _held = call_a_silent_address(&mut w, a, &param(&[]));
    drop(w);
    let mut w = World::<H>::new(1);
    let pd = w.rnics[0].alloc_pd().unwrap();
    // More of them than pages that may be in use, each of a page at most.
    let made: Vec<_> = (0..250)
        .map(|n| w.rnics[0].create_srq(pd, 16).unwrap_or_else(|e| panic!("number {n}: {e}")))
        .collect();
    for srq in made {
        w.rnics[0].destroy_srq(srq).unwrap();
    }
    w.rnics[0].dealloc_pd(pd).unwrap();
}

/// A listener without descriptors fails the attempts that had begun when it tried to accept. Later ones go
/// on: there may be descriptors by then.
pub fn a_starved_listener_fails_no_later_attempt<H: Harness>() {
    if !H::is_software(0) || !H::is_software(1) {
        return skip("a connection of an RDMA device takes no descriptor");
    }
    let mut w = World::<H>::new(2);
    let (earlier, later, b) = (w.end(0), w.end(0), w.end(1));
    let (_, at) = w.listen(1, H::local());
    connect(&mut w, earlier, at, &param(b"earlier"));
    let (errno, before) = (libc::EMFILE, AttemptNumber::upcoming());
    let starved = StarvedListener { at, errno, taken: HashSet::new(), before };
    connect(&mut w, later, at, &param(b"later"));
    let now = w.now();
    w.rnics[0].fail_attempts(&starved, now);
    assert_eq!(w.rnics[0].qp_state(later.qp), Ok(QpState::Connecting), "the later attempt goes on");
    let error = connect_failed(&mut w, earlier);
    assert!(matches!(error, RnicError::Os { errno: libc::EMFILE, .. }), "{error:?}");
    // The request of the earlier one may have left.
    let req = loop {
        let (req, private_data) = w.request(1);
        if private_data == b"later" {
            break req;
        }
    };
    w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(later);
}

/// A caller that connects and says nothing is dropped at the handshake timeout,
/// and meanwhile keeps no other caller out.
pub fn a_silent_caller_is_dropped<H: Harness>() {
    if !H::is_software(0) || !H::dials_by_tcp(0) {
        return skip("TCP's strangers do not get here");
    }
    let mut w = World::<H>::new(1);
    let handshake_timeout = Duration::from_secs(3600);
    let opts = ListenOpts { handshake_timeout, ..listen_opts() };
    let listener = w.rnics[0].listen(H::local(), &opts).unwrap();
    let addr = w.rnics[0].listener_addr(listener).unwrap();
    let mut silent = TcpStream::connect(addr).unwrap();
    w.settle();
    let (a, b) = (w.end(0), w.end(0));
    connect(&mut w, a, addr, &ConnParam { timeout: handshake_timeout * 9, ..param(&[]) });
    let (req, _) = w.request(0);
    let now = w.now();
    w.rnics[0].accept(req, b.qp, &param(&[]), now).unwrap();
    w.established(a);
    w.skip(handshake_timeout);
    w.settle();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    match silent.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("not dropped: {other:?}"),
    }
    assert!(w.cm[0].iter().all(|e| !matches!(e, CmEvent::ConnectRequest { .. })));
}

/// A caller that speaks something else is dropped without a trace.
pub fn a_stranger_is_dropped<H: Harness>() {
    if !H::is_software(0) || !H::dials_by_tcp(0) {
        return skip("TCP's strangers do not get here");
    }
    let mut w = World::<H>::new(1);
    let (_, addr) = w.listen(0, H::local());
    let mut stranger = TcpStream::connect(addr).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    stranger.set_nonblocking(true).unwrap();
    w.until("the stranger to be dropped", |_| match stranger.read(&mut [0; 64]) {
        Ok(0) => Some(()),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Some(()),
        _ => None,
    });
    assert!(w.cm[0].is_empty(), "{:?}", w.cm[0]);
    let (a, b) = (w.end(0), w.end(0));
    let pair = w.join(a, b, &param(&[]));
    w.assert_alive(pair);
}

/// A caller that goes before it is answered: the answer fails, cleanly.
pub fn requests_vanish_with_their_caller<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let (_, addr) = w.listen(1, H::local());
    connect(&mut w, a, addr, &param(&[]));
    let (req, _) = w.request(1);
    w.rnics[0].destroy_qp(a.qp).unwrap();
    // RNIC 1 may not know it yet: an error now, or a failure soon.
    w.settle();
    let now = w.now();
    match w.rnics[1].accept(req, b.qp, &param(&[]), now) {
        Err(_) => {
            // The QP is untouched, and serves the next caller.
            assert_eq!(w.rnics[1].qp_state(b.qp), Ok(QpState::Init));
            let c = w.end(0);
            let pair = w.join(c, b, &param(&[]));
            w.assert_alive(pair);
        }
        Ok(()) => {
            w.event_of(1, "a failure", |e| {
                matches!(e, CmEvent::ConnectFailed { .. } | CmEvent::Disconnected { .. })
                    .then_some(())
            });
        }
    }
}

/// Each call in the states where it makes no sense is refused, and changes nothing.
pub fn states_and_calls<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let now = w.now();
    let state =
        |r: Result<(), RnicError>| assert!(matches!(r, Err(RnicError::State { .. })), "{r:?}");
    let fresh = w.end(0);
    state(w.rnics[0].post_send(fresh.qp, &send_wr(1, &[])));
    state(w.rnics[0].disconnect(fresh.qp, Disconnect::Orderly, now));
    w.rnics[0].post_recv(fresh.qp, &RecvWr { wr_id: 1, sges: &[] }).unwrap();
    state(w.rnics[0].connect(p.a.qp, H::local(), &param(&[]), now));
    let (_, addr) = w.listen(1, H::local());
    connect(&mut w, fresh, addr, &param(&[]));
    state(w.rnics[0].connect(fresh.qp, addr, &param(&[]), now));
    state(w.rnics[0].post_send(fresh.qp, &send_wr(1, &[])));
    let (req, _) = w.request(1);
    let now = w.now();
    state(w.rnics[1].accept(req, p.b.qp, &param(&[]), now));
    let free = w.end(1);
    let bad = w.rnics[1].accept(ConnReq(req.0 ^ 0x55), free.qp, &param(&[]), now);
    assert!(matches!(bad, Err(RnicError::NoSuch { .. })), "{bad:?}");
    w.rnics[1].accept(req, free.qp, &param(&[]), now).unwrap();
    w.established(fresh);
    w.assert_alive(p);
}

/// Requests not yet answered die with their listener.
pub fn closing_a_listener_drops_requests<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let (listener, addr) = w.listen(1, H::local());
    connect(&mut w, a, addr, &param(&[]));
    let (req, _) = w.request(1);
    w.rnics[1].close_listener(listener).unwrap();
    came_to_nothing(&mut w, a);
    let now = w.now();
    let late = w.rnics[1].accept(req, b.qp, &param(&[]), now);
    assert!(matches!(late, Err(RnicError::NoSuch { .. })), "{late:?}");
    assert!(w.rnics[1].listener_addr(listener).is_err());
    assert!(w.rnics[1].close_listener(listener).is_err());
}

/// A listener that was closed, with a caller that has no answer, gives its address back at
/// once: the next one listens there, and is called.
pub fn a_closed_listener_gives_its_port_back<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (mut listener, addr) = w.listen(1, H::local());
    for _ in 0..5 {
        let early = w.end(0);
        connect(&mut w, early, addr, &param(&[]));
        w.request(1);
        w.rnics[1].close_listener(listener).unwrap();
        let (next, same) = w.listen(1, addr);
        assert_eq!(same, addr);
        came_to_nothing(&mut w, early);
        let (a, b) = (w.end(0), w.end(1));
        connect(&mut w, a, addr, &param(&[]));
        let (req, _) = w.request(1);
        let now = w.now();
        w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
        w.established(a);
        listener = next;
    }
}

/// Two hundred connections started at once all come up and all work.
pub fn two_hundred_at_once<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (_, addr) = w.listen(1, H::local());
    let callers: Vec<End> = (0..200).map(|_| w.end(0)).collect();
    for (i, end) in callers.iter().enumerate() {
        connect(&mut w, *end, addr, &param(&u32::try_from(i).unwrap().to_be_bytes()));
    }
    let mut pairs = Vec::new();
    for _ in 0..callers.len() {
        let (req, data) = w.request(1);
        let (number, _) = data.split_first_chunk().unwrap();
        let i = u32::from_be_bytes(*number) as usize;
        let b = w.end(1);
        let now = w.now();
        w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
        pairs.push(Pair { a: callers[i], b });
    }
    for p in &pairs {
        w.established(p.a);
        w.established(p.b);
    }
    for p in &pairs {
        w.recv(p.b, 5, &[]);
        w.send(p.a, &send_wr(6, &[]));
    }
    for p in &pairs {
        assert_eq!(w.received(p.b).wr_id, 5);
        assert_eq!(w.completed(p.a).wr_id, 6);
    }
    for p in &pairs {
        w.disconnect(p.a, Disconnect::Orderly);
    }
    for p in &pairs {
        w.ended(p.a, |cause| cause == DisconnectCause::Orderly);
        w.ended(p.b, |cause| cause == DisconnectCause::Orderly);
    }
}

/// An RNIC reaches the addresses it listens on. Whether it reaches others depends on
/// the host; if it says no, it does not connect there either.
pub fn reachable_addresses<H: Harness>() {
    let mut w = World::<H>::new(1);
    let (_, addr) = w.listen(0, H::local());
    w.rnics[0].reaches(addr, None).expect("its own address");
    w.rnics[0].reaches(addr, Some(H::local())).expect("from its own address");
    for other in ["127.0.0.1:9", "[::1]:9"] {
        let other: SocketAddr = other.parse().unwrap();
        if other.ip() == addr.ip() {
            continue;
        }
        let Err(e) = w.rnics[0].reaches(other, None) else { continue };
        let end = w.end(0);
        let now = w.now();
        if w.rnics[0].connect(end.qp, other, &param(&[]), now).is_ok() {
            let error = connect_failed(&mut w, end);
            let timeout = matches!(error, RnicError::Timeout(_));
            assert!(!timeout, "{other} is out of reach ({e}), and connecting took its time");
        }
        let refused = w.rnics[0].listen(other, &listen_opts());
        assert!(
            matches!(refused, Err(RnicError::Os { errno: libc::EADDRNOTAVAIL, .. })),
            "listens where it cannot be reached: {refused:?}"
        );
    }
}

/// READs go through both ways, however few the sides allow each other at a time.
pub fn few_reads_at_a_time<H: Harness>() {
    for (ours, theirs) in [(1, 1), (1, 16), (16, 1), (4, 8)] {
        let mut w = World::<H>::new(2);
        let (a, b) = (w.end(0), w.end(1));
        let (_, addr) = w.listen(1, H::local());
        connect(&mut w, a, addr, &ConnParam { ird: ours, ord: ours, ..param(&[]) });
        let (req, _) = w.request(1);
        let now = w.now();
        let p = ConnParam { ird: theirs, ord: theirs, ..param(&[]) };
        w.rnics[1].accept(req, b.qp, &p, now).unwrap();
        let (_, a_ord, a_ird) = w.established(a);
        let (_, b_ord, b_ird) = w.established(b);
        let few = ours.min(theirs);
        // A device may answer more of them than it was asked to.
        let most = if H::is_software(1) { few } else { ours };
        assert!((1..=most).contains(&a_ord) && (1..=few).contains(&b_ord), "{a_ord} {b_ord}");
        assert!(a_ird >= b_ord, "{a_ird}");
        assert!(b_ird >= a_ord || !H::is_software(1), "{b_ird}");
        let pair = Pair { a, b };
        w.assert_alive(pair);
        for (from, to) in [(a, b), (b, a)] {
            let bytes = pattern(7, 40 * 500);
            let src = w.buf(to, bytes.clone(), exs::mem::Access::REMOTE_READ);
            let dst = w.zeros(from, 40 * 500);
            for i in 0..40 {
                let sges = [dst.part(i * 500, 500)];
                let wr = read_wr(i as u64, &sges, src.addr() + (i * 500) as u64, src.mr.key);
                w.rnics[from.node].post_send(from.qp, &wr).unwrap();
            }
            let now = w.now();
            w.rnics[from.node].flush(from.qp, now);
            for i in 0..40 {
                assert_eq!(w.completed(from).wr_id, i);
            }
            assert!(dst.bytes() == bytes, "{ours} {theirs}");
        }
        w.assert_alive(pair);
    }
}
