//! A hostile client that speaks iWARP and EXS, and says extreme numbers: each ends its own connection
//! at most. The tests check for overflow, so a number that is counted before it is checked, or
//! added to another one, would end the process.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exs::wire::exs::{AdvertRepr, MAX_HEADER, Message, MessageKind, Piggyback, SocketKind};
use exs::{EventQueue, Options, RecvFlags, Socket, SocketType, Token, Transport};
use exs_tests::harness::{Watchdog, accepted};

const VALUES: [u64; 6] = [0, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63, u64::MAX];

fn hello(kind: SocketKind) -> Vec<u8> {
    let cfg = exs::session::SessionConfig { kind, ..exs::session::SessionConfig::default() };
    exs::session::Session::initiator(cfg).hello()
}

/// The FPDU of this ULPDU, without a CRC.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(ulpdu.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(ulpdu);
    out.resize(out.len().next_multiple_of(4) + 4, 0);
    out
}

/// DDP's and RDMAP's control octets, then 4 numbers: ULP, queue, MSN, offset.
fn untagged(opcode: u8, numbers: [u32; 4], data: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x40 | opcode];
    numbers.iter().for_each(|n| ulpdu.extend(n.to_be_bytes()));
    ulpdu.extend_from_slice(data);
    fpdu(&ulpdu)
}

fn send(msn: u32, data: &[u8]) -> Vec<u8> {
    untagged(3, [0, 0, msn, 0], data)
}

fn tagged(opcode: u8, key: u64, to: u64, data: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0xC1, 0x40 | opcode];
    ulpdu.extend_from_slice(&key.to_be_bytes()[4..]);
    ulpdu.extend(to.to_be_bytes());
    ulpdu.extend_from_slice(data);
    fpdu(&ulpdu)
}

fn bytes(message: Message) -> Vec<u8> {
    let mut head = [0; MAX_HEADER];
    let len = message.emit(Piggyback::default(), &mut head);
    let mut out = head[..len].to_vec();
    out.resize(len + message.inline_len() as usize, 7);
    out
}

/// Start-up with this hello, then these FPDUs, then the end; waits for the listener's. True if
/// the listener took the connection.
fn call(addr: SocketAddr, hello: &[u8], fpdus: &[u8]) -> bool {
    let mut tcp = TcpStream::connect(addr).unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut request = b"MPA ID Req Frame".to_vec();
    request.extend([0x10, 2]); // enhanced start-up, revision 2
    request.extend(u16::try_from(hello.len() + 4).unwrap().to_be_bytes());
    request.extend([0, 4, 0, 4]);
    request.extend_from_slice(hello);
    // The listener may end the connection at any time: then it hears no more.
    let _ = tcp.write_all(&request);
    let mut reply = [0; 20];
    let taken = tcp.read_exact(&mut reply).is_ok() && reply[16] & 0x20 == 0;
    if taken {
        let _ = tcp.write_all(fpdus);
    }
    let _ = tcp.shutdown(std::net::Shutdown::Write);
    match std::io::copy(&mut tcp, &mut std::io::sink()) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
    }
    taken
}

/// What an honest peer could say first.
fn honest() -> Vec<Message> {
    let advert = AdvertRepr {
        seq: 0,
        phase: 0,
        addr: 4096,
        key: 1,
        len: 9,
        waitall: true,
        invalidate: false,
    };
    vec![
        Message::Credit,
        Message::Confirm { number: 1 },
        Message::Confirmed { number: 1 },
        Message::Advert(advert),
        Message::Ring { addr: 4096, key: 1 },
        Message::Withdraw { generation: 0 },
        Message::Withdrawn { generation: 0, next_msg: 0 },
        Message::Abort { code: 1 },
        Message::Data { direct: false, inline: true, len: 3 },
        Message::Data { direct: true, inline: false, len: 3 },
        Message::Eager { len: 3 },
        Message::Rts { msg: 0, total: 100 },
        Message::PacketAdvert { msg: 0, generation: 0, addr: 4096, key: 1, len: 9 },
        Message::PacketData { len: 5, total: 5 },
    ]
}

fn fields(kind: MessageKind) -> impl Iterator<Item = (usize, usize)> {
    let end = kind.header_len();
    let words = (16..end).step_by(8).map(move |at| (at, (end - at).min(8)));
    [(2, 2), (4, 4), (8, 4), (12, 4)].into_iter().chain(words)
}

/// Everything that a stranger of this kind says, each on a connection of its own.
fn attack(addr: SocketAddr, kind: SocketKind) {
    let (mut taken, mut refused) = (0, 0);
    let mut call = |addr, hello: &[u8], fpdus: &[u8]| match call(addr, hello, fpdus) {
        true => taken += 1,
        false => refused += 1,
    };
    let good = hello(kind);
    let ready = send(1, &bytes(Message::Ready));
    for message in honest() {
        for (at, width) in fields(message.kind()) {
            // Two values each: what the first has left, the second is added to.
            for pair in VALUES.chunks(2) {
                let mut said = ready.clone();
                for (msn, value) in (2..).zip(pair) {
                    let mut spoiled = bytes(message);
                    spoiled[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
                    said.extend(send(msn, &spoiled));
                }
                call(addr, &good, &said);
            }
        }
    }
    for value in VALUES {
        let short = u32::try_from(value & 0xFFFF_FFFF).unwrap();
        for (at, width) in [(4, 1), (8, 4), (12, 2), (16, 4), (20, 4), (24, 8)] {
            let mut hello = good.clone();
            hello[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
            call(addr, &hello, &ready);
        }
        // WRITEs, READ requests and responses, and the numbers of untagged messages.
        let mut request = value.to_be_bytes()[4..].to_vec();
        request.extend(value.to_be_bytes());
        request.extend([&value.to_be_bytes()[4..], &value.to_be_bytes()[4..]].concat());
        request.extend(value.to_be_bytes());
        for fpdu in [
            tagged(0, value, value, b"x"),
            tagged(2, value, value, b"x"),
            untagged(1, [0, 1, 1, 0], &request),
            untagged(3, [0, 0, short, 0], b"x"),
            untagged(3, [0, 0, 2, short], b"x"),
            untagged(3, [0, short, 2, 0], b"x"),
            untagged(7, [short; 4], b"x"),
        ] {
            call(addr, &good, &[ready.clone(), fpdu].concat());
        }
    }
    assert!(taken > 200 && refused > 5, "{taken} were taken, {refused} refused");
}

/// Echoes, with receives that are shown ahead and others; ends when it is told to and idle.
fn serve(listener: &Socket, stop: &AtomicBool) {
    const ACCEPT: Token = Token(0);
    let queue = EventQueue::new(4096).unwrap();
    let (mut all, mut next) = (HashMap::new(), 1);
    listener.accept(&queue, ACCEPT).unwrap();
    while !stop.load(Ordering::Relaxed) || !all.is_empty() {
        for event in queue.dequeue(64, Some(Duration::from_millis(20))).unwrap() {
            let id = event.token().0;
            if event.token() == ACCEPT {
                listener.accept(&queue, ACCEPT).unwrap();
                let Some((socket, _)) = accepted(event) else { continue };
                // A connection that has ended already takes none, and has no event.
                let post = |room: &usize| {
                    socket.recv(&queue, Token(next), vec![0; *room], RecvFlags::NONE).is_ok()
                };
                let waiting = [100, 70_000, 9_000].iter().filter(|room| post(room)).count();
                if waiting > 0 {
                    all.insert(next, (socket, waiting));
                }
                next += 1;
            } else if let Some((socket, waiting)) = all.get_mut(&id) {
                let mut event = event;
                let over = event.error().is_some() || event.eof();
                if let (exs::EventKind::Recv, false, Some(mut buffer)) =
                    (event.kind(), over, event.take_buffer())
                {
                    buffer.narrow(0..event.bytes());
                    let _ = socket.send(&queue, Token(id), buffer);
                    *waiting -= 1;
                }
                if over || *waiting == 0 {
                    all.remove(&id);
                }
            }
        }
    }
}

#[test]
fn a_stranger_s_numbers_end_its_own_connection_at_most() {
    let _dog = Watchdog::new("a_stranger_s_numbers_end_its_own_connection_at_most");
    let options =
        Options::default().with_transport(Transport::Soft).with_linger(Duration::from_millis(200));
    for (ty, kind) in
        [(SocketType::Stream, SocketKind::Stream), (SocketType::SeqPacket, SocketKind::SeqPacket)]
    {
        let listener = Socket::with_options(ty, options.clone()).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(64).unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let server = std::thread::spawn(move || serve(&listener, &told));
        attack(addr, kind);

        // Others are served, and nothing that was refused was counted.
        let honest = Socket::with_options(ty, options.clone()).unwrap();
        honest.blocking().connect(addr).unwrap();
        honest.blocking().send_all(b"fine").unwrap();
        let mut text = [0; 4];
        assert_eq!(honest.blocking().recv(&mut text).unwrap(), 4);
        assert_eq!(&text, b"fine");
        drop(honest);
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
    }
    let counted = exs::counters().unwrap();
    let received = [counted.received_direct, counted.received_indirect, counted.received_inline];
    assert!(received.iter().all(|n| *n < 1 << 24), "{received:?}");
}
