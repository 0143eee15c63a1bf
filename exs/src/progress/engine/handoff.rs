//! Events on their way to a queue, and threads that wait for them there.
//!
//! A thread that looks for messages is in the engine when its events are made. To put them into
//! the queue and take them out again costs four locked instructions, on the way of every
//! message; so they are caught, and handed to it before it lets go of the engine.

use std::sync::Arc;

use super::Engine;
use crate::progress::event::RawEvent;
use crate::progress::queue::{QueueCore, Want};
use crate::sys::cold_path;

/// What is caught.
#[derive(Default)]
pub(super) struct Handoff {
    /// The address of the queue whose events are; a thread is here that has it.
    queue: Option<usize>,
    events: Vec<RawEvent>,
    /// What came when the process was about to end, and where to.
    unheard: Vec<(Arc<QueueCore>, RawEvent)>,
}

fn address(queue: &QueueCore) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl Engine {
    /// Puts an event into a queue, unless the thread that is here wants it.
    pub(super) fn leave(&mut self, queue: &Arc<QueueCore>, event: RawEvent) {
        if self.leaver().is_some() {
            // Nobody is to hear of it now, nor is its memory to be let go of: who lent it does not
            // know that it is free.
            cold_path();
            self.catch.unheard.push((Arc::clone(queue), event));
        } else if self.catch.queue == Some(address(queue)) {
            self.catch.events.push(event);
        } else {
            self.signalled |= queue.push(event, &mut self.wake);
        }
    }

    /// True if `leave` would put an event into this queue, and not into the hands of a thread.
    pub(super) fn leaves_for(&self, queue: &QueueCore) -> bool {
        self.leaver().is_none() && self.catch.queue != Some(address(queue))
    }

    /// What nobody was to hear of goes where it belongs.
    pub(super) fn tell_unheard(&mut self) {
        for (queue, event) in std::mem::take(&mut self.catch.unheard) {
            queue.push(event, &mut self.wake);
        }
    }

    /// From now on the events of this queue are for the calling thread, which ends that by
    /// `hand_over` before it lets go of the engine.
    pub(in crate::progress) fn catch_for(&mut self, queue: &QueueCore) {
        self.catch.queue = Some(address(queue));
    }

    /// The calling thread is to get events.
    pub(super) fn has_caught(&self) -> bool {
        !self.catch.events.is_empty()
    }

    /// Hands over what was caught, if the thread has enough by it, and puts it into the queue
    /// if not; returns how many events the thread got.
    pub(in crate::progress) fn hand_over<E: From<RawEvent>>(
        &mut self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> usize {
        self.catch.queue = None;
        queue.exchange(&mut self.catch.events, want, &mut self.wake)
    }
}
