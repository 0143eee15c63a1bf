//! The receives of one end: those of the queue pair, in the order in which messages use them up.

use std::collections::VecDeque;

use crate::rnic::ExtraReceives;

/// A receive that is posted, or that a message has used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    Usual,
    Extra,
}

#[derive(Debug, Default)]
pub(in crate::session::sim) struct Receives {
    posted: VecDeque<Receive>,
    /// Used up, and not posted again yet.
    used: Option<Receive>,
    /// Extra receives are not posted again.
    dropping: bool,
    /// There is not always memory for as many as are wanted.
    pub(in crate::session::sim) scarce: bool,
    /// The most that may be posted.
    pub(in crate::session::sim) most: usize,
}

impl Receives {
    pub(in crate::session::sim) fn new(usual: u16, most: u16) -> Receives {
        let posted = vec![Receive::Usual; usize::from(usual)].into();
        Receives { posted, most: most.max(usual).into(), ..Receives::default() }
    }

    pub(super) fn add(&mut self, count: usize) -> usize {
        self.dropping = false;
        self.posted.extend(vec![Receive::Extra; count]);
        assert!(self.posted.len() <= self.most, "more receives than the queue takes");
        count
    }

    pub(super) fn drop_extra(&mut self) -> ExtraReceives {
        self.dropping = true;
        let extra = |r: &Receive| *r == Receive::Extra;
        let left = self.extra();
        let messages = self.posted.iter().rposition(extra).map_or(0, |at| at + 1);
        ExtraReceives { left: narrow(left), messages: narrow(messages) }
    }

    /// Extra receives that are posted.
    pub(in crate::session::sim) fn extra(&self) -> usize {
        self.posted.iter().filter(|r| **r == Receive::Extra).count()
    }

    /// Receives that are posted.
    pub(in crate::session::sim) fn len(&self) -> usize {
        self.posted.len()
    }

    /// A message uses up a receive. False: there is none.
    pub(super) fn take(&mut self) -> bool {
        self.used = self.posted.pop_front();
        self.used.is_some()
    }

    /// The message has been handled: its receive is posted again, or dropped.
    pub(in crate::session::sim) fn give_back(&mut self) {
        match self.used.take() {
            Some(Receive::Extra) if self.dropping => {}
            used => self.posted.extend(used),
        }
    }
}

fn narrow(n: usize) -> u16 {
    u16::try_from(n).unwrap()
}
