//! The sending side of a stream: bytes that wait for the end of the task's turn, and sends in flight.

use std::cell::Cell;
use std::io::IoSlice;
use std::task::Waker;

use super::pool::{BufferPool, Size};
use super::wakers::Wakers;
use crate::api::{Buffer, Error, Event};

/// The most sends of one stream in flight: as many as the peer has bulk receives ahead. A write beyond
/// waits.
const MOST_SENDS: usize = Size::Bulk.ahead();

/// A write of this many bytes or more does not wait for others, unless sends are in flight.
const LARGE: usize = 16 << 10;

/// Bytes that no send has taken.
struct KeptBytes {
    buffer: Buffer,
    len: usize,
}

/// The way of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The bytes were sent, or belong to a send that was posted.
    Sent(usize),
    /// The bytes wait. The stream sends them at the end of the task's turn.
    Kept(usize),
    /// As many sends are in flight as may be.
    Full,
}

/// The calls of the socket.
pub(super) trait SendPort {
    /// Sends few bytes, if that completes at once.
    fn send_at_once(&mut self, bytes: &[u8]) -> bool;
    /// Posts a send.
    fn send(&mut self, buffer: Buffer) -> Result<(), (Error, Buffer)>;
}

pub(super) struct WriteSide {
    kept: Option<KeptBytes>,
    /// A small buffer that was used before, for the next bytes that wait.
    small: Option<Buffer>,
    /// The sends in flight.
    in_flight: usize,
    /// No write since the task has flushed, has begun to wait for the peer, or has ended its turn.
    /// The first write leaves at once, and those behind it wait for each other.
    fresh: bool,
    /// The stream is on the list of those that keep writes.
    pub(super) listed: bool,
    /// The program has ended this direction.
    shut: bool,
    /// Why a send failed. The next write returns it.
    error: Option<Error>,
    pub(super) wakers: Wakers,
}

impl WriteSide {
    pub(super) fn new() -> WriteSide {
        WriteSide {
            kept: None,
            small: None,
            in_flight: 0,
            fresh: true,
            listed: false,
            shut: false,
            error: None,
            wakers: Wakers::default(),
        }
    }

    /// Takes the event of a send.
    pub(super) fn complete(
        &mut self,
        mut event: Event,
        pool: &BufferPool,
        wakers: &mut Vec<Waker>,
    ) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(error) = event.error() {
            self.error.get_or_insert_with(|| error.clone());
        }
        if let Some(buffer) = event.take_buffer() {
            pool.give(buffer);
        }
        self.wakers.take_into(wakers);
    }

    /// Takes bytes of a write.
    ///
    /// # Errors
    /// That of an earlier send, or the refusal of one. After the end of the direction `None`.
    pub(super) fn write(
        &mut self,
        data: &[IoSlice<'_>],
        pool: &BufferPool,
        port: &mut impl SendPort,
    ) -> Result<Written, Option<Error>> {
        if let Some(error) = self.error.take() {
            return Err(Some(error));
        }
        if self.shut {
            return Err(None);
        }
        let total = data.iter().map(|slice| slice.len()).sum::<usize>();
        if total == 0 {
            return Ok(Written::Sent(0));
        }
        if self.is_full() {
            return Ok(Written::Full);
        }
        if self.fresh && self.in_flight == 0 && self.kept.is_none() && total <= Size::Small.bytes()
        {
            self.fresh = false;
            if write_at_once(data, port) {
                return Ok(Written::Sent(total));
            }
        }
        self.fresh = false;
        let mut taken = 0;
        for slice in data {
            let mut bytes = &slice[..];
            while !bytes.is_empty() {
                if self.is_full() {
                    return Ok(Written::Sent(taken));
                }
                let n = self.keep(bytes, total - taken, pool)?;
                (bytes, taken) = (&bytes[n..], taken + n);
                if self.kept.as_ref().is_some_and(|k| k.len == k.buffer.capacity()) {
                    self.send_kept(pool, port)?;
                }
            }
        }
        // While sends are in flight, the bytes wait for more: fewer and larger sends cost less.
        if total >= LARGE && self.in_flight == 0 {
            self.send_kept(pool, port)?;
        }
        Ok(if self.kept.is_some() { Written::Kept(taken) } else { Written::Sent(taken) })
    }

    /// Copies bytes behind those that are kept, as many as there is room for. `more` bytes follow in
    /// all.
    fn keep(&mut self, bytes: &[u8], more: usize, pool: &BufferPool) -> Result<usize, Error> {
        let kept = match &mut self.kept {
            Some(kept) => kept,
            none => {
                let buffer = match self.small.take() {
                    Some(mut small) if more <= small.capacity() => {
                        small.widen();
                        small
                    }
                    other => {
                        self.small = other;
                        // The bytes wait for those in flight, so more of them may come together.
                        let size = match Size::of(more) {
                            Size::Large if self.in_flight > 0 => Size::Bulk,
                            size => size,
                        };
                        pool.take(size)?
                    }
                };
                none.insert(KeptBytes { buffer, len: 0 })
            }
        };
        let n = bytes.len().min(kept.buffer.capacity() - kept.len);
        kept.buffer[kept.len..kept.len + n].copy_from_slice(&bytes[..n]);
        kept.len += n;
        Ok(n)
    }

    /// Posts a send of the bytes that are kept.
    ///
    /// # Errors
    /// The library's, if it refuses.
    pub(super) fn send_kept(
        &mut self,
        pool: &BufferPool,
        port: &mut impl SendPort,
    ) -> Result<(), Error> {
        let Some(KeptBytes { mut buffer, len }) = self.kept.take() else { return Ok(()) };
        buffer.narrow(..len);
        if self.in_flight == 0 && len <= Size::Small.bytes() && port.send_at_once(&buffer) {
            self.put_away(buffer, pool);
            return Ok(());
        }
        match port.send(buffer) {
            Ok(()) => {
                self.in_flight += 1;
                Ok(())
            }
            Err((error, buffer)) => {
                self.put_away(buffer, pool);
                Err(error)
            }
        }
    }

    fn put_away(&mut self, buffer: Buffer, pool: &BufferPool) {
        match self.small {
            None if Size::of(buffer.capacity()) == Size::Small => self.small = Some(buffer),
            _ => pool.give(buffer),
        }
    }

    /// The turn of the task ends, or the task waits for the peer or flushes: what is kept leaves. An
    /// error waits for the next write.
    pub(super) fn end_turn(&mut self, pool: &BufferPool, port: &mut impl SendPort) {
        self.fresh = true;
        if let Err(error) = self.send_kept(pool, port) {
            self.error.get_or_insert(error);
        }
    }

    /// Takes the error of an earlier send.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// The program ends this direction. False if it has ended before.
    pub(super) fn shut(&mut self) -> bool {
        !std::mem::replace(&mut self.shut, true)
    }

    /// True if a write would wait.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight >= MOST_SENDS
    }

    /// The stream is dropped: its buffers are another's.
    pub(super) fn give_back(&mut self, pool: &BufferPool) {
        if let Some(buffer) = self.small.take() {
            pool.give(buffer);
        }
    }
}

thread_local! {
    /// Room for the bytes of a small write in several slices.
    static GATHERED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Sends the bytes of a small write, if that completes at once.
fn write_at_once(data: &[IoSlice<'_>], port: &mut impl SendPort) -> bool {
    let mut slices = data.iter().filter(|slice| !slice.is_empty());
    if let (Some(only), None) = (slices.next(), slices.next()) {
        return port.send_at_once(only);
    }
    // A thread that ends may have no room any more.
    let mut gathered = GATHERED.try_with(Cell::take).unwrap_or_default();
    gathered.clear();
    data.iter().for_each(|slice| gathered.extend_from_slice(slice));
    let sent = port.send_at_once(&gathered);
    let _ = GATHERED.try_with(|room| room.set(gathered));
    sent
}
