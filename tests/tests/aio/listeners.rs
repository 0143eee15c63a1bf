//! The behaviours of tokio's `TcpListener`.

use std::task::Poll;

use exs::Options;
use exs::aio::{AsyncListener, AsyncStream};
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{On, on_each};

on_each! {
    // tcp_accept, tcp_connect
    async fn connections_are_accepted_in_order(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        for _ in 0..20 {
            let client = on.connect(addr).await;
            let (server, peer) = listener.accept().await.unwrap();
            assert_eq!((peer, server.local_addr().unwrap()), (client.local_addr().unwrap(), addr));
        }
    }

    async fn a_dropped_accept_loses_no_connection(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        for i in 0..50_u32 {
            {
                let mut accept = std::pin::pin!(listener.accept());
                // Whether it has one by now or not: a connection that it had taken would be lost.
                if let Poll::Ready(accepted) = futures_util::poll!(accept.as_mut()) {
                    panic!("no client has connected, and yet {accepted:?}");
                }
            }
            let mut client = on.connect(addr).await;
            client.write_u32(i).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            assert_eq!(server.read_u32().await.unwrap(), i);
        }
    }

    async fn several_tasks_accept(on) {
        let listener = std::sync::Arc::new(on.listener());
        let addr = listener.local_addr().unwrap();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let listener = listener.clone();
                tokio::spawn(async move {
                    let mut sum = 0;
                    for _ in 0..10 {
                        sum += listener.accept().await.unwrap().0.read_u32().await.unwrap();
                    }
                    sum
                })
            })
            .collect();
        for i in 0..40 {
            let mut client = on.connect(addr).await;
            client.write_u32(i).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        }
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        assert_eq!(sum, (0..40).sum());
    }

    async fn a_listener_is_a_stream_of_connections(on) {
        let mut listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let _clients = (on.connect(addr).await, on.connect(addr).await);
        let first = listener.next().await.unwrap().unwrap();
        let second = listener.incoming().next().await.unwrap().unwrap();
        assert_ne!(first.peer_addr().unwrap(), second.peer_addr().unwrap());
    }

    // tcp_connect: many connections are accepted later
    async fn connections_wait_until_they_are_accepted(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for i in 0..100 {
            let mut client = on.connect(addr).await;
            client.write_u32(i).await.unwrap();
            clients.push(client);
        }
        let mut sum = 0;
        for _ in 0..100 {
            sum += listener.accept().await.unwrap().0.read_u32().await.unwrap();
        }
        assert_eq!(sum, (0..100).sum());
    }

    async fn a_dropped_listener_resets_what_was_not_accepted(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let mut client = on.connect(addr).await;
        drop(listener);
        let read = client.read(&mut [0]).await;
        assert!(read.is_err(), "{read:?}");
        assert!(AsyncStream::connect_with(addr, on.options()).await.is_err());
    }
}

/// Each family of addresses, and the transport that the library chooses.
#[test]
fn connects_over_both_families() {
    super::run(On::Soft, 1, |_| async {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let listener = AsyncListener::bind(addr.parse().unwrap()).unwrap();
            let connect = AsyncStream::connect(listener.local_addr().unwrap());
            let (client, accepted) = tokio::join!(connect, listener.accept());
            let (mut client, (mut server, _)) = (client.unwrap(), accepted.unwrap());
            client.write_all(b"x").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'x');
        }
        let taken = AsyncListener::bind_with(On::any(), Options::default()).unwrap();
        assert!(AsyncListener::bind(taken.local_addr().unwrap()).is_err());
    });
}
