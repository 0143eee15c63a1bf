//! F4: the sans-I/O iWARP engine.
#![allow(unused_variables, missing_docs, clippy::unimplemented)]
mod types;
pub use types::*;

use std::fs::File;
use crate::mem::{Key, KeyTable, Segment};
use crate::rnic::{Disconnect, QpState, RnicError, Wc};

/// Scratch for outgoing batches, shared by all connections of a driver: an engine borrows one while it has
/// bytes on their way and gives it back when they have left, so that idle connections hold none.
#[derive(Default)]
pub struct TxPool {}

/// A piece of a gathered write.
pub enum Chunk<'a> {
    /// Headers, trailers, inline data, padding.
    Bytes(&'a [u8]),
    /// Payload where the user has it.
    Memory { seg: &'a Segment, off: usize, len: usize },
}

/// One gathered write.
pub struct Gather<'a> { b: &'a [u8], 
    /// More bytes follow at once (a file step): write with MSG_MORE.
    pub more: bool }
/// At most this many chunks are in one `Gather`.
pub const MAX_CHUNKS: usize = 128;
impl<'a> Gather<'a> {
    /// Calls f for every piece, in order (at most [`MAX_CHUNKS`]).
    pub fn for_each(&self, f: &mut dyn FnMut(Chunk<'a>)) { unimplemented!() }
    /// Bytes in all.
    pub fn len(&self) -> usize { unimplemented!() }
}

/// What the driver is to do next. Do it, report with handle_sent / handle_file_sent, call poll_tx again until Idle (or EAGAIN).
pub enum TxStep<'a> {
    /// Nothing to send now.
    Idle,
    /// Write this with one sendmsg; then handle_sent(n).
    Gather(Gather<'a>),
    /// sendfile this; then handle_file_sent(n), n = 0 if the file ended; handle_file_error(errno) if reading failed.
    File { file: &'a File, offset: u64, len: usize, 
        /// more bytes follow
        more: bool },
    /// shutdown(SHUT_WR). Returned once.
    Shutdown,
}

pub struct Engine {}
impl Engine {
    pub fn initiator(cfg: Config, private_data: &[u8]) -> Result<Engine, RnicError> { unimplemented!() }
    /// Waits for a request. Its Config comes with `accept`.
    pub fn responder() -> Engine { unimplemented!() }
    pub fn accept(&mut self, cfg: Config, private_data: &[u8]) -> Result<(), RnicError> { unimplemented!() }
    /// Queues the refusal; then poll_tx until Shutdown, and wait for `closed()`.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), RnicError> { unimplemented!() }
    /// Rts only (else State). QueueFull, Limit, Unsupported (WriteImm; file with CRC on).
    pub fn post_send(&mut self, wr: TxWr) -> Result<(), RnicError> { unimplemented!() }
    /// Any time before Closing (responder: after accept, whose Config bounds it).
    pub fn post_recv(&mut self, buf: RxBuf) -> Result<(), RnicError> { unimplemented!() }
    pub fn poll_tx<'a>(&'a mut self, pool: &mut TxPool) -> TxStep<'a> { unimplemented!() }
    pub fn handle_sent(&mut self, bytes: usize) { unimplemented!() }
    pub fn handle_file_sent(&mut self, bytes: usize) { unimplemented!() }
    pub fn handle_file_error(&mut self, errno: i32) { unimplemented!() }
    /// Where the rest of the payload of the FPDU under way goes. Nothing while a header is awaited.
    pub fn rx_direct(&self, visit: &mut dyn FnMut(&Segment, usize, usize)) { unimplemented!() }
    /// How many lookahead bytes are useful beside rx_direct without copying much: trailer of this FPDU and the next header.
    /// usize::MAX while a header is awaited (read as much as you have room for).
    pub fn rx_hint(&self) -> usize { unimplemented!() }
    /// `direct` bytes came by rx_direct, then `lookahead`. Keys are mutable because a SEND WITH INVALIDATE removes a window's key.
    pub fn handle_received(&mut self, direct: usize, lookahead: &[u8], keys: &mut KeyTable, srq: Option<&mut dyn RxSource>) -> RxResult { unimplemented!() }
    pub fn handle_eof(&mut self) { unimplemented!() }
    pub fn handle_broken(&mut self, errno: i32) { unimplemented!() }
    /// Orderly: what is posted leaves first, then TxStep::Shutdown, then Disconnected when the peer's EOF came (bound it with a timer, then Abort).
    /// Abort: Disconnected at once.
    pub fn disconnect(&mut self, how: Disconnect) { unimplemented!() }
    /// Moves completions out. Drain before poll_event.
    pub fn drain_wcs(&mut self, out: &mut Vec<Wc>) { unimplemented!() }
    pub fn poll_event(&mut self) -> Option<Event> { unimplemented!() }
    /// A window was closed (remove it from the KeyTable first).
    pub fn key_revoked(&mut self, key: Key) { unimplemented!() }
    /// An MR was deregistered: as key_revoked, and also local WRs that use its lkey fail.
    pub fn mr_revoked(&mut self, key: Key) { unimplemented!() }
    pub fn state(&self) -> QpState { unimplemented!() }
    /// Nothing more to send or receive: close the socket. (After Failed, Rejected, Disconnected, or a reject that has left.)
    pub fn closed(&self) -> bool { unimplemented!() }
    /// CRC32C was negotiated.
    pub fn crc(&self) -> bool { unimplemented!() }
    /// Everything received up to here forms whole FPDUs (for idle detection).
    pub fn outstanding(&self) -> usize { unimplemented!() }
    /// Gives back spare memory of empty queues; for connections that fall idle.
    pub fn trim(&mut self) { unimplemented!() }
}
