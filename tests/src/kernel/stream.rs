//! Streams: bytes in order, once each.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use exs::{Buffer, MemoryRegion, OpError, RecvFlags};
use nix::sys::socket::{setsockopt, sockopt};

use super::{Family, Ours, STREAMS, pair, set_nonblocking};
use crate::harness::{Ledger, Rng, check, pattern};

/// Bytes of any sizes, both ways at once, arrive as they were sent.
pub fn order_and_integrity() {
    for (seed, family) in (1..).zip(STREAMS) {
        let ((ours, peer), mut rng) = (pair(family), Rng::new(seed));
        let sizes: Vec<usize> = (0..60).map(|_| rng.size(300_000)).collect();
        let total: usize = sizes.iter().sum();
        let (mut reader, mut writer) = (peer.try_clone().unwrap(), peer);
        let reading = std::thread::spawn(move || {
            let mut got = vec![0; total];
            reader.read_exact(&mut got).unwrap();
            check(seed, 0, &got);
        });
        let writing =
            std::thread::spawn(move || writer.write_all(&pattern(seed + 100, 0, total)).unwrap());
        let mut ledger = Ledger::new();
        let (mut at, mut sends, mut recvs) = (0, Vec::new(), Vec::new());
        for (i, size) in sizes.iter().enumerate() {
            let bytes = pattern(seed, at, *size);
            at += size;
            sends.push(ledger.post("send", |q, t| ours.send(q, t, bytes)));
            let flags = if i % 2 == 0 { RecvFlags::WAITALL } else { RecvFlags::NONE };
            recvs.push(ledger.post("recv", |q, t| ours.recv(q, t, vec![0; *size], flags)));
        }
        let (mut had, mut order) = (0, Vec::new());
        while ledger.outstanding() > 0 {
            let event = ledger.ok();
            order.push(event.token());
            if sends.contains(&event.token()) {
                continue;
            }
            let n = event.bytes();
            had += n;
            check(seed + 100, had - n, &event.into_buffer().unwrap()[..n]);
        }
        let of = |list: &[exs::Token]| {
            order.iter().filter(|t| list.contains(t)).copied().collect::<Vec<_>>()
        };
        assert_eq!((of(&sends), of(&recvs)), (sends.clone(), recvs.clone()), "{family:?}");
        // The bytes that the short receives have left.
        while had < total {
            let left = vec![0; total - had];
            ledger.post("recv", |q, t| ours.recv(q, t, left, RecvFlags::WAITALL));
            let event = ledger.ok();
            check(seed + 100, had, &event.into_buffer().unwrap());
            had = total;
        }
        reading.join().unwrap();
        writing.join().unwrap();
        ledger.finish();
    }
}

/// A receive that wants all of it waits for all of it, or for the end.
pub fn waitall() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let first = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 10], RecvFlags::WAITALL));
        let second = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 10], RecvFlags::WAITALL));
        for part in ["012", "345", "6789ab"] {
            peer.write_all(part.as_bytes()).unwrap();
        }
        assert_eq!(&ledger.wait_ok(first).into_buffer().unwrap()[..], b"0123456789");
        drop(peer);
        let event = ledger.wait_ok(second);
        assert_eq!((event.bytes(), event.eof()), (2, false), "{family:?}");
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 10], RecvFlags::WAITALL));
        let event = ledger.ok();
        assert_eq!((event.bytes(), event.eof()), (0, true), "{family:?}");
        ledger.finish();
    }
}

/// A peek leaves the bytes where they are; a peek with WAITALL waits for all of them, or
/// for the end.
pub fn peek() {
    let all = RecvFlags::NONE.with_waitall(true).with_peek(true);
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        ledger.post("peek", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::PEEK));
        peer.write_all(b"ab").unwrap();
        let event = ledger.ok();
        assert_eq!((event.bytes(), &event.into_buffer().unwrap()[..2]), (2, &b"ab"[..]));
        ledger.post("peek", |q, t| ours.recv(q, t, vec![0; 4], all));
        peer.write_all(b"c").unwrap();
        peer.write_all(b"d").unwrap();
        assert_eq!(&ledger.ok().into_buffer().unwrap()[..], b"abcd", "{family:?}");
        ledger.post("peek", |q, t| ours.recv(q, t, vec![0; 9], all));
        drop(peer);
        assert_eq!(ledger.ok().bytes(), 4, "{family:?}");
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 9], RecvFlags::WAITALL));
        assert_eq!(ledger.ok().bytes(), 4);
        ledger.finish();
    }
}

/// Operations without bytes end in their turn.
pub fn zero_lengths() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        for text in ["", "a", "", "", "bc", ""] {
            ledger.post("send", |q, t| ours.send(q, t, text.to_owned()));
        }
        assert_eq!(ledger.drain().iter().map(exs::Event::bytes).sum::<usize>(), 3);
        let mut text = [0; 3];
        peer.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"abc");
        // With others that wait, so that they are gathered.
        super::fill(ours.get_ref());
        for size in [0, 100_000, 0, 0, 100_000, 0] {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; size]));
        }
        let reading = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
        ledger.drain();
        drop(ours);
        reading.join().unwrap().unwrap();
        let (ours, mut peer) = pair(family);
        ledger.post("recv", |q, t| ours.recv(q, t, Vec::new(), RecvFlags::NONE));
        peer.write_all(b"x").unwrap();
        let event = ledger.ok();
        assert_eq!((event.bytes(), event.eof()), (0, false), "{family:?}");
        ledger.finish();
    }
}

/// Many small buffers are one stretch of bytes.
pub fn vectored() {
    for family in STREAMS {
        let (ours, peer) = pair(family);
        let other = Ours::new(peer.into());
        let mut ledger = Ledger::new();
        let cut = |sizes: &[usize]| {
            let mut at = 0;
            sizes
                .iter()
                .map(|n| {
                    at += n;
                    Buffer::from(pattern(3, at - n, *n))
                })
                .collect::<Vec<_>>()
        };
        let sizes: Vec<usize> = (0..300).map(|i| i % 7 * 10).collect();
        let total: usize = sizes.iter().sum();
        let send = ledger.post("send", |q, t| ours.send_vectored(q, t, cut(&sizes)));
        let room = [1, 0, 5, total - 106, 100].map(|n| Buffer::from(vec![0; n])).into();
        let recv = ledger.post("recv", |q, t| other.recv_vectored(q, t, room, RecvFlags::WAITALL));
        let mut sent = ledger.wait_ok(send);
        assert_eq!((sent.bytes(), sent.take_buffers().len()), (total, 300));
        let mut event = ledger.wait_ok(recv);
        let got: Vec<u8> = event.take_buffers().iter().flat_map(|b| b.to_vec()).collect();
        check(3, 0, &got);
        assert_eq!(got.len(), total, "{family:?}");
        ledger.finish();
    }
}

/// A send may be larger than all buffers of the kernel.
pub fn one_large_send() {
    const SIZE: usize = 24 << 20;
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let reading = std::thread::spawn(move || {
            let mut got = vec![0; SIZE];
            peer.read_exact(&mut got).unwrap();
            check(9, 0, &got);
        });
        let mut ledger = Ledger::new();
        ledger.post("send", |q, t| ours.send(q, t, pattern(9, 0, SIZE)));
        assert_eq!(ledger.ok().bytes(), SIZE);
        reading.join().unwrap();
        ledger.finish();
    }
}

/// Sends leave while no thread dequeues.
pub fn small_sends_are_not_held_back() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        for _ in 0..3 {
            ledger.post("send", |q, t| ours.send(q, t, *b"now"));
            let mut text = [0; 3];
            peer.read_exact(&mut text).unwrap();
        }
        ledger.finish();
    }
}

/// A file of `len` bytes of the stream `seed`.
pub(super) fn file_of(seed: u64, len: usize) -> Arc<File> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("exs-test-kernel-{}-{n}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&pattern(seed, 0, len)).unwrap();
    Arc::new(file)
}

/// A pair whose owner has O_NONBLOCK set, or not: files take another way then.
fn pair_that_waits(family: Family, waits: bool) -> (Ours, File) {
    let (a, b) = family.pair();
    set_nonblocking(&a, !waits);
    (Ours::new(a), File::from(b))
}

/// Parts of files go between sends, in order.
pub fn files() {
    const SIZE: usize = 3 << 20;
    let file = file_of(5, SIZE);
    for (family, waits) in STREAMS.into_iter().flat_map(|f| [(f, true), (f, false)]) {
        let (ours, mut peer) = pair_that_waits(family, waits);
        let mut ledger = Ledger::new();
        let post = |ledger: &mut Ledger, offset: usize, len: usize| {
            let file = Arc::clone(&file);
            ledger.post("file", |q, t| ours.send_file(q, t, file, offset as u64, len as u64))
        };
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            all
        });
        ledger.post("send", |q, t| ours.send(q, t, *b"head"));
        post(&mut ledger, 1000, SIZE - 1000);
        post(&mut ledger, 0, 0);
        ledger.post("send", |q, t| ours.send(q, t, *b"middle"));
        post(&mut ledger, 7, 500_000);
        ledger.post("shutdown", |q, t| ours.shutdown(q, t, Shutdown::Write));
        let sizes: Vec<usize> = ledger.drain().iter().map(exs::Event::bytes).collect();
        assert_eq!(sizes, [4, SIZE - 1000, 0, 6, 500_000, 0]);
        let all = reading.join().unwrap();
        assert_eq!(all.len(), 4 + SIZE - 1000 + 6 + 500_000);
        assert_eq!((&all[..4], &all[SIZE - 996..][..6]), (&b"head"[..], &b"middle"[..]));
        check(5, 1000, &all[4..SIZE - 996]);
        check(5, 7, &all[SIZE - 990..]);
        ledger.finish();
    }
}

/// Several files at once to readers that take their time: each is read from where it was left.
pub fn files_to_a_slow_reader() {
    const SIZE: usize = 12 << 20;
    let mut ledger = Ledger::new();
    let pairs: Vec<_> =
        (1..=4).map(|seed| (seed, pair_that_waits(Family::Unix, seed < 3))).collect();
    let mut readers = Vec::new();
    let mut sockets = Vec::new();
    for (seed, (ours, mut peer)) in pairs {
        let file = file_of(seed, SIZE);
        ledger.post("file", |q, t| ours.send_file(q, t, file, 0, SIZE as u64));
        sockets.push(ours);
        readers.push(std::thread::spawn(move || {
            let (mut at, mut part) = (0, vec![0; 10_000]);
            while at < SIZE {
                let n = peer.read(&mut part).unwrap();
                check(seed, at, &part[..n]);
                at += n;
                std::thread::yield_now();
            }
        }));
    }
    ledger.finish();
    readers.into_iter().for_each(|r| r.join().unwrap());
}

/// A file that is shorter, or cannot be read, is the operation's error and not the end of
/// the connection.
pub fn files_that_fail() {
    files_that_fail_on(true);
    files_that_fail_on(false);
}

fn files_that_fail_on(waits: bool) {
    let (ours, mut peer) = pair_that_waits(Family::Tcp4, waits);
    let mut ledger = Ledger::new();
    let file = file_of(5, 1000);
    ledger.post("file", |q, t| ours.send_file(q, t, Arc::clone(&file), 900, 500));
    let event = ledger.event();
    assert_eq!(event.bytes(), 100);
    let why = event.error().unwrap();
    assert!(matches!(why, exs::Error::Op(OpError::FileTooShort { had: 100, asked: 500 })), "{why}");
    let unreadable = Arc::new(File::options().write(true).open("/dev/null").unwrap());
    ledger.post("file", |q, t| ours.send_file(q, t, unreadable, 0, 5));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::EBADF);
    ledger.post("file", |q, t| ours.send_file(q, t, file, u64::MAX, 5));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::EOVERFLOW);
    ledger.post("send", |q, t| ours.send(q, t, *b"on"));
    let mut got = [0; 102];
    peer.read_exact(&mut got).unwrap();
    check(5, 900, &got[..100]);
    ledger.finish();
}

/// The end of the stream is an event, again and again; sends to a closed peer
/// are errors, without a signal.
pub fn the_end() {
    for family in STREAMS {
        let (ours, peer) = pair(family);
        let mut ledger = Ledger::new();
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
        drop(peer);
        for _ in 0..3 {
            let event = ledger.ok();
            assert_eq!((event.bytes(), event.eof()), (0, true), "{family:?}");
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
        }
        ledger.drain();
        let errno = loop {
            ledger.post("send", |q, t| ours.send(q, t, *b"x"));
            if let Some(e) = ledger.event().error() {
                break e.errno();
            }
        };
        assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "{family:?}: {errno}");
        ledger.finish();
    }
}

/// A peer that resets the connection ends everything with the kernel's reason.
pub fn a_reset_in_the_middle() {
    for family in [Family::Tcp4, Family::Tcp6] {
        let (ours, peer) = pair(family);
        let mut ledger = Ledger::new();
        super::fill(ours.get_ref());
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&peer, sockopt::Linger, &linger).unwrap();
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
        for _ in 0..3 {
            let bytes = vec![0; super::owner::LARGE];
            ledger.post("send", |q, t| ours.send(q, t, bytes));
        }
        drop(peer);
        let mut reasons = Vec::new();
        for event in ledger.drain() {
            // The kernel tells it once; to a receive after that it is the end.
            if event.token() == recv && event.eof() {
                continue;
            }
            let e = event.error().unwrap_or_else(|| panic!("{family:?}: {event:?}")).errno();
            assert!([libc::ECONNRESET, libc::EPIPE].contains(&e), "{family:?}: {e}");
            reasons.push(e);
        }
        assert!(reasons.contains(&libc::ECONNRESET), "{reasons:?}");
        ledger.finish();
    }
}

/// A socket without a connection says so by events.
pub fn not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = Ours::new(listener.into());
    let mut ledger = Ledger::new();
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ENOTCONN);
    ledger.post("send", |q, t| ours.send(q, t, *b"x"));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::EPIPE);
    ledger.finish();
}

/// A shutdown that is posted lets the sends before it leave.
pub fn shutdown_waits_its_turn() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let before = super::fill(ours.get_ref());
        for _ in 0..8 {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; 100_000]));
        }
        let last = ledger.post("shutdown", |q, t| ours.shutdown(q, t, Shutdown::Write));
        ledger.post("send", |q, t| ours.send(q, t, *b"late"));
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), before + 800_000, "{family:?}");
        ledger.wait_ok(last);
        let late = ledger.drain().pop().unwrap();
        assert_eq!(late.error().unwrap().errno(), libc::EPIPE);
        ledger.finish();
    }
}

/// Memory of a region needs no more, and does no harm.
pub fn registered_memory() {
    let (a, b) = Family::Tcp6.pair();
    let (ours, stream) = (Ours::new(a), TcpStream::from(b));
    assert!(stream.as_fd().try_clone_to_owned().is_ok());
    let region = MemoryRegion::new(1 << 20).unwrap();
    let mut ledger = Ledger::new();
    for _ in 0..3 {
        let mut buffer = region.buffer(100..600_000).unwrap();
        buffer.copy_from_slice(&pattern(1, 100, 599_900));
        ledger.post("send", |q, t| ours.send(q, t, buffer));
        let mut got = vec![0; 599_900];
        (&stream).read_exact(&mut got).unwrap();
        check(1, 100, &got);
        let buffer = ledger.ok().into_buffer().unwrap();
        assert!(region.buffer(..200).is_err(), "still leased");
        drop(buffer);
    }
    ledger.finish();
}
