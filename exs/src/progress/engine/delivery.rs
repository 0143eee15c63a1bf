//! Delivery: events go into their queues, or straight to the thread that waits for them, and threads
//! and watches learn of it when the engine's lock is released.
//!
//! Hand-off: a thread that polls for messages is in the engine when its events are made. To put an event into
//! the queue and take it out again costs four locked instructions for each message. So the engine
//! keeps the events of that thread's queue apart, and hands them over before the thread leaves the
//! engine.

use std::sync::Arc;

use super::watch::News;
use crate::progress::event::RawEvent;
use crate::progress::queue::{QueueCore, Want};
use crate::progress::waiter::Waiter;
use crate::sys::cold_path;

/// The events on their way, and the threads and watches that must learn of them.
#[derive(Default)]
pub(crate) struct Delivery {
    /// The address of the queue whose events are kept apart. A thread that holds the queue is in
    /// the engine. None: there is no such thread.
    queue: Option<usize>,
    /// The events for that thread.
    events: Vec<RawEvent>,
    /// The thread that ends the process. None: the process goes on.
    leaver: Option<i32>,
    /// Events that came while the process was exiting, and their queues.
    suppressed: Vec<(Arc<QueueCore>, RawEvent)>,
    /// The threads to wake when the lock is released.
    wake: Vec<Arc<Waiter>>,
    /// True if an event has made a descriptor readable that the program polls.
    signalled: bool,
    /// The sockets whose changes wait to be shown on descriptors.
    pub(super) news: News,
    /// The events so far.
    count: u64,
}

fn address(queue: &QueueCore) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl Delivery {
    /// Delivers an event.
    #[inline]
    pub(super) fn deliver(&mut self, queue: &Arc<QueueCore>, event: RawEvent) {
        self.count += 1;
        self.leave(queue, event);
    }

    /// Delivers several events of one queue.
    #[inline]
    pub(super) fn deliver_all(
        &mut self,
        queue: &Arc<QueueCore>,
        events: impl Iterator<Item = RawEvent>,
    ) {
        let mut count = 0;
        self.leave_several(queue, events.inspect(|_| count += 1));
        self.count += count;
    }

    /// The number of events so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Leaves an event with the thread in the engine, if it waits at this queue, or else in the
    /// queue.
    fn leave(&mut self, queue: &Arc<QueueCore>, event: RawEvent) {
        if self.leaver.is_some() {
            // The process is exiting: suppress the event, and keep its buffer, since the owner does
            // not know that it is free.
            cold_path();
            self.suppressed.push((Arc::clone(queue), event));
        } else if self.queue == Some(address(queue)) {
            self.events.push(event);
        } else {
            self.signalled |= queue.push(event, &mut self.wake);
        }
    }

    /// The same for several events.
    fn leave_several(&mut self, queue: &Arc<QueueCore>, events: impl Iterator<Item = RawEvent>) {
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
        self.queue = None;
        if !self.events.is_empty() {
            let mut events = std::mem::take(&mut self.events);
            self.leave_several(queue, events.drain(..));
            self.events = events;
        }
    }

    /// True if `leave` would put an event into this queue, and not into the hands of a thread.
    fn leaves_for(&self, queue: &QueueCore) -> bool {
        self.leaver.is_none() && self.queue != Some(address(queue))
    }

    // ---- the end of the process ------------------------------------------------

    /// `thread` ends the process: suppresses all events from now on.
    pub(super) fn suppress(&mut self, thread: i32) {
        self.leaver = Some(thread);
    }

    /// The process has not ended: its threads go on. The suppressed events go into their queues.
    pub(in crate::progress) fn resume(&mut self) {
        self.leaver = None;
        for (queue, event) in std::mem::take(&mut self.suppressed) {
            queue.push(event, &mut self.wake);
        }
    }

    /// The thread that ends the process. None: the process goes on.
    #[inline]
    pub(in crate::progress) fn leaver(&self) -> Option<i32> {
        self.leaver
    }

    // ---- the release of the lock -------------------------------------------------

    /// A thread must wake when the lock is released.
    pub(super) fn wake(&mut self, waiter: Arc<Waiter>) {
        self.wake.push(waiter);
    }

    /// True if the release of the lock concerns no thread but the caller, and no descriptor.
    #[inline]
    pub(in crate::progress) fn is_quiet(&self) -> bool {
        self.wake.is_empty() && !self.signalled && !self.has_news()
    }

    /// True if there is news to show on descriptors.
    #[inline]
    pub(in crate::progress) fn has_news(&self) -> bool {
        self.news.has_any()
    }

    /// True if an event loop keeps changes in memory.
    pub(in crate::progress) fn has_kept_news(&self) -> bool {
        self.news.has_kept()
    }

    /// The thread of `me` is awake, and needs no signal.
    pub(in crate::progress) fn excuse(&mut self, me: &Waiter) {
        // The list keeps its memory, as usually no other thread is there.
        self.wake.retain(|w| !std::ptr::eq(me, &**w));
    }

    /// Takes the threads to wake.
    pub(in crate::progress) fn take_waiters(&mut self) -> Vec<Arc<Waiter>> {
        std::mem::take(&mut self.wake)
    }

    /// True, once, if an event has made a descriptor readable that the program polls.
    pub(in crate::progress) fn take_signalled(&mut self) -> bool {
        std::mem::take(&mut self.signalled)
    }

    // ---- hand-off ----------------------------------------------------------------

    /// From now on the events of this queue are for the calling thread. It must call `hand_over`
    /// before it leaves the engine.
    pub(in crate::progress) fn catch_for(&mut self, queue: &QueueCore) {
        self.queue = Some(address(queue));
    }

    /// True if there are events for the calling thread.
    pub(super) fn has_caught(&self) -> bool {
        !self.events.is_empty()
    }

    /// Hands the events to the calling thread, if they are enough for it, and else puts them into
    /// the queue. Returns how many the thread got.
    pub(in crate::progress) fn hand_over<E: From<RawEvent>>(
        &mut self,
        queue: &QueueCore,
        want: &mut Want<'_, E>,
    ) -> usize {
        self.queue = None;
        queue.exchange(&mut self.events, want, &mut self.wake)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::progress::QueueOptions;
    use crate::progress::event::EventKind;

    fn queue() -> Arc<QueueCore> {
        let queue = QueueCore::new(&QueueOptions::default()).unwrap();
        queue.reserve_some(8).unwrap();
        queue
    }

    fn event(token: u64) -> RawEvent {
        RawEvent::new(token, EventKind::Send)
    }

    #[test]
    fn events_of_the_thread_in_the_engine_do_not_pass_its_queue() {
        let (mut d, mine, other) = (Delivery::default(), queue(), queue());
        d.catch_for(&mine);
        d.deliver(&mine, event(1));
        d.deliver_all(&other, [2, 3].map(event).into_iter());
        assert_eq!((mine.len(), other.len(), d.has_caught(), d.count()), (0, 2, true, 3));
        let mut out: Vec<RawEvent> = Vec::new();
        assert_eq!(d.hand_over(&mine, &mut Want { min: 1, max: 8, out: &mut out }), 1);
        assert_eq!((out[0].token, d.has_caught()), (1, false));
        d.deliver(&mine, event(4));
        assert_eq!(mine.len(), 1, "the thread has left the engine");
    }

    #[test]
    fn gathered_events_enter_their_queue_together() {
        let (mut d, mine) = (Delivery::default(), queue());
        d.gather_for(&mine);
        d.deliver(&mine, event(1));
        d.deliver(&mine, event(2));
        assert_eq!(mine.len(), 0);
        d.leave_gathered(&mine);
        assert_eq!((mine.len(), d.count()), (2, 2));
    }

    #[test]
    fn events_wait_while_the_process_exits() {
        let (mut d, mine) = (Delivery::default(), queue());
        d.suppress(7);
        d.deliver(&mine, event(1));
        d.deliver_all(&mine, std::iter::once(event(2)));
        d.gather_for(&mine);
        d.leave_gathered(&mine);
        assert_eq!((mine.len(), d.leaver()), (0, Some(7)));
        d.resume();
        assert_eq!((mine.len(), d.leaver()), (2, None), "the process goes on");
    }

    #[test]
    fn the_release_of_the_lock_wakes_all_but_the_caller() {
        let (mut d, mine, me) = (Delivery::default(), queue(), Waiter::new().unwrap());
        me.min.store(1, Ordering::SeqCst);
        mine.enlist(&me);
        assert!(d.is_quiet());
        d.deliver(&mine, event(1));
        assert!(!d.is_quiet());
        d.excuse(&me);
        assert!(d.is_quiet(), "the caller is awake");
        d.wake(Arc::clone(&me));
        assert_eq!(d.take_waiters().len(), 1);
        assert!(d.is_quiet());
        mine.delist(&me);
    }
}
