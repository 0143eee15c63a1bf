//! Links whose attendant sleeps outside of the reactor: the thread that attends the link, or the program
//! that polls a descriptor.
//!
//! The word `Asleep` tells the peer how to wake it. A leader that works on the link meanwhile, for
//! something that concerns no attendant, clears the word while it works. It must state it again for as
//! long as the attendant sleeps: the peer rings for nothing else that follows.

use super::link::ShmLink;
use super::sleep::BY_WORD;
use crate::sys::SharedWord;

/// Where the attendant of a link sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AttendantSleep {
    /// There is none, or it has come.
    #[default]
    Awake,
    /// On the word itself.
    OnWord,
    /// At a descriptor at which the peer rings.
    AtDescriptor,
    /// Where it wants: it has the rings, and announces its sleep itself (`loan`).
    Lent,
}

impl ShmLink {
    /// Announces that a thread sleeps on the word. None: there is work already.
    pub(super) fn arm_attended(&mut self) -> Option<SharedWord> {
        self.end_polled_sleep();
        self.report_consumed();
        let wants = self.wants() | BY_WORD;
        self.mem.sleep_words().announce_sleep(wants);
        if self.has_work() {
            self.mem.sleep_words().announce_awake();
            return None;
        }
        Some(self.mem.own_sleep_word(wants))
    }

    /// Another thread has worked on a link whose attendant may sleep: states again what to wake the
    /// attendant for. True if there is work already. Then the link must be served and re-armed.
    pub(super) fn rearm_attended(&mut self) -> bool {
        match self.wake_up.attendant {
            AttendantSleep::Awake | AttendantSleep::Lent => false,
            AttendantSleep::OnWord => {
                self.report_consumed();
                // An attendant that was woken looks for work itself.
                self.mem.sleep_words().restate(self.wants() | BY_WORD) && self.has_work()
            }
            AttendantSleep::AtDescriptor => !self.arm_polled(),
        }
    }
}
