//! Random numbers from the kernel.

use std::io::{self, Read};

/// Bytes fetched from the kernel at a time. Keys are drawn often, and a system call for each four
/// bytes would show in measurements.
const BUFFER: usize = 4096;

/// The source of keys.
pub struct RandomSource(Generator);

enum Generator {
    /// The kernel's generator, through a buffer.
    Kernel { buffer: Box<[u8; BUFFER]>, used: usize },
    /// A fixed sequence (splitmix64), for tests that must replay.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "simulations replay it")
    )]
    Seeded(u64),
}

impl RandomSource {
    /// Makes a source from the kernel's cryptographic generator.
    pub fn kernel() -> io::Result<RandomSource> {
        let mut buffer = Box::new([0; BUFFER]);
        fill(&mut buffer[..])?;
        Ok(RandomSource(Generator::Kernel { buffer, used: 0 }))
    }

    /// Makes a sequence that `seed` determines. For tests only, because a peer could guess the
    /// keys.
    #[cfg(any(test, feature = "internals"))]
    pub fn seeded(seed: u64) -> RandomSource {
        RandomSource(Generator::Seeded(seed))
    }

    /// Returns the next number.
    ///
    /// # Panics
    /// If the kernel's generator fails after it has worked before: a predictable key would be
    /// worse than none.
    pub fn next_u32(&mut self) -> u32 {
        match &mut self.0 {
            Generator::Seeded(state) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or_default()
            }
            Generator::Kernel { buffer, used } => {
                if *used + 4 > BUFFER {
                    fill(&mut buffer[..]).expect("the kernel's random number generator");
                    *used = 0;
                }
                let mut word = [0; 4];
                word.copy_from_slice(&buffer[*used..*used + 4]);
                // Numbers that were given out must not remain in memory.
                buffer[*used..*used + 4].fill(0);
                *used += 4;
                u32::from_ne_bytes(word)
            }
        }
    }
}

/// Fills `out` by getrandom(2), or, where a sandbox forbids that, from
/// `/dev/urandom`.
fn fill(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: the pointer and length are those of an exclusive slice.
        let n = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(n) {
            Ok(n) => done += n,
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return std::fs::File::open("/dev/urandom")?.read_exact(&mut out[done..]);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_kernel_source_does_not_repeat_across_refills() {
        let mut source = RandomSource::kernel().unwrap();
        let draws: HashSet<u32> = (0..4 * BUFFER).map(|_| source.next_u32()).collect();
        // 16384 draws of 32 bits have about 0.03 collisions on average.
        assert!(draws.len() > 4 * BUFFER - 10, "{} different draws", draws.len());
    }

    #[test]
    fn a_seed_replays() {
        let (mut a, mut b) = (RandomSource::seeded(7), RandomSource::seeded(7));
        let mut c = RandomSource::seeded(8);
        assert_eq!(a.next_u32(), b.next_u32());
        assert_ne!(a.next_u32(), c.next_u32());
    }
}
