//! The receiving side of a stream: receives that are posted ahead, and the bytes that have come.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;

use super::attend::StreamAttendance;
use super::pool::{BufferPool, Size};
use super::wakers::Wakers;
use crate::api::{Buffer, Error, Event};

/// After this many receives that smaller buffers would have held, smaller ones are posted.
const SMALL_RUN: u32 = 16;

/// After this many receives in a row that were full, bulk ones are posted.
const FULL_RUN: u32 = 4;

/// A receive, in the order of posting.
enum Receive {
    InFlight,
    /// The window of the buffer has come. The second field counts the bytes of it that were read.
    Full(Buffer, usize),
    /// The peer has ended its direction.
    End,
    Failed(Error),
}

/// What a read found.
pub(super) enum BytesFound {
    /// Bytes, or the end.
    Some,
    /// The first receive has not ended.
    Nothing,
    Failed(Error),
}

impl BytesFound {
    /// As tokio's traits have it.
    pub(super) fn into_poll(self) -> Poll<io::Result<()>> {
        match self {
            BytesFound::Some => Poll::Ready(Ok(())),
            BytesFound::Failed(error) => Poll::Ready(Err(error.into())),
            BytesFound::Nothing => Poll::Pending,
        }
    }
}

/// What a call wants of the bytes that have come.
pub(super) enum Look<'a, 'b> {
    /// To take them.
    Read(&'a mut ReadBuf<'b>),
    /// To copy them.
    Peek(&'a mut ReadBuf<'b>),
    /// To know that there are some.
    Ready,
}

/// How a task waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// It has the receiving side for itself: no other call of this kind waits.
    Alone,
    /// Other calls may wait as well, of the same task, too.
    Beside,
}

/// The size of the receives that are posted now, by what has come lately.
struct Sizing {
    size: Size,
    /// Receives in a row that a buffer of the next smaller size would have held.
    small_run: u32,
    /// Receives in a row that were full.
    full_run: u32,
}

impl Sizing {
    fn new() -> Sizing {
        Sizing { size: Size::Small, small_run: 0, full_run: 0 }
    }

    /// A receive has brought this many bytes, and was full or not.
    fn note(&mut self, bytes: usize, full: bool) {
        let smaller = if self.size == Size::Bulk { Size::Large } else { Size::Small };
        let count = |run: u32, goes_on: bool| if goes_on { run.saturating_add(1) } else { 0 };
        self.full_run = count(self.full_run, full);
        self.small_run = count(self.small_run, bytes <= smaller.bytes());
        let next = match full {
            true if self.full_run >= FULL_RUN => Size::Bulk,
            true => self.size.max(Size::Large),
            false if self.small_run >= SMALL_RUN => smaller,
            false => self.size,
        };
        if next != self.size {
            (self.size, self.small_run) = (next, 0);
        }
    }
}

pub(super) struct ReadSide {
    receives: VecDeque<Receive>,
    /// How many of them have not ended.
    in_flight: usize,
    /// The number of the first of them.
    first: u32,
    /// The number of the next one.
    next: u32,
    sizing: Sizing,
    /// Bytes have come since the last question.
    news: bool,
    pub(super) attendance: StreamAttendance,
    /// The task that waits alone.
    reader: Option<Waker>,
    /// The tasks that wait beside others.
    others: Wakers,
}

impl ReadSide {
    pub(super) fn new() -> ReadSide {
        ReadSide {
            receives: VecDeque::with_capacity(Size::Small.ahead()),
            in_flight: 0,
            first: 0,
            next: 0,
            sizing: Sizing::new(),
            news: false,
            attendance: StreamAttendance::default(),
            reader: None,
            others: Wakers::default(),
        }
    }

    /// Takes the event of the receive with this number.
    pub(super) fn complete(
        &mut self,
        number: u32,
        mut event: Event,
        pool: &BufferPool,
        wakers: &mut Vec<Waker>,
    ) {
        let at = (number.wrapping_sub(self.first) & super::NUMBERS) as usize;
        let Some(place) = self.receives.get_mut(at) else { return };
        self.in_flight -= 1;
        let bytes = event.bytes();
        *place = match (event.take_buffer(), event.error()) {
            // Bytes count more than an error, which the next receive meets, too.
            (Some(mut buffer), _) if bytes > 0 => {
                self.sizing.note(bytes, bytes == buffer.capacity());
                self.news = true;
                buffer.narrow(..bytes);
                Receive::Full(buffer, 0)
            }
            (buffer, error) => {
                buffer.into_iter().for_each(|buffer| pool.give(buffer));
                error.map_or(Receive::End, |error| Receive::Failed(error.clone()))
            }
        };
        if at == 0 {
            wakers.extend(self.reader.take());
            self.others.take_into(wakers);
        }
    }

    /// The number of receives that have not ended, for a read that visits the connection. None: bytes
    /// must not go straight to that read, since a receive has ended before, or other calls wait for bytes.
    pub(super) fn all_in_flight(&self) -> Option<usize> {
        (self.none_has_ended() && self.others.is_empty()).then_some(self.in_flight)
    }

    /// True if no receive has ended whose bytes, end or error a read would find.
    fn none_has_ended(&self) -> bool {
        self.in_flight == self.receives.len()
    }

    /// A read has taken bytes that no receive has held.
    pub(super) fn note_passed(&mut self, bytes: usize) {
        self.sizing.note(bytes, false);
        self.news = true;
        self.attendance.note_taken();
    }

    /// The task of the context waits.
    pub(super) fn note_task(&mut self, cx: &Context<'_>, reads: Reads) {
        match reads {
            Reads::Alone => self.reader = Some(cx.waker().clone()),
            Reads::Beside => self.others.add(cx),
        }
    }

    /// The task that waits alone runs, and looks again before it waits. So what comes meanwhile need
    /// not wake it. Others may be calls of a task that runs, too, and do not look again by themselves.
    pub(super) fn forget_task(&mut self, reads: Reads) {
        if reads == Reads::Alone {
            self.reader = None;
        }
    }

    /// Posts receives by `post` until enough are ahead.
    pub(super) fn post_ahead(
        &mut self,
        pool: &BufferPool,
        mut post: impl FnMut(u32, Buffer) -> Result<(), (Error, Buffer)>,
    ) {
        while self.receives.len() < self.sizing.size.ahead() && self.is_open() {
            let number = self.next;
            self.next = number.wrapping_add(1) & super::NUMBERS;
            let posted = pool.take(self.sizing.size).and_then(|buffer| {
                post(number, buffer).map_err(|(error, buffer)| {
                    pool.give(buffer);
                    error
                })
            });
            self.receives.push_back(match posted {
                Ok(()) => {
                    self.in_flight += 1;
                    Receive::InFlight
                }
                Err(error) => Receive::Failed(error),
            });
        }
    }

    /// False once a receive has met the end or an error: those behind meet it, too.
    fn is_open(&self) -> bool {
        !self.receives.iter().any(|r| matches!(r, Receive::End | Receive::Failed(_)))
    }

    /// Does what a call wants.
    pub(super) fn look(&mut self, look: &mut Look<'_, '_>, pool: &BufferPool) -> BytesFound {
        match look {
            _ if self.none_has_ended() => BytesFound::Nothing,
            Look::Read(out) => self.read(out, pool),
            Look::Peek(out) => self.peek(out),
            Look::Ready if self.is_ready() => BytesFound::Some,
            Look::Ready => BytesFound::Nothing,
        }
    }

    /// Moves bytes to `out`, as many as are there.
    fn read(&mut self, out: &mut ReadBuf<'_>, pool: &BufferPool) -> BytesFound {
        let mut some = false;
        loop {
            let left = match self.receives.front_mut() {
                Some(Receive::Full(buffer, read)) if out.remaining() > 0 => {
                    *read += put(&buffer[*read..], out);
                    buffer.len() - *read
                }
                Some(Receive::Full(..)) => return BytesFound::Some,
                Some(Receive::End) => return BytesFound::Some,
                Some(Receive::Failed(_)) if !some => return self.fail(),
                _ if some => return BytesFound::Some,
                _ => return BytesFound::Nothing,
            };
            some = true;
            if left == 0
                && let Some(Receive::Full(buffer, _)) = self.pop()
            {
                pool.give(buffer);
            }
        }
    }

    /// Copies bytes to `out`, and leaves them.
    fn peek(&mut self, out: &mut ReadBuf<'_>) -> BytesFound {
        let mut some = false;
        for receive in &self.receives {
            match receive {
                Receive::Full(buffer, read) => {
                    put(&buffer[*read..], out);
                    some = true;
                }
                Receive::End if !some => return BytesFound::Some,
                Receive::Failed(_) if !some => return self.fail(),
                _ => break,
            }
        }
        if some { BytesFound::Some } else { BytesFound::Nothing }
    }

    /// True, once, if bytes have come since the last question, and small messages come.
    pub(super) fn is_busy(&mut self) -> bool {
        std::mem::take(&mut self.news) && self.sizing.size == Size::Small
    }

    /// True if a read would not wait.
    fn is_ready(&self) -> bool {
        self.receives.front().is_some_and(|r| !matches!(r, Receive::InFlight))
    }

    /// The number of the first receive that a read has not used up: it counts those before.
    #[cfg(all(test, not(miri)))]
    pub(super) fn ended(&self) -> u32 {
        self.first
    }

    /// True if the next read finds the end, or an error.
    pub(super) fn is_at_end(&self) -> bool {
        self.receives.front().is_some_and(|r| matches!(r, Receive::End | Receive::Failed(_)))
    }

    /// Takes the first receive, which has failed. The next read posts another, which the library
    /// refuses if the connection is over.
    fn fail(&mut self) -> BytesFound {
        match self.pop() {
            Some(Receive::Failed(error)) => BytesFound::Failed(error),
            _ => BytesFound::Nothing,
        }
    }

    /// The stream is dropped: its buffers are another's.
    pub(super) fn give_back(&mut self, pool: &BufferPool) {
        for receive in self.receives.drain(..) {
            if let Receive::Full(buffer, _) = receive {
                pool.give(buffer);
            }
        }
    }

    fn pop(&mut self) -> Option<Receive> {
        let receive = self.receives.pop_front()?;
        self.first = self.first.wrapping_add(1) & super::NUMBERS;
        Some(receive)
    }
}

/// Copies as many bytes as there is room for. Returns their number.
fn put(bytes: &[u8], out: &mut ReadBuf<'_>) -> usize {
    let n = bytes.len().min(out.remaining());
    out.put_slice(&bytes[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes after each of these receives: their bytes, and whether they were full.
    fn sizes(sizing: &mut Sizing, receives: &[(usize, bool)]) -> Vec<Size> {
        let note = |&(bytes, full): &(usize, bool)| {
            sizing.note(bytes, full);
            sizing.size
        };
        receives.iter().map(note).collect()
    }

    #[test]
    fn receives_grow_with_what_comes_and_shrink_after_a_while() {
        use Size::{Bulk, Large, Small};
        let mut sizing = Sizing::new();
        assert_eq!(sizes(&mut sizing, &[(100, false), (4096, true)]), [Small, Large]);
        let full = (Large.bytes(), true);
        assert_eq!(sizes(&mut sizing, &[full, full, full]), [Large, Large, Bulk]);
        // Large receives that are still posted end, full or not.
        assert_eq!(sizes(&mut sizing, &[full, (300 << 10, false)]), [Bulk, Bulk]);
        let run = SMALL_RUN as usize;
        assert_eq!(sizes(&mut sizing, &vec![(100, false); run])[run - 2..], [Bulk, Large]);
        assert_eq!(sizes(&mut sizing, &vec![(100, false); run])[run - 2..], [Large, Small]);
        assert_eq!(sizes(&mut sizing, &[(4096, true)]), [Large], "one message is more than small");
    }
}
