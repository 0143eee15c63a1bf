//! How a leader spins.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::context::{Context, Led, io_error};
use super::lead::Reactor;
use super::queue::{QueueCore, Waiter};
use super::{Error, WaitPolicy};
use crate::sys::cycles;
use crate::time::Time;

/// How long an adaptive wait spins (ns), where spinning has lately paid.
const SPIN: u64 = 50_000;
/// Spins in vain after which an adaptive queue only sleeps.
pub(super) const VAIN_SPINS: u32 = 8;
/// Spins between two looks at the reactor: connections, and sockets that the
/// device does not count as active, are only seen there.
const SPINS_PER_POLL: u32 = 64;
/// How long to look for completions in memory between two rounds with system calls,
/// as a multiple of what the cheapest of these took: where other connections are seen by
/// system calls only, and where all are seen in memory. (The latter is a few
/// microseconds, in which the peer has the answer ready if it has a core to itself.)
const PEEK: u64 = 4;
const PEEK_LONG: u64 = 8;
/// The same before the first round, whose length nobody knows yet (cycles).
const FIRST_LOOK: u64 = 6_000;
/// Rounds for which one of the long kind counts.
const LONG_ROUND: u32 = 2;

impl Context {
    /// Spins as the queue's policy says; `None`: it did not pay, go to sleep.
    pub(super) fn spin_for(
        &self,
        queue: &QueueCore,
        waiter: &Waiter,
        min: usize,
        deadline: Option<Time>,
        reactor: &mut Reactor,
        foreign: &mut u32,
    ) -> Result<Option<Led>, Error> {
        let budget = match queue.wait_policy() {
            _ if !queue.spins() => return Ok(None),
            WaitPolicy::BusyPoll => u64::MAX,
            WaitPolicy::Notify | WaitPolicy::Adaptive => SPIN,
        };
        // What comes soon is found without a system call, and without a turn in vain.
        let start = cycles();
        if start > 0 && self.lock().sees_by_peek() {
            self.peek_until(queue, min, start.saturating_add(FIRST_LOOK));
        }
        let begun = self.now().as_nanos();
        let (mut round, mut polled, mut cheapest) = (0u32, 0u32, u64::MAX);
        loop {
            let start = cycles();
            while self.posters.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let turn = self.turn(Some(reactor), true, Some(waiter));
            *foreign += u32::from(turn.served_others);
            if let Some(led) = self.led(queue, min, deadline, *foreign) {
                if matches!(led, Led::Done) {
                    queue.vain_spins.store(0, Ordering::Relaxed);
                }
                return Ok(Some(led));
            }
            if round.wrapping_sub(polled) >= SPINS_PER_POLL {
                polled = round;
                reactor.poll(Some(Duration::ZERO)).map_err(|e| io_error("epoll_wait", &e))?;
            }
            if self.now().as_nanos() - begun >= budget {
                break;
            }
            // The peer may be waiting for this very core. (With nobody else to run, this
            // costs a fraction of a microsecond.)
            std::thread::yield_now();
            // A round has system calls in it. Devices whose completions are found by
            // looking at memory are looked at for as long again.
            let end = cycles();
            cheapest = cheapest.min(end.saturating_sub(start));
            let (times, count) = match self.lock().sees_by_peek() {
                true => (PEEK_LONG, LONG_ROUND),
                false => (PEEK, 1),
            };
            round = round.wrapping_add(count);
            self.peek_until(queue, min, end.saturating_add(cheapest.saturating_mul(times)));
        }
        queue.vain_spins.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Looks for completions without a system call until there are some, or somebody
    /// else has something to do, or the processor's counter says so.
    fn peek_until(&self, queue: &QueueCore, min: usize, until: u64) {
        loop {
            if self.posters.load(Ordering::Relaxed) > 0 || queue.len() >= min {
                return;
            }
            // Found, or there is nobody to ask.
            if self.lock().peek() != Some(false) || cycles() >= until {
                return;
            }
            std::hint::spin_loop();
        }
    }
}
