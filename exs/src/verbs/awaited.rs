//! Why completions of sends are polled for, and a sleeping thread is woken by them.
//!
//! The user waits for few sends: signalled WRs, and all WRs before an orderly end, which the driver
//! asks for once everything posted has left. Completions of other sends only make room. The driver
//! takes them when it needs room.

/// The sends of an RNIC whose end is awaited.
#[derive(Debug, Default)]
pub(super) struct AwaitedSends {
    /// Signalled WRs outstanding.
    signaled: usize,
    /// Orderly ends in progress.
    closing: usize,
}

impl AwaitedSends {
    /// A signalled WR was posted.
    #[inline]
    pub(super) fn posted(&mut self) {
        self.signaled += 1;
    }

    /// Signalled WRs have completed, or vanish with their queue pair.
    #[inline]
    pub(super) fn over(&mut self, count: usize) {
        self.signaled -= count;
    }

    /// An orderly end has begun.
    pub(super) fn begin_close(&mut self) {
        self.closing += 1;
    }

    /// An orderly end is over.
    pub(super) fn end_close(&mut self) {
        self.closing -= 1;
    }

    /// True if any are awaited.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.signaled > 0 || self.closing > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_awaited_for_signalled_ones_and_for_orderly_ends() {
        let mut awaited = AwaitedSends::default();
        assert!(!awaited.any());
        (0..3).for_each(|_| awaited.posted());
        awaited.begin_close();
        awaited.over(2);
        awaited.over(1);
        assert!(awaited.any(), "a connection is closing");
        awaited.end_close();
        assert!(!awaited.any());
        awaited.posted();
        assert!(awaited.any());
    }
}
