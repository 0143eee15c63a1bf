//! The receives that follow the first in one ADVERT.

use super::{AdvertRepr, FURTHER, MessageError};

impl AdvertRepr {
    /// Parses the receive that follows this one in the stream. Its bytes behind an ADVERT hold
    /// its address, key and length; it shares all else with this one.
    pub fn parse_further(&self, bytes: &[u8; FURTHER]) -> Result<AdvertRepr, MessageError> {
        let [a, b, c, d, e, f, g, h, key @ .., l, m, n, o] = *bytes;
        let addr = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let (key, len) = (u32::from_be_bytes(key), u32::from_be_bytes([l, m, n, o]));
        if addr.checked_add(len.into()).is_none() {
            return Err(MessageError::Wraps { addr, len: len.into() });
        }
        Ok(AdvertRepr { seq: self.end(), addr, key, len, ..*self })
    }

    /// Returns the stream position behind this receive.
    fn end(&self) -> u64 {
        self.seq.wrapping_add(self.len.into())
    }

    /// Encodes `next` behind this one. None if it does not follow it or differs in anything else.
    pub fn emit_further(&self, next: &AdvertRepr) -> Option<[u8; FURTHER]> {
        let AdvertRepr { addr, key, len, .. } = *next;
        if *next != (AdvertRepr { seq: self.end(), addr, key, len, ..*self }) {
            return None;
        }
        let mut out = [0; FURTHER];
        out[..8].copy_from_slice(&addr.to_be_bytes());
        out[8..12].copy_from_slice(&key.to_be_bytes());
        out[12..].copy_from_slice(&len.to_be_bytes());
        Some(out)
    }
}
