//! What the owner does with the socket meanwhile, and afterwards.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use exs::{Error, EventQueue, Interest, KernelSocket, RecvFlags, Token};
use nix::sys::socket as nx;

use super::{ALL, Family, Ours, STREAMS, descriptors, fill, pair, set_nonblocking};
use crate::harness::{LIMIT, Ledger};

/// More than the kernel ever holds for a connection, even if buffers grow after they were
/// full.
pub(super) const LARGE: usize = 30 << 20;

/// Blocking reads and writes of the owner's, before, between and after.
pub fn uses_it_between_and_after() {
    for family in ALL {
        let (ours, mut peer) = pair(family);
        let mut own = ours.file();
        let mut ledger = Ledger::new();
        let mut text = [0; 3];
        for _ in 0..3 {
            own.write_all(b"one").unwrap();
            ledger.post("send", |q, t| ours.send(q, t, *b"two"));
            own.write_all(b"tri").unwrap();
            for want in [b"one", b"two", b"tri"] {
                peer.read_exact(&mut text).unwrap();
                assert_eq!(&text, want, "{family:?}");
            }
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], RecvFlags::NONE));
            peer.write_all(b"eve").unwrap();
            let event = ledger.drain().pop().unwrap();
            assert_eq!(event.bytes(), 3);
            // It blocks: the answer comes later, from another thread.
            let mut late = peer.try_clone().unwrap();
            let writing = std::thread::spawn(move || late.write_all(b"own").unwrap());
            own.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"own", "{family:?}");
            writing.join().unwrap();
        }
        ledger.finish();
    }
}

/// The owner receives, blocking, while sends wait for room.
pub fn receives_while_we_send() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let before = fill(ours.get_ref());
        let mut ledger = Ledger::new();
        for _ in 0..10 {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; 100_000]));
        }
        let mut own = ours.file();
        let echo = std::thread::spawn(move || {
            let mut all = vec![0; before + 1_000_000];
            peer.write_all(b"go on").unwrap();
            peer.read_exact(&mut all).unwrap();
            peer.write_all(b"done").unwrap();
        });
        let mut text = [0; 9];
        own.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"go ondone", "{family:?}");
        echo.join().unwrap();
        ledger.finish();
    }
}

/// No call, of whatever kind and outcome, changes a flag or the time limits. `Ours`
/// looks at the flags at every call.
pub fn every_call_leaves_the_flags() {
    for (family, nonblocking) in ALL.iter().flat_map(|f| [(*f, false), (*f, true)]) {
        let (a, b) = family.pair();
        set_nonblocking(&a, nonblocking);
        let peer = File::from(b);
        let ours = Ours::new(a);
        let mut ledger = Ledger::new();
        ours.poll(ledger.queue(), Token(u64::MAX), Interest::WRITABLE).unwrap();
        assert!(ledger.queue().next().unwrap().readiness().writable);
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        ours.check();
        ledger.post("send", |q, t| ours.send(q, t, *b"abcd"));
        ours.check();
        (&peer).write_all(b"abcd").unwrap();
        ledger.wait_ok(recv);
        ours.check();
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        ours.cancel_all();
        ours.check();
        assert_eq!(
            nx::getsockopt(ours.get_ref(), nx::sockopt::ReceiveTimeout).unwrap().tv_sec(),
            0
        );
        assert_eq!(nx::getsockopt(ours.get_ref(), nx::sockopt::SendTimeout).unwrap().tv_sec(), 0);
        ledger.post("shutdown", |q, t| ours.shutdown(q, t, Shutdown::Both));
        ledger.drain();
        ours.check();
        ledger.finish();
    }
}

/// netperf's stream test: 16 sends of 64 KiB in flight, a threshold of half of them, a
/// timer that ends the run, then shutdown(2) and a blocking recv(2) on the same socket.
pub fn as_netperf_does() {
    const SIZE: usize = 64 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let sink = std::thread::spawn(move || {
        for _ in 0..50 {
            let (mut peer, _) = listener.accept().unwrap();
            let n = std::io::copy(&mut peer, &mut std::io::sink()).unwrap();
            peer.write_all(&n.to_ne_bytes()).unwrap();
        }
    });
    for round in 0..50 {
        let stream = TcpStream::connect(addr).unwrap();
        let inode = nix::sys::stat::fstat(&stream).unwrap().st_ino;
        let ours = KernelSocket::new(stream).unwrap();
        let queue = EventQueue::new(16).unwrap();
        let (mut sent, mut count) = (0u64, 0u64);
        // In place of a timer: a number of sends, another in each round.
        let end = 40 + round * 7;
        while count < end {
            match ours.send(&queue, Token(count), vec![7; SIZE]) {
                Ok(()) => count += 1,
                Err(refused) => {
                    assert!(refused.error.is_would_block(), "{}", refused.error);
                    for event in queue.dequeue_at_least(8, 16, Some(LIMIT)).unwrap() {
                        sent += event.into_result().unwrap() as u64;
                    }
                }
            }
        }
        while queue.outstanding() > 0 {
            for event in queue.dequeue(16, Some(LIMIT)).unwrap() {
                sent += event.into_result().unwrap() as u64;
            }
        }
        assert_eq!(descriptors(inode), 1, "nothing is in flight");
        let stream = ours.into_inner();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = [0; 8];
        (&stream).read_exact(&mut got).unwrap();
        assert_eq!((u64::from_ne_bytes(got), sent), (sent, end * SIZE as u64));
    }
    sink.join().unwrap();
}

/// A socket that is dropped with operations in flight: they are cancelled, and the peer
/// sees the end.
pub fn closes_by_drop() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let before = fill(ours.get_ref());
        let mut ledger = Ledger::new();
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        for _ in 0..2 {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; LARGE]));
        }
        drop(ours);
        let events = ledger.drain();
        assert!(events.iter().all(|e| e.error().is_some_and(Error::is_cancelled)), "{events:?}");
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        let moved: usize = events.iter().map(exs::Event::bytes).sum();
        assert_eq!(all.len(), before + moved, "{family:?}");
        ledger.finish();
    }
}

/// The same by a close(2) that the library does not see.
pub fn closes_behind_our_back() {
    for family in ALL {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let inode = ours.inode();
        for _ in 0..3 {
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        }
        drop(ours.into_fd());
        let events = ledger.drain();
        assert!(events.iter().all(|e| e.error().is_some_and(Error::is_cancelled)), "{events:?}");
        assert_eq!(descriptors(inode), 0, "{family:?}");
        if STREAMS.contains(&family) || family == Family::SeqPacket {
            assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "{family:?}");
        }
        ledger.finish();
    }
}

/// The number of a closed socket may be another file's: which is never touched.
pub fn gives_the_number_to_another_file() {
    let (ours, mut peer) = pair(Family::Tcp4);
    let (other, other_peer) = Family::Tcp4.pair();
    fill(ours.get_ref());
    let mut ledger = Ledger::new();
    ledger.post("send", |q, t| ours.send(q, t, vec![1; LARGE]));
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
    let mut number: OwnedFd = ours.into_fd();
    nix::unistd::dup2(&other, &mut number).unwrap();
    (&File::from(other_peer.try_clone().unwrap())).write_all(b"mine").unwrap();
    let events = ledger.drain();
    assert!(events.iter().all(|e| e.error().is_some_and(Error::is_cancelled)), "{events:?}");
    // It ends, for EXS has let go of the socket.
    peer.read_to_end(&mut Vec::new()).unwrap();
    // Nothing was taken from it, and nothing sent to it.
    let mut text = [0; 4];
    (&File::from(number)).read_exact(&mut text).unwrap();
    assert_eq!(&text, b"mine");
    drop(other);
    assert_eq!((&File::from(other_peer)).read(&mut text).unwrap(), 0);
    ledger.finish();
}

/// shutdown(2) by the owner ends what waits.
pub fn shuts_down() {
    for family in STREAMS {
        let (ours, _peer) = pair(family);
        fill(ours.get_ref());
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        for _ in 0..3 {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; LARGE]));
        }
        nx::shutdown(ours.get_ref().as_raw_fd(), nx::Shutdown::Both).unwrap();
        let event = ledger.wait_ok(recv);
        assert_eq!((event.bytes(), event.eof()), (0, true), "{family:?}");
        for event in ledger.drain() {
            assert_eq!(event.error().unwrap().errno(), libc::EPIPE, "{family:?}");
        }
        ledger.finish();
    }
}

/// A process that shuts down its side with sends in flight loses no event of them.
pub fn leaves_with_sends_in_flight() {
    let (ours, mut peer) = pair(Family::Tcp4);
    let before = fill(ours.get_ref());
    let mut ledger = Ledger::new();
    for _ in 0..16 {
        ledger.post("send", |q, t| ours.send(q, t, vec![1; 64 << 10]));
    }
    nx::shutdown(ours.get_ref().as_raw_fd(), nx::Shutdown::Write).unwrap();
    let moved: usize = ledger.drain().iter().map(exs::Event::bytes).sum();
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), before + moved);
    peer.write_all(b"bye").unwrap();
    let mut text = [0; 3];
    ours.file().read_exact(&mut text).unwrap();
    ledger.finish();
}

/// EXS has a descriptor for the socket while something is in flight, and no longer.
pub fn holds_no_descriptor_for_long() {
    for family in ALL {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        assert_eq!(ours.descriptors(), 1);
        ledger.post("send", |q, t| ours.send(q, t, *b"x"));
        assert_eq!(ours.descriptors(), 1, "it left at once");
        let first = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        assert_eq!(ours.descriptors(), 2, "{family:?}");
        peer.write_all(b"x").unwrap();
        ledger.wait_ok(first);
        assert_eq!(ours.descriptors(), 2, "one more is in flight");
        peer.write_all(b"x").unwrap();
        ledger.drain();
        assert_eq!(ours.descriptors(), 1, "{family:?}");
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
        assert_eq!(ours.cancel_all(), 1);
        assert_eq!(ours.descriptors(), 1, "{family:?}");
        ledger.finish();
    }
}

/// An owner with O_NONBLOCK has it afterwards.
pub fn is_nonblocking() {
    for family in STREAMS {
        let (a, b) = family.pair();
        set_nonblocking(&a, true);
        let (ours, mut peer) = (Ours::new(a), File::from(b));
        let mut ledger = Ledger::new();
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::WAITALL));
        peer.write_all(b"ab").unwrap();
        peer.write_all(b"cd").unwrap();
        assert_eq!(ledger.ok().bytes(), 4);
        let again = ours.file().read(&mut [0; 1]).unwrap_err();
        assert_eq!(again.kind(), std::io::ErrorKind::WouldBlock);
        ledger.finish();
    }
}

/// An owner that wants close(2) to wait for the peer (SO_LINGER) makes no other
/// thread wait.
pub fn lingers() {
    let (ours, peer) = pair(Family::Tcp4);
    let hour = libc::linger { l_onoff: 1, l_linger: 3600 };
    nx::setsockopt(ours.get_ref(), nx::sockopt::Linger, &hour).unwrap();
    fill(ours.get_ref());
    let mut ledger = Ledger::new();
    ledger.post("send", |q, t| ours.send(q, t, vec![1; LARGE]));
    // EXS has the last descriptor.
    drop(ours);
    assert!(ledger.event().error().is_some_and(Error::is_cancelled));
    let (other, mut far) = pair(Family::Unix);
    for _ in 0..3 {
        ledger.post("recv", |q, t| other.recv(q, t, vec![0; 1], RecvFlags::NONE));
        far.write_all(b"x").unwrap();
        ledger.ok();
    }
    drop(peer);
    ledger.finish();
}

/// The operations of a closed descriptor end while another descriptor of the same socket is open;
/// order holds over both.
pub fn closes_one_of_two() {
    let (a, b) = Family::Unix.pair();
    let again = KernelSocket::new(a.try_clone().unwrap()).unwrap();
    let (ours, mut peer) = (Ours::new(a), File::from(b));
    let mut ledger = Ledger::new();
    let one = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 2], RecvFlags::NONE));
    let two = ledger.post("recv", |q, t| again.recv(q, t, vec![0; 2], RecvFlags::NONE));
    let three = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 2], RecvFlags::NONE));
    assert!(ours.get_ref().as_fd().as_raw_fd() != again.get_ref().as_raw_fd());
    drop(again);
    assert!(ledger.wait(two).error().is_some_and(Error::is_cancelled));
    assert!(ledger.poll(Duration::ZERO).is_none());
    peer.write_all(b"ab").unwrap();
    assert_eq!(&ledger.wait_ok(one).into_buffer().unwrap()[..], b"ab");
    peer.write_all(b"cd").unwrap();
    assert_eq!(&ledger.wait_ok(three).into_buffer().unwrap()[..], b"cd");
    ledger.finish();
}
