//! An access that a peer must not make is refused before a byte moves, and ends only its
//! connection.

use exs::mem::{Access, AccessFault, Key};
use exs::rnic::{
    DisconnectCause, QpState, RecvWr, Rnic, RnicError, SendOp, SendWr, Sge, Wc, WcStatus,
};

use super::world::{Buf, Harness, Pair, World, param, pattern, read_wr, send_wr, write_wr};
use super::{skip, skip_part};

/// A connection to misbehave on, with memory at its target, and a second one
/// between the same two RNICs in the same domains.
struct Scene<H: Harness> {
    w: World<H>,
    p: Pair,
    bystander: Pair,
    src: Buf,
    dst: Buf,
    /// WRs posted behind the bad WR may be delivered all the same: behind a READ,
    /// if the target answers it by itself and not in order.
    overtaken: bool,
}

/// What the target's memory holds before.
const BEFORE: u8 = 0x5A;

fn scene<H: Harness>(access: Access) -> Scene<H> {
    let (mut w, bystander) = World::<H>::pair();
    let a = w.end_in(0, bystander.a.pd, None);
    let b = w.end_in(1, bystander.b.pd, None);
    let p = w.join(a, b, &param(&[]));
    let src = w.buf(p.a, pattern(1, 200_000), Access::ALL);
    let dst = w.buf(p.b, vec![BEFORE; 200_000], access);
    Scene { w, p, bystander, src, dst, overtaken: false }
}

impl<H: Harness> Scene<H> {
    /// Posts what must be refused; then the connection is dead on both sides, the
    /// target's memory is as it was, and the bystander is well. Returns the status of
    /// the WR's completion.
    fn refused(mut self, wr: &SendWr<'_>) -> WcStatus {
        // A receive that must be flushed, and a send behind the bad one.
        self.w.recv(self.p.b, 70, &[]);
        self.w.recv(self.p.a, 71, &[]);
        self.overtaken = matches!(wr.op, SendOp::Read { .. }) && !H::is_software(1);
        self.w.rnics[0].post_send(self.p.a.qp, wr).expect("post_send");
        self.w.send(self.p.a, &send_wr(wr.wr_id + 1, &[]));
        self.ends(wr.wr_id)
    }

    fn ends(mut self, wr_id: u64) -> WcStatus {
        for end in [self.p.a, self.p.b] {
            self.w.ended(end, |cause| {
                !matches!(cause, DisconnectCause::Orderly | DisconnectCause::Aborted)
            });
            assert_eq!(self.w.rnics[end.node].qp_state(end.qp), Ok(QpState::Error));
        }
        let (sends, recvs) = self.w.drain(self.p.a);
        let flushed = recvs.iter().filter(|wc| wc.status == WcStatus::Flushed).count();
        assert_eq!((recvs.len(), flushed), (1, 1), "{recvs:?}");
        assert!(sends.windows(2).all(|s| s[0].wr_id < s[1].wr_id), "{sends:?}");
        let (_, recvs) = self.w.drain(self.p.b);
        let delivered = recvs.iter().any(|wc| wc.status == WcStatus::Success);
        assert!(!delivered || self.overtaken, "{recvs:?}");
        assert!(self.dst.bytes().iter().all(|b| *b == BEFORE), "bytes were placed");
        self.w.assert_alive(self.bystander);
        let wc: Wc = sends.into_iter().find(|wc| wc.wr_id == wr_id).expect("it is signalled");
        if wc.status != WcStatus::Success && !self.w.tells_reasons() {
            // It ended with the connection, and the reason was lost.
            return WcStatus::RemoteAccess;
        }
        wc.status
    }
}

/// A WRITE completes when it has left; if the refusal is faster, it says so.
fn write_outcome(status: WcStatus) {
    assert!(matches!(status, WcStatus::Success | WcStatus::RemoteAccess), "{status:?}");
}

/// A READ that is refused completes with the refusal.
fn read_outcome(status: WcStatus) {
    assert_eq!(status, WcStatus::RemoteAccess);
}

/// A WRITE of one frame that goes one byte too far at the end, or at the start. Of several
/// frames an RNIC may place those inside the bounds, since a tagged message does not say its
/// whole length.
pub fn a_write_out_of_bounds<H: Harness>() {
    for (offset, len) in [(199_001i64, 1000), (199_999, 2), (-1, 1), (-1, 1000), (200_000, 1)] {
        let s = scene::<H>(Access::REMOTE_WRITE);
        let sges = [s.src.part(0, len)];
        let raddr = s.dst.addr().wrapping_add_signed(offset);
        let wr = write_wr(1, &sges, raddr, s.dst.mr.key);
        write_outcome(s.refused(&wr));
    }
}

/// An address whose sum with the length wraps around.
pub fn a_write_that_wraps<H: Harness>() {
    for raddr in [u64::MAX, u64::MAX - 50] {
        let s = scene::<H>(Access::REMOTE_WRITE);
        let sges = [s.src.part(0, 100)];
        let wr = write_wr(1, &sges, raddr, s.dst.mr.key);
        write_outcome(s.refused(&wr));
    }
}

/// A key for reading is no key for writing; one for local use is none at all.
pub fn a_write_without_rights<H: Harness>() {
    for access in [Access::REMOTE_READ, Access::LOCAL, Access::LOCAL_READ] {
        let s = scene::<H>(access);
        let sges = [s.src.part(0, 100)];
        let wr = write_wr(1, &sges, s.dst.addr(), s.dst.mr.key);
        write_outcome(s.refused(&wr));
    }
}

/// Never issued, or revoked.
pub fn a_write_to_a_dead_key<H: Harness>() {
    let mut s = scene::<H>(Access::REMOTE_WRITE);
    let (len, access) = (200_000, Access::REMOTE_WRITE);
    let key = s.w.rnics[1].bind_mw(s.p.b.qp, s.dst.mr, s.dst.addr(), len, access).unwrap();
    s.w.rnics[1].invalidate_mw(s.p.b.qp, key).unwrap();
    assert!(s.w.rnics[1].invalidate_mw(s.p.b.qp, key).is_err(), "twice");
    let (sges, raddr) = ([s.src.sge()], s.dst.addr());
    write_outcome(s.refused(&write_wr(1, &sges, raddr, key)));
    let s = scene::<H>(Access::REMOTE_WRITE);
    let (sges, raddr, key) = ([s.src.part(0, 1)], s.dst.addr(), s.dst.mr.key ^ 1);
    write_outcome(s.refused(&write_wr(1, &sges, raddr, key)));
}

/// A window belongs to one QP, though the others share its domain.
pub fn a_write_to_a_window_of_another_qp<H: Harness>() {
    let mut s = scene::<H>(Access::LOCAL);
    if !s.w.caps(1).windows {
        return skip("no windows: a key serves all of a protection domain");
    }
    let (addr, access) = (s.dst.addr(), Access::REMOTE_WRITE);
    let key = s.w.bind((s.bystander.b, s.bystander.a), &s.dst, s.dst.part(0, 100), access);
    assert!(s.w.rnics[1].invalidate_mw(s.p.b.qp, key).is_err(), "not its window");
    let sges = [s.src.part(0, 100)];
    write_outcome(s.refused(&write_wr(1, &sges, addr, key)));
}

/// A key for writing is no key for reading.
pub fn a_read_without_rights<H: Harness>() {
    for access in [Access::REMOTE_WRITE, Access::LOCAL] {
        let s = scene::<H>(access);
        let sges = [s.src.part(0, 100)];
        let wr = read_wr(1, &sges, s.dst.addr(), s.dst.mr.key);
        read_outcome(s.refused(&wr));
    }
}

/// One byte too far, wrapped, or without a key; and no byte arrives.
pub fn a_read_out_of_bounds<H: Harness>() {
    for (offset, len, flip) in
        [(1, 200_000, 0), (200_000, 1, 0), (u64::MAX, 1, 0), (0, 100, 1), (1 << 63, 5000, 0)]
    {
        let mut s = scene::<H>(Access::ALL);
        let sink = s.w.zeros(s.p.a, 200_000);
        let sges = [sink.part(0, len)];
        let raddr = s.dst.addr().wrapping_add(offset);
        let wr = read_wr(1, &sges, raddr, s.dst.mr.key ^ flip);
        read_outcome(s.refused(&wr));
        assert!(sink.bytes().iter().all(|b| *b == 0));
    }
}

/// Keys of another domain are worth nothing, local or remote.
pub fn a_key_of_another_domain<H: Harness>() {
    let mut s = scene::<H>(Access::ALL);
    let other = s.w.end(1);
    let foreign = s.w.buf(other, vec![BEFORE; 100], Access::ALL);
    let local =
        s.w.rnics[1].post_recv(s.p.b.qp, &RecvWr { wr_id: 1, sges: &[foreign.sge()] }).unwrap_err();
    assert!(matches!(local, RnicError::Memory(AccessFault::InvalidKey { .. })), "{local:?}");
    let (len, access) = (100, Access::ALL);
    let bind = s.w.rnics[1].bind_mw(s.p.b.qp, foreign.mr, foreign.addr(), len, access);
    assert!(bind.is_err(), "{bind:?}");
    let (sges, raddr) = ([s.src.part(0, 100)], foreign.addr());
    write_outcome(s.refused(&write_wr(1, &sges, raddr, foreign.mr.key)));
    assert_eq!(foreign.bytes(), [BEFORE; 100]);
}

/// A SEND longer than the receive it meets.
pub fn a_message_longer_than_the_receive<H: Harness>() {
    for (room, len) in [(10, 11), (70_000, 70_001), (0, 1), (1000, 200_000)] {
        let mut s = scene::<H>(Access::LOCAL);
        let into = s.w.buf(s.p.b, vec![BEFORE; 200_000], Access::LOCAL);
        s.w.recv(s.p.b, 1, &[into.part(0, room)]);
        let sges = [s.src.part(0, len)];
        let (w, p) = (&mut s.w, s.p);
        w.recv(p.a, 71, &[]);
        w.send(p.a, &send_wr(1, &sges));
        let wc = w.received(p.b);
        assert_eq!(wc.wr_id, 1, "{len} into {room}");
        assert_ne!(wc.status, WcStatus::Success, "{len} into {room}");
        if w.tells_reasons() {
            assert_eq!(wc.status, WcStatus::LocalLength, "{len} into {room}");
        }
        assert!(into.bytes()[room..].iter().all(|b| *b == BEFORE), "{len} into {room}");
        let tells = s.w.tells_reasons();
        let status = s.ends(1);
        let named = matches!(status, WcStatus::Success | WcStatus::RemoteInvalidRequest);
        assert!(named || !tells, "{status:?}");
    }
}

/// A SEND that meets no receive, on a QP without SRQ: on iWARP the end; on InfiniBand
/// it waits for one.
pub fn a_message_without_a_receive<H: Harness>() {
    let mut s = scene::<H>(Access::LOCAL);
    if s.w.caps(1).write_imm {
        let (w, p) = (&mut s.w, s.p);
        w.send(p.a, &send_wr(1, &[s.src.sge()]));
        w.settle();
        assert!(w.cm.iter().all(|q| q.is_empty()), "{:?}", w.cm);
        let late = w.zeros(p.b, 200_000);
        w.recv(p.b, 2, &[late.sge()]);
        assert_eq!(w.received(p.b).byte_len, 200_000);
        assert_eq!(w.completed(p.a).status, WcStatus::Success);
        assert!(late.bytes() == s.src.bytes());
        return w.assert_alive(p);
    }
    s.w.recv(s.p.a, 71, &[]);
    s.w.send(s.p.a, &send_wr(1, &[s.src.sge()]));
    s.ends(1);
}

/// A SEND WITH INVALIDATE of a key that is not the sender's to end.
pub fn a_foreign_key_cannot_be_invalidated<H: Harness>() {
    let mut s = scene::<H>(Access::ALL);
    if !s.w.caps(1).windows {
        return skip("no windows: a key serves all of a protection domain");
    }
    let (addr, access) = (s.dst.addr(), Access::REMOTE_WRITE);
    let key = s.w.bind((s.bystander.b, s.bystander.a), &s.dst, s.dst.part(0, 100), access);
    let bystander = s.bystander;
    let op = SendOp::Send { invalidate: Some(key), solicited: false };
    s.w.recv(s.p.a, 71, &[]);
    s.w.recv(s.p.b, 70, &[]);
    s.w.send(s.p.a, &SendWr { op, ..send_wr(1, &[]) });
    for end in [s.p.a, s.p.b] {
        s.w.ended(end, |cause| cause != DisconnectCause::Orderly);
    }
    let (_, recvs) = s.w.drain(s.p.b);
    assert!(recvs.iter().all(|wc| wc.status != WcStatus::Success && wc.invalidated.is_none()));
    // The key still serves its own connection.
    s.w.recv(bystander.b, 1, &[]);
    s.w.send(bystander.a, &SendWr { head: b"ok", ..write_wr(1, &[], addr, key) });
    s.w.send(bystander.a, &send_wr(2, &[]));
    assert_eq!(s.w.received(bystander.b).wr_id, 1);
    assert_eq!(s.dst.read::<2>(0), *b"ok");
}

/// The local side of a WR is checked when it is posted.
pub fn local_memory_is_checked_at_post<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let read_only = w.buf(p.a, vec![0; 100], Access::LOCAL_READ);
    let local = w.buf(p.a, vec![0; 100], Access::LOCAL);
    let bad = |key: Key, addr: u64, len: u64| [Sge { addr, len, lkey: key }];
    let (key, addr) = (local.mr.key, local.addr());
    for (sges, what) in [
        (bad(key ^ 1, addr, 1), "key"),
        (bad(key, addr, 101), "end"),
        (bad(key, addr - 1, 1), "start"),
        (bad(key, u64::MAX, 2), "wrap"),
        (bad(key, addr, u64::MAX), "length"),
    ] {
        let sent = w.rnics[0].post_send(p.a.qp, &send_wr(1, &sges));
        assert!(matches!(sent, Err(RnicError::Memory(_))), "{what}: {sent:?}");
        let posted = w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 1, sges: &sges });
        assert!(matches!(posted, Err(RnicError::Memory(_))), "{what}: {posted:?}");
    }
    let sges = [read_only.sge()];
    let posted = w.rnics[0].post_recv(p.a.qp, &RecvWr { wr_id: 1, sges: &sges });
    assert!(matches!(posted, Err(RnicError::Memory(AccessFault::Rights { .. }))), "{posted:?}");
    if w.rnics[0].caps().read_sink_remote_write {
        let sges = [local.sge()];
        let read = w.rnics[0].post_send(p.a.qp, &read_wr(1, &sges, 0, 1));
        assert!(matches!(read, Err(RnicError::Memory(AccessFault::Rights { .. }))), "{read:?}");
    }
    // A window for writing needs memory that may be written.
    let (mr, addr) = (read_only.mr, read_only.addr());
    assert!(w.rnics[0].bind_mw(p.a.qp, mr, addr, 100, Access::REMOTE_WRITE).is_err());
    assert!(w.rnics[0].bind_mw(p.a.qp, mr, addr, 101, Access::REMOTE_READ).is_err());
    assert!(w.rnics[0].bind_mw(p.a.qp, mr, addr, 100, Access::REMOTE_READ).is_ok());
    w.assert_alive(p);
}

/// A window closed while a WRITE through it is on its way: from that moment on no
/// byte changes, whatever has arrived before.
pub fn a_window_closed_in_mid_write<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(32 << 20);
    let src = w.buf(p.a, vec![0xFF; len], Access::LOCAL_READ);
    let dst = w.zeros(p.b, len);
    let key = w.bind((p.b, p.a), &dst, dst.sge(), Access::REMOTE_WRITE);
    w.send(p.a, &write_wr(1, &[src.sge()], dst.addr(), key));
    w.until("the first bytes", |_| (dst.read::<1>(0) == [0xFF]).then_some(()));
    w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
    let then = dst.bytes();
    if then[len - 1] != 0 {
        assert!(!(H::is_software(0) && H::is_software(1)), "it went through in one step");
        return skip("the device wrote it all before the window could be closed");
    }
    for end in [p.b, p.a] {
        w.ended(end, |cause| cause != DisconnectCause::Orderly);
    }
    assert!(dst.bytes() == then, "bytes came after the window was closed");
}

/// A window closed while it is being READ: the READ fails.
pub fn a_window_closed_in_mid_read<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(32 << 20);
    let src = w.buf(p.b, vec![0xFF; len], Access::LOCAL);
    let sink = w.zeros(p.a, len);
    let key = w.bind((p.b, p.a), &src, src.sge(), Access::REMOTE_READ);
    w.send(p.a, &read_wr(1, &[sink.sge()], src.addr(), key));
    w.until("the first bytes", |_| (sink.read::<1>(0) == [0xFF]).then_some(()));
    w.rnics[1].invalidate_mw(p.b.qp, key).unwrap();
    src.put(0, &vec![0x77; len]);
    let wc = w.completed(p.a);
    assert_eq!(wc.wr_id, 1);
    let by_itself = !H::is_software(0) || !H::is_software(1);
    let stale = sink.bytes().contains(&0x77);
    assert!(!stale, "read after the window was closed");
    if wc.status == WcStatus::Success {
        assert!(by_itself, "nothing of this was in mid READ");
        return skip("the device read it all before the window could be closed");
    }
    w.disconnected(p.a);
    w.disconnected(p.b);
}

/// Memory deregistered under posted and running work is touched no more, and the
/// work completes.
pub fn deregistered_memory_is_left_alone<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    let len = w.long(32 << 20);
    let src = w.buf(p.a, vec![0xFF; len], Access::LOCAL_READ);
    let dst = w.zeros(p.b, len);
    w.recv(p.b, 1, &[dst.sge()]);
    w.recv(p.b, 2, &[]);
    w.send(p.a, &send_wr(1, &[src.sge()]));
    w.until("the first bytes", |_| (dst.read::<1>(0) == [0xFF]).then_some(()));
    w.rnics[1].dereg_mr(dst.mr).unwrap();
    let then = dst.bytes();
    let wc = w.received(p.b);
    assert_eq!(wc.wr_id, 1);
    assert!(dst.bytes() == then, "bytes came after deregistration");
    if wc.status == WcStatus::Success {
        let whole = then.iter().all(|b| *b == 0xFF);
        assert!(whole && !(H::is_software(0) && H::is_software(1)), "it was in mid SEND");
        skip_part("the device had the whole message before the registration ended");
    } else {
        w.disconnected(p.a);
        w.disconnected(p.b);
        assert!(dst.bytes() == then, "bytes came after deregistration");
        assert_eq!(w.received(p.b).status, WcStatus::Flushed);
    }
    // Receives on a QP that is not connected yet.
    let end = w.end(0);
    let buf = w.zeros(end, 10);
    w.recv(end, 1, &[buf.sge()]);
    w.rnics[0].dereg_mr(buf.mr).unwrap();
    let peer = w.end(1);
    let q = w.join_silently(peer, end, &param(&[]));
    w.send(q.a, &SendWr { head: b"x", ..send_wr(1, &[]) });
    let wc = w.received(q.b);
    assert_eq!(wc.wr_id, 1);
    assert_ne!(wc.status, WcStatus::Success);
    assert_eq!(buf.bytes(), [0; 10]);
}
