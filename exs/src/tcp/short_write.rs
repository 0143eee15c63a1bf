//! Short writes, and how they are retried.
//!
//! If the socket is full, the reactor reports when it has room again. But sendmsg(2) also stops
//! where memory cannot be read any more: a program has unmapped what it sends, or truncated a mapped
//! file. Then the reactor reports nothing; the next call would return the error. To make that call
//! at once would cost one for each full socket. So a link whose write was short, and on which
//! nothing has moved since, is tried again once, a little later.

use std::time::Duration;

use super::SoftRnic;
use super::link::SoftLink;
use crate::driver::Source;
use crate::time::Time;

/// Time from a short write to the retry.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A link's note about its last write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShortWrite {
    /// The last write was short: the socket is full, or memory cannot be read.
    pub(super) cut: bool,
    /// The link is in the list of links to retry.
    queued: bool,
}

/// The links to retry, all at the same time.
#[derive(Default)]
pub(super) struct ShortWrites {
    links: Vec<u32>,
    /// When to retry them; None if there are none.
    due: Option<Time>,
}

impl ShortWrites {
    /// When the links are retried.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }

    /// Adds a link if its last write was short.
    pub(super) fn note(&mut self, id: u32, link: &mut SoftLink, now: Time) {
        if link.short_write.cut && !link.short_write.queued {
            link.short_write.queued = true;
            self.links.push(id);
            self.due.get_or_insert(now + RETRY_DELAY);
        }
    }
}

impl SoftRnic {
    /// Tries the links on which nothing has moved since their short write.
    pub(super) fn retry_short_writes(&mut self, now: Time) {
        if self.parts.short_writes.due.is_none_or(|due| due > now) {
            return;
        }
        self.parts.short_writes.due = None;
        let mut links = std::mem::take(&mut self.parts.short_writes.links);
        for id in links.drain(..) {
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.short_write.queued = false;
            if std::mem::take(&mut link.short_write.cut) {
                link.ready.writable = true;
                self.enqueue(Source::Link(id));
            }
        }
        self.parts.short_writes.links = links;
    }
}
