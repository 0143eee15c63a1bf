//! EXS in the runtime of compio, where there is no tokio: a thread of the library moves the data and
//! wakes compio's tasks. A buffer of EXS is a buffer of compio's operations, too.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;

use compio_buf::{BufResult, IntoInner, IoBuf};
use compio_driver::op::ReadAt;
use compio_runtime::{Runtime, spawn, submit};
use exs::aio::AsyncSocket;
use exs::{Buffer, Error, MemoryRegion, Options, SocketType, Transport};
use exs_tests::harness::{Watchdog, check, pattern};

/// Both transports that every host has.
const EACH: [Transport; 2] = [Transport::Soft, Transport::Shm];
/// Bytes of a message, and of a buffer.
const PIECE: usize = 100_000;

fn socket(transport: Transport) -> AsyncSocket {
    let options = Options::default().with_transport(transport);
    AsyncSocket::with_options(SocketType::Stream, options).unwrap()
}

/// Sends each piece back in the buffer in which it has come, until the end. Returns the bytes.
async fn echo(socket: AsyncSocket, mut buffer: Buffer) -> Result<usize, Error> {
    let mut sum = 0;
    loop {
        let (received, filled) = socket.recv_exact(buffer).await;
        if received? < filled.len() {
            return Ok(sum);
        }
        let (sent, back) = socket.send(filled).await;
        (sum, buffer) = (sum + sent?, back);
    }
}

/// A server's tasks, of which each echoes for a connection.
async fn serve(listener: AsyncSocket, connections: usize) -> usize {
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (socket, _) = listener.accept().await.unwrap();
        let memory = MemoryRegion::new(PIECE).unwrap();
        tasks.push(spawn(echo(socket, memory.buffer(..).unwrap())));
    }
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap().unwrap();
    }
    sum
}

/// A file with a pattern, which has no name.
fn file(pieces: usize) -> File {
    let dir = std::env::temp_dir();
    let name =
        dir.join(format!("exs-compio-{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&name).unwrap();
    std::fs::remove_file(&name).unwrap();
    file.write_all(&pattern(1, 0, pieces * PIECE)).unwrap();
    file
}

/// Has compio read a file into a registered buffer, which EXS then sends and receives into.
async fn send_file_by_pieces(socket: &AsyncSocket, pieces: usize) {
    let file = file(pieces);
    let memory = MemoryRegion::new(PIECE).unwrap();
    let mut buffer = memory.buffer(..).unwrap();
    let at = buffer.as_ptr();
    for piece in 0..pieces {
        // The buffer is full, and a read of compio's fills all that it has.
        let offset = (piece * PIECE) as u64;
        let read = ReadAt::new(file.try_clone().unwrap(), offset, buffer);
        let BufResult(read, filled) = submit(read).await.into_inner();
        assert_eq!((read.unwrap(), filled.buf_len()), (PIECE, PIECE));
        let (sent, back) = socket.send(filled).await;
        assert_eq!(sent.unwrap(), PIECE);
        let (received, echoed) = socket.recv_exact(back).await;
        assert_eq!(received.unwrap(), PIECE);
        check(1, piece * PIECE, &echoed);
        assert_eq!(echoed.as_ptr(), at, "the same memory all the way");
        buffer = echoed;
    }
}

#[test]
fn tasks_of_compio_echo_with_buffers_of_exs() {
    const CONNECTIONS: usize = 4;
    const PIECES: usize = 5;
    for transport in EACH {
        let _dog = Watchdog::new("an echo under compio");
        let moved = Runtime::new().unwrap().block_on(async move {
            let listener = socket(transport);
            listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            listener.listen(8).unwrap();
            let addr = listener.local_addr().unwrap();
            let server = spawn(serve(listener, CONNECTIONS));
            let clients: Vec<_> = (0..CONNECTIONS)
                .map(|_| {
                    spawn(async move {
                        let client = socket(transport);
                        client.connect(addr).await.unwrap();
                        send_file_by_pieces(&client, PIECES).await;
                        client.close().await.unwrap();
                    })
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
            server.await.unwrap()
        });
        assert_eq!(moved, CONNECTIONS * PIECES * PIECE, "{transport:?}");
    }
}

/// A runtime that ends drops the futures of its tasks, whose memory may still be in flight. Sockets
/// and futures go on in another runtime.
#[test]
fn sockets_outlive_a_runtime_of_compio() {
    for transport in EACH {
        let _dog = Watchdog::new("two runtimes of compio");
        let (client, server) = Runtime::new().unwrap().block_on(async {
            let listener = socket(transport);
            listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            listener.listen(1).unwrap();
            let (client, accepted) = (socket(transport), listener.accept());
            client.connect(listener.local_addr().unwrap()).await.unwrap();
            (client, accepted.await.unwrap().0)
        });
        let receive = server.recv_exact(vec![0; PIECE]);
        Runtime::new().unwrap().block_on(async {
            assert_eq!(client.send(pattern(2, 0, PIECE)).await.0.unwrap(), PIECE);
            let (received, bytes) = receive.await;
            assert_eq!(received.unwrap(), PIECE);
            check(2, 0, &bytes);
        });
    }
}
