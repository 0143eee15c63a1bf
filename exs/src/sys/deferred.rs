//! Writes that a thread makes after it has released a driver.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use super::{IoVec, SharedStream, TcpSendFlags, send};

thread_local! {
    /// The memory of the thread's last write, for its next one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A write that the doorbell owes. The thread that rang makes it when it no longer has the RNIC
/// (`Rnic::defer_flush`).
#[derive(Debug)]
pub struct DeferredWrite {
    link: u32,
    stream: Arc<SharedStream>,
    bytes: Vec<u8>,
    flags: TcpSendFlags,
}

/// The end of a write for which the thread must come back to the RNIC
/// (`Rnic::end_deferred`).
#[derive(Debug)]
pub struct DeferredEnd {
    /// The number by which the RNIC knows the connection.
    pub link: u32,
    /// The flags of the write.
    pub flags: TcpSendFlags,
    /// The number of bytes that have left, or the error.
    pub result: io::Result<usize>,
    /// The bytes of the write.
    pub bytes: Vec<u8>,
}

impl DeferredWrite {
    /// A write of the bytes that `fill` gives, for the connection that the RNIC knows by the number
    /// `link`. The stream is lent until the write ends. None: `fill` returned None.
    pub fn new(
        link: u32,
        stream: &Arc<SharedStream>,
        fill: impl FnOnce(&mut Vec<u8>) -> Option<TcpSendFlags>,
    ) -> Option<DeferredWrite> {
        let mut bytes = SPARE.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        match fill(&mut bytes) {
            Some(flags) => {
                stream.lend();
                Some(DeferredWrite { link, stream: Arc::clone(stream), bytes, flags })
            }
            None => {
                keep(bytes);
                None
            }
        }
    }

    /// Writes. None: all bytes have left, and the RNIC has nothing to write behind them.
    pub fn run(self) -> Option<DeferredEnd> {
        let DeferredWrite { link, stream, bytes, flags } = self;
        let result = send(&*stream, &[IoVec::new(&bytes)], flags);
        if matches!(result, Ok(n) if n == bytes.len()) && stream.end_loan() {
            keep(bytes);
            return None;
        }
        Some(DeferredEnd { link, flags, result, bytes })
    }
}

fn keep(bytes: Vec<u8>) {
    let _ = SPARE.try_with(|spare| spare.set(bytes));
}
