//! WRs whose payload is a file.

use std::fs::File;
use std::sync::Arc;

use super::link::*;
use crate::iwarp::*;
use crate::mem::Access;
use crate::rnic::{Disconnect, FileRange, RnicError, SendOp, WcStatus};

/// Makes a file without a name, with these bytes.
fn file(name: &str, bytes: &[u8]) -> Arc<File> {
    let path = std::env::temp_dir().join(format!("exs-iwarp-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Arc::new(file)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap() + 1).collect()
}

fn write(wr_id: u64, head: &[u8], raddr: u64, rkey: u32, file: FileRange) -> TxWr {
    let mut wr = wr(wr_id, SendOp::Write { raddr, rkey }, head, &[]);
    wr.file = Some(file);
    wr
}

#[test]
fn a_file_goes_out_after_head_and_segments() {
    let bytes = pattern(300_000);
    let file = file("whole", &bytes);
    for seed in 0..20 {
        let mut pair = Pair::new(config(1), config(2), seed);
        pair.bite = Bite::UpTo(50_000);
        let sink = segment(&vec![0; 300_000]);
        let key = pair.b.window(&sink, Access::REMOTE_WRITE);
        let range = FileRange { file: Arc::clone(&file).into(), offset: 1000, len: 250_000 };
        let mut wr = write(1, b"head", sink.addr(), key, range);
        wr.sgl = sgl(&[segment(b"segment")]);
        pair.a.engine.post_send(wr).unwrap();
        pair.settle();
        let got = contents(&sink);
        assert_eq!(got[..11], *b"headsegment");
        assert!(got[11..250_011] == bytes[1000..251_000], "seed {seed}");
        assert!(got[250_011..].iter().all(|b| *b == 0));
        assert_eq!(pair.a.wcs[0].byte_len, 250_011);
        assert_eq!(pair.a.wcs[0].status, WcStatus::Success);
    }
}

#[test]
fn a_file_that_ends_early_is_filled_up_with_zeros() {
    for (there, seed) in [(0, 1), (1, 2), (61_436, 3), (61_440, 4), (100_000, 5)] {
        let bytes = pattern(there);
        let file = file("short", &bytes);
        let mut pair = Pair::new(config(1), config(2), seed);
        pair.bite = Bite::UpTo(70_000);
        let sink = segment(&vec![0xee; 200_000]);
        let key = pair.b.window(&sink, Access::REMOTE_WRITE);
        let range = FileRange { file: file.into(), offset: 0, len: 150_000 };
        pair.a.engine.post_send(write(1, b"head", sink.addr(), key, range)).unwrap();
        pair.b.engine.post_recv(recv(9, &[segment(&[0; 8])])).unwrap();
        pair.a.engine.post_send(wr(2, SEND, b"done", &[])).unwrap();
        pair.settle();
        let got = contents(&sink);
        assert_eq!(got[..4], *b"head");
        assert!(got[4..4 + there] == bytes[..]);
        assert!(got[4 + there..150_004].iter().all(|b| *b == 0));
        assert!(got[150_004..].iter().all(|b| *b == 0xee));
        let ends: Vec<_> = pair.a.wcs.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
        assert_eq!(ends, [(1, WcStatus::Success, there as u64 + 4), (2, WcStatus::Success, 4)]);
        assert_eq!(pair.b.wcs[0].byte_len, 4, "the connection goes on");
    }
}

#[test]
fn a_file_that_cannot_be_read_fails_its_request_only() {
    // A directory opens, but does not read.
    let dir = Arc::new(File::open(std::env::temp_dir()).unwrap());
    let mut pair = Pair::new(config(1), config(2), 0);
    let sink = segment(&[0xee; 5000]);
    let key = pair.b.window(&sink, Access::REMOTE_WRITE);
    let range = FileRange { file: dir.into(), offset: 0, len: 5000 };
    let mut bad = write(1, b"", sink.addr(), key, range);
    bad.signaled = false;
    pair.a.engine.post_send(bad).unwrap();
    pair.a.engine.post_send(wr(2, SendOp::Write { raddr: 0, rkey: 0 }, b"", &[])).unwrap();
    pair.settle();
    assert_eq!(pair.a.wcs.len(), 2, "failures complete even if unsignalled");
    assert_eq!(pair.a.wcs[0].status, WcStatus::FileRead(libc::EISDIR));
    assert_eq!(pair.a.wcs[0].byte_len, 0);
    assert_eq!(pair.a.wcs[1].status, WcStatus::Success);
    assert!(contents(&sink).iter().all(|b| *b == 0));
}

#[test]
fn a_file_needs_a_write_without_crc() {
    let file = file("refused", b"x");
    let range = || FileRange { file: Arc::clone(&file).into(), offset: 0, len: 1 };
    let mut cfg = config(1);
    cfg.crc = true;
    let mut pair = Pair::new(cfg, config(2), 0);
    let wr1 = write(1, b"", 0, 1, range());
    assert!(matches!(pair.a.engine.post_send(wr1), Err(RnicError::Unsupported(_))));
    let mut pair = Pair::new(config(1), config(2), 0);
    let mut wr2 = wr(1, SEND, b"", &[]);
    wr2.file = Some(range());
    assert!(matches!(pair.a.engine.post_send(wr2), Err(RnicError::Unsupported(_))));
    let mut wr3 = write(1, b"", 0, 1, range());
    wr3.file = Some(FileRange { len: u64::MAX, ..range() });
    wr3.sgl = sgl(&[segment(b"x")]);
    assert!(matches!(pair.a.engine.post_send(wr3), Err(RnicError::Limit { .. })));
}

#[test]
fn an_abort_in_the_middle_of_a_file_lets_go_of_it() {
    let file = file("abort", &pattern(200_000));
    let mut pair = Pair::new(config(1), config(2), 0);
    pair.bite = Bite::UpTo(1000);
    let range = FileRange { file: Arc::clone(&file).into(), offset: 0, len: 200_000 };
    pair.a.engine.post_send(write(1, b"", 0, 1, range)).unwrap();
    for _ in 0..10 {
        pair.a.send(&mut pair.rng, pair.bite);
    }
    pair.a.engine.disconnect(Disconnect::Abort);
    pair.a.drain();
    assert_eq!(pair.a.wcs[0].status, WcStatus::Flushed);
    assert_eq!(Arc::strong_count(&file), 1, "the file is released");
    assert!(!pair.a.send(&mut pair.rng, pair.bite));
}
