//! Confirmations: their numbers, and whole connections that use them.

use std::time::Duration;

use super::Confirms;
use crate::rnic::{DisconnectCause, TermCode};
use crate::session::sim::Pair;
use crate::session::{OpError, SessionConfig};
use crate::wire::exs::Message;

#[test]
fn numbers_wrap() {
    let mut c = Confirms { sent: u32::MAX - 1, answered: u32::MAX - 1, ..Confirms::default() };
    let before = c.next();
    c.sent = before;
    let after = c.next();
    c.sent = after;
    let waiting = c.next();
    assert_eq!((before, after, waiting), (u32::MAX, 0, 1));
    assert!(![before, after, waiting].iter().any(|n| c.covers(*n)));
    assert!(c.handle_confirmed(waiting).is_err(), "not sent yet");
    c.handle_confirmed(before).unwrap();
    assert_eq!([before, after, waiting].map(|n| c.covers(n)), [true, false, false]);
    assert!(c.handle_confirmed(before).is_err(), "twice");
    c.handle_confirmed(after).unwrap();
    assert_eq!([before, after, waiting].map(|n| c.covers(n)), [true, true, false]);
}

#[test]
fn each_confirm_has_the_next_number() {
    let mut c = Confirms { heard: u32::MAX, ..Confirms::default() };
    assert!(c.handle_confirm(1).is_err() && c.handle_confirm(u32::MAX).is_err());
    c.handle_confirm(0).unwrap();
    c.handle_confirm(1).unwrap();
    assert!(c.handle_confirm(1).is_err());
    assert_eq!((c.heard, c.answer_due), (1, true));
}

/// The side that is written to wants CONFIRMs (and so does the other).
fn pair() -> Pair {
    let cfg =
        SessionConfig { confirm: true, linger: Duration::from_secs(7), ..SessionConfig::default() };
    Pair::new(cfg, false)
}

#[test]
fn many_writes_share_a_confirmation() {
    let mut p = pair();
    let there = p.export(1, 4000);
    p.run();
    for i in 0..20 {
        p.write(i, &there, 200 * i, 200);
    }
    p.run();
    for i in 0..20 {
        let done = p.done(0).expect("it ends");
        assert_eq!((done.op, done.bytes, done.result), (i, 200, Ok(())));
    }
    let mut bytes = vec![0; 4000];
    there.0.seg.read_at(0, &mut bytes);
    assert!(!bytes.contains(&0), "a byte has not arrived");
    assert_eq!(p.session(0).counters().confirms, 1);
}

#[test]
fn those_posted_later_share_the_ones_that_follow() {
    let mut p = pair();
    let there = p.export(1, 4000);
    p.run();
    for i in 0..20 {
        p.write(i, &there, 200 * i, 200);
        p.settle(0);
    }
    // Two are on their way; the rest wait for a third.
    assert_eq!(p.session(0).counters().confirms, 2);
    p.run();
    for i in 0..20 {
        assert!(p.done(0).is_some_and(|d| d.op == i && d.result.is_ok()));
    }
    assert_eq!(p.session(0).counters().confirms, 3);
}

#[test]
fn without_an_answer_it_waits_and_can_be_cancelled() {
    let mut p = pair();
    let there = p.export(1, 100);
    p.run();
    p.sever();
    p.write(1, &there, 0, 100);
    p.run_for(Duration::from_secs(100));
    assert!(p.done(0).is_none(), "the WRITE has left, and that is all that is known");
    let now = p.now();
    assert!(p.with(0, |s, _| s.cancel(now, 1)));
    p.settle(0);
    assert!(p.done(0).is_some_and(|d| d.result == Err(OpError::Cancelled)));
    // A close is bounded, too.
    p.write(2, &there, 0, 100);
    p.close(0, 3);
    p.run_for(Duration::from_secs(100));
    assert!(p.done(0).is_some_and(|d| d.op == 2 && d.result.is_err()));
    assert!(p.done(0).is_some_and(|d| d.op == 3));
}

#[test]
fn a_refusal_is_found_when_the_connection_ends() {
    let mut p = pair();
    let there = p.export(1, 100);
    p.run();
    p.sever();
    p.write(1, &there, 0, 50);
    p.write(2, &there, 50, 50);
    p.run_for(Duration::from_secs(1));
    let (now, cause) =
        (p.now(), DisconnectCause::TerminatedByPeer(TermCode { layer: 1, etype: 1, code: 0 }));
    p.with(0, |s, _| s.handle_disconnected(now, cause));
    p.settle(0);
    let (first, second) = (p.done(0).unwrap(), p.done(0).unwrap());
    assert!(matches!(first.result, Err(OpError::RemoteAccess { .. })), "{first:?}");
    assert!(matches!(second.result, Err(OpError::Reset { .. })), "{second:?}");
}

#[test]
fn an_unasked_confirmation_breaks_the_protocol() {
    let said = [
        Message::Confirm { number: 2 },
        Message::Confirm { number: 0 },
        Message::Confirmed { number: 1 },
        Message::Confirmed { number: 0 },
    ];
    for message in said {
        let mut p = pair();
        p.run();
        p.hear(1, message);
        assert!(p.session(1).is_over(), "{message:?}");
    }
    // Answered once, and not again.
    let mut p = pair();
    let there = p.export(1, 100);
    p.run();
    p.write(1, &there, 0, 100);
    p.run();
    assert!(p.done(0).is_some_and(|d| d.result.is_ok()) && !p.session(0).is_over());
    p.hear(0, Message::Confirmed { number: 1 });
    assert!(p.session(0).is_over());
    // A side that has no use for CONFIRM has none for its sender either.
    let mut p = Pair::new(SessionConfig::default(), false);
    p.run();
    p.hear(1, Message::Confirm { number: 1 });
    assert!(p.session(1).is_over());
}

#[test]
fn a_flood_is_answered_by_the_last_number() {
    let mut p = pair();
    p.run();
    let sent = p.session(1).counters().messages_sent;
    p.sever();
    for number in 1..=24 {
        p.hear(1, Message::Confirm { number });
    }
    // Each is answered while there are credits, and then none is.
    assert!(!p.session(1).is_over());
    assert!(p.session(1).counters().messages_sent - sent <= 32);
    assert_eq!(p.session(1).sided.confirms().heard, 24);
}

/// READs of a few bytes are cut at the border of two of the peer's pages (that no other
/// comes, the network asserts), and end once.
#[test]
fn few_bytes_across_a_page_are_read_by_two() {
    let mut p = pair();
    let there = p.export(1, 3 * 4096);
    // The second border, as the first may be nearer than 20 bytes.
    let start = 2 * 4096 - there.0.seg.addr() % 4096 - 20;
    let bytes: Vec<u8> = (1..=40).collect();
    there.0.seg.write_at(usize::try_from(start).unwrap(), &bytes);
    p.run();
    for len in 1..40usize {
        let (op, frames) = (len as u64, p.frames(1));
        let sink = p.read(op, &there, start, len);
        p.run();
        let done = p.done(0).expect("it ends");
        assert_eq!((done.op, done.bytes, done.result), (op, op, Ok(())));
        assert_eq!(sink.read(len), bytes[..len]);
        let asked = if (21..=32).contains(&len) { 2 } else { 1 };
        assert_eq!(p.frames(1) - frames, asked, "{len} bytes");
    }
}
