//! What tokio's own tests of its TCP types expect, and `streams` and `listeners` do not have.
//! `docs/book/src/guide/async.md` lists all of it.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use exs::aio::{AsyncListener, AsyncStream};
use exs::{Socket, SocketType};
use exs_tests::harness::{check, pattern};
use futures_util::poll;
use futures_util::stream::{Stream, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, copy_bidirectional};
use tokio::sync::mpsc;

use super::{On, fill, on_each};

/// A listener as a stream that counts how often its task asks.
struct Counted<'a> {
    asked: Arc<AtomicUsize>,
    listener: &'a AsyncListener,
}

impl Stream for Counted<'_> {
    type Item = AsyncStream;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AsyncStream>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.listener.poll_accept(cx).map(|accepted| Some(accepted.unwrap().0))
    }
}

/// A proxy between two pairs: the ends, and the task that copies.
async fn proxy(
    on: On,
) -> (AsyncStream, AsyncStream, tokio::task::JoinHandle<std::io::Result<(u64, u64)>>) {
    let (client, mut front) = on.streams().await;
    let (mut back, server) = on.streams().await;
    let copies = tokio::spawn(async move { copy_bidirectional(&mut front, &mut back).await });
    (client, server, copies)
}

on_each! {
    // tcp_accept: no_extra_poll
    async fn an_accepting_task_is_woken_for_connections_alone(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (accepted, mut accepts) = mpsc::unbounded_channel();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let count = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            let mut incoming = Counted { asked: count, listener: &listener };
            let first = poll!(incoming.next());
            assert!(first.is_pending());
            begun.send(()).unwrap();
            while let Some(stream) = incoming.next().await {
                accepted.send(stream).unwrap();
            }
        });
        begins.await.unwrap();
        for i in 1..=10 {
            let _client = on.connect(addr).await;
            let _server = accepts.recv().await.unwrap();
            // It asks once more and waits, now or in a moment.
            assert!(asked.load(Ordering::SeqCst) <= 2 + 2 * i, "{asked:?} after {i}");
        }
        task.abort();
    }

    // tcp_accept: accept_many
    async fn every_accepting_task_is_woken(on) {
        const TASKS: usize = 50;
        let listener = Arc::new(on.listener());
        let addr = listener.local_addr().unwrap();
        let connected = Arc::new(AtomicBool::new(false));
        let (tell, mut waiting) = mpsc::unbounded_channel();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (listener, connected) = (Arc::clone(&listener), Arc::clone(&connected));
                let tell = tell.clone();
                tokio::spawn(async move {
                    let mut accept = pin!(listener.accept());
                    let mut waits = false;
                    poll_fn(|cx| {
                        if connected.load(Ordering::SeqCst) && waits {
                            return Poll::Ready(());
                        }
                        if !waits {
                            assert!(accept.as_mut().poll(cx).is_pending());
                            waits = true;
                            tell.send(()).unwrap();
                        }
                        Poll::Pending
                    })
                    .await;
                })
            })
            .collect();
        for _ in 0..TASKS {
            waiting.recv().await.unwrap();
        }
        connected.store(true, Ordering::SeqCst);
        let _client = on.connect(addr).await;
        for task in tasks {
            task.await.unwrap();
        }
    }

    // tcp_connect: connect_addr_*
    async fn connects_to_text_names_and_tuples(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let port = addr.port();
        let text = addr.to_string();
        let name = format!("localhost:{port}");
        let clients = [
            AsyncStream::connect_with(addr, on.options()).await.unwrap(),
            AsyncStream::connect_with(&text, on.options()).await.unwrap(),
            AsyncStream::connect_with(&text[..], on.options()).await.unwrap(),
            AsyncStream::connect_with(name, on.options()).await.unwrap(),
            AsyncStream::connect_with((addr.ip(), port), on.options()).await.unwrap(),
            AsyncStream::connect_with(("127.0.0.1", port), on.options()).await.unwrap(),
            AsyncStream::connect_with(("localhost", port), on.options()).await.unwrap(),
            AsyncStream::connect_with([addr].as_slice(), on.options()).await.unwrap(),
        ];
        for client in &clients {
            assert_eq!(client.peer_addr().unwrap(), addr);
            listener.accept().await.unwrap();
        }
        let error = AsyncStream::connect_with("localhost", on.options()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }

    // tcp_into_split and tcp_split: split
    async fn halves_have_the_calls_of_their_direction(on) {
        let (mut client, mut server) = on.streams().await;
        let addrs = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        server.write_all(b"split").await.unwrap();
        server.flush().await.unwrap();
        let mut bytes = [0; 32];
        {
            let (mut rd, wr) = client.split();
            assert_eq!((rd.local_addr().unwrap(), wr.peer_addr().unwrap()), addrs);
            rd.readable().await.unwrap();
            let first = rd.peek(&mut bytes).await.unwrap();
            assert_eq!(rd.peek(&mut bytes).await.unwrap(), first);
            assert_eq!(rd.try_read(&mut bytes).unwrap(), 5);
            assert_eq!(&bytes[..5], b"split");
            assert_eq!(rd.try_read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
            wr.writable().await.unwrap();
            assert_eq!(wr.try_write(b"borrowed").unwrap(), 8);
        }
        let (mut rd, wr) = client.into_split();
        assert_eq!((wr.local_addr().unwrap(), rd.peer_addr().unwrap()), addrs);
        assert!(wr.ready(Interest::WRITABLE).await.unwrap().is_writable());
        let parts = [std::io::IoSlice::new(b", "), std::io::IoSlice::new(b"owned")];
        assert_eq!(wr.try_write_vectored(&parts).unwrap(), 7);
        drop(wr);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "borrowed, owned");
        server.write_all(b"x").await.unwrap();
        server.flush().await.unwrap();
        assert!(rd.ready(Interest::READABLE).await.unwrap().is_readable());
        assert_eq!(rd.peek(&mut bytes).await.unwrap(), 1);
        assert_eq!(rd.try_read_vectored(&mut [IoSliceMut::new(&mut bytes)]).unwrap(), 1);
    }

    // tcp_into_split: drop_write
    async fn a_read_goes_on_when_the_write_half_is_dropped(on) {
        let (client, mut server) = on.streams().await;
        let (mut rd, wr) = client.into_split();
        let reader = tokio::spawn(async move {
            let mut text = String::new();
            rd.read_to_string(&mut text).await.unwrap();
            text
        });
        tokio::task::yield_now().await;
        drop(wr);
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        server.write_all(b"still here").await.unwrap();
        drop(server);
        assert_eq!(reader.await.unwrap(), "still here");
    }

    // tcp_into_std
    async fn a_stream_is_made_of_a_blocking_socket(on) {
        let listener = on.listener();
        let addr = listener.local_addr().unwrap();
        let options = on.options();
        let socket = tokio::task::spawn_blocking(move || {
            let socket = Socket::with_options(SocketType::Stream, options).unwrap();
            socket.blocking().connect(addr).unwrap();
            socket.blocking().send_all(b"Hello world!").unwrap();
            socket
        });
        let (mut server, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 12];
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"Hello world!");
        let mut client = AsyncStream::from_socket(socket.await.unwrap()).unwrap();
        server.write_all(b"Hello tokio!").await.unwrap();
        client.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"Hello tokio!");
        client.write_all(b"back").await.unwrap();
        client.flush().await.unwrap();
        server.read_exact(&mut bytes[..4]).await.unwrap();
        assert_eq!(client.get_ref().peer_addr().unwrap(), addr);
    }

    // tcp_shutdown: shutdown_after_tcp_reset
    async fn a_shutdown_after_a_reset_is_no_surprise(on) {
        let (mut client, server) = on.streams().await;
        server.get_ref().abort();
        client.readable().await.unwrap();
        for _ in 0..2 {
            if let Err(e) = client.shutdown().await {
                assert_eq!(e.kind(), ErrorKind::ConnectionReset);
            }
        }
        drop(server);
    }

    // tcp_stream: try_read_write
    async fn vectored_reads_do_not_wait_either(on) {
        let (client, server) = on.streams().await;
        let mut none = [0; 4];
        let nothing = server.try_read_vectored(&mut [IoSliceMut::new(&mut none)]);
        assert_eq!(nothing.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(server.try_read_vectored(&mut []).unwrap(), 0);
        let written = fill(&client);
        let mut all = vec![0; written];
        let mut read = 0;
        while read < written {
            server.readable().await.unwrap();
            let mut slices: Vec<_> = all[read..].chunks_mut(10_000).map(IoSliceMut::new).collect();
            slices.insert(0, IoSliceMut::new(&mut []));
            match server.try_read_vectored(&mut slices) {
                Ok(n) => read += n,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        check(1, 0, &all);
        drop(client);
        server.readable().await.unwrap();
        assert_eq!(server.try_read_vectored(&mut [IoSliceMut::new(&mut none)]).unwrap(), 0);
    }

    // tcp_stream: poll_read_ready, and the woken task of try_read_write
    async fn readiness_follows_the_data(on) {
        let (mut client, mut server) = on.streams().await;
        for _ in 0..3 {
            {
                let mut readable = pin!(server.readable());
                assert!(poll!(readable.as_mut()).is_pending());
                client.write_all(b"ping").await.unwrap();
                client.flush().await.unwrap();
                readable.await.unwrap();
            }
            let mut bytes = [0; 4];
            server.read_exact(&mut bytes[..2]).await.unwrap();
            assert!(poll!(pin!(server.readable())).is_ready(), "two bytes are left");
            server.read_exact(&mut bytes[2..]).await.unwrap();
            assert_eq!(&bytes, b"ping");
            assert!(poll!(pin!(server.readable())).is_pending());
        }
        drop(client);
        server.readable().await.unwrap();
        assert_eq!(server.read(&mut [0; 4]).await.unwrap(), 0);
    }

    // tcp_stream: poll_write_ready
    async fn readiness_follows_the_room(on) {
        let (client, mut server) = on.streams().await;
        assert!(poll!(pin!(client.writable())).is_ready());
        let written = fill(&client);
        assert!(poll!(pin!(client.writable())).is_pending());
        let mut all = vec![0; written];
        server.read_exact(&mut all).await.unwrap();
        check(1, 0, &all);
        client.writable().await.unwrap();
        fill(&client);
        // The peer goes: a write no longer waits.
        drop(server);
        client.writable().await.unwrap();
    }

    // tcp_stream: read_closed, write_closed
    async fn ready_says_what_is_closed(on) {
        let (mut client, mut server) = on.streams().await;
        {
            let mut ready = pin!(client.ready(Interest::READABLE));
            assert!(poll!(ready.as_mut()).is_pending());
            server.write_all(b"ping").await.unwrap();
            server.flush().await.unwrap();
            let ready = ready.await.unwrap();
            assert!(ready.is_readable() && !ready.is_read_closed() && !ready.is_writable());
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        let ready = client.ready(both).await.unwrap();
        assert!(ready.is_readable() && ready.is_writable() && !ready.is_write_closed());
        client.read_exact(&mut [0; 4]).await.unwrap();
        assert!(!client.ready(both).await.unwrap().is_readable());
        fill(&client);
        assert!(poll!(pin!(client.ready(Interest::WRITABLE))).is_pending());
        server.shutdown().await.unwrap();
        // The peer's EXS may take data meanwhile, so that there is room for a write.
        let ready = client.ready(Interest::READABLE).await.unwrap();
        assert!(ready.is_readable() && ready.is_read_closed());
        let neither = client.ready(Interest::PRIORITY).await.unwrap_err();
        assert_eq!(neither.kind(), ErrorKind::InvalidInput);
    }

    // tcp_socket: basic_usage, bind_before_connect
    async fn a_socket_is_bound_before_it_connects(on) {
        let listener = on.socket(SocketType::Stream);
        listener.bind(On::any()).unwrap();
        listener.listen(4).unwrap();
        let addr = listener.local_addr().unwrap();
        let listener = AsyncListener::from_socket(listener.into_inner()).unwrap();
        let client = on.socket(SocketType::Stream);
        client.bind(On::any()).unwrap();
        let own = client.local_addr().unwrap();
        client.connect(addr).await.unwrap();
        let mut client = AsyncStream::try_from(client).unwrap();
        let (mut server, peer) = listener.accept().await.unwrap();
        assert_eq!((peer, client.local_addr().unwrap()), (own, own));
        client.write_all(b"x").await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    }

    async fn sockets_with_messages_are_no_streams(on) {
        let (client, server) = on.sockets(SocketType::SeqPacket).await;
        let refused = |e: exs::Error| {
            assert_eq!(e.errno(), libc::EINVAL, "{e}");
            assert!(e.to_string().contains("seqpacket"), "{e}");
        };
        refused(AsyncStream::try_from(client.clone()).unwrap_err());
        refused(AsyncStream::from_socket(server.into_inner()).unwrap_err());
        refused(AsyncListener::from_socket(client.into_inner()).unwrap_err());
    }

    // io_copy_bidirectional: test_transfer_after_close
    async fn a_proxy_copies_after_one_end(on) {
        let (mut client, mut server, copies) = proxy(on).await;
        client.shutdown().await.unwrap();
        assert_eq!(server.read_to_end(&mut Vec::new()).await.unwrap(), 0);
        server.write_all(b"quux").await.unwrap();
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "quux");
        assert_eq!(copies.await.unwrap().unwrap(), (0, 4));
    }

    // io_copy_bidirectional: blocking_one_side_does_not_block_other
    async fn a_full_direction_does_not_stop_the_other(on) {
        let (client, mut server, copies) = proxy(on).await;
        let (mut rd, mut wr) = client.into_split();
        let len = 24 << 20;
        let writer = tokio::spawn(async move {
            wr.write_all(&pattern(2, 0, len)).await.unwrap();
            wr.shutdown().await.unwrap();
        });
        for i in 0..100_u32 {
            server.write_u32(i).await.unwrap();
            server.flush().await.unwrap();
            assert_eq!(rd.read_u32().await.unwrap(), i);
        }
        assert!(!writer.is_finished(), "more than the streams hold was written");
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), len);
        check(2, 0, &all);
        drop(server);
        writer.await.unwrap();
        assert_eq!(copies.await.unwrap().unwrap(), (len as u64, 400));
    }

    // io_copy_bidirectional: immediate_exit_on_read_error, immediate_exit_on_write_error
    async fn an_error_ends_a_proxy(on) {
        let (client, server, copies) = proxy(on).await;
        client.get_ref().abort();
        let error = copies.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(server);
    }

    // futures' traits, by tokio-util: a copy in both directions
    async fn the_traits_of_futures_carry_much(on) {
        use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
        use tokio_util::compat::TokioAsyncReadCompatExt;
        let (client, server) = on.streams().await;
        let echo = tokio::spawn(async move {
            let (rd, mut wr) = server.compat().split();
            let copied = copy(rd, &mut wr).await.unwrap();
            wr.close().await.unwrap();
            copied
        });
        let (mut rd, mut wr) = client.compat().split();
        let len = 2_000_000;
        let write = async {
            wr.write_all(&pattern(3, 0, len)).await.unwrap();
            wr.close().await.unwrap();
        };
        let mut all = Vec::new();
        let (_, read) = tokio::join!(write, rd.read_to_end(&mut all));
        assert_eq!(read.unwrap(), len);
        check(3, 0, &all);
        assert_eq!(echo.await.unwrap(), len as u64);
    }
}

/// tcp_stream: buffer_not_included_in_future
#[test]
fn futures_of_readiness_are_small() {
    let future = async |addr: SocketAddr| {
        let stream = AsyncStream::connect(addr).await.unwrap();
        loop {
            stream.readable().await.unwrap();
            let mut bytes = [0; 4096];
            if stream.try_read(&mut bytes).unwrap() == 0 {
                break;
            }
        }
    };
    let size = std::mem::size_of_val(&future(On::any()));
    assert!(size < 3000, "{size} bytes");
}
