//! Queues: cancel, thresholds, limits, other sockets on the same queue.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use exs::{Buffer, Error, EventKind, EventQueue, Interest, KernelSocket, RecvFlags};
use exs::{Socket, Token};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{ALL, Family, Ours, STREAMS, fill, pair};
use crate::harness::{LIMIT, Ledger, many_files};

/// One of several operations, wherever it stands.
pub fn cancel_by_token() {
    for family in ALL {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let tokens: Vec<Token> = (0..4)
            .map(|_| ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 2], RecvFlags::NONE)))
            .collect();
        for i in [0, 2] {
            assert_eq!(ours.cancel(tokens[i]), 1);
            let mut event = ledger.wait(tokens[i]);
            assert!(event.error().is_some_and(Error::is_cancelled), "{family:?}");
            assert_eq!(event.take_buffer().unwrap().len(), 2);
            assert_eq!(ours.cancel(tokens[i]), 0, "it has ended");
        }
        for (token, text) in [(tokens[1], b"ab"), (tokens[3], b"cd")] {
            peer.write_all(text).unwrap();
            assert_eq!(&ledger.wait_ok(token).into_buffer().unwrap()[..], text);
        }
        ledger.finish();
    }
}

/// Everything, with what was moved before.
pub fn cancel_all() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let before = fill(ours.get_ref());
        let mut ledger = Ledger::new();
        for _ in 0..4 {
            ledger.post("send", |q, t| ours.send(q, t, vec![1; super::owner::LARGE]));
        }
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 9], RecvFlags::WAITALL));
        let poll = ledger.post("poll", |q, t| ours.poll(q, t, Interest::READABLE));
        peer.write_all(b"abc").unwrap();
        ledger.wait_ok(poll);
        assert_eq!(ours.cancel_all(), 5);
        let event = ledger.wait(recv);
        assert!(event.error().is_some_and(Error::is_cancelled), "{family:?}");
        let came = event.bytes();
        let moved: usize = ledger.drain().iter().map(exs::Event::bytes).sum();
        // The bytes that a cancelled receive had taken are its; the others are still there.
        let mut rest = vec![0; 3 - came];
        ours.file().read_exact(&mut rest).unwrap();
        drop(ours);
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), before + moved, "{family:?}");
        ledger.finish();
    }
}

/// A cancel by one descriptor leaves what was posted by another of the same socket.
pub fn cancel_is_of_one_descriptor() {
    let (a, b) = Family::Tcp4.pair();
    let again = KernelSocket::new(a.try_clone().unwrap()).unwrap();
    let (ours, mut peer) = (Ours::new(a), File::from(b));
    let mut ledger = Ledger::new();
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 2], RecvFlags::NONE));
    let other = ledger.post("recv", |q, t| again.recv(q, t, vec![0; 2], RecvFlags::NONE));
    assert_eq!(ours.cancel_all(), 1);
    peer.write_all(b"ab").unwrap();
    ledger.wait_ok(other);
    ledger.finish();
}

/// A dequeue with a threshold waits for that many events.
pub fn thresholds() {
    let (ours, mut peer) = pair(Family::Tcp6);
    let mut ledger = Ledger::new();
    let queue = ledger.queue().clone();
    for _ in 0..8 {
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 1], RecvFlags::NONE));
    }
    let waiting = std::thread::spawn(move || queue.dequeue_at_least(6, 8, Some(LIMIT)).unwrap());
    for _ in 0..8 {
        peer.write_all(b"x").unwrap();
    }
    let got = waiting.join().unwrap().len();
    assert!(got >= 6);
    let left = ledger.queue().dequeue_at_least(8 - got, 8, Some(LIMIT)).unwrap();
    assert_eq!(got + left.len(), 8);
}

/// The depth counts operations in flight and events that wait.
pub fn depth_is_a_limit() {
    let (ours, _peer) = pair(Family::Udp4);
    let queue = EventQueue::new(2).unwrap();
    ours.recv(&queue, Token(1), vec![0; 5], RecvFlags::NONE).unwrap();
    ours.send(&queue, Token(2), *b"x").unwrap();
    let refused = ours.send(&queue, Token(3), *b"yy").unwrap_err();
    assert!(refused.error.is_would_block());
    assert_eq!(&refused.buffer[..], b"yy");
    let parts: Vec<Buffer> = vec![(*b"a").into(), (*b"b").into()];
    let refused = ours.send_vectored(&queue, Token(3), parts).unwrap_err();
    assert_eq!(refused.buffer.len(), 2);
    assert!(ours.poll(&queue, Token(3), Interest::WRITABLE).unwrap_err().is_would_block());
    assert_eq!(queue.next().unwrap().token(), Token(2));
    ours.send(&queue, Token(3), *b"x").unwrap();
    ours.cancel_all();
    assert_eq!(queue.dequeue_at_least(2, 2, Some(LIMIT)).unwrap().len(), 2);
    assert_eq!(queue.outstanding(), 0);
}

/// An operation that takes too long ends, with what it has moved.
pub fn time_limits() {
    for family in STREAMS {
        let (mut ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let short = Some(Duration::from_millis(30));
        ours.set_limits(short, short);
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 9], RecvFlags::WAITALL));
        peer.write_all(b"abc").unwrap();
        let event = ledger.wait(recv);
        assert_eq!((event.error().unwrap().errno(), event.bytes()), (libc::ETIMEDOUT, 3));
        fill(ours.get_ref());
        ledger.post("send", |q, t| ours.send(q, t, vec![0; super::owner::LARGE]));
        assert_eq!(ledger.event().error().unwrap().errno(), libc::ETIMEDOUT, "{family:?}");
        ours.set_limits(None, None);
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 9], RecvFlags::NONE));
        assert!(ledger.poll(Duration::from_millis(60)).is_none(), "it has all the time");
        ours.cancel_all();
        ledger.finish();
    }
}

/// EXS sockets and kernel sockets of all families on one queue.
pub fn mixed() {
    let listener = Socket::stream().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::stream().unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let others: Vec<(Ours, File)> = ALL.iter().map(|f| pair(*f)).collect();
    let mut ledger = Ledger::new();
    for round in 0..20u8 {
        ledger.post("exs recv", |q, t| server.recv(q, t, vec![0; 4], RecvFlags::WAITALL));
        for (ours, _) in &others {
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 4], RecvFlags::NONE));
            ledger.post("send", |q, t| ours.send(q, t, vec![round; 4]));
        }
        ledger.post("exs send", |q, t| client.send(q, t, vec![round; 4]));
        for (_, peer) in &others {
            let (mut peer, mut text) = (peer, [0; 4]);
            peer.read_exact(&mut text).unwrap();
            assert_eq!(text, [round; 4]);
            peer.write_all(&text).unwrap();
        }
        for event in ledger.drain() {
            assert_eq!(event.bytes(), 4);
            if event.kind() == EventKind::Recv {
                assert_eq!(event.into_buffer().unwrap()[..], [round; 4]);
            }
        }
    }
    ledger.finish();
}

/// A thousand sockets with a receive each; every one has its event.
pub fn a_thousand_sockets() {
    const MANY: usize = 1000;
    assert!(many_files() > 5 * MANY as u64);
    let pairs: Vec<(Ours, File)> = (0..MANY).map(|_| pair(Family::Unix)).collect();
    let mut ledger = Ledger::new();
    for round in 0..3u8 {
        for (ours, _) in &pairs {
            ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], RecvFlags::WAITALL));
        }
        for (_, peer) in pairs.iter().rev() {
            let mut peer = peer;
            peer.write_all(&[round]).unwrap();
            peer.write_all(&[round; 2]).unwrap();
        }
        for event in ledger.drain() {
            assert_eq!(event.into_buffer().unwrap()[..], [round; 3]);
        }
    }
    let inodes: Vec<u64> = pairs.iter().map(|(o, _)| o.inode()).collect();
    for (ours, _) in &pairs {
        ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], RecvFlags::NONE));
    }
    drop(pairs);
    for event in ledger.drain() {
        // Its own end was closed, or the peer's: whichever was seen first.
        assert!(event.eof() || event.error().is_some_and(Error::is_cancelled), "{event:?}");
    }
    assert_eq!(super::descriptors(inodes[0]) + super::descriptors(inodes[MANY - 1]), 0);
    ledger.finish();
}

/// Threads that post to one socket and dequeue from one queue lose nothing.
pub fn several_threads() {
    const EACH: usize = 300;
    let (ours, mut peer) = pair(Family::Tcp4);
    let queue = EventQueue::new(64).unwrap();
    let done = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for thread in 0..4u8 {
            let (ours, queue, done) = (&ours, &queue, &done);
            s.spawn(move || {
                for _ in 0..EACH {
                    let mut bytes = Buffer::from(vec![thread; 1000]);
                    while let Err(refused) = ours.send(queue, Token(0), bytes) {
                        assert!(refused.error.is_would_block());
                        bytes = refused.buffer;
                        let n = queue.dequeue(8, Some(Duration::from_millis(5))).unwrap().len();
                        done.fetch_add(n, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut counts = [0; 4];
        for _ in 0..4 * EACH {
            let mut block = [0; 1000];
            peer.read_exact(&mut block).unwrap();
            assert!(block.iter().all(|b| *b == block[0]), "a send was torn apart");
            counts[usize::from(block[0])] += 1;
        }
        assert_eq!(counts, [EACH; 4]);
    });
    while done.load(Ordering::Relaxed) < 4 * EACH {
        let n = queue.dequeue(64, Some(LIMIT)).unwrap().len();
        assert!(n > 0);
        done.fetch_add(n, Ordering::Relaxed);
    }
    assert_eq!((done.load(Ordering::Relaxed), queue.outstanding()), (4 * EACH, 0));
}

/// The queue's descriptor becomes readable while no thread dequeues.
pub fn progress_without_a_waiter() {
    let (ours, mut peer) = pair(Family::Tcp4);
    let mut ledger = Ledger::new();
    let fd = std::os::fd::AsFd::as_fd(ledger.queue()).try_clone_to_owned().unwrap();
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], RecvFlags::WAITALL));
    peer.write_all(b"abc").unwrap();
    let mut pfd = [PollFd::new(std::os::fd::AsFd::as_fd(&fd), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(LIMIT).unwrap();
    assert_eq!(poll(&mut pfd, limit).unwrap(), 1);
    assert_eq!(ledger.ok().bytes(), 3);
    ledger.finish();
}

/// Readiness as an event, once.
pub fn polls() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let read = ledger.post("poll", |q, t| ours.poll(q, t, Interest::READABLE));
        let write = ledger.post("poll", |q, t| ours.poll(q, t, Interest::WRITABLE));
        assert!(ledger.wait_ok(write).readiness().writable, "{family:?}");
        peer.write_all(b"x").unwrap();
        assert!(ledger.wait_ok(read).readiness().readable, "{family:?}");
        let both = ledger.post("poll", |q, t| ours.poll(q, t, Interest::BOTH));
        let ready = ledger.wait_ok(both).readiness();
        assert!(ready.readable && ready.writable && !ready.error, "{family:?}");
        ours.file().read_exact(&mut [0]).unwrap();
        let read = ledger.post("poll", |q, t| ours.poll(q, t, Interest::READABLE));
        drop(peer);
        assert!(ledger.wait_ok(read).readiness().readable, "the end is read too");
        ledger.finish();
    }
}

/// A pipe, which is no socket, can be polled; its two ends are told apart.
pub fn polls_of_pipes() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (read, write) = (KernelSocket::new(reader), writer.try_clone().map(KernelSocket::new));
    let (read, write) = (read.unwrap(), write.unwrap().unwrap());
    let mut ledger = Ledger::new();
    let one = ledger.post("poll", |q, t| read.poll(q, t, Interest::READABLE));
    let two = ledger.post("poll", |q, t| write.poll(q, t, Interest::WRITABLE));
    assert!(ledger.wait_ok(two).readiness().writable);
    writer.write_all(b"x").unwrap();
    assert!(ledger.wait_ok(one).readiness().readable);
    let file = KernelSocket::new(File::open("/proc/self/exe").unwrap()).unwrap();
    ledger.post("poll", |q, t| file.poll(q, t, Interest::READABLE));
    assert!(ledger.ok().readiness().readable, "files are always ready");
    let refused = read.recv(ledger.queue(), Token(0), vec![0; 2], RecvFlags::NONE).unwrap_err();
    assert_eq!((refused.error.errno(), refused.buffer.len()), (libc::ENOTSOCK, 2));
    assert_eq!(read.accept(ledger.queue(), Token(0)).unwrap_err().errno(), libc::ENOTSOCK);
    let three = ledger.post("poll", |q, t| write.poll(q, t, Interest::default()));
    drop((read, file));
    assert!(ledger.wait_ok(three).readiness().error, "the reader has gone");
    ledger.finish();
}

/// Flags and descriptors that make no sense.
pub fn what_is_refused() {
    use exs::__ffi::kernel::Descriptor;
    let (ours, _peer) = pair(Family::Tcp4);
    let queue = EventQueue::new(4).unwrap();
    let raw = Descriptor::new(std::os::fd::AsFd::as_fd(ours.get_ref())).unwrap();
    assert!(raw.is_socket());
    assert_eq!(raw.inode().1, ours.inode());
    for flags in [libc::MSG_ERRQUEUE, libc::MSG_ZEROCOPY, libc::MSG_PEEK, -1] {
        let refused = raw.send(&queue, Token(1), (*b"abc").into(), flags, None).unwrap_err();
        assert_eq!((refused.error.errno(), refused.buffer.len()), (libc::EINVAL, 3));
    }
    for flags in [libc::MSG_OOB, libc::MSG_ERRQUEUE, libc::MSG_MORE] {
        let refused = raw.recv(&queue, Token(1), (*b"abc").into(), flags, None).unwrap_err();
        assert_eq!(refused.error.errno(), libc::EINVAL);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    raw.send(&queue, Token(1), (*b"abc").into(), flags | libc::MSG_MORE, None).unwrap();
    raw.recv(&queue, Token(2), (*b"abc").into(), flags, None).unwrap();
    assert_eq!(queue.next().unwrap().bytes(), 3);
    assert_eq!(raw.cancel(Some(Token(2))), 1);
    assert_eq!(queue.next().unwrap().token(), Token(2));
    assert_eq!(queue.outstanding(), 0);
    assert!(ours.get_ref().as_raw_fd() >= 0);
}

/// Each event carries the number that its socket had when the operation was posted.
pub fn events_carry_the_number_of_their_socket() {
    for family in STREAMS {
        let (ours, mut peer) = pair(family);
        let mut ledger = Ledger::new();
        let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 3], RecvFlags::WAITALL));
        ours.set_user_data(7);
        let send = ledger.post("send", |q, t| ours.send(q, t, *b"a question"));
        let poll = ledger.post("poll", |q, t| ours.poll(q, t, Interest::WRITABLE));
        peer.write_all(b"yes").unwrap();
        for (token, number) in [(recv, 0), (send, 7), (poll, 7)] {
            assert_eq!(ledger.wait_ok(token).user_data(), number, "{family:?}");
        }
        assert_eq!(ours.user_data(), 7);
        ledger.finish();
    }
}
