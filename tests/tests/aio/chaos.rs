//! Futures that are dropped and cancelled at random moments. `EXS_SEED=n` replays one seed.
//!
//! The invariants: bytes arrive in order and once each, unless a dropped receive had them; a message
//! arrives whole or not at all; and all operations end.

use std::future::poll_fn;
use std::task::Poll;

use exs::aio::{AsyncSocket, AsyncStream};
use exs::{MemoryRegion, SocketType};
use exs_tests::harness::{Rng, check, pattern};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{On, run};

fn seeds() -> std::ops::Range<u64> {
    if let Ok(seed) = std::env::var("EXS_SEED") {
        let seed: u64 = seed.parse().expect("EXS_SEED is a number");
        return seed..seed + 1;
    }
    0..if std::env::var_os("EXS_TEST_FULL").is_some() { 200 } else { 12 }
}

fn each_seed<F: Future<Output = ()>>(case: impl Fn(On, Rng) -> F) {
    for seed in seeds() {
        let on = match seed % 3 {
            0 => On::Soft,
            1 => On::Shm,
            _ => On::Grouped,
        };
        let threads = if seed % 4 < 2 { 1 } else { 3 };
        eprintln!("seed {seed}");
        run(on, threads, |on| case(on, Rng::new(seed)));
    }
}

/// Gives other tasks a few turns.
async fn pause(rng: &mut Rng) {
    for _ in 0..rng.between(0, 3) {
        tokio::task::yield_now().await;
    }
}

/// Polls a future a few times, with turns of other tasks between. None: it is dropped before its end.
async fn poll_a_little<F: Future + Unpin>(mut future: F, rng: &mut Rng) -> Option<F::Output> {
    let mut left = rng.between(0, 3);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match std::pin::Pin::new(&mut future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Sends messages that say their number and their length.
async fn send_messages(client: AsyncSocket, mut rng: Rng, messages: u32) {
    let region = MemoryRegion::new(1 << 18).unwrap();
    let mut number = 0;
    while number < messages {
        let len = rng.size(100_000).max(8);
        let mut buffer = region.buffer(..len).unwrap_or_else(|_| vec![0; len].into());
        buffer[..4].copy_from_slice(&number.to_be_bytes());
        let body = pattern(u64::from(number), 0, len - 4);
        buffer[4..].copy_from_slice(&body);
        let send = client.send(buffer);
        if rng.one_in(3) {
            // It may have left, or not.
            drop(poll_a_little(send, &mut rng).await);
        } else if rng.one_in(4) {
            send.cancel();
            let (result, buffer) = send.await;
            assert!(result.is_ok() || result.unwrap_err().is_cancelled());
            assert_eq!(buffer.len(), len);
        } else {
            assert_eq!(send.await.0.unwrap(), len);
        }
        number += 1;
        pause(&mut rng).await;
    }
    client.close().await.unwrap();
}

#[test]
fn messages_arrive_whole_or_not_at_all() {
    each_seed(|on, mut rng| async move {
        let (client, server) = on.sockets(SocketType::SeqPacket).await;
        let sender = tokio::spawn(send_messages(client, Rng::new(rng.word()), 150));
        let mut next = 0;
        loop {
            let receive = server.recv_packet(vec![0; 100_000]);
            if rng.one_in(4) {
                // A message that it had is lost, as documented.
                drop(poll_a_little(receive, &mut rng).await);
                continue;
            }
            if rng.one_in(4) {
                receive.cancel();
            }
            let (packet, bytes) = receive.await;
            assert_eq!(bytes.len(), 100_000);
            let packet = match packet {
                Ok(packet) => packet,
                Err(e) if e.is_cancelled() => continue,
                Err(e) => panic!("{e}"),
            };
            if packet.eof {
                break;
            }
            let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            assert!(number >= next && packet.bytes >= 8, "{number} {next}");
            check(u64::from(number), 0, &bytes[4..packet.bytes]);
            next = number + 1;
        }
        sender.await.unwrap();
    });
}

/// Cancelled receives lose nothing, and sends that were cancelled say what they have sent.
#[test]
fn cancelled_operations_lose_no_byte() {
    each_seed(|on, mut rng| async move {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let len = 2_000_000;
        let mut own = Rng::new(rng.word());
        let sender = tokio::spawn(async move {
            let mut at = 0;
            while at < len {
                let n = own.size(200_000).clamp(1, len - at);
                let send = client.send(pattern(4, at, n));
                if own.one_in(3) {
                    pause(&mut own).await;
                    send.cancel();
                }
                match send.await.0 {
                    Ok(n) => at += n,
                    Err(e) => assert!(e.is_cancelled(), "{e}"),
                }
            }
            client.close().await.unwrap();
        });
        let mut at = 0;
        while at < len {
            let size = rng.size(150_000).max(1);
            let receive = match rng.one_in(2) {
                true => server.recv(vec![0; size]),
                false => server.recv_exact(vec![0; size]),
            };
            if rng.one_in(3) {
                pause(&mut rng).await;
                receive.cancel();
            }
            let (result, bytes) = receive.await;
            match result {
                Ok(0) => panic!("the end after {at} of {len} bytes"),
                Ok(n) => {
                    check(4, at, &bytes[..n]);
                    at += n;
                }
                Err(e) => assert!(e.is_cancelled(), "{e}"),
            }
        }
        sender.await.unwrap();
    });
}

/// Reads of a stream that are dropped lose nothing, whatever the writer does.
#[test]
fn dropped_reads_of_streams_lose_no_byte() {
    each_seed(|on, mut rng| async move {
        let (client, mut server) = on.streams().await;
        let len = 1_500_000;
        let mut own = Rng::new(rng.word());
        let writer = tokio::spawn(async move {
            let mut client: AsyncStream = client;
            let mut at = 0;
            while at < len {
                let n = own.size(200_000).clamp(1, len - at);
                let bytes = pattern(5, at, n);
                let write = std::pin::pin!(client.write(&bytes));
                // A write that is dropped before its end has written nothing.
                at += poll_a_little(write, &mut own).await.map_or(0, |n| n.unwrap());
                if own.one_in(5) {
                    client.flush().await.unwrap();
                }
                pause(&mut own).await;
            }
        });
        let (mut at, mut bytes) = (0, vec![0; 200_000]);
        while at < len {
            let size = rng.size(200_000).max(1);
            let read = std::pin::pin!(server.read(&mut bytes[..size]));
            if let Some(n) = poll_a_little(read, &mut rng).await {
                let n = n.unwrap();
                assert!(n > 0, "the end after {at} of {len} bytes");
                check(5, at, &bytes[..n]);
                at += n;
            }
            pause(&mut rng).await;
        }
        writer.await.unwrap();
        assert_eq!(server.read(&mut bytes).await.unwrap(), 0);
    });
}

/// Sockets that are dropped with futures in flight, and futures that outlive their sockets.
#[test]
fn sockets_and_futures_are_dropped_in_any_order() {
    each_seed(|on, mut rng| async move {
        for _ in 0..20 {
            let (client, server) = on.sockets(SocketType::Stream).await;
            let mut receives: Vec<_> =
                (0..rng.between(1, 5)).map(|_| server.recv(vec![0; 70_000])).collect();
            let send = client.send(vec![1; rng.size(200_000).max(1)]);
            if rng.one_in(2) {
                drop(poll_a_little(send, &mut rng).await);
            } else {
                drop(client);
                drop(send);
            }
            if rng.one_in(2) {
                drop(server);
            }
            while !receives.is_empty() {
                let receive = receives.swap_remove(rng.between(0, receives.len() - 1));
                if rng.one_in(2) {
                    receive.cancel();
                    assert_eq!(receive.await.1.len(), 70_000);
                }
            }
        }
    });
}
