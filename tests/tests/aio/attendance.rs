//! Tasks that attend the connections of their streams: what else can happen there meanwhile.
//!
//! Over shared memory, and in a link group, no task attends, and the cases must hold all the same.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use exs::__ffi::is_attended;
use exs::aio::AsyncStream;
use exs_tests::harness::{check, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::{join, spawn};

use super::{On, on_each, runtime};

/// Sends bytes each way until tasks attend both ends.
async fn talk_until_attended(on: On, client: &mut AsyncStream, server: &mut AsyncStream) {
    let attended = |stream: &AsyncStream| is_attended(stream.get_ref());
    for n in 0..=u8::MAX {
        client.write_all(&[n]).await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), n);
        server.write_all(&[n]).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), n);
        if attended(client) && attended(server) {
            return;
        }
    }
    assert_ne!(on, On::Soft, "no task attends");
}

async fn attended_streams(on: On) -> (AsyncStream, AsyncStream) {
    let (mut client, mut server) = on.streams().await;
    client.attend_always();
    server.attend_always();
    talk_until_attended(on, &mut client, &mut server).await;
    (client, server)
}

/// Polls a read once, and drops it.
async fn begin_read(stream: &mut AsyncStream) {
    let mut byte = [0];
    let mut read = Box::pin(stream.read(&mut byte));
    poll_fn(|cx| {
        assert!(read.as_mut().poll(cx).is_pending(), "nothing was sent");
        Poll::Ready(())
    })
    .await;
}

on_each! {
    async fn both_directions_end(on) {
        let (mut client, mut server) = attended_streams(on).await;
        let waits = spawn(async move {
            let mut text = String::new();
            server.read_to_string(&mut text).await.unwrap();
            server.write_all(b"world").await.unwrap();
            text
        });
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert_eq!((waits.await.unwrap().as_str(), text.as_str()), ("hello", "world"));
    }

    async fn small_messages_keep_their_order(on) {
        let (mut client, mut server) = attended_streams(on).await;
        // Some of these reads take less than a message, and some messages fill a receive.
        const LEN: usize = 400_000;
        let sender = spawn(async move {
            let (bytes, mut at) = (pattern(1, 0, LEN), 0);
            for n in [1, 700, 3, 4095, 64, 4096, 200].into_iter().cycle() {
                let end = LEN.min(at + n);
                server.write_all(&bytes[at..end]).await.unwrap();
                server.flush().await.unwrap();
                at = end;
                if at == LEN {
                    return server;
                }
                yield_now().await;
            }
            unreachable!("the lengths begin again");
        });
        let (mut got, mut room) = (Vec::new(), [0; 8000]);
        for most in [8000, 2, 500, 4095, 1, 3000].into_iter().cycle() {
            let n = client.read(&mut room[..most]).await.unwrap();
            got.extend_from_slice(&room[..n]);
            if got.len() == LEN {
                break;
            }
        }
        check(1, 0, &got);
        let mut server = sender.await.unwrap();
        talk_until_attended(on, &mut client, &mut server).await;
    }

    async fn large_data_arrive(on) {
        let (mut client, mut server) = attended_streams(on).await;
        for seed in 1..4 {
            let bytes = pattern(seed, 0, 2 << 20);
            let mut got = vec![0; 2 << 20];
            let (sent, received) = join!(server.write_all(&bytes), client.read_exact(&mut got));
            sent.unwrap();
            received.unwrap();
            check(seed, 0, &got);
            // What the task has not read when its attendance begins is not lost.
            talk_until_attended(on, &mut client, &mut server).await;
        }
    }

    async fn a_write_ends_while_no_task_reads(on) {
        let (mut client, mut server) = attended_streams(on).await;
        begin_read(&mut client).await;
        let bytes = pattern(1, 0, 1 << 20);
        let mut got = vec![0; 1 << 20];
        let (sent, received) = join!(client.write_all(&bytes), server.read_exact(&mut got));
        sent.unwrap();
        received.unwrap();
        check(1, 0, &got);
    }

    async fn a_read_that_is_dropped_loses_nothing(on) {
        let (mut client, mut server) = attended_streams(on).await;
        begin_read(&mut client).await;
        server.write_all(&pattern(1, 0, 100_000)).await.unwrap();
        // The leader takes the connection back, and the bytes wait in the stream's receives.
        while is_attended(client.get_ref()) {
            yield_now().await;
        }
        let mut got = vec![0; 100_000];
        client.read_exact(&mut got).await.unwrap();
        check(1, 0, &got);
    }

    async fn bytes_come_after_a_pause(on) {
        let (mut client, mut server) = attended_streams(on).await;
        let reader = spawn(async move { (client.read_u8().await.unwrap(), client) });
        while is_attended(server.get_ref()) {
            yield_now().await;
        }
        server.write_all(b"!").await.unwrap();
        let (byte, mut client) = reader.await.unwrap();
        assert_eq!(byte, b'!');
        talk_until_attended(on, &mut client, &mut server).await;
    }

    async fn a_dropped_stream_closes(on) {
        let (client, mut server) = attended_streams(on).await;
        drop(client);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }

    async fn a_reset_is_seen(on) {
        let (mut client, server) = attended_streams(on).await;
        begin_read(&mut client).await;
        let options = server.get_ref().options().with_linger(Duration::ZERO);
        server.get_ref().set_options(&options).unwrap();
        // What the peer has not received makes the close of a connection without linger a reset.
        while server.try_write(&[0; 4096]).is_ok() {}
        drop(server);
        let mut bytes = [0; 4096];
        let error = loop {
            match client.read(&mut bytes).await {
                Ok(0) => panic!("an orderly end"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    async fn two_tasks_wait_for_one_stream(on) {
        let (client, mut server) = attended_streams(on).await;
        let client = Arc::new(client);
        let waits = |client: Arc<AsyncStream>| spawn(async move { client.readable().await.unwrap() });
        let (one, two) = (waits(client.clone()), waits(client.clone()));
        yield_now().await;
        server.write_all(b"!").await.unwrap();
        one.await.unwrap();
        two.await.unwrap();
        assert_eq!(client.try_read(&mut [0; 2]).unwrap(), 1);
    }

    async fn a_task_waits_in_several_places(on) {
        let (client, mut server) = attended_streams(on).await;
        let write = async { server.write_all(b"!").await.unwrap() };
        let waits = join!(client.readable(), client.readable(), write);
        assert!(waits.0.is_ok() && waits.1.is_ok());
        assert_eq!(client.try_read(&mut [0; 2]).unwrap(), 1);
    }

    async fn another_runtime_reads(on) {
        let (mut client, mut server) = attended_streams(on).await;
        let there = std::thread::spawn(move || {
            runtime(1).block_on(async move { (client.read_u8().await.unwrap(), client) })
        });
        server.write_all(b"!").await.unwrap();
        while !there.is_finished() {
            yield_now().await;
        }
        let (byte, mut client) = there.join().unwrap();
        assert_eq!(byte, b'!');
        talk_until_attended(on, &mut client, &mut server).await;
    }
}

#[test]
fn the_runtime_ends() {
    let _dog = exs_tests::harness::Watchdog::new("a runtime with attended streams ends");
    for on in [On::Soft, On::Grouped, On::Shm] {
        let first = runtime(2);
        let (mut client, mut server) = first.block_on(attended_streams(on));
        first.block_on(begin_read(&mut client));
        drop(first);
        runtime(1).block_on(async {
            server.write_all(b"!").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'!');
            drop(client);
            assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        });
    }
}
