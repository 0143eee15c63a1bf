//! Taking frames apart, where they were read.

use crate::wire::group::{GroupFrameKind, GroupHead, GroupWireError, HEAD_LEN, WORD};

/// Bytes of a group in the lookahead that were not taken apart: from `at` to `end`.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct GroupBytes {
    pub(super) group: u32,
    pub(super) at: usize,
    pub(super) end: usize,
}

/// A part of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputPart {
    /// Bytes of a stream: the last `len` of those that were used.
    Data { stream: u32, len: usize },
    /// A whole frame of another kind; `word` is its payload, if it has one.
    Control { head: GroupHead, word: [u8; WORD] },
    /// Nothing: all bytes were used.
    Incomplete,
}

/// The frame that has come in part.
#[derive(Debug, Default)]
pub(super) struct GroupInput {
    /// Its head, and the word behind it.
    bytes: [u8; HEAD_LEN + WORD],
    /// How many of them have come.
    have: usize,
    /// The stream of a DATA frame, and how many of its bytes are still to come.
    data: Option<(u32, usize)>,
}

impl GroupInput {
    /// The stream whose bytes come next, and how many of them. None: a head comes next.
    pub(super) fn awaited(&self) -> Option<(u32, usize)> {
        self.data
    }

    /// Bytes of that stream have come by another way.
    pub(super) fn skip(&mut self, bytes: usize) {
        if let Some((stream, left)) = self.data {
            self.data = (bytes < left).then(|| (stream, left - bytes));
        }
    }

    /// Takes the next part of the input. Returns it, and how many bytes it used.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<(InputPart, usize), GroupWireError> {
        let mut used = 0;
        loop {
            if let Some((stream, left)) = self.data {
                let len = left.min(bytes.len() - used);
                if len == 0 {
                    return Ok((InputPart::Incomplete, used));
                }
                self.data = (len < left).then_some((stream, left - len));
                return Ok((InputPart::Data { stream, len }, used + len));
            }
            let head = match self.take(bytes, &mut used, HEAD_LEN) {
                None => return Ok((InputPart::Incomplete, used)),
                Some(head) => GroupHead::parse(&head)?,
            };
            let len = head.len as usize;
            if head.kind == GroupFrameKind::Data {
                (self.data, self.have) = (Some((head.stream, len)), 0);
                continue;
            }
            if self.take(bytes, &mut used, HEAD_LEN + len).is_none() {
                return Ok((InputPart::Incomplete, used));
            }
            self.have = 0;
            let [.., w0, w1, w2, w3] = self.bytes;
            return Ok((InputPart::Control { head, word: [w0, w1, w2, w3] }, used));
        }
    }

    /// Collects the first `need` bytes of the frame. Returns its head once they are there.
    fn take(&mut self, bytes: &[u8], used: &mut usize, need: usize) -> Option<[u8; HEAD_LEN]> {
        let n = need.saturating_sub(self.have).min(bytes.len() - *used);
        self.bytes[self.have..self.have + n].copy_from_slice(&bytes[*used..*used + n]);
        self.have += n;
        *used += n;
        if self.have < need {
            return None;
        }
        self.bytes.first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::group::MAX_DATA;

    fn frame(stream: u32, kind: GroupFrameKind, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap();
        let mut bytes = GroupHead { stream, kind, len }.emit().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Takes all apart, from pieces of these lengths in turn: the bytes of each run of a stream, and
    /// the other frames.
    fn apart(bytes: &[u8], cuts: &[usize]) -> Result<Vec<(u32, Vec<u8>)>, GroupWireError> {
        let (mut input, mut out) = (GroupInput::default(), Vec::<(u32, Vec<u8>)>::new());
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        while at < bytes.len() {
            let end = (at + cuts.next().unwrap()).min(bytes.len());
            let mut piece = &bytes[at..end];
            at = end;
            loop {
                let (part, used) = input.next(piece)?;
                let before = &piece[..used];
                piece = &piece[used..];
                match part {
                    InputPart::Incomplete => break assert!(piece.is_empty()),
                    InputPart::Data { stream, len } => {
                        let data = &before[used - len..];
                        match out.last_mut() {
                            Some((last, run)) if *last == stream => run.extend_from_slice(data),
                            _ => out.push((stream, data.to_vec())),
                        }
                    }
                    InputPart::Control { head, word } => {
                        let word = if head.len > 0 { word.to_vec() } else { Vec::new() };
                        out.push((head.stream + 100, word));
                    }
                }
            }
        }
        Ok(out)
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let bytes = [
            frame(1, GroupFrameKind::Open, &[0xC0, 1, 0, 0]),
            frame(1, GroupFrameKind::Data, b"one"),
            frame(2, GroupFrameKind::Data, &[7; MAX_DATA]),
            frame(1, GroupFrameKind::Window, &[1, 2, 3, 4]),
            frame(3, GroupFrameKind::Data, b"x"),
            frame(3, GroupFrameKind::Fin, &[]),
            frame(2, GroupFrameKind::Reset, &[0, 0, 0, 1]),
        ]
        .concat();
        let expect = vec![
            (101, vec![0xC0, 1, 0, 0]),
            (1, b"one".to_vec()),
            (2, vec![7; MAX_DATA]),
            (101, vec![1, 2, 3, 4]),
            (3, b"x".to_vec()),
            (103, vec![]),
            (102, vec![0, 0, 0, 1]),
        ];
        let cuts: [&[usize]; 6] =
            [&[1 << 20], &[1], &[7], &[9, 1, 3], &[11, 65_536], &[8, 3, 8, 4096]];
        for cuts in cuts {
            assert_eq!(apart(&bytes, cuts).unwrap(), expect, "{cuts:?}");
        }
    }

    #[test]
    fn bytes_that_came_by_another_way_count() {
        let bytes = frame(5, GroupFrameKind::Data, &[1; 100]);
        let mut input = GroupInput::default();
        let part = InputPart::Data { stream: 5, len: 10 };
        assert_eq!(input.next(&bytes[..HEAD_LEN + 10]), Ok((part, HEAD_LEN + 10)));
        assert_eq!(input.awaited(), Some((5, 90)));
        input.skip(89);
        assert_eq!(input.awaited(), Some((5, 1)));
        input.skip(1);
        assert_eq!(input.awaited(), None);
        let next = frame(6, GroupFrameKind::Data, b"x");
        let part = InputPart::Data { stream: 6, len: 1 };
        assert_eq!(input.next(&next), Ok((part, HEAD_LEN + 1)));
    }

    /// Whatever comes, each call uses some bytes, or all of them, or fails.
    #[test]
    fn random_bytes_are_taken_apart_or_refused() {
        let mut random = crate::sys::RandomSource::seeded(11);
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            while bytes.len() < 200 {
                let [kind, stream, len, _] = random.next_u32().to_be_bytes();
                bytes.extend_from_slice(&[0, 0, 0, stream, kind % 7, 0, 0, len % 9]);
            }
            let mut input = GroupInput::default();
            let mut rest = &bytes[..];
            while let Ok((part, used)) = input.next(rest) {
                rest = &rest[used..];
                if part == InputPart::Incomplete {
                    assert!(rest.is_empty());
                    break;
                }
                assert!(used > 0);
            }
        }
    }
}
