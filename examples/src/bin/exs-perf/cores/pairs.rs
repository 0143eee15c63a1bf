//! Two threads for each connection, which ask and answer with calls that block.

use std::sync::Mutex;
use std::time::Duration;

use exs_examples::fail::Failure;

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::sockets::Listener;

/// Bytes of a question and of an answer.
const SIZE: usize = 64;

pub(super) fn measure(carrier: Carrier, pairs: usize, duration: Duration) -> Result<f64, Failure> {
    let listener = Listener::new(carrier)?;
    let mut ends = Vec::new();
    for _ in 0..pairs {
        let (asks, answers) = listener.pair()?;
        ends.extend([Some(asks), Some(answers)]);
    }
    let ends = Mutex::new(ends);
    rate(2 * pairs, duration, |n, clock| {
        let mine = ends.lock().ok().and_then(|mut ends| ends[n].take());
        clock.ready();
        let mut end = mine.ok_or_else(|| Failure("another thread panicked".to_owned()))?;
        if n % 2 == 0 { ask(&mut end, clock) } else { answer(&mut end) }
    })
}

fn ask(end: &mut super::sockets::End, clock: &Clock) -> Result<u64, Failure> {
    let mut message = [1; SIZE];
    let mut answers = 0;
    while !clock.is_over() {
        end.send(&message)?;
        if !end.recv(&mut message)? {
            return Err(Failure("the thread that answers has gone".to_owned()));
        }
        answers += clock.unit();
    }
    end.shutdown()?;
    Ok(answers)
}

fn answer(end: &mut super::sockets::End) -> Result<u64, Failure> {
    let mut message = [0; SIZE];
    while end.recv(&mut message)? {
        end.send(&message)?;
    }
    Ok(0)
}
