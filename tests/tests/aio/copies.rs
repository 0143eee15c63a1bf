//! `tokio::io::copy` of much data: 10 GiB in `make nightly`, and less in `make test`. The source makes
//! its bytes, and both ends keep a sum.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use exs_tests::harness::{Rng, Watchdog};
use exs_tests::skip;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy, copy_bidirectional};

use super::{On, runtime};

/// Bytes that differ from one to the next: the number of the block stands in each.
const BLOCK: usize = 64 << 10;

/// A time that ends a hang: 10 GiB take a minute on a busy host.
const LIMIT: Duration = Duration::from_secs(600);

fn amount() -> u64 {
    if skip::is_full() { 10 << 30 } else { 48 << 20 }
}

/// Makes bytes without an end but for a limit.
struct Source {
    block: Vec<u8>,
    number: u64,
    at: usize,
    left: u64,
    sum: u32,
}

impl Source {
    fn new(seed: u64, len: u64) -> Source {
        let mut rng = Rng::new(seed);
        let block = (0..BLOCK / 8).flat_map(|_| rng.word().to_le_bytes()).collect();
        let mut source = Source { block, number: 0, at: 0, left: len, sum: 0 };
        source.number_block();
        source
    }

    fn number_block(&mut self) {
        self.block[..8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        self.at = 0;
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.at == BLOCK {
            self.number_block();
        }
        let left = usize::try_from(self.left).unwrap();
        let n = buf.remaining().min(BLOCK - self.at).min(left);
        let bytes = &self.block[self.at..self.at + n];
        buf.put_slice(bytes);
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        (self.at, self.left) = (self.at + n, self.left - n as u64);
        Poll::Ready(Ok(()))
    }
}

/// Takes bytes and keeps their sum.
#[derive(Default)]
struct Drain {
    bytes: u64,
    sum: u32,
}

impl AsyncWrite for Drain {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sum = crc32c::crc32c_append(self.sum, bytes);
        self.bytes += bytes.len() as u64;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn one_way(on: On, threads: usize) {
    let _dog = Watchdog::with_limit("a long copy", LIMIT);
    runtime(threads).block_on(async {
        let (mut client, mut server) = on.streams().await;
        let drained = tokio::spawn(async move {
            let mut drain = Drain::default();
            let copied = copy(&mut server, &mut drain).await.unwrap();
            (copied, drain)
        });
        let mut source = Source::new(1, amount());
        assert_eq!(copy(&mut source, &mut client).await.unwrap(), amount());
        client.shutdown().await.unwrap();
        let (copied, drain) = drained.await.unwrap();
        assert_eq!((copied, drain.bytes), (amount(), amount()));
        assert_eq!(drain.sum, source.sum);
    });
}

/// A quarter of it both ways at once, through a proxy.
fn both_ways(on: On, threads: usize) {
    let _dog = Watchdog::with_limit("a long copy in both directions", LIMIT);
    let len = amount() / 4;
    runtime(threads).block_on(async {
        let (client, mut front) = on.streams().await;
        let (mut back, server) = on.streams().await;
        let proxy = tokio::spawn(async move { copy_bidirectional(&mut front, &mut back).await });
        let mut ends = Vec::new();
        for (seed, end) in [(1, client), (2, server)] {
            let (mut rd, mut wr) = end.into_split();
            let sent = tokio::spawn(async move {
                let mut source = Source::new(seed, len);
                copy(&mut source, &mut wr).await.unwrap();
                wr.shutdown().await.unwrap();
                source.sum
            });
            let got = tokio::spawn(async move {
                let mut drain = Drain::default();
                copy(&mut rd, &mut drain).await.unwrap();
                (drain.bytes, drain.sum)
            });
            ends.push((sent, got));
        }
        let mut sums = Vec::new();
        for (sent, got) in ends {
            sums.push((sent.await.unwrap(), got.await.unwrap()));
        }
        assert_eq!(proxy.await.unwrap().unwrap(), (len, len));
        assert_eq!([sums[0].1, sums[1].1], [(len, sums[1].0), (len, sums[0].0)]);
        assert_ne!(sums[0].0, sums[1].0);
    });
}

#[test]
fn a_long_copy_is_whole_soft() {
    one_way(On::Soft, 1);
}

#[test]
fn a_long_copy_is_whole_soft_threads() {
    one_way(On::Soft, 2);
}

#[test]
fn a_long_copy_is_whole_shm() {
    one_way(On::Shm, 1);
}

#[test]
fn a_long_copy_is_whole_shm_threads() {
    one_way(On::Shm, 2);
}

#[test]
fn a_proxy_copies_much_both_ways_soft() {
    both_ways(On::Soft, 2);
}

#[test]
fn a_proxy_copies_much_both_ways_shm() {
    both_ways(On::Shm, 1);
}
