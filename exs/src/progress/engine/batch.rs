//! Several sends or receives of one socket, posted under one hold of the lock.
//!
//! A call for each operation takes the lock, looks up the socket, and rings the doorbell. A batch
//! does so once. Small sends of a batch that follow each other on a stream also leave in one
//! message. The bytes of a stream have no boundaries, so the peer sees no difference. One record,
//! one header and one credit then carry all of them.

use super::post::Ticket;
use super::sock::State;
use super::{Engine, Error, SockId};
use crate::mem::Buffer;
use crate::progress::call::Call;
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::progress::flags::RecvFlags;
use crate::rnic::EagerSend;
use crate::sys::{IoVec, cold_path};
use crate::time::Time;

/// The most bytes of a send that leaves with others in one message. The engine gathers the bytes
/// with one more copy. From about this size on, that copy costs as much as a message of its own.
const JOINED: usize = 1 << 10;

/// An operation of a batch: its names and its memory.
pub(crate) trait Posting: Sized {
    /// The token and the tag of the operation. `usual`: the tag of an operation that has none of
    /// its own.
    fn name(&self, usual: [u64; 2]) -> (u64, [u64; 2]);
    /// The memory.
    fn buffer(&self) -> &Buffer;
    /// The memory, as it moves into the operation.
    fn into_buffer(self) -> Buffer;
    /// Rebuilds an operation that was refused.
    fn again(name: (u64, [u64; 2]), buffer: Buffer) -> Self;
}

/// The outcome of a batch: the number of operations that were posted, and the error that refused
/// the next operation. None: no operation was refused.
pub(crate) type BatchEnd = (usize, Option<Error>);

impl Engine {
    /// Sends the first `count` operations of a batch, and removes the posted operations from it.
    pub(crate) fn post_sends<P: Posting>(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        (batch, count): (&mut Vec<P>, usize),
        call: &mut Call<'_>,
    ) -> BatchEnd {
        let (mut eager, mut unrung) = (0, 0);
        while eager < count
            && let Some((n, batched)) = self.send_next_eager(id, &batch[eager..count])
        {
            eager += n;
            unrung = unrung.max(batched);
        }
        if unrung > 0 {
            self.ring_for(id.index, unrung, false, call);
        }
        if eager > 0 {
            call.pass();
            let usual = ticket.tag;
            let events = batch.drain(..eager).map(|posting| sent(posting, usual));
            self.delivery.deliver_all(ticket.queue, events);
        }
        let post = |engine: &mut Engine, ticket: &Ticket<'_>, bufs| {
            engine.send_later(id, ticket, bufs, call)
        };
        let (posted, refused) = self.post_each(ticket, (batch, count - eager), post);
        (eager + posted, refused)
    }

    /// Posts the first `count` operations of a batch of receives, and removes the posted operations
    /// from it.
    pub(crate) fn post_recvs<P: Posting>(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        (batch, count): (&mut Vec<P>, usize),
        flags: RecvFlags,
        call: &mut Call<'_>,
    ) -> BatchEnd {
        // Receives that find their bytes at once end together, too.
        self.delivery.gather_for(ticket.queue);
        let end = self.post_each(ticket, (batch, count), |engine, ticket, bufs| {
            engine.post_recv(id, ticket, bufs, flags, call)
        });
        self.delivery.leave_gathered(ticket.queue);
        end
    }

    /// Posts the operations in order until an operation is refused. That operation and those behind
    /// it stay in the batch.
    #[inline]
    fn post_each<P: Posting>(
        &mut self,
        ticket: &Ticket<'_>,
        (batch, count): (&mut Vec<P>, usize),
        mut post: impl FnMut(&mut Engine, &Ticket<'_>, Bufs) -> Result<(), (Error, Bufs)>,
    ) -> BatchEnd {
        let (mut posted, mut refused) = (0, None);
        let mut postings = batch.drain(..count);
        for posting in postings.by_ref() {
            let (token, tag) = posting.name(ticket.tag);
            let ticket = Ticket { token, tag, ..*ticket };
            if let Err((error, bufs)) = post(self, &ticket, Bufs::One(posting.into_buffer())) {
                cold_path();
                // A refusal returns the buffers of the call: one buffer here.
                if let Bufs::One(buffer) = bufs {
                    refused = Some((error, P::again((token, tag), buffer)));
                }
                break;
            }
            posted += 1;
        }
        let Some((error, first)) = refused else { return (posted, None) };
        let back: Vec<P> = std::iter::once(first).chain(postings).collect();
        batch.splice(..0, back);
        (posted, Some(error))
    }

    /// Sends the next operations of a batch on the eager path, if nothing is in the way. Returns
    /// the number of operations, and the number of bytes for which the caller must ring the
    /// doorbell.
    fn send_next_eager<P: Posting>(&mut self, id: SockId, batch: &[P]) -> Option<(usize, usize)> {
        let s = self.sockets.get_mut(id)?;
        let (State::Open, Some(session), Some(qp)) = (&s.state, s.session.as_mut(), s.qp) else {
            return None;
        };
        let (d, room) = self.devices.with_room(s.place.device);
        // Only a port that ends its connection uses the time.
        let mut port = d.port(s.place.domain, qp, Time::ZERO);
        let (mut count, mut len) = gather(batch, session.may_join_eager(), room);
        let mut sent = EagerSend::Declined;
        if count > 1 && len > 0 {
            let joined = IoVec::new(&room[..len]);
            sent = session.try_send_eager(&mut port, &joined, count as u64);
        }
        if !sent.is_taken() {
            let only = batch.first()?.buffer().io_vec();
            (count, len) = (1, only.len());
            if len > 0 {
                sent = session.try_send_eager(&mut port, &only, 1);
            }
        }
        match sent {
            EagerSend::Declined | EagerSend::NoRoom => None,
            EagerSend::Sent => Some((count, 0)),
            EagerSend::Batched => Some((count, len)),
        }
    }
}

/// The event of a send that has completed at once.
#[inline(always)]
fn sent<P: Posting>(posting: P, usual: [u64; 2]) -> RawEvent {
    let (token, tag) = posting.name(usual);
    let buffer = posting.into_buffer();
    let len = buffer.len() as u64;
    let mut event = RawEvent::with(token, tag, EventKind::Send, Bufs::One(buffer));
    (event.bytes, event.total) = (len, len);
    event
}

/// Copies the bytes of the first sends side by side into `room`. Stops before a send that is not
/// small, or with which there would be more than `most` bytes. Returns the number of sends, and of
/// bytes.
fn gather<P: Posting>(batch: &[P], most: usize, room: &mut [u8]) -> (usize, usize) {
    let most = most.min(room.len());
    let (mut count, mut at) = (0, 0);
    for posting in batch {
        let piece = posting.buffer().io_vec();
        let end = at + piece.len();
        if piece.len() > JOINED || end > most {
            break;
        }
        piece.copy_to(&mut room[at..end]);
        (count, at) = (count + 1, end);
    }
    (count, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Posting for Buffer {
        fn name(&self, usual: [u64; 2]) -> (u64, [u64; 2]) {
            (0, usual)
        }

        fn buffer(&self) -> &Buffer {
            self
        }

        fn into_buffer(self) -> Buffer {
            self
        }

        fn again(_: (u64, [u64; 2]), buffer: Buffer) -> Buffer {
            buffer
        }
    }

    #[test]
    fn small_sends_are_gathered_up_to_the_first_that_does_not_fit() {
        let batch = |lens: &[usize]| -> Vec<Buffer> {
            (1..).zip(lens).map(|(fill, len)| Buffer::from(vec![fill; *len])).collect()
        };
        let mut room = [9; 1000];
        assert_eq!(gather(&batch(&[2, 0, 3]), 100, &mut room), (3, 5));
        assert_eq!(room[..6], [1, 1, 3, 3, 3, 9]);
        assert_eq!(gather(&batch(&[60, 40, 1]), 100, &mut room), (2, 100), "no more fits");
        assert_eq!(gather(&batch(&[5, JOINED + 1, 5]), 1000, &mut room), (1, 5), "one is large");
        assert_eq!(gather(&batch(&[500, 500, 1]), 2000, &mut room), (2, 1000), "no room");
        assert_eq!(gather(&batch(&[1, 1]), 0, &mut room), (0, 0), "each is a message");
    }
}
