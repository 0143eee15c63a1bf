//! One thread asks a server in another process on many connections: one question each at a time.

use std::net::SocketAddr;
use std::time::Duration;

use exs_tools::fail::Failure;

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::loops::{self, Id, Loop, News, Plan, Way};
use super::placement::{Placement, Side};
use super::serve::Service;
use crate::usage::allow_connections;

/// Bytes of a question and of an answer.
const SIZE: usize = 64;
/// Connections that are begun at the same time.
const BEGUN: u32 = 64;
/// A loop that sees nothing for that long has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Answers in a second. Both ends have a thread that waits in this way.
pub(super) fn measure(
    carrier: Carrier,
    way: Way,
    connections: u32,
    placement: Placement,
    duration: Duration,
) -> Result<f64, Failure> {
    let service =
        Service { connections, accepts: 16, placement, ..Service::new(carrier, way, SIZE) };
    let server = service.start()?;
    // Not before: the server would inherit it.
    placement.take(Side::Client)?;
    allow_connections(connections)?;
    rate(1, duration, |_, clock| {
        let made = dial_all(carrier, way, connections, server.addr());
        clock.ready();
        let (mut asks, ids) = made?;
        ask(&mut *asks, ids, clock)
    })
}

/// Makes this many connections, in a loop of this thread.
pub(super) fn dial_all(
    carrier: Carrier,
    way: Way,
    connections: u32,
    to: SocketAddr,
) -> Result<(Box<dyn Loop>, Vec<Id>), Failure> {
    let plan = Plan {
        size: SIZE,
        connections: connections as usize,
        accepts: 0,
        patience: Some(PATIENCE),
    };
    let mut asks = loops::client(carrier, way, plan)?;
    let (mut ids, mut news) = (Vec::new(), Vec::new());
    let mut left = connections;
    for _ in 0..left.min(BEGUN) {
        asks.dial(to)?;
        left -= 1;
    }
    while ids.len() < connections as usize {
        asks.wait(&mut news)?;
        for news in news.drain(..) {
            let News::Opened(id) = news else { return Err(unexpected(news)) };
            ids.push(id);
            if left > 0 {
                asks.dial(to)?;
                left -= 1;
            }
        }
    }
    Ok((asks, ids))
}

/// Asks on each connection, and again as soon as it has the answer. Returns the answers.
pub(super) fn ask(asks: &mut dyn Loop, ids: Vec<Id>, clock: &Clock) -> Result<u64, Failure> {
    for id in ids {
        asks.send(id)?;
    }
    let (mut answers, mut news) = (0, Vec::new());
    while !clock.is_over() {
        asks.wait(&mut news)?;
        for news in news.drain(..) {
            let News::Message(id) = news else { return Err(unexpected(news)) };
            answers += clock.unit();
            asks.send(id)?;
        }
    }
    Ok(answers)
}

/// What the server never does.
pub(super) fn unexpected(news: News) -> Failure {
    Failure(format!("{news:?} from the server, out of turn: its process may have failed"))
}
