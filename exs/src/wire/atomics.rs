//! Atomic operations of RDMAP: their two messages (RFC 7306).
//!
//! ```text
//! atomic request, 52 bytes:          atomic response, 12 bytes:
//! | reserved       28 | opcode 4 |   | request identifier         32 |
//! | request identifier        32 |   | original value             64 |
//! | remote STag               32 |
//! | remote TO                 64 |
//! | add or swap data          64 |
//! | add or swap mask          64 |
//! | compare data              64 |
//! | compare mask              64 |
//! ```

use super::rdmap::RdmapError;

/// Bytes of an atomic request after the DDP header.
pub const REQUEST_LEN: usize = 52;
/// Bytes of an atomic response after the DDP header.
pub const RESPONSE_LEN: usize = 12;

/// Atomic operations (RFC 7306).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCode {
    /// FetchAdd.
    FetchAdd = 0,
    /// Swap.
    Swap = 1,
    /// CmpSwap.
    CompareSwap = 2,
}

impl AtomicCode {
    fn parse(word: u32) -> Result<AtomicCode, RdmapError> {
        // The reserved bits are not checked.
        match word & 0xf {
            0 => Ok(AtomicCode::FetchAdd),
            1 => Ok(AtomicCode::Swap),
            2 => Ok(AtomicCode::CompareSwap),
            other => Err(RdmapError::Atomic(other)),
        }
    }
}

/// An atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation.
    pub code: AtomicCode,
    /// The requester's number, which the response repeats.
    pub id: u32,
    /// The responder's key.
    pub stag: u32,
    /// The responder's address: a multiple of 8.
    pub to: u64,
    /// The value to add, or to store.
    pub data: u64,
    /// FetchAdd: the highest bit of each field that adds without a carry into the next one; 0 is
    /// one field of 64 bits. The others: the bits to store.
    pub mask: u64,
    /// CmpSwap: the value that is expected.
    pub compare: u64,
    /// CmpSwap: the bits of it that count.
    pub compare_mask: u64,
}

fn be64(bytes: &[u8; REQUEST_LEN], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn be32(bytes: &[u8; REQUEST_LEN], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

impl AtomicRequest {
    /// Parses a header. `bytes` must be exactly as long as it.
    pub fn parse(bytes: &[u8]) -> Result<AtomicRequest, RdmapError> {
        let bytes: &[u8; REQUEST_LEN] = bytes
            .try_into()
            .map_err(|_| RdmapError::Length { len: bytes.len(), need: REQUEST_LEN })?;
        Ok(AtomicRequest {
            code: AtomicCode::parse(be32(bytes, 0))?,
            id: be32(bytes, 4),
            stag: be32(bytes, 8),
            to: be64(bytes, 12),
            data: be64(bytes, 20),
            mask: be64(bytes, 28),
            compare: be64(bytes, 36),
            compare_mask: be64(bytes, 44),
        })
    }

    /// Returns the bytes of the header.
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        out[3] = self.code as u8;
        out[4..8].copy_from_slice(&self.id.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.to_be_bytes());
        let words = [self.to, self.data, self.mask, self.compare, self.compare_mask];
        for (to, word) in out[12..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Returns the value to store in the place of `old`. None: the word stays as it is.
    pub fn apply(&self, old: u64) -> Option<u64> {
        let (data, mask) = (self.data, self.mask);
        match self.code {
            // The bits of the mask take no part in the sum, so no carry leaves them. Each is then
            // the sum of both operands' bits and of the carry that has reached it.
            AtomicCode::FetchAdd => {
                let below = (old & !mask).wrapping_add(data & !mask);
                Some(below ^ ((old ^ data) & mask))
            }
            AtomicCode::Swap => Some(old & !mask | data & mask),
            AtomicCode::CompareSwap => {
                ((old ^ self.compare) & self.compare_mask == 0).then_some(old & !mask | data & mask)
            }
        }
    }
}

/// An atomic response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The number of the request.
    pub id: u32,
    /// The value before the operation.
    pub old: u64,
}

impl AtomicResponse {
    /// Parses a header. `bytes` must be exactly as long as it.
    pub fn parse(bytes: &[u8]) -> Result<AtomicResponse, RdmapError> {
        let bytes: &[u8; RESPONSE_LEN] = bytes
            .try_into()
            .map_err(|_| RdmapError::Length { len: bytes.len(), need: RESPONSE_LEN })?;
        Ok(AtomicResponse {
            id: u32::from_be_bytes(std::array::from_fn(|i| bytes[i])),
            old: u64::from_be_bytes(std::array::from_fn(|i| bytes[4 + i])),
        })
    }

    /// Returns the bytes of the header.
    pub fn emit(&self) -> [u8; RESPONSE_LEN] {
        let mut out = [0; RESPONSE_LEN];
        out[..4].copy_from_slice(&self.id.to_be_bytes());
        out[4..].copy_from_slice(&self.old.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: AtomicRequest = AtomicRequest {
        code: AtomicCode::CompareSwap,
        id: 0x0102_0304,
        stag: 0x1112_1314,
        to: 0x2122_2324_2526_2728,
        data: 0x3132_3334_3536_3738,
        mask: 0x4142_4344_4546_4748,
        compare: 0x5152_5354_5556_5758,
        compare_mask: 0x6162_6364_6566_6768,
    };

    #[test]
    fn request_vector() {
        let bytes = [
            0, 0, 0, 2, 0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
            0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x41, 0x42,
            0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
            0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
        ];
        assert_eq!(REQUEST.emit(), bytes);
        assert_eq!(AtomicRequest::parse(&bytes), Ok(REQUEST));
        assert_eq!(
            AtomicRequest::parse(&bytes[1..]),
            Err(RdmapError::Length { len: 51, need: 52 })
        );
        let mut other = bytes;
        (other[0], other[3]) = (0xff, 0xf0);
        let fetch_add = AtomicRequest { code: AtomicCode::FetchAdd, ..REQUEST };
        assert_eq!(AtomicRequest::parse(&other), Ok(fetch_add), "reserved bits are ignored");
        assert_eq!(fetch_add.emit()[..4], [0; 4]);
        other[3] = 3;
        assert_eq!(AtomicRequest::parse(&other), Err(RdmapError::Atomic(3)));
    }

    #[test]
    fn response_vector() {
        let bytes = [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        let response = AtomicResponse { id: 0x0102_0304, old: 0x1112_1314_1516_1718 };
        assert_eq!(response.emit(), bytes);
        assert_eq!(AtomicResponse::parse(&bytes), Ok(response));
        assert!(AtomicResponse::parse(&bytes[1..]).is_err());
    }

    #[test]
    fn masks_are_those_of_the_operation() {
        let of = |code, data, mask| AtomicRequest { code, data, mask, ..REQUEST };
        let add = of(AtomicCode::FetchAdd, 0x0001_00ff, 0x8000);
        assert_eq!(add.apply(0x0007_ff01), Some(0x0008_0000), "no carry leaves the lower field");
        assert_eq!(of(AtomicCode::FetchAdd, 2, 0).apply(u64::MAX), Some(1));
        assert_eq!(of(AtomicCode::FetchAdd, 2, 1 << 63).apply(u64::MAX), Some(1));
        assert_eq!(of(AtomicCode::Swap, 0x1234, 0x0ff0).apply(0xabcd), Some(0xa23d));
        let swap = AtomicRequest {
            compare: 0xff07,
            compare_mask: 0xf,
            ..of(AtomicCode::CompareSwap, 0x1234, 0xff00)
        };
        assert_eq!(swap.apply(0x00a7), Some(0x12a7));
        assert_eq!(swap.apply(0x00a8), None);
    }

    proptest! {
        /// Each field adds as if it were alone.
        #[test]
        fn fields_add_apart(old in any::<u64>(), data in any::<u64>(), cut in 1u32..64) {
            let mask = 1 << (cut - 1);
            let request = AtomicRequest { code: AtomicCode::FetchAdd, data, mask, ..REQUEST };
            let low = (1 << cut) - 1;
            let lower = old.wrapping_add(data) & low;
            let upper = (old >> cut).wrapping_add(data >> cut) << cut;
            prop_assert_eq!(request.apply(old), Some(upper | lower));
        }

        #[test]
        fn requests_round_trip(mut bytes in proptest::collection::vec(any::<u8>(), 52)) {
            bytes[..3].fill(0);
            bytes[3] %= 3;
            prop_assert_eq!(&AtomicRequest::parse(&bytes).unwrap().emit()[..], &bytes[..]);
        }
    }
}
