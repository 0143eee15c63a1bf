//! The descriptor that a program polls, at which the peer rings.
//!
//! The C library shows a socket's readiness at one end of a socket pair, and holds the other end.
//! A program that polls such descriptors sleeps in the kernel, and no thread of the library needs
//! to run for an eager message: the peer gets a copy of the library's end, and sends a message
//! there when the word `Asleep` has the bit `BY_DESCRIPTOR`. The program then comes with a call
//! that receives, and takes the data out of the ring.
//!
//! Only eager messages with bytes ring there, since they are data for a receive. All other records
//! ring as usual, and the thread that leads shows what they mean.
//!
//! # Trust
//! Only a peer of the same user gets the end. It can make the descriptor readable or not writable
//! without a reason, and show an end that is none: that harms its own connection. It cannot make
//! a thread of this process wait.

use std::os::fd::BorrowedFd;

use super::attended::AttendantSleep;
use super::control::ControlMessage;
use super::link::ShmLink;
use super::sleep::BY_DESCRIPTOR;
use crate::rnic::PolledSleep;

/// The descriptor that our program polls.
#[derive(Default)]
pub(super) struct PolledEnd {
    ours: OurEnd,
    /// The peer's rings there that were not reported yet.
    rings: u32,
}

/// What the peer has of our descriptor.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum OurEnd {
    /// Nothing.
    #[default]
    Kept,
    /// The library's end. It does not ring there now.
    Lent,
    /// The library's end. The word asks it to ring there.
    Armed,
}

impl PolledEnd {
    /// True if the peer has nothing of our descriptor.
    pub(super) fn is_kept(&self) -> bool {
        self.ours == OurEnd::Kept
    }

    /// True while the word asks the peer to ring at the descriptor.
    pub(super) fn is_armed(&self) -> bool {
        self.ours == OurEnd::Armed
    }

    /// Takes the number of messages that the peer has left, or is about to leave, at our
    /// descriptor.
    pub(super) fn take_rings(&mut self) -> u32 {
        std::mem::take(&mut self.rings)
    }
}

impl ShmLink {
    /// Announces the sleep of the program, which polls the other end of `end`.
    pub(super) fn sleep_polled(&mut self, end: BorrowedFd<'_>) -> PolledSleep {
        if self.wake_up.polled.ours == OurEnd::Kept {
            if !self.send_control(&ControlMessage::PassDescriptor, &[end]) {
                return PolledSleep::Unable;
            }
            self.wake_up.polled.ours = OurEnd::Lent;
        }
        match self.arm_polled() {
            true => {
                self.wake_up.attendant = AttendantSleep::AtDescriptor;
                PolledSleep::Asleep
            }
            false => {
                self.wake_up.attendant = AttendantSleep::Awake;
                PolledSleep::Ready
            }
        }
    }

    /// Announces that the peer must ring at the descriptor. False if there is work already.
    pub(super) fn arm_polled(&mut self) -> bool {
        self.end_polled_sleep();
        self.report_consumed();
        self.mem.sleep_words().announce_sleep(self.wants() | BY_DESCRIPTOR);
        self.wake_up.polled.ours = OurEnd::Armed;
        if self.has_work() {
            self.end_polled_sleep();
            return false;
        }
        true
    }

    /// The peer must not ring at the descriptor any more. Counts the rings so far.
    pub(super) fn end_polled_sleep(&mut self) {
        if self.wake_up.polled.is_armed() {
            self.wake_up.polled.ours = OurEnd::Lent;
            let rings = self.mem.sleep_words().take_rings();
            self.wake_up.polled.rings = self.wake_up.polled.rings.saturating_add(rings);
        }
    }
}
