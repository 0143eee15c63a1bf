//! An event queue that keeps books.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use exs::{
    Completion, Error, Event, EventQueue, KernelAddr, QueueOptions, Socket, Token, WaitPolicy,
};

use super::LIMIT;

/// An event queue that knows what was posted. It panics at an event that was not due or
/// comes twice, and (in [`Ledger::finish`]) at a missing event.
#[derive(Debug)]
pub struct Ledger {
    queue: EventQueue,
    open: BTreeMap<u64, &'static str>,
    /// Came while another was waited for.
    early: Vec<Event>,
    next: u64,
}

impl Ledger {
    /// Of a queue of a depth that tests do not reach by accident.
    pub fn new() -> Ledger {
        Ledger::with_depth(4096)
    }

    /// Of a queue of this depth.
    pub fn with_depth(depth: usize) -> Ledger {
        Ledger::of(EventQueue::new(depth).unwrap())
    }

    /// Of a queue with this wait policy.
    pub fn with_policy(wait: WaitPolicy) -> Ledger {
        Ledger::of(
            EventQueue::with_options(&QueueOptions::default().with_depth(4096).with_wait(wait))
                .unwrap(),
        )
    }

    fn of(queue: EventQueue) -> Ledger {
        Ledger { queue, open: BTreeMap::new(), early: Vec::new(), next: 1 }
    }

    /// The queue.
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Posts an operation under a token of its own; an event is due if it is accepted.
    ///
    /// # Errors
    /// As `f`.
    pub fn try_post<E>(
        &mut self,
        what: &'static str,
        f: impl FnOnce(&EventQueue, Token) -> Result<(), E>,
    ) -> Result<Token, E> {
        let token = self.next;
        self.next += 1;
        f(&self.queue, Token(token))?;
        self.open.insert(token, what);
        Ok(Token(token))
    }

    /// As [`Ledger::try_post`], and it must be accepted.
    pub fn post<E: std::fmt::Debug>(
        &mut self,
        what: &'static str,
        f: impl FnOnce(&EventQueue, Token) -> Result<(), E>,
    ) -> Token {
        self.try_post(what, f).unwrap_or_else(|e| panic!("{what} was refused: {e:?}"))
    }

    /// Operations whose event has not come.
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    fn book(&mut self, event: &Event) {
        let token = event.token().0;
        assert!(
            self.open.remove(&token).is_some(),
            "an event that is not due (its operation has ended, or never was): {event:?}"
        );
    }

    /// Takes what the queue has within `timeout`, one event at most.
    pub fn poll(&mut self, timeout: Duration) -> Option<Event> {
        if !self.early.is_empty() {
            return Some(self.early.remove(0));
        }
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.queue.dequeue(1, Some(left)) {
                Ok(mut events) => {
                    assert!(events.len() <= 1, "asked for one event");
                    let event = events.pop()?;
                    self.book(&event);
                    return Some(event);
                }
                Err(Error::Interrupted) => {}
                Err(e) => panic!("dequeue: {e}"),
            }
        }
    }

    /// The next event.
    pub fn event(&mut self) -> Event {
        self.poll(LIMIT).unwrap_or_else(|| panic!("no event, and these are due: {:?}", self.open))
    }

    /// The next event, which must be of a success.
    pub fn ok(&mut self) -> Event {
        let event = self.event();
        assert!(event.error().is_none(), "{event:?}");
        event
    }

    /// The event of one operation; others that come before it are kept.
    pub fn wait(&mut self, token: Token) -> Event {
        if let Some(i) = self.early.iter().position(|e| e.token() == token) {
            return self.early.remove(i);
        }
        let mut others = std::mem::take(&mut self.early);
        let event = loop {
            let what = self.open.get(&token.0).copied();
            let event = self.poll(LIMIT).unwrap_or_else(|| {
                panic!("no event of {what:?} ({token:?}); these are due: {:?}", self.open)
            });
            if event.token() == token {
                break event;
            }
            others.push(event);
        };
        self.early = others;
        event
    }

    /// As [`Ledger::wait`], and it must be of a success.
    pub fn wait_ok(&mut self, token: Token) -> Event {
        let event = self.wait(token);
        assert!(event.error().is_none(), "{event:?}");
        event
    }

    /// All events that are due, and those that came early.
    pub fn drain(&mut self) -> Vec<Event> {
        let mut all = std::mem::take(&mut self.early);
        while !self.open.is_empty() {
            let event = self.event();
            all.push(event);
        }
        all
    }

    /// Waits for what is due, and checks that there is nothing else.
    pub fn finish(mut self) {
        self.drain();
        let more = self.queue.dequeue(16, Some(Duration::ZERO)).unwrap();
        assert!(more.is_empty(), "events of nothing: {more:?}");
        assert_eq!(self.queue.outstanding(), 0, "places in the queue were not given back");
    }
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

/// The connection that an accept has brought, and the address of its peer.
pub fn accepted(event: Event) -> Option<(Socket, SocketAddr)> {
    match event.into_completion() {
        Ok(Completion::Accept { socket, peer, .. }) => Some((socket, peer)),
        _ => None,
    }
}

/// As [`accepted`], of a kernel socket.
pub fn accepted_kernel(event: Event) -> Option<(OwnedFd, KernelAddr)> {
    match event.into_completion() {
        Ok(Completion::AcceptKernel { socket, peer, .. }) => Some((socket, peer)),
        _ => None,
    }
}
