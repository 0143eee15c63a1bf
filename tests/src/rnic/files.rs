//! WRITEs whose payload is a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use exs::mem::Access;
use exs::rnic::{ConnParam, FileRange, Rnic, SendWr, WcStatus};

use super::skip;
use super::world::{Harness, Pair, World, param, pattern, send_wr, write_wr};

/// A file with no name.
fn file(bytes: &[u8]) -> Arc<File> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("exs-contract-{pid}-{n}"));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("open");
    std::fs::remove_file(&path).expect("remove");
    file.write_all_at(bytes, 0).expect("write");
    Arc::new(file)
}

fn pair<H: Harness>(crc: bool) -> (World<H>, Pair) {
    let mut w = World::<H>::new(2);
    let (a, b) = (w.end(0), w.end(1));
    let p = w.join(a, b, &ConnParam { crc, ..param(&[]) });
    (w, p)
}

fn written<H: Harness>(crc: bool) {
    let (mut w, p) = pair::<H>(crc);
    if !w.caps(0).file_source {
        return skip("this device cannot send files");
    }
    let content = pattern(1, 3_000_000);
    let f = file(&content);
    let dst = w.zeros(p.b, 3_000_100);
    let tail = w.buf(p.a, b"between".to_vec(), Access::LOCAL_READ);
    // An unaligned part, none, one byte, all; with a head and a segment before.
    for (i, (offset, len)) in
        [(12_345, 1_500_001), (0, 0), (2_999_999, 1), (0, 3_000_000)].into_iter().enumerate()
    {
        let id = i as u64;
        dst.put(0, &vec![0; 3_000_100]);
        let range =
            FileRange { file: Arc::clone(&f).into(), offset: offset as u64, len: len as u64 };
        let sges = [tail.sge()];
        let wr = SendWr {
            head: b"head:",
            file: Some(range),
            ..write_wr(id, &sges, dst.addr(), dst.mr.key)
        };
        w.recv(p.b, id, &[]);
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
        // A WR posted behind it stays behind it.
        let behind = SendWr { head: b"!", ..write_wr(50, &[], dst.addr() + 3_000_050, dst.mr.key) };
        w.rnics[0].post_send(p.a.qp, &behind).unwrap();
        w.send(p.a, &send_wr(51, &[]));
        assert_eq!(w.received(p.b).wr_id, id);
        let got = dst.bytes();
        assert_eq!(got[..12], *b"head:between");
        assert!(got[12..12 + len] == content[offset..offset + len], "{len} at {offset}");
        assert_eq!(got[3_000_050], b'!');
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (id, WcStatus::Success, len as u64 + 12));
        assert_eq!((w.completed(p.a).wr_id, w.completed(p.a).wr_id), (50, 51));
    }
    // Many at once, none signalled but the last.
    for i in 0..40u64 {
        let range = FileRange { file: Arc::clone(&f).into(), offset: i * 1000, len: 1000 };
        let raddr = dst.addr() + i * 1000;
        let wr =
            SendWr { file: Some(range), signaled: i == 39, ..write_wr(i, &[], raddr, dst.mr.key) };
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
    }
    w.recv(p.b, 60, &[]);
    w.send(p.a, &send_wr(61, &[]));
    // An orderly end waits for them all.
    w.disconnect(p.a, exs::rnic::Disconnect::Orderly);
    assert_eq!(w.received(p.b).wr_id, 60);
    assert!(dst.bytes()[..40_000] == content[..40_000]);
    assert_eq!((w.completed(p.a).wr_id, w.completed(p.a).wr_id), (39, 61));
    assert_eq!(w.disconnected(p.a), exs::rnic::DisconnectCause::Orderly);
}

fn shrinks<H: Harness>(crc: bool) {
    let (mut w, p) = pair::<H>(crc);
    if !w.caps(0).file_source {
        return skip("this device cannot send files");
    }
    for have in [0, 1, 61_440, 700_000] {
        let content = pattern(2, 1_000_000);
        let f = file(&content);
        let dst = w.buf(p.b, vec![0xEE; 1_000_000], Access::ALL);
        let range = FileRange { file: Arc::clone(&f).into(), offset: 0, len: 900_000 };
        let wr = SendWr { file: Some(range), ..write_wr(1, &[], dst.addr(), dst.mr.key) };
        w.rnics[0].post_send(p.a.qp, &wr).unwrap();
        f.set_len(have as u64).unwrap();
        w.recv(p.b, 2, &[]);
        w.send(p.a, &send_wr(3, &[]));
        assert_eq!(w.received(p.b).wr_id, 2);
        let wc = w.completed(p.a);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, have as u64));
        assert_eq!(w.completed(p.a).wr_id, 3);
        let got = dst.bytes();
        assert!(got[..have] == content[..have], "the file's part");
        assert!(got[have..900_000].iter().all(|b| *b == 0), "zeros for what is missing");
        assert!(got[900_000..].iter().all(|b| *b == 0xEE), "beyond");
    }
    w.assert_alive(p);
}

/// A file's bytes are written in place, in order with other WRs.
pub fn a_file_is_written<H: Harness>() {
    written::<H>(false);
}

/// The same under CRC.
pub fn a_file_is_written_under_crc<H: Harness>() {
    written::<H>(true);
}

/// A file that is shorter than the WR says: zeros take the place of the rest, and
/// the completion tells.
pub fn a_file_that_shrinks<H: Harness>() {
    shrinks::<H>(false);
}

/// The same under CRC.
pub fn a_file_that_shrinks_under_crc<H: Harness>() {
    shrinks::<H>(true);
}

/// A source that cannot be read fails its WR with the errno, and only that.
pub fn a_file_that_cannot_be_read<H: Harness>() {
    for crc in [false, true] {
        let (mut w, p) = pair::<H>(crc);
        if !w.caps(0).file_source {
            return skip("this device cannot send files");
        }
        let directory = Arc::new(File::open("/").unwrap());
        let dst = w.buf(p.b, vec![0xEE; 1000], Access::ALL);
        let range = FileRange { file: directory.into(), offset: 0, len: 1000 };
        let wr = SendWr { file: Some(range), ..write_wr(1, &[], dst.addr(), dst.mr.key) };
        w.send(p.a, &SendWr { signaled: false, ..wr });
        let wc = w.completed(p.a);
        assert_eq!(wc.wr_id, 1);
        assert!(matches!(wc.status, WcStatus::FileRead(errno) if errno > 0), "{:?}", wc.status);
        w.assert_alive(p);
    }
}
