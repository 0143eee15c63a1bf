//! Sockets whose calls are futures.

use std::future::Future;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use exs::aio::AsyncSocket;
use exs::{Interest, MemoryRegion, Rights, SocketType};
use exs_tests::harness::{check, pattern};

use super::{On, on_each, run};

/// Polls a future once, without a task.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

on_each! {
    async fn memory_comes_back_with_the_result(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let region = MemoryRegion::new(1 << 20).unwrap();
        for len in [1, 64, 4096, 5000, 100_000] {
            let mut buffer = region.buffer(..len).unwrap();
            buffer.copy_from_slice(&pattern(1, 0, len));
            let at = buffer.as_ptr();
            let received = server.recv_exact(vec![0; len]);
            let (sent, buffer) = client.send(buffer).await;
            assert_eq!((sent.unwrap(), buffer.as_ptr(), buffer.len()), (len, at, len));
            let (result, bytes) = received.await;
            assert_eq!((result.unwrap(), bytes.len()), (len, len));
            check(1, 0, &bytes);
        }
    }

    async fn each_kind_of_memory_moves(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let shared = Bytes::from(b"shared".to_vec());
        let _other = shared.clone();
        assert_eq!(client.send(shared).await.0.unwrap(), 6);
        assert_eq!(client.send(Bytes::from(vec![b'o'; 3])).await.1, "ooo");
        assert_eq!(client.send(BytesMut::from("mut")).await.1, "mut");
        assert_eq!(client.send("str").await.0.unwrap(), 3);
        assert_eq!(client.send(b"box".to_vec().into_boxed_slice()).await.1[..], *b"box");
        let (result, bytes) = server.recv_exact(BytesMut::zeroed(18)).await;
        assert_eq!((result.unwrap(), &bytes[..]), (18, &b"sharedooomutstrbox"[..]));
        let (result, _) = client.send(Vec::new()).await;
        assert_eq!(result.unwrap(), 0);
    }

    async fn several_receives_are_posted_ahead(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let ahead: Vec<_> = (0..8).map(|_| server.recv_exact(vec![0; 1000])).collect();
        for i in 0..8 {
            assert_eq!(client.send(pattern(2, i * 1000, 1000)).await.0.unwrap(), 1000);
        }
        // In another order than they were posted.
        for (i, receive) in ahead.into_iter().enumerate().rev() {
            let (result, bytes) = receive.await;
            assert_eq!(result.unwrap(), 1000);
            check(2, i * 1000, &bytes);
        }
    }

    async fn vectors_are_one_stretch_of_bytes(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (sent, parts) = client.send_vectored(vec![b"head".to_vec(), vec![7; 50_000]]).await;
        assert_eq!((sent.unwrap(), parts[0].len(), parts[1].len()), (50_004, 4, 50_000));
        let mut got = Vec::new();
        while got.len() < 50_004 {
            let (result, parts) = server.recv_vectored(vec![vec![0; 3], vec![0; 60_000]]).await;
            let n = result.unwrap();
            got.extend_from_slice(&parts.concat()[..n]);
        }
        assert_eq!((&got[..4], got.iter().filter(|b| **b == 7).count()), (&b"head"[..], 50_000));
    }

    async fn messages_have_ends(on) {
        let (client, server) = on.sockets(SocketType::SeqPacket).await;
        client.send(vec![1; 24]).await.0.unwrap();
        client.send(Vec::new()).await.0.unwrap();
        client.shutdown(Shutdown::Write).await.unwrap();
        let (packet, bytes) = server.recv_packet(vec![0; 10]).await;
        let packet = packet.unwrap();
        assert_eq!((packet.bytes, packet.total, packet.eof, &bytes[..]), (10, 24, false, &[1; 10][..]));
        let packet = server.recv_packet(vec![0; 10]).await.0.unwrap();
        assert_eq!((packet.bytes, packet.eof), (0, false));
        assert!(server.recv_packet(vec![0; 10]).await.0.unwrap().eof);
    }

    async fn files_are_sent(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
        assert_eq!(client.send_file(file, 1, 3).await.unwrap(), 3);
        assert_eq!(server.recv_exact(vec![0; 3]).await.1, b"ELF");
    }

    async fn one_sided_operations_reach_exports(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let export = client.get_ref().export(vec![7; 100], Rights::READ_WRITE, None).unwrap();
        let remote = export.descriptor();
        let (read, bytes) = server.read(&remote, 90, vec![0; 10]).await;
        assert_eq!((read.unwrap(), bytes), (10, vec![7; 10]));
        let (written, _) = server.write(&remote, 0, "hello").await;
        assert_eq!(written.unwrap(), 5);
        let back = client.revoke(export).await.unwrap();
        assert_eq!(&back[..6], b"hello\x07");
        let (refused, bytes) = server.read(&remote, 95, vec![9; 10]).await;
        assert!(refused.is_err() && bytes == vec![9; 10], "beyond the end");
    }

    async fn a_refused_operation_returns_its_memory(on) {
        let alone = on.socket(SocketType::Stream);
        let (result, buffer) = alone.recv(vec![3; 10]).await;
        assert_eq!(result.unwrap_err().errno(), libc::ENOTCONN);
        assert_eq!(buffer, [3; 10]);
        let (result, buffers) = alone.send_vectored(vec![vec![1], vec![2]]).await;
        assert!(result.is_err());
        assert_eq!(buffers, [[1], [2]]);
        assert!(alone.accept().await.is_err());
        assert!(alone.shutdown(Shutdown::Both).await.is_err());
    }

    async fn a_cancelled_receive_keeps_its_bytes(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let receive = server.recv_exact(vec![0; 10]);
        client.send("abc").await.0.unwrap();
        // The bytes are in the receive when the next operation has seen what follows them.
        let after = server.recv(vec![0; 10]);
        receive.cancel();
        let (result, bytes) = receive.await;
        // Cancelled before or after the bytes came: none is lost.
        let n = result.unwrap_or(0);
        client.send("def").await.0.unwrap();
        let mut got = bytes[..n].to_vec();
        let (result, bytes) = after.await;
        got.extend_from_slice(&bytes[..result.unwrap()]);
        while got.len() < 6 {
            let (result, bytes) = server.recv(vec![0; 10]).await;
            got.extend_from_slice(&bytes[..result.unwrap()]);
        }
        assert_eq!(got, b"abcdef");
    }

    async fn a_dropped_future_leaves_the_socket_as_it_was(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        for _ in 0..20 {
            let mut receive = server.recv(vec![0; 100_000]);
            assert!(poll_once(&mut receive).is_pending());
            drop(receive);
        }
        // The client has seen that the receives are gone when it has seen what followed.
        server.send("go").await.0.unwrap();
        client.recv(vec![0; 2]).await.0.unwrap();
        let receive = server.recv(vec![0; 3]);
        client.send("abc").await.0.unwrap();
        let (result, bytes) = receive.await;
        assert_eq!((result.unwrap(), &bytes[..]), (3, &b"abc"[..]));
    }

    async fn the_end_is_no_bytes_and_a_close_is_an_end(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        client.send("last").await.0.unwrap();
        client.close().await.unwrap();
        let (result, bytes) = server.recv(vec![0; 10]).await;
        assert_eq!(&bytes[..result.unwrap()], b"last");
        assert_eq!(server.recv(vec![0; 10]).await.0.unwrap(), 0);
        let (refused, _) = client.send("more").await;
        assert!(refused.is_err());
    }

    async fn a_broken_connection_ends_all_futures(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let receives: Vec<_> = (0..4).map(|_| server.recv(vec![0; 10])).collect();
        client.abort();
        for receive in receives {
            let (result, buffer) = receive.await;
            assert_eq!(std::io::Error::from(result.unwrap_err()).kind(), std::io::ErrorKind::ConnectionReset);
            assert_eq!(buffer.len(), 10);
        }
    }

    async fn readiness_can_be_awaited(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let ready = server.ready(Interest::READABLE);
        client.send("abc").await.0.unwrap();
        assert!(ready.await.unwrap().readable);
    }

    async fn a_failed_connect_leaves_the_socket_as_it_was(on) {
        let closed = on.socket(SocketType::Stream);
        closed.bind(On::any()).unwrap();
        closed.listen(1).unwrap();
        let addr = closed.local_addr().unwrap();
        closed.close().await.unwrap();
        let client = on.socket(SocketType::Stream);
        assert!(client.connect(addr).await.is_err());
        let listener = on.listener();
        client.connect(listener.local_addr().unwrap()).await.unwrap();
        assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
    }
}

#[test]
fn operations_of_one_socket_can_be_shared_among_tasks() {
    run(On::Shm, 3, |on| async move {
        let (client, server) = on.sockets(SocketType::SeqPacket).await;
        let send =
            |i: u8, client: AsyncSocket| async move { client.send(vec![i; 100]).await.0.unwrap() };
        let sends: Vec<_> = (0..50).map(|i| tokio::spawn(send(i, client.clone()))).collect();
        let mut seen = [false; 50];
        for _ in 0..50 {
            let (packet, bytes) = server.recv_packet(vec![0; 200]).await;
            assert_eq!(packet.unwrap().bytes, 100);
            assert!(!std::mem::replace(&mut seen[usize::from(bytes[0])], true));
        }
        for send in sends {
            assert_eq!(send.await.unwrap(), 100);
        }
    });
}
