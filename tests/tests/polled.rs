//! Programs that poll the descriptors of sockets: what the peer leaves there itself.
//!
//! A case plays the C library. It holds a socket pair for a connection, announces the program's
//! sleep, and looks at what lies at the program's end. What a send leaves at the descriptor is there
//! when the send returns, since both ends are in this process.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use exs::__ffi::{
    AttendedStream, RecvAtOnce, RungBy, Watch, end_polling, is_attended, polled, recv_at_once,
    recv_ready, rung_by, standing, watch,
};
use exs::{Event, EventQueue, Options, Socket, Token, Transport};
use exs_tests::harness::{Watchdog, stream_pair};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, shutdown, socketpair,
};

/// A watch that counts the changes which a thread of the library shows.
#[derive(Default)]
struct Counted(Mutex<u32>);

impl Counted {
    fn count(&self) -> u32 {
        *self.0.lock().unwrap()
    }
}

impl Watch for Counted {
    fn changed(&self) {
        *self.0.lock().unwrap() += 1;
    }
}

/// One side of a connection, with the descriptor that its program polls.
struct Side {
    socket: Socket,
    theirs: OwnedFd,
    ours: OwnedFd,
    shown: Arc<Counted>,
}

impl Side {
    fn new(socket: Socket) -> Side {
        let kind = (AddressFamily::Unix, SockType::SeqPacket);
        let (theirs, ours) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let shown = Arc::new(Counted::default());
        watch(&socket, Some(Arc::clone(&shown) as Arc<dyn Watch>));
        Side { socket, theirs, ours, shown }
    }

    /// Announces the program's sleep, and returns how many messages are to be taken.
    fn sleep(&self) -> Option<u32> {
        polled(&self.socket, Some(self.ours.as_fd()))
    }

    /// The length of the next message at the descriptor. None: there is none.
    fn message(&self) -> Option<usize> {
        let mut bytes = [0; 8192];
        match recv(self.theirs.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => None,
            got => Some(got.unwrap()),
        }
    }

    /// Receives without waiting. None: there is nothing.
    fn receive(&self) -> Option<Vec<u8>> {
        let queue = EventQueue::new(1).unwrap();
        let buffers = vec![vec![0; 1 << 16].into()];
        recv_ready(&self.socket, &queue, Token(0), buffers, Default::default()).ok()?;
        let mut event: Event = queue.next().unwrap();
        let n = event.bytes();
        let bytes = event.take_buffer().unwrap()[..n].to_vec();
        Some(bytes)
    }
}

fn sides(transport: Transport) -> (Side, Side) {
    let (client, server) = stream_pair(&Options::default().with_transport(transport));
    (Side::new(client), Side::new(server))
}

/// Has `a` send messages of `len` bytes while `b` sleeps, until one rings at the descriptor. First
/// the peer must have got that descriptor, and the leader may have taken the connection back at any
/// time. Leaves nothing behind, and returns the length that the descriptor showed.
fn until_it_rings(a: &Side, b: &Side, len: usize) -> usize {
    loop {
        b.sleep().unwrap();
        a.socket.blocking().send_all(&vec![7; len]).unwrap();
        let shown = b.message();
        let mut got = 0;
        while got < len {
            got += b.receive().map_or(0, |bytes| bytes.len());
        }
        assert_eq!((got, b.receive()), (len, None));
        assert_eq!(b.sleep(), Some(u32::from(shown.is_some())), "one message was taken above");
        if let Some(shown) = shown {
            return shown;
        }
    }
}

#[test]
fn a_small_message_is_shown_by_its_sender() {
    let _dog = Watchdog::new("a small message rings");
    let (a, b) = sides(Transport::Shm);
    for len in [1, 64, 4000] {
        assert_eq!(until_it_rings(&a, &b, len), len, "as many bytes");
    }
}

#[test]
fn messages_that_follow_ring_too_but_not_for_ever() {
    let _dog = Watchdog::new("messages that follow ring");
    let (a, b) = sides(Transport::Shm);
    loop {
        until_it_rings(&a, &b, 1);
        (0..20).for_each(|_| a.socket.blocking().send_all(b"xy").unwrap());
        let rung = std::iter::from_fn(|| b.message()).inspect(|n| assert_eq!(*n, 2)).count();
        assert!(rung < 20, "{rung}");
        let mut got = 0;
        while got < 40 {
            got += b.receive().map_or(0, |bytes| bytes.len());
        }
        assert_eq!(b.sleep().map(|n| n as usize), Some(rung));
        if rung > 1 {
            return;
        }
    }
}

#[test]
fn data_that_came_before_the_sleep_are_not_missed() {
    let _dog = Watchdog::new("data before the sleep");
    let (a, b) = sides(Transport::Shm);
    until_it_rings(&a, &b, 1);
    // The receive takes the connection's messages; one comes before the next announcement.
    a.socket.blocking().send_all(b"1").unwrap();
    assert_eq!(b.receive().as_deref(), Some(&b"1"[..]));
    a.socket.blocking().send_all(b"2").unwrap();
    b.sleep().unwrap();
    assert!(b.message().is_some() || standing(&b.socket).readable);
    while b.receive().is_none() {}
}

#[test]
fn the_end_of_the_data_does_not_ring() {
    let _dog = Watchdog::new("an end does not ring");
    let (a, b) = sides(Transport::Shm);
    until_it_rings(&a, &b, 1);
    a.socket.blocking().shutdown(std::net::Shutdown::Write).unwrap();
    while !standing(&b.socket).ended {
        std::thread::yield_now();
    }
    assert_eq!(b.message(), None, "the leader shows it");
}

#[test]
fn a_program_that_does_not_come_is_served_by_the_leader() {
    let _dog = Watchdog::new("a program that does not come");
    let (a, b) = sides(Transport::Shm);
    until_it_rings(&a, &b, 1);
    a.socket.blocking().send_all(b"later").unwrap();
    while !standing(&b.socket).readable {
        std::thread::yield_now();
    }
    assert_eq!(b.receive().as_deref(), Some(&b"later"[..]));
}

#[test]
fn the_software_rnic_cannot_ring() {
    let _dog = Watchdog::new("no rings over TCP");
    let (a, b) = sides(Transport::Soft);
    assert_eq!((a.sleep(), b.sleep()), (None, None));
    a.socket.blocking().send_all(b"x").unwrap();
    while b.receive().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(b.message(), None);
}

#[test]
fn an_end_that_its_owner_has_spoilt_harms_no_sender() {
    let _dog = Watchdog::new("a spoilt end");
    let (a, b) = sides(Transport::Shm);
    until_it_rings(&a, &b, 1);
    shutdown(b.ours.as_raw_fd(), Shutdown::Both).unwrap();
    for _ in 0..50 {
        a.socket.blocking().send_all(b"x").unwrap();
    }
    let mut got = 0;
    while got < 50 {
        got += b.receive().map_or(0, |bytes| bytes.len());
    }
}

/// The bytes that a receive has taken. None: there are none.
fn took(outcome: &RecvAtOnce) -> Option<u64> {
    match outcome {
        RecvAtOnce::Took { bytes, .. } | RecvAtOnce::Passed { bytes } => Some(*bytes),
        RecvAtOnce::WouldWait { .. } | RecvAtOnce::Unchanged => None,
        other => panic!("{other:?}"),
    }
}

/// The stream of a connection over TCP, which the program polls.
fn stream_of(side: &Side) -> AttendedStream {
    match rung_by(&side.socket) {
        RungBy::Stream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

fn await_readable(stream: &AttendedStream) {
    let mut polled = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::NONE), Ok(1));
}

#[test]
fn data_make_the_stream_of_a_connection_readable() {
    let _dog = Watchdog::new("a stream is readable");
    let (a, b) = sides(Transport::Soft);
    let stream = stream_of(&b);
    let into = || vec![0; 64].into();
    let mut alone = 0;
    while alone < 100 {
        let before = b.shown.count();
        while took(&recv_at_once(&b.socket, &into(), None)).is_some() {}
        a.socket.blocking().send_all(b"data").unwrap();
        await_readable(&stream);
        let attended = is_attended(&b.socket);
        let got = loop {
            match took(&recv_at_once(&b.socket, &into(), None)) {
                Some(bytes) => break bytes,
                // The engine has taken the connection back, and another thread reads.
                None => assert!(!attended),
            }
        };
        assert_eq!(got, 4);
        alone += u32::from(attended && b.shown.count() == before);
    }
    end_polling(&b.socket);
    assert!(!is_attended(&b.socket), "the leader looks after it");
}

#[test]
fn a_stream_that_the_program_neglects_returns_to_the_leader() {
    let _dog = Watchdog::new("a neglected stream");
    let (a, b) = sides(Transport::Soft);
    let _stream = stream_of(&b);
    while !is_attended(&b.socket) {
        let outcome = recv_at_once(&b.socket, &vec![0; 64].into(), None);
        assert!(matches!(outcome, RecvAtOnce::WouldWait { .. }), "{outcome:?}");
    }
    a.socket.blocking().send_all(b"data").unwrap();
    while !standing(&b.socket).readable {
        std::thread::yield_now();
    }
    let outcome = recv_at_once(&b.socket, &vec![0; 64].into(), None);
    assert!(matches!(outcome, RecvAtOnce::Took { bytes: 4, .. }), "{outcome:?}");
}
