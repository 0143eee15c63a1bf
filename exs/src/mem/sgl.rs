//! Scatter/gather lists of checked segments, without allocation.

use super::Segment;

/// Most segments in a list. siw has the same limit.
pub const MAX_SGE: usize = 6;

/// Up to [`MAX_SGE`] segments that act as one stretch of bytes.
#[derive(Clone, Debug, Default)]
pub struct Sgl {
    segs: [Option<Segment>; MAX_SGE],
    count: usize,
    len: usize,
}

impl Sgl {
    /// Makes an empty list.
    pub fn new() -> Sgl {
        Sgl::default()
    }

    /// Appends a segment. Returns it as the error if the list is full. Drops empty segments,
    /// which address nothing.
    pub fn push(&mut self, seg: Segment) -> Result<(), Segment> {
        if seg.is_empty() {
            return Ok(());
        }
        if self.count == MAX_SGE {
            return Err(seg);
        }
        self.len += seg.len();
        self.segs[self.count] = Some(seg);
        self.count += 1;
        Ok(())
    }

    /// Returns the bytes in all segments together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the segments in order.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.segs[..self.count].iter().flatten()
    }

    /// Calls `f(segment, offset in it, bytes)` for each piece of the range of `len` bytes at
    /// `offset`. Panics if the range is not inside the list.
    pub fn for_range(&self, offset: usize, len: usize, mut f: impl FnMut(&Segment, usize, usize)) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} of a list of {}", self.len);
        let (mut skip, mut left) = (offset, len);
        for seg in self.iter() {
            if left == 0 {
                break;
            }
            if skip >= seg.len() {
                skip -= seg.len();
                continue;
            }
            let n = (seg.len() - skip).min(left);
            f(seg, skip, n);
            skip = 0;
            left -= n;
        }
    }

    /// Copies `src` to `offset`. Panics if it does not fit.
    pub fn write_at(&self, offset: usize, src: &[u8]) {
        let mut done = 0;
        self.for_range(offset, src.len(), |seg, at, n| {
            seg.write_at(at, &src[done..done + n]);
            done += n;
        });
    }

    /// Copies bytes at `offset` into `dst`. Panics if out of bounds.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) {
        let (mut done, len) = (0, dst.len());
        self.for_range(offset, len, |seg, at, n| {
            seg.read_at(at, &mut dst[done..done + n]);
            done += n;
        });
    }

    /// Continues a CRC32C over the range. Panics if out of bounds.
    pub fn crc32c(&self, seed: u32, offset: usize, len: usize) -> u32 {
        let mut crc = seed;
        self.for_range(offset, len, |seg, at, n| crc = seg.crc32c(crc, at, n));
        crc
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;

    #[test]
    fn ranges_cross_segments() {
        let region = Region::from_vec((0..32).collect());
        let mut sgl = Sgl::new();
        for (off, len) in [(0, 4), (10, 0), (10, 4), (20, 4)] {
            sgl.push(region.segment(off, len).unwrap()).unwrap();
        }
        assert_eq!(sgl.len(), 12);
        let mut out = [0; 6];
        sgl.read_at(3, &mut out);
        assert_eq!(out, [3, 10, 11, 12, 13, 20]);
        sgl.write_at(7, &[99, 98]);
        sgl.read_at(6, &mut out);
        assert_eq!(out, [12, 99, 98, 21, 22, 23]);
        let mut all = [0; 12];
        sgl.read_at(0, &mut all);
        assert_eq!(sgl.crc32c(0, 0, 12), crc32c::crc32c(&all));
    }

    #[test]
    fn a_full_list_gives_the_segment_back() {
        let region = Region::from_vec(vec![0; 8]);
        let mut sgl = Sgl::new();
        for _ in 0..MAX_SGE {
            sgl.push(region.segment(0, 1).unwrap()).unwrap();
        }
        assert!(sgl.push(region.segment(0, 1).unwrap()).is_err());
        assert_eq!(sgl.len(), MAX_SGE);
    }
}
