//! Arbitrary bytes as FPDUs into an established engine that has receives,
//! windows, READs and atomic operations under way; split at random, direct placement mixed in.
//! Memory that no window covers must stay as it is, and every request completes.
#![no_main]

use exs::iwarp::{Config, Inline, IwarpEngine, IwarpEvent, RxBuf, SendStep, TxPool, TxWr};
use exs::mem::{Access, AtomicOp, Grant, KeyTable, Region, Scope, Segment, Sgl};
use exs::rnic::SendOp;
use exs::wire::{atomics, ddp, rdmap};
use libfuzzer_sys::fuzz_target;

const CONFIG: Config = Config {
    qp: 1,
    pd: 1,
    crc: false,
    ird: 4,
    ord: 4,
    max_send_wr: 8,
    max_recv_wr: 8,
    uses_srq: false,
    mss: 1460,
    peer_to_peer: false,
};
const WINDOW: u32 = 0x0101_0101;
const SINK: u32 = 0x0202_0202;

fn sgl(seg: &Segment) -> Sgl {
    let mut sgl = Sgl::new();
    sgl.push(seg.clone()).expect("the first of six");
    sgl
}

fn flush(engine: &mut IwarpEngine, pool: &mut TxPool) {
    loop {
        let mut n = 0;
        match engine.poll_tx(pool) {
            SendStep::Gather(gather) => gather.for_each(&mut |chunk| match chunk {
                exs::iwarp::GatherChunk::Bytes(bytes) => n += bytes.len(),
                exs::iwarp::GatherChunk::Memory { len, .. } => n += len,
            }),
            SendStep::Shutdown => {}
            SendStep::Idle | SendStep::File { .. } => return,
        }
        engine.handle_sent(n);
    }
}

/// An initiator that is connected, has sent READs and an atomic operation, and posted receives.
fn engine(pool: &mut TxPool, slot: &Segment, sink: &Segment) -> IwarpEngine {
    let mut engine = IwarpEngine::initiator(CONFIG, b"").expect("a small request");
    flush(&mut engine, pool);
    let reply = b"MPA ID Rep Frame\x18\x02\x00\x04\x00\x04\x00\x04";
    engine.handle_received(0, reply, &mut KeyTable::new(), None);
    assert!(matches!(engine.poll_event(), Some(IwarpEvent::Established { .. })));
    for wr_id in 0..3 {
        let buf = RxBuf { wr_id, sgl: sgl(slot), lkeys: [0; 6] };
        engine.post_recv(buf).expect("room for 8");
    }
    for wr_id in 10..13 {
        let (raddr, rkey) = (0, 0);
        let op = match wr_id {
            11 => SendOp::Atomic { raddr, rkey, op: AtomicOp::FetchAdd(1) },
            _ => SendOp::Read { raddr, rkey },
        };
        let wr = TxWr {
            wr_id,
            op,
            head: Inline::EMPTY,
            sgl: sgl(&sink.slice(0, if wr_id == 11 { 8 } else { 64 }).expect("inside")),
            lkeys: [SINK, 0, 0, 0, 0, 0],
            file: None,
            signaled: true,
        };
        engine.post_send(wr).expect("room for 8");
    }
    flush(&mut engine, pool);
    engine
}

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = ddp::Header::parse(data) {
        let mut out = [0; ddp::UNTAGGED_LEN];
        let n = header.emit(&mut out);
        assert_eq!(ddp::Header::parse(&out[..n]), Ok(header));
    }
    let _ = rdmap::Terminate::parse(data);
    if let Ok(request) = atomics::AtomicRequest::parse(data) {
        assert_eq!(atomics::AtomicRequest::parse(&request.emit()), Ok(request));
        let _ = request.apply(0);
    }
    let _ = atomics::AtomicResponse::parse(data);

    let Some((&split, bytes)) = data.split_first() else { return };
    let (mut pool, mut keys) = (TxPool::new(), KeyTable::new());
    let region = Region::from_vec(vec![0xee; 512]);
    let part = |at| region.segment(at, 64).expect("inside");
    let (slot, sink, window) = (part(64), part(192), part(320));
    let mut access = Access::ALL;
    access.remote_atomic = true;
    let grant =
        Grant { segment: window.clone(), access, scope: Scope::QueuePair(CONFIG.pd, CONFIG.qp) };
    keys.insert(grant, &mut || WINDOW);
    let mut engine = engine(&mut pool, &slot, &sink);

    // The fuzzer cannot know addresses: these stand for them.
    let mut wire = bytes.to_vec();
    for at in 0..wire.len().saturating_sub(12) {
        let key = u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]]);
        let base = match key {
            WINDOW => window.addr(),
            SINK => sink.addr(),
            _ => continue,
        };
        let offset = i64::from(i16::from_be_bytes([wire[at + 10], wire[at + 11]]));
        let to = base.wrapping_add_signed(offset);
        wire[at + 4..at + 12].copy_from_slice(&to.to_be_bytes());
    }

    let mut rest = &wire[..];
    while !rest.is_empty() {
        let n = (usize::from(split) % 97 + 1).min(rest.len());
        let (part, after) = rest.split_at(n);
        rest = after;
        // As a driver does: first what has a place, then the lookahead.
        let mut direct = 0;
        let mut places = Vec::new();
        engine.rx_direct(&mut |seg, off, len| places.push((seg.clone(), off, len)));
        for (seg, off, len) in places {
            let n = len.min(part.len() - direct);
            seg.write_at(off, &part[direct..direct + n]);
            direct += n;
        }
        let result = engine.handle_received(direct, &part[direct..], &mut keys, None);
        assert_eq!(result.consumed, part.len() - direct);
        flush(&mut engine, &mut pool);
    }
    engine.handle_broken(104);
    let mut wcs = Vec::new();
    engine.drain_wcs(&mut wcs);
    for wr_id in [0, 1, 2, 10, 11, 12] {
        assert_eq!(wcs.iter().filter(|wc| wc.wr_id == wr_id).count(), 1, "one end each");
    }
    for gap in [0, 128, 256, 384, 448] {
        let mut bytes = [0; 64];
        part(gap).read_at(0, &mut bytes);
        assert_eq!(bytes, [0xee; 64], "bytes outside of any window");
    }
});
