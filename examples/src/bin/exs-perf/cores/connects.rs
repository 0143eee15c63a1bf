//! Connections made, used for a byte each way, and closed, one after the other.

use std::time::Duration;

use exs_examples::fail::Failure;

use super::rate;
use super::sockets::{Carrier, Listener};

pub(super) fn measure(carrier: Carrier, duration: Duration) -> Result<f64, Failure> {
    let listener = Listener::new(carrier)?;
    rate(2, duration, |n, clock| {
        clock.ready();
        let mut byte = [1];
        let mut connections = 0;
        if n == 0 {
            while !clock.is_over() {
                let mut end = listener.connect()?;
                end.send(&byte)?;
                end.recv(&mut byte)?;
                connections += clock.unit();
            }
            // A connection without a byte ends the thread that accepts.
            listener.connect()?.shutdown()?;
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
