//! The sends that have not ended, and the chunk that is being posted.

use std::collections::VecDeque;

use crate::ids::{OpId, Outcome};
use crate::time::Time;

use super::proto::Job;
use super::table::Table;
use super::{Counters, Done, OpError, SendSource};

/// A send, or the end of the sending direction.
#[derive(Debug)]
struct Send {
    /// The caller's operation; none for the shutdown that is a part of a close.
    user: Option<OpId>,
    /// The bytes; none for a shutdown.
    source: Option<SendSource>,
    /// WRs that use its memory.
    in_flight: u32,
    /// Why it is being ended early.
    fate: Option<OpError>,
    /// Its file could not give all its bytes: why, and how many it gave.
    failed: Option<(OpError, u64)>,
    /// It has ended with these bytes and this error, but WRs can still use its memory.
    over: Option<(u64, Option<OpError>)>,
    /// When it must have ended.
    deadline: Option<Time>,
}

/// The work that remains for a send that is ended early.
pub(super) enum EndEarly {
    /// Nothing: there is no such send, or it is ending.
    Nothing,
    /// Finish it: its FIN is out, and only its report was outstanding.
    Finish,
    /// Cancel it in the machine.
    Cancel,
}

/// Where ended operations are reported.
pub(super) struct Ends<'a> {
    pub(super) done: &'a mut VecDeque<Done>,
    pub(super) counters: &'a mut Counters,
}

/// The sending half's operations.
#[derive(Debug)]
pub(super) struct Sender {
    sends: Table<Send>,
    /// The chunk that is being posted. Nothing of its direction overtakes it.
    job: Option<Job>,
    /// The send whose message waits for room with the peer, as a WR. None: there is none.
    waits_for_room: Option<u64>,
}

impl Sender {
    pub(super) fn new() -> Sender {
        Sender { sends: Table::new(), job: None, waits_for_room: None }
    }

    /// Adds a send of data.
    pub(super) fn post(&mut self, user: OpId, source: SendSource, deadline: Option<Time>) -> u64 {
        self.add(Some(user), Some(source), deadline)
    }

    /// Adds the end of the direction.
    pub(super) fn post_shutdown(&mut self, user: Option<OpId>) -> u64 {
        self.add(user, None, None)
    }

    fn add(
        &mut self,
        user: Option<OpId>,
        source: Option<SendSource>,
        deadline: Option<Time>,
    ) -> u64 {
        let (fate, failed, over) = (None, None, None);
        self.sends.insert(Send { user, source, in_flight: 0, fate, failed, over, deadline })
    }

    /// No send has not ended.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// The sends that have not ended, and the ends of the direction.
    pub(super) fn in_flight(&self) -> usize {
        self.sends.len()
    }

    /// No send has not ended, and no chunk is being posted.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.job.is_none()
    }

    /// No data wait to be sent: only ends of the direction are left.
    pub(super) fn has_only_shutdowns(&self) -> bool {
        self.sends.iter().all(|(_, s)| s.source.is_none())
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.sends.get(id).is_some()
    }

    pub(super) fn find(&self, user: OpId) -> Option<u64> {
        self.sends.find_id(|s| s.user == Some(user))
    }

    /// The sends of data, oldest first.
    pub(super) fn data_sends(&self) -> Vec<u64> {
        self.sends.iter().filter(|(_, s)| s.source.is_some()).map(|(id, _)| id).collect()
    }

    pub(super) fn source(&self, id: u64) -> Option<&SendSource> {
        self.sends.get(id).and_then(|s| s.source.as_ref())
    }

    /// The deadlines in order of posting.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Option<Time>> {
        self.sends.iter().map(|(_, s)| s.deadline)
    }

    /// A send whose deadline has come.
    pub(super) fn overdue(&self, now: Time) -> Option<u64> {
        self.sends.find_id(|s| s.deadline.is_some_and(|at| at <= now))
    }

    /// A chunk is being posted.
    #[inline]
    pub(super) fn has_job(&self) -> bool {
        self.job.is_some()
    }

    pub(super) fn set_job(&mut self, job: Option<Job>) {
        self.job = job;
    }

    pub(super) fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    /// A message with bytes of this send was posted as a WR, which waits for room with the peer. The
    /// data behind it wait here and not as WRs: once there is room, they leave as eager messages.
    pub(super) fn await_room(&mut self, id: u64) {
        self.waits_for_room = Some(id);
    }

    /// A WR with bytes of this send is over. If it waited for room, there is room.
    pub(super) fn found_room(&mut self, id: u64) {
        self.waits_for_room = self.waits_for_room.filter(|waiting| *waiting != id);
    }

    /// A message waits for room, and all further data wait behind it.
    #[inline]
    pub(super) fn awaits_room(&self) -> bool {
        self.waits_for_room.is_some()
    }

    /// A WR is about to use the memory of a send.
    pub(super) fn lend(&mut self, id: u64) {
        if let Some(send) = self.sends.get_mut(id) {
            send.in_flight += 1;
        }
    }

    /// The WR that was about to use the memory was refused.
    pub(super) fn take_back(&mut self, id: u64) {
        if let Some(send) = self.sends.get_mut(id) {
            send.in_flight -= 1;
        }
    }

    /// A WR that used the memory is over.
    pub(super) fn release(&mut self, id: u64, ends: &mut Ends<'_>) {
        let Some(send) = self.sends.get_mut(id) else { return };
        send.in_flight -= 1;
        if send.in_flight == 0 && send.over.is_some() {
            self.finish(id, ends);
        }
    }

    /// Its file could not give more than `had` bytes. Gives the bytes that were asked of it.
    pub(super) fn fail_file(&mut self, id: u64, had: u64, errno: Option<i32>) {
        if let Some(send) = self.sends.get_mut(id) {
            let asked = send.source.as_ref().map_or(0, SendSource::len);
            let error = match errno {
                Some(errno) => OpError::FileRead { errno },
                None => OpError::FileTooShort { had, asked },
            };
            send.failed = Some((error, had));
        }
    }

    /// Begins to end a send before its time.
    pub(super) fn end_early(&mut self, id: u64, why: OpError) -> EndEarly {
        let Some(send) = self.sends.get_mut(id) else { return EndEarly::Nothing };
        send.deadline = None;
        if send.fate.is_some() {
            return EndEarly::Nothing;
        }
        send.fate = Some(why);
        match send.source.is_none() && send.over.is_some() {
            true => EndEarly::Finish,
            false => EndEarly::Cancel,
        }
    }

    /// The machine has ended a send: reports it, now or when no WR uses its memory any more.
    pub(super) fn done(&mut self, id: u64, bytes: u64, outcome: Outcome, ends: &mut Ends<'_>) {
        let Some(send) = self.sends.get_mut(id) else { return };
        // A cancellation that came too late is none.
        let error = match outcome {
            Outcome::Ok => None,
            Outcome::Cancelled => Some(send.fate.clone().unwrap_or(OpError::Cancelled)),
        };
        send.over = Some((bytes, error));
        if send.in_flight == 0 {
            self.finish(id, ends);
        }
    }

    /// The connection is over: ends all sends, apart from those whose memory a WR still uses.
    /// `ended` are those that the machine knew, with the bytes moved.
    pub(super) fn abort(&mut self, ended: Vec<(u64, u64)>, reason: &OpError, ends: &mut Ends<'_>) {
        for (id, bytes) in ended {
            if let Some(send) = self.sends.get_mut(id) {
                // A send that was cancelled before it began has ended by now. So this one had
                // begun, and the peer may have all of it, whatever the program asked for since,
                // and however much its file had: only the end of the connection is known.
                send.failed = None;
                send.over.get_or_insert((bytes, Some(reason.clone())));
            }
        }
        let free: Vec<u64> =
            self.sends.iter().filter(|(_, s)| s.in_flight == 0).map(|(id, _)| id).collect();
        for id in free {
            if let Some(send) = self.sends.get_mut(id) {
                send.over.get_or_insert((0, Some(reason.clone())));
            }
            self.finish(id, ends);
        }
    }

    /// Reports a send that has ended, and the shutdowns that have waited for it.
    pub(super) fn finish(&mut self, id: u64, ends: &mut Ends<'_>) {
        if self.may_finish(id) {
            self.report(id, ends);
            self.finish_shutdowns(ends);
        }
    }

    /// The end of the direction is reported after all that was sent before it: a message that
    /// is announced can still wait for its receive. Nothing is sent after it. A shutdown that
    /// was cancelled does not wait.
    fn may_finish(&mut self, id: u64) -> bool {
        let shutdown = self.sends.get_mut(id).filter(|s| s.source.is_none() && s.fate.is_none());
        let Some(shutdown) = shutdown else { return true };
        shutdown.over.get_or_insert((0, Some(OpError::Aborted)));
        self.sends.iter().take_while(|(other, _)| *other < id).all(|(_, s)| s.source.is_none())
    }

    /// Shutdowns that have waited for the last send before them end with it.
    fn finish_shutdowns(&mut self, ends: &mut Ends<'_>) {
        let waits = |s: &Send| s.source.is_none() && s.over.is_some();
        while let Some(id) = self.sends.first().filter(|(_, s)| waits(s)).map(|(id, _)| id) {
            self.report(id, ends);
        }
    }

    fn report(&mut self, id: u64, ends: &mut Ends<'_>) {
        let Some(send) = self.sends.remove(id) else { return };
        let (bytes, error) = match (send.failed, send.over) {
            (Some((error, bytes)), _) => (bytes, Some(error)),
            (None, over) => over.unwrap_or((0, Some(OpError::Aborted))),
        };
        if send.source.is_some() {
            ends.counters.sends += 1;
        }
        if let Some(op) = send.user {
            let result = error.map_or(Ok(()), Err);
            ends.done.push_back(Done { op, bytes, total: bytes, eof: false, result });
        }
    }
}
