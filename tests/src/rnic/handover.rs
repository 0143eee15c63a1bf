//! Connection requests that another RNIC of the same kind answers.
//!
//! RNIC 0 connects, RNIC 1 listens, and RNIC 2 takes the request over.

use std::net::SocketAddr;

use exs::rnic::{
    CmEvent, ConnParam, ConnReq, DetachedRequest, Disconnect, DisconnectCause, ListenOpts,
    Listener, QpState, Rnic, RnicError,
};

use super::connections::{came_to_nothing, connect};
use super::skip;
use super::world::{End, Harness, Pair, World, listen_opts, param, pattern};

/// What a test begins with: a request that RNIC 1 has handed out.
struct Handover {
    caller: End,
    listener: Listener,
    addr: SocketAddr,
    request: DetachedRequest,
}

/// Connects with these private data, and detaches the request. None: the RNIC cannot.
fn hand_out<H: Harness>(w: &mut World<H>, private_data: &[u8]) -> Option<Handover> {
    let caller = w.end(0);
    let (listener, addr) = w.listen(1, H::local());
    connect(w, caller, addr, &param(private_data));
    let (req, data) = w.request(1);
    w.assert_private(1, &data, private_data);
    let request = detach(w, req)?;
    let now = w.now();
    let gone = w.rnics[1].reject(req, &[], now);
    assert!(matches!(gone, Err(RnicError::NoSuch { .. })), "it is here still: {gone:?}");
    Some(Handover { caller, listener, addr, request })
}

fn detach<H: Harness>(w: &mut World<H>, req: ConnReq) -> Option<DetachedRequest> {
    match w.rnics[1].detach_request(req) {
        Err(RnicError::Unsupported(_)) => {
            skip("this device hands no requests over");
            None
        }
        other => Some(other.expect("detach_request")),
    }
}

fn accept<H: Harness>(w: &mut World<H>, req: ConnReq, by: End, p: &ConnParam<'_>) {
    let now = w.now();
    w.rnics[by.node].accept(req, by.qp, p, now).expect("accept");
}

/// Private data, READ limits and addresses are those of the two ends; bytes move both ways; the
/// end is in order; and the next caller is served by either RNIC.
pub fn a_request_is_answered_by_another_rnic<H: Harness>() {
    let mut w = World::<H>::new(3);
    let max = [0, 1, 2].map(|node| w.caps(node).max_private_data).into_iter().min().unwrap();
    let (question, answer) = (pattern(1, max), pattern(2, max));
    let Some(Handover { caller, addr, request, .. }) = hand_out(&mut w, &question) else { return };
    // As between the threads of a program.
    let request = std::thread::spawn(move || request).join().unwrap();
    let req = w.rnics[2].adopt_request(request).unwrap();
    w.settle();
    assert!(w.cm.iter().all(|events| events.is_empty()), "{:?}", w.cm);
    let b = w.end(2);
    accept(&mut w, req, b, &ConnParam { ird: 2, ord: 3, ..param(&answer) });
    let (data, ord, ird) = w.established(caller);
    w.assert_private(0, &data, &answer);
    let (_, b_ord, b_ird) = w.established(b);
    // A device may answer more READs than it was asked to.
    let most = if H::is_software(2) { 2 } else { param(&[]).ord };
    assert!(ord <= most && b_ord <= 3 && ird >= b_ord, "{ord} {ird} {b_ord}");
    assert!(b_ird >= ord || !H::is_software(2), "{ord} {b_ird}");
    let (ours, theirs) = w.rnics[0].addrs(caller.qp).unwrap();
    assert_eq!(theirs, addr);
    assert_eq!(w.rnics[2].addrs(b.qp), Ok((addr, ours)));
    let pair = Pair { a: caller, b };
    for _ in 0..20 {
        w.assert_alive(pair);
    }
    let now = w.now();
    let again = w.rnics[2].accept(req, b.qp, &param(&[]), now);
    assert!(matches!(again, Err(RnicError::NoSuch { .. })), "answered twice: {again:?}");
    // The listener goes on.
    let (next, kept) = (w.end(0), w.end(1));
    connect(&mut w, next, addr, &param(&[]));
    let (req, _) = w.request(1);
    accept(&mut w, req, kept, &param(&[]));
    w.established(next);
    w.established(kept);
    w.disconnect(caller, Disconnect::Orderly);
    w.ended(caller, |cause| cause == DisconnectCause::Orderly);
    w.ended(b, |cause| cause == DisconnectCause::Orderly);
    w.assert_alive(Pair { a: next, b: kept });
}

/// Two RNICs listen at one port. One rests, or closes, and the other has the callers.
pub fn rnics_share_the_port_of_a_listener<H: Harness>() {
    let mut w = World::<H>::new(3);
    let (listener, addr) = w.listen(1, H::local());
    w.settle();
    let shared = match w.rnics[1].share_listener(listener) {
        Err(RnicError::Unsupported(_)) => return skip("this device shares no ports"),
        other => other.expect("share_listener"),
    };
    let joined = w.rnics[2].join_listener(shared).unwrap();
    assert_eq!(w.rnics[2].listener_addr(joined), Ok(addr));
    let call = |w: &mut World<H>, node: usize| {
        let (caller, b) = (w.end(0), w.end(node));
        connect(w, caller, addr, &param(&[]));
        let (req, _) = w.request(node);
        accept(w, req, b, &param(&[]));
        w.established(caller);
        w.established(b);
        w.assert_alive(Pair { a: caller, b });
    };
    let rest = |w: &mut World<H>, (node, listener): (usize, Listener), rests: bool| {
        w.rnics[node].rest_listener(listener, rests).unwrap();
        // It may still take what came before.
        w.settle();
    };
    let (first, second) = ((1, listener), (2, joined));
    rest(&mut w, first, true);
    (0..3).for_each(|_| call(&mut w, 2));
    rest(&mut w, first, false);
    rest(&mut w, second, true);
    call(&mut w, 1);
    rest(&mut w, first, true);
    rest(&mut w, second, false);
    call(&mut w, 2);
    rest(&mut w, first, false);
    w.rnics[2].close_listener(joined).unwrap();
    (0..3).for_each(|_| call(&mut w, 1));
}

/// The listener closes while the request is on its way, and when it has arrived: it is answered
/// all the same.
pub fn a_detached_request_outlives_its_listener<H: Harness>() {
    for late in [false, true] {
        let mut w = World::<H>::new(3);
        let Some(Handover { caller, listener, request, .. }) = hand_out(&mut w, &[]) else {
            return;
        };
        if !late {
            w.rnics[1].close_listener(listener).unwrap();
            w.settle();
        }
        let req = w.rnics[2].adopt_request(request).unwrap();
        // A listener of the second RNIC that has the same number is not its own.
        let (other, _) = w.listen(2, H::local());
        assert_eq!(other, listener);
        w.rnics[2].close_listener(other).unwrap();
        if late {
            w.rnics[1].close_listener(listener).unwrap();
            w.settle();
        }
        let b = w.end(2);
        accept(&mut w, req, b, &param(&[]));
        w.established(caller);
        w.established(b);
        w.assert_alive(Pair { a: caller, b });
    }
}

/// The caller goes while the request is on its way, and when it has arrived: the answer fails, or
/// the connection does, and the queue pair or the next one serves another caller.
pub fn a_detached_request_vanishes_with_its_caller<H: Harness>() {
    for late in [false, true] {
        let mut w = World::<H>::new(3);
        let Some(Handover { caller, addr, request, .. }) = hand_out(&mut w, &[]) else { return };
        if !late {
            w.rnics[0].destroy_qp(caller.qp).unwrap();
            w.settle();
        }
        let req = w.rnics[2].adopt_request(request).unwrap();
        if late {
            w.rnics[0].destroy_qp(caller.qp).unwrap();
        }
        w.settle();
        let mut b = w.end(2);
        let now = w.now();
        match w.rnics[2].accept(req, b.qp, &param(&[]), now) {
            Err(e) => {
                assert!(matches!(e, RnicError::NoSuch { .. }), "{e:?}");
                assert_eq!(w.rnics[2].qp_state(b.qp), Ok(QpState::Init));
            }
            Ok(()) => {
                w.event_of(2, "a failure", |e| {
                    matches!(e, CmEvent::ConnectFailed { .. } | CmEvent::Disconnected { .. })
                        .then_some(())
                });
                b = w.end(2);
            }
        }
        let next = w.end(0);
        connect(&mut w, next, addr, &param(&[]));
        let (req, _) = w.request(1);
        let Some(request) = detach(&mut w, req) else { return };
        let req = w.rnics[2].adopt_request(request).unwrap();
        accept(&mut w, req, b, &param(&[]));
        w.established(next);
        w.established(b);
        w.assert_alive(Pair { a: next, b });
    }
}

/// The RNIC that took a request over refuses it, with data.
pub fn a_request_is_refused_by_another_rnic<H: Harness>() {
    let mut w = World::<H>::new(3);
    let Some(Handover { caller, request, .. }) = hand_out(&mut w, b"may I?") else { return };
    let req = w.rnics[2].adopt_request(request).unwrap();
    let now = w.now();
    w.rnics[2].reject(req, b"no: full", now).unwrap();
    let data = w.event_of(0, "Rejected", |e| match e {
        CmEvent::Rejected { qp, private_data } if *qp == caller.qp => Some(private_data.clone()),
        _ => None,
    });
    w.assert_private(0, &data, b"no: full");
    let again = w.rnics[2].reject(req, &[], now);
    assert!(matches!(again, Err(RnicError::NoSuch { .. })), "answered twice: {again:?}");
}

/// A request that no RNIC takes over ends its caller's attempt, and so does one whose RNIC goes.
pub fn a_dropped_request_ends_the_attempt<H: Harness>() {
    for adopted in [false, true] {
        let mut w = World::<H>::new(3);
        let Some(Handover { caller, request, .. }) = hand_out(&mut w, &[]) else { return };
        match adopted {
            false => drop(request),
            true => {
                w.rnics[2].adopt_request(request).unwrap();
                drop(w.rnics.pop());
            }
        }
        came_to_nothing(&mut w, caller);
    }
}

/// Requests that were handed out do not count against the backlog.
pub fn a_detached_request_frees_its_place<H: Harness>() {
    // A listener holds at least this many.
    const BACKLOG: u32 = 16;
    let mut w = World::<H>::new(3);
    let opts = ListenOpts { backlog: BACKLOG, ..listen_opts() };
    let listener = w.rnics[1].listen(H::local(), &opts).unwrap();
    let addr = w.rnics[1].listener_addr(listener).unwrap();
    let call = |w: &mut World<H>| {
        let end = w.end(0);
        connect(w, end, addr, &param(&[]));
    };
    let held: Vec<ConnReq> = (0..BACKLOG)
        .map(|_| {
            call(&mut w);
            w.request(1).0
        })
        .collect();
    call(&mut w);
    w.settle();
    if !w.cm[1].is_empty() {
        return skip("this device holds more requests than the backlog says");
    }
    let Some(request) = detach(&mut w, held[0]) else { return };
    w.request(1);
    call(&mut w);
    let req = w.rnics[2].adopt_request(request).unwrap();
    let now = w.now();
    w.rnics[2].reject(req, &[], now).unwrap();
    w.settle();
    assert!(w.cm[1].is_empty(), "the place was freed twice: {:?}", w.cm[1]);
}
