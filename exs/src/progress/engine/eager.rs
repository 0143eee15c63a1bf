//! The eager path of small messages through the engine. A send that completes at once has no entry
//! in the table of operations. A message that arrives needs no round of the whole engine.
//! Everything out of the ordinary takes the general path.

#[cfg(feature = "tokio")]
use super::answers::{AnswerBurst, AnswerTurn};
use super::answers::{PAUSE, SHARED};
use super::device::Device;
use super::devices::DeviceSet;
use super::post::Ticket;
use super::sock::{Sock, State};
use super::{Engine, SockId};
use crate::mem::Buffer;
use crate::progress::call::{Call, Deferred, Ringing};
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::rnic::{DeferredEnd, EagerPayload, EagerRecv, EagerSend};
use crate::session::{After, MessageBytes, VisitRead};
use crate::sys::IoVec;
use crate::time::Time;

/// The first sends of a burst, which leave one by one.
pub(in crate::progress) const ALONE: u32 = 4;
/// How many sends after the first ones leave together.
const TOGETHER: u32 = 32;

/// Small sends that follow each other on a socket while the peer sends nothing. Where the doorbell
/// is a system call (`Caps::doorbell_calls`), they share it. The thread that posts them rings the
/// doorbell when it dequeues, as for work that is never urgent, or with every [`TOGETHER`]th send.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Burst {
    sends: u32,
    last: Time,
}

impl Burst {
    /// Counts a send. True if the send may wait for others.
    fn grow(&mut self, len: usize, now: Time) -> bool {
        if now.since(self.last) > PAUSE || len > SHARED {
            self.sends = 0;
        }
        (self.sends, self.last) = (self.sends.wrapping_add(1), now);
        self.sends > ALONE && !self.sends.is_multiple_of(TOGETHER)
    }

    /// The peer has sent something, which ends the burst.
    pub(super) fn end(&mut self) {
        self.sends = 0;
    }
}

/// What has become of the bytes of a task.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSend {
    /// Something is in the way: nothing was sent.
    Declined,
    /// They are on their way.
    Sent,
    /// The same, but they could have waited for those of other tasks.
    SentAhead,
    /// They wait in a link group for those of other tasks. [`Engine::write_kept`] sends them, or the next
    /// leader.
    Kept,
}

/// Copies the bytes of several buffers side by side into `room`. None: there are too many bytes.
fn gather<'a>(pieces: &[Buffer], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len()))?;
    if len > SHARED {
        return None;
    }
    let (gathered, mut at) = (room.get_mut(..len)?, 0);
    for piece in pieces {
        piece.io_vec().copy_to(&mut gathered[at..]);
        at += piece.len();
    }
    Some(gathered)
}

/// Hands a message to the device of its connection, if nothing is in the way.
#[inline]
fn hand_over_eager(s: &mut Sock, d: &mut Device, payload: &IoVec<'_>) -> EagerSend {
    match (s.session.as_mut(), s.qp) {
        (Some(session), Some(qp)) if s.state == State::Open && !payload.is_empty() => {
            // Only a port that ends its connection uses the time.
            let mut port = d.port(s.place.domain, qp, Time::ZERO);
            session.try_send_eager(&mut port, payload, 1)
        }
        _ => EagerSend::Declined,
    }
}

/// The read of a program that visits its connection, and the connection's socket.
pub(super) struct Visit<'a, 'r> {
    pub(super) index: u32,
    pub(super) read: &'a mut VisitRead<'r>,
}

/// The most messages that the engine takes from a device before the other devices have their turn.
const MESSAGES: usize = 256;

impl Engine {
    /// Sends buffers with few bytes at once, if nothing is in the way. Otherwise returns the
    /// buffers.
    pub(super) fn try_send_eager(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        call: &mut Call<'_>,
    ) -> Result<(), Bufs> {
        let Some(s) = self.sockets.get_mut(id) else { return Err(bufs) };
        let (d, room) = self.devices.with_room(s.place.device);
        let payload = match &bufs {
            Bufs::One(buffer) => buffer.io_vec(),
            Bufs::Many(pieces) => match gather(pieces, room) {
                Some(gathered) => IoVec::new(gathered),
                None => return Err(bufs),
            },
            Bufs::None => return Err(bufs),
        };
        let len = payload.len();
        match hand_over_eager(s, d, &payload) {
            EagerSend::Declined | EagerSend::NoRoom => return Err(bufs),
            EagerSend::Sent => {}
            EagerSend::Batched => {
                let defers = ticket.queue.attends((self.neighbours.here(), id));
                self.ring_for(id.index, len, defers, call);
            }
        }
        call.pass();
        let mut event = RawEvent::with(ticket.token, ticket.tag, EventKind::Send, bufs);
        (event.bytes, event.total) = (len as u64, len as u64);
        self.delivery.deliver(ticket.queue, event);
        Ok(())
    }

    /// Hands a message to the device of its connection, if nothing is in the way.
    #[inline]
    fn hand_over(&mut self, id: SockId, payload: &IoVec<'_>) -> EagerSend {
        let Some(s) = self.sockets.get_mut(id) else { return EagerSend::Declined };
        hand_over_eager(s, &mut self.devices[s.place.device], payload)
    }

    /// Leaves the bytes of a connection in its link group, for the next leader. False: it is in none.
    #[inline]
    fn leave_in_group(&mut self, index: u32, now: Time) -> bool {
        let s = &self.sockets[index];
        let rnic = &mut self.devices[s.place.device].rnic;
        let left = s.qp.is_some_and(|qp| rnic.flush_later(qp, now));
        if left && !self.sockets.has_lazy() {
            self.sockets.ring_later(index);
        }
        left
    }

    /// Sends few bytes, for a call that needs no event. False if that does not complete at once: then
    /// nothing was sent. `may_share`: the doorbell may wait for others of a burst.
    pub(crate) fn send_at_once(
        &mut self,
        id: SockId,
        payload: &IoVec<'_>,
        may_share: bool,
        call: &mut Call<'_>,
    ) -> bool {
        match self.hand_over(id, payload) {
            EagerSend::Declined | EagerSend::NoRoom => return false,
            EagerSend::Sent => {}
            EagerSend::Batched if may_share => self.ring_for(id.index, payload.len(), true, call),
            EagerSend::Batched => self.ring_now(id.index, true, call),
        }
        call.pass();
        true
    }

    /// Sends few bytes of a task, without an event. `may_wait`: those of a connection in a link group may
    /// wait for others, until [`Engine::write_kept`].
    #[cfg(feature = "tokio")]
    pub(crate) fn send_for_task(
        &mut self,
        id: SockId,
        payload: &IoVec<'_>,
        may_wait: bool,
        call: &mut Call<'_>,
    ) -> TaskSend {
        match self.hand_over(id, payload) {
            EagerSend::Declined | EagerSend::NoRoom => return TaskSend::Declined,
            EagerSend::Sent => {
                call.pass();
                return TaskSend::Sent;
            }
            EagerSend::Batched => call.pass(),
        }
        let s = &self.sockets[id.index];
        let answers = self.devices[s.place.device].answers_of(s.qp);
        let turn = answers.map_or(AnswerTurn::Last, AnswerBurst::answer);
        let waits = turn == AnswerTurn::Waits && may_wait;
        if waits && self.leave_in_group(id.index, call.now()) {
            return TaskSend::Kept;
        }
        self.ring_now(id.index, true, call);
        if turn == AnswerTurn::Last { TaskSend::Sent } else { TaskSend::SentAhead }
    }

    /// Sends what tasks have left in link groups.
    #[cfg(feature = "tokio")]
    pub(crate) fn write_kept(&mut self, now: Time) {
        self.devices.hold_writes();
        self.ring_doorbells(now);
        self.devices.release_writes();
    }

    /// A message has taken the eager path, except for the doorbell. Rings the doorbell, or leaves
    /// it to the next leader. With `defers`, the calling thread makes the system call when it has
    /// released the engine, so that it keeps no other thread of the shard waiting meanwhile.
    pub(super) fn ring_for(&mut self, index: u32, len: usize, defers: bool, call: &mut Call<'_>) {
        let (s, now) = (&mut self.sockets[index], call.now());
        let alone = !s.burst.grow(len, now);
        let in_loop = s.watch.as_ref().is_some_and(|watch| watch.in_loop);
        let answers = self.devices[s.place.device].answers_of(s.qp);
        let waits = answers.is_some_and(|answers| answers.waits(len, now, in_loop));
        if call.may_share() && waits && self.leave_in_group(index, now) {
            return;
        }
        if alone || !call.may_share() {
            self.ring_now(index, defers, call);
        } else {
            self.sockets.ring_later(index);
        }
    }

    /// Rings the doorbell of a connection, or leaves the system call to the calling thread (`ring_for`).
    fn ring_now(&mut self, index: u32, defers: bool, call: &mut Call<'_>) {
        let (s, now) = (&self.sockets[index], call.now());
        let Some(qp) = s.qp else { return };
        let device = s.place.device;
        let rnic = &mut self.devices[device].rnic;
        let write = if defers { rnic.defer_flush(qp, now) } else { None };
        match write {
            Some(write) => call.defer(Deferred { device, write }),
            None => rnic.flush(qp, now),
        }
    }

    /// A deferred write has ended, and its thread has come back with the engine's lock.
    pub(in crate::progress) fn end_deferred(&mut self, device: usize, end: DeferredEnd, now: Time) {
        self.devices[device].rnic.end_deferred(end, now);
        self.take_from(device, now, None);
        self.settle_rest(now, Ringing::AtOnce);
    }

    /// Notes a send that takes the general path.
    pub(super) fn note_send(&mut self, id: SockId, len: usize, call: &mut Call<'_>) {
        if let Some(s) = self.sockets.at(id.index)
            && self.devices[s.place.device].rnic.caps().doorbell_calls
        {
            call.note_send(s.burst.grow(len, call.now()));
        }
    }

    /// Takes small messages straight out of the devices.
    ///
    /// A thread that has got events looks at them next, and posts receives again. Until then,
    /// messages for a socket whose receives are used up stay where they are. Taken now, they would
    /// be copied into the ring, and once more from there.
    pub(in crate::progress) fn skim(&mut self, now: Time) {
        for device in 0..self.devices.len() {
            self.skim_device(device, now, None);
        }
    }

    fn skim_device(&mut self, device: usize, now: Time, mut visit: Option<Visit<'_, '_>>) -> bool {
        let mut left = MESSAGES;
        let d = &mut self.devices[device];
        d.rnic.resume_eager();
        if d.shares_streams {
            d.answers.begin(now);
        }
        while left > 0
            && let Some(taken) = self.devices.next_eager(device)
        {
            left -= 1;
            let sated = self.message_came(device, &taken, now, visit.as_mut());
            let enough = sated && self.delivery.has_caught();
            let d = &mut self.devices[device];
            match taken.at {
                EagerPayload::Copied => {}
                EagerPayload::Lent(_) => d.rnic.release_eager(taken.qp),
                EagerPayload::InReceive(slot) => d.return_slot(slot),
            }
            if enough && !d.rnic.pause_eager(taken.qp) {
                break;
            }
        }
        self.more |= left == 0;
        left < MESSAGES
    }

    /// Takes the messages of the devices at which a poll has found something, and then their events
    /// and completions. True if there was anything.
    pub(in crate::progress) fn take_found(&mut self, found: DeviceSet, now: Time) -> bool {
        let marked = (0..self.devices.len()).filter(|device| found.contains(*device));
        marked.fold(false, |any, device| self.take_from(device, now, None) | any)
    }

    /// The same for one device. Messages for the connection of a visit may go to its read.
    pub(super) fn take_from(
        &mut self,
        device: usize,
        now: Time,
        visit: Option<Visit<'_, '_>>,
    ) -> bool {
        let any = self.skim_device(device, now, visit);
        // Usually the device has nothing but the message.
        !self.devices[device].rnic.is_quiet() && self.reap_device(device, now) || any
    }

    /// Settles the sockets that skimmed messages have marked, and rings doorbells.
    pub(in crate::progress) fn settle_rest(&mut self, now: Time, ringing: Ringing) {
        if self.sockets.has_marked() {
            self.settle(now, ringing);
            self.ring_doorbells(now);
        }
    }

    /// Hands a message to its session. True if the socket has no receive for the next message.
    #[inline]
    fn message_came(
        &mut self,
        device: usize,
        taken: &EagerRecv,
        now: Time,
        visit: Option<&mut Visit<'_, '_>>,
    ) -> bool {
        let index = taken.context;
        let owner = self.sockets.at(index);
        // A queue pair ends before its socket does. Data of another socket's queue pair must not
        // come here.
        let owner = owner.filter(|s| s.qp == Some(taken.qp) && s.place.device == device);
        let Some(s) = owner else { return false };
        let Some(session) = s.session.as_mut() else { return false };
        s.burst.end();
        let (d, room) = self.devices.with_room(device);
        d.note_message(taken.qp, &mut s.busy);
        let received;
        let came = match &taken.at {
            EagerPayload::Copied => MessageBytes::Copy(&room[..taken.len]),
            EagerPayload::Lent(lent) => MessageBytes::Memory(lent),
            EagerPayload::InReceive(slot) => {
                received = d.slot(*slot, taken.len as u64);
                match &received {
                    Some(received) => MessageBytes::Memory(received),
                    None => return false,
                }
            }
        };
        let mut port = d.port(s.place.domain, taken.qp, now);
        let read = visit.filter(|visit| visit.index == index).map(|visit| &mut *visit.read);
        let (ended, after) = session.handle_eager(now, &mut port, came, read);
        let sated = session.has_no_posted_recv();
        if let Some(done) = ended {
            self.finish(done, now);
        }
        self.look_after(index, after, now);
        sated
    }

    /// Looks after a socket that got a message. Usually the operations that the message completes
    /// are all; else the socket is marked for `settle`.
    #[inline(always)]
    pub(super) fn look_after(&mut self, index: u32, after: After, now: Time) {
        let s = &self.sockets[index];
        if !s.polls.is_empty() || after == After::NeedsDrive {
            return self.sockets.mark(index);
        }
        while let Some(done) = self.sockets[index].session.as_mut().and_then(|s| s.poll_done()) {
            self.finish(done, now);
        }
        self.delivery.news.check(index, &mut self.sockets[index]);
        self.check_passing(index);
        // Data that moved may have started the ring's idle time again. A message brings no other
        // deadline nearer.
        if !self.sockets[index].timer.is_set() {
            self.timers.update(index, &mut self.sockets[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_are_gathered() {
        let pieces = |lens: &[usize]| -> Vec<Buffer> {
            (1..).zip(lens).map(|(fill, len)| Buffer::from(vec![fill; *len])).collect()
        };
        let mut room = vec![9; SHARED + 10];
        assert_eq!(gather(&pieces(&[2, 0, 3]), &mut room), Some(&[1, 1, 3, 3, 3][..]));
        assert_eq!(room[5], 9);
        assert_eq!(gather(&pieces(&[]), &mut room), Some(&[][..]));
        assert_eq!(gather(&pieces(&[SHARED, 1]), &mut room), None, "too many");
        assert_eq!(gather(&pieces(&[100, SHARED - 100]), &mut room).map(<[u8]>::len), Some(SHARED));
        assert_eq!(gather(&pieces(&[2, 3]), &mut room[..4]), None, "no room");
    }
}
