//! One-sided operations: exports, READ, WRITE, and what is refused.

use std::time::Duration;

use exs::{Buffer, EventKind, MemoryRegion, RemoteBuffer, Rights, Socket, SocketType};

use crate::harness::{Env, Ledger, check, pattern};
use crate::skip::skip;

const KINDS: [SocketType; 2] = [SocketType::Stream, SocketType::SeqPacket];

/// The connection still carries bytes.
fn assert_alive(a: &Socket, b: &Socket) {
    a.blocking().send_all(b"alive").unwrap();
    let mut got = [0; 5];
    assert_eq!(b.blocking().recv(&mut got).unwrap(), 5);
    assert_eq!(&got, b"alive");
}

/// The connection is over: everything on it fails.
fn assert_dead(a: &Socket, b: &Socket) {
    for socket in [a, b] {
        let end = socket.blocking().recv(&mut [0; 8]);
        assert!(end.is_err(), "a connection whose peer broke the rules is over: {end:?}");
    }
}

/// A descriptor that was tampered with: another address offset, length, key, or rights.
fn forged(of: &RemoteBuffer, change: impl FnOnce(&mut [u8; 24])) -> RemoteBuffer {
    let mut bytes = of.to_bytes();
    change(&mut bytes);
    RemoteBuffer::from_bytes(&bytes).unwrap()
}

/// There and back, all kinds of memory, small and large, at offsets.
pub fn write_and_read(env: &Env) {
    for ty in KINDS {
        let (a, b) = env.pair(ty);
        for size in [1usize, 100, 70_000, 3_000_000] {
            for registered in [false, true] {
                let memory = if registered {
                    MemoryRegion::new(size + 10).unwrap().buffer(..).unwrap()
                } else {
                    Buffer::from(vec![0; size + 10])
                };
                let export = a.export(memory, Rights::READ_WRITE, None).unwrap();
                let remote = RemoteBuffer::from_bytes(&export.descriptor().to_bytes()).unwrap();
                assert_eq!(remote, export.descriptor());
                assert_eq!(remote.len(), size as u64 + 10);

                let mut ledger = Ledger::new();
                let bytes = pattern(1, 0, size);
                let write = ledger.post("write", |q, t| b.write(q, t, &remote, 5, bytes));
                let event = ledger.wait_ok(write);
                assert_eq!((event.kind(), event.bytes()), (EventKind::Write, size));
                // Its event says that the bytes are there: no message is needed to see them.
                let mut there = vec![0; size];
                export.read_at(5, &mut there).unwrap();
                check(1, 0, &there);

                export.write_at(5, &pattern(2, 0, size)).unwrap();
                let read = ledger.post("read", |q, t| b.read(q, t, &remote, 5, vec![0; size]));
                let event = ledger.wait_ok(read);
                assert_eq!((event.kind(), event.bytes()), (EventKind::Read, size));
                check(2, 0, &event.into_buffer().unwrap());

                let mut edge = [9; 5];
                export.read_at(0, &mut edge).unwrap();
                assert_eq!(edge, [0; 5], "bytes before the offset were written");
                let mut back = export.revoke_blocking().unwrap();
                check(2, 0, &back[5..5 + size]);
                back.widen();
                assert_eq!(back.len(), size + 10);
                ledger.finish();
            }
        }
        assert_alive(&a, &b);
    }
}

/// The blocking twins.
pub fn blocking_twins(env: &Env) {
    let (a, b) = env.streams();
    let export = a.export(vec![0; 1000], Rights::READ_WRITE, None).unwrap();
    let remote = export.descriptor();
    assert_eq!(b.blocking().write(&remote, 10, b"written").unwrap(), 7);
    let mut got = [0; 7];
    assert_eq!(b.blocking().read(&remote, 10, &mut got).unwrap(), 7);
    assert_eq!(&got, b"written");
}

/// A few bytes that lie across the border of two pages, there or here: a device may have
/// a way of its own for them (siw has, and sends wrong ones: EXS keeps off it).
pub fn few_bytes_across_a_page(env: &Env) {
    const PAGE: usize = 4096;
    let (a, b) = env.streams();
    let (there, here) =
        (MemoryRegion::new(2 * PAGE).unwrap(), MemoryRegion::new(2 * PAGE).unwrap());
    let export = a.export(there.buffer(..).unwrap(), Rights::READ_WRITE, None).unwrap();
    let remote = export.descriptor();
    let mut ledger = Ledger::new();
    for len in [2usize, 7, 8, 31, 32, 33, 64] {
        for before in [1, len / 2, len - 1] {
            let (seed, at, mut got) = (len as u64, PAGE - before, vec![0; len]);
            export.write_at(at, &pattern(seed, before, len)).unwrap();
            let read = ledger.post("read", |q, t| b.read(q, t, &remote, at as u64, vec![0; len]));
            check(seed, before, &ledger.wait_ok(read).into_buffer().unwrap());
            // The long WRITE before it keeps the queue busy, as a kernel may send by two ways.
            let mut from = here.buffer(at..at + len).unwrap();
            from.copy_from_slice(&pattern(seed + 100, before, len));
            ledger.post("long", |q, t| b.write(q, t, &remote, 0, vec![0; PAGE - 100]));
            ledger.post("write", |q, t| b.write(q, t, &remote, at as u64, from));
            for mut event in ledger.drain() {
                assert!(event.error().is_none(), "{event:?}");
                drop(event.take_buffer());
            }
            export.read_at(at, &mut got).unwrap();
            check(seed + 100, before, &got);
        }
    }
    ledger.finish();
}

/// Many at once, between messages, in both directions.
pub fn many_in_flight(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let of_a = a.export(vec![0; 200_000], Rights::READ_WRITE, None).unwrap();
    let of_b = b.export(pattern(7, 0, 200_000), Rights::READ_WRITE, None).unwrap();
    for i in 0..100usize {
        let (to, from) = (of_a.descriptor(), of_b.descriptor());
        let at = i as u64 * 2000;
        ledger.post("write", |q, t| b.write(q, t, &to, at, pattern(8, i * 2000, 2000)));
        ledger.post("read", |q, t| a.read(q, t, &from, at, vec![0; 2000]));
        ledger.post("send", |q, t| a.send(q, t, [1; 50]));
    }
    for mut event in ledger.drain() {
        assert!(event.error().is_none(), "{event:?}");
        if event.kind() == EventKind::Read {
            // Tokens count from 1, three for each i.
            let i = usize::try_from(event.token().0).unwrap() / 3;
            check(7, i * 2000, &event.take_buffer().unwrap());
        }
    }
    check(8, 0, &of_a.revoke_blocking().unwrap());
    let mut sent = vec![0; 5000];
    b.blocking().recv_exact(&mut sent).unwrap();
    assert!(sent.iter().all(|&x| x == 1));
    ledger.finish();
}

/// A call that breaks the bounds or rights of its descriptor is refused at home, and does no harm.
pub fn bounds_and_rights_are_refused_at_home(env: &Env) {
    let (a, b) = env.streams();
    let export = a.export(vec![0; 100], Rights::READ, None).unwrap();
    let remote = export.descriptor();
    let mut ledger = Ledger::new();
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (u64::MAX - 50, 100)] {
        let refused = ledger
            .try_post("read", |q, t| b.read(q, t, &remote, offset, vec![5; len]))
            .unwrap_err();
        assert_eq!(refused.error.errno(), libc::EINVAL, "{refused}");
        assert_eq!(refused.buffer.len(), len);
    }
    assert!(ledger.try_post("write", |q, t| b.write(q, t, &remote, 0, vec![1; 10])).is_err());
    assert!(export.read_at(90, &mut [0; 11]).is_err());
    assert!(export.write_at(usize::MAX, &[0; 2]).is_err());
    assert!(a.export(vec![], Rights::READ, None).is_err(), "no byte");
    assert!(a.export(vec![1], Rights::default(), None).is_err(), "no right");
    assert_alive(&a, &b);
    ledger.finish();
}

/// A peer that ignores its descriptor's bounds, rights or key is cut off, before a byte
/// moves; other connections do not notice.
pub fn forged_descriptors_end_the_connection(env: &Env) {
    let (listener, _) = env.listener(SocketType::Stream);
    let (bystander, friend) = env.join(SocketType::Stream, &listener);
    type Forgery = fn(&mut [u8; 24]);
    let forgeries: [(&str, Rights, Forgery); 5] = [
        ("longer", Rights::WRITE, |d| d[8..16].copy_from_slice(&200u64.to_be_bytes())),
        ("before", Rights::WRITE, |d| {
            let addr = u64::from_be_bytes(d[..8].try_into().unwrap()) - 64;
            d[..8].copy_from_slice(&addr.to_be_bytes());
        }),
        ("key", Rights::WRITE, |d| d[17] ^= 0x40),
        ("right to write", Rights::READ, |d| d[23] = 3),
        ("far away", Rights::WRITE, |d| d[..8].copy_from_slice(&0x1000u64.to_be_bytes())),
    ];
    for (what, rights, forge) in forgeries {
        let (a, b) = env.join(SocketType::Stream, &listener);
        let export = a.export(vec![7; 100], rights, None).unwrap();
        let remote = forged(&export.descriptor(), forge);
        let mut ledger = Ledger::new();
        let len = usize::try_from(remote.len()).unwrap();
        let write = ledger.post("write", |q, t| b.write(q, t, &remote, 0, vec![1; len]));
        let event = ledger.wait(write);
        assert!(event.error().is_some(), "{what}: {event:?}");
        assert_dead(&a, &b);
        let back = export.revoke_blocking().unwrap();
        assert!(back.iter().all(|&x| x == 7), "{what}: bytes were written");
        assert_alive(&bystander, &friend);
        ledger.finish();
    }
}

/// As above, for READ.
pub fn a_forged_read_ends_the_connection(env: &Env) {
    let (a, b) = env.streams();
    let export = a.export(vec![7; 100], Rights::WRITE, None).unwrap();
    let remote = forged(&export.descriptor(), |d| d[23] = 3);
    let mut ledger = Ledger::new();
    let read = ledger.post("read", |q, t| b.read(q, t, &remote, 0, vec![1; 100]));
    let event = ledger.wait(read);
    assert_eq!(event.error().map(exs::Error::errno), Some(libc::EACCES), "{event:?}");
    let buffer = event.into_buffer().unwrap();
    assert!(buffer.iter().all(|&x| x != 7), "a byte was read");
    assert_dead(&a, &b);
    ledger.finish();
}

/// An export to one connection is worth nothing on another, even to the same peer.
pub fn an_export_is_of_one_connection(env: &Env) {
    if !env.exports_to_one() {
        return skip("no windows: a key serves all connections");
    }
    let (listener, _) = env.listener(SocketType::Stream);
    let (a, b) = env.join(SocketType::Stream, &listener);
    let (c, d) = env.join(SocketType::Stream, &listener);
    let export = a.export(vec![7; 100], Rights::READ_WRITE, None).unwrap();
    let mut ledger = Ledger::new();
    let remote = export.descriptor();
    let write = ledger.post("write", |q, t| d.write(q, t, &remote, 0, vec![1; 100]));
    assert!(ledger.wait(write).error().is_some(), "by another connection");
    assert_dead(&c, &d);
    assert_alive(&a, &b);
    let write = ledger.post("write", |q, t| b.write(q, t, &remote, 0, vec![2; 100]));
    ledger.wait_ok(write);
    assert_eq!(&export.revoke_blocking().unwrap()[..], [2; 100]);
    ledger.finish();
}

/// An export in one trust group is worth nothing on connections of another, even where
/// keys serve a whole domain.
pub fn an_export_is_of_one_trust_group(env: &Env) {
    let grouped = |name: &str| env.with(|o| o.trust_group = Some(name.to_owned()));
    let (friends, strangers) = (grouped("friends"), grouped("strangers"));
    let (ours, _) = friends.listener(SocketType::Stream);
    let (others, _) = strangers.listener(SocketType::Stream);
    let (a, b) = friends.join(SocketType::Stream, &ours);
    let (c, d) = strangers.join(SocketType::Stream, &others);
    let export = b.export(vec![7; 100], Rights::READ_WRITE, None).unwrap();
    let mut ledger = Ledger::new();
    let remote = export.descriptor();
    let write = ledger.post("write", |q, t| c.write(q, t, &remote, 0, vec![1; 100]));
    assert!(ledger.wait(write).error().is_some(), "by a connection of another group");
    assert_dead(&c, &d);
    assert_alive(&a, &b);
    let write = ledger.post("write", |q, t| a.write(q, t, &remote, 0, vec![2; 100]));
    ledger.wait_ok(write);
    assert_eq!(&export.revoke_blocking().unwrap()[..], [2; 100]);
    ledger.finish();
}

/// After `revoke` the peer is shut out: its next access ends its connection, only that.
pub fn revoked(env: &Env) {
    let (listener, _) = env.listener(SocketType::Stream);
    let (bystander, friend) = env.join(SocketType::Stream, &listener);
    for drop_it in [false, true] {
        let (a, b) = env.join(SocketType::Stream, &listener);
        let export = a.export(vec![0; 100], Rights::READ_WRITE, None).unwrap();
        let other = a.export(vec![0; 100], Rights::READ_WRITE, None).unwrap();
        let remote = export.descriptor();
        b.blocking().write(&remote, 0, b"before").unwrap();
        let mut ledger = Ledger::new();
        if drop_it {
            drop(export);
        } else {
            let revoke = ledger.post("revoke", |q, t| export.revoke(q, t).map_err(|r| r.error));
            let event = ledger.wait_ok(revoke);
            assert_eq!(event.kind(), EventKind::Revoke);
            let buffer = event.into_buffer().expect("the buffer comes back");
            assert_eq!(&buffer[..6], b"before");
        }
        b.blocking().write(&other.descriptor(), 0, b"other").unwrap();
        let read = ledger.post("read", |q, t| b.read(q, t, &remote, 0, vec![0; 6]));
        let event = ledger.wait(read);
        let errno = event.error().expect("shut out").errno();
        assert!(errno == libc::EACCES || !env.tells_reasons(), "{event:?}");
        assert_dead(&a, &b);
        assert_alive(&bystander, &friend);
        ledger.finish();
    }
}

/// A lifetime ends an export without anybody's help.
pub fn a_lifetime_ends(env: &Env) {
    let (a, b) = env.streams();
    let short = Some(Duration::from_millis(50));
    let export = a.export(vec![7; 100], Rights::READ_WRITE, short).unwrap();
    let lasting =
        a.export(vec![7; 100], Rights::READ_WRITE, Some(Duration::from_secs(600))).unwrap();
    let remote = export.descriptor();
    // Used until it fails: the time is its own, not the test's.
    let error = loop {
        b.blocking().read(&lasting.descriptor(), 0, &mut [0; 10]).unwrap();
        match b.blocking().read(&remote, 0, &mut [0; 10]) {
            Ok(n) => assert_eq!(n, 10),
            Err(e) => break e,
        }
    };
    assert!(error.errno() == libc::EACCES || !env.tells_reasons(), "{error}");
    assert_eq!(&export.revoke_blocking().unwrap()[..], [7; 100], "the memory is still ours");
}

/// The peer goes away: operations on its memory end with an error, and our exports'
/// memory comes back.
pub fn the_peer_goes_away(env: &Env) {
    let (a, b) = env.streams();
    let of_a = a.export(vec![1; 1 << 20], Rights::READ_WRITE, None).unwrap();
    let of_b = b.export(vec![2; 100], Rights::READ_WRITE, None).unwrap();
    let remote = of_a.descriptor();
    let mut ledger = Ledger::new();
    for _ in 0..20 {
        ledger.post("read", |q, t| b.read(q, t, &remote, 0, vec![0; 1 << 20]));
    }
    a.abort();
    for event in ledger.drain() {
        let bytes = if event.error().is_none() { 1 << 20 } else { 0 };
        assert!(event.bytes() >= bytes, "{event:?}");
    }
    // If all of them were faster than the end, that is yet to be noticed.
    if ledger.try_post("read", |q, t| b.read(q, t, &remote, 0, vec![0; 8])).is_ok() {
        assert!(ledger.drain().iter().all(|event| event.error().is_some()));
    }
    assert_eq!(of_b.revoke_blocking().unwrap().len(), 100);
    assert_eq!(of_a.revoke_blocking().unwrap().len(), 1 << 20);
    ledger.finish();
}
