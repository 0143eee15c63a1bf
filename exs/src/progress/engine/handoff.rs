//! Hand-off: events go straight to the thread that waits for them.
//!
//! A thread that polls for messages is in the engine when its events are made. To put an event into
//! the queue and take it out again costs four locked instructions for each message. So the engine
//! keeps the events of that thread's queue apart, and hands them over before the thread leaves the
//! engine.

use std::sync::Arc;

use super::Engine;
use crate::progress::event::RawEvent;
use crate::progress::queue::{QueueCore, Want};
use crate::sys::cold_path;

/// The events that the engine keeps apart.
#[derive(Default)]
pub(super) struct Handoff {
    /// The address of the queue whose events are kept apart. A thread that holds the queue is in
    /// the engine. None: there is no such thread.
    queue: Option<usize>,
    /// The events for that thread.
    events: Vec<RawEvent>,
    /// Events that came while the process was exiting, and their queues.
    suppressed: Vec<(Arc<QueueCore>, RawEvent)>,
}

fn address(queue: &QueueCore) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl Engine {
    /// Delivers an event: to the thread in the engine, if it waits at this queue, or else into the
    /// queue.
    pub(super) fn leave(&mut self, queue: &Arc<QueueCore>, event: RawEvent) {
        if self.leaver().is_some() {
            // The process is exiting: suppress the event, and keep its buffer, since the owner does
            // not know that it is free.
            cold_path();
            self.catch.suppressed.push((Arc::clone(queue), event));
        } else if self.catch.queue == Some(address(queue)) {
            self.catch.events.push(event);
        } else {
            self.signalled |= queue.push(event, &mut self.wake);
        }
    }

    /// The same for several events.
    pub(super) fn leave_several(
        &mut self,
        queue: &Arc<QueueCore>,
        events: impl Iterator<Item = RawEvent>,
    ) {
        if self.leaves_for(queue) {
            self.signalled |= queue.push_all(events, &mut self.wake);
        } else {
            events.for_each(|event| self.leave(queue, event));
        }
    }

    /// From now on the events of this queue are gathered, until `leave_gathered` puts them there.
    pub(super) fn gather_for(&mut self, queue: &QueueCore) {
        if self.leaves_for(queue) {
            self.catch_for(queue);
        }
    }

    /// Puts the events that were gathered into their queue.
    pub(super) fn leave_gathered(&mut self, queue: &Arc<QueueCore>) {
        self.catch.queue = None;
        if !self.catch.events.is_empty() {
            let mut events = std::mem::take(&mut self.catch.events);
            self.leave_several(queue, events.drain(..));
            self.catch.events = events;
        }
    }

    /// True if `leave` would put an event into this queue, and not into the hands of a thread.
    pub(super) fn leaves_for(&self, queue: &QueueCore) -> bool {
        self.leaver().is_none() && self.catch.queue != Some(address(queue))
    }

    /// The process goes on: the suppressed events go into their queues.
    pub(super) fn tell_unheard(&mut self) {
        for (queue, event) in std::mem::take(&mut self.catch.suppressed) {
            queue.push(event, &mut self.wake);
        }
    }

    /// From now on the events of this queue are for the calling thread. It must call `hand_over`
    /// before it leaves the engine.
    pub(in crate::progress) fn catch_for(&mut self, queue: &QueueCore) {
        self.catch.queue = Some(address(queue));
    }

    /// True if there are events for the calling thread.
    pub(super) fn has_caught(&self) -> bool {
        !self.catch.events.is_empty()
    }

    /// Hands the events to the calling thread, if they are enough for it, and else puts them into
    /// the queue. Returns how many the thread got.
    pub(in crate::progress) fn hand_over<E: From<RawEvent>>(
        &mut self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> usize {
        self.catch.queue = None;
        queue.exchange(&mut self.catch.events, want, &mut self.wake)
    }
}
