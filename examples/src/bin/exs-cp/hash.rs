//! BLAKE3 in pieces: one chaining value per chunk, one hash per file.
//!
//! BLAKE3 is a binary tree over 1,024-byte leaves. A chunk whose length is a
//! power of two and which begins at a multiple of it is a whole subtree, so
//! its *chaining value* is all that the file's hash needs of it. That is what
//! makes a transfer continue without reading again what has arrived: the
//! journal keeps the chaining values. The result is the plain BLAKE3 hash of
//! the file (what `b3sum` prints), not a hash of our own invention.

use blake3::Hasher;
use blake3::hazmat::{self, HasherExt, Mode};

/// A chunk's chaining value, or the hash of a file that is a single chunk.
pub(crate) type Cv = [u8; 32];

/// The smallest chunk: what an interruption may cost at most.
pub(crate) const MIN_CHUNK: u64 = 4 << 20;
/// The most chunks a file has; larger files get larger chunks. This bounds
/// the journal, and the frames that tell what is there already.
pub(crate) const MAX_CHUNKS: u64 = 1 << 14;
/// The largest file: beyond it nothing could be a Linux file.
pub(crate) const MAX_FILE: u64 = 1 << 62;

/// How a file of a certain size is cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u64,
    pub(crate) chunk: u64,
}

impl Layout {
    pub(crate) fn of(size: u64) -> Layout {
        let size = size.min(MAX_FILE);
        let chunk = size.div_ceil(MAX_CHUNKS).next_power_of_two().max(MIN_CHUNK);
        Layout { size, chunk }
    }
    /// Number of chunks; an empty file has none.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.size.div_ceil(self.chunk)).unwrap_or(u32::MAX)
    }
    pub(crate) fn start(&self, index: u32) -> u64 {
        u64::from(index) * self.chunk
    }
    pub(crate) fn end(&self, index: u32) -> u64 {
        (self.start(index) + self.chunk).min(self.size)
    }
    pub(crate) fn len(&self, index: u32) -> u64 {
        self.end(index).saturating_sub(self.start(index))
    }
}

/// Hashes one chunk as it passes by; does nothing when checks are off.
pub(crate) struct ChunkHasher {
    hasher: Option<Hasher>,
    root: bool,
}

impl ChunkHasher {
    pub(crate) fn new(layout: Layout, index: u32, verify: bool) -> Self {
        let hasher = verify.then(|| {
            let mut h = Hasher::new();
            h.set_input_offset(layout.start(index));
            h
        });
        ChunkHasher { hasher, root: layout.count() <= 1 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(h) = &mut self.hasher {
            h.update(bytes);
        }
    }

    /// A hole reads as zeros, and is hashed as what it reads as.
    pub(crate) fn zeros(&mut self, mut len: u64) {
        static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
        if self.hasher.is_none() {
            return;
        }
        while len > 0 {
            let n = usize::try_from(len).map_or(ZEROS.len(), |l| l.min(ZEROS.len()));
            self.update(&ZEROS[..n]);
            len -= n as u64;
        }
    }

    pub(crate) fn finish(&self) -> Cv {
        match &self.hasher {
            None => [0; 32],
            // BLAKE3 knows no empty subtree, and no chunk is empty.
            Some(h) if h.count() == 0 => [0; 32],
            Some(h) if self.root => *h.finalize().as_bytes(),
            Some(h) => h.finalize_non_root(),
        }
    }
}

/// The file's BLAKE3 hash from the chaining values of all of its chunks.
pub(crate) fn file_hash(cvs: &[Cv]) -> Cv {
    match cvs {
        [] => *blake3::hash(b"").as_bytes(),
        [one] => *one,
        many => {
            let (left, right) = many.split_at(left_count(many.len()));
            *hazmat::merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

/// The left subtree is the largest power of two that leaves something right.
fn left_count(n: usize) -> usize {
    n.next_power_of_two() / 2
}

/// Depth is at most log2 of MAX_CHUNKS.
fn subtree(cvs: &[Cv]) -> Cv {
    match cvs {
        [one] => *one,
        many => {
            let (left, right) = many.split_at(left_count(many.len()));
            hazmat::merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(data: &[u8], chunk: u64) -> Cv {
        let layout = Layout { size: data.len() as u64, chunk };
        let cvs: Vec<Cv> = (0..layout.count())
            .map(|i| {
                let mut h = ChunkHasher::new(layout, i, true);
                let [a, b] = [layout.start(i), layout.end(i)].map(|n| usize::try_from(n).unwrap());
                for piece in data[a..b].chunks(700) {
                    h.update(piece);
                }
                h.finish()
            })
            .collect();
        file_hash(&cvs)
    }

    /// Against the plain hash, around every edge of the tree.
    #[test]
    fn pieces_make_the_plain_hash() {
        let data: Vec<u8> = (0..80_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for chunk in [1024u64, 4096] {
            for n in [0, 1, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 8192, 12_289, 20_480, 65_537]
            {
                let want = *blake3::hash(&data[..n]).as_bytes();
                assert_eq!(pieces(&data[..n], chunk), want, "length {n}, chunk {chunk}");
            }
        }
    }

    #[test]
    fn zeros_hash_as_zeros() {
        let layout = Layout::of(3 << 20);
        let mut h = ChunkHasher::new(layout, 0, true);
        h.zeros(3 << 20);
        assert_eq!(h.finish(), *blake3::hash(&vec![0; 3 << 20]).as_bytes());
    }

    #[test]
    fn chunks_grow_with_the_file_and_stay_few() {
        assert_eq!(Layout::of(0).count(), 0);
        assert_eq!(Layout::of(1).count(), 1);
        assert_eq!(Layout::of((4 << 20) + 1).count(), 2);
        for size in [5 << 30, 64 << 30, (64 << 30) + 1, 1 << 42, u64::MAX] {
            let l = Layout::of(size);
            assert!(u64::from(l.count()) <= MAX_CHUNKS && l.chunk.is_power_of_two());
            assert_eq!(l.end(l.count() - 1), l.size);
        }
    }
}
