//! Sends of several parts: memory and files in one operation, with one event.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exs::__ffi::kernel::Descriptor;
use exs::{EventKind, EventQueue, Part, Socket, SocketType, Token};

fn pair(ty: SocketType) -> (Socket, Socket) {
    let listener = Socket::new(ty).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::new(ty).unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.blocking().accept().unwrap().0)
}

/// A connection of the kernel's: ours and the peer's.
fn kernel_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// An unnamed file with these bytes.
fn file(bytes: &[u8]) -> Arc<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("exs-parts-{}-{number}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    Arc::new(file)
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

/// Memory, a file, much memory, the file again; and what they are together.
fn four(bytes: &[u8]) -> (Vec<Part>, Vec<u8>) {
    let f = file(bytes);
    let len = bytes.len() as u64;
    let parts = vec![
        Part::Memory(vec![(*b"head").into(), (*b"er").into()]),
        Part::File { file: Arc::clone(&f), offset: 10, len: len - 10 },
        Part::Memory(vec![bytes.to_vec().into()]),
        Part::File { file: f, offset: 0, len: 3 },
    ];
    (parts, [b"header", &bytes[10..], bytes, &bytes[..3]].concat())
}

#[test]
fn the_parts_arrive_as_one_stretch_and_then_the_end() {
    let (client, server) = pair(SocketType::Stream);
    let queue = EventQueue::new(2).unwrap();
    let (parts, whole) = four(&pattern(300_000));
    client.send_parts(&queue, Token(7), parts, true).unwrap();
    let mut got = Vec::new();
    server.blocking().read_to_end(&mut got).unwrap();
    assert!(got == whole, "{} bytes of {}", got.len(), whole.len());
    let mut event = queue.next().unwrap();
    assert_eq!((event.kind(), event.token()), (EventKind::SendFile, Token(7)));
    assert_eq!(event.result().unwrap(), whole.len());
    let back: Vec<usize> = event.take_buffers().iter().map(|b| b.len()).collect();
    assert_eq!(back.iter().sum::<usize>(), 6 + 300_000, "all buffers come back");
    assert_eq!((queue.outstanding(), queue.in_flight()), (0, 0), "one event for all");
    assert!(client.blocking().send(b"more").is_err(), "the direction has ended");
}

#[test]
fn parts_behind_a_failed_part_are_not_sent() {
    let (client, server) = pair(SocketType::Stream);
    let queue = EventQueue::new(2).unwrap();
    let parts = vec![
        Part::Memory(vec![(*b"begin").into()]),
        Part::File { file: file(b"short"), offset: 0, len: 50_000 },
        Part::Memory(vec![vec![1; 10].into()]),
    ];
    client.send_parts(&queue, Token(1), parts, true).unwrap();
    let mut event = queue.next().unwrap();
    assert_eq!(event.error().map(exs::Error::errno), Some(libc::EIO));
    assert_eq!(event.take_buffers().len(), 2);
    assert_eq!(event.bytes(), 10, "what was there");
    let sent = event.bytes();
    // Neither the end nor the third part: the next bytes are those of another send.
    client.blocking().send_all(b"!").unwrap();
    let mut got = vec![0; sent + 1];
    server.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(got, [&b"beginshort"[..sent], b"!"].concat());
}

#[test]
fn parts_that_wait_are_one_operation_to_cancel() {
    let (client, _server) = pair(SocketType::Stream);
    let queue = EventQueue::new(4).unwrap();
    // More than a peer that does not receive takes.
    let big = || Part::Memory(vec![vec![0; 8 << 20].into()]);
    client.send_parts(&queue, Token(5), vec![big(), big(), big()], false).unwrap();
    assert_eq!(client.cancel(Token(5)), 1);
    let mut event = queue.next().unwrap();
    assert!(event.error().is_some_and(exs::Error::is_cancelled), "{:?}", event.error());
    assert_eq!(event.take_buffers().len(), 3);
    assert!(queue.dequeue(4, Some(Duration::ZERO)).unwrap().is_empty());
}

#[test]
fn a_message_is_one_part() {
    let (client, server) = pair(SocketType::SeqPacket);
    let queue = EventQueue::new(2).unwrap();
    let refused = client.send_parts(&queue, Token(1), four(&pattern(20)).0, false).unwrap_err();
    assert_eq!((refused.error.errno(), refused.buffer.len()), (libc::EOPNOTSUPP, 4));
    let refused = client.send_parts(&queue, Token(1), Vec::new(), false).unwrap_err();
    assert_eq!(refused.error.errno(), libc::EINVAL);
    assert_eq!(queue.outstanding(), 0);
    let whole = vec![Part::File { file: file(b"a message"), offset: 2, len: 7 }];
    client.send_parts(&queue, Token(1), whole, false).unwrap();
    let mut got = [0; 20];
    let packet = server.blocking().recv_packet(&mut got).unwrap();
    assert_eq!(&got[..packet.bytes], b"message");
    assert_eq!(queue.next().unwrap().bytes(), 7);
}

#[test]
fn a_socket_of_the_kernels_takes_parts_too() {
    let (client, mut peer) = kernel_pair();
    let queue = EventQueue::new(2).unwrap();
    let (parts, whole) = four(&pattern(3_000_000));
    let raw = Descriptor::new(client.as_fd()).unwrap();
    raw.send_parts(&queue, Token(3), parts, true, None).unwrap();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        peer.read_to_end(&mut got).map(|_| got)
    });
    let event = queue.next().unwrap();
    assert_eq!((event.kind(), event.token()), (EventKind::SendFile, Token(3)));
    assert_eq!(event.into_result().unwrap(), whole.len());
    assert!(reader.join().unwrap().unwrap() == whole);

    // A short file ends it, and nothing stands behind the hole.
    let (client, mut peer) = kernel_pair();
    let raw = Descriptor::new(client.as_fd()).unwrap();
    let parts = vec![
        Part::File { file: file(b"short"), offset: 0, len: 9 },
        Part::Memory(vec![(*b"behind").into()]),
    ];
    raw.send_parts(&queue, Token(4), parts, true, None).unwrap();
    let event = queue.next().unwrap();
    assert_eq!(event.error().map(exs::Error::errno), Some(libc::EIO));
    drop(client);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"short");
}

#[test]
fn a_queue_may_become_deeper_and_less_deep() {
    let queue = EventQueue::new(1).unwrap();
    let (client, _server) = pair(SocketType::Stream);
    let recv = |t| client.recv(&queue, Token(t), vec![0; 1], exs::RecvFlags::NONE);
    recv(1).unwrap();
    assert!(recv(2).unwrap_err().error.is_would_block());
    queue.set_depth(2).unwrap();
    recv(2).unwrap();
    queue.set_depth(1).unwrap();
    assert!(recv(3).unwrap_err().error.is_would_block());
    assert!(queue.set_depth(0).is_err());
    assert_eq!((queue.depth(), queue.outstanding(), queue.in_flight()), (1, 2, 2));
    assert_eq!(client.cancel_all(), 2);
    assert_eq!(queue.dequeue(1, None).unwrap().len(), 1);
    assert_eq!(queue.dequeue(2, None).unwrap().len(), 1);
    recv(3).unwrap();
    client.cancel_all();
}

/// A part that cannot be read, and shows it only then.
fn unreadable() -> Part {
    let directory = Arc::new(File::open(std::env::temp_dir()).unwrap());
    Part::File { file: directory, offset: 0, len: 5 }
}

#[test]
fn on_a_socket_of_the_kernels_nothing_stands_behind_a_part_that_failed() {
    // It fails at once, and (behind more than the peer takes at once) later.
    for (parts_before, len) in [(1, 5), (3, 4 << 20)] {
        let (client, mut peer) = kernel_pair();
        let queue = EventQueue::new(2).unwrap();
        let raw = Descriptor::new(client.as_fd()).unwrap();
        let memory = || Part::Memory(vec![pattern(len).into()]);
        let mut parts: Vec<Part> = (0..parts_before).map(|_| memory()).collect();
        parts.extend([unreadable(), Part::Memory(vec![(*b"tail").into()])]);
        raw.send_parts(&queue, Token(1), parts, true, None).unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).map(|_| got)
        });
        let mut event = queue.next().unwrap();
        assert_eq!(event.error().map(exs::Error::errno), Some(libc::EISDIR));
        assert_eq!(event.bytes(), parts_before * len);
        assert_eq!(event.take_buffers().len(), parts_before + 1, "all buffers come back");
        // The direction has not ended: this is what comes next.
        (&client).write_all(b"!").unwrap();
        drop(client);
        let whole = [pattern(len).repeat(parts_before), b"!".to_vec()].concat();
        assert!(reader.join().unwrap().unwrap() == whole);
    }
}

#[test]
fn a_datagram_of_one_part_leaves_before_the_direction_ends() {
    let [ours, peer] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    ours.connect(peer.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let queue = EventQueue::new(2).unwrap();
    let raw = Descriptor::new(ours.as_fd()).unwrap();
    let parts = vec![Part::Memory(vec![(*b"a datagram").into()])];
    raw.send_parts(&queue, Token(1), parts, true, None).unwrap();
    assert_eq!(queue.next().unwrap().into_result().unwrap(), 10);
    let mut got = [0; 20];
    let n = peer.recv(&mut got).unwrap();
    assert_eq!(&got[..n], b"a datagram");
}
