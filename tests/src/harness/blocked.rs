//! Threads that block beside those of a case, in one shard: so all that block attend their
//! connections.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use exs::progress::{attending_threads, leading_threads, limit_shards};
use exs::{Options, Socket, Transport};

use super::{Watchdog, stream_pair};

/// Threads that block beside those of a case.
pub const IDLERS: usize = 3;

/// One case at a time, as each counts the attending threads of the process.
pub fn alone(what: &'static str) -> (Watchdog, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    limit_shards(1).unwrap();
    (Watchdog::new(what), one)
}

/// Connections without a keep-alive, whose probes would make good a wake-up that was lost.
pub fn pair(transport: Transport) -> (Socket, Socket) {
    let options = Options::default().with_transport(transport);
    stream_pair(&options.with_keep_alive(None).with_dead_after(None))
}

/// Waits until that many threads attend connections.
pub fn until_threads_attend(threads: usize) {
    while attending_threads() < threads {
        thread::yield_now();
    }
}

/// Ends the waits of the threads that block, also when a case has failed: its scope waits for them.
struct Idlers<'a>(&'a [(Socket, Socket)]);

impl Drop for Idlers<'_> {
    fn drop(&mut self) {
        for (client, _) in self.0 {
            let sent = client.blocking().send_all(b"over");
            assert!(sent.is_ok() || thread::panicking(), "{sent:?}");
        }
    }
}

/// Runs a case beside threads that block. The first to block leads, so all further ones attend.
pub fn beside_blocked_threads(transport: Transport, case: impl FnOnce()) {
    let idle: Vec<(Socket, Socket)> = (0..IDLERS).map(|_| pair(transport)).collect();
    thread::scope(|scope| {
        let idlers = Idlers(&idle);
        let mut threads: Vec<ScopedJoinHandle<'_, usize>> = Vec::new();
        for (_, server) in &idle {
            threads.push(scope.spawn(|| server.blocking().recv(&mut [0; 8]).unwrap()));
            while leading_threads() + attending_threads() < threads.len() {
                thread::yield_now();
            }
        }
        until_threads_attend(IDLERS - 1);
        case();
        drop(idlers);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 4);
        }
    });
}
