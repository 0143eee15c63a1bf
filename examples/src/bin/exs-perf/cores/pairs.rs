//! Two threads for each connection, which ask and answer with calls that block.

use std::time::Duration;

use exs_tools::fail::Failure;

use super::carrier::Carrier;
use super::clock::{Clock, rate};
use super::sockets::{End, Listener, connect};

/// Bytes of a question and of an answer.
const SIZE: usize = 64;

/// Each thread makes its connection itself, as the threads of a program do.
pub(super) fn measure(carrier: Carrier, pairs: usize, duration: Duration) -> Result<f64, Failure> {
    let listener = Listener::new(carrier)?;
    let to = listener.addr()?;
    rate(2 * pairs, duration, |n, clock| {
        let asks = n % 2 == 0;
        let end = if asks { connect(carrier, to) } else { listener.accept() };
        clock.ready();
        if asks { ask(&mut end?, clock) } else { answer(&mut end?) }
    })
}

fn ask(end: &mut End, clock: &Clock) -> Result<u64, Failure> {
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

fn answer(end: &mut End) -> Result<u64, Failure> {
    let mut message = [0; SIZE];
    while end.recv(&mut message)? {
        end.send(&message)?;
    }
    Ok(0)
}
