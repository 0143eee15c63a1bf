//! Connections whose receives become more and fewer again.

use std::time::Duration;

use crate::session::sim::Pair;
use crate::session::{Demand, OpError, RecvOpts, SessionConfig, Violation};
use crate::wire::exs::{Hello, Message};

const IDLE: Duration = Duration::from_secs(3);

/// As on an adapter without shared receive queues.
fn cfg() -> SessionConfig {
    SessionConfig {
        credits: 8,
        most_credits: 32,
        dead_after: None,
        ring_idle: None,
        linger: Duration::from_secs(7),
        ..SessionConfig::default()
    }
}

/// Small messages, many at a time, from this side. They lie in the peer's ring.
fn talk(p: &mut Pair, side: usize, count: u64) {
    for op in 0..count {
        p.send(side, 100 + op, 50);
    }
}

/// Takes what `talk` has sent.
fn take(p: &mut Pair, side: usize, count: u64) {
    let got = p.recv(
        side,
        1,
        50 * usize::try_from(count).unwrap(),
        RecvOpts { waitall: true, peek: false },
    );
    p.run_for(Duration::from_millis(100));
    let len = usize::try_from(50 * count).unwrap();
    let done = std::iter::from_fn(|| p.done(side)).find(|d| d.op == 1).expect("it ends");
    assert_eq!((done.bytes, done.result), (50 * count, Ok(())), "all came");
    assert_eq!(got.read(len).len(), len);
}

/// (added, dropped) by this side.
fn counted(p: &Pair, side: usize) -> (u64, u64) {
    let c = p.session(side).counters();
    (c.receives_added, c.receives_dropped)
}

#[test]
fn a_busy_peer_gets_more_and_an_idle_one_gives_them_back() {
    for write_imm in [false, true] {
        let mut p = Pair::new(cfg(), write_imm);
        for round in 1..4 {
            talk(&mut p, 0, 200);
            p.run_for(Duration::from_millis(200));
            assert_eq!(counted(&p, 1), (24 * round, 24 * (round - 1)), "busy");
            assert_eq!(p.receives(1), (32, 24));
            take(&mut p, 1, 200);
            p.pass(IDLE);
            assert_eq!(counted(&p, 1), (24 * round, 24 * round), "idle");
            assert_eq!(p.receives(1), (8, 0));
        }
        assert_eq!(counted(&p, 0), (0, 0), "the other direction was never busy");
        p.close(0, 7);
        p.run();
        assert!(p.session(0).is_finished() && p.session(1).is_finished());
    }
}

#[test]
fn both_sides_give_back_at_the_same_time() {
    let mut p = Pair::new(cfg(), false);
    talk(&mut p, 0, 200);
    talk(&mut p, 1, 200);
    p.run_for(Duration::from_millis(200));
    assert_eq!((counted(&p, 0), counted(&p, 1)), ((24, 0), (24, 0)));
    p.pass(IDLE);
    assert_eq!((counted(&p, 0), counted(&p, 1)), ((24, 24), (24, 24)));
    assert_eq!((p.receives(0), p.receives(1)), ((8, 0), (8, 0)));
    take(&mut p, 0, 200);
    take(&mut p, 1, 200);
    // The credits that are left still do.
    talk(&mut p, 0, 100);
    take(&mut p, 1, 100);
}

/// Data that cross the request use up receives as well, and arrive whole.
#[test]
fn data_while_receives_are_given_back() {
    for wait in 0..40 {
        let mut p = Pair::new(cfg(), false);
        talk(&mut p, 0, 200);
        p.run_for(Duration::from_millis(200));
        take(&mut p, 1, 200);
        p.pass(Duration::from_micros(700_000 + 5 * wait));
        // The request leaves about now.
        talk(&mut p, 0, 30);
        take(&mut p, 1, 30);
        p.pass(IDLE);
        assert_eq!(counted(&p, 1), (24, 24), "{wait}");
        assert_eq!(p.receives(1), (8, 0), "{wait}");
    }
}

#[test]
fn an_end_while_receives_are_given_back() {
    let demand = Demand { idle_within: Duration::from_millis(2), ..Demand::default() };
    for wait in 0..60 {
        for how in 0..3 {
            let mut p = Pair::new(SessionConfig { demand, ..cfg() }, false);
            p.recv(1, 1, 60 * 50, RecvOpts { waitall: true, peek: false });
            talk(&mut p, 0, 60);
            while p.session(1).extra.stage != super::Extent::Retiring {
                p.pass(Duration::from_micros(1));
            }
            p.pass(Duration::from_micros(wait));
            match how {
                0 => p.close(0, 9),
                1 => p.close(1, 9),
                _ => [0, 1].into_iter().for_each(|side| p.fail_queue_pair(side)),
            }
            p.run();
            assert!(p.session(0).is_finished() && p.session(1).is_finished(), "{wait}, {how}");
            let ended = p.done(usize::from(how == 1)).map(|d| d.result);
            assert!(how == 2 || ended == Some(Ok(())) || ended.is_none(), "{ended:?}");
        }
    }
}

/// A peer of an older build never gets more credits, and is never asked to use any.
#[test]
fn an_older_peer_keeps_its_credits() {
    let old = SessionConfig { features: Hello::INVALIDATE | Hello::SEVERAL, ..cfg() };
    for cfgs in [[cfg(), old.clone()], [old.clone(), cfg()], [old.clone(), old]] {
        let mut p = Pair::of(cfgs);
        p.established(1);
        p.established(0);
        for side in [0, 1] {
            talk(&mut p, side, 200);
            p.run_for(Duration::from_millis(200));
            p.pass(IDLE);
            take(&mut p, 1 - side, 200);
            assert_eq!(counted(&p, side), (0, 0));
        }
        assert!(p.session(0).failure().is_none() && p.session(1).failure().is_none());
    }
}

#[test]
fn requests_without_an_offer_are_violations() {
    let plain = SessionConfig { most_credits: 0, ..cfg() };
    let cases = [
        (plain.clone(), cfg(), Message::More),
        (cfg(), plain, Message::Use { messages: 1 }),
        (cfg(), cfg(), Message::Use { messages: 33 }),
    ];
    for (ours, theirs, message) in cases {
        let mut p = Pair::of([ours, theirs]);
        p.established(1);
        p.established(0);
        p.run_for(Duration::from_millis(1));
        p.recv(0, 1, 10, RecvOpts::default());
        p.hear(0, message);
        p.run();
        let done = p.done(0).expect("it ends");
        let is = matches!(
            done.result,
            Err(OpError::Protocol(Violation::Unexpected(_) | Violation::Use { .. }))
        );
        assert!(is, "{message:?}: {done:?}");
    }
}
