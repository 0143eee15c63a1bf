//! F5: one queue pair as one EXS connection, without I/O.

mod error;
mod types;

pub use error::{OpError, Refusal, SessionError, Violation};
pub use types::{
    Announce, Buf, Counters, Done, IoVec, Port, RecvOpts, SessionConfig, Source,
};

use crate::ids::OpId;
use crate::mem::{Access, Key, Segment};
use crate::rnic::{DisconnectCause, RnicError, Wc};
use crate::time::Time;
use std::time::Duration;

/// A post that was refused: why, and the thing that was to be moved.
pub type PostError<T> = (OpError, T);

/// One connection.
#[derive(Debug)]
pub struct Session {
    cfg: SessionConfig,
}

#[expect(unused_variables, clippy::todo, clippy::unused_self, reason = "signatures first")]
impl Session {
    /// The side that connects.
    pub fn initiator(cfg: SessionConfig) -> Session {
        todo!()
    }
    /// Private data for `connect`.
    pub fn hello(&self) -> Vec<u8> {
        todo!()
    }
    /// The side that accepts: answers the private data of a connection request
    /// with the private data for `accept`, or for `reject`.
    pub fn responder(cfg: SessionConfig, theirs: &[u8]) -> Result<(Session, Vec<u8>), Refusal> {
        todo!()
    }
    /// What the private data of a rejection say.
    pub fn refusal(private_data: &[u8]) -> SessionError {
        todo!()
    }
    /// The QP is connected. `private_data` is the acceptor's (initiator side only),
    /// `ord` the READs that may be outstanding.
    pub fn handle_established(
        &mut self,
        now: Time,
        private_data: &[u8],
        ord: u32,
    ) -> Result<(), SessionError> {
        todo!()
    }
    /// Posts a send.
    pub fn post_send(&mut self, now: Time, op: OpId, source: Source) -> Result<(), PostError<Source>> {
        todo!()
    }
    /// Posts a receive.
    pub fn post_recv(
        &mut self,
        now: Time,
        op: OpId,
        iov: IoVec,
        opts: RecvOpts,
    ) -> Result<(), PostError<IoVec>> {
        todo!()
    }
    /// Posts a READ of the peer's memory.
    pub fn post_read(&mut self, now: Time, op: OpId, raddr: u64, rkey: Key, sink: Buf) -> Result<(), PostError<Buf>> {
        todo!()
    }
    /// Posts a WRITE to the peer's memory. With `confirm` it is done only when the
    /// bytes are there.
    pub fn post_write(
        &mut self,
        now: Time,
        op: OpId,
        raddr: u64,
        rkey: Key,
        iov: IoVec,
        confirm: bool,
    ) -> Result<(), PostError<IoVec>> {
        todo!()
    }
    /// Opens memory to the peer's READs and WRITEs.
    pub fn export(&mut self, port: &mut dyn Port, buf: &Buf, access: Access) -> Result<Key, RnicError> {
        todo!()
    }
    /// Closes it again; false if the key is not an export of this connection.
    pub fn revoke(&mut self, port: &mut dyn Port, key: Key) -> bool {
        todo!()
    }
    /// Ends our direction after all sends posted.
    pub fn shutdown_send(&mut self, now: Time, op: OpId) -> Result<(), OpError> {
        todo!()
    }
    /// Ends the peer's direction for the local user: receives meet the end.
    pub fn shutdown_recv(&mut self, now: Time) {
        todo!()
    }
    /// Closes gracefully within `linger`, else abruptly.
    pub fn close(&mut self, now: Time, op: OpId, linger: Duration) {
        todo!()
    }
    /// Ends everything at once.
    pub fn abort(&mut self, port: &mut dyn Port, error: OpError) {
        todo!()
    }
    /// Cancels an operation; false if there is no such operation.
    pub fn cancel(&mut self, now: Time, op: OpId) -> bool {
        todo!()
    }
    /// A send WR has completed. (Receives come by `handle_message`.)
    pub fn handle_wc(&mut self, now: Time, wc: &Wc) {
        todo!()
    }
    /// A message is in `slot` (exactly the received bytes). Afterwards the slot is
    /// free and must be posted again before the next `drive`, which tells the peer.
    pub fn handle_message(&mut self, now: Time, port: &mut dyn Port, slot: &Segment) {
        todo!()
    }
    /// A WRITE WITH IMMEDIATE has consumed a slot, which must be posted again
    /// before the next `drive`.
    pub fn handle_write_imm(&mut self, now: Time, imm: u32) {
        todo!()
    }
    /// The QP is disconnected (or was never connected). Take all completions out
    /// of its CQs before.
    pub fn handle_disconnected(&mut self, now: Time, cause: DisconnectCause) {
        todo!()
    }
    /// `next_timeout` has come.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!()
    }
    /// Does all that can be done; call it after each other call. True if WRs were
    /// posted: flush now if `urgent`, else soon.
    pub fn drive(&mut self, now: Time, port: &mut dyn Port) -> bool {
        todo!()
    }
    /// What the last `drive` posted should leave now.
    pub fn urgent(&self) -> bool {
        todo!()
    }
    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        todo!()
    }
    /// When `handle_timeout` must be called at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        todo!()
    }
    /// A receive would not wait.
    pub fn readable(&self) -> bool {
        todo!()
    }
    /// A send would move bytes at once, or fail at once.
    pub fn writable(&self) -> bool {
        todo!()
    }
    /// The handshake is over and nothing has ended the connection.
    pub fn is_connected(&self) -> bool {
        todo!()
    }
    /// Nothing is outstanding, no window is open and no memory of the port's is
    /// held: the QP may be destroyed.
    pub fn is_finished(&self) -> bool {
        todo!()
    }
    /// Figures.
    pub fn counters(&self) -> &Counters {
        todo!()
    }
}
