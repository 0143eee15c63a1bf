//! Accounting of the hidden ring, as each end sees it.
//!
//! Both ends count the same bytes in the same order, so offsets are never sent: the positions of
//! sender and receiver follow from the lengths alone.
//! No byte of the ring is wasted at its end: a chunk that would cross is cut there.

/// The receiver's view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RxRing {
    size: u32,
    /// Offset of the oldest byte.
    rd: u32,
    /// Bytes that wait for a receive.
    fill: u32,
    /// Bytes consumed and not yet acknowledged to the sender.
    freed: u32,
}

impl RxRing {
    pub(super) const fn new(size: u32) -> Self {
        Self { size, rd: 0, fill: 0, freed: 0 }
    }

    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    pub(super) const fn fill(&self) -> u32 {
        self.fill
    }

    pub(super) const fn freed(&self) -> u32 {
        self.freed
    }

    /// So much is freed that the sender should know (R6).
    pub(super) fn has_much_freed(&self) -> bool {
        self.freed >= (self.size / 4).max(1)
    }

    /// Nothing in it, and the sender knows.
    pub(super) const fn is_clean(&self) -> bool {
        self.fill == 0 && self.freed == 0
    }

    /// The sender cannot have a byte on its way here: it knows of no room.
    pub(super) const fn is_used_up(&self) -> bool {
        self.fill + self.freed == self.size
    }

    /// Where the next byte of the sender goes.
    pub(super) fn write_at(&self) -> u32 {
        self.offset(self.fill)
    }

    /// Bytes that an honest sender may write in one chunk: not over bytes that it does not know to
    /// be free, and not across the end.
    pub(super) fn room(&self) -> u32 {
        (self.size - self.fill - self.freed).min(self.size - self.write_at())
    }

    /// `len` bytes arrived; at most `room`.
    pub(super) fn push(&mut self, len: u32) {
        self.fill += len;
    }

    /// The oldest `len` bytes are copied away; at most `fill`.
    pub(super) fn consume(&mut self, len: u32) {
        self.rd = self.offset(len);
        self.fill -= len;
        self.freed += len;
    }

    /// The oldest `len` bytes as one or two pieces (offset, length): the second is
    /// empty unless they cross the end.
    pub(super) fn oldest(&self, len: u32) -> [(u32, u32); 2] {
        let first = len.min(self.size - self.rd);
        [(self.rd, first), (0, len - first)]
    }

    /// `len` bytes (at most `room`) went by an empty ring, straight to a receive: as `push` and
    /// `consume`.
    pub(super) fn pass(&mut self, len: u32) {
        self.rd = self.offset(len);
        self.freed += len;
    }

    pub(super) fn take_freed(&mut self) -> u32 {
        std::mem::take(&mut self.freed)
    }

    /// The offset `ahead` bytes (at most the ring's size) after the oldest byte.
    fn offset(&self, ahead: u32) -> u32 {
        let to_end = self.size - self.rd;
        if ahead >= to_end { ahead - to_end } else { self.rd + ahead }
    }
}

/// The sender's view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TxRing {
    size: u32,
    wr: u32,
    free: u32,
}

impl TxRing {
    pub(super) const fn new(size: u32) -> Self {
        Self { size, wr: 0, free: size }
    }

    pub(super) const fn used(&self) -> u32 {
        self.size - self.free
    }

    /// Bytes that can be written in one chunk.
    pub(super) fn room(&self) -> u32 {
        self.free.min(self.size - self.wr)
    }

    /// Takes `len` bytes (at most `room`) and gives their offset.
    pub(super) fn take(&mut self, len: u32) -> u32 {
        let at = self.wr;
        self.free -= len;
        self.wr += len;
        if self.wr == self.size {
            self.wr = 0;
        }
        at
    }

    /// The last `len` bytes taken, in one chunk, are not used after all.
    pub(super) fn untake(&mut self, len: u32) {
        let end = if self.wr == 0 { self.size } else { self.wr };
        // A chunk never crosses the end, so this does not go below 0.
        self.wr = end - len;
        // A peer can acknowledge bytes that were never announced, and its ring can have nearly
        // 2^32 bytes.
        self.free = self.free.saturating_add(len).min(self.size);
    }

    /// `freed` bytes (at most `used`) may be written again.
    pub(super) fn give_back(&mut self, freed: u32) {
        self.free += freed;
    }
}
