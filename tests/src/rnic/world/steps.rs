//! How a world goes on: readiness, and the progress of its RNICs.

use std::time::{Duration, Instant};

use exs::rnic::{Ready, Rnic, RnicEvent};
use exs::time::Time;

use super::{Harness, PATIENCE, TOKENS, World};

impl<H: Harness> World<H> {
    /// Waits for readiness at most `limit`, and lets every RNIC make progress: once, so
    /// that a long transfer takes many steps.
    pub fn step(&mut self, limit: Duration) {
        self.wait(if self.more { Duration::ZERO } else { limit });
        self.progress();
    }

    /// A step of a thread that does not mean to sleep.
    pub fn spin(&mut self) {
        self.react(Duration::ZERO);
        let now = self.now();
        for rnic in &mut self.rnics {
            rnic.spin(now);
        }
        self.progress();
    }

    /// A step of a leader that does not spin. While an RNIC has more to do, it asks the kernel alone for
    /// news.
    pub fn lead(&mut self) {
        if !self.more {
            return self.step(Duration::ZERO);
        }
        self.react(Duration::ZERO);
        self.progress();
    }

    /// Lets one RNIC make progress. The others are slow, and have their turns later.
    pub fn step_alone(&mut self, node: usize) {
        self.react(Duration::ZERO);
        self.progress_of(node, self.now());
        self.more = true;
    }

    fn progress(&mut self) {
        let now = self.now();
        self.more = false;
        for node in 0..self.rnics.len() {
            self.more |= self.progress_of(node, now);
        }
    }

    /// True if the RNIC has more to do.
    fn progress_of(&mut self, node: usize, now: Time) -> bool {
        let rnic = &mut self.rnics[node];
        let more = rnic.progress(now);
        let mut quiet = rnic.is_quiet();
        while let Some(event) = rnic.poll_event() {
            assert!(!std::mem::take(&mut quiet), "what was quiet has {event:?}");
            match event {
                RnicEvent::Cm(event) => self.cm[node].push_back(event),
                RnicEvent::CqReady(cq) => self.notified[node].push(cq),
                RnicEvent::DeviceRemoved | RnicEvent::Starved(_) | RnicEvent::EndLoan(_) => {}
            }
        }
        more
    }

    /// Waits for readiness at most `limit`, and hands it to the RNICs.
    pub fn wait(&mut self, limit: Duration) {
        let now = self.now();
        let found = self.rnics.iter_mut().fold(false, |found, r| found | r.prepare_sleep());
        let due = self.rnics.iter().filter_map(Rnic::next_timeout).min();
        let limit = if found { Duration::ZERO } else { limit };
        self.react(due.map_or(limit, |t| (t - now).min(limit)));
    }

    fn react(&mut self, wait: Duration) {
        // Rounded up: the reactor counts milliseconds, and zero would spin.
        let wait = if wait.is_zero() { wait } else { wait + Duration::from_millis(1) };
        match self.poll.poll(&mut self.polled, Some(wait)) {
            Err(e) if e.kind() != std::io::ErrorKind::Interrupted => panic!("poll: {e}"),
            _ => {}
        }
        for event in &self.polled {
            let token = event.token().0;
            let ready = Ready {
                readable: event.is_readable() || event.is_read_closed() || event.is_error(),
                writable: event.is_writable() || event.is_write_closed() || event.is_error(),
                hup: event.is_read_closed() || event.is_write_closed() || event.is_error(),
            };
            if let Some(rnic) = self.rnics.get_mut(token / TOKENS - 1) {
                rnic.handle_ready(token, ready);
            }
        }
    }

    /// Steps until `done` yields something.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(t) = done(self) {
                return t;
            }
            assert!(start.elapsed() < PATIENCE, "no {what}: {:?}", self.cm);
            self.step(Duration::from_millis(20));
        }
    }

    /// Steps until nothing happens any more, for things that must not come. A test
    /// cannot wait for the absence of an event; loopback delivers within the steps.
    pub fn settle(&mut self) {
        for _ in 0..10 {
            self.step(Duration::from_millis(2));
            while self.more {
                self.step(Duration::ZERO);
            }
        }
    }
}
