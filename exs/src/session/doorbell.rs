//! How soon what was posted must leave.

/// What the caller of [`Session::drive`](super::Session::drive) must do about the doorbell of
/// the queue pair. A later variant is more urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doorbell {
    /// Nothing was posted.
    #[default]
    Idle,
    /// Ring with whatever leaves next: the peer does not wait for what was posted.
    Piggyback,
    /// Ring before the thread sleeps, or with the program's next call, which most likely sends something.
    Next,
    /// Ring before the thread sleeps.
    Soon,
    /// Ring now: what was posted is data, or the peer waits for it.
    Now,
}

/// What the session has posted and not rung for.
#[derive(Debug, Default)]
pub(super) struct Unrung {
    /// What `drive` has posted since it began.
    due: Doorbell,
    /// A message that may only piggyback lies in the send queue, and nothing has left since.
    deferred: bool,
}

impl Unrung {
    /// `drive` begins.
    pub(super) fn begin(&mut self) {
        self.due = Doorbell::Idle;
    }

    /// Something was posted that must leave this soon.
    pub(super) fn note(&mut self, due: Doorbell) {
        self.due = self.due.max(due);
        self.deferred |= due == Doorbell::Piggyback;
    }

    /// A message lies in the send queue for an unknown time. Nothing eager may overtake it.
    pub(super) fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Something waits for the peer, which may wait for the deferred message.
    pub(super) fn hurry_deferred(&mut self) {
        if std::mem::take(&mut self.deferred) {
            self.due = self.due.max(Doorbell::Soon);
        }
    }

    /// `drive` ends. Any other message that leaves takes the deferred one along.
    pub(super) fn end(&mut self) -> Doorbell {
        self.deferred &= self.due < Doorbell::Next;
        self.due
    }
}
