//! Received bytes that stay in their buffer until the last borrower has let go.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::pipe::Buffer;

/// A received buffer. The last borrower that drops it sends it home, to receive more.
pub(crate) struct Loan {
    buffer: Option<Buffer>,
    home: Sender<Buffer>,
}

impl Loan {
    pub(crate) fn new(buffer: Buffer, home: &Sender<Buffer>) -> Arc<Loan> {
        Arc::new(Loan { buffer: Some(buffer), home: home.clone() })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // Fails only if the connection is gone.
            let _ = self.home.send(buffer);
        }
    }
}

/// Some of the bytes that came, to be kept for as long as they are needed.
pub(crate) enum Lent {
    Placed(Arc<Loan>, Range<usize>),
    Copied(Vec<u8>),
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Lent::Placed(loan, range) => &loan.bytes()[range.clone()],
            Lent::Copied(bytes) => bytes,
        }
    }
}
