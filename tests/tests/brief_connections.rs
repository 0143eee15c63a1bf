//! Connections that end soon, many of them, of several threads at a time: with a thread for each at the
//! server, with a pool of threads that accept and serve, and with queues. Each byte arrives once, whichever
//! way it takes, and so does the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use exs::{Completion, EventQueue, Options, Socket, SocketType, Token, Transport};

const CLIENTS: u8 = 4;
const CONNECTIONS: u8 = 120;
/// The messages of a connection that leaves a link group of brief ones.
const LONG: usize = 50;

fn socket(transport: Transport) -> Socket {
    let options = Options::default().with_transport(transport);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

fn listener(transport: Transport) -> (Arc<Socket>, SocketAddr) {
    let listener = socket(transport);
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listener.listen(64).unwrap();
    let addr = listener.local_addr().unwrap();
    (Arc::new(listener), addr)
}

/// Answers each message, with its bytes turned over, until the peer ends.
fn serve(socket: &Socket) {
    let mut bytes = [0; 24];
    loop {
        let n = socket.blocking().recv(&mut bytes[..1]).unwrap();
        if n == 0 {
            return;
        }
        socket.blocking().recv_exact(&mut bytes[1..]).unwrap();
        bytes.reverse();
        socket.blocking().send_all(&bytes).unwrap();
    }
}

/// The messages of a connection: mostly few.
fn messages(n: u8) -> usize {
    match n % 20 {
        0 => 0,
        19 => LONG,
        few => usize::from(few % 3) + 1,
    }
}

/// Connects again and again, and asks.
fn ask(transport: Transport, client: u8, to: SocketAddr) {
    for n in 0..CONNECTIONS {
        let socket = socket(transport);
        socket.blocking().connect(to).unwrap();
        for message in 0..messages(n) {
            let mut bytes = [client; 24];
            (bytes[1], bytes[2]) = (n, u8::try_from(message).unwrap());
            socket.blocking().send_all(&bytes).unwrap();
            let mut answer = [0; 24];
            socket.blocking().recv_exact(&mut answer).unwrap();
            answer.reverse();
            assert_eq!(answer, bytes, "client {client}, connection {n}");
        }
        // Some end the connection, and others drop it.
        if n % 2 == 0 {
            socket.blocking().close().unwrap();
        }
    }
}

fn ask_in_threads(transport: Transport, to: SocketAddr) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || ask(transport, client, to));
        }
    });
}

/// The cases over each transport.
macro_rules! cases {
    ($($case:ident),*) => {
        cases!(@ soft, Soft, $($case),*);
        cases!(@ shm, Shm, $($case),*);
    };
    (@ $name:ident, $transport:ident, $($case:ident),*) => {
        mod $name {
            use exs::Transport;
            use exs_tests::harness::Watchdog;

            $(
                #[test]
                fn $case() {
                    let _dog = Watchdog::new(concat!(stringify!($name), "::", stringify!($case)));
                    super::$case(Transport::$transport);
                }
            )*
        }
    };
}

cases!(a_thread_for_each_connection, a_pool_of_threads_that_accept_and_serve, accepts_by_a_queue);

fn a_thread_for_each_connection(transport: Transport) {
    let (listener, addr) = listener(transport);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..u32::from(CLIENTS) * u32::from(CONNECTIONS) {
                let (socket, _) = listener.blocking().accept().unwrap();
                scope.spawn(move || serve(&socket));
            }
        });
        ask_in_threads(transport, addr);
    });
}

/// The threads of the pool are more than the clients, so each thread may have its last connection late.
fn a_pool_of_threads_that_accept_and_serve(transport: Transport) {
    let (listener, addr) = listener(transport);
    let pool: Vec<_> = (0..CLIENTS + 2)
        .map(|_| {
            let listener = Arc::clone(&listener);
            thread::spawn(move || {
                let mut served = 0;
                // The listener is shut down at the end.
                while let Ok((socket, _)) = listener.blocking().accept() {
                    serve(&socket);
                    served += 1;
                }
                served
            })
        })
        .collect();
    ask_in_threads(transport, addr);
    listener.blocking().close().unwrap();
    let served: u32 = pool.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(served, u32::from(CLIENTS) * u32::from(CONNECTIONS));
}

/// A thread accepts by its queue, and serves each connection by calls that block.
fn accepts_by_a_queue(transport: Transport) {
    let (listener, addr) = listener(transport);
    thread::scope(|scope| {
        scope.spawn(|| {
            let queue = EventQueue::new(16).unwrap();
            listener.accept(&queue, Token(1)).unwrap();
            for _ in 0..u32::from(CLIENTS) * u32::from(CONNECTIONS) {
                let came = queue.next().unwrap().into_completion().unwrap();
                listener.accept(&queue, Token(1)).unwrap();
                let Completion::Accept { socket, .. } = came else { panic!("{came:?}") };
                scope.spawn(move || serve(&socket));
            }
        });
        ask_in_threads(transport, addr);
    });
}
