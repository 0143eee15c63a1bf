//! Reading back: the only proof that is taken for bytes of an earlier run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::hash::{ChunkHasher, Cv, Layout};

/// Called for each piece that was read; false ends the reading.
pub(crate) type Alive<'a> = &'a mut dyn FnMut() -> bool;

const PIECE: usize = 1 << 20;

/// Reads chunks of one file.
pub(crate) struct Reader<'a> {
    file: &'a File,
    layout: Layout,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a File, layout: Layout) -> Reader<'a> {
        let longest = usize::try_from(layout.size).unwrap_or(PIECE).min(PIECE);
        Reader { file, layout, buffer: vec![0; longest] }
    }

    /// The chaining value of the bytes that are there now. A file that is too short is an
    /// error of the kind `UnexpectedEof`.
    pub(crate) fn chunk(&mut self, index: u32, alive: Alive<'_>) -> io::Result<Cv> {
        let mut hasher = ChunkHasher::new(self.layout, index, true);
        let (mut at, end) = (self.layout.start(index), self.layout.end(index));
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(PIECE);
            let n = left.min(self.buffer.len());
            let piece = &mut self.buffer[..n];
            self.file.read_exact_at(piece, at)?;
            hasher.update(piece);
            at += n as u64;
            if !alive() {
                return Err(io::Error::other("it was interrupted while the file was read back"));
            }
        }
        Ok(hasher.finish())
    }

    /// All of the file.
    pub(crate) fn all(&mut self, alive: Alive<'_>) -> io::Result<Vec<(u32, Cv)>> {
        (0..self.layout.count()).map(|i| Ok((i, self.chunk(i, alive)?))).collect()
    }
}
