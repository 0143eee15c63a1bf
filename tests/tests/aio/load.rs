//! Many connections at once.

use exs_tests::harness::{check, many_files, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};

use super::{On, on_each};

/// Copies bytes on each of many connections at once, there and back.
async fn copies(on: On, clients: usize, len: usize) {
    let listener = on.listener();
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut echoes = Vec::new();
        for _ in 0..clients {
            let (stream, _) = listener.accept().await.unwrap();
            echoes.push(tokio::spawn(async move {
                let (mut rd, mut wr) = stream.into_split();
                copy(&mut rd, &mut wr).await.unwrap()
            }));
        }
        for echo in echoes {
            assert_eq!(echo.await.unwrap(), len as u64);
        }
    });
    let clients: Vec<_> = (0..clients)
        .map(|i| {
            tokio::spawn(async move {
                let (mut rd, mut wr) = on.connect(addr).await.into_split();
                let write = async {
                    wr.write_all(&pattern(i as u64, 0, len)).await.unwrap();
                    wr.shutdown().await.unwrap();
                };
                let mut all = Vec::with_capacity(len);
                tokio::join!(write, async { rd.read_to_end(&mut all).await.unwrap() });
                assert_eq!(all.len(), len);
                check(i as u64, 0, &all);
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    server.await.unwrap();
}

on_each! {
    // More operations than the default depth of a queue: there is room for all.
    async fn two_hundred_clients_copy_300_kb(on) {
        many_files();
        copies(on, 200, 300_000).await;
    }

    async fn more_operations_than_a_queue_has_room_for(on) {
        let (client, server) = on.sockets(exs::SocketType::Stream).await;
        let receives: Vec<_> = (0..5000).map(|_| server.recv_exact(vec![0; 10])).collect();
        for i in 0..5000 {
            client.send(pattern(1, i * 10, 10)).await.0.unwrap();
        }
        for (i, receive) in receives.into_iter().enumerate() {
            let (result, bytes) = receive.await;
            assert_eq!(result.unwrap(), 10);
            check(1, i * 10, &bytes);
        }
    }
}
