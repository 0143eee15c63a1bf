//! A peer that writes nonsense into the rings: it loses its connection, and no other
//! connection suffers.

use std::fs::File;
use std::net::SocketAddr;
use std::time::Duration;

use exs::mem::Access;
use exs::rnic::{CmEvent, Disconnect, DisconnectCause, Rnic, WcStatus};
use exs::shm::ShmRnic;
use exs::sys::RandomSource;
use exs_tests::harness::{Rng, Watchdog};
use exs_tests::rnic::world::{Buf, Harness, World, param};
use exs_tests::rnic::{End, Pair};
use exs_tests::shm::{Head, Hello, Intruder, TOTAL, VERSION, WORDS};

struct Shm;

impl Harness for Shm {
    type Rnic = ShmRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> ShmRnic {
        ShmRnic::new(registry, token_base, RandomSource::kernel().expect("random numbers"))
    }
}

/// An RNIC with a connection of good peers, and one whose peer is an intruder.
struct Scene {
    w: World<Shm>,
    good: Pair,
    victim: End,
    intruder: Intruder,
    /// 1000 bytes, of which a window shows the 100 in the middle.
    memory: Buf,
    key: u32,
}

fn scene() -> Scene {
    let mut w = World::<Shm>::new(1);
    let (a, b) = (w.end(0), w.end(0));
    let good = w.join(a, b, &param(&[]));
    let (_, addr) = w.listen(0, Shm::local());
    let intruder = Intruder::call(addr, &Hello::to(addr));
    let victim = w.end(0);
    let (req, _) = w.request(0);
    let now = w.now();
    w.rnics[0].accept(req, victim.qp, &param(&[]), now).unwrap();
    w.until("ACCEPT", |_| intruder.hear());
    w.established(victim);
    let memory = w.buf(victim, vec![7; 1000], Access::ALL);
    let (addr, access) = (memory.addr() + 450, Access::REMOTE_WRITE);
    let key = w.rnics[0].bind_mw(victim.qp, memory.mr, addr, 100, access).unwrap();
    Scene { w, good, victim, intruder, memory, key }
}

impl Scene {
    /// The connection ends, by a refusal of ours.
    fn ends(mut self) {
        let cause = self.w.disconnected(self.victim);
        assert!(matches!(cause, DisconnectCause::TerminatedByUs(_)), "{cause:?}");
        self.unharmed();
    }

    fn unharmed(mut self) {
        let bytes = self.memory.bytes();
        assert!(bytes[..450].iter().chain(&bytes[550..]).all(|b| *b == 7), "around the window");
        self.w.assert_alive(self.good);
    }
}

#[test]
fn records_that_make_no_sense() {
    let _dog = Watchdog::new("records_that_make_no_sense");
    let write = Head { kind: 2, total: 10, inline: 10, ..Head::default() };
    for head in [
        Head { kind: 7, pieces: 1, ..Head::default() },
        Head { kind: 8, ..Head::default() },
        Head { kind: 255, ..Head::default() },
        Head { inline: u32::MAX, ..Head::default() },
        Head { inline: 60_000, ..Head::default() },
        Head { kind: 1, pieces: 7, total: 9, ..Head::default() },
        Head { kind: 1, total: u64::MAX, flags: 4, ..Head::default() },
        Head { kind: 2, total: 10, inline: 11, ..Head::default() },
        Head { kind: 5, inline: 8, ..Head::default() },
        Head { kind: 4, total: 1, ..Head::default() },
        Head { raddr: u64::MAX, ..write },
        Head { total: 1 << 31, flags: 4, ..write },
    ] {
        let mut s = scene();
        s.w.recv(s.victim, 1, &[]);
        s.intruder.record(&head.bytes(), 1);
        s.ends();
    }
}

/// A peer that goes back to the beginning of its ring again and again, with any number for
/// laps, delays no other connection, and what it sends afterwards counts.
#[test]
fn a_ring_of_which_nothing_is_used() {
    let _dog = Watchdog::new("a_ring_of_which_nothing_is_used");
    let mut s = scene();
    for lap in 0..1000 {
        s.intruder
            .record(&Head { kind: 7, inline: 16_000 * (lap % 2), ..Head::default() }.bytes(), 0);
        s.w.step(std::time::Duration::ZERO);
    }
    let raddr = s.memory.addr() + 500;
    let mut body =
        Head { kind: 2, inline: 3, raddr, total: 3, key: s.key, ..Head::default() }.bytes();
    body.extend([1, 2, 3]);
    s.intruder.record(&body, 1);
    s.w.until("the WRITE", |_| (s.memory.bytes()[500..503] == [1, 2, 3]).then_some(()));
    s.unharmed();
}

#[test]
fn writes_beyond_a_window() {
    let _dog = Watchdog::new("writes_beyond_a_window");
    for (at, len) in [(449i64, 1u32), (549, 2), (0, 1), (450, 101), (-1, 5)] {
        let mut s = scene();
        let raddr = s.memory.addr().wrapping_add_signed(at);
        let head =
            Head { kind: 2, inline: len, raddr, total: len.into(), key: s.key, ..Head::default() };
        let mut body = head.bytes();
        body.extend(std::iter::repeat_n(9, 110));
        s.intruder.record(&body, 3);
        s.ends();
    }
}

/// Pieces in regions that were never shared are asked for by the lane, and come from
/// nowhere; those outside of their region, and words that no good peer would write, end it.
#[test]
fn pieces_and_words() {
    let _dog = Watchdog::new("pieces_and_words");
    let long = |pieces: &[(u64, u64, u32, u32)], total| {
        let count = u8::try_from(pieces.len()).unwrap();
        let mut body = Head { kind: 1, pieces: count, total, ..Head::default() }.bytes();
        for (at, len, slot, generation) in pieces {
            body.extend_from_slice(&at.to_ne_bytes());
            body.extend_from_slice(&len.to_ne_bytes());
            body.extend_from_slice(&[slot.to_ne_bytes(), generation.to_ne_bytes()].concat());
        }
        body
    };
    let mut s = scene();
    let into = s.w.zeros(s.victim, 100);
    s.w.recv(s.victim, 1, &[into.sge()]);
    s.intruder.record(&long(&[(0, 100, 3, 1)], 100), 2);
    s.w.settle();
    assert!(s.w.cm[0].is_empty(), "it waits for the lane");
    // More than the lane has.
    s.intruder.write(WORDS[3], &(1u64 << 40).to_ne_bytes());
    s.intruder.say(b"B", &[]);
    s.ends();
    // Lengths that do not add up, or not to what there is.
    for pieces in [&[(0, 99, 3, 1)][..], &[(0, u64::MAX, 3, 1), (0, 101, 3, 1)]] {
        let mut s = scene();
        let into = s.w.zeros(s.victim, 100);
        s.w.recv(s.victim, 1, &[into.sge()]);
        s.intruder.record(&long(pieces, 100), 2);
        s.ends();
    }
    // Beyond the end of a region that was shared.
    let mut s = scene();
    let (_map, fd) = exs::sys::share(4096).unwrap();
    let mut share = b"S".to_vec();
    share.extend_from_slice(&[3u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat());
    share.extend_from_slice(&4096u64.to_ne_bytes());
    s.intruder.say(&share, &[&File::from(fd)]);
    let into = s.w.zeros(s.victim, 100);
    s.w.recv(s.victim, 1, &[into.sge()]);
    s.intruder.record(&long(&[(4000, 100, 3, 1)], 100), 2);
    s.ends();
    // Consumed what was never sent; wants a record by the lane that there is not.
    for (word, value) in [(0, 64u64), (0, u64::MAX), (1, 64)] {
        let s = scene();
        s.intruder.write(WORDS[word], &value.to_ne_bytes());
        s.intruder.say(b"B", &[]);
        s.ends();
    }
}

/// Messages on the socket that make no sense, and descriptors that are something else.
#[test]
fn messages_that_make_no_sense() {
    let _dog = Watchdog::new("messages_that_make_no_sense");
    for message in [&b"?"[..], b"S", b"A123", b"H", b"R\x01", b"P", b"P\0\0\0\0", &[0; 1024]] {
        let s = scene();
        s.intruder.say(message, &[]);
        s.ends();
    }
    let s = scene();
    let mut share = b"S".to_vec();
    share.extend_from_slice(&[0u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat());
    share.extend_from_slice(&4096u64.to_ne_bytes());
    s.intruder.say(&share, &[&File::open("/proc/self/exe").unwrap()]);
    s.unharmed();
    // A board that is none is not written to; the connection goes on.
    let Scene { mut w, good, victim, mut intruder, .. } = scene();
    let into = w.zeros(victim, 8);
    w.recv(victim, 1, &[into.sge()]);
    let [one, other] = [(); 2].map(|()| File::open("/proc/self/exe").unwrap());
    intruder.say(b"P\xff\xff\xff\xff", &[&one, &other]);
    let mut body = Head { inline: 4, total: 4, ..Head::default() }.bytes();
    body.extend_from_slice(b"fine");
    intruder.record(&body, 1);
    let wc = w.received(victim);
    assert_eq!((wc.wr_id, wc.status, into.read::<4>(0)), (1, WcStatus::Success, *b"fine"));
    w.assert_alive(good);
}

/// A socket whose close(2) waits an hour for its other end.
fn slow_to_close() -> (File, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    nix::sys::socket::setsockopt(&client, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    client.set_nonblocking(true).unwrap();
    while client.write(&[0; 65_536]).is_ok() {}
    (File::from(std::os::fd::OwnedFd::from(client)), server)
}

/// Descriptors that take an hour to close, wherever a peer can put them: no connection waits for that.
#[test]
fn descriptors_that_are_slow_to_close() {
    let _dog = Watchdog::new("descriptors_that_are_slow_to_close");
    let mut ends = Vec::new();
    let mut say = |intruder: &Intruder, message: &[u8]| {
        let (slow, end) = slow_to_close();
        ends.push(end);
        intruder.say(message, &[&slow]);
    };
    // With nonsense, with what should carry another descriptor, with what should carry none; and where
    // they are not taken out of the socket before it is closed.
    let share = [&b"S"[..], &[0; 4], &[1, 0, 0, 0], &4096u64.to_ne_bytes()].concat();
    for message in [&b"?"[..], &share, b"B", b"P\0\0\0\0"] {
        let mut s = scene();
        say(&s.intruder, message);
        say(&s.intruder, b"?");
        say(&s.intruder, b"?");
        let cause = s.w.disconnected(s.victim);
        assert!(matches!(cause, DisconnectCause::TerminatedByUs(_)), "{cause:?}");
        s.unharmed();
    }
    // Of a caller that has said nothing yet, and of a caller whose listener is closed.
    let mut w = World::<Shm>::new(1);
    let (listener, addr) = w.listen(0, Shm::local());
    let caller = Intruder::call(addr, &Hello { version: 1, ..Hello::to(addr) });
    say(&caller, b"?");
    w.until("the end", |_| caller.hear());
    let waiting = Intruder::call(addr, &Hello::to(addr));
    say(&waiting, b"?");
    w.rnics[0].close_listener(listener).unwrap();
    let (a, b) = (w.end(0), w.end(0));
    let pair = w.join(a, b, &param(&[]));
    w.assert_alive(pair);
}

/// Data that a peer has handed over before it died are delivered, and then its end is reported.
#[test]
fn data_of_a_dead_peer_is_delivered() {
    let _dog = Watchdog::new("data_of_a_dead_peer_is_delivered");
    let Scene { mut w, good, victim, mut intruder, .. } = scene();
    let into = w.zeros(victim, 8);
    w.recv(victim, 1, &[into.sge()]);
    w.recv(victim, 2, &[]);
    let mut body = Head { inline: 4, total: 4, ..Head::default() }.bytes();
    body.extend_from_slice(b"last");
    intruder.record(&body, 1);
    drop(intruder);
    let wc = w.received(victim);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, 4));
    assert_eq!(into.read::<4>(0), *b"last");
    assert_eq!(w.disconnected(victim), DisconnectCause::Broken(libc::ECONNRESET));
    assert_eq!(w.received(victim).status, WcStatus::Flushed);
    w.assert_alive(good);
}

/// HELLOs that lie: of addresses that are not the caller's or not the listener's, or of
/// another version. They are dropped without a trace.
#[test]
fn callers_are_not_believed() {
    let _dog = Watchdog::new("callers_are_not_believed");
    let mut w = World::<Shm>::new(1);
    let (_, addr) = w.listen(0, Shm::local());
    let good = Hello::to(addr);
    let other = |text: &str| -> SocketAddr { text.parse().unwrap() };
    for hello in [
        Hello { caller: other("192.0.2.1:5"), ..good },
        Hello { called: other("127.0.0.2:5"), ..good },
        Hello { called: SocketAddr::new(addr.ip(), addr.port() ^ 1), ..good },
        Hello { place: 1, ..good },
        Hello { place: u32::MAX, ..good },
        Hello { version: VERSION + 1, ..good },
    ] {
        let intruder = Intruder::call(addr, &hello);
        let gone = w.until("the end", |_| intruder.hear());
        assert!(gone.is_empty(), "{hello:?}: {gone:?}");
        assert!(w.cm[0].is_empty(), "{hello:?}: {:?}", w.cm[0]);
    }
    let (a, b) = (w.end(0), w.end(0));
    let pair = w.join(a, b, &param(&[]));
    w.assert_alive(pair);
}

/// Callers that say nothing are dropped in time, and keep no other caller out meanwhile.
#[test]
fn a_silent_caller_is_dropped() {
    let _dog = Watchdog::new("a_silent_caller_is_dropped");
    let mut w = World::<Shm>::new(1);
    let (_, addr) = w.listen(0, Shm::local());
    let name = format!("exs/1/tcp4/{addr}");
    let silent = exs::sys::connect_abstract(name.as_bytes()).unwrap();
    w.settle();
    let (a, b) = (w.end(0), w.end(0));
    let pair = w.join(a, b, &param(&[]));
    w.assert_alive(pair);
    w.skip(std::time::Duration::from_secs(3600));
    w.until("the end", |_| {
        let mut buf = [0; 1];
        let got = exs::sys::recv_with_fds(std::os::fd::AsFd::as_fd(&silent), &mut buf);
        (got.is_ok_and(|(n, _)| n == 0)).then_some(())
    });
}

/// The memory of a connection that ended in order serves the next one, and is gone a second later. That
/// of one that was cut, or that moved much, does not.
#[test]
fn memory_is_used_again() {
    let _dog = Watchdog::new("memory_is_used_again");
    let mut w = World::<Shm>::new(2);
    let (_, addr) = w.listen(1, Shm::local());
    let spares = |w: &World<Shm>| [w.rnics[0].spare_memories(), w.rnics[1].spare_memories()];
    let joined = |w: &mut World<Shm>| {
        let (a, b) = (w.end(0), w.end(1));
        let now = w.now();
        w.rnics[0].connect(a.qp, addr, &param(&[]), now).unwrap();
        let (req, _) = w.request(1);
        let now = w.now();
        w.rnics[1].accept(req, b.qp, &param(&[]), now).unwrap();
        w.established(a);
        w.established(b);
        assert_eq!(spares(w), [(0, 0); 2], "what was kept is in use");
        Pair { a, b }
    };
    let end = |w: &mut World<Shm>, pair: Pair, how: Disconnect| {
        w.disconnect(pair.a, how);
        w.ended(pair.a, |_| true);
        w.ended(pair.b, |_| true);
        w.settle();
    };
    for _ in 0..4 {
        let pair = joined(&mut w);
        w.assert_alive(pair);
        end(&mut w, pair, Disconnect::Orderly);
        assert_eq!(spares(&w), [(1, 0), (0, 1)]);
    }
    w.skip(Duration::from_secs(2));
    w.until("the end of the spares", |w| (spares(w) == [(0, 0); 2]).then_some(()));
    for (how, messages) in [(Disconnect::Abort, 1), (Disconnect::Orderly, 100)] {
        let pair = joined(&mut w);
        (0..messages).for_each(|_| w.assert_alive(pair));
        end(&mut w, pair, how);
        assert_eq!(spares(&w), [(0, 0); 2], "{how:?}, {messages}");
    }
}

/// Callers that have sent their requests before others came are read before they would give way.
#[test]
fn callers_give_way_only_before_their_requests() {
    let _dog = Watchdog::new("callers_give_way_only_before_their_requests");
    let mut w = World::<Shm>::new(1);
    w.rnics[0].limit_startups(4);
    let (_, addr) = w.listen(0, Shm::local());
    let callers: Vec<Intruder> = (0..20).map(|_| Intruder::call(addr, &Hello::to(addr))).collect();
    for _ in &callers {
        w.request(0);
    }
}

/// Whatever is written, wherever: no panic, no byte outside of the window, and the others
/// go on.
#[test]
fn nonsense_by_the_thousand() {
    let _dog = Watchdog::new("nonsense_by_the_thousand");
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut below = |n: u64| rng.word() % n;
        let mut s = scene();
        let into = s.w.zeros(s.victim, 300);
        for id in 0..4 {
            s.w.recv(s.victim, id, &[into.sge()]);
        }
        for _ in 0..20 {
            match below(4) {
                0 => {
                    let offset = below(TOTAL);
                    s.intruder.write(offset, &below(u64::MAX).to_ne_bytes());
                }
                1 => {
                    let word = WORDS[usize::try_from(below(6)).unwrap()];
                    s.intruder.write(word, &below(1 << 20).to_ne_bytes());
                }
                _ => {
                    let total = below(400);
                    let inline = u32::try_from(below(total + 2)).unwrap();
                    let head = Head {
                        kind: u8::try_from(below(8)).unwrap(),
                        flags: u8::try_from(below(8)).unwrap(),
                        pieces: u8::try_from(below(3)).unwrap(),
                        inline,
                        raddr: s.memory.addr() + below(1000),
                        total,
                        key: if below(3) > 0 { s.key } else { 5 },
                    };
                    let mut body = head.bytes();
                    body.extend((0..below(500)).map(|i: u64| i.to_le_bytes()[0]));
                    let len = (56 + u64::from(inline) + 24 * u64::from(head.pieces)).div_ceil(64);
                    s.intruder.record(&body, len);
                }
            }
            s.w.step(std::time::Duration::ZERO);
            if s.w.cm[0].iter().any(|e| matches!(e, CmEvent::Disconnected { .. })) {
                break;
            }
        }
        s.unharmed();
    }
}
