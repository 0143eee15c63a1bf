//! The baseline: plain blocking TCP.
//!
//! What a careful program would do without EXS: TCP_NODELAY, one `write_all` for each
//! message, and reads into one buffer of the message's size until it is full. And what an
//! impatient one would do: the same, but spinning on a socket that never sleeps.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use exs_tools::fail::{During, Failure};
use exs_tools::plain::Plain;
use exs_tools::stats::Samples;
use quanta::Instant as Counter;

use crate::link::Link;

pub(crate) struct TcpLink(Plain);

impl TcpLink {
    pub(crate) fn new(stream: TcpStream, spin: bool) -> Result<TcpLink, Failure> {
        Plain::tcp(stream, spin).map(TcpLink).during("TCP options")
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.0.send(bytes).during("TCP")
    }

    fn recv(&self, bytes: &mut [u8]) -> Result<(), Failure> {
        match self.0.recv_full(bytes).during("TCP")? {
            true => Ok(()),
            false => Err(Failure("TCP: the other side has closed".to_owned())),
        }
    }
}

impl Link for TcpLink {
    fn ping(&mut self, size: usize, rounds: u32) -> Result<Samples, Failure> {
        let (out, mut back) = (vec![1; size], vec![0; size]);
        let mut samples = Samples::with_capacity(rounds as usize);
        let mut last = Counter::now();
        for _ in 0..rounds {
            self.send(&out)?;
            self.recv(&mut back)?;
            let now = Counter::now();
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
            self.recv(&mut buffer)?;
            self.send(&buffer)?;
        }
        Ok(())
    }

    fn pour(&mut self, size: usize, count: u32, _depth: u32) -> Result<Duration, Failure> {
        // The kernel's socket buffer is what is in flight.
        let out = vec![1; size];
        let mut end = [0];
        let begun = Instant::now();
        for _ in 0..count {
            self.send(&out)?;
        }
        self.recv(&mut end)?;
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
            self.recv(&mut buffer)?;
        }
        self.send(&[1])
    }
}
