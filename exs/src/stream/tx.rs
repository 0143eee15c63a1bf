//! The sending half of a stream.

use crate::ids::OpId;

use super::{Advert, RemoteRing, StreamConfig, StreamViolation, TxAction};

/// The sending half of one direction of a stream.
///
/// After each call, `poll` until it gives nothing, and send messages in the order
/// in which their actions come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamTx {
    cfg: StreamConfig,
}

#[expect(unused_variables, clippy::todo, clippy::unused_self, reason = "signatures first")]
impl StreamTx {
    /// `cfg` is the *peer's* ring, and what both agreed on.
    #[must_use]
    pub fn new(cfg: StreamConfig) -> Self {
        Self { cfg }
    }
    /// Queues a send of `len` bytes.
    pub fn post_send(&mut self, op: OpId, len: u64) {
        todo!()
    }
    /// Queues FIN after all sends; Done when it is emitted and all before it ended.
    pub fn shutdown(&mut self, op: OpId) {
        todo!()
    }
    /// Cancels; false if there is no such operation.
    pub fn cancel(&mut self, op: OpId) -> bool {
        todo!()
    }
    /// ADVERT came.
    pub fn handle_advert(&mut self, advert: Advert) -> Result<(), StreamViolation> {
        todo!()
    }
    /// `freed` ring bytes acknowledged, in any message.
    pub fn handle_ack(&mut self, freed: u32) -> Result<(), StreamViolation> {
        todo!()
    }
    /// RING came.
    pub fn handle_ring(&mut self, ring: RemoteRing) -> Result<(), StreamViolation> {
        todo!()
    }
    /// WITHDRAW came.
    pub fn handle_withdraw(&mut self) -> Result<(), StreamViolation> {
        todo!()
    }
    /// The local memory of a chunk is free again.
    pub fn handle_sent(&mut self, op: OpId, len: u32) {
        todo!()
    }
    /// The ring has long been idle: ReleaseRing if it is granted, empty and unused.
    pub fn idle_ring_release(&mut self) {
        todo!()
    }
    /// The next thing to do; a Transfer only if `can_transfer`.
    pub fn poll(&mut self, can_transfer: bool) -> Option<TxAction> {
        todo!()
    }
    /// `poll(true)` would give a Transfer.
    #[must_use]
    pub fn wants_transfer(&self) -> bool {
        todo!()
    }
    /// Operations that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        todo!()
    }
    /// The ring's address and key, if known (for `Target::Ring`).
    #[must_use]
    pub fn ring(&self) -> Option<RemoteRing> {
        todo!()
    }
    /// The connection is gone: every operation with the bytes it moved. Poll the
    /// rest out before (Done of others may be queued).
    pub fn abort(&mut self) -> Vec<(OpId, u64)> {
        todo!()
    }
}
