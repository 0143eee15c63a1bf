//! The operations of a reactor, by the token of their events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use crate::api::{Event, Token};

/// An object that takes the events of many operations: a stream or a listener. Its slot stays until
/// the last of these events.
pub(super) trait Sink: Send + Sync {
    /// Takes an event, and leaves the tasks to wake in `wakers`. `tag` is the number that the
    /// sink gave to the operation.
    fn complete(&self, tag: u32, event: Event, wakers: &mut Vec<Waker>);

    /// The count of those that need the slot.
    fn uses(&self) -> &Uses;
}

/// The owner of a sink and its operations in flight, counted. The last to go frees the slot.
pub(super) struct Uses(AtomicUsize);

impl Uses {
    /// The owner's use.
    pub(super) fn owned() -> Uses {
        Uses(AtomicUsize::new(1))
    }

    /// An operation is about to be posted, by the owner.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// A use has ended. True if it was the last.
    #[must_use]
    pub(super) fn end(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// An entry of the table.
enum Slot {
    /// The operation is in flight; the task that waits for it, if one does.
    Waiting(Option<Waker>),
    /// The operation has ended, and no task has taken its event.
    Done(Event),
    /// The program has dropped the future. The event's memory is dropped with the event.
    Abandoned,
    /// All operations of an object.
    Sink(Arc<dyn Sink>),
}

/// What an event found.
pub(super) enum Delivered {
    /// The task that waits for the operation, if one does.
    Wake(Option<Waker>),
    /// The program no longer wants the event.
    Unwanted(Event),
    /// The event is for this sink.
    Sink(Arc<dyn Sink>, u32, Event),
}

/// The table. Each token has exactly one event, and its slot stays until then. So a slot needs no
/// generation.
#[derive(Default)]
pub(super) struct OperationSlots {
    slab: slab::Slab<Slot>,
}

impl OperationSlots {
    /// Adds an operation that is about to be posted.
    pub(super) fn insert(&mut self) -> usize {
        self.slab.insert(Slot::Waiting(None))
    }

    pub(super) fn insert_sink(&mut self, sink: Arc<dyn Sink>) -> usize {
        self.slab.insert(Slot::Sink(sink))
    }

    /// Removes an operation whose post was refused, or a sink after its last use.
    pub(super) fn remove(&mut self, slot: usize) {
        self.slab.try_remove(slot);
    }

    /// Takes the event of an operation, or notes the task that waits for it.
    pub(super) fn poll(&mut self, slot: usize, cx: Option<&Context<'_>>) -> Poll<Event> {
        match &mut self.slab[slot] {
            Slot::Waiting(waker) => {
                if let Some(cx) = cx {
                    match waker {
                        Some(same) => same.clone_from(cx.waker()),
                        None => *waker = Some(cx.waker().clone()),
                    }
                }
                Poll::Pending
            }
            _ => match self.slab.remove(slot) {
                Slot::Done(event) => Poll::Ready(event),
                _ => unreachable!("a future polls its own operation, once after the end"),
            },
        }
    }

    /// The program no longer wants the event. Returns the event if it has come; otherwise the
    /// operation must be cancelled.
    pub(super) fn abandon(&mut self, slot: usize) -> Option<Event> {
        match std::mem::replace(&mut self.slab[slot], Slot::Abandoned) {
            Slot::Done(event) => {
                self.slab.remove(slot);
                Some(event)
            }
            _ => None,
        }
    }

    /// Takes an event from the queue.
    pub(super) fn deliver(&mut self, event: Event) -> Delivered {
        let (slot, tag) = split(event.token());
        let Some(entry) = self.slab.get_mut(slot) else { return Delivered::Unwanted(event) };
        match entry {
            Slot::Sink(sink) => Delivered::Sink(Arc::clone(sink), tag, event),
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *entry = Slot::Done(event);
                Delivered::Wake(waker)
            }
            Slot::Abandoned | Slot::Done(_) => {
                self.slab.remove(slot);
                Delivered::Unwanted(event)
            }
        }
    }
}

/// The token of an operation: the slot, and the number that a sink gives to its operation.
pub(super) fn token(slot: usize, tag: u32) -> Token {
    Token(slot as u64 | u64::from(tag) << 32)
}

#[allow(clippy::cast_possible_truncation, reason = "the halves of the number")]
pub(super) fn split(token: Token) -> (usize, u32) {
    (token.0 as u32 as usize, (token.0 >> 32) as u32)
}

#[cfg(test)]
mod tests;
