//! Ends of connections: in order, abrupt, one-sided, late.

use std::time::Duration;

use exs::mem::Access;
use exs::rnic::{
    CmEvent, Disconnect, DisconnectCause, QpState, RecvWr, Rnic, RnicError, STRICT_CREDITS, SendWr,
    WcStatus,
};

use super::skip;
use super::world::{Harness, World, param, pattern, read_wr, send_wr, write_wr};

/// WRs posted before an orderly disconnect arrive; WRs posted after it are
/// refused; receives that remain are flushed; both sides get the end.
pub fn orderly_sends_what_was_posted<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(4 << 20);
    let bytes = pattern(1, len);
    let src = w.buf(p.a, bytes.clone(), Access::LOCAL_READ);
    let dst = w.zeros(p.b, len);
    w.recv(p.b, 1, &[dst.sge()]);
    w.recv(p.b, 2, &[]);
    w.recv(p.b, 3, &[]);
    w.recv(p.a, 4, &[]);
    w.rnics[0].post_send(p.a.qp, &send_wr(1, &[src.sge()])).unwrap();
    w.rnics[0].post_send(p.a.qp, &send_wr(2, &[])).unwrap();
    w.disconnect(p.a, Disconnect::Orderly);
    let late = w.rnics[0].post_send(p.a.qp, &send_wr(3, &[]));
    assert!(matches!(late, Err(RnicError::State { .. })), "{late:?}");
    let late = w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 5, sges: &[] });
    assert!(matches!(late, Err(RnicError::State { .. })), "{late:?}");
    for (id, status) in [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Flushed)] {
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status), (id, status));
    }
    assert!(dst.bytes() == bytes);
    for end in [p.b, p.a] {
        w.ended(end, |cause| cause == DisconnectCause::Orderly);
    }
    // All completions are there when the event is.
    let (sends, recvs) = w.drain(p.a);
    assert!(sends.iter().all(|wc| wc.status == WcStatus::Success), "{sends:?}");
    assert_eq!(sends.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        recvs.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(4, WcStatus::Flushed)]
    );
    for end in [p.a, p.b] {
        assert_eq!(w.rnics[end.node].qp_state(end.qp), Ok(QpState::Error));
        w.rnics[end.node].destroy_qp(end.qp).unwrap();
    }
}

/// Connections that are over with their first message: it may be there before the network's
/// last word of the start-up, and the side that accepted still ends in order, or at once.
pub fn short_lives_end_well<H: Harness>() {
    let mut w = World::<H>::new(2);
    let (_, addr) = w.listen(1, H::local());
    for round in 0..20 {
        let (a, b) = (w.end(0), w.end(1));
        let now = w.now();
        w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
        let (req, _) = w.request(1);
        w.recv(b, 1, &[]);
        let now = w.now();
        w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
        w.established(a);
        w.send(a, &send_wr(2, &[]));
        w.established(b);
        assert_eq!(w.received(b).status, WcStatus::Success);
        let orderly = round % 2 == 0;
        w.disconnect(b, if orderly { Disconnect::Orderly } else { Disconnect::Abort });
        w.ended(b, |cause| cause != DisconnectCause::Broken(libc::ETIMEDOUT));
        w.ended(a, |cause| !orderly || cause == DisconnectCause::Orderly);
    }
}

/// Both sides may ask at the same time.
pub fn orderly_both_at_once<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    w.disconnect(p.a, Disconnect::Orderly);
    w.disconnect(p.b, Disconnect::Orderly);
    for end in [p.a, p.b] {
        w.ended(end, |cause| cause == DisconnectCause::Orderly);
    }
    w.settle();
    assert!(w.cm.iter().all(|q| q.is_empty()), "one event each: {:?}", w.cm);
}

/// An end that has had the peer's last message need not wait for the peer. Nothing of what was posted is
/// lost, and the other end sees an orderly end, whether it has asked for one or not.
pub fn orderly_after_the_last_message<H: Harness>() {
    for both in [false, true] {
        let (mut w, p) = World::<H>::pair();
        let len = w.long(1 << 20);
        let bytes = pattern(3, len);
        let src = w.buf(p.b, bytes.clone(), Access::LOCAL_READ);
        let dst = w.zeros(p.a, len);
        w.recv(p.b, 1, &[]);
        w.recv(p.a, 2, &[dst.sge()]);
        w.recv(p.a, 3, &[]);
        w.send(p.a, &send_wr(4, &[]));
        assert_eq!(w.received(p.b).status, WcStatus::Success);
        w.rnics[1].post_send(p.b.qp, &send_wr(5, &[src.sge()])).unwrap();
        w.disconnect(p.b, Disconnect::Answered);
        let got = w.received(p.a);
        assert_eq!((got.wr_id, got.status), (2, WcStatus::Success), "both: {both}");
        assert!(dst.bytes() == bytes, "both: {both}");
        if both && w.rnics[0].qp_state(p.a.qp) == Ok(QpState::Rts) {
            w.disconnect(p.a, Disconnect::Answered);
        }
        for end in [p.a, p.b] {
            w.ended(end, |cause| cause == DisconnectCause::Orderly);
        }
        assert_eq!(
            w.drain(p.b).0.iter().map(|wc| wc.status).collect::<Vec<_>>(),
            [WcStatus::Success]
        );
        assert_eq!(w.received(p.a).status, WcStatus::Flushed);
        w.settle();
        assert!(w.cm.iter().all(|q| q.is_empty()), "one event each: {:?}", w.cm);
    }
}

/// An abort ends at once here, and soon there; all that was outstanding is flushed.
pub fn abort_flushes_both_sides<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(32 << 20);
    let src = w.buf(p.a, vec![1; len], Access::LOCAL_READ);
    let dst = w.zeros(p.b, len);
    w.recv(p.b, 1, &[dst.sge()]);
    w.recv(p.b, 2, &[]);
    w.recv(p.a, 3, &[]);
    w.rnics[0].post_send(p.a.qp, &send_wr(4, &[src.sge()])).unwrap();
    w.send(p.a, &send_wr(5, &[]));
    w.until("the first bytes", |_| (dst.read::<1>(0) == [1]).then_some(()));
    w.disconnect(p.a, Disconnect::Abort);
    assert_eq!(w.rnics[0].qp_state(p.a.qp), Ok(QpState::Error));
    assert_eq!(w.disconnected(p.a), DisconnectCause::Aborted);
    let (sends, recvs) = w.drain(p.a);
    // A device moves data by itself, and may have been faster than the abort.
    let by_itself = !H::is_software(0) || !H::is_software(1);
    let flushed = |wcs: &[exs::rnic::Wc]| -> Vec<u64> {
        let well = wcs.iter().take_while(|wc| wc.status == WcStatus::Success).count();
        assert!(well == 0 || by_itself, "{wcs:?}");
        assert!(wcs[well..].iter().all(|wc| wc.status == WcStatus::Flushed), "{wcs:?}");
        wcs.iter().map(|wc| wc.wr_id).collect()
    };
    assert_eq!((flushed(&sends), flushed(&recvs)), (vec![4, 5], vec![3]));
    w.ended(p.b, |cause| matches!(cause, DisconnectCause::Broken(errno) if errno != 0));
    assert_eq!(flushed(&w.drain(p.b).1), [1, 2]);
    let again = w.rnics[0].disconnect(p.a.qp, Disconnect::Abort, exs::time::Time::ZERO);
    assert!(matches!(again, Err(RnicError::State { .. })), "{again:?}");
}

/// To destroy a connected QP cuts its connection; it has no events any more.
pub fn destroy_cuts_the_connection<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    w.recv(p.a, 1, &[]);
    w.recv(p.b, 2, &[]);
    w.rnics[0].destroy_qp(p.a.qp).unwrap();
    w.ended(p.b, |cause| matches!(cause, DisconnectCause::Broken(_)));
    assert_eq!(w.received(p.b).status, WcStatus::Flushed);
    w.settle();
    assert!(w.cm[0].is_empty(), "{:?}", w.cm[0]);
    let (sends, recvs) = w.drain(p.a);
    assert!(sends.is_empty() && recvs.is_empty(), "outstanding WRs vanish");
    w.rnics[0].destroy_cq(p.a.scq).unwrap();
}

/// A dead QP takes no work, no windows and no second connection.
pub fn a_dead_qp_takes_nothing<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let buf = w.zeros(p.a, 10);
    w.disconnect(p.a, Disconnect::Abort);
    w.disconnected(p.a);
    let now = w.now();
    let state =
        |r: Result<(), RnicError>| assert!(matches!(r, Err(RnicError::State { .. })), "{r:?}");
    state(w.rnics[0].post_send(p.a.qp, &send_wr(1, &[])));
    state(w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 1, sges: &[] }));
    state(w.rnics[0].bind_mw(p.a.qp, buf.mr, buf.addr(), 1, Access::REMOTE_READ).map(drop));
    state(w.rnics[0].connect(p.a.qp, H::local(), &param(&[]), now));
    w.rnics[0].flush(p.a.qp, now);
    w.settle();
    assert!(w.cm[0].is_empty());
    // The addresses stay known.
    assert!(w.rnics[0].addrs(p.a.qp).is_ok());
}

/// Flushed WRs complete even if they were not signalled.
pub fn flushed_even_if_unsignaled<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let buf = w.zeros(p.a, 100);
    let remote = w.zeros(p.b, 100);
    let sges = [buf.sge()];
    // Never on the wire: there is no doorbell.
    let read = read_wr(1, &sges, remote.addr(), remote.mr.key);
    w.rnics[0].post_send(p.a.qp, &SendWr { signaled: false, ..read }).unwrap();
    let write = write_wr(2, &sges, remote.addr(), remote.mr.key);
    w.rnics[0].post_send(p.a.qp, &SendWr { signaled: false, ..write }).unwrap();
    w.disconnect(p.a, Disconnect::Abort);
    w.disconnected(p.a);
    let sends = w.drain(p.a).0;
    assert_eq!(
        sends.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
        [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]
    );
    assert_eq!(remote.bytes(), [0; 100]);
}

/// A peer that never ends its side, as its program is asleep, cannot hold an
/// orderly end open for ever.
pub fn orderly_close_is_bounded_in_time<H: Harness>() {
    let mut w = World::<H>::new(1);
    if !H::is_software(0) && !w.caps(0).write_imm {
        // On InfiniBand a message still waits for a receive; on iWARP for nothing.
        return skip("a device answers for a program that is asleep, and nothing waits");
    }
    let mut other = World::<H>::new(1);
    let (a, b) = (w.end(0), other.end(0));
    let (_, addr) = other.listen(0, H::local());
    let now = w.now();
    w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
    let req = loop {
        w.step(Duration::from_millis(1));
        other.step(Duration::from_millis(1));
        if let Some(CmEvent::ConnectRequest { req, .. }) = other.cm[0].pop_front() {
            break req;
        }
    };
    let now = other.now();
    other.rnics[0].accept(req, b.qp, &param(&[]), now).unwrap();
    while w.rnics[0].qp_state(a.qp) == Ok(QpState::Connecting) {
        w.step(Duration::from_millis(1));
        other.step(Duration::from_millis(1));
    }
    w.established(a);
    // From here on no thread steps the other world.
    let len = w.long(32 << 20);
    let src = w.buf(a, vec![0; len], Access::LOCAL_READ);
    w.send(a, &send_wr(1, &[src.sge()]));
    w.recv(a, 2, &[]);
    w.disconnect(a, Disconnect::Orderly);
    w.settle();
    assert!(w.cm[0].is_empty(), "too early: {:?}", w.cm[0]);
    assert!(w.rnics[0].next_timeout().is_some());
    w.skip(Duration::from_secs(3600));
    let cause = w.disconnected(a);
    assert_ne!(cause, DisconnectCause::Orderly);
    assert_eq!(w.received(a).status, WcStatus::Flushed);
    assert_eq!(w.completed(a).status, WcStatus::Flushed);
}

/// The connections of an RNIC that is dropped break; their peers get the end.
pub fn an_rnic_that_dies_takes_its_connections<H: Harness>() {
    let mut w = World::<H>::new(3);
    let (a, b) = (w.end(0), w.end(2));
    let p = w.join(a, b, &param(&[]));
    let (c, d) = (w.end(0), w.end(1));
    let q = w.join(c, d, &param(&[]));
    w.rnics.pop();
    w.recv(p.a, 1, &[]);
    // In order as far as TCP can tell, or by a reset: the receive is flushed.
    w.disconnected(p.a);
    assert_eq!(w.received(p.a).status, WcStatus::Flushed);
    w.assert_alive(q);
}

/// Connections that are cut while messages arrive, by either side: the receives of their shared
/// queue come back or serve another connection, but for those that the RNIC says are lost.
pub fn ends_lose_no_receives<H: Harness>() {
    const ROUNDS: usize = 48;
    let mut w = World::<H>::new(2);
    let depth = w.caps(1).max_srq_wr.min(24 + ROUNDS);
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, depth).unwrap();
    let len = 20_000 / H::SHRINK.min(2);
    let mut dst = None;
    // Those that are not with the RNIC.
    let mut back: Vec<u64> = (0..depth as u64).collect();
    for round in 0..=ROUNDS {
        let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
        let src = w.zeros(a, len);
        let sink = dst.get_or_insert_with(|| w.zeros(b, len)).sge();
        for id in back.drain(..) {
            w.recv(b, id, &[sink]);
        }
        let p = w.join_silently(a, b, &param(&[]));
        let lost = w.rnics[1].lost_receives(srq);
        let left = depth.saturating_sub(lost);
        // A queue pair may have no more receives than credits at a time.
        let at_once = if w.caps(1).srq_waits { 12 } else { usize::from(STRICT_CREDITS) };
        let many = if round == ROUNDS { left } else { left.min(at_once) };
        for id in 0..many as u64 {
            w.send(p.a, &SendWr { signaled: false, ..send_wr(id, &[src.sge()]) });
            if round == ROUNDS {
                let wc = w.received(p.b);
                assert_eq!(wc.status, WcStatus::Success);
                back.push(wc.wr_id);
            }
        }
        if round == ROUNDS {
            back.sort_unstable();
            back.dedup();
            return assert_eq!(back.len(), many, "{back:?}");
        }
        for _ in 0..round % 12 {
            w.step(Duration::from_micros(100));
        }
        let by = if round % 2 == 0 { p.a } else { p.b };
        w.disconnect(by, Disconnect::Abort);
        w.disconnected(p.a);
        w.disconnected(p.b);
        for end in [p.a, p.b] {
            w.rnics[end.node].destroy_qp(end.qp).unwrap();
        }
        w.settle();
        back.extend(w.drain(p.b).1.iter().map(|wc| wc.wr_id));
    }
}
