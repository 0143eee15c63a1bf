//! Programs that poll a descriptor at which the peer rings, outside of the reactor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use exs::mem::Access;
use exs::rnic::{AttendedEnd, EagerPayload, EagerSend, PolledSleep, Ready, Rnic};
use exs::sys::IoVec;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};

use super::skip;
use super::world::{Harness, Pair, World, send_wr};

/// Bytes of a message that takes its sender several turns.
const LONG: usize = 300_000;
/// More rounds than a peer wakes the leader by messages: from then on it sets bits.
const ROUNDS: usize = 20;

/// A connection whose second end is attended. None: no thread can wait for it.
fn attended<H: Harness>() -> Option<(World<H>, Pair)> {
    let (mut w, p) = World::<H>::pair();
    w.settle();
    w.rnics[1].attend(p.b.qp).then_some((w, p))
}

/// A message comes that is no eager one, so it does not ring at a descriptor. A leader takes it, as it
/// works on the connection for a long message of its own.
fn leader_works<H: Harness>(w: &mut World<H>, p: Pair) {
    let long = w.long(LONG);
    let src = w.buf(p.b, vec![7; long], Access::LOCAL_READ);
    let dst = w.zeros(p.a, long);
    w.recv(p.a, 1, &[dst.sge()]);
    w.recv(p.b, 2, &[]);
    w.send(p.b, &send_wr(1, &[src.sge()]));
    w.send(p.a, &send_wr(2, &[]));
    assert_eq!((w.received(p.a).wr_id, w.received(p.b).wr_id), (1, 2));
    assert_eq!((w.completed(p.b).wr_id, w.completed(p.a).wr_id), (1, 2));
    w.settle();
}

/// Sends an eager message. False if the device has none.
fn send_eager<H: Harness>(w: &mut World<H>, p: Pair) -> bool {
    let sent = w.rnics[0].try_send_eager(p.a.qp, &IoVec::new(b"payload"), &mut |head| {
        head[..4].copy_from_slice(b"head");
        4
    });
    if sent == EagerSend::Batched {
        let now = w.now();
        w.rnics[0].flush(p.a.qp, now);
    }
    sent.is_taken()
}

/// The attendant comes, and takes the eager message.
fn attendant_takes<H: Harness>(w: &mut World<H>, p: Pair) {
    w.rnics[1].wake_attended(p.b.qp, AttendedEnd::Ready(Ready::default()));
    let mut out = [0; 64];
    let taken = w.rnics[1].next_eager(&mut out).expect("an eager message");
    assert!(matches!(taken.at, EagerPayload::Copied));
    assert_eq!(&out[..taken.len], b"headpayload");
}

fn take_message(end: &OwnedFd) -> bool {
    match recv(end.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN) => false,
        got => got.is_ok(),
    }
}

/// A program that polls a descriptor is rung after the leader has worked.
pub fn a_polled_descriptor_rings_after_work_of_the_leader<H: Harness>() {
    let Some((mut w, p)) = attended::<H>() else { return skip("no thread can wait for it") };
    if !w.rnics[1].can_sleep_polled(p.b.qp) {
        return skip("its peers ring at no descriptor");
    }
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let (shown, lent) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC).unwrap();
    for round in 0..ROUNDS {
        assert_eq!(w.rnics[1].sleep_polled(p.b.qp, lent.as_fd()), PolledSleep::Asleep, "{round}");
        leader_works(&mut w, p);
        assert!(!take_message(&shown), "a posted message rings for the leader alone");
        assert!(send_eager(&mut w, p));
        assert!(take_message(&shown), "round {round}: an eager message does not ring");
        attendant_takes(&mut w, p);
    }
    w.assert_alive(p);
}
