//! The read-size predictor: how far to read behind a long payload.
//!
//! A long payload goes from the socket straight to its place. The bytes between two of them (a
//! trailer, headers, the short end of a message, the SEND that announces it) are read into the
//! lookahead and copied. If the read that fetches the payload ends before them, they cost one or
//! two more system calls. If it ends after them, the beginning of the next payload is copied as
//! well.
//!
//! Messages of one length in a row make a pattern: a run of long FPDUs directly behind each
//! other, then a gap. So the last run and the last gap predict the next. A wrong guess costs what
//! is described above and nothing else.

/// Payloads of at least this many bytes are long. To copy a shorter one costs less than to ask
/// for it.
const LONG: usize = (8 << 10) + 1;

/// Longest gap in bytes that is read at once.
const GAP_MAX: u32 = 16 << 10;

/// The pattern of what has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadSize {
    /// Bytes since the last long payload.
    since: u32,
    /// Bytes of the trailer of the last long payload.
    trailer: u32,
    /// Number of long FPDUs with nothing between them, up to the current or last one.
    run: u16,
    /// A long payload is under way.
    long: bool,
    /// Number of long FPDUs in the run before, and the bytes between that run and this one.
    last_run: u16,
    last: u32,
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl ReadSize {
    /// Records that an FPDU begins, with the bytes of its header, payload and trailer.
    pub(super) fn begin(&mut self, head: usize, payload: usize, trailer: usize) {
        let at_once = self.since == self.trailer;
        let between = self.since.saturating_add(small(head));
        self.long = payload >= LONG;
        if !self.long {
            self.since = between.saturating_add(small(payload + trailer));
            return;
        }
        if self.run > 0 && at_once {
            self.run = self.run.saturating_add(1);
        } else {
            (self.last_run, self.last) = (self.run, between);
            self.run = 1;
        }
        self.trailer = small(trailer);
        self.since = self.trailer;
    }

    /// Returns how far to read behind the current payload. `least` is the length of its trailer
    /// and the next header.
    pub(super) fn behind(&self, least: usize) -> usize {
        let ends = self.long && self.run == self.last_run && self.last <= GAP_MAX;
        if ends { least.max(self.last as usize) } else { least }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: usize = 16;
    const SEND: usize = 20;

    /// Feeds messages as WRITEs in pieces of up to 60 KiB, each with a SEND behind it. Returns
    /// the guess at each long piece and what really follows.
    fn guesses(messages: &[usize], trailer: usize) -> Vec<(usize, usize)> {
        let (mut predictor, mut out, mut since) = (ReadSize::default(), Vec::new(), 0);
        let mut fpdu = |head: usize, len: usize| {
            if len >= LONG {
                if let Some((_, truth)) = out.last_mut() {
                    *truth = since + head;
                }
                since = trailer;
            } else {
                since += head + len + trailer;
            }
            predictor.begin(head, len, trailer);
            if len >= LONG {
                out.push((predictor.behind(trailer + HEAD), 0));
            }
        };
        for &message in messages {
            let mut left = message;
            while left > 0 {
                let piece = left.min(60 << 10);
                fpdu(HEAD, piece);
                left -= piece;
            }
            fpdu(SEND, 16);
        }
        out.pop();
        out
    }

    #[test]
    fn messages_of_one_length_are_predicted() {
        for trailer in [0, 4] {
            for len in [16 << 10, 60 << 10, 64 << 10, 256 << 10, 1 << 20] {
                let long = guesses(&[len; 9], trailer);
                let each = (long.len() + 1) / 9;
                // The first message shows the length of the run, its end that of the predictor.
                for (guess, truth) in &long[each + 1..] {
                    assert_eq!(guess, truth, "messages of {len} bytes, trailers of {trailer}");
                }
            }
        }
    }

    #[test]
    fn a_change_is_guessed_wrong_once_and_never_too_far() {
        let mixed = [64 << 10, 64 << 10, 1 << 20, 9 << 10, 300 << 10, 300 << 10, 12 << 10];
        for (guess, truth) in guesses(&mixed, 4) {
            assert!(guess <= truth.max(GAP_MAX as usize), "{guess} for {truth}");
            assert!(guess >= 4 + HEAD);
        }
        // Short messages between long ones, more than it pays to read with them.
        let mut sparse = vec![20 << 10];
        for _ in 0..4 {
            sparse.extend([[4 << 10; 8].as_slice(), &[20 << 10]].concat());
        }
        for (guess, _) in guesses(&sparse, 0) {
            assert_eq!(guess, HEAD);
        }
    }

    #[test]
    fn a_payload_that_is_not_long_asks_for_no_more_than_its_end() {
        let mut predictor = ReadSize::default();
        for _ in 0..3 {
            predictor.begin(HEAD, LONG, 0);
            assert_eq!(
                predictor.behind(HEAD),
                if predictor.last_run == 1 { HEAD * 2 + 100 } else { HEAD }
            );
            predictor.begin(HEAD, 100, 0);
            assert_eq!(predictor.behind(HEAD), HEAD);
        }
        predictor.since = u32::MAX;
        predictor.begin(HEAD, LONG, 4);
        assert_eq!(predictor.behind(HEAD), HEAD, "no overflow");
    }
}
