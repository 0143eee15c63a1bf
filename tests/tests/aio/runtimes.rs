//! Several runtimes, a runtime that ends, `LocalSet`, and no runtime.

use std::rc::Rc;
use std::sync::mpsc;

use exs::SocketType;
use exs::aio::{AsyncSocket, AsyncStream, block_on};
use exs_tests::harness::{Watchdog, check, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use super::{On, run, runtime};

const SOFT: On = On::Soft;
const SHM: On = On::Shm;

/// Sends bytes both ways between two sockets.
async fn talk(client: &AsyncSocket, server: &AsyncSocket) {
    for len in [10, 70_000] {
        let received = server.recv_exact(vec![0; len]);
        let (sent, bytes) = client.send(pattern(1, 0, len)).await;
        assert_eq!(sent.unwrap(), len);
        let (result, got) = received.await;
        assert_eq!((result.unwrap(), &got), (len, &bytes));
        check(1, 0, &got);
        let received = client.recv_exact(vec![0; len]);
        server.send(got).await.0.unwrap();
        assert_eq!(received.await.1, bytes);
    }
}

#[test]
fn no_runtime_is_needed() {
    let _dog = Watchdog::new("no runtime");
    for on in [SOFT, SHM] {
        block_on(async {
            let (client, server) = on.sockets(SocketType::Stream).await;
            talk(&client, &server).await;
        });
    }
}

#[test]
fn futures_can_be_awaited_in_another_runtime() {
    let _dog = Watchdog::new("two runtimes");
    for on in [SOFT, SHM] {
        let (one, two) = (runtime(1), runtime(2));
        let (client, server) = two.block_on(on.sockets(SocketType::Stream));
        // The workers of the other runtime drive.
        one.block_on(talk(&client, &server));
        block_on(talk(&client, &server));
        two.block_on(talk(&client, &server));
    }
}

#[test]
fn two_runtimes_talk_to_each_other() {
    let _dog = Watchdog::new("two runtimes talk");
    for on in [SOFT, SHM] {
        let (tell, told) = mpsc::channel();
        let server = std::thread::spawn(move || {
            runtime(1).block_on(async {
                let listener = on.listener();
                tell.send(listener.local_addr().unwrap()).unwrap();
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut rd, mut wr) = stream.split();
                tokio::io::copy(&mut rd, &mut wr).await.unwrap()
            })
        });
        let addr = told.recv().unwrap();
        runtime(1).block_on(async {
            let mut client = on.connect(addr).await;
            let mut bytes = [0; 64];
            for i in 0..500 {
                client.write_all(&pattern(2, i * 64, 64)).await.unwrap();
                client.read_exact(&mut bytes).await.unwrap();
                check(2, i * 64, &bytes);
            }
            client.shutdown().await.unwrap();
            assert_eq!(client.read(&mut bytes).await.unwrap(), 0);
        });
        assert_eq!(server.join().unwrap(), 32_000);
    }
}

#[test]
fn a_runtime_ends_with_operations_in_flight() {
    let _dog = Watchdog::new("a runtime ends");
    for on in [SOFT, SHM] {
        for threads in [1, 2] {
            let old = runtime(threads);
            let (client, server) = old.block_on(on.sockets(SocketType::Stream));
            let receive = server.recv_exact(vec![0; 100_000]);
            old.block_on(async {
                let (client, server) = on.streams().await;
                tokio::spawn(async move {
                    let (mut client, mut server) = (client, server);
                    let mut all = Vec::new();
                    client.write_all(&[1; 100]).await.unwrap();
                    server.read_to_end(&mut all).await.unwrap();
                });
            });
            drop(old);
            // A thread drives the sockets from now on: what was in flight ends as it would have.
            block_on(async {
                client.send(pattern(3, 0, 100_000)).await.0.unwrap();
                let (result, bytes) = receive.await;
                assert_eq!(result.unwrap(), 100_000);
                check(3, 0, &bytes);
                talk(&client, &server).await;
            });
        }
    }
}

#[test]
fn streams_outlive_their_runtime() {
    let _dog = Watchdog::new("a stream outlives its runtime");
    for on in [SOFT, SHM] {
        let old = runtime(1);
        let (mut client, mut server) = old.block_on(on.streams());
        old.block_on(async { client.write_all(b"before").await.unwrap() });
        drop(old);
        runtime(1).block_on(async {
            let mut bytes = [0; 6];
            server.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"before");
            for i in 0..100_u32 {
                client.write_u16(1).await.unwrap();
                client.write_u32(i).await.unwrap();
                server.read_u16().await.unwrap();
                assert_eq!(server.read_u32().await.unwrap(), i);
            }
            drop(client);
            assert_eq!(server.read(&mut bytes).await.unwrap(), 0);
        });
    }
}

#[test]
fn tasks_of_a_local_set_have_streams() {
    run(On::Shm, 1, |on| async move {
        let local = LocalSet::new();
        local
            .run_until(async {
                let (client, server) = on.streams().await;
                let not_send = Rc::new(5_u32);
                let task = tokio::task::spawn_local(async move {
                    let mut server: AsyncStream = server;
                    server.write_u32(*not_send).await.unwrap();
                });
                let mut client = client;
                assert_eq!(client.read_u32().await.unwrap(), 5);
                task.await.unwrap();
            })
            .await;
    });
}

/// Each runtime leaves nothing behind: neither a thread nor a descriptor.
#[test]
fn many_runtimes_come_and_go() {
    let _dog = Watchdog::new("many runtimes");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let once = || {
        runtime(1).block_on(async {
            let (mut client, mut server) = SHM.streams().await;
            client.write_all(b"x").await.unwrap();
            server.read_u8().await.unwrap();
        });
    };
    (0..20).for_each(|_| once());
    let before = descriptors();
    (0..50).for_each(|_| once());
    // The sockets close in the background, and other tests run beside this one.
    while descriptors() > before + 100 {
        std::thread::yield_now();
    }
}

/// A thread that enters a runtime while it ends has a socket that is driven, or an error.
#[test]
fn a_thread_enters_a_runtime_that_ends() {
    let _dog = Watchdog::new("a thread enters a runtime that ends");
    let (client, server) = block_on(SOFT.sockets(SocketType::Stream));
    let (client, server) = (client.into_inner(), server.into_inner());
    for _ in 0..200 {
        let old = runtime(1);
        // Only the driver owns the reactor of the runtime from here on.
        drop(old.block_on(async { SOFT.socket(SocketType::Stream) }));
        let handle = old.handle().clone();
        let entered = std::thread::scope(|scope| {
            scope.spawn(move || drop(old));
            let _in_runtime = handle.enter();
            AsyncSocket::from_socket(server.clone())
        });
        // tokio registers no descriptor any more where the runtime has ended.
        let Ok(socket) = entered else { continue };
        let receive = socket.recv(vec![0; 1]);
        client.blocking().send_all(b"x").unwrap();
        assert_eq!(block_on(receive).0.unwrap(), 1);
    }
}
