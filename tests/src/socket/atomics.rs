//! Atomic operations on exported memory.

use std::collections::BTreeSet;

use exs::{
    AtomicWords, Atomics, Completion, Error, EventKind, Export, MemoryRegion, RemoteBuffer, Rights,
    Socket, SocketType,
};

use crate::harness::{Env, Ledger};
use crate::skip::skip;

/// Exports words that are 0.
fn words(socket: &Socket, count: usize, rights: Rights) -> Export {
    let memory = MemoryRegion::new(8 * count).unwrap().buffer(..).unwrap();
    socket.export(memory, rights, None).unwrap()
}

/// The value of a word when no operation is under way.
fn value(export: &Export, index: usize) -> u64 {
    let mut word = [0; 8];
    export.read_at(8 * index, &mut word).unwrap();
    u64::from_ne_bytes(word)
}

/// Two connected sockets whose devices have atomic operations.
fn pair(env: &Env) -> Option<(Socket, Socket)> {
    pair_of(env, SocketType::Stream)
}

fn pair_of(env: &Env, ty: SocketType) -> Option<(Socket, Socket)> {
    let (a, b) = env.pair(ty);
    if a.peer_atomics() > Atomics::None && b.peer_atomics() > Atomics::None {
        return Some((a, b));
    }
    skip("no atomic operations");
    None
}

/// Both operations by both kinds of calls, and the owner's between them where it may take part.
pub fn operations_bring_the_old_value(env: &Env) {
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        let Some((a, b)) = pair_of(env, ty) else { return };
        let export = words(&a, 4, Rights::ATOMIC);
        let remote = RemoteBuffer::from_bytes(&export.descriptor().to_bytes()).unwrap();
        assert_eq!(remote.rights(), Rights::ATOMIC);
        let mut ledger = Ledger::new();
        let post = ledger.post("fetch_add", |q, t| b.fetch_add(q, t, &remote, 8, 5));
        let event = ledger.wait_ok(post);
        assert_eq!((event.kind(), event.bytes()), (EventKind::FetchAdd, 8));
        assert_eq!((event.old_value(), event.total(), event.truncated()), (Some(0), 8, false));
        let post = ledger.post("fetch_add", |q, t| b.fetch_add(q, t, &remote, 8, u64::MAX));
        let Completion::FetchAdd { old, .. } = ledger.wait(post).into_completion().unwrap() else {
            panic!("another completion")
        };
        assert_eq!(old, 5);
        let post = ledger.post("swap", |q, t| b.compare_swap(q, t, &remote, 8, 4, 100));
        let Completion::CompareSwap { old, .. } = ledger.wait(post).into_completion().unwrap()
        else {
            panic!("another completion")
        };
        assert_eq!(old, 4);
        assert_eq!(b.blocking().compare_swap(&remote, 8, 4, 7).unwrap(), 100, "not expected");
        assert_eq!(b.blocking().fetch_add(&remote, 8, 0).unwrap(), 100);
        assert_eq!([0, 1, 2, 3].map(|i| value(&export, i)), [0, 100, 0, 0]);
        the_owner_takes_part(&a, &b, &export);
        ledger.finish();
    }
}

/// The owner's own operations are atomic with the peer's, or refused.
fn the_owner_takes_part(a: &Socket, b: &Socket, export: &Export) {
    let remote = export.descriptor();
    assert_eq!(b.peer_atomics(), a.atomics());
    if a.atomics() != Atomics::Host {
        let refused = export.load(8).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{refused}");
        assert_eq!(export.fetch_add(8, 1).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(value(export, 1), 100);
        return;
    }
    assert_eq!(export.fetch_add(8, 1).unwrap(), 100);
    assert_eq!(b.blocking().compare_swap(&remote, 8, 101, 5).unwrap(), 101);
    assert_eq!(export.compare_swap(8, 5, 6).unwrap(), 5);
    assert_eq!(export.compare_swap(8, 5, 9).unwrap(), 6, "not expected");
    assert_eq!(export.load(8).unwrap(), 6);
    for (offset, what) in [(4, "not aligned"), (32, "outside"), (usize::MAX - 7, "outside")] {
        assert_eq!(export.load(offset).unwrap_err().errno(), libc::EINVAL, "{what}");
    }
}

/// What cannot be done is refused before anything is sent.
pub fn what_cannot_be_done_is_refused_at_home(env: &Env) {
    let Some((a, b)) = pair(env) else { return };
    let export = words(&a, 4, Rights::ATOMIC);
    let (readable, remote) = (words(&a, 1, Rights::READ_WRITE), export.descriptor());
    let mut ledger = Ledger::new();
    let mut refused = |of: &RemoteBuffer, offset, why: &str| {
        let posts = [
            ledger.try_post("fetch_add", |q, t| b.fetch_add(q, t, of, offset, 1)),
            ledger.try_post("swap", |q, t| b.compare_swap(q, t, of, offset, 0, 1)),
        ];
        for post in posts {
            let error = post.unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{offset}: {error}");
            assert!(error.to_string().contains(why), "{offset}: {error}");
        }
    };
    for offset in [1, 4, 7, 25] {
        refused(&remote, offset, if offset == 25 { "outside" } else { "multiple of 8" });
    }
    for offset in [32, u64::MAX, u64::MAX - 7] {
        refused(&remote, offset, "outside");
    }
    refused(&readable.descriptor(), 0, "atomic operations");
    ledger.finish();
    assert!(b.blocking().read(&remote, 0, &mut [0; 8]).is_err(), "no right to read");
    assert!(b.blocking().write(&remote, 0, &[0; 8]).is_err(), "no right to write");
    let memory = MemoryRegion::new(64).unwrap();
    let odd = a.export(memory.buffer(4..20).unwrap(), Rights::ATOMIC, None).unwrap_err();
    assert_eq!((odd.error.errno(), odd.buffer.len()), (libc::EINVAL, 16), "{odd}");
    let idle = env.socket(SocketType::Stream);
    let queue = exs::EventQueue::new(1).unwrap();
    let unconnected = idle.fetch_add(&queue, exs::Token(1), &remote, 0, 1).unwrap_err();
    assert_eq!(unconnected.errno(), libc::ENOTCONN, "{unconnected}");
    assert_eq!((idle.atomics(), idle.peer_atomics()), (Atomics::None, Atomics::None));
    assert_eq!(b.blocking().fetch_add(&remote, 0, 1).unwrap(), 0, "the connection is well");
}

/// Where a device of either side has none, both the export and the operation say so.
pub fn a_device_without_them_refuses(env: &Env) {
    let (a, b) = env.streams();
    if b.peer_atomics() > Atomics::None {
        return skip("the device has atomic operations");
    }
    let refused = |e: &Error| {
        assert_eq!(e.errno(), libc::EOPNOTSUPP, "{e}");
        assert!(e.to_string().contains("atomic operations"), "{e}");
    };
    if a.atomics() == Atomics::None {
        let memory = MemoryRegion::new(64).unwrap().buffer(..).unwrap();
        refused(&a.export(memory, Rights::ATOMIC, None).unwrap_err().error);
    }
    // A descriptor from elsewhere may have the right.
    let export = words(&a, 1, Rights::READ_WRITE);
    let mut bytes = export.descriptor().to_bytes();
    bytes[23] |= 4;
    let remote = RemoteBuffer::from_bytes(&bytes).unwrap();
    refused(&b.blocking().fetch_add(&remote, 0, 1).unwrap_err());
    refused(&b.blocking().compare_swap(&remote, 0, 0, 1).unwrap_err());
    assert_eq!(value(&export, 0), 0);
    assert_eq!(b.blocking().write(&remote, 0, &[1; 8]).unwrap(), 8, "the connection is well");
}

/// Many at once, among READs, WRITEs and messages, in both directions.
pub fn many_in_flight(env: &Env) {
    const COUNT: u64 = 200;
    let Some((a, b)) = pair(env) else { return };
    let mut ledger = Ledger::new();
    let all = Rights::READ_WRITE | Rights::ATOMIC;
    let (of_a, of_b) = (words(&a, 2, all), words(&b, 2, all));
    let mut by_b = BTreeSet::new();
    for i in 0..COUNT {
        let (to, from) = (of_a.descriptor(), of_b.descriptor());
        by_b.insert(ledger.post("add", |q, t| b.fetch_add(q, t, &to, 0, 1)).0);
        ledger.post("add", |q, t| a.fetch_add(q, t, &from, 0, 3));
        if i % 4 == 0 {
            ledger.post("write", |q, t| b.write(q, t, &to, 8, [1; 8]));
            ledger.post("read", |q, t| a.read(q, t, &from, 8, vec![0; 8]));
            ledger.post("send", |q, t| a.send(q, t, [1; 50]));
        }
    }
    let (mut ones, mut threes) = (0, 0);
    for event in ledger.drain() {
        assert!(event.error().is_none(), "{event:?}");
        let Some(old) = event.old_value() else { continue };
        // The events of each direction are in the order of posting, and bring what was before.
        if by_b.contains(&event.token().0) {
            assert_eq!(old, ones, "{event:?}");
            ones += 1;
        } else {
            assert_eq!(old, threes, "{event:?}");
            threes += 3;
        }
    }
    assert_eq!((ones, threes), (COUNT, 3 * COUNT));
    assert_eq!((value(&of_a, 0), value(&of_b, 0)), (COUNT, 3 * COUNT));
    ledger.finish();
}

/// Threads that share connections to one word lose no addition; nor does the owner, where it may
/// take part.
pub fn several_threads_lose_no_addition(env: &Env) {
    const THREADS: u64 = 3;
    let Some((a, b)) = pair(env) else { return };
    let count = 400 / env.shrink() as u64;
    let export = words(&a, 1, Rights::ATOMIC);
    let remote = export.descriptor();
    let owner = a.atomics() == Atomics::Host;
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                let mut last = None;
                for _ in 0..count {
                    let old = b.blocking().fetch_add(&remote, 0, 1).unwrap();
                    assert!(last < Some(old), "the counter went back: {last:?}, {old}");
                    last = Some(old);
                }
            });
        }
        if owner {
            for _ in 0..count {
                export.fetch_add(0, 1).unwrap();
            }
        }
    });
    let sum = (THREADS + u64::from(owner)) * count;
    assert_eq!(b.blocking().fetch_add(&remote, 0, 0).unwrap(), sum);
}

/// A lock of compare-and-swap: what it guards is read and written by READ and WRITE, by one at a
/// time.
pub fn a_spin_lock_excludes(env: &Env) {
    const THREADS: u64 = 3;
    let Some((a, b)) = pair(env) else { return };
    let rounds = 60 / env.shrink() as u64;
    let word_of_lock = words(&a, 1, Rights::ATOMIC);
    let guarded = words(&a, 1, Rights::READ_WRITE);
    let (lock, data) = (&word_of_lock.descriptor(), &guarded.descriptor());
    std::thread::scope(|s| {
        for thread in 1..=THREADS {
            let b = &b;
            s.spawn(move || {
                for _ in 0..rounds {
                    while b.blocking().compare_swap(lock, 0, 0, thread).unwrap() != 0 {
                        std::thread::yield_now();
                    }
                    let mut word = [0; 8];
                    b.blocking().read(data, 0, &mut word).unwrap();
                    let next = u64::from_ne_bytes(word) + 1;
                    b.blocking().write(data, 0, &next.to_ne_bytes()).unwrap();
                    let held = b.blocking().compare_swap(lock, 0, thread, 0).unwrap();
                    assert_eq!(held, thread, "another took the lock");
                }
            });
        }
    });
    assert_eq!(value(&guarded, 0), THREADS * rounds);
}

/// After `revoke` the peer is shut out: the event of its next operation says so.
pub fn revoked(env: &Env) {
    let Some((a, b)) = pair(env) else { return };
    let export = words(&a, 1, Rights::ATOMIC);
    let remote = export.descriptor();
    assert_eq!(b.blocking().fetch_add(&remote, 0, 9).unwrap(), 0);
    let memory = export.revoke_blocking().unwrap();
    assert_eq!(memory[..], 9u64.to_ne_bytes());
    let mut ledger = Ledger::new();
    let post = ledger.post("fetch_add", |q, t| b.fetch_add(q, t, &remote, 0, 1));
    let event = ledger.wait(post);
    let errno = event.error().expect("shut out").errno();
    assert!(errno == libc::EACCES || !env.tells_reasons(), "{event:?}");
    assert_eq!(event.old_value(), None);
    assert_eq!(memory[..], 9u64.to_ne_bytes(), "nothing was added");
    assert!(a.blocking().recv(&mut [0; 8]).is_err(), "the connection is over");
    ledger.finish();
}

/// A descriptor with another address, key or right ends the connection, and changes nothing.
pub fn forged_descriptors_end_the_connection(env: &Env) {
    type Forgery = fn(&mut [u8; 24]);
    let forgeries: [(&str, Rights, Forgery); 3] = [
        ("right", Rights::READ_WRITE, |d| d[23] = 4),
        ("key", Rights::ATOMIC, |d| d[17] ^= 0x40),
        ("before", Rights::ATOMIC, |d| {
            let addr = u64::from_be_bytes(d[..8].try_into().unwrap()) - 64;
            d[..8].copy_from_slice(&addr.to_be_bytes());
        }),
    ];
    for (what, rights, forge) in forgeries {
        let Some((a, b)) = pair(env) else { return };
        let export = words(&a, 1, rights);
        let mut bytes = export.descriptor().to_bytes();
        forge(&mut bytes);
        let remote = RemoteBuffer::from_bytes(&bytes).unwrap();
        let error = b.blocking().fetch_add(&remote, 0, 1).unwrap_err();
        assert!(error.errno() == libc::EACCES || !env.tells_reasons(), "{what}: {error}");
        assert_eq!(value(&export, 0), 0, "{what}");
        assert!(a.blocking().recv(&mut [0; 8]).is_err(), "{what}: the connection is over");
    }
}

/// Cancelled at any moment: an event of a success says that it was done, and ECANCELED that it was
/// not.
pub fn cancelled_operations_tell_the_truth(env: &Env) {
    let Some((a, b)) = pair(env) else { return };
    let export = words(&a, 1, Rights::ATOMIC);
    let remote = export.descriptor();
    let mut sum = 0;
    for round in 0..10 {
        let mut ledger = Ledger::new();
        let posted: Vec<_> = (0..300)
            .map(|_| ledger.post("fetch_add", |q, t| b.fetch_add(q, t, &remote, 0, 1)))
            .collect();
        for token in &posted[round * 20..] {
            b.cancel(*token);
        }
        for event in ledger.drain() {
            match event.error() {
                None => {
                    assert_eq!(event.old_value(), Some(sum), "in order");
                    sum += 1;
                }
                Some(e) => assert!(e.is_cancelled(), "{event:?}"),
            }
        }
        ledger.finish();
        assert_eq!(b.blocking().fetch_add(&remote, 0, 0).unwrap(), sum, "round {round}");
    }
}

/// The peer goes away: each operation has one event, and no addition that was reported is missing.
pub fn the_peer_goes_away(env: &Env) {
    let Some((a, b)) = pair(env) else { return };
    let export = words(&a, 1, Rights::ATOMIC);
    let remote = export.descriptor();
    let mut ledger = Ledger::new();
    for _ in 0..300 {
        ledger.post("fetch_add", |q, t| b.fetch_add(q, t, &remote, 0, 1));
    }
    a.abort();
    let mut done = 0;
    for event in ledger.drain() {
        match event.error() {
            None => {
                assert_eq!(event.old_value(), Some(done));
                done += 1;
            }
            Some(e) => assert!(!e.is_cancelled(), "whether it was done is not known: {event:?}"),
        }
    }
    let sum = value(&export, 0);
    assert!((done..=300).contains(&sum), "{sum} additions, {done} reported");
    ledger.finish();
}

/// Peers of several connections, and the owner where it may take part, change the same words at the
/// same time, and lose nothing.
pub fn words_of_several_connections(env: &Env) {
    const PEERS: u64 = 3;
    let count = 300 / env.shrink() as u64;
    let (listener, _) = env.listener(SocketType::Stream);
    let pairs: Vec<_> = (0..PEERS).map(|_| env.join(SocketType::Stream, &listener)).collect();
    let words = AtomicWords::new(4).unwrap();
    if pairs.iter().any(|(client, _)| client.peer_atomics() == Atomics::None) {
        let refused = words.export(&pairs[0].1, None);
        assert!(refused.is_err() || pairs[0].1.atomics() > Atomics::None);
        return skip("no atomic operations");
    }
    let exports: Vec<_> =
        pairs.iter().map(|(_, server)| words.export(server, None).unwrap()).collect();
    let owner = pairs[0].1.atomics() == Atomics::Host;
    assert_eq!(words.fetch_add(3, 1).is_ok(), owner);
    std::thread::scope(|s| {
        for ((client, _), export) in pairs.iter().zip(&exports) {
            s.spawn(move || {
                let remote = export.descriptor();
                for _ in 0..count {
                    client.blocking().fetch_add(&remote, 8, 1).unwrap();
                    // A lock around what is no atomic operation.
                    while client.blocking().compare_swap(&remote, 16, 0, 1).unwrap() != 0 {
                        std::thread::yield_now();
                    }
                    client.blocking().fetch_add(&remote, 0, 1).unwrap();
                    assert_eq!(client.blocking().compare_swap(&remote, 16, 1, 0).unwrap(), 1);
                }
            });
        }
        for _ in 0..if owner { count } else { 0 } {
            words.fetch_add(1, 1).unwrap();
        }
    });
    let all = [0, 1, 2].map(|i| words.load(i).unwrap());
    assert_eq!(all, [PEERS * count, (PEERS + u64::from(owner)) * count, 0]);

    // Each export is of its own connection, and ends for itself.
    let remote = exports[0].descriptor();
    let mut exports = exports.into_iter();
    drop(exports.next());
    assert!(pairs[0].0.blocking().fetch_add(&remote, 8, 1).is_err(), "shut out");
    let rest: Vec<_> = exports.collect();
    assert!(pairs[1].0.blocking().fetch_add(&rest[0].descriptor(), 8, 1).is_ok());
    assert_eq!(words.load(1).unwrap(), all[1] + 1);
}
