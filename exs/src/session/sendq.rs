//! The send queue: the WRs in it, and what each completion frees.
//!
//! Only the WR that ends an operation asks for a completion. Completions of one queue arrive in
//! order, so each stands for all WRs before it. Every few WRs one must be signalled in any case:
//! a queue of unsignalled WRs would stay full for ever.

use std::collections::VecDeque;

use crate::rnic::{Wc, WcStatus};

use super::Buf;

/// What a WR was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrPurpose {
    /// A control message: nothing waits for it.
    Message,
    /// A WRITE from a send's memory; another WR ends the chunk.
    Piece {
        /// The send.
        op: u64,
    },
    /// The end of a chunk of a send: its announcement.
    Chunk {
        /// The send.
        op: u64,
        /// Bytes of the chunk.
        len: u64,
    },
    /// A WRITE from a file.
    File {
        /// The send.
        op: u64,
    },
    /// A READ or WRITE of the program's.
    Sided {
        /// The operation.
        op: u64,
        /// Bytes.
        len: u64,
        /// It takes one of the READs that may be outstanding.
        read: bool,
    },
}

/// How a WR ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum WrEnd<'a> {
    /// By its own completion.
    Own(&'a Wc),
    /// It was not signalled, and a later one has completed.
    Implied,
    /// The queue pair is gone.
    Gone,
}

impl WrEnd<'_> {
    /// How it ended.
    pub(super) fn status(self) -> WcStatus {
        match self {
            WrEnd::Own(wc) => wc.status,
            WrEnd::Implied => WcStatus::Success,
            WrEnd::Gone => WcStatus::Flushed,
        }
    }
}

/// A WR in the queue.
#[derive(Debug)]
pub(super) struct PostedWr {
    /// Why it was posted.
    pub(super) what: WrPurpose,
    /// Memory of the port's that it reads.
    pub(super) bounce: Option<Buf>,
}

impl From<WrPurpose> for PostedWr {
    fn from(what: WrPurpose) -> PostedWr {
        PostedWr { what, bounce: None }
    }
}

/// The WRs that are posted and not known to have completed.
#[derive(Debug)]
pub(super) struct SendQueue {
    first: u64,
    entries: VecDeque<PostedWr>,
    depth: usize,
    unsignalled: usize,
}

impl SendQueue {
    pub(super) fn new(depth: usize) -> SendQueue {
        SendQueue { first: 0, entries: VecDeque::new(), depth: depth.max(4), unsignalled: 0 }
    }

    /// Each WR is a message without memory of the port's. If the port has completed it, the completion of
    /// a later WR stands for it.
    pub(super) fn has_only_messages(&self) -> bool {
        let plain = |e: &PostedWr| e.bounce.is_none() && matches!(e.what, WrPurpose::Message);
        self.entries.iter().all(plain)
    }

    /// WRs that may be posted.
    pub(super) fn room(&self) -> usize {
        self.depth - self.entries.len()
    }

    /// The `wr_id` of the next WR.
    pub(super) fn next_id(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The next WR must ask for a completion.
    pub(super) fn must_signal(&self) -> bool {
        self.unsignalled + 1 >= self.depth / 4
    }

    /// A WR was posted.
    pub(super) fn push(&mut self, entry: PostedWr, signalled: bool) {
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        self.entries.push_back(entry);
    }

    /// The oldest WR that the completion of `wr_id` stands for; call until `None`. True with the
    /// WR that the completion belongs to.
    pub(super) fn retire(&mut self, wr_id: u64) -> Option<(PostedWr, bool)> {
        if self.first > wr_id {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some((entry, self.first > wr_id))
    }

    /// The queue pair is gone, and every WR with it; call until `None`.
    pub(super) fn retire_any(&mut self) -> Option<PostedWr> {
        let entry = self.entries.pop_front()?;
        self.first += 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completion_stands_for_those_before() {
        let mut q = SendQueue::new(16);
        let mut signals = Vec::new();
        for _ in 0..8 {
            let signal = q.must_signal();
            signals.push(signal);
            q.push(WrPurpose::Message.into(), signal);
        }
        assert_eq!(signals, [false, false, false, true, false, false, false, true]);
        let own: Vec<bool> = std::iter::from_fn(|| q.retire(3)).map(|(_, own)| own).collect();
        assert_eq!(own, [false, false, false, true]);
        assert!(q.retire(3).is_none(), "known already");
        assert_eq!((q.room(), q.next_id()), (12, 8));
    }
}
