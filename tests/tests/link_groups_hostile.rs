//! What strangers can do to link groups of the software RNIC: nothing to others, and little to their own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use exs::rnic::{ListenOpts, Rnic};
use exs::sys::RandomSource;
use exs::wire::group::{
    GroupFrameKind, GroupHead, GroupKind, HELLO_LEN, HelloRepr, LEAST_WINDOW, MoveRepr,
    ResetReason, WORD,
};
use exs_tests::harness::Watchdog;
use exs_tests::rnic::groups::{All, call};
use exs_tests::rnic::world::{listen_opts, param};
use exs_tests::rnic::{Harness, World};

/// The payload of OPEN.
const PORT: [u8; WORD] = [0xC0, 1, 0, 0];

/// A stranger that is in a group with a listener, and the token of the group.
struct Stranger(TcpStream, u64);

impl Stranger {
    fn call<H: Harness>(w: &mut World<H>, addr: SocketAddr) -> Stranger {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_nonblocking(true).unwrap();
        let hello = HelloRepr::of_dialer(GroupKind::Many, 1 << 16, 1);
        stream.write_all(&hello.emit()).unwrap();
        let mut answer = [0; HELLO_LEN];
        w.until("the answer", |_| stream.read_exact(&mut answer).ok());
        let answer = HelloRepr::parse(&answer, true).unwrap();
        assert_ne!(answer.token, 0);
        Stranger(stream, answer.token)
    }

    /// Opens stream 1, and has it established.
    fn join(&mut self, w: &mut World<All>) {
        self.frame(1, GroupFrameKind::Open, &PORT);
        self.frame(1, GroupFrameKind::Data, b"MPA ID Req Frame\0\x01\0\0");
        let (req, _) = w.request(1);
        let (end, now) = (w.end(1), w.now());
        w.rnics[1].accept(req, end.qp, &param(&[]), now).unwrap();
        w.settle();
        let head = GroupHead { stream: 1, kind: GroupFrameKind::Data, len: 20 }.emit();
        self.gets(w, &[&head[..], b"MPA ID Rep Frame\0\x01\0\0"].concat());
    }

    /// These are the next bytes that come.
    fn gets(&mut self, w: &mut World<All>, bytes: &[u8]) {
        let mut came = vec![0; bytes.len()];
        w.until("bytes", |_| self.0.read_exact(&mut came).ok());
        assert_eq!(came, bytes);
    }

    /// Asks for a stream to move to a connection.
    fn asks(addr: SocketAddr, stream: u32, token: u64) -> Stranger {
        let mut tcp = TcpStream::connect(addr).unwrap();
        tcp.set_nonblocking(true).unwrap();
        tcp.write_all(&MoveRepr { stream, token }.emit()).unwrap();
        Stranger(tcp, token)
    }

    fn frame(&mut self, stream: u32, kind: GroupFrameKind, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap();
        self.0.write_all(&GroupHead { stream, kind, len }.emit()).unwrap();
        self.0.write_all(payload).unwrap();
    }

    /// The end of what comes: true if there is one within some turns.
    fn ended<H: Harness>(&mut self, w: &mut World<H>) -> bool {
        let mut bytes = [0; 4096];
        (0..200).any(|_| {
            w.step(Duration::from_millis(1));
            loop {
                match self.0.read(&mut bytes) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(e) => return e.kind() != std::io::ErrorKind::WouldBlock,
                }
            }
        })
    }
}

/// Each broken rule ends the group of the peer that broke it, and no other.
#[test]
fn bad_frames_end_their_group() {
    use GroupFrameKind::{Data, Fin, Moved, Open, Reset, Window};
    type Bad = (&'static str, fn(&mut Stranger));
    let bad: [Bad; 10] = [
        ("no such kind", |s| s.0.write_all(&[0, 0, 0, 1, 9, 0, 0, 0]).unwrap()),
        ("too long", |s| s.0.write_all(&[0, 0, 0, 1, 2, 255, 255, 255]).unwrap()),
        ("a word too short", |s| s.0.write_all(&[0, 0, 0, 1, 3, 0, 0, 3]).unwrap()),
        ("out of order", |s| s.frame(2, Open, &PORT)),
        ("twice", |s| (0..2).for_each(|_| s.frame(1, Open, &PORT))),
        ("not opened", |s| s.frame(1, Data, b"x")),
        ("the end of nothing", |s| s.frame(7, Fin, &[])),
        ("the reset of nothing", |s| s.frame(7, Reset, &[0; WORD])),
        ("the move of nothing", |s| s.frame(7, Moved, &[])),
        ("a move of a stream that waits", |s| {
            s.frame(1, Open, &PORT);
            s.frame(1, Moved, &[]);
        }),
    ];
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    for (what, act) in bad {
        let mut stranger = Stranger::call(&mut w, addr);
        act(&mut stranger);
        assert!(stranger.ended(&mut w), "{what}");
        w.assert_alive(honest);
    }
    // Credit for a stream that is unknown, and the end of one that was refused, are no faults.
    let mut stranger = Stranger::call(&mut w, addr);
    stranger.frame(9, Window, &[0; WORD]);
    stranger.frame(1, Open, &PORT);
    stranger.frame(1, Reset, &ResetReason::Aborted.emit());
    stranger.frame(1, Fin, &[]);
    assert!(!stranger.ended(&mut w));
}

/// A request to move that fits no stream is refused, whether the token is known or not. The group goes on.
#[test]
fn requests_to_move_nothing_are_refused() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    let mut stranger = Stranger::call(&mut w, addr);
    let token = stranger.1;
    for (stream, token) in [(1, token), (1, token ^ 1), (1, 0), (u32::MAX, token)] {
        assert!(Stranger::asks(addr, stream, token).ended(&mut w), "{stream} {token}");
    }
    // A stream that waits for its listener, or for its answer, does not move.
    stranger.frame(1, GroupFrameKind::Open, &PORT);
    w.settle();
    assert!(Stranger::asks(addr, 1, token).ended(&mut w));
    stranger.frame(1, GroupFrameKind::Reset, &ResetReason::Aborted.emit());
    w.settle();
    assert!(Stranger::asks(addr, 1, token).ended(&mut w));
    assert!(!stranger.ended(&mut w));
    w.assert_alive(honest);
}

/// A stream moves once, and nothing of it may pass by the group after that.
#[test]
fn a_stream_that_has_moved_ends_in_the_group() {
    let moved = GroupHead { stream: 1, kind: GroupFrameKind::Moved, len: 0 }.emit();
    for bad in [true, false] {
        let mut w = World::<All>::new(2);
        let (_, addr) = w.listen(1, All::local());
        let honest = call(&mut w, addr);
        let mut stranger = Stranger::call(&mut w, addr);
        stranger.join(&mut w);
        let mut own = Stranger::asks(addr, 1, stranger.1);
        stranger.gets(&mut w, &moved);
        assert!(Stranger::asks(addr, 1, stranger.1).ended(&mut w), "it is on its way");
        if bad {
            // In one piece, so that the link has no turn between them.
            let data = GroupHead { stream: 1, kind: GroupFrameKind::Data, len: 1 }.emit();
            stranger.0.write_all(&[&moved[..], &data, b"x"].concat()).unwrap();
            assert!(stranger.ended(&mut w));
        } else {
            stranger.0.write_all(&moved).unwrap();
            assert!(!own.ended(&mut w), "the link has it");
            stranger.frame(1, GroupFrameKind::Moved, &[]);
            assert!(!stranger.ended(&mut w), "the stream is over");
            assert!(Stranger::asks(addr, 1, stranger.1).ended(&mut w));
        }
        w.assert_alive(honest);
    }
}

/// A hello of another version may be shorter: its sender must not wait for an answer.
#[test]
fn another_version_is_refused_at_once() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let mut tcp = TcpStream::connect(addr).unwrap();
    tcp.set_nonblocking(true).unwrap();
    tcp.write_all(b"EXS Group Hello \0\x01").unwrap();
    assert!(Stranger(tcp, 0).ended(&mut w));
}

/// A stream that no listener has taken yet brings its request, and no more.
#[test]
fn a_stream_that_waits_for_its_listener_holds_little() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    w.rnics[1].limit_startups(1);
    let mut stranger = Stranger::call(&mut w, addr);
    // The first one has the only place for a start-up.
    for stream in [1, 2] {
        stranger.frame(stream, GroupFrameKind::Open, &PORT);
        w.settle();
    }
    let most = LEAST_WINDOW as usize;
    stranger.frame(2, GroupFrameKind::Data, &vec![0; most]);
    w.settle();
    let mut byte = [0];
    let open = stranger.0.read(&mut byte).map_err(|e| e.kind());
    assert_eq!(open, Err(std::io::ErrorKind::WouldBlock));
    stranger.frame(2, GroupFrameKind::Data, b"x");
    assert!(stranger.ended(&mut w));
    w.assert_alive(honest);
}

/// A stream whose request does not come gives its place for a start-up to another, as a connection does.
#[test]
fn a_silent_stream_gives_its_place_to_another() {
    let _dog = Watchdog::new("a silent stream");
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    w.rnics[1].limit_startups(1);
    let mut stranger = Stranger::call(&mut w, addr);
    for stream in [1, 2] {
        stranger.frame(stream, GroupFrameKind::Open, &PORT);
        w.settle();
    }
    w.skip(Duration::from_millis(300));
    w.settle();
    let mut answer = [0; 12];
    stranger.0.read_exact(&mut answer).unwrap();
    let head = GroupHead { stream: 1, kind: GroupFrameKind::Reset, len: 4 }.emit();
    assert_eq!(answer, [&head[..], &ResetReason::Aborted.emit()].concat()[..]);
    w.assert_alive(honest);
}

/// Streams that the peer ends before the listener has come to them count as those that wait.
#[test]
fn streams_that_end_unaccepted_are_limited() {
    const MOST: u32 = 1 << 14;
    const REQUESTS: u32 = 16;
    let mut w = World::<All>::new(2);
    let opts = ListenOpts { backlog: REQUESTS, ..listen_opts() };
    let listener = w.rnics[1].listen(All::local(), &opts).unwrap();
    let addr = w.rnics[1].listener_addr(listener).unwrap();
    let honest = call(&mut w, addr);
    let mut stranger = Stranger::call(&mut w, addr);
    // The listener takes nothing more until its program answers these.
    for _ in 0..REQUESTS {
        let (end, now) = (w.end(0), w.now());
        w.rnics[0].connect(end.qp, addr, &param(&[]), now).unwrap();
        w.request(1);
    }
    for n in 1..=MOST {
        stranger.frame(n, GroupFrameKind::Open, &PORT);
        stranger.frame(n, GroupFrameKind::Reset, &ResetReason::Aborted.emit());
        if n % 256 == 0 {
            w.settle();
        }
    }
    w.settle();
    let mut answer = [0; 12];
    let none = stranger.0.read(&mut answer).map_err(|e| e.kind());
    assert_eq!(none, Err(std::io::ErrorKind::WouldBlock), "they had room");
    stranger.frame(1 + MOST, GroupFrameKind::Open, &PORT);
    w.settle();
    stranger.0.read_exact(&mut answer).unwrap();
    let head = GroupHead { stream: 1 + MOST, kind: GroupFrameKind::Reset, len: 4 }.emit();
    assert_eq!(answer, [&head[..], &ResetReason::Refused.emit()].concat()[..]);
    w.assert_alive(honest);
}

/// Bytes of a stream that is over are answered. A peer that never reads the answers cannot have them pile
/// up.
#[test]
fn a_peer_that_does_not_read_ends_its_group() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    let mut stranger = Stranger::call(&mut w, addr);
    stranger.frame(1, GroupFrameKind::Open, &PORT);
    stranger.frame(1, GroupFrameKind::Reset, &ResetReason::Aborted.emit());
    let head = GroupHead { stream: 1, kind: GroupFrameKind::Data, len: 1 }.emit();
    let frames = [&head[..], b"x"].concat().repeat(1000);
    let (mut at, mut sent) = (0, 0);
    let ended = loop {
        match stranger.0.write(&frames[at..]) {
            Ok(n) => (at, sent) = ((at + n) % frames.len(), sent + n),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => w.settle(),
            Err(_) => break true,
        }
        if sent > 256 << 20 {
            break false;
        }
    };
    assert!(ended, "{sent} bytes were answered");
    w.assert_alive(honest);
}

/// Streams whose requests do not come wait as connections do; random frames do no harm.
#[test]
fn random_frames_do_no_harm() {
    let mut random = RandomSource::seeded(42);
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let honest = call(&mut w, addr);
    for _ in 0..60 {
        let mut stranger = Stranger::call(&mut w, addr);
        let mut opened = 0;
        for _ in 0..40 {
            let word = random.next_u32();
            let stream = 1 + word % 4;
            let payload = vec![word.to_be_bytes()[3]; 1 + (word >> 8) as usize % 300];
            match word >> 28 {
                0..=3 => {
                    opened += 1;
                    stranger.frame(opened, GroupFrameKind::Open, &PORT);
                }
                4 => stranger.frame(stream, GroupFrameKind::Fin, &[]),
                5 => stranger.frame(stream, GroupFrameKind::Moved, &[]),
                6 | 7 => stranger.frame(stream, GroupFrameKind::Reset, &[0; WORD]),
                8 => drop(Stranger::asks(addr, stream, stranger.1)),
                9 => stranger.frame(stream, GroupFrameKind::Window, &word.to_be_bytes()),
                _ => stranger.frame(stream, GroupFrameKind::Data, &payload),
            }
        }
        w.settle();
    }
    while w.rnics[1].poll_event().is_some() {}
    w.assert_alive(honest);
}
