//! A burst: sends that follow each other on one stream.

use std::os::fd::RawFd;
use std::time::Duration;

use super::sock::Name;
use crate::time::Time;

/// Sends of a burst that leave one by one before the others are kept: at first, and at most, after
/// the program has repeatedly not come for kept sends.
pub(super) const ALONE: u32 = 4;
const ALONE_MAX: u32 = 1 << 10;
/// A pause between two sends that ends a burst.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Sends that follow each other on one stream.
///
/// They are counted by the number of the descriptor, as each send knows it. The program may have given
/// the number to another socket meanwhile. So before a send waits for others, [`SendBurst::is_on`]
/// compares the socket itself.
pub(super) struct SendBurst {
    number: Option<RawFd>,
    /// The socket of this burst, as soon as a send of it could wait.
    socket: Option<Name>,
    /// Sends since the last pause.
    sends: u32,
    /// When the last send was posted; None if the time since then went into system calls of the
    /// library.
    last: Option<Time>,
    /// Sends that leave one by one before others are kept ([`ALONE`] to [`ALONE_MAX`]).
    alone: u32,
}

impl Default for SendBurst {
    fn default() -> SendBurst {
        SendBurst { number: None, socket: None, sends: 0, last: None, alone: ALONE }
    }
}

impl SendBurst {
    /// True if a send was counted.
    pub(super) fn has_begun(&self) -> bool {
        self.number.is_some()
    }

    /// Counts one more send; true if it may wait for others.
    pub(super) fn grow(&mut self, number: RawFd, now: Time) -> bool {
        if self.number != Some(number) {
            *self = SendBurst { number: Some(number), ..SendBurst::default() };
        } else if self.last.is_some_and(|last| now.since(last) > PAUSE) {
            (self.sends, self.socket) = (0, None);
        }
        (self.sends, self.last) = (self.sends.saturating_add(1), Some(now));
        self.sends > self.alone
    }

    /// True if this burst is on that socket. If the number stands for another socket than before, the
    /// burst on the new socket begins with the last send.
    pub(super) fn is_on(&mut self, socket: Name) -> bool {
        let same = self.socket.is_none_or(|before| before == socket);
        if !same {
            self.sends = 1;
        }
        self.socket = Some(socket);
        same
    }

    /// The library was in a system call: the time until the next send is no pause of the program.
    pub(super) fn forgive_pause(&mut self) {
        self.last = None;
    }

    /// The program came for its events, and several sends left together.
    pub(super) fn served(&mut self) {
        (self.alone, self.last) = ((self.alone / 2).max(ALONE), None);
    }

    /// The program came after a single send, so that keeping it saved nothing.
    pub(super) fn alone(&mut self) {
        (self.sends, self.alone, self.last) = (0, (self.alone * 2).min(ALONE_MAX), None);
    }

    /// The program did not come for kept sends.
    pub(super) fn not_served(&mut self) {
        (self.sends, self.alone) = (0, (self.alone * 8).min(ALONE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: Name = (1, 2, -1);
    const ANOTHER: Name = (1, 3, -1);
    const NOW: Time = Time::from_nanos(1);

    /// Counts sends until one may wait.
    fn until_one_may_wait(burst: &mut SendBurst) -> u32 {
        (1..).find(|_| burst.grow(5, NOW)).unwrap()
    }

    #[test]
    fn a_number_that_stands_for_another_socket_begins_a_burst() {
        let mut burst = SendBurst::default();
        assert_eq!(until_one_may_wait(&mut burst), ALONE + 1);
        assert!(burst.is_on(SOCKET));
        burst.served();
        assert!(burst.grow(5, NOW + PAUSE * 2) && burst.is_on(SOCKET), "the burst goes on");
        burst.served();
        assert!(burst.grow(5, NOW) && !burst.is_on(ANOTHER));
        assert_eq!(until_one_may_wait(&mut burst), ALONE, "its first send has left");
        assert!(burst.is_on(ANOTHER));
    }

    #[test]
    fn a_pause_ends_a_burst() {
        let mut burst = SendBurst::default();
        until_one_may_wait(&mut burst);
        assert!(burst.grow(5, NOW + PAUSE) && !burst.grow(5, NOW + PAUSE * 3));
        assert!(burst.is_on(ANOTHER), "no socket is known of the new burst");
    }

    #[test]
    fn sends_that_no_call_came_for_lengthen_the_beginning() {
        let mut burst = SendBurst::default();
        until_one_may_wait(&mut burst);
        burst.not_served();
        assert_eq!(until_one_may_wait(&mut burst), 8 * ALONE + 1);
        burst.alone();
        assert_eq!(until_one_may_wait(&mut burst), 16 * ALONE + 1);
    }
}
