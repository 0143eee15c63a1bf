//! Who looks at memory, and who sleeps.
//!
//! Every open link is either *hot*, which means that `spin` and `peek` look at its memory,
//! or *armed*: it has said in its memory that it wants to be woken. Links become hot when
//! something moves, and are armed when nothing has for long, and before every sleep.

use super::ShmRnic;
use super::link::Phase;
use super::serve::Source;

/// Connections that are looked at while spinning. One more is woken by a bell each time,
/// two system calls for what a look of some nanoseconds would have found.
const HOT: usize = 1024;
/// A connection that was looked at so often in vain is armed; sooner where many are
/// looked at, so that a look around does not become long for nothing. But a thousand that have
/// their turn every 15 ms are to stay: to wake a thread costs its peer a system call
/// for each message, and the thread another.
const COLD: u32 = 16384;
const FEW: usize = 64;

impl ShmRnic {
    /// Puts an open link on the list of those that are looked at.
    pub(super) fn warm(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.phase != Phase::Open {
            return;
        }
        link.misses = 0;
        if link.hot {
            return;
        }
        link.hot = true;
        link.mem.wake_up();
        self.hot.push(id);
        if self.hot.len() > HOT {
            let oldest = self.hot.remove(0);
            if self.cool(oldest) {
                self.enqueue(Source::Link(oldest));
            }
        }
    }

    /// Arms a link that was hot; true if there is something to do on it already.
    fn cool(&mut self, id: u32) -> bool {
        let Ok(link) = self.links.get_mut(id) else { return false };
        link.hot = false;
        let found = link.arm();
        if found {
            // It is neither armed nor looked at, but about to be served, which is as good;
            // and then it is armed, or warm.
            link.hot = true;
            self.hot.push(id);
        }
        found
    }

    /// Looks at the hot links; true if there is something to do.
    pub(super) fn look_around(&mut self) -> bool {
        if self.ready.len() >= FEW {
            // That will do for some turns: nobody is forgotten, as those come first.
            return true;
        }
        let (mut any, mut at) = (false, 0);
        let patience = COLD / u32::try_from(self.hot.len().div_ceil(FEW)).unwrap_or(COLD).max(1);
        while let Some(&id) = self.hot.get(at) {
            let Ok(link) = self.links.get_mut(id) else {
                self.hot.swap_remove(at);
                continue;
            };
            at += 1;
            link.tell_consumed();
            if link.peek() {
                any = true;
                self.enqueue(Source::Link(id));
                continue;
            }
            link.misses += 1;
            if link.misses > patience {
                at -= 1;
                self.hot.swap_remove(at);
                // If it is found to have something, it is on the list again.
                if self.cool(id) {
                    self.enqueue(Source::Link(id));
                    any = true;
                }
            }
        }
        any
    }

    /// The same without counting, for a loop of a few nanoseconds.
    pub(super) fn glance(&mut self) -> Option<bool> {
        if self.hot.is_empty() {
            return None;
        }
        Some(self.hot.iter().any(|id| self.links.get(*id).is_ok_and(|l| l.peek())))
    }

    /// Arms every hot link; true if one has something to do.
    pub(super) fn arm_all(&mut self) -> bool {
        let mut found = false;
        for id in std::mem::take(&mut self.hot) {
            if self.cool(id) {
                self.enqueue(Source::Link(id));
                found = true;
            }
        }
        found
    }
}
