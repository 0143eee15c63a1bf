//! send_file.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use exs::{Event, RecvFlags, Socket};

use crate::harness::{Env, Ledger, check, pattern};

/// A file of the stream `seed`; gone from its directory already, so that nothing is left.
fn file(seed: u64, len: usize) -> Arc<File> {
    let path = std::env::temp_dir().join(format!("exs-test-{}-{seed}-{len}", std::process::id()));
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&pattern(seed, 0, len)).unwrap();
    Arc::new(file)
}

/// Sends a part of the file, and checks that it arrives.
fn send_part(
    from: &Socket,
    to: &Socket,
    seed: u64,
    file: &Arc<File>,
    offset: usize,
    len: usize,
) -> Event {
    let mut ledger = Ledger::new();
    let recv = ledger.post("recv", |q, t| to.recv(q, t, vec![0; len], RecvFlags::WAITALL));
    let send = ledger.post("send_file", |q, t| {
        from.send_file(q, t, Arc::clone(file), offset as u64, len as u64)
    });
    let sent = ledger.wait_ok(send);
    assert_eq!(sent.bytes(), len);
    let event = ledger.wait_ok(recv);
    assert_eq!(event.bytes(), len);
    check(seed, offset, &event.into_buffer().unwrap());
    ledger.finish();
    sent
}

/// All of it and parts of it, smaller and larger than the hidden ring.
pub fn parts_of_files(env: &Env) {
    let (a, b) = env.streams();
    let small = file(1, 100);
    send_part(&a, &b, 1, &small, 0, 100);
    send_part(&a, &b, 1, &small, 33, 10);
    let large = file(2, 20 << 20);
    send_part(&a, &b, 2, &large, 0, 20 << 20);
    send_part(&a, &b, 2, &large, 4097, 7 << 20);
    send_part(&a, &b, 2, &large, (20 << 20) - 1, 1);
}

/// Without a receive posted the data wait in the ring, or for it.
pub fn before_a_receive_is_posted(env: &Env) {
    const SIZE: usize = 9 << 20;
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let file = file(3, SIZE);
    ledger.post("send_file", |q, t| a.send_file(q, t, file, 0, SIZE as u64));
    let mut got = vec![0; SIZE];
    for piece in got.chunks_mut(100_000) {
        b.blocking().recv_exact(piece).unwrap();
    }
    check(3, 0, &got);
    assert_eq!(ledger.ok().bytes(), SIZE);
    ledger.finish();
}

/// Between sends of memory, in order.
pub fn among_other_sends(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let file = file(4, 300_000);
    for i in 0..10 {
        ledger.post("send", |q, t| a.send(q, t, pattern(5, i * 500, 500)));
        let part = Arc::clone(&file);
        ledger.post("send_file", |q, t| a.send_file(q, t, part, (i * 30_000) as u64, 30_000));
    }
    for i in 0..10 {
        let (mut head, mut body) = (vec![0; 500], vec![0; 30_000]);
        b.blocking().recv_exact(&mut head).unwrap();
        b.blocking().recv_exact(&mut body).unwrap();
        check(5, i * 500, &head);
        check(4, i * 30_000, &body);
    }
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
}

/// As one message of a seqpacket socket.
pub fn as_a_message(env: &Env) {
    let (a, b) = env.packets();
    for size in [50, 5 << 20] {
        let mut ledger = Ledger::new();
        let file = file(6, size);
        ledger.post("send_file", |q, t| a.send_file(q, t, file, 0, size as u64));
        let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; size + 9], RecvFlags::NONE));
        let event = ledger.wait_ok(recv);
        assert_eq!((event.bytes(), event.total()), (size, size as u64));
        check(6, 0, &event.into_buffer().unwrap()[..size]);
        assert!(ledger.drain().iter().all(|e| e.error().is_none()));
        ledger.finish();
    }
}

/// No bytes are no message of a stream, but an event.
pub fn nothing_of_a_file(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let file = file(7, 10);
    ledger.post("send_file", |q, t| a.send_file(q, t, Arc::clone(&file), 5, 0));
    assert_eq!(ledger.ok().bytes(), 0);
    send_part(&a, &b, 7, &file, 0, 10);
    ledger.finish();
}

/// A file that is shorter than was asked for: an error with what it had, never a hang,
/// and the peer sees no byte that was not in it.
pub fn a_file_that_is_too_short(env: &Env) {
    for (had, asked) in [(0, 10), (100, 5000), (3 << 20, 8 << 20)] {
        let (a, b) = env.streams();
        let mut ledger = Ledger::new();
        let short = file(8, had);
        let send = ledger.post("send_file", |q, t| a.send_file(q, t, short, 0, asked as u64));
        let receiver = std::thread::spawn(move || {
            let (mut got, mut piece) = (Vec::new(), vec![0; 100_000]);
            // Whether it ends in an end or in a reset, it ends.
            while let Ok(n @ 1..) = b.blocking().recv(&mut piece) {
                got.extend_from_slice(&piece[..n]);
            }
            got
        });
        let event = ledger.wait(send);
        let error = event.error().expect("the file is too short");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert!(event.bytes() <= had, "{event:?}");
        // Closing may succeed, or find the connection broken; it ends.
        let _ = a.blocking().close();
        let got = receiver.join().unwrap();
        assert!(got.len() <= had, "{} bytes of a file of {had}", got.len());
        check(8, 0, &got);
        ledger.finish();
    }
}
