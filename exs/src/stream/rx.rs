//! The receiving half of a stream.

use crate::ids::OpId;

use super::{Data, RecvPost, RxAction, StreamConfig, StreamViolation};

/// The receiving half of one direction of a stream.
///
/// After each call, `poll` until it gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamRx {
    cfg: StreamConfig,
}

#[expect(unused_variables, clippy::todo, clippy::unused_self, reason = "signatures first")]
impl StreamRx {
    /// `cfg` is *our* ring, and what both agreed on.
    #[must_use]
    pub fn new(cfg: StreamConfig) -> Self {
        Self { cfg }
    }
    /// Queues a receive.
    pub fn post_recv(&mut self, recv: RecvPost) {
        todo!()
    }
    /// Cancels; false if there is no such operation.
    pub fn cancel(&mut self, op: OpId) -> bool {
        todo!()
    }
    /// Cancels every receive.
    pub fn cancel_all(&mut self) {
        todo!()
    }
    /// DATA came. Poll its actions out before the next message is handled.
    pub fn handle_data(&mut self, data: Data) -> Result<(), StreamViolation> {
        todo!()
    }
    /// WITHDRAWN came.
    pub fn handle_withdrawn(&mut self) -> Result<(), StreamViolation> {
        todo!()
    }
    /// FIN came.
    pub fn handle_fin(&mut self) -> Result<(), StreamViolation> {
        todo!()
    }
    /// RING_REQ came.
    pub fn handle_ring_request(&mut self) -> Result<(), StreamViolation> {
        todo!()
    }
    /// RING_RELEASE came.
    pub fn handle_ring_release(&mut self) -> Result<(), StreamViolation> {
        todo!()
    }
    /// Nothing has come for long: acknowledge all that is freed (so that the peer
    /// sees an empty ring and can release it), and drop a ring of stashed inline data.
    pub fn idle(&mut self) {
        todo!()
    }
    /// The next thing to do.
    pub fn poll(&mut self) -> Option<RxAction> {
        todo!()
    }
    /// Ring bytes freed since the last call, for the next message of any kind.
    pub fn take_freed(&mut self) -> u32 {
        todo!()
    }
    /// Bytes that a receive would get at once.
    #[must_use]
    pub fn buffered(&self) -> u32 {
        todo!()
    }
    /// A receive would not wait: there are bytes, or the end.
    #[must_use]
    pub fn readable(&self) -> bool {
        todo!()
    }
    /// FIN has come and every byte is delivered.
    #[must_use]
    pub fn at_eof(&self) -> bool {
        todo!()
    }
    /// Operations that have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        todo!()
    }
    /// The connection is gone: every operation with the bytes it holds. A Retract is
    /// queued for each one that was advertised: poll until there is nothing, then
    /// end these.
    pub fn abort(&mut self) -> Vec<(OpId, u64)> {
        todo!()
    }
}
