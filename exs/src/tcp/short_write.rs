//! Writes that were cut short, and why.
//!
//! If the socket is full, the reactor tells when there is room again. But sendmsg(2) also
//! stops where memory cannot be read any more (a program has unmapped what it sends, or cut
//! a file that is mapped), and then nobody tells: the error is that of the next call. To make
//! that call at once would cost one for each full socket. So a link whose write was cut short,
//! and that nothing has moved since, is tried again a little later, once.

use std::time::Duration;

use super::SoftRnic;
use super::link::Link;
use super::timers::Source;
use crate::time::Time;

/// How long after the write.
const DOUBT: Duration = Duration::from_millis(100);

/// The links to be tried again, all at the same time.
#[derive(Default)]
pub(super) struct ShortWrites {
    links: Vec<u32>,
    due: Option<Time>,
}

impl ShortWrites {
    /// When they are tried.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Remembers a link if its write was cut short.
    pub(super) fn note(&mut self, id: u32, link: &mut Link, now: Time) {
        if link.cut_short && !link.doubted {
            link.doubted = true;
            self.links.push(id);
            self.due.get_or_insert(now + DOUBT);
        }
    }
}

impl SoftRnic {
    /// Tries those again that still stand where they stood.
    pub(super) fn settle_doubts(&mut self, now: Time) {
        if self.doubts.due.is_none_or(|due| due > now) {
            return;
        }
        self.doubts.due = None;
        let mut links = std::mem::take(&mut self.doubts.links);
        for id in links.drain(..) {
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.doubted = false;
            if std::mem::take(&mut link.cut_short) {
                link.writable = true;
                self.enqueue(Source::Link(id));
            }
        }
        self.doubts.links = links;
    }
}
