//! Random sizes by seed, and bytes that tell where they belong.

/// A small generator (SplitMix64): one seed replays one test.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that starts from `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `least` to `most`.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        let span = (most - least) as u64 + 1;
        least + usize::try_from(self.word() % span).expect("smaller than a usize")
    }

    /// A size from 1 to `most`, small ones as likely as large ones.
    pub fn size(&mut self, most: usize) -> usize {
        let bits = usize::BITS - most.leading_zeros();
        let bits = self.between(0, bits as usize);
        self.between(1, (1usize << bits).clamp(1, most))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.word().is_multiple_of(n)
    }
}

fn word(seed: u64, index: u64) -> [u8; 8] {
    Rng::new(seed ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)).word().to_le_bytes()
}

/// The bytes of the stream named `seed` from `offset` on.
pub fn pattern(seed: u64, offset: usize, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let mut at = offset;
    while out.len() < len {
        let w = word(seed, (at / 8) as u64);
        out.extend_from_slice(&w[at % 8..]);
        at += 8 - at % 8;
    }
    out.truncate(len);
    out
}

/// Panics unless `bytes` are those of the stream `seed` from `offset` on. It compares piece by piece:
/// in a guest, memory that is touched for the first time is dear.
pub fn check(seed: u64, offset: usize, bytes: &[u8]) {
    const PIECE: usize = 64 << 10;
    for (piece, at) in bytes.chunks(PIECE).zip((offset..).step_by(PIECE)) {
        let want = pattern(seed, at, piece.len());
        if let Some(i) = want.iter().zip(piece).position(|(a, b)| a != b) {
            panic!(
                "stream {seed}: byte {} is {:#04x} and not {:#04x} (in a piece of {} bytes at {offset})",
                at + i,
                piece[i],
                want[i],
                bytes.len()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_however_it_is_cut() {
        let all = pattern(7, 3, 100);
        assert_eq!(&all[13..40], pattern(7, 16, 27));
        check(7, 3, &all);
        assert_ne!(all, pattern(8, 3, 100));
    }

    fn check_with_one_wrong(len: usize, wrong: usize) {
        let mut all = pattern(1, 10, len);
        all[wrong] ^= 1;
        check(1, 10, &all);
    }

    #[test]
    #[should_panic(expected = "byte 20 is")]
    fn a_wrong_byte_is_named() {
        check_with_one_wrong(50, 10);
    }

    #[test]
    #[should_panic(expected = "byte 70010 is")]
    fn a_wrong_byte_is_named_wherever_it_is() {
        check_with_one_wrong(200_000, 70_000);
    }
}
