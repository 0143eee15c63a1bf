//! Ends that the simulation seldom or never meets.

use std::time::Duration;

use super::cfg;
use crate::rnic::DisconnectCause;
use crate::session::OpError;
use crate::session::sim::Pair;
use crate::wire::exs::Message;

/// Connections that end before both sides have spoken.
#[test]
pub(in crate::session) fn handshakes_that_fail() {
    // Before the queue pair is there: by the program, and by the port.
    for by_port in [true, false] {
        let mut p = Pair::unmet(cfg());
        let now = p.now();
        match by_port {
            true => p.with(0, |s, _| s.handle_disconnected(now, DisconnectCause::Orderly)),
            false => p.with(0, |s, port| s.abort(port, OpError::Aborted)),
        }
        p.settle(0);
        assert!(p.session(0).is_finished());
        p.close(0, 1);
        p.settle(0);
        assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()), "there was nothing");
    }
    // Before READY: by the port, and by the limit of the handshake.
    for by_port in [true, false] {
        let mut p = Pair::unmet(cfg());
        p.established(1);
        let now = p.now();
        if by_port {
            p.with(1, |s, _| s.handle_disconnected(now, DisconnectCause::Orderly));
        }
        p.run();
        assert!(p.session(1).is_finished());
        assert!(p.session(1).failure().is_some());
    }
    // READY overtakes the report of the connection, which changes nothing then.
    let mut p = Pair::unmet(cfg());
    p.hear(1, Message::Ready);
    assert!(p.session(1).is_connected());
    p.established(1);
    assert!(p.session(1).is_connected());
}

/// A second event ends a connection before the first one is dealt with.
#[test]
pub(in crate::session) fn ends_that_cross() {
    // The report of the port arrives before the cut.
    let mut p = Pair::new(cfg(), true);
    let now = p.now();
    p.with(0, |s, _| {
        s.close(now, 1, Duration::ZERO);
        s.handle_disconnected(now, DisconnectCause::Broken(libc::EPIPE));
    });
    p.settle(0);
    assert_eq!(p.session(0).failure(), Some(&OpError::Aborted), "the first reason stays");
    assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()));

    // The port refuses a work request, and the program aborts before the port says why.
    let mut p = Pair::new(cfg(), true);
    p.run();
    p.fail_queue_pair(0);
    p.send(0, 1, 20_000);
    p.settle(0);
    assert!(!p.session(0).is_over(), "the port has not said so");
    assert!(p.done(0).is_none());
    p.with(0, |s, port| s.abort(port, OpError::Aborted));
    p.run();
    assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result == Err(OpError::Aborted)));
    assert!(p.session(0).is_finished());
}

/// A close in order is no failure of the connection, whether one side closes or both do.
#[test]
fn closes_in_order() {
    for both in [false, true] {
        let mut p = Pair::new(cfg(), true);
        p.run();
        p.close(0, 1);
        if both {
            p.close(1, 2);
        }
        p.run();
        for side in [0, 1] {
            assert!(p.session(side).is_over(), "{side}, {both}");
            assert_eq!(p.session(side).failure(), None, "{side}, {both}");
        }
        assert!(p.done(0).is_some_and(|d| d.op == 1 && d.result.is_ok()));
    }
}
