//! Streams: bytes in order, once each, however they are posted.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use exs::{Buffer, Error, Event, MemoryRegion, RecvFlags, Socket, WaitPolicy};

use crate::harness::{Env, Ledger, Rng, check, pattern};

/// Nothing happens for this long: nothing will.
const STILL: Duration = Duration::from_secs(60);

/// One direction of a random conversation.
struct Flow<'a> {
    seed: u64,
    total: usize,
    from: &'a Socket,
    to: &'a Socket,
    sent: usize,
    received: usize,
    sends: Vec<u64>,
    /// Token and size of each receive, in order of their posting.
    receives: VecDeque<(u64, usize)>,
}

impl<'a> Flow<'a> {
    fn new(seed: u64, total: usize, from: &'a Socket, to: &'a Socket) -> Flow<'a> {
        let (sends, receives) = (Vec::new(), VecDeque::new());
        Flow { seed, total, from, to, sent: 0, received: 0, sends, receives }
    }

    fn done(&self) -> bool {
        self.received == self.total && self.sends.is_empty()
    }

    fn post(&mut self, ledger: &mut Ledger, rng: &mut Rng) {
        // At least one of each, or nothing might ever come.
        while self.sent < self.total
            && self.sends.len() < 4
            && (self.sends.is_empty() || !rng.one_in(3))
        {
            self.send(ledger, rng);
        }
        while self.received < self.total
            && self.receives.len() < 4
            && (self.receives.is_empty() || !rng.one_in(3))
        {
            self.receive(ledger, rng);
        }
    }

    fn send(&mut self, ledger: &mut Ledger, rng: &mut Rng) {
        let n = rng.size(200_000).min(self.total - self.sent);
        let bytes = pattern(self.seed, self.sent, n);
        let mut buffer = if rng.one_in(2) { registered(&bytes) } else { Buffer::from(bytes) };
        let from = self.from;
        let token = if rng.one_in(5) {
            let rest = buffer.split_off(rng.between(0, n));
            let parts = vec![buffer, rest];
            ledger.post("sendv", |q, t| from.send_vectored(q, t, parts))
        } else {
            ledger.post("send", |q, t| from.send(q, t, buffer))
        };
        self.sends.push(token.0);
        self.sent += n;
    }

    fn receive(&mut self, ledger: &mut Ledger, rng: &mut Rng) {
        let n = rng.size(300_000);
        // A WAITALL that might ask for more than there is would wait for the end.
        let ahead: usize = self.receives.iter().map(|r| r.1).sum();
        let sure = self.received + ahead + n <= self.total;
        let flags = if sure && rng.one_in(2) { RecvFlags::WAITALL } else { RecvFlags::NONE };
        let to = self.to;
        let token = if rng.one_in(4) && n > 1 {
            let at = rng.between(1, n - 1);
            let parts = vec![vec![0; at].into(), vec![0; n - at].into()];
            ledger.post("recvv", |q, t| to.recv_vectored(q, t, parts, flags))
        } else if rng.one_in(2) {
            let buffer = MemoryRegion::new(n).unwrap().buffer(..).unwrap();
            ledger.post("recv", |q, t| to.recv(q, t, buffer, flags))
        } else {
            ledger.post("recv", |q, t| to.recv(q, t, vec![0; n], flags))
        };
        self.receives.push_back((token.0, n));
    }

    /// True if the event was of this flow.
    fn settle(&mut self, event: &mut Event) -> bool {
        let token = event.token().0;
        if let Some(i) = self.sends.iter().position(|t| *t == token) {
            self.sends.swap_remove(i);
            let all: usize = event.take_buffers().iter().map(|b| b.len()).sum();
            assert_eq!(event.bytes(), all, "a stream sends all of it");
            return true;
        }
        if !self.receives.iter().any(|r| r.0 == token) {
            return false;
        }
        assert_eq!(self.receives.pop_front().map(|r| r.0), Some(token), "receives end in order");
        assert!(event.bytes() > 0 && !event.eof(), "{event:?}");
        let mut left = event.bytes();
        for buffer in event.take_buffers() {
            let n = left.min(buffer.len());
            check(self.seed, self.received, &buffer[..n]);
            self.received += n;
            left -= n;
        }
        assert_eq!(left, 0, "more bytes than the buffers have");
        assert!(self.received <= self.total, "more than was sent");
        true
    }
}

fn registered(bytes: &[u8]) -> Buffer {
    let mut buffer = MemoryRegion::new(bytes.len()).unwrap().buffer(..).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

/// Random sizes, both directions at once, up to four sends and receives in flight.
///
/// Without keep-alives: each of them would set going again what has stopped by mistake.
/// Nor may a thread that spins do that, so every policy has its turn; or the timer of an
/// idle ring (30 s), so nothing may stand still for that long.
fn conversation(env: &Env, seed: u64, total: usize) {
    let (a, b) = env.with(|o| (o.keep_alive, o.dead_after) = (None, None)).streams();
    let mut rng = Rng::new(seed);
    let policies = [WaitPolicy::Notify, WaitPolicy::Adaptive, WaitPolicy::BusyPoll];
    let mut ledger = Ledger::with_policy(policies[usize::try_from(seed % 3).unwrap()]);
    let (there, back) = (seed * 2 + 1, seed * 2 + 2);
    let mut flows = [Flow::new(there, total, &a, &b), Flow::new(back, total, &b, &a)];
    while !flows.iter().all(Flow::done) {
        for flow in &mut flows {
            flow.post(&mut ledger, &mut rng);
        }
        let mut event = ledger.poll(STILL).unwrap_or_else(|| panic!("seed {seed} stands still"));
        assert!(event.error().is_none(), "{event:?}");
        let owned = flows.iter_mut().any(|f| f.settle(&mut event));
        assert!(owned, "of no flow: {event:?}");
    }
    a.cancel_all();
    b.cancel_all();
    for event in ledger.drain() {
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
        assert_eq!(event.bytes(), 0, "bytes that were not sent");
    }
    ledger.finish();
}

/// Many seeds, small totals.
pub fn order_and_integrity(env: &Env) {
    for seed in 0..env.seeds(30) {
        conversation(env, seed, 1_000_000);
    }
}

/// Few seeds, through rings so small that they are always full.
pub fn order_and_integrity_with_small_rings(env: &Env) {
    let tight = env.with(|o| {
        o.ring_size = 4096;
        o.inline_threshold = Some(64);
    });
    for seed in 100..100 + env.seeds(24) {
        conversation(&tight, seed, 300_000);
    }
}

/// A hundred mebibytes (fewer on a device of a guest) in one operation on each side.
pub fn one_large_send(env: &Env) {
    let size = (100 << 20) / env.shrink();
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; size], RecvFlags::WAITALL));
    let bytes = pattern(1, 0, size);
    let send = ledger.post("send", |q, t| a.send(q, t, bytes));
    assert_eq!(ledger.wait_ok(send).bytes(), size);
    let event = ledger.wait_ok(recv);
    assert_eq!(event.bytes(), size);
    check(1, 0, &event.into_buffer().unwrap());
    ledger.finish();
}

/// WAITALL ends when full and not before; or at the end, with what came.
pub fn waitall(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let all = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 1000], RecvFlags::WAITALL));
    for i in 0..10 {
        assert!(ledger.queue().is_empty(), "ended before it was full");
        a.blocking().send_all(&pattern(1, i * 100, 100)).unwrap();
    }
    let event = ledger.wait_ok(all);
    assert_eq!((event.bytes(), event.eof()), (1000, false));
    check(1, 0, &event.into_buffer().unwrap());

    let rest = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 1000], RecvFlags::WAITALL));
    a.blocking().send_all(b"the end").unwrap();
    a.blocking().shutdown(std::net::Shutdown::Write).unwrap();
    let event = ledger.wait_ok(rest);
    assert_eq!(event.bytes(), 7);
    assert_eq!(&event.into_buffer().unwrap()[..7], b"the end");
    let end = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 10], RecvFlags::WAITALL));
    let event = ledger.wait_ok(end);
    assert_eq!((event.bytes(), event.eof()), (0, true));
    ledger.finish();

    let mut more = [0; 4];
    let short = b.blocking().recv_exact(&mut more).unwrap_err();
    assert!(matches!(short, Error::EndOfStream { got: 0, wanted: 4 }), "{short}");
}

/// Bytes stay after a peek.
pub fn peek(env: &Env) {
    let (a, b) = env.streams();
    a.blocking().send_all(b"look").unwrap();
    for n in [4, 2, 4] {
        let mut seen = vec![0; n];
        assert_eq!(b.blocking().peek(&mut seen).unwrap(), n);
        assert_eq!(seen, b"look"[..n]);
    }
    // A peek that is posted first waits for data too.
    let mut got = [0; 4];
    b.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"look");
    let mut ledger = Ledger::new();
    let peek = ledger.post("peek", |q, t| b.recv(q, t, vec![0; 100_000], RecvFlags::PEEK));
    let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 100_000], RecvFlags::NONE));
    a.blocking().send_all(b"again").unwrap();
    for token in [peek, recv] {
        let event = ledger.wait_ok(token);
        assert_eq!(event.bytes(), 5);
        assert_eq!(&event.into_buffer().unwrap()[..5], b"again");
    }
    ledger.finish();
}

/// Operations without a byte have their events, and are not taken for the end.
pub fn zero_lengths(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let empty = ledger.post("send", |q, t| a.send(q, t, vec![]));
    assert_eq!(ledger.wait_ok(empty).bytes(), 0);
    let recv = ledger.post("recv", |q, t| b.recv(q, t, vec![0; 10], RecvFlags::NONE));
    let vectored = ledger.post("sendv", |q, t| a.send_vectored(q, t, vec![]));
    ledger.wait_ok(vectored);
    a.blocking().send_all(b"data").unwrap();
    let event = ledger.wait_ok(recv);
    assert_eq!((event.bytes(), event.eof()), (4, false), "an empty send is not seen");

    a.blocking().send_all(b"more").unwrap();
    let none = ledger.post("recv", |q, t| b.recv(q, t, vec![], RecvFlags::NONE));
    let event = ledger.wait_ok(none);
    assert_eq!((event.bytes(), event.eof()), (0, false), "an empty receive is not the end");
    let mut got = [0; 4];
    b.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"more");
    ledger.finish();
}

/// Pieces of all sizes, empty ones too, more than one work request takes.
pub fn vectored(env: &Env) {
    let (a, b) = env.streams();
    let mut ledger = Ledger::new();
    let all = pattern(1, 0, 50_000);
    let sizes = [1, 0, 7, 20_000, 0, 1000, 9000, 500, 3, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0];
    let pieces = |from: &[u8]| {
        let mut at = 0;
        let mut parts: Vec<Buffer> = Vec::new();
        for n in sizes {
            parts.push(Buffer::copy_from_slice(&from[at..at + n]));
            at += n;
        }
        parts.push(Buffer::copy_from_slice(&from[at..]));
        parts
    };
    let zeros = vec![0; all.len()];
    let recv =
        ledger.post("recvv", |q, t| b.recv_vectored(q, t, pieces(&zeros), RecvFlags::WAITALL));
    let send = ledger.post("sendv", |q, t| a.send_vectored(q, t, pieces(&all)));
    let mut sent = ledger.wait_ok(send);
    assert_eq!(sent.bytes(), all.len());
    assert_eq!(sent.take_buffers().len(), sizes.len() + 1, "all of them come back");
    let mut event = ledger.wait_ok(recv);
    assert_eq!(event.bytes(), all.len());
    let got: Vec<u8> = event.take_buffers().iter().flat_map(|p| p.to_vec()).collect();
    assert!(got == all, "the pieces are not what was sent");
    ledger.finish();

    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
    assert_eq!(a.blocking().send_vectored(&parts).unwrap(), 7);
    let (mut x, mut y) = ([0; 3], [0; 10]);
    let mut into = [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)];
    assert_eq!(b.blocking().recv_vectored(&mut into).unwrap(), 7);
    assert_eq!((&x, &y[..4]), (b"one", &b" two"[..]));
}

/// Registered or not, small or large: the same bytes; windows are kept to.
pub fn memory_of_all_kinds(env: &Env) {
    let (a, b) = env.streams();
    for size in [1, 100, 5000, 70_000, 3_000_000, 20_000_000 / env.shrink()] {
        for (from_region, to_region) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let mut ledger = Ledger::new();
            let make = |registered: bool, fill: u8| {
                let mut buffer = if registered {
                    MemoryRegion::new(size + 20).unwrap().buffer(..).unwrap()
                } else {
                    Buffer::from(vec![0; size + 20])
                };
                buffer.fill(fill);
                buffer.narrow(10..10 + size);
                buffer
            };
            let (mut tx, rx) = (make(from_region, 1), make(to_region, 2));
            tx.copy_from_slice(&pattern(size as u64, 0, size));
            let recv = ledger.post("recv", |q, t| b.recv(q, t, rx, RecvFlags::WAITALL));
            let send = ledger.post("send", |q, t| a.send(q, t, tx));
            let mut tx = ledger.wait_ok(send).into_buffer().unwrap();
            check(size as u64, 0, &tx);
            tx.widen();
            assert!(tx[..10].iter().chain(&tx[10 + size..]).all(|&x| x == 1));
            let mut rx = ledger.wait_ok(recv).into_buffer().unwrap();
            check(size as u64, 0, &rx);
            rx.widen();
            let around = rx[..10].iter().chain(&rx[10 + size..]);
            assert!(around.into_iter().all(|&x| x == 2), "bytes beside the window were written");
            ledger.finish();
        }
    }
}

/// A vector comes back as the same vector, not a copy.
pub fn a_vector_comes_back_without_a_copy(env: &Env) {
    let (a, b) = env.streams();
    for size in [10, 1 << 20] {
        let mut ledger = Ledger::new();
        let (tx, rx) = (pattern(1, 0, size), vec![0; size]);
        let (tx_at, rx_at) = (tx.as_ptr().addr(), rx.as_ptr().addr());
        let recv = ledger.post("recv", |q, t| b.recv(q, t, rx, RecvFlags::WAITALL));
        let send = ledger.post("send", |q, t| a.send(q, t, tx));
        let tx = ledger.wait_ok(send).into_buffer().unwrap().into_vec();
        let rx = ledger.wait_ok(recv).into_buffer().unwrap().into_vec();
        assert_eq!((tx.as_ptr().addr(), rx.as_ptr().addr()), (tx_at, rx_at));
        assert!(tx == rx);
        ledger.finish();
    }
}

/// `std::io::Read` and `Write`, as other crates use them.
pub fn reads_and_writes_as_std_io(env: &Env) {
    const SIZE: usize = 2 << 20;
    let (a, b) = env.streams();
    let writer = std::thread::spawn(move || {
        let mut out = a.blocking();
        out.write_all(&pattern(3, 0, SIZE)).unwrap();
        out.flush().unwrap();
        a.blocking().close().unwrap();
    });
    let mut got = Vec::new();
    b.blocking().read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), SIZE);
    check(3, 0, &got);
    writer.join().unwrap();
}
