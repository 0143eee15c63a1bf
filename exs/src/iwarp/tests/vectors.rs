//! FPDUs of all eight opcodes, byte for byte, CRC on and off.

use super::link::*;
use crate::iwarp::*;
use crate::mem::{Access, Grant, Scope};
use crate::rnic::{Disconnect, SendOp, WcStatus};

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|b| u8::from_str_radix(b, 16).unwrap()).collect()
}

fn pair(crc: bool) -> Pair {
    let mut cfg = config(1);
    cfg.crc = crc;
    Pair::new(cfg, config(2), 0)
}

/// Returns the bytes that one WR puts on the wire.
fn posted(pair: &mut Pair, wr: TxWr) -> Vec<u8> {
    pair.a.engine.post_send(wr).unwrap();
    while pair.a.send(&mut pair.rng, Bite::Whole) {}
    pair.a.wire.drain(..).collect()
}

const WRITE: &str = "00 11 c1 40 01 02 03 04 11 12 13 14 15 16 17 18 61 62 63 00 ac 49 98 28";
const READ_REQUEST: &str = "00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 \
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0a 0b 0c 0d 00 00 00 00 00 00 10 00 \
    79 3b ec 09";
const SENDS: [(Option<u32>, bool, &[u8], &str); 4] = [
    (
        None,
        false,
        b"hi",
        "00 14 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 69 00 00 0b 3a b3 92",
    ),
    (
        Some(0xcafe),
        false,
        b"",
        "00 12 41 44 00 00 ca fe 00 00 00 00 00 00 00 02 00 00 00 00 27 6d f9 f2",
    ),
    (
        None,
        true,
        b"x",
        "00 13 41 45 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 78 00 00 00 16 2c 9d 4f",
    ),
    (
        Some(0xf00d),
        true,
        b"1234",
        "00 16 41 46 00 00 f0 0d 00 00 00 00 00 00 00 04 00 00 00 00 31 32 33 34 e1 85 24 53",
    ),
];
const READ_RESPONSE: &str =
    "00 13 c1 42 51 52 53 54 00 00 00 00 00 00 20 00 64 61 74 61 21 00 00 00 84 3c c1 cc";
const BAD_WRITE: &str = "00 0f c1 40 00 00 00 07 00 00 00 00 00 00 00 01 2a 00 00 00 00 00 00 00";
const TERMINATE: &str = "00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 \
    11 00 c0 00 00 0f c1 40 00 00 00 07 00 00 00 00 00 00 00 01 03 43 4b dd";

fn without_crc(vector: &str) -> Vec<u8> {
    let mut bytes = hex(vector);
    let at = bytes.len() - 4;
    bytes[at..].fill(0);
    bytes
}

#[test]
fn requests_of_all_kinds() {
    for crc in [true, false] {
        let expect = |vector| if crc { hex(vector) } else { without_crc(vector) };
        let mut pair = pair(crc);
        let op = SendOp::Write { raddr: 0x1112_1314_1516_1718, rkey: 0x0102_0304 };
        // Half of it is inline, half from memory. The wire does not show the difference.
        let half = segment(b"bc");
        assert_eq!(posted(&mut pair, wr(1, op, b"a", &[half])), expect(WRITE));
        for (invalidate, solicited, bytes, vector) in SENDS {
            let op = SendOp::Send { invalidate, solicited };
            assert_eq!(posted(&mut pair, wr(2, op, bytes, &[])), expect(vector));
        }
        let read = read(3, 0x1000, 0x0a0b_0c0d, &[], 0);
        assert_eq!(posted(&mut pair, read), expect(READ_REQUEST));
        // WRITE and SENDs are complete, the READ is not.
        let ids: Vec<u64> = pair.a.wcs.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [1, 2, 2, 2, 2]);
        assert_eq!(pair.a.engine.outstanding(), (1, 0));
    }
}

#[test]
fn responses_and_terminates() {
    // A READ request of 5 bytes at the address of "data!", answered to 0x2000.
    let source = segment(b"data!");
    let mut pair = pair(true);
    let grant = Grant {
        segment: source.clone(),
        access: Access::REMOTE_READ,
        scope: Scope::QueuePair(PD, 2),
    };
    let key = pair.b.keys.insert(grant, &mut || 0x77);
    let mut request = hex(READ_REQUEST);
    request[20..32].copy_from_slice(&hex("51 52 53 54 00 00 00 00 00 00 20 00"));
    request[32..36].copy_from_slice(&5u32.to_be_bytes());
    request[36..40].copy_from_slice(&key.to_be_bytes());
    request[40..48].copy_from_slice(&source.addr().to_be_bytes());
    let crc = crc32c::crc32c(&request[..48]);
    request[48..].copy_from_slice(&crc.to_le_bytes());
    pair.a.wire.extend(request);
    pair.settle_b();
    assert_eq!(pair.b.wire.drain(..).collect::<Vec<_>>(), hex(READ_RESPONSE));

    // A WRITE through an invalid key.
    let mut write = hex(BAD_WRITE);
    let crc = crc32c::crc32c(&write[..20]);
    write[20..].copy_from_slice(&crc.to_le_bytes());
    pair.a.wire.extend(write);
    pair.settle_b();
    assert_eq!(pair.b.wire.drain(..).collect::<Vec<_>>(), hex(TERMINATE));
    assert!(pair.b.fin, "nothing is sent after a TERMINATE");
}

#[test]
fn vectors_are_received_as_they_are_sent() {
    let mut pair = pair(true);
    let slots: Vec<_> = (0..4).map(|_| segment(&[0; 8])).collect();
    let window = segment(&[0; 4]);
    for (i, slot) in slots.iter().enumerate() {
        pair.b.engine.post_recv(recv(i as u64, std::slice::from_ref(slot))).unwrap();
    }
    for key in [0xcafe, 0xf00d] {
        let scope = Scope::QueuePair(PD, 2);
        let grant = Grant { segment: window.clone(), access: Access::ALL, scope };
        pair.b.keys.insert(grant, &mut || key);
    }
    for (_, _, _, vector) in SENDS {
        pair.a.wire.extend(hex(vector));
    }
    pair.settle_b();
    assert_eq!(pair.b.wcs.len(), 4);
    for (i, (invalidate, solicited, bytes, _)) in SENDS.into_iter().enumerate() {
        let wc = pair.b.wcs[i];
        assert_eq!((wc.wr_id, wc.status), (i as u64, WcStatus::Success));
        assert_eq!((wc.invalidated, wc.solicited), (invalidate, solicited));
        assert_eq!(wc.byte_len, bytes.len() as u64);
        assert_eq!(contents(&slots[i])[..bytes.len()], *bytes);
    }
    assert!(pair.b.keys.is_empty(), "both keys were invalidated");
}

impl Pair {
    /// Lets only `b` work.
    fn settle_b(&mut self) {
        loop {
            let mut moved = self.b.send(&mut self.rng, self.bite);
            moved |= self.b.receive(&mut self.rng, self.bite, &mut self.a.wire, false);
            if !moved {
                return;
            }
        }
    }
}

#[test]
fn fpdus_fit_the_mss_of_peers_of_other_makes() {
    for (mss, crc) in [88, 536, 1448, 1460, 8948, 65_483].into_iter().zip([false, true].repeat(3)) {
        let (mut a, mut b) = (config(1), config(2));
        (a.mss, b.mss, a.crc) = (mss, mss, crc);
        // With CRC nothing may cut an FPDU, and four blocks of SACK shorten a segment by so much.
        let options = if crc { 36 } else { 0 };
        let mut pair = Pair::raw(a, b"", 0);
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        pair.a.wire[16] &= !0x08; // the peer does not know of large FPDUs
        pair.settle();
        pair.b.engine.accept(b, b"").unwrap();
        pair.settle();
        let sink = segment(&vec![0; 100_000]);
        let key = pair.b.window(&sink, Access::REMOTE_WRITE);
        let op = SendOp::Write { raddr: sink.addr(), rkey: key };
        let bytes = posted(&mut pair, wr(1, op, b"", &[segment(&vec![7; 100_000])]));
        let mut rest = &bytes[..];
        while let Some(head) = rest.first_chunk::<2>() {
            let ulpdu = usize::from(u16::from_be_bytes(*head));
            let len = 2 + ulpdu + crate::wire::mpa::trailer_len(ulpdu);
            assert!(len <= mss.max(128) - options, "{len} bytes for an MSS of {mss}");
            rest = &rest[len..];
        }
        pair.a.wire.extend(bytes);
        pair.settle();
        assert_eq!(contents(&sink), vec![7; 100_000]);
    }
}

#[test]
fn large_fpdus_keep_pages_aligned() {
    let mut pair = pair(false);
    let op = SendOp::Write { raddr: 0, rkey: 1 };
    let bytes = posted(&mut pair, wr(1, op, b"", &[segment(&vec![1; 200_000])]));
    let ulpdu = u16::from_be_bytes([bytes[0], bytes[1]]);
    assert_eq!((usize::from(ulpdu) - 14) % 4096, 0);
    assert_eq!(bytes.len(), 200_000 + 4 * (2 + 14 + 4));
}

#[test]
fn small_messages_leave_in_one_gather() {
    let mut pair = pair(true);
    for i in 0..20 {
        pair.a.engine.post_send(wr(i, SEND, &[1; 40], &[])).unwrap();
    }
    let SendStep::Gather(gather) = pair.a.engine.poll_tx(&mut pair.a.pool) else {
        panic!("there is something to send");
    };
    let mut chunks = 0;
    gather.for_each(&mut |_| chunks += 1);
    assert_eq!(chunks, 1, "heads, inline data and trailers lie side by side");
}

#[test]
fn an_idle_engine_is_small() {
    assert!(std::mem::size_of::<IwarpEngine>() <= 2048, "{}", std::mem::size_of::<IwarpEngine>());
    let mut pair = pair(false);
    pair.b.engine.post_recv(recv(1, &[segment(&[0; 8])])).unwrap();
    pair.a.engine.post_send(wr(1, SEND, b"x", &[])).unwrap();
    pair.settle();
    for engine in [&mut pair.a.engine, &mut pair.b.engine] {
        assert!(engine.tx.batch.is_none(), "the batch went back to the pool");
        assert!(engine.startup.is_none());
        engine.trim();
        let spare = engine.wcs.capacity() + engine.rq.capacity() + engine.events.capacity();
        assert_eq!(spare, 0);
    }
}

/// The driver gives a batch back when it has sent what it can, whether it asks for another step or not.
#[test]
fn a_batch_that_has_left_goes_back_to_the_pool() {
    let mut pair = pair(false);
    let Side { engine, pool, .. } = &mut pair.a;
    engine.post_send(wr(1, SEND, b"x", &[])).unwrap();
    let SendStep::Gather(gather) = engine.poll_tx(pool) else {
        panic!("there is something to send")
    };
    let mut len = 0;
    gather.for_each(&mut |chunk| {
        if let GatherChunk::Bytes(bytes) = chunk {
            len += bytes.len();
        }
    });
    engine.handle_sent(len - 1);
    engine.release_batch(pool);
    assert!(engine.tx.batch.is_some(), "a byte has not left");
    engine.handle_sent(1);
    engine.release_batch(pool);
    assert!(engine.tx.batch.is_none());
}

/// An entry takes more memory than most other parts of a connection.
#[test]
fn a_queue_of_few_requests_has_no_spare_room() {
    let mut pair = pair(false);
    let spare = |engine: &IwarpEngine| engine.sq.spare();
    for i in 0..4 {
        pair.a.engine.post_send(wr(i, SEND, b"x", &[])).unwrap();
        assert_eq!(spare(&pair.a.engine), 0, "after {} requests", i + 1);
    }
    pair.a.engine.post_send(wr(4, SEND, b"x", &[])).unwrap();
    assert!(spare(&pair.a.engine) > 0, "a queue that grows on doubles");
}

/// The last bytes wait for the end, which leaves in their segment, if nothing comes between the two.
/// An FPDU that must be a segment of its own does not wait.
#[test]
fn the_last_bytes_leave_with_the_end() {
    for (alone, reads, waits) in [(false, false, true), (true, false, false), (false, true, false)]
    {
        let mut pair = pair(alone);
        pair.a.engine.settled.large = !alone;
        if reads {
            let sink = segment(&[0; 8]);
            let key = pair.a.key(&sink, Access::REMOTE_WRITE, Scope::QueuePair(PD, 1));
            pair.a.engine.post_send(read(1, 0x1000, 7, &[sink], key)).unwrap();
        }
        pair.a.engine.post_send(wr(2, SEND, b"x", &[])).unwrap();
        let more = |pair: &mut Pair| match pair.a.engine.poll_tx(&mut pair.a.pool) {
            SendStep::Gather(gather) => gather.more,
            other => panic!("{other:?}"),
        };
        assert!(!more(&mut pair), "no end is in sight");
        pair.a.engine.disconnect(Disconnect::Orderly);
        assert_eq!(more(&mut pair), waits, "alone {alone}, reads {reads}");
        while pair.a.send(&mut pair.rng, Bite::Whole) {}
        assert_eq!(pair.a.fin, !reads, "the end follows");
    }
}
