//! Connections that threads have borrowed.

use super::{Pair, cfg};
use crate::session::{RecvOpts, SessionConfig, SessionLoan};
use crate::wire::exs::{MAX_HEADER, Message, Piggyback};

/// A connection at rest, whose data went by the rings so far.
fn at_rest(cfg: SessionConfig) -> Pair {
    let mut p = Pair::new(cfg, false);
    for side in [0, 1] {
        p.send(side, 100, 10);
        p.run();
        p.recv(1 - side, 101, 10, RecvOpts::default());
        p.run();
        forget_events(&mut p);
    }
    p
}

fn lend(p: &mut Pair, side: usize) -> Option<SessionLoan> {
    p.with(side, |s, _| s.lend())
}

fn take_back(p: &mut Pair, side: usize, loan: SessionLoan) {
    let now = p.now();
    p.with(side, |s, _| s.end_loan(loan, now));
}

/// A message with these data. None: the session must send it.
fn message(from: &mut SessionLoan, data: &[u8]) -> Option<Vec<u8>> {
    let mut head = [0; MAX_HEADER];
    let len = from.send(u32::try_from(data.len()).unwrap(), &mut head)?;
    Some([&head[..len], data].concat())
}

fn forget_events(p: &mut Pair) {
    while p.done(0).is_some() || p.done(1).is_some() {}
}

#[test]
fn lent_connections_count_as_sessions_do() {
    let small = SessionConfig { ring: 4_000, credits: 8, most_credits: 8, ..cfg() };
    let (mut p, mut lent) = (at_rest(small), 0);
    for turn in 0..100 {
        let mut loans = [0, 1].map(|side| lend(&mut p, side).expect("it rests"));
        let before = [0, 1].map(|side| *p.session(side).counters());
        // A message that would cross the end of the ring is for the session.
        for round in 0.. {
            let data = vec![u8::try_from(round % 251).unwrap(); 1 + (round * 37 + turn) % 200];
            let [a, b] = &mut loans;
            let Some(question) = message(a, &data) else { break };
            assert_eq!(b.receive(&question).expect("it is small"), data);
            let Some(answer) = message(b, &data) else { break };
            assert_eq!(a.receive(&answer).expect("it is small"), data);
            assert!(!a.owes() && !b.owes(), "each answer returns what is owed");
            lent += 1;
        }
        for (side, loan) in loans.into_iter().enumerate() {
            take_back(&mut p, side, loan);
        }
        for (side, was) in before.iter().enumerate() {
            let is = p.session(side).counters();
            assert_eq!(is.messages_sent - was.messages_sent, is.sends - was.sends);
            assert_eq!(is.messages_received - was.messages_received, is.recvs - was.recvs);
            assert_eq!(is.rx_inline - was.rx_inline, is.copied_bytes - was.copied_bytes);
        }
        let [a, b] = [0, 1].map(|side| *p.session(side).counters());
        assert_eq!((a.sends, a.tx_inline), (b.recvs, b.rx_inline));
        assert_eq!((b.sends, b.tx_inline), (a.recvs, a.rx_inline));
        // The sessions go on with the same idea of the credits and of the rings.
        for side in [0, 1] {
            let data = p.send(side, 1, 300);
            p.run();
            let got = p.recv(1 - side, 2, 300, RecvOpts { waitall: true, peek: false });
            p.run();
            assert_eq!(got.read(300), data);
            forget_events(&mut p);
        }
    }
    assert!(lent > 1000, "{lent} questions and answers");
}

#[test]
fn a_loan_ends_where_the_peer_waits() {
    let mut p = at_rest(SessionConfig { credits: 8, most_credits: 8, ..cfg() });
    let [mut a, mut b] = [0, 1].map(|side| lend(&mut p, side).expect("it rests"));
    let (mut sent, mut owes_after) = (0, None);
    while let Some(message) = message(&mut a, b"hello") {
        assert!(b.receive(&message).is_some());
        sent += 1;
        owes_after = owes_after.or(b.owes().then_some(sent));
    }
    assert!(owes_after.is_some_and(|after| after <= 4), "half of the receives: {owes_after:?}");
    assert!((5..=7).contains(&sent), "data leave two credits behind: {sent}");
    [(0, a), (1, b)].into_iter().for_each(|(side, loan)| take_back(&mut p, side, loan));
    let settle = p.now();
    p.with(1, |s, port| s.drive(settle, port));
    p.run();
    assert!(lend(&mut p, 0).is_some(), "the credits are back");
}

#[test]
fn only_a_connection_at_rest_is_lent() {
    let mut p = at_rest(cfg());
    p.send(0, 1, 10);
    p.run();
    assert!(lend(&mut p, 1).is_none(), "data wait");
    p.recv(1, 2, 100, RecvOpts::default());
    p.run();
    p.recv(1, 3, 100_000, RecvOpts::default());
    p.run();
    assert!(lend(&mut p, 1).is_none(), "a receive waits");
    assert!(lend(&mut p, 0).is_none(), "it is advertised");
}

#[test]
fn what_is_no_small_message_is_for_the_session() {
    let mut p = at_rest(cfg());
    let mut loan = lend(&mut p, 0).expect("it rests");
    let mut all = vec![
        (Message::Fin, vec![]),
        (Message::Ping, vec![]),
        (Message::Close, vec![]),
        (Message::Data { direct: true, inline: true, len: 3 }, vec![1; 3]),
        (Message::Data { direct: false, inline: false, len: 3 }, vec![]),
        (Message::Data { direct: false, inline: true, len: 0 }, vec![]),
        (Message::Data { direct: false, inline: true, len: 3 }, vec![1; 4]),
    ];
    all.push((Message::Eager { len: 3 }, vec![1; 3]));
    for (what, data) in all {
        let mut head = [0; MAX_HEADER];
        let len = what.emit(Piggyback { credits: 0, freed: 0 }, &mut head);
        let bytes = [&head[..len], &data].concat();
        assert_eq!(loan.clone().receive(&bytes), None, "{what:?}");
    }
    for back in [Piggyback { credits: 9999, freed: 0 }, Piggyback { credits: 0, freed: 9999 }] {
        let mut head = [0; MAX_HEADER];
        let len = Message::Data { direct: false, inline: true, len: 1 }.emit(back, &mut head);
        assert_eq!(loan.clone().receive(&[&head[..len], &[1]].concat()), None, "{back:?}");
    }
    assert_eq!(message(&mut loan, &[]), None, "no data");
    assert_eq!(message(&mut loan, &vec![1; 100_000]), None, "not small");
}
