//! Links, and groups of links, that had bytes recently. A thread that spins reads them itself, sooner
//! than the reactor would report them.

use super::SoftRnic;
use crate::driver::Source;
use crate::rnic::Ready;
use crate::time::Time;

/// Links that are known to have had bytes recently.
const MAX_HOT: usize = 16;
/// The most such links that `spin` reads. Each read that finds nothing is a system call, and with more links
/// one question to the reactor takes less time.
const MOST_READ: usize = 4;
/// Calls of `spin` without bytes after which a link is not hot any more.
const MAX_MISSES: u32 = 4096;

/// A link, or a group of links, that `spin` reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct HotLink {
    source: Source,
    /// Calls of `spin` since the last byte.
    misses: u32,
}

impl HotLink {
    /// `spin` has found no byte. True if the link stays hot.
    fn miss(&mut self) -> bool {
        self.misses += 1;
        self.misses < MAX_MISSES
    }
}

impl SoftRnic {
    /// True if more links had bytes recently than `spin` reads. The reactor finds those with bytes sooner.
    pub(super) fn has_many_hot_links(&self) -> bool {
        self.parts.hot.len() > MOST_READ
    }

    /// Reads links that had bytes recently, if they are few. True if bytes came.
    pub(super) fn poll_hot_links(&mut self, now: Time) -> bool {
        let mut any = self.parts.unparsed.is_some();
        self.end_eager_round(now);
        if self.has_many_hot_links() {
            self.parts.hot.retain_mut(HotLink::miss);
            return any;
        }
        for _ in 0..self.parts.hot.len() {
            let Some(mut hot) = self.parts.hot.pop_front() else { break };
            let id = match hot.source {
                Source::Link(id) => id,
                _ => {
                    if self.poll_hot_group(hot) {
                        return true;
                    }
                    continue;
                }
            };
            let Ok(link) = self.links.get_mut(id) else { continue };
            link.ready.readable = true;
            let stalled = link.base.stalled;
            if self.read_eager(id) {
                // Eager messages are taken out next, from the lookahead that all links share.
                return true;
            }
            // Bytes that had waited for a receive may be taken in without a new byte.
            if stalled {
                self.enqueue(Source::Link(id));
            }
            let pass = self.read_link(id);
            if pass.received > 0 {
                any = true;
                hot.misses = 0;
                let more = self.write_link(id);
                if pass.more || more {
                    self.enqueue(Source::Link(id));
                }
            }
            let stays = pass.received > 0 || hot.miss();
            let ended = self.links.get(id).is_ok_and(|l| !l.inbound.is_readable());
            if stays && !ended {
                self.parts.hot.push_back(hot);
            }
            if pass.received > 0 || ended {
                self.finish_turn(id, now);
            }
        }
        any
    }

    /// Reads ahead on a link that had bytes recently, and does nothing else. None if there is no such
    /// link; if there are so many that the reactor finds them sooner; or if one waits for room to
    /// write, which the reactor reports.
    pub(super) fn has_news(&mut self) -> Option<bool> {
        if self.parts.unparsed.is_some() || !self.turns.ready.is_empty() {
            return Some(true);
        }
        let (count, mut looked) = (self.parts.hot.len(), None);
        if self.has_many_hot_links() {
            return None;
        }
        for _ in 0..count {
            let Some(hot) = self.parts.hot.pop_front() else { break };
            self.parts.hot.push_back(hot);
            let id = match hot.source {
                Source::Link(id) => id,
                Source::Group(id) => {
                    if self.look_at_group(id) {
                        return Some(true);
                    }
                    looked = Some(false);
                    continue;
                }
                _ => continue,
            };
            let Ok(link) = self.links.get_mut(id) else { continue };
            if !link.ready.writable {
                return None;
            }
            link.ready.readable = true;
            if self.read_eager(id) {
                return Some(true);
            }
            if self.links.get(id).is_ok_and(|l| !l.inbound.is_readable()) {
                self.enqueue(Source::Link(id));
                return Some(true);
            }
            looked = Some(false);
        }
        looked
    }

    /// Reads a group that had bytes recently. True if bytes came.
    fn poll_hot_group(&mut self, mut hot: HotLink) -> bool {
        let Source::Group(id) = hot.source else { return false };
        let came = self.look_at_group(id);
        if !came && hot.miss() && self.parts.groups.table.get(id).is_ok() {
            self.parts.hot.push_back(hot);
        }
        came
    }

    /// Reads ahead on a group, whether the reactor has reported bytes or not.
    fn look_at_group(&mut self, id: u32) -> bool {
        self.parts.groups.note_ready(id, Ready { readable: true, ..Ready::default() });
        self.read_group(id).is_some()
    }

    pub(super) fn make_cold(&mut self, source: Source) {
        self.parts.hot.retain(|hot| hot.source != source);
    }

    pub(super) fn make_hot(&mut self, source: Source) {
        if let Some(hot) = self.parts.hot.iter_mut().find(|h| h.source == source) {
            hot.misses = 0;
            return;
        }
        if self.parts.hot.len() == MAX_HOT {
            self.parts.hot.pop_front();
        }
        self.parts.hot.push_back(HotLink { source, misses: 0 });
    }
}
