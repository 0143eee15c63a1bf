//! The checks of an atomic operation that are the same on every RNIC.

use super::{Caps, RnicError, SendWr};
use crate::mem::{Atomics, WORD};

/// Checks a WR that does an atomic operation at `raddr`: what a device would refuse by the end of
/// the connection, or not look at.
///
/// # Errors
/// The RNIC has no such operations, the WR has data to send, its local memory is not one word, or
/// the address is not aligned.
pub fn check_atomic(caps: &Caps, raddr: u64, wr: &SendWr<'_>) -> Result<(), RnicError> {
    if caps.atomics == Atomics::None {
        return Err(RnicError::Unsupported("atomic operations"));
    }
    if !wr.head.is_empty() || wr.inline || wr.file.is_some() {
        return Err(RnicError::Unsupported("data to send along with an atomic operation"));
    }
    if wr.sges.len() != 1 {
        let (asked, limit) = (wr.sges.len() as u64, 1);
        return Err(RnicError::Limit { what: "segments of an atomic operation", asked, limit });
    }
    if wr.sges[0].len != WORD as u64 {
        let (asked, limit) = (wr.sges[0].len, WORD as u64);
        return Err(RnicError::Limit { what: "bytes of an atomic operation", asked, limit });
    }
    if !raddr.is_multiple_of(WORD as u64) {
        return Err(RnicError::Unsupported("atomic operations at addresses that are not aligned"));
    }
    Ok(())
}
