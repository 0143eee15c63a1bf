//! Adds several events at once.

use std::sync::Arc;

use super::QueueCore;
use crate::progress::event::RawEvent;
use crate::progress::waiter::Waiter;

impl QueueCore {
    /// Adds several events under one lock, as [`QueueCore::push`] adds an event.
    pub fn push_all(
        &self,
        events: impl Iterator<Item = RawEvent>,
        wake: &mut Vec<Arc<Waiter>>,
    ) -> bool {
        let mut inner = self.lock();
        let before = inner.events.len();
        inner.events.extend(events);
        if inner.events.len() == before {
            return false;
        }
        self.show(&mut inner, wake);
        self.needs_leader() && before == 0 && inner.waiters.is_empty()
    }
}

impl std::fmt::Debug for QueueCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue")
            .field("waiting", &self.len())
            .field("outstanding", &self.outstanding())
            .field("depth", &self.depth())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::progress::queue::FdUse;
    use crate::progress::{EventKind, QueueOptions};

    #[test]
    fn several_events_are_pushed_as_single_ones_are() {
        let (q, w) = (QueueCore::new(&QueueOptions::default()).unwrap(), Waiter::new().unwrap());
        w.min.store(3, Ordering::SeqCst);
        q.enlist(&w);
        let readable = || q.fd(FdUse::Program).wait(Some(Duration::ZERO)).unwrap();
        let push = |tokens: std::ops::Range<u64>| {
            let mut wake = Vec::new();
            let events = tokens.map(|token| RawEvent::new(token, EventKind::Send));
            (q.push_all(events, &mut wake), wake.len(), q.len(), readable())
        };
        assert_eq!(push(0..0), (false, 0, 0, false));
        assert_eq!(push(0..2), (false, 0, 2, true), "too few for the thread that waits");
        assert_eq!(push(2..4), (false, 1, 4, true));
        q.delist(&w);
        let mut out: Vec<RawEvent> = Vec::new();
        assert_eq!(q.take(8, &mut out), 4);
        assert_eq!(push(4..6), (true, 0, 2, true), "no thread waits, but the program polls");
        assert_eq!(push(6..7), (false, 0, 3, true), "the descriptor is readable already");
        q.take(8, &mut out);
        assert_eq!(out.iter().map(|e| e.token).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    }
}
