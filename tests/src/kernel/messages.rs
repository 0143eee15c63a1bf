//! Sockets that carry messages: boundaries, lengths, addresses.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use exs::{Buffer, KernelAddr, RecvFlags};
use nix::sys::socket::{setsockopt, sockopt};

use super::{Family, MESSAGES, Ours, pair};
use crate::harness::{Ledger, check, pattern};

/// Each send is a message, each receive takes one.
pub fn boundaries_are_kept() {
    for family in MESSAGES {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let recvs: Vec<_> = (0..5)
            .map(|_| ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 2000], RecvFlags::NONE)))
            .collect();
        for n in [1, 1000, 3, 1999, 500] {
            assert_eq!(peer.write(&pattern(2, n, n)).unwrap(), n);
        }
        for (token, n) in recvs.into_iter().zip([1, 1000, 3, 1999, 500]) {
            let event = ledger.wait_ok(token);
            assert_eq!((event.bytes(), event.truncated(), event.eof()), (n, false, false));
            check(2, n, &event.into_buffer().unwrap()[..n]);
        }
        for n in [7, 1200] {
            ledger.post("send", |q, t| ours.send(q, t, pattern(4, n, n)));
        }
        for n in [7, 1200] {
            let mut got = [0; 2000];
            assert_eq!(peer.read(&mut got).unwrap(), n, "{family:?}");
            check(4, n, &got[..n]);
        }
        ledger.finish();
    }
}

/// A receive that is too small says how long the message was.
pub fn truncation_tells_the_true_length() {
    for family in MESSAGES {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        peer.write_all(&pattern(1, 0, 900)).unwrap();
        peer.write_all(b"next").unwrap();
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 100], RecvFlags::WAITALL));
        let event = ledger.ok();
        assert_eq!((event.bytes(), event.total(), event.truncated()), (100, 900, true));
        check(1, 0, &event.into_buffer().unwrap());
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 100], RecvFlags::NONE));
        let event = ledger.ok();
        assert_eq!((event.bytes(), event.truncated()), (4, false), "{family:?}");
        ledger.finish();
    }
}

/// A message without bytes is one, and no end.
pub fn empty_messages() {
    for family in MESSAGES {
        let (ours, peer) = pair(family);
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 100], RecvFlags::NONE));
        let other = Ours::new(peer.into());
        ledger.post("send", |q, t| other.send(q, t, *b""));
        let event = ledger.wait_ok(recv);
        assert_eq!((event.bytes(), event.eof()), (0, false), "{family:?}");
        ledger.finish();
    }
}

/// The end of a connection is told apart from an empty message.
pub fn the_end_of_a_seqpacket() {
    let (ours, peer) = pair(Family::SeqPacket);
    let mut ledger = Ledger::new();
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 100], RecvFlags::NONE));
    drop(peer);
    let event = ledger.ok();
    assert_eq!((event.bytes(), event.eof()), (0, true));
    ledger.post("send", |q, t| ours.send(q, t, *b"x"));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::EPIPE);
    ledger.finish();
}

/// A peek leaves the message.
pub fn peek() {
    for family in MESSAGES {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        peer.write_all(b"hello").unwrap();
        for flags in [RecvFlags::PEEK, RecvFlags::PEEK, RecvFlags::NONE] {
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], flags));
            let event = ledger.ok();
            assert_eq!((event.bytes(), event.total()), (3, 5), "{family:?}");
        }
        ledger.finish();
    }
}

/// A message may be of many buffers, up to what the kernel takes.
pub fn many_buffers() {
    for family in MESSAGES {
        let (ours, peer) = pair(family);
        let other = Ours::new(peer.into());
        let mut ledger = Ledger::new();
        let byte = |i: usize| i.to_le_bytes()[0];
        let parts = |n: usize| (0..n).map(|i| Buffer::from(vec![byte(i); 3])).collect::<Vec<_>>();
        let recv =
            ledger.post("recv", |q, t| other.recv_vectored(q, t, parts(500), RecvFlags::NONE));
        ledger.post("send", |q, t| ours.send_vectored(q, t, parts(500)));
        let mut event = ledger.wait_ok(recv);
        assert_eq!(event.bytes(), 1500, "{family:?}");
        for (i, b) in event.take_buffers().iter().enumerate() {
            assert_eq!(b[..], [byte(i); 3]);
        }
        let refused = ours.send_vectored(ledger.queue(), exs::Token(0), parts(1025)).unwrap_err();
        assert_eq!((refused.error.errno(), refused.buffer.len()), (libc::EMSGSIZE, 1025));
        ledger.finish();
    }
}

/// Datagrams to an address, and from whom they are.
pub fn addresses() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let (a, b) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
        let ours = Ours::new(a.into());
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| {
            ours.recv_from(
                q,
                t,
                vec![Buffer::from(vec![0; 2]), Buffer::from(vec![0; 9])],
                RecvFlags::NONE,
            )
        });
        assert_eq!(b.send_to(b"hello", to_a).unwrap(), 5);
        let mut event = ledger.wait_ok(recv);
        assert_eq!((event.bytes(), event.peer().unwrap().as_ip()), (5, Some(to_b)));
        assert_eq!(event.take_buffers()[1][..3], *b"llo");
        let parts = vec![Buffer::from(*b"an"), Buffer::from(*b"swer")];
        ledger.post("send", |q, t| ours.send_to(q, t, parts, to_b));
        let mut got = [0; 9];
        assert_eq!(b.recv_from(&mut got).unwrap(), (6, to_a));
        assert_eq!(&got[..6], b"answer");
        ledger.drain();
        // An address of another family is the kernel's to refuse.
        let odd = KernelAddr::unix("/nowhere").unwrap();
        ledger.post("send", |q, t| ours.send_to(q, t, vec![(*b"x").into()], odd));
        assert!(ledger.event().error().is_some());
        ledger.finish();
    }
}

/// The same with names in the file system, and none.
pub fn unix_addresses() {
    let dir = std::env::temp_dir().join(format!("exs-test-unix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (at, to) = (dir.join("a"), dir.join("b"));
    let (a, b) = (UnixDatagram::bind(&at).unwrap(), UnixDatagram::bind(&to).unwrap());
    let ours = Ours::new(a.into());
    let mut ledger = Ledger::new();
    let post = |ledger: &mut Ledger| {
        ledger.post("recv", |q, t| {
            ours.recv_from(q, t, vec![Buffer::from(vec![0; 9])], RecvFlags::NONE)
        })
    };
    post(&mut ledger);
    b.send_to(b"hi", &at).unwrap();
    assert_eq!(ledger.ok().peer().unwrap().as_unix_path(), Some(to.as_path()));
    post(&mut ledger);
    UnixDatagram::unbound().unwrap().send_to(b"hi", &at).unwrap();
    assert!(ledger.ok().peer().is_none_or(|p| p.as_unix_path().is_none()));
    let name = KernelAddr::unix(&to).unwrap();
    ledger.post("send", |q, t| ours.send_to(q, t, vec![(*b"back").into()], name));
    let mut got = [0; 9];
    assert_eq!(b.recv(&mut got).unwrap(), 4);
    ledger.finish();
    std::fs::remove_dir_all(&dir).unwrap();
}

/// To an address whose queue is full a send waits, though no readiness tells when.
pub fn a_full_queue_elsewhere() {
    const MESSAGES: u8 = 200;
    let b = UnixDatagram::bind_addr(
        &std::os::unix::net::SocketAddr::from_pathname(
            std::env::temp_dir().join(format!("exs-test-full-{}", std::process::id())),
        )
        .unwrap(),
    )
    .unwrap();
    let path = b.local_addr().unwrap().as_pathname().unwrap().to_owned();
    let ours = Ours::new(UnixDatagram::unbound().unwrap().into());
    let mut ledger = Ledger::new();
    for i in 0..MESSAGES {
        let to = KernelAddr::unix(&path).unwrap();
        ledger.post("send", |q, t| ours.send_to(q, t, vec![vec![i; 50].into()], to));
    }
    assert!(ledger.poll(std::time::Duration::ZERO).is_some());
    assert!(ledger.outstanding() > 0, "the queue holds {MESSAGES} messages");
    let reading = std::thread::spawn(move || {
        for i in 0..MESSAGES {
            let mut got = [0; 60];
            assert_eq!((b.recv(&mut got).unwrap(), got[49]), (50, i));
        }
    });
    ledger.finish();
    reading.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}

/// A message that is too long for the kernel is an error and nothing else; so is a file.
pub fn a_message_too_long() {
    let file = super::stream::file_of(1, 300 << 10);
    for family in [Family::Udp4, Family::Udp6, Family::SeqPacket] {
        let (ours, peer) = pair(family);
        if family == Family::SeqPacket {
            setsockopt(ours.get_ref(), sockopt::SndBuf, &10_000).unwrap();
        }
        let mut ledger = Ledger::new();
        ledger.post("send", |q, t| ours.send(q, t, vec![0; 70_000]));
        assert_eq!(ledger.event().error().unwrap().errno(), libc::EMSGSIZE, "{family:?}");
        ledger.post("file", |q, t| ours.send_file(q, t, Arc::clone(&file), 0, 300 << 10));
        assert_eq!(ledger.event().error().unwrap().errno(), libc::EMSGSIZE, "{family:?}");
        ledger.post("file", |q, t| ours.send_file(q, t, Arc::clone(&file), 5, 1000));
        assert_eq!(ledger.ok().bytes(), 1000);
        let mut got = [0; 2000];
        assert_eq!((&peer).read(&mut got).unwrap(), 1000, "one message");
        check(1, 5, &got[..1000]);
        ledger.finish();
    }
}

/// The next operation on the socket gets an ICMP error.
pub fn an_icmp_error() {
    let gone: SocketAddr = {
        let b = UdpSocket::bind("127.0.0.1:0").unwrap();
        b.local_addr().unwrap()
    };
    let a = UdpSocket::bind("127.0.0.1:0").unwrap();
    a.connect(gone).unwrap();
    let ours = Ours::new(a.into());
    let mut ledger = Ledger::new();
    let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
    ledger.post("send", |q, t| ours.send(q, t, *b"x"));
    assert_eq!(ledger.wait(recv).error().unwrap().errno(), libc::ECONNREFUSED);
    ledger.finish();
}
