//! Connections that no program has taken, when their process ends, or when they are the kernel's
//! own: their peers see a reset. (The contract of sockets has the rest.)

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};

use exs::{EventQueue, KernelSocket, Options, Socket, SocketType, Token, Transport};
use exs_tests::harness::{Watchdog, peer};

fn socket(transport: Transport) -> Socket {
    let options = Options::default().with_transport(transport);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let listener = socket(words[0].parse().unwrap());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let queue = EventQueue::new(4).unwrap();
    if words[1] == "event" {
        listener.accept(&queue, Token(1)).unwrap();
    }
    peer::say(&format!("at {}", listener.local_addr().unwrap()));
    peer::listen();
    while words[1] == "event" && queue.is_empty() {
        std::thread::yield_now();
    }
    // exit(3) closes what is open.
    std::process::exit(0);
}

#[test]
fn what_a_process_has_not_taken_is_reset_as_it_ends() {
    let _dog = Watchdog::new("what_a_process_has_not_taken_is_reset_as_it_ends");
    for transport in ["soft", "shm"] {
        for part in ["backlog", "event"] {
            let mut child = peer::Peer::start("child", transport, &[part]);
            let addr: SocketAddr = child.expect("at").parse().unwrap();
            let client = socket(transport.parse().unwrap());
            client.blocking().connect(addr).unwrap();
            child.tell("connected");
            let end = client.blocking().recv(&mut [0; 8]);
            assert_eq!(end.unwrap_err().errno(), libc::ECONNRESET, "{transport} {part}");
            child.finish();
        }
    }
}

#[test]
fn a_kernel_connection_that_no_event_brings_is_reset() {
    let _dog = Watchdog::new("a_kernel_connection_that_no_event_brings_is_reset");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = tcp.local_addr().unwrap();
    let listener = KernelSocket::new(tcp).unwrap();
    let queue = EventQueue::new(4).unwrap();
    listener.accept(&queue, Token(1)).unwrap();
    let mut client = TcpStream::connect(addr).unwrap();
    while queue.is_empty() {
        std::thread::yield_now();
    }
    drop(queue);
    let end = client.read(&mut [0; 8]);
    assert_eq!(end.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
}
