//! The server of a shape whose two ends are processes: it sends each message back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use exs_tools::fail::{During, Failure};
use exs_tools::out;
use exs_tools::peer::{LISTENING, Server};
use serde::{Deserialize, Serialize};

use super::carrier::Carrier;
use super::handed;
use super::loops::{Door, News, Plan, Way};
use super::placement::{Placement, Side};
use crate::usage::allow_connections;

/// The command of exs-perf that runs a service. Users do not see it.
const COMMAND: &str = "cores-serve";

/// The threads of a service that accept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Accepting {
    /// All that serve connections.
    All,
    /// One more, which hands each connection to the next of the others (`handed`).
    One,
    /// The same, and it answers the first question of each before.
    OneThatAnswers,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Service {
    pub(super) carrier: Carrier,
    pub(super) way: Way,
    /// Threads, each of which waits for connections of its own.
    pub(super) threads: usize,
    pub(super) accepting: Accepting,
    /// Bytes of a message.
    pub(super) size: usize,
    /// Connections at the same time, at most.
    pub(super) connections: u32,
    /// Accepts that each thread posts.
    pub(super) accepts: usize,
    pub(super) placement: Placement,
}

impl Service {
    /// One thread with one connection, which carries messages of `size` bytes.
    pub(super) fn new(carrier: Carrier, way: Way, size: usize) -> Service {
        let (accepting, placement) = (Accepting::All, Placement::Free);
        Service { carrier, way, threads: 1, accepting, size, connections: 1, accepts: 1, placement }
    }

    /// Starts it in a process of its own, which ends when the returned value is dropped.
    pub(super) fn start(&self) -> Result<Server, Failure> {
        let text = serde_json::to_string(self).during("JSON")?;
        Server::start(&[COMMAND, &text], |_| {}).during("cannot start the server")
    }
}

/// Runs a service, as [`Service::start`] has written it, until this process is ended.
pub(crate) fn run(text: &str) -> Result<(), Failure> {
    super::sample::end_with_parent()?;
    let service: Service = serde_json::from_str(text).during("the service")?;
    service.placement.take(Side::Server)?;
    allow_connections(service.connections)?;
    let door = Arc::new(Door::open(service.carrier, service.way, service.connections.max(64))?);
    out!("{LISTENING}{}", door.addr()?)?;
    let (failed, failures) = channel();
    if service.accepting != Accepting::All {
        // The other end is gone if the process is ending already.
        handed::serve(&door, &service, move |e| drop(failed.send(e)))?;
        return first_of(&failures);
    }
    for _ in 0..service.threads {
        let (door, failed) = (Arc::clone(&door), failed.clone());
        thread::spawn(move || {
            let Err(e) = answer(&door, &service);
            // The other end is gone if the process is ending already.
            let _ = failed.send(e);
        });
    }
    drop(failed);
    first_of(&failures)
}

/// Waits for the first failure of a thread.
fn first_of(failures: &Receiver<Failure>) -> Result<(), Failure> {
    match failures.recv() {
        Ok(e) => Err(e),
        Err(_) => Err(Failure("a thread panicked".to_owned())),
    }
}

/// Sends back each message, and closes each connection that the peer has ended.
fn answer(door: &Door, service: &Service) -> Result<std::convert::Infallible, Failure> {
    let plan = Plan {
        size: service.size,
        connections: service.connections as usize,
        accepts: service.accepts,
        patience: None,
    };
    let mut connections = door.enter(service.way, plan)?;
    let mut news = Vec::new();
    loop {
        connections.wait(&mut news)?;
        for news in news.drain(..) {
            match news {
                News::Message(id) => connections.send(id)?,
                News::Ended(id) => connections.close(id)?,
                News::Opened(_) | News::Closed(_) => {}
            }
        }
    }
}
