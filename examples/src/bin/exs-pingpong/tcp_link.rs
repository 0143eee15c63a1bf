//! The baseline: plain blocking TCP.
//!
//! What a careful program would do without EXS: TCP_NODELAY, one `write_all` for each
//! message, and reads into one buffer of the message's size until it is full.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use exs_examples::stats::Samples;

use crate::control::{During, Failure};
use crate::link::Link;

pub(crate) struct TcpLink {
    stream: TcpStream,
}

impl TcpLink {
    pub(crate) fn new(stream: TcpStream) -> Result<TcpLink, Failure> {
        stream.set_nodelay(true).during("TCP_NODELAY")?;
        Ok(TcpLink { stream })
    }
}

impl Link for TcpLink {
    fn ping(&mut self, size: usize, rounds: u32) -> Result<Samples, Failure> {
        let (out, mut back) = (vec![1; size], vec![0; size]);
        let mut samples = Samples::with_capacity(rounds as usize);
        let mut last = Instant::now();
        for _ in 0..rounds {
            self.stream.write_all(&out).during("TCP")?;
            self.stream.read_exact(&mut back).during("TCP")?;
            let now = Instant::now();
            samples.record(now - last);
            last = now;
        }
        Ok(samples)
    }

    fn pong(
        &mut self,
        size: usize,
        rounds: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; size];
        ready()?;
        for _ in 0..rounds {
            self.stream.read_exact(&mut buffer).during("TCP")?;
            self.stream.write_all(&buffer).during("TCP")?;
        }
        Ok(())
    }

    fn pour(&mut self, size: usize, count: u32, _depth: u32) -> Result<Duration, Failure> {
        // The kernel's socket buffer is what is in flight.
        let out = vec![1; size];
        let mut end = [0];
        let begun = Instant::now();
        for _ in 0..count {
            self.stream.write_all(&out).during("TCP")?;
        }
        self.stream.read_exact(&mut end).during("TCP")?;
        Ok(begun.elapsed())
    }

    fn drink(
        &mut self,
        size: usize,
        count: u32,
        _depth: u32,
        ready: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; size];
        ready()?;
        for _ in 0..count {
            self.stream.read_exact(&mut buffer).during("TCP")?;
        }
        self.stream.write_all(&[1]).during("TCP")
    }
}
