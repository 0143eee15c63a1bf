//! Figures add up.

use exs::{Counters, MemoryRegion, RecvFlags, Rights, Socket};

use crate::harness::{Env, Ledger, pattern};

fn sent(c: &Counters) -> u64 {
    c.sent_direct + c.sent_indirect + c.sent_inline
}

fn received(c: &Counters) -> u64 {
    c.received_direct + c.received_indirect + c.received_inline
}

/// Sends `size` bytes, with the receive posted ahead and known to the peer, or later.
fn transfer(a: &Socket, b: &Socket, size: usize, ahead: bool) {
    let mut ledger = Ledger::new();
    let buffer = || MemoryRegion::new(size).unwrap().buffer(..).unwrap();
    let receive = |ledger: &mut Ledger| {
        ledger.post("recv", |q, t| b.recv(q, t, buffer(), RecvFlags::WAITALL))
    };
    let early = ahead.then(|| {
        let before = a.counters().adverts_received;
        let token = receive(&mut ledger);
        while a.counters().adverts_received == before {
            std::thread::yield_now();
        }
        token
    });
    let mut tx = buffer();
    tx.copy_from_slice(&pattern(1, 0, size));
    ledger.post("send", |q, t| a.send(q, t, tx));
    let recv = early.unwrap_or_else(|| receive(&mut ledger));
    assert_eq!(ledger.wait_ok(recv).bytes(), size);
    assert!(ledger.drain().iter().all(|e| e.error().is_none()));
    ledger.finish();
}

/// Bytes sent are bytes received, by the same roads; operations are counted.
pub fn of_a_socket(env: &Env) {
    let (a, b) = env.streams();
    assert_eq!((sent(&a.counters()), a.counters().sends), (0, 0));
    let sizes = [10, 5000, 300_000, 2 << 20];
    for size in sizes {
        transfer(&a, &b, size, false);
    }
    let total: usize = sizes.iter().sum();
    let (ours, theirs) = (a.counters(), b.counters());
    assert_eq!((ours.sends, theirs.recvs), (4, 4));
    assert_eq!((sent(&ours), received(&theirs)), (total as u64, total as u64));
    assert_eq!(ours.sent_direct, theirs.received_direct);
    assert_eq!(ours.sent_indirect, theirs.received_indirect);
    assert_eq!(ours.sent_inline, theirs.received_inline);
    assert_eq!((received(&ours), sent(&theirs)), (0, 0), "nothing went back");
    assert!(ours.messages_sent >= 4 && theirs.messages_received >= 4);
}

/// A receive that the sender knew of takes the direct road: no copy.
pub fn a_receive_ahead_is_direct(env: &Env) {
    const SIZE: usize = 4 << 20;
    let (a, b) = env.streams();
    transfer(&a, &b, SIZE, true);
    let (ours, theirs) = (a.counters(), b.counters());
    assert_eq!(ours.sent_direct, SIZE as u64, "{ours:?}");
    assert_eq!(theirs.received_direct, SIZE as u64, "{theirs:?}");
    assert_eq!((ours.copied_bytes, theirs.copied_bytes), (0, 0), "zero-copy");
    assert!(theirs.adverts_sent >= 1 && ours.adverts_received >= 1);
}

/// One-sided operations and their bytes.
pub fn of_one_sided_operations(env: &Env) {
    let (a, b) = env.streams();
    let export = a.export(vec![0; 1000], Rights::READ_WRITE, None).unwrap();
    b.blocking().write(&export.descriptor(), 0, &[1; 600]).unwrap();
    b.blocking().read(&export.descriptor(), 0, &mut [0; 250]).unwrap();
    let c = b.counters();
    assert_eq!((c.one_sided, c.write_bytes, c.read_bytes), (2, 600, 250), "{c:?}");
}

/// Those of the process have those of its sockets, closed ones too. Other tests run at
/// the same time: only growth can be checked.
pub fn of_the_process(env: &Env) {
    let before = exs::counters().unwrap();
    let (a, b) = env.streams();
    transfer(&a, &b, 100_000, false);
    let of_a = a.counters();
    a.blocking().close().unwrap();
    drop((a, b));
    let after = exs::counters().unwrap();
    assert!(sent(&after) >= sent(&before) + 100_000, "{before:?} {after:?}");
    assert!(after.sends > before.sends && after.recvs > before.recvs);
    assert!(after.events >= before.events + 5, "connect, accept, send, recv, close");
    assert!(after.engine_runs > before.engine_runs);
    assert_eq!(sent(&of_a), 100_000);
}
