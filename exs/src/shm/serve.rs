//! Progress: what is ready is served.

use std::time::Duration;

use super::ShmRnic;
use super::link::{End, Env, Owner, Phase};
use super::qp::{Conn, flushed};
use super::ring::Word;
use crate::mem::{AccessFault, Key};
use crate::rnic::table::ID_BITS;
use crate::rnic::{
    CmEvent, Disconnect, DisconnectCause, Qp, QpState, Ready, RnicError, RnicEvent, TermCode, WcOp,
    WcStatus,
};
use crate::time::Time;

/// Bytes that one connection may move, each way, before the next has its turn.
const BUDGET: usize = 512 << 10;
/// The same for one that nobody waits for: a turn of the engine, after so many bytes, finds
/// all that it needs out of the cache, which was 4 % of a stream of mebibytes. (A mebibyte, and
/// the records that announce it.)
const BUDGET_ALONE: usize = (1 << 20) + (64 << 10);
/// Sources that are served in one go. With a thousand busy connections the lock would
/// else be held for tens of milliseconds, the program could post no receive meanwhile, and
/// what came would go by the rings, copied twice, out of caches that it has left.
const TURN: usize = 16;
/// Silence after which a connection is taken for idle.
const IDLE: Duration = Duration::from_secs(1);
/// How long an orderly close may stand still before it is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Something that becomes ready or falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    /// A connection: its socket.
    Link(u32),
    /// The board.
    DoorbellBitmap,
    /// A listening socket.
    Listener(u32),
    /// A caller that has not said what it wants.
    Stranger(u32),
    /// A connection whose listener had no room: time to try again. (No token.)
    Retry(u32),
}

impl Source {
    /// The token of this source, relative to the driver's first.
    pub(super) fn token(self) -> usize {
        let (kind, id) = match self {
            Source::Link(id) | Source::Retry(id) => (0, id),
            Source::DoorbellBitmap => (1, 0),
            Source::Listener(id) => (2, id),
            Source::Stranger(id) => (3, id),
        };
        (kind << ID_BITS) | id as usize
    }

    /// The source that a token stands for, if it can be one of ours.
    fn of(token: usize) -> Option<Source> {
        let id = u32::try_from(token & ((1 << ID_BITS) - 1)).ok()?;
        match token >> ID_BITS {
            0 => Some(Source::Link(id)),
            1 => Some(Source::DoorbellBitmap),
            2 => Some(Source::Listener(id)),
            3 => Some(Source::Stranger(id)),
            _ => None,
        }
    }
}

/// How a WR ends whose record the peer has refused with this code.
fn status(code: TermCode) -> WcStatus {
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

impl ShmRnic {
    /// Puts a source on the ready list, once.
    pub(super) fn enqueue(&mut self, source: Source) {
        let queued = match source {
            Source::Link(id) | Source::Retry(id) => self.links.get_mut(id).map(|l| &mut l.queued),
            Source::Listener(id) => self.listeners.get_mut(id).map(|l| &mut l.queued),
            Source::Stranger(id) => self.strangers.get_mut(id).map(|s| &mut s.queued),
            // It is no work of its own: the connections that are marked there are.
            Source::DoorbellBitmap => return,
        };
        if let Ok(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.ready.push_back(match source {
                Source::Retry(id) => Source::Link(id),
                other => other,
            });
        }
    }

    /// Takes over what the reactor saw.
    pub(super) fn handle_ready(&mut self, token: usize, _: Ready) {
        let source = token.checked_sub(self.token_base).and_then(Source::of);
        let Some(source) = source else { return };
        match source {
            Source::Link(id) => {
                if let Ok(link) = self.links.get_mut(id) {
                    link.readable = true;
                }
                self.warm(id);
            }
            Source::Listener(id) => self.note_callers(id),
            Source::DoorbellBitmap => {
                if let Some(board) = &mut self.board {
                    board.bell().note();
                }
                self.take_marks();
            }
            Source::Stranger(_) | Source::Retry(_) => {}
        }
        self.enqueue(source);
    }

    /// Serves the sources that are ready, each once, and so many at most. True if some have
    /// more to do.
    pub(super) fn progress(&mut self, now: Time) -> bool {
        while let Some(source) = self.timers.expire(now) {
            match source {
                Source::Link(id) => self.link_due(id),
                Source::Stranger(id) => self.drop_stranger(id),
                _ => self.enqueue(source),
            }
        }
        let turn = self.ready.len().min(TURN);
        self.served += turn;
        for _ in 0..turn {
            match self.ready.pop_front() {
                Some(Source::Link(id)) => self.serve_link(id, now),
                Some(Source::Listener(id)) => self.serve_listener(id, now),
                Some(Source::Stranger(id)) => self.serve_stranger(id, now),
                _ => {}
            }
        }
        !self.ready.is_empty()
    }

    /// Puts what a queue pair has posted on the wire.
    pub(super) fn flush(&mut self, qp: Qp, now: Time) {
        let Ok(Conn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.phase == Phase::Open && !link.hung_up {
            link.tx.ring();
            // What has come for it waits for its turn, if others do.
            let come = if self.ready.is_empty() { BUDGET_ALONE } else { 0 };
            self.move_data(id, come, now);
        }
    }

    /// Ends a queue pair's connection.
    pub(super) fn disconnect(
        &mut self,
        qp: Qp,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError> {
        let state = self.qp_state(qp)?;
        let Conn::Link(id) = self.qps.get(qp.0)?.conn else {
            return Err(self.wrong_state(qp, "a connection"));
        };
        match (state, how) {
            (QpState::Connecting, _) => {
                let (call, errno) = ("connect", libc::ECANCELED);
                self.fail_attempt(id, RnicError::Os { call, errno });
            }
            (QpState::Closing, Disconnect::Orderly) => {}
            (_, Disconnect::Orderly) => {
                let link = self.links.get_mut(id)?;
                link.closing = true;
                link.tx.ring();
                self.timers.set(Source::Link(id), now + CLOSE_LIMIT);
                self.enqueue(Source::Link(id));
            }
            _ => self.cut(id, DisconnectCause::Aborted, None),
        }
        Ok(())
    }

    fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        link.queued = false;
        if link.phase == Phase::Calling {
            return self.call_again(id, now);
        }
        self.take_notes(id, now);
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.readable && !link.hung_up {
            // There are more messages than one turn takes.
            link.queued = true;
            self.ready.push_back(Source::Link(id));
        }
        match link.phase {
            Phase::Open => self.move_data(id, BUDGET_ALONE, now),
            _ if link.hung_up => self.lost(id),
            _ => {}
        }
    }

    /// A peer that hung up before there was a connection.
    fn lost(&mut self, id: u32) {
        match self.links.get(id).map(|l| l.owner) {
            Ok(Owner::Qp(_)) => {
                self.fail_attempt(id, RnicError::Os { call: "connect", errno: libc::ECONNRESET });
            }
            _ => self.drop_link(id),
        }
    }

    /// Moves the data of a connection, of what `come`s at most so many bytes, and does what comes
    /// of it.
    fn move_data(&mut self, id: u32, come: usize, now: Time) {
        let budget = if self.ready.is_empty() { BUDGET_ALONE } else { BUDGET };
        let Ok(link) = self.links.get_mut(id) else { return };
        let Owner::Qp(qp) = link.owner else { return };
        let Ok(pair) = self.qps.get_mut(qp) else { return };
        let attr = pair.attr;
        let room = self.objects.cqs.get(attr.recv_cq.0).map_or(0, |cq| cq.room());
        let recvs = match attr.srq {
            Some(srq) => match self.objects.srqs.get_mut(srq.0) {
                Ok(queue) => &mut queue.bufs,
                Err(_) => return,
            },
            None => &mut pair.recvs,
        };
        let (keys, pd, wcs) = (&self.keys, attr.pd.0, &mut self.wcs);
        link.tx.lap.share(self.hot.len());
        // Looked at before the records: those that were there before the end are taken.
        link.end = link.their_end();
        let turn =
            link.turn(&mut Env { keys, pd, qp, recvs, room, wcs }, (come.min(budget), budget));
        let stalled = link.stalled;
        if turn.is_ok_and(|pass| pass.moved) {
            // Who was silent for so long is idle; what moves is a sign of life, every few
            // seconds, and that would wander through the whole ring.
            let before = std::mem::replace(&mut link.moved, now);
            if now.since(before) >= IDLE {
                link.tx.trim(&link.mem);
            }
        }
        self.pass_on();
        let pass = match turn {
            Ok(pass) => pass,
            Err(end) => return self.ended(id, end),
        };
        if stalled {
            self.objects.await_recv(id, &attr);
        } else if let Some(srq) = attr.srq {
            self.wake_srq(srq.0);
        }
        if pass.more {
            self.enqueue(Source::Link(id));
        }
        // One that is marked says anew what it waits for: the peer, who has taken that away, may
        // have had something to tell that moved nothing. And so does one that waits for room
        // since this turn.
        let anew = |l: &super::link::Link| !l.hot && (l.given || l.tx.lacks_room());
        if pass.moved || self.links.get(id).is_ok_and(|l| anew(l)) {
            self.warm(id);
        }
        self.settle(id, pass.moved, pass.more, now);
    }

    /// Hands completions to their queues.
    fn pass_on(&mut self) {
        if !self.wcs.is_empty() {
            let mut wcs = std::mem::take(&mut self.wcs);
            for wc in wcs.drain(..) {
                self.complete(wc);
            }
            self.wcs = wcs;
        }
    }

    /// After a turn: ends what is over.
    fn settle(&mut self, id: u32, moved: bool, more: bool, now: Time) {
        let enough = self.looks_at_enough();
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.rx.fin && !link.closing {
            // The peer has sent its last: so do we.
            link.closing = true;
            link.tx.ring();
            self.timers.set(Source::Link(id), now + CLOSE_LIMIT);
            return self.enqueue(Source::Link(id));
        }
        if link.closing {
            if link.rx.fin && link.tx.is_over() {
                return self.cut(id, DisconnectCause::Orderly, None);
            }
            if moved {
                self.timers.set(Source::Link(id), now + CLOSE_LIMIT);
            }
        }
        if link.new_board.is_some() || link.wants_board(enough) {
            self.exchange_boards(id);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.end.take() {
            // What the peer sent before it cut the connection is taken first.
            Some(End::Gone) if (moved || more) && !link.stalled => {
                return self.enqueue(Source::Link(id));
            }
            Some(end) => return self.ended(id, end),
            None if link.their_end().is_some() => return self.enqueue(Source::Link(id)),
            None => {}
        }
        // What the peer has left behind is taken first; a receive that is missing may come.
        match link.hung_up && !link.stalled {
            true if moved || more => self.enqueue(Source::Link(id)),
            true => self.ended(id, End::Gone),
            false => {}
        }
    }

    /// A connection must end.
    fn ended(&mut self, id: u32, end: End) {
        let cause = match end {
            End::Violation(code) => {
                if let Ok(link) = self.links.get_mut(id) {
                    // So the peer knows which of its records it was.
                    link.publish_consumed();
                }
                DisconnectCause::TerminatedByUs(code)
            }
            End::Refused(code) => DisconnectCause::TerminatedByPeer(code),
            End::Gone => DisconnectCause::Broken(libc::ECONNRESET),
        };
        self.cut(id, cause, None);
    }

    /// Ends a connection at once: everything that is outstanding is flushed. `revoked`: an
    /// MR whose end is the reason.
    pub(super) fn cut(&mut self, id: u32, cause: DisconnectCause, revoked: Option<Key>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Owner::Qp(qp) = link.owner else { return self.drop_link(id) };
        if !matches!(cause, DisconnectCause::TerminatedByPeer(_)) {
            link.tell_end(cause);
        }
        let refused = match cause {
            DisconnectCause::TerminatedByPeer(code) => {
                Some((link.mem.theirs(Word::Consumed), status(code)))
            }
            _ => None,
        };
        let mut wcs = std::mem::take(&mut self.wcs);
        if let Some(buf) = link.rx.abandon() {
            let mut wc = flushed(qp, buf.wr_id, WcOp::Recv);
            if let Some(key) = revoked.filter(|key| buf.lkeys.contains(key)) {
                wc.status = WcStatus::LocalProtection(AccessFault::InvalidKey { key });
            }
            wcs.push(wc);
        }
        link.tx.flush(refused, revoked, |wr_id, op, status| {
            wcs.push(crate::rnic::Wc { status, ..flushed(qp, wr_id, op) });
        });
        self.wcs = wcs;
        self.pass_on();
        self.kill_qp(qp);
        self.drop_link(id);
        self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
    }

    pub(super) fn emit(&mut self, event: CmEvent) {
        self.events.push_back(RnicEvent::Cm(event));
    }

    /// A link's deadline has passed.
    fn link_due(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        match (link.owner, link.phase) {
            (Owner::Qp(_), Phase::Open) => {
                self.cut(id, DisconnectCause::Broken(libc::ETIMEDOUT), None);
            }
            (Owner::Qp(qp), _) => {
                let timeout = self.qps.get(qp).map_or(Duration::ZERO, |q| q.timeout);
                self.fail_attempt(id, RnicError::Timeout(timeout));
            }
            (Owner::Asking { .. }, _) => self.drop_link(id),
        }
    }

    /// Closes a link whose queue pair goes.
    pub(super) fn abandon_link(&mut self, id: u32) {
        if let Ok(link) = self.links.get(id) {
            link.tell_end(DisconnectCause::Aborted);
        }
        self.drop_link(id);
    }

    pub(super) fn drop_link(&mut self, id: u32) {
        self.disown(id);
        let Ok(link) = self.links.remove(id) else { return };
        self.timers.clear(Source::Link(id));
        self.timers.clear(Source::Retry(id));
        if link.hot {
            self.hot.retain(|h| *h != id);
        }
        if let Some(sock) = link.sock {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&sock));
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
        self.wake_starved();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_source() {
        for source in [
            Source::Link(0),
            Source::DoorbellBitmap,
            Source::Listener(7),
            Source::Stranger((1 << ID_BITS) - 1),
        ] {
            assert!(source.token() < 1 << 32);
            assert_eq!(Source::of(source.token()), Some(source));
        }
        assert_eq!(Source::of(usize::MAX), None);
    }
}
