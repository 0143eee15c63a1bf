//! What peers that stop in the middle hold, and do not hold up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use exs::mem::Access;
use exs::rnic::{
    CmEvent, ConnParam, Disconnect, DisconnectCause, QpState, Rnic, SendWr, WcOp, WcStatus,
};
use exs::wire::ddp::{self, DdpBuffer, Header};
use exs::wire::mpa::{self, FRAME_LEN, FrameKind, FrameRepr};
use exs::wire::rdmap::{Opcode, QN_SEND};
use exs_tests::rnic::world::{End, param, pattern, read_wr, send_wr, write_wr};
use exs_tests::rnic::{Harness, World};

use super::Soft;

/// A connection that dies while it waits for an SRQ buffer does not take along the
/// wake-up of the one behind it.
#[test]
fn the_dead_do_not_hold_up_an_srq() {
    let mut w = World::<Soft>::new(2);
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = w.rnics[1].create_srq(pd, 16).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (a, b) = (w.end(0), w.end_in(1, pd, Some(srq)));
        pairs.push(w.join(a, b, &param(&[])));
    }
    for p in &pairs {
        w.send(p.a, &send_wr(1, &[]));
        w.settle();
    }
    w.rnics[1].destroy_qp(pairs[0].b.qp).unwrap();
    w.rnics[0].destroy_qp(pairs[1].a.qp).unwrap();
    w.disconnected(pairs[1].b);
    for p in &pairs[2..] {
        w.recv(p.b, 7, &[]);
        let wc = w.received(p.b);
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
    }
}

/// A stranger that connects to an end on its own: the MPA request, and the bytes of a SEND. `large`: as
/// for `raw_sink`.
fn raw_sender(w: &mut World<Soft>, end: End, payload: &[u8], large: bool) -> (TcpStream, Vec<u8>) {
    let (_, addr) = w.listen(end.node, Soft::local());
    let mut stream = TcpStream::connect(addr).unwrap();
    let request = FrameRepr {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        reject: false,
        enhanced: false,
        large,
        revision: 1,
        private_len: 0,
    };
    stream.write_all(&request.emit()).unwrap();
    let (req, _) = w.request(end.node);
    let now = w.now();
    w.rnics[end.node].accept(req, end.qp, &param(&[]), now).unwrap();
    let place = DdpBuffer::Untagged { ulp: 0, qn: QN_SEND, msn: 1, mo: 0 };
    let header = Header { last: true, control: Opcode::Send.control(), place };
    let mut ddp = [0; ddp::UNTAGGED_LEN];
    let n = header.emit(&mut ddp);
    let ulpdu = n + payload.len();
    let mut fpdu = u16::try_from(ulpdu).unwrap().to_be_bytes().to_vec();
    fpdu.extend_from_slice(&ddp[..n]);
    fpdu.extend_from_slice(payload);
    fpdu.resize(fpdu.len() + mpa::trailer_len(ulpdu), 0);
    (stream, fpdu)
}

/// Strangers that send a part of a message each, and no more, hold no receive that others wait
/// for. Those of them that go on have lost nothing.
#[test]
fn half_messages_do_not_hold_up_an_srq() {
    let mut w = World::<Soft>::new(2);
    let pd = w.rnics[1].alloc_pd().unwrap();
    let srq = Some(w.rnics[1].create_srq(pd, 16).unwrap());
    let (a, b) = (w.end(0), w.end_in(1, pd, srq));
    let honest = w.join(a, b, &param(&[]));
    let places = [0, 1].map(|_| w.zeros(b, 128));
    for (wr_id, place) in (0..).zip(&places) {
        w.recv(b, wr_id, &[place.sge()]);
    }
    let mut strangers = Vec::new();
    for seed in 0..5 {
        let end = w.end_in(1, pd, srq);
        let payload = pattern(seed, 100);
        let (mut stream, fpdu) = raw_sender(&mut w, end, &payload, true);
        stream.write_all(&fpdu[..50]).unwrap();
        w.settle();
        strangers.push((end, payload, stream, fpdu));
    }
    let take = |w: &mut World<Soft>, end: End, bytes: &[u8]| {
        let wc = w.received(end);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, bytes.len() as u64));
        let place = &places[usize::try_from(wc.wr_id).unwrap()];
        assert_eq!(place.bytes()[..bytes.len()], *bytes);
        w.recv(end, wc.wr_id, &[place.sge()]);
    };
    for round in 0..20 {
        w.send(honest.a, &SendWr { head: b"makes progress", ..send_wr(9, &[]) });
        take(&mut w, honest.b, b"makes progress");
        for (_, _, stream, fpdu) in &mut strangers {
            stream.write_all(&fpdu[50 + round..=50 + round]).unwrap();
        }
    }
    for (end, payload, stream, fpdu) in &mut strangers {
        stream.write_all(&fpdu[70..]).unwrap();
        take(&mut w, *end, payload);
    }
    w.settle();
    assert!(w.cm[1].iter().all(|e| !matches!(e, CmEvent::Disconnected { .. })), "{:?}", w.cm[1]);
}

/// Connects an end to a stranger, with CRC, which reads nothing. `large`: it takes FPDUs that are
/// longer than a segment, as this software does.
pub(super) fn raw_sink(w: &mut World<Soft>, end: End, large: bool) -> TcpStream {
    let listener = TcpListener::bind(Soft::local()).unwrap();
    let (addr, now) = (listener.local_addr().unwrap(), w.now());
    let param = ConnParam { crc: true, ..param(&[]) };
    w.rnics[end.node].connect(end.qp, addr, &param, now).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut stream, _) = w.until("a call", |_| listener.accept().ok());
    stream.set_nonblocking(true).unwrap();
    let mut frame = [0; 64];
    let len = w.until("the request", |_| stream.read(&mut frame).ok());
    // Yes to all that was asked for.
    let request = FrameRepr::parse(frame[..FRAME_LEN].try_into().unwrap(), FrameKind::Request);
    let reply = FrameRepr { kind: FrameKind::Reply, large, ..request.unwrap() };
    frame[..FRAME_LEN].copy_from_slice(&reply.emit());
    stream.write_all(&frame[..len]).unwrap();
    w.established(end);
    stream
}

/// FPDUs for a stranger that takes no long ones are as long as a segment: the kernel is asked for its
/// length, on either side. A segment of the loopback interface holds the whole message.
#[test]
fn fpdus_for_strangers_are_as_long_as_a_segment() {
    let mut w = World::<Soft>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let connected = raw_sink(&mut w, a, false);
    let slot = w.zeros(b, 64);
    w.recv(b, 1, &[slot.sge()]);
    let (mut accepted, first) = raw_sender(&mut w, b, b"go on", false);
    // The side that connects sends first.
    accepted.write_all(&first).unwrap();
    w.received(b);
    accepted.set_nonblocking(true).unwrap();
    for (end, mut stream, before) in [(a, connected, 0), (b, accepted, FRAME_LEN)] {
        let message = w.buf(end, pattern(5, 2000), Access::LOCAL);
        w.send(end, &send_wr(2, &[message.sge()]));
        let mut came = Vec::new();
        let mut bytes = [0; 4096];
        w.until("the head of an FPDU", |_| {
            if let Ok(n) = stream.read(&mut bytes) {
                came.extend_from_slice(&bytes[..n]);
            }
            (came.len() >= before + 2).then_some(())
        });
        let ulpdu = u16::from_be_bytes([came[before], came[before + 1]]);
        assert_eq!(usize::from(ulpdu), ddp::UNTAGGED_LEN + 2000, "one FPDU");
    }
}

/// An end that has had the peer's last message does not wait for the end of the peer's side. The peer sees
/// the end of a stream and no reset, and may end its own side at any time.
#[test]
fn an_end_after_the_last_message_waits_for_no_peer() {
    for (how, waits) in [(Disconnect::Orderly, true), (Disconnect::Answered, false)] {
        let mut w = World::<Soft>::new(1);
        let end = w.end(0);
        w.recv(end, 1, &[]);
        let (mut stream, last) = raw_sender(&mut w, end, b"", false);
        stream.write_all(&last).unwrap();
        assert_eq!(w.received(end).status, WcStatus::Success);
        w.send(end, &send_wr(2, &[]));
        w.disconnect(end, how);
        w.settle();
        let ended = |w: &World<Soft>| w.rnics[0].qp_state(end.qp) == Ok(QpState::Error);
        assert_eq!(ended(&w), !waits, "{how:?}");
        // The reply of the start-up, and an FPDU without data.
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let fpdu = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + mpa::trailer_len(ddp::UNTAGGED_LEN);
        assert_eq!(all.len(), FRAME_LEN + fpdu, "{how:?}");
        drop(stream);
        w.ended(end, |cause| cause == DisconnectCause::Orderly);
        assert_eq!(w.completed(end).status, WcStatus::Success, "{how:?}");
    }
}

/// File WRITEs to peers that do not read keep all buffers there are. Those to others go on,
/// and so do they when their peers read.
#[test]
fn slow_peers_do_not_hold_up_files() {
    const LEN: u64 = 8 << 20;
    let path = std::env::temp_dir().join(format!("exs-slow-{}", std::process::id()));
    let content = pattern(4, 2_000_000);
    std::fs::write(&path, &content).unwrap();
    let file = std::sync::Arc::new(std::fs::File::open(&path).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LEN).unwrap();
    std::fs::remove_file(&path).unwrap();
    let range = |len| Some(exs::rnic::FileRange { file: file.clone().into(), offset: 0, len });
    let mut w = World::<Soft>::new(2);
    let mut slow = Vec::new();
    for i in 0..40 {
        let end = w.end(0);
        let stream = raw_sink(&mut w, end, true);
        w.send(end, &SendWr { file: range(LEN), ..write_wr(i, &[], 1 << 20, 7) });
        slow.push((end, stream));
    }
    w.settle();
    let (a, b) = (w.end(0), w.end(1));
    let p = w.join(a, b, &ConnParam { crc: true, ..param(&[]) });
    let dst = w.zeros(p.b, content.len());
    let wr = write_wr(77, &[], dst.addr(), dst.mr.key);
    w.send(p.a, &SendWr { file: range(content.len() as u64), ..wr });
    let wc = w.completed(p.a);
    assert_eq!((wc.wr_id, wc.status), (77, WcStatus::Success));
    w.hint(p.a, p.b);
    assert!(dst.bytes() == content);

    let (end, stream) = slow.last_mut().unwrap();
    assert_eq!(w.drain(*end).0, [], "its peer has not read");
    let mut bytes = vec![0; 1 << 20];
    let mut out = Vec::new();
    w.until("the slow one's completion", |w| {
        while let Ok(1..) = stream.read(&mut bytes) {}
        w.rnics[0].poll_cq(end.scq, 1, &mut out).unwrap();
        out.pop()
    });
}

/// File WRITEs of many connections under CRC share a few buffers, in turns. A connection
/// that dies in the middle gives its buffers back.
#[test]
fn file_buffers_are_shared() {
    let path = std::env::temp_dir().join(format!("exs-pool-{}", std::process::id()));
    let content = pattern(3, 2_000_000);
    std::fs::write(&path, &content).unwrap();
    let file = std::sync::Arc::new(std::fs::File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut w = World::<Soft>::new(2);
    let mut work = Vec::new();
    for i in 0..40 {
        let (a, b) = (w.end(0), w.end(1));
        let p = w.join(a, b, &ConnParam { crc: true, ..param(&[]) });
        let dst = w.zeros(p.b, content.len());
        let len = content.len() as u64;
        let file = Some(exs::rnic::FileRange { file: file.clone().into(), offset: 0, len });
        w.rnics[0]
            .post_send(p.a.qp, &SendWr { file, ..write_wr(i, &[], dst.addr(), dst.mr.key) })
            .unwrap();
        work.push((p, dst));
    }
    // All begin; then every other one is cut.
    for (p, _) in &work {
        let now = w.now();
        w.rnics[0].flush(p.a.qp, now);
    }
    for (p, _) in work.iter().step_by(2) {
        w.rnics[0].destroy_qp(p.a.qp).unwrap();
    }
    for (p, dst) in work.iter().skip(1).step_by(2) {
        let wc = w.completed(p.a);
        assert_eq!((wc.op, wc.status), (WcOp::Write, WcStatus::Success));
        let sink = w.zeros(p.a, 1);
        w.send(p.a, &read_wr(1, &[sink.sge()], dst.addr(), dst.mr.key));
        assert_eq!(w.completed(p.a).op, WcOp::Read);
        assert!(dst.bytes() == content);
    }
}
