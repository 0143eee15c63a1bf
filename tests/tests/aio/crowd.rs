//! Many connections that are open at once, with an echo on each: 10,000 in `make nightly`, and fewer
//! in `make test`. The two ends are two processes, each with a limit of descriptors of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use exs::aio::AsyncStream;
use exs_tests::harness::{Watchdog, check, many_files, pattern, peer};
use exs_tests::skip;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::sync::Semaphore;

use super::{On, runtime};

/// The bytes of an echo.
const LEN: usize = 64;

/// Connects that are under way at a time.
const AT_ONCE: usize = 64;

/// Descriptors that a process needs for other things.
const OTHERS: u64 = 200;

/// A time that ends a hang, and nothing else: a busy host needs minutes for the full figure.
const LIMIT: Duration = Duration::from_secs(600);

/// Not a test in the parent: the server of the other process.
#[test]
fn server() {
    let Some(words) = peer::part() else { return };
    let _dog = Watchdog::with_limit("the server of many connections", LIMIT);
    many_files();
    let on = On::named(&words[0]);
    let connections: usize = words[1].parse().unwrap();
    runtime(1).block_on(async {
        let listener = on.listener();
        peer::say(&format!("at {}", listener.local_addr().unwrap()));
        let mut echoes = Vec::new();
        for _ in 0..connections {
            let (stream, _) = listener.accept().await.unwrap();
            echoes.push(tokio::spawn(async move {
                let (mut rd, mut wr) = stream.into_split();
                copy(&mut rd, &mut wr).await.unwrap()
            }));
        }
        let mut bytes = 0;
        for echo in echoes {
            bytes += echo.await.unwrap();
        }
        peer::say(&format!("echoed {bytes}"));
    });
}

/// One echo, of the bytes of this connection.
async fn echo(stream: &mut AsyncStream, i: usize) {
    stream.write_all(&pattern(i as u64, 0, LEN)).await.unwrap();
    let mut bytes = [0; LEN];
    stream.read_exact(&mut bytes).await.unwrap();
    check(i as u64, 0, &bytes);
}

fn crowd(on: On) {
    let _dog = Watchdog::with_limit("many connections", LIMIT);
    let mut connections = if skip::is_full() { 10_000 } else { 500 };
    // One descriptor is a connection's own. Over shared memory, start-ups and ends that come together
    // keep the memory of some connections open for a moment.
    let files = many_files();
    let room = files.saturating_sub(OTHERS) / 4 * 3;
    if room < connections {
        skip::part(&format!(
            "{files} open files are too few for {connections} connections: {room}"
        ));
        connections = room;
    }
    let args = [connections.to_string()];
    let server = peer::Peer::start("crowd::server", on.name(), &[&args[0]]);
    let addr: SocketAddr = server.expect("at").parse().unwrap();
    runtime(1).block_on(async {
        let connecting = Arc::new(Semaphore::new(AT_ONCE));
        let tasks: Vec<_> = (0..usize::try_from(connections).unwrap())
            .map(|i| {
                let connecting = Arc::clone(&connecting);
                tokio::spawn(async move {
                    let _turn = connecting.acquire().await.unwrap();
                    let mut stream = on.connect(addr).await;
                    echo(&mut stream, i).await;
                    stream
                })
            })
            .collect();
        let mut open = Vec::new();
        for task in tasks {
            open.push(task.await.unwrap());
        }
        // All are open now, and all are asked before any is heard.
        let asked: Vec<_> = (0..)
            .zip(open)
            .map(|(i, mut stream)| {
                tokio::spawn(async move {
                    echo(&mut stream, i).await;
                    stream.shutdown().await.unwrap();
                    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
                })
            })
            .collect();
        for task in asked {
            task.await.unwrap();
        }
    });
    let bytes: u64 = server.expect("echoed").parse().unwrap();
    assert_eq!(bytes, 2 * connections * LEN as u64);
    server.finish();
}

/// One after the other: a process has not enough descriptors for all at once.
#[test]
fn each_of_many_connections_has_its_echo() {
    crowd(On::Soft);
    crowd(On::Grouped);
    crowd(On::Shm);
}
