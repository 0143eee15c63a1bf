//! The behaviours of tokio's `TcpStream`. `docs/book/src/guide/async.md` lists them beside tokio's
//! own tests.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use exs::aio::AsyncStream;
use exs_tests::harness::{Rng, check, pattern};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy, copy_bidirectional,
};
use tokio::join;

use super::{On, fill, on_each, run};

on_each! {
    // tcp_echo
    async fn a_thousand_echoes(on) {
        let (mut client, server) = on.streams().await;
        let echo = tokio::spawn(async move {
            let (mut rd, mut wr) = server.into_split();
            copy(&mut rd, &mut wr).await.unwrap()
        });
        let mut bytes = [0; 11];
        for _ in 0..1000 {
            client.write_all(b"foo bar baz").await.unwrap();
            client.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"foo bar baz");
        }
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut bytes).await.unwrap(), 0);
        assert_eq!(echo.await.unwrap(), 11_000);
    }

    // tcp_shutdown
    async fn shutdown_ends_one_direction(on) {
        let (mut client, mut server) = on.streams().await;
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(server.read(&mut [0; 4]).await.unwrap(), 0, "the end stays");
        server.write_all(b"world").await.unwrap();
        drop(server);
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "helloworld");
    }

    // tcp_shutdown: what was written before is not lost, nor does the shutdown wait for it
    async fn shutdown_follows_what_was_written(on) {
        let (mut client, mut server) = on.streams().await;
        let written = fill(&client);
        client.shutdown().await.unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), written);
    }

    // tcp_split: borrowed halves
    async fn halves_can_be_used_at_once(on) {
        let (mut client, mut server) = on.streams().await;
        let side = async |stream: &mut AsyncStream, seed| {
            let (mut rd, mut wr) = stream.split();
            let write = async {
                wr.write_all(&pattern(seed, 0, 1 << 20)).await.unwrap();
                wr.shutdown().await.unwrap();
            };
            let mut all = Vec::new();
            let read = async { rd.read_to_end(&mut all).await.unwrap() };
            join!(write, read);
            assert_eq!(all.len(), 1 << 20);
            check(3 - seed, 0, &all);
        };
        join!(side(&mut client, 1), side(&mut server, 2));
    }

    // tcp_into_split
    async fn owned_halves_reunite(on) {
        let (client, mut server) = on.streams().await;
        let (other, _server) = on.streams().await;
        let (rd, wr) = client.into_split();
        let (other_rd, other_wr) = other.into_split();
        let back = rd.reunite(other_wr).unwrap_err();
        assert!(back.to_string().contains("not of the same stream"));
        let mut client = back.0.reunite(wr).unwrap();
        drop((other_rd, back.1));
        client.write_all(b"whole").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
        server.write_all(b"again").await.unwrap();
        client.read_exact(&mut [0; 5]).await.unwrap();
    }

    // tcp_into_split: dropping the write half ends the direction, forgetting it does not
    async fn a_dropped_write_half_ends_the_direction(on) {
        let (client, mut server) = on.streams().await;
        let (mut rd, mut wr) = client.into_split();
        wr.write_all(b"hello").await.unwrap();
        drop(wr);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
        server.write_all(b"ok").await.unwrap();
        rd.read_exact(&mut [0; 2]).await.unwrap();

        let (client, mut server) = on.streams().await;
        let (rd, wr) = client.into_split();
        wr.forget();
        let mut read = std::pin::pin!(server.read_u8());
        assert!(matches!(futures_util::poll!(read.as_mut()), Poll::Pending));
        drop(rd);
        assert_eq!(read.await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    // tcp_peek
    async fn peek_leaves_the_bytes(on) {
        let (mut client, mut server) = on.streams().await;
        client.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 8];
        let mut n = 0;
        while n < 5 {
            n = server.peek(&mut bytes).await.unwrap();
        }
        assert_eq!(&bytes[..n], b"hello");
        assert_eq!(server.peek(&mut bytes[..2]).await.unwrap(), 2);
        server.read_exact(&mut bytes[..5]).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(server.peek(&mut bytes).await.unwrap(), 0);
        assert_eq!(server.peek(&mut []).await.unwrap(), 0);
    }

    // tcp_stream: try_read, try_write, readable, writable
    async fn calls_that_do_not_wait(on) {
        let (client, server) = on.streams().await;
        let mut bytes = vec![0; 100_000];
        assert_eq!(server.try_read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.writable().await.unwrap();
        for _ in 0..2 {
            let written = fill(&client);
            assert!(written >= 100_000);
            let mut read = 0;
            while read < written {
                server.readable().await.unwrap();
                match server.try_read(&mut bytes) {
                    Ok(n) => {
                        check(1, read, &bytes[..n]);
                        read += n;
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
                }
            }
            client.writable().await.unwrap();
        }
        let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(client.try_write_vectored(&parts).unwrap(), 6);
        drop(client);
        let mut got = Vec::new();
        loop {
            server.readable().await.unwrap();
            match server.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => got.extend_from_slice(&bytes[..n]),
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        assert_eq!(got, b"onetwo");
    }

    // tcp_stream: a write waits for room, and goes on when the peer reads
    async fn a_write_waits_for_the_peer(on) {
        let (mut client, mut server) = on.streams().await;
        let len = 16 << 20;
        let write = async {
            client.write_all(&pattern(5, 0, len)).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let read = async {
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all.len(), len);
            check(5, 0, &all);
        };
        join!(write, read);
    }

    // tcp_stream: vectored writes
    async fn slices_are_written_in_order(on) {
        let (mut client, mut server) = on.streams().await;
        assert!(client.is_write_vectored());
        let (head, body) = (pattern(6, 0, 700), pattern(6, 700, 300_000));
        let write = async {
            let mut slices = [IoSlice::new(&head), IoSlice::new(&body)];
            let mut left = &mut slices[..];
            while !left.is_empty() {
                let n = client.write_vectored(left).await.unwrap();
                assert!(n > 0);
                IoSlice::advance_slices(&mut left, n);
            }
            client.flush().await.unwrap();
        };
        let mut all = vec![0; 300_700];
        join!(write, async { server.read_exact(&mut all).await.unwrap() });
        check(6, 0, &all);
    }

    // tcp_stream: empty reads and writes do nothing
    async fn nothing_is_read_and_written_at_once(on) {
        let (mut client, mut server) = on.streams().await;
        assert_eq!(server.read(&mut []).await.unwrap(), 0);
        assert_eq!(client.write(&[]).await.unwrap(), 0);
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    }

    // A task that writes little and never flushes.
    async fn small_writes_leave_at_the_end_of_the_turn(on) {
        let (mut client, mut server) = on.streams().await;
        let writer = tokio::spawn(async move {
            for i in 0..1000_u32 {
                client.write_all(&i.to_be_bytes()).await.unwrap();
            }
            // Neither a flush nor a read: the stream lives on.
            std::future::pending::<()>().await;
            drop(client);
        });
        for i in 0..1000 {
            assert_eq!(server.read_u32().await.unwrap(), i);
        }
        writer.abort();
    }

    // A reset, in each direction.
    async fn a_reset_is_an_error_once_and_for_all(on) {
        let (mut client, server) = on.streams().await;
        server.get_ref().abort();
        let e = client.read(&mut [0; 4]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionReset);
        let failed = async {
            while client.write(&[0; 1000]).await.is_ok() {}
        };
        failed.await;
        assert!(client.read(&mut [0; 4]).await.is_err());
    }

    // io_copy_bidirectional
    async fn a_proxy_copies_both_directions(on) {
        let (mut client, mut front) = on.streams().await;
        let (mut back, mut server) = on.streams().await;
        let proxy = tokio::spawn(async move {
            copy_bidirectional(&mut front, &mut back).await.unwrap()
        });
        let server = tokio::spawn(async move {
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            server.write_all(&all[..1000]).await.unwrap();
            server.shutdown().await.unwrap();
            all.len()
        });
        client.write_all(&pattern(7, 0, 3_000_000)).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, pattern(7, 0, 1000));
        assert_eq!(server.await.unwrap(), 3_000_000);
        assert_eq!(proxy.await.unwrap(), (3_000_000, 1000));
    }

    // A read that is dropped loses nothing, as tokio promises for `read`.
    async fn a_dropped_read_loses_nothing(on) {
        let (mut client, mut server) = on.streams().await;
        let len = 200_000;
        let writer = tokio::spawn(async move {
            let mut rng = Rng::new(9);
            let mut at = 0;
            while at < len {
                let n = rng.between(1, 3000).min(len - at);
                client.write_all(&pattern(8, at, n)).await.unwrap();
                at += n;
                tokio::task::yield_now().await;
            }
            client
        });
        let (mut at, mut bytes) = (0, [0; 1000]);
        while at < len {
            tokio::select! {
                biased;
                () = tokio::task::yield_now() => {}
                n = server.read(&mut bytes) => {
                    let n = n.unwrap();
                    check(8, at, &bytes[..n]);
                    at += n;
                }
            }
        }
        drop(writer.await.unwrap());
    }

    // Bytes written before the stream is dropped arrive.
    async fn a_dropped_stream_delivers_what_was_written(on) {
        for len in [1, 5000, 60_000, 400_000] {
            let (mut client, mut server) = on.streams().await;
            let read = async {
                let mut all = Vec::new();
                server.read_to_end(&mut all).await.unwrap();
                assert_eq!(all.len(), len);
                check(10, 0, &all);
            };
            let write = async move {
                client.write_all(&pattern(10, 0, len)).await.unwrap();
            };
            join!(write, read);
        }
    }

    // futures' traits, by tokio-util
    async fn the_traits_of_futures_work_by_compat(on) {
        use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
        use tokio_util::compat::TokioAsyncReadCompatExt;
        let (client, server) = on.streams().await;
        let (mut client, mut server) = (client.compat(), server.compat());
        client.write_all(b"hello").await.unwrap();
        client.close().await.unwrap();
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }

    // A task that only reads does not keep others from running, nor does one that only writes.
    async fn busy_streams_leave_time_for_other_tasks(on) {
        let (mut client, mut server) = on.streams().await;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let flood = tokio::spawn(async move {
            let bytes = vec![0; 1000];
            while client.write_all(&bytes).await.is_ok() {}
        });
        let drain = tokio::spawn(async move {
            let mut bytes = [0; 100];
            let mut read = 0_u64;
            let mut stopped = std::pin::pin!(stopped);
            loop {
                tokio::select! {
                    biased;
                    _ = stopped.as_mut() => return read,
                    n = server.read(&mut bytes) => read += n.unwrap() as u64,
                }
            }
        });
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        stop.send(()).unwrap();
        drain.await.unwrap();
        flood.await.unwrap();
    }

    // tcp_split_poll: the poll methods
    async fn poll_methods_note_the_task(on) {
        let (mut client, mut server) = on.streams().await;
        let mut bytes = [0; 4];
        poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut bytes);
            assert!(Pin::new(&mut server).poll_read(cx, &mut buf).is_pending());
            assert!(Pin::new(&mut client).poll_write(cx, b"ping").is_ready());
            assert!(Pin::new(&mut client).poll_flush(cx).is_ready());
            Poll::Ready(())
        })
        .await;
        server.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
    }
}

/// A limit on the time of a read works as with any future.
#[test]
fn a_read_can_be_given_up_after_a_time() {
    run(On::Shm, 1, |on| async move {
        let (mut client, mut server) = on.streams().await;
        let limit = Duration::from_millis(20);
        assert!(tokio::time::timeout(limit, server.read_u8()).await.is_err());
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
    });
}

/// A pair of streams of different handles compare their addresses.
#[test]
fn addresses_are_those_of_the_sockets() {
    run(On::Soft, 1, |on: On| async move {
        let (client, server) = on.streams().await;
        assert_eq!(client.local_addr().unwrap(), server.peer_addr().unwrap());
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        assert!(format!("{client:?}").starts_with("AsyncStream("));
    });
}
