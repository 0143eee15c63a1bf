//! The short way of small messages (`try_send_eager`, `next_eager`), where there is one.

use std::time::Duration;

use exs::mem::Access;
use exs::rnic::{
    CmEvent, Disconnect, DisconnectCause, EagerPayload, EagerRecv, EagerSend, HEAD, Rnic,
    RnicEvent, STRICT_CREDITS, SendOp, SendWr, WcOp, WcStatus,
};
use exs::sys::IoVec;

use super::skip;
use super::world::{Buf, Harness, Pair, World, context_of, param, pattern, send_wr};

/// A connected pair whose second end, on an SRQ, has just received from the first, if the
/// device has eager messages.
fn pair<H: Harness>() -> Option<(World<H>, Pair)> {
    let (mut w, p) = on_an_srq::<H>();
    if w.caps(1).pins {
        skip("messages come to it by receives only");
        return None;
    }
    if pass(&mut w, p, b"first") {
        assert_eq!(take(&mut w, p, 8192).as_deref(), Some(&b"head first"[..]));
        return Some((w, p));
    }
    skip("it has no eager messages");
    None
}

/// The same, whatever the device can do.
fn on_an_srq<H: Harness>() -> (World<H>, Pair) {
    let mut w = World::<H>::new(2);
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, 64).unwrap();
    let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
    let p = w.join(a, b, &param(&[]));
    w.recv(p.b, 7, &[]);
    w.send(p.a, &send_wr(7, &[]));
    assert_eq!(w.received(p.b).wr_id, 7);
    assert_eq!(w.completed(p.a).wr_id, 7);
    assert!(w.rnics[1].next_eager(&mut [0; 8]).is_none(), "nothing has come");
    (w, p)
}

/// Sends "head " and the payload, if that is possible at once, doorbell and all.
fn pass<H: Harness>(w: &mut World<H>, p: Pair, payload: &[u8]) -> bool {
    let mut asked = 0;
    let sent = w.rnics[0].try_send_eager(p.a.qp, &IoVec::new(payload), &mut |head| {
        asked += 1;
        head[..5].copy_from_slice(b"head ");
        5
    });
    assert_eq!(asked == 1, sent.is_taken(), "the header is asked for when it leaves");
    if sent == EagerSend::Batched {
        let now = w.now();
        w.rnics[0].flush(p.a.qp, now);
    }
    sent.is_taken()
}

/// Takes a message, when it comes. The receiver is told what is ready, and no more.
fn take<H: Harness>(w: &mut World<H>, p: Pair, room: usize) -> Option<Vec<u8>> {
    let mut out = vec![0xEE; room];
    let taken = next(w, &mut out)?;
    assert_eq!((taken.qp, taken.context), (p.b.qp, context_of(p.b.rcq)));
    let copied = if matches!(taken.at, EagerPayload::Copied) { taken.len } else { 0 };
    assert!(out[copied..].iter().all(|b| *b == 0xEE), "it writes beyond the message");
    out.truncate(taken.len);
    give_back(w, &taken, &mut out);
    Some(out)
}

fn next<H: Harness>(w: &mut World<H>, out: &mut [u8]) -> Option<EagerRecv> {
    (0..50).find_map(|_| {
        let taken = w.rnics[1].next_eager(out);
        if taken.is_none() {
            sender_goes_on(w);
        }
        taken
    })
}

/// Ends the loan of a message, if it is one, and copies it out before that.
fn give_back<H: Harness>(w: &mut World<H>, taken: &EagerRecv, out: &mut [u8]) {
    if let EagerPayload::Lent(lent) = &taken.at {
        lent.read_at(0, &mut out[..taken.len]);
        w.rnics[1].release_eager(taken.qp);
    }
}

/// Messages that did not leave at once leave.
fn sender_goes_on<H: Harness>(w: &mut World<H>) {
    w.wait(Duration::from_millis(1));
    let now = w.now();
    w.rnics[0].progress(now);
}

/// Messages of all lengths, many times around whatever they lie in: nothing is lost, and
/// neither side has a completion.
pub fn messages_pass_without_completions<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    for n in 0..3000u64 {
        let payload = pattern(n, usize::try_from(n * 37 % 4001).unwrap());
        assert!(pass(&mut w, p, &payload), "{n}");
        let got = take(&mut w, p, 8192).expect("it is there");
        assert!(got[..5] == *b"head " && got[5..] == payload[..], "{n}");
    }
    assert_eq!(take(&mut w, p, 8192), None);
    w.settle();
    let (sends, recvs) = w.drain(p.b);
    assert!(sends.is_empty() && recvs.is_empty());
    let (sends, recvs) = w.drain(p.a);
    assert!(sends.is_empty() && recvs.is_empty());
    w.assert_alive(p);
}

/// A request that finds no room behind messages that were not taken leaves when they are taken,
/// also if its sender went to sleep before the request was posted.
pub fn requests_that_wait_for_room_leave<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    let payload = [7; 4000];
    let passed = (0..100_000).take_while(|_| pass(&mut w, p, &payload)).count();
    let last = w.buf(p.a, vec![8; 4004], Access::LOCAL_READ);
    w.rnics[0].prepare_sleep();
    w.rnics[0].post_send(p.a.qp, &send_wr(1, &[last.sge()])).unwrap();
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    let into = w.zeros(p.b, 8192);
    w.recv(p.b, 3, &[into.sge()]);
    // They come by the short way, or by receives.
    let mut lens = Vec::new();
    while lens.len() <= passed {
        if let Some(message) = take(&mut w, p, 8192) {
            lens.push(message.len());
            continue;
        }
        lens.push(usize::try_from(w.received(p.b).byte_len).unwrap());
        w.recv(p.b, 3, &[into.sge()]);
    }
    assert_eq!(lens.pop(), Some(4004));
    assert!(lens.iter().all(|len| *len == 4005), "{lens:?}");
}

/// The two ways keep one order.
pub fn nothing_is_overtaken<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    w.rnics[0].post_send(p.a.qp, &SendWr { head: b"posted", ..send_wr(1, &[]) }).unwrap();
    assert!(!pass(&mut w, p, b"after what waits for the doorbell"));
    let now = w.now();
    w.rnics[0].flush(p.a.qp, now);
    assert!(pass(&mut w, p, b"second"));
    let into = w.zeros(p.b, 64);
    w.recv(p.b, 3, &[into.sge()]);
    w.recv(p.b, 4, &[into.sge()]);
    // Both come by receives, or the second by the short way: but not before the first.
    let first = w.received(p.b);
    assert_eq!((first.wr_id, first.op, first.byte_len), (3, WcOp::Recv, 6));
    match take(&mut w, p, 64) {
        Some(message) => assert_eq!(message, b"head second"),
        None => assert_eq!(w.received(p.b).byte_len, 11),
    }
}

/// Completions that wait in a queue came before messages that have not been taken out.
pub fn completions_come_first<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    let into = w.zeros(p.b, 64);
    w.recv(p.b, 3, &[into.sge()]);
    assert!(pass(&mut w, p, b"one"));
    let now = w.now();
    w.rnics[1].spin(now);
    w.rnics[1].progress(now);
    // It lies in the receive, or still where it came.
    assert!(pass(&mut w, p, b"two"));
    let early = take(&mut w, p, 64);
    let received = w.drain(p.b).1;
    match received.len() {
        0 => assert_eq!(early.as_deref(), Some(&b"head one"[..])),
        _ => assert_eq!(early, None, "a completion waits"),
    }
    assert_eq!(take(&mut w, p, 64).as_deref(), Some(&b"head two"[..]));
}

/// A payload that does not fit is left to an ordinary SEND: one too long for the device, or for
/// the receiver. A payload of no bytes sends nothing.
pub fn large_messages_are_declined<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    assert!(!pass(&mut w, p, &vec![1; 1 << 20]));
    let silent =
        w.rnics[0].try_send_eager(p.a.qp, &IoVec::new(b"never"), &mut |_: &mut [u8; HEAD]| 0);
    assert_eq!(silent, EagerSend::Declined);
    assert!(pass(&mut w, p, &[9; 100]));
    assert_eq!(take(&mut w, p, 104), None, "105 bytes");
    let into = w.zeros(p.b, 200);
    w.recv(p.b, 5, &[into.sge()]);
    let wc = w.received(p.b);
    assert_eq!((wc.wr_id, wc.byte_len), (5, 105));
    assert!(into.bytes().starts_with(b"head \x09\x09"));
    // A peer that takes nothing out stops the short way, and no more than that.
    let mut passed = 0;
    while pass(&mut w, p, &[3; 1000]) {
        passed += 1;
        assert!(passed < 100_000, "without bounds");
    }
    // Where they do not lie whole, some go the long way.
    let places: Vec<_> = (0..32).map(|_| w.zeros(p.b, 2000)).collect();
    for (i, place) in (0..).zip(&places) {
        w.recv(p.b, i, &[place.sge()]);
    }
    while passed > 0 {
        let mut out = [0; 2000];
        while let Some(taken) = w.rnics[1].next_eager(&mut out) {
            assert_eq!(taken.len, 1005);
            give_back(&mut w, &taken, &mut out);
            passed -= 1;
        }
        w.step(Duration::from_millis(1));
        for wc in w.drain(p.b).1 {
            assert_eq!(wc.byte_len, 1005);
            w.recv(p.b, wc.wr_id, &[places[usize::try_from(wc.wr_id).unwrap()].sge()]);
            passed -= 1;
        }
    }
    sender_goes_on(&mut w);
    assert!(pass(&mut w, p, b"again"));
}

/// Lent bytes stay as they were, however much the sender has to say, until they are given back.
pub fn a_loan_is_not_written_over<H: Harness>() {
    const LEN: usize = 8192;
    let Some((mut w, p)) = pair::<H>() else { return };
    let mut out = [0; LEN + 5];
    if !pass(&mut w, p, &[0; LEN]) {
        return skip("a message of 8 KiB takes the long way");
    }
    let taken = next(&mut w, &mut out).expect("nothing has come");
    if !matches!(taken.at, EagerPayload::Lent(_)) {
        return skip("it lends no messages");
    }
    w.rnics[1].release_eager(taken.qp);
    let mut passed = 0;
    while pass(&mut w, p, &[1; LEN]) {
        passed += 1;
        assert!(passed < 100_000, "without bounds");
    }
    let taken = next(&mut w, &mut out).expect("nothing has come");
    let EagerPayload::Lent(lent) = &taken.at else { panic!("it lies in one piece") };
    while pass(&mut w, p, &[2; LEN]) {
        passed += 1;
        assert!(passed < 100_000, "without bounds");
    }
    sender_goes_on(&mut w);
    lent.read_at(0, &mut out);
    assert!(out.starts_with(b"head ") && out[5..].iter().all(|b| *b == 1), "it was written over");
    w.rnics[1].release_eager(taken.qp);
    sender_goes_on(&mut w);
    assert!(pass(&mut w, p, b"there is room"));
}

/// Messages on a queue pair that is set aside stay where they are until the next round of eager
/// receives begins, where the device does that; others go on, and nothing is lost or overtaken.
pub fn set_aside_messages_stay<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    let (a, b) = (w.end(0), w.end(1));
    let q = w.join(a, b, &param(&[]));
    w.recv(q.b, 7, &[]);
    w.send(q.a, &send_wr(7, &[]));
    assert_eq!((w.received(q.b).wr_id, w.completed(q.a).wr_id), (7, 7));
    for n in 0..3 {
        assert!(pass(&mut w, p, &[n]) && pass(&mut w, q, &[n]), "{n}");
    }
    // The receiver learns of both.
    sender_goes_on(&mut w);
    let (mut came, mut out) = ([Vec::new(), Vec::new()], [0; 64]);
    let mut take_one = |w: &mut World<H>, came: &mut [Vec<u8>; 2]| {
        let taken = next(w, &mut out)?;
        give_back(w, &taken, &mut out);
        let whose = usize::from(taken.qp == q.b.qp);
        came[whose].push(out[5]);
        Some((taken.qp, whose))
    };
    w.rnics[1].resume_eager();
    let (qp, whose) = take_one(&mut w, &mut came).expect("nothing has come");
    assert!(w.rnics[1].pause_eager(qp), "there is another");
    while take_one(&mut w, &mut came).is_some() {}
    assert_eq!(came[whose].len(), if H::SETS_ASIDE { 1 } else { 3 });
    assert_eq!(came[1 - whose].len(), 3);
    w.rnics[1].resume_eager();
    while take_one(&mut w, &mut came).is_some() {}
    assert_eq!(came, [vec![0, 1, 2], vec![0, 1, 2]]);
}

/// A look by system calls finds a message, which can then be taken, and finds the end.
pub fn a_look_finds_messages_and_ends<H: Harness>() {
    let Some((mut w, p)) = pair::<H>() else { return };
    if w.rnics[1].poll_syscall().is_none() {
        return skip("it finds what comes in memory, or in a turn");
    }
    let looks_until = |w: &mut World<H>| {
        let found = (0..200).any(|_| {
            sender_goes_on(w);
            w.rnics[1].poll_syscall() == Some(true)
        });
        assert!(found, "nothing is found");
    };
    for n in 0..100 {
        assert!(pass(&mut w, p, &[n; 40]));
        looks_until(&mut w);
        let message = w.rnics[1].next_eager(&mut [0; 64]).expect("it was found");
        assert_eq!((message.qp, message.len), (p.b.qp, 45));
    }
    w.disconnect(p.a, Disconnect::Abort);
    looks_until(&mut w);
    assert!(w.rnics[1].next_eager(&mut [0; 64]).is_none());
    w.ended(p.b, |cause| cause != DisconnectCause::Orderly);
}

/// An eager message comes by a receive where no thread takes it out: in order, among posted
/// sends, and an orderly end waits for it. The sender gets no completion.
pub fn messages_come_by_receives<H: Harness>() {
    const BURST: u64 = 64;
    let (mut w, p) = World::<H>::pair();
    w.recv(p.b, 0, &[]);
    w.send(p.a, &send_wr(0, &[]));
    assert_eq!((w.received(p.b).wr_id, w.completed(p.a).wr_id), (0, 0));
    let places: Vec<_> = (0..BURST).map(|_| w.zeros(p.b, 300)).collect();
    for round in 0..20u64 {
        for (i, place) in (0..).zip(&places) {
            w.recv(p.b, i, &[place.sge()]);
        }
        let mut expected = Vec::new();
        while expected.len() < places.len() {
            let n = expected.len() as u64;
            let payload =
                pattern(round * BURST + n, usize::try_from((round * 31 + n * 7) % 208).unwrap());
            if n % 16 == 15 {
                w.send(p.a, &SendWr { head: b"head ", ..send_wr(n, &[]) });
                assert_eq!(w.completed(p.a).wr_id, n);
                expected.push(b"head ".to_vec());
            } else if pass(&mut w, p, &payload) {
                expected.push([b"head ", &payload[..]].concat());
            } else if round == 0 && n == 0 {
                return skip("it has no eager messages");
            } else {
                // There is room for some only.
                sender_goes_on(&mut w);
            }
        }
        for (i, want) in (0..).zip(&expected) {
            let wc = w.received(p.b);
            assert_eq!((wc.wr_id, wc.byte_len, wc.op), (i, want.len() as u64, WcOp::Recv));
            assert_eq!(
                places[usize::try_from(i).unwrap()].bytes()[..want.len()],
                want[..],
                "{round}, {i}"
            );
        }
    }
    assert_eq!(w.drain(p.a).0, [], "none was signaled");
    w.recv(p.b, 1, &[places[0].sge()]);
    assert!(pass(&mut w, p, b"last"));
    w.disconnect(p.a, Disconnect::Orderly);
    assert_eq!(w.received(p.b).byte_len, 9);
    w.ended(p.a, |cause| cause == DisconnectCause::Orderly);
    w.ended(p.b, |cause| cause == DisconnectCause::Orderly);
}

/// A message may arrive before the connection is reported: a thread that looks gets the
/// connection first.
pub fn no_message_comes_before_its_connection<H: Harness>() {
    for _ in 0..5 {
        let mut w = World::<H>::new(2);
        if !w.caps(1).pins {
            return skip("messages come to it without receives");
        }
        let pd = w.rnics[1].alloc_pd().unwrap();
        let srq = w.rnics[1].create_srq(pd, 64).unwrap();
        let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
        let (_, addr) = w.listen(1, H::local());
        let now = w.now();
        w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
        let (req, _) = w.request(1);
        w.recv(b, 5, &[]);
        let now = w.now();
        w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
        // From here on the second end does nothing but look.
        let connected = (0..10_000).any(|_| {
            sender_goes_on(&mut w);
            let event = w.rnics[0].poll_event();
            matches!(event, Some(RnicEvent::Cm(CmEvent::Established { .. })))
        });
        assert!(connected, "no connection");
        w.send(a, &send_wr(5, &[]));
        let (mut connected, mut came) = (false, false);
        while !came {
            std::thread::yield_now();
            if w.rnics[1].poll_memory() != Some(true) {
                continue;
            }
            came = w.rnics[1].next_eager(&mut []).is_some();
            assert!(!came || connected, "a message is taken");
            while let Some(event) = w.rnics[1].poll_event() {
                connected |= matches!(event, RnicEvent::Cm(CmEvent::Established { .. }));
            }
            let mut wcs = Vec::new();
            w.rnics[1].poll_cq(b.rcq, 8, &mut wcs).unwrap();
            came |= !wcs.is_empty();
            assert!(wcs.is_empty() || connected, "{wcs:?}");
        }
    }
}

/// Where messages come by receives, a look finds those of plain SENDs in place of
/// completions. Neither overtakes the other, and each receive is reported once.
pub fn receives_are_reported_once<H: Harness>() {
    let (mut w, p) = on_an_srq::<H>();
    if !w.caps(1).pins {
        return skip("messages come to it without receives");
    }
    let target = w.zeros(p.b, 8);
    // The sends of two rounds may be under way.
    let most = 48.min(w.caps(0).max_send_wr / 2);
    // A queue pair may have no more receives than credits at a time.
    let ahead = if w.caps(1).srq_waits { most } else { usize::from(STRICT_CREDITS) };
    let places: Vec<_> = (0..most).map(|_| w.zeros(p.b, 64)).collect();
    let mut told = 0;
    for round in 0..20u8 {
        for (i, place) in (0..).zip(&places) {
            w.recv(p.b, i, &[place.sge()]);
        }
        let (mut expected, mut came) = (Vec::new(), 0);
        while came < places.len() {
            while expected.len() < places.len().min(came + ahead) {
                let sent = send_or_write(
                    &mut w,
                    p,
                    &target,
                    [round, u8::try_from(expected.len()).unwrap()],
                );
                expected.push(sent);
            }
            // No thread sleeps here: a thread that goes to sleep takes messages into its queues first.
            std::thread::yield_now();
            let now = w.now();
            w.rnics[0].progress(now);
            if w.rnics[1].poll_memory() == Some(true) {
                while let Some(taken) = w.rnics[1].next_eager(&mut []) {
                    assert_eq!(
                        (taken.qp, taken.context, taken.len),
                        (p.b.qp, context_of(p.b.rcq), 2)
                    );
                    let EagerPayload::InReceive(id) = taken.at else { panic!("{taken:?}") };
                    assert_eq!(id, came as u64, "one is overtaken");
                    let bytes = places[came].bytes();
                    assert_eq!(expected[came].as_ref().map(|head| &head[..]), Some(&bytes[..2]));
                    (came, told) = (came + 1, told + 1);
                }
                // Of the queue that was waited in before.
                while let Some(event) = w.rnics[1].poll_event() {
                    assert!(matches!(event, RnicEvent::CqReady(_)), "{event:?}");
                }
                for wc in w.drain(p.b).1 {
                    assert_eq!((wc.wr_id, wc.status), (came as u64, WcStatus::Success));
                    assert_eq!(expected[came].is_none(), wc.op == WcOp::RecvWriteImm);
                    came += 1;
                }
            }
        }
    }
    assert!(told > 0, "none of them");
    w.disconnect(p.a, Disconnect::Orderly);
    w.ended(p.b, |cause| cause == DisconnectCause::Orderly);
    assert!(w.rnics[1].next_eager(&mut []).is_none());
}

/// Sends a message of these two bytes, and returns them. Every eighth is a WRITE WITH IMMEDIATE
/// in place of a plain SEND, where the device has it: None.
fn send_or_write<H: Harness>(
    w: &mut World<H>,
    p: Pair,
    target: &Buf,
    head: [u8; 2],
) -> Option<[u8; 2]> {
    if w.caps(1).write_imm && head[1] % 8 == 3 {
        let (raddr, rkey) = (target.addr(), target.mr.key);
        let op = SendOp::WriteImm { raddr, rkey, imm: 9 };
        w.send(p.a, &SendWr { op, head: b"imm", signaled: false, ..send_wr(0, &[]) });
        return None;
    }
    w.send(p.a, &SendWr { head: &head, signaled: false, ..send_wr(0, &[]) });
    Some(head)
}
