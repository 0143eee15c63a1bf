//! Connections made, used for a byte each way, and closed.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exs_tools::fail::Failure;
use serde::{Deserialize, Serialize};

use super::ask::{PATIENCE, unexpected};
use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::loops::{self, News, Plan, Way};
use super::serve::Service;
use super::sockets::{End, Listener, connect};
use crate::usage::allow_connections;

/// One after the other. Both ends are threads of this process, with calls that block.
pub(super) fn in_turn(carrier: Carrier, duration: Duration) -> Result<f64, Failure> {
    let listener = Listener::new(carrier)?;
    let to = listener.addr()?;
    rate(2, duration, |n, clock| {
        clock.ready();
        let mut byte = [1];
        let mut connections = 0;
        if n == 0 {
            while !clock.is_over() {
                let mut end = connect(carrier, to)?;
                end.send(&byte)?;
                end.recv(&mut byte)?;
                connections += clock.unit();
            }
            // A connection without a byte ends the thread that accepts.
            connect(carrier, to)?.shutdown()?;
            return Ok(connections);
        }
        loop {
            let mut end = listener.accept()?;
            if !end.recv(&mut byte)? {
                return Ok(0);
            }
            end.send(&byte)?;
        }
    })
}

/// How the threads of a server share its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Sharing {
    /// One thread accepts, and begins another one for each connection.
    ThreadEach,
    /// As many threads as clients accept, and serve what they have accepted.
    Pool,
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Sharing::ThreadEach => "a thread for each",
            Sharing::Pool => "a pool serves",
        })
    }
}

/// As many threads as `clients` connect, one connection after the other, with calls that block. The
/// server is threads of this process.
pub(super) fn served(
    carrier: Carrier,
    sharing: Sharing,
    clients: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    let listener = Listener::new(carrier)?;
    let to = listener.addr()?;
    let servers = if sharing == Sharing::Pool { clients } else { 1 };
    rate(clients + servers, duration, |n, clock| {
        clock.ready();
        if n < clients {
            let count = use_connections(clock, || connect(carrier, to))?;
            // A connection without a byte ends a thread of the pool, or is one of as many as end the
            // thread that accepts.
            connect(carrier, to)?.shutdown()?;
            return Ok(count);
        }
        match sharing {
            Sharing::Pool => while answer(listener.accept()?)? {},
            Sharing::ThreadEach => {
                accept_for_threads(&listener, clients, || connect(carrier, to))?;
            }
        }
        Ok(0)
    })
}

/// Connects, sends a byte, waits for one, and closes, until the time is over. Returns how often.
fn use_connections(
    clock: &Clock,
    connect: impl Fn() -> Result<End, Failure>,
) -> Result<u64, Failure> {
    let mut byte = [1];
    let mut connections = 0;
    while !clock.is_over() {
        let mut end = connect()?;
        end.send(&byte)?;
        if !end.recv(&mut byte)? {
            return Err(Failure("the server has ended a connection".to_owned()));
        }
        connections += clock.unit();
    }
    Ok(connections)
}

/// Answers a byte. False: none has come.
fn answer(mut end: End) -> Result<bool, Failure> {
    let mut byte = [0];
    let came = end.recv(&mut byte)?;
    if came {
        end.send(&byte)?;
        end.recv(&mut byte)?;
    }
    Ok(came)
}

/// Begins a thread for each connection, until as many connections as `ends` have brought no byte.
fn accept_for_threads(
    listener: &Listener,
    ends: usize,
    connect: impl Fn() -> Result<End, Failure> + Sync,
) -> Result<(), Failure> {
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        loop {
            let end = listener.accept()?;
            if ended.load(Ordering::SeqCst) == ends {
                return Ok(());
            }
            let (ended, connect) = (&ended, &connect);
            scope.spawn(move || -> Result<(), Failure> {
                if !answer(end)? && ended.fetch_add(1, Ordering::SeqCst) + 1 == ends {
                    // The thread that accepts sees it.
                    connect()?.shutdown()?;
                }
                Ok(())
            });
        }
    })
}

/// The server, in another process, has this many threads with queues of their own, which accept from
/// one listener. As many threads here connect, one connection after the other.
pub(super) fn accepted_by(
    carrier: Carrier,
    threads: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    // One accept for each thread, as accepts are served in the order in which they were posted.
    let service = Service {
        threads,
        connections: 1024,
        accepts: 1,
        ..Service::new(carrier, Way::Dequeue, 1)
    };
    let server = service.start()?;
    rate(threads, duration, |_, clock| {
        clock.ready();
        use_connections(clock, || connect(carrier, server.addr()))
    })
}

/// All of them begun before the first one is there; the time ends when the last one is closed. The
/// server is another process.
pub(super) fn at_once(carrier: Carrier, connects: u32) -> Result<f64, Failure> {
    let way = Way::Dequeue;
    let service = Service { connections: connects, accepts: 64, ..Service::new(carrier, way, 1) };
    let server = service.start()?;
    allow_connections(connects)?;
    let patience = Some(PATIENCE);
    let plan = Plan { size: 1, connections: connects as usize, accepts: 0, patience };
    let mut dials = loops::client(carrier, way, plan)?;
    let begun = Instant::now();
    for _ in 0..connects {
        dials.dial(server.addr())?;
    }
    let (mut closed, mut news) = (0, Vec::new());
    while closed < connects {
        dials.wait(&mut news)?;
        for news in news.drain(..) {
            match news {
                News::Opened(id) => dials.send(id)?,
                News::Message(id) => dials.close(id)?,
                News::Closed(_) => closed += 1,
                News::Ended(_) => return Err(unexpected(news)),
            }
        }
    }
    Ok(f64::from(connects) / begun.elapsed().as_secs_f64())
}
