//! The same over a plain kernel socket: a thread (for both ways at the same time: two) that
//! blocks, for each connection.
//!
//! One send() for each message, from one buffer. The receiver takes what is there, into a
//! buffer of the message's size, but of 64 KiB at least: it counts bytes, not messages.

use std::sync::atomic::{AtomicBool, Ordering};

use exs_tools::fail::{During, Failure};
use exs_tools::plain::Plain;
use quanta::Instant;

use crate::crew::{Outcome, Part, histogram};
use crate::job::{Job, Test};

const LEAST_BUFFER: usize = 64 << 10;

/// One connection.
pub(crate) struct PlainPart {
    socket: Plain,
    is_client: bool,
    echoes: bool,
    sends: bool,
    receives: bool,
    size: usize,
    warm: u64,
    /// What the server has received says that the client has ended.
    end_seen: AtomicBool,
}

impl PlainPart {
    pub(crate) fn new(job: &Job, socket: Plain, is_client: bool) -> PlainPart {
        let echoes = job.test == Test::Lat;
        let (ours, theirs) = (job.client_sends(), job.server_sends());
        let (sends, receives) = if is_client { (ours, theirs) } else { (theirs, ours) };
        let warm = if echoes { job.warm().min(200) } else { job.warm() };
        let end_seen = AtomicBool::new(false);
        PlainPart { socket, is_client, echoes, sends, receives, size: job.size, warm, end_seen }
    }

    /// Asks and hears the answer, until it has done so `rounds` times or `each` says no.
    fn ask(&self, mut each: impl FnMut(Instant) -> bool) -> Result<(), Failure> {
        let (out, mut back) = (vec![1; self.size], vec![0; self.size]);
        loop {
            self.socket.send(&out).during("send")?;
            if !self.socket.recv_full(&mut back).during("recv")? {
                return Err(Failure("the server has ended a connection".to_owned()));
            }
            if !each(Instant::now()) {
                return Ok(());
            }
        }
    }

    /// Answers up to `rounds` times, or until the client ends; how often it did.
    fn answer(&self, rounds: u64) -> Result<u64, Failure> {
        let mut buffer = vec![0; self.size];
        for done in 0..rounds {
            if !self.socket.recv_full(&mut buffer).during("recv")? {
                return Ok(done);
            }
            self.socket.send(&buffer).during("send")?;
        }
        Ok(rounds)
    }

    /// Sends messages while `go_on` says so; how many.
    fn pour(&self, mut go_on: impl FnMut(u64) -> bool) -> Result<u64, Failure> {
        let out = vec![1; self.size];
        let mut sent = 0;
        while go_on(sent) {
            self.socket.send(&out).during("send")?;
            sent += 1;
        }
        Ok(sent)
    }

    /// Receives `most` bytes, or until the other side ends; how many.
    fn drink(&self, most: u64) -> Result<u64, Failure> {
        let mut buffer = vec![0; self.size.max(LEAST_BUFFER)];
        let mut got = 0;
        while got < most {
            let left = usize::try_from(most - got).unwrap_or(usize::MAX);
            let room = left.min(buffer.len());
            match self.socket.recv(&mut buffer[..room]).during("recv")? {
                0 => break,
                n => got += n as u64,
            }
        }
        Ok(got)
    }

    /// Both directions, each if it is in use; messages sent, bytes received.
    fn both(
        &self,
        go_on: impl FnMut(u64) -> bool + Send,
        most: u64,
    ) -> Result<(u64, u64), Failure> {
        match (self.sends, self.receives) {
            (true, false) => Ok((self.pour(go_on)?, 0)),
            (false, true) => Ok((0, self.drink(most)?)),
            (false, false) => Ok((0, 0)),
            (true, true) => std::thread::scope(|scope| {
                let pouring = scope.spawn(|| self.pour_and_end(go_on, most));
                let got = self.drink(most);
                self.end_seen.store(true, Ordering::Release);
                let sent = pouring.join().map_err(|_| Failure("a thread has died".to_owned()))?;
                Ok((sent?, got?))
            }),
        }
    }

    /// With both ways in use the end of ours must not wait for that of theirs.
    fn pour_and_end(&self, go_on: impl FnMut(u64) -> bool, most: u64) -> Result<u64, Failure> {
        let sent = self.pour(go_on)?;
        if most == u64::MAX {
            self.socket.end().during("shutdown")?;
        }
        Ok(sent)
    }

    fn outcome(&self, moved: (u64, u64), calls: u64, ended: Instant) -> Outcome {
        let system_calls = Some(self.socket.system_calls() - calls);
        Outcome { moved: vec![moved], round_trips: None, system_calls, ended }
    }

    fn run_echo(&self, until: Option<Instant>, calls: u64) -> Result<Outcome, Failure> {
        let Some(until) = until.filter(|_| self.is_client) else {
            let rounds = self.answer(u64::MAX)?;
            self.socket.end().during("shutdown")?;
            return Ok(self.outcome((rounds, rounds), calls, Instant::now()));
        };
        let mut samples = histogram()?;
        let mut last = Instant::now();
        self.ask(|now| {
            let took = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
            samples.saturating_record(took.max(1));
            last = now;
            now < until
        })?;
        self.socket.end().during("shutdown")?;
        self.drink(u64::MAX)?;
        let rounds = samples.len();
        Ok(Outcome { round_trips: Some(samples), ..self.outcome((rounds, rounds), calls, last) })
    }
}

impl Part for PlainPart {
    fn warm_up(&mut self) -> Result<(), Failure> {
        let warm = self.warm;
        if !self.echoes {
            let most = warm * self.size as u64;
            let (_, got) = self.both(|n| n < warm, most)?;
            self.end_seen.store(false, Ordering::Release);
            return match self.receives && got < most {
                true => Err(Failure("the other side has ended a connection".to_owned())),
                false => Ok(()),
            };
        }
        if self.is_client {
            let mut left = warm;
            return self.ask(|_| {
                left -= 1;
                left > 0
            });
        }
        match self.answer(warm)? {
            n if n == warm => Ok(()),
            _ => Err(Failure("the client has ended a connection".to_owned())),
        }
    }

    fn run(&mut self, until: Option<Instant>) -> Result<Outcome, Failure> {
        let calls = self.socket.system_calls();
        if self.echoes {
            return self.run_echo(until, calls);
        }
        let go_on = |sent| match until {
            // One at least, however late the processor came to it.
            Some(until) => sent == 0 || Instant::now() < until,
            None => !self.end_seen.load(Ordering::Acquire),
        };
        let (sent, mut got) = self.both(go_on, u64::MAX)?;
        if !(self.sends && self.receives) {
            self.socket.end().during("shutdown")?;
            // The server ends when it has all of ours.
            got += self.drink(if self.receives { 0 } else { u64::MAX })?;
        }
        let size = self.size as u64;
        let whole = got.is_multiple_of(size);
        if !whole {
            return Err(Failure(format!("{got} bytes came, no whole messages of {size}")));
        }
        Ok(self.outcome((sent, got / size), calls, Instant::now()))
    }
}
