//! Asynchronous Rust: `exs::aio` under tokio and other executors.
//!
//! Each case runs over the software RNIC, there also in link groups, and over shared memory, in a runtime of one thread, in one of
//! several, and in one that has several reactors.
//!
//! - `operations`: sockets whose calls are futures, with memory that comes back.
//! - `atomics`: atomic operations as futures.
//! - `attendance`: tasks that attend the connections of their streams.
//! - `streams`, `listeners`: the behaviours of tokio's `TcpStream` and `TcpListener`.
//! - `runtimes`: several runtimes, one that ends, `LocalSet`, and none.
//! - `behaviours`: what else tokio's tests expect of them.
//! - `chaos`: futures that are dropped at random moments, by seed.
//! - `grouped`: streams in a link group.
//! - `load`, `crowd`: many connections at once.
//! - `copies`: much data.

mod atomics;
mod attendance;
mod behaviours;
mod chaos;
mod copies;
mod crowd;
mod grouped;
mod listeners;
mod load;
mod operations;
mod runtimes;
mod streams;

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;

use exs::aio::{AsyncListener, AsyncSocket, AsyncStream};
use exs::{Grouping, Options, SocketType, Transport};
use exs_tests::harness::{Watchdog, pattern};
use tokio::runtime::{Builder, Runtime};

/// Writes without waiting until there is no room. Returns the number of bytes.
fn fill(stream: &AsyncStream) -> usize {
    let mut written = 0;
    loop {
        match stream.try_write(&pattern(1, written, 100_000)) {
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return written,
            Err(e) => panic!("{e}"),
        }
    }
}

/// The workers of a runtime that has three reactors.
const SEVERAL_REACTORS: usize = 12;

/// Runs each case over each transport and in each kind of runtime.
macro_rules! on_each {
    ($(async fn $name:ident($on:ident) $body:block)+) => {$(
        mod $name {
            use super::*;

            async fn case($on: On) $body

            #[test]
            fn soft() {
                crate::run(crate::On::Soft, 1, case);
            }

            #[test]
            fn soft_threads() {
                crate::run(crate::On::Soft, 3, case);
            }

            #[test]
            fn soft_reactors() {
                crate::run(crate::On::Soft, crate::SEVERAL_REACTORS, case);
            }

            #[test]
            fn grouped() {
                crate::run(crate::On::Grouped, 1, case);
            }

            #[test]
            fn grouped_threads() {
                crate::run(crate::On::Grouped, 3, case);
            }

            #[test]
            fn grouped_reactors() {
                crate::run(crate::On::Grouped, crate::SEVERAL_REACTORS, case);
            }

            #[test]
            fn shm() {
                crate::run(crate::On::Shm, 1, case);
            }

            #[test]
            fn shm_threads() {
                crate::run(crate::On::Shm, 3, case);
            }

            #[test]
            fn shm_reactors() {
                crate::run(crate::On::Shm, crate::SEVERAL_REACTORS, case);
            }
        }
    )+};
}
pub(crate) use on_each;

/// What carries the connections of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Soft,
    /// The software RNIC, with all connections in link groups that can be there.
    Grouped,
    Shm,
}

impl On {
    pub(crate) fn options(self) -> Options {
        match self {
            On::Soft => Options::default().with_transport(Transport::Soft),
            On::Grouped => On::Soft.options().with_link_group(Grouping::Beyond(0)),
            On::Shm => Options::default().with_transport(Transport::Shm),
        }
    }

    /// The word by which another process knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            On::Soft => "soft",
            On::Grouped => "grouped",
            On::Shm => "shm",
        }
    }

    pub(crate) fn named(name: &str) -> On {
        let all = [On::Soft, On::Grouped, On::Shm];
        all.into_iter().find(|on| on.name() == name).expect("the name of a transport")
    }

    pub(crate) fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    pub(crate) fn socket(self, ty: SocketType) -> AsyncSocket {
        AsyncSocket::with_options(ty, self.options()).unwrap()
    }

    /// Two connected sockets: the client's and the server's.
    pub(crate) async fn sockets(self, ty: SocketType) -> (AsyncSocket, AsyncSocket) {
        let listener = self.socket(ty);
        listener.bind(On::any()).unwrap();
        listener.listen(4).unwrap();
        let client = self.socket(ty);
        let accepted = listener.accept();
        client.connect(listener.local_addr().unwrap()).await.unwrap();
        (client, accepted.await.unwrap().0)
    }

    pub(crate) fn listener(self) -> AsyncListener {
        AsyncListener::bind_with(On::any(), self.options()).unwrap()
    }

    pub(crate) async fn connect(self, addr: SocketAddr) -> AsyncStream {
        AsyncStream::connect_with(addr, self.options()).await.unwrap()
    }

    /// Two connected streams: the client's and the server's.
    pub(crate) async fn streams(self) -> (AsyncStream, AsyncStream) {
        let listener = self.listener();
        let client = self.connect(listener.local_addr().unwrap()).await;
        (client, listener.accept().await.unwrap().0)
    }
}

/// A runtime of one thread, or with this many workers.
pub(crate) fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().unwrap()
}

pub(crate) fn run<F: Future<Output = ()>>(on: On, threads: usize, case: impl FnOnce(On) -> F) {
    let _dog = Watchdog::new("an asynchronous case");
    runtime(threads).block_on(case(on));
}
