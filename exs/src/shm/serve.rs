//! Progress: serves sources that are ready or due.

use std::time::Duration;

use super::ShmRnic;
use super::link::{Env, LinkError, LinkOwner, LinkPhase};
use super::qp::{ShmConn, flushed};
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
/// The same if no other source is ready: a mebibyte, and the records that announce it. After so
/// large a turn the engine finds its data out of the cache, so turns of `BUDGET` cost 4 % of a
/// stream of mebibytes.
const BUDGET_ALONE: usize = (1 << 20) + (64 << 10);
/// Sources served in one call. With a thousand busy connections a longer call would hold the lock
/// for tens of milliseconds. The program could post no receive meanwhile, and what came would go
/// by the rings: copied twice, and out of caches by then.
const SOURCES_PER_TURN: usize = 16;
/// Silence after which a connection counts as idle.
const IDLE: Duration = Duration::from_secs(1);
/// Time without progress after which an orderly close is cut.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// An object that becomes ready or falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ShmSource {
    /// A link: its socket, its records, its deadline.
    Link(u32),
    /// The doorbell bitmap.
    DoorbellBitmap,
    /// A listener.
    Listener(u32),
    /// A connecting peer whose HELLO has not come.
    PendingPeer(u32),
    /// A link that tries a full backlog again. It has no token of its own.
    Retry(u32),
}

impl ShmSource {
    /// The token of this source, relative to the driver's first.
    pub(super) fn token(self) -> usize {
        let (kind, id) = match self {
            ShmSource::Link(id) | ShmSource::Retry(id) => (0, id),
            ShmSource::DoorbellBitmap => (1, 0),
            ShmSource::Listener(id) => (2, id),
            ShmSource::PendingPeer(id) => (3, id),
        };
        (kind << ID_BITS) | id as usize
    }

    /// The source of a token; None if no source of this driver can have it.
    fn of(token: usize) -> Option<ShmSource> {
        let id = u32::try_from(token & ((1 << ID_BITS) - 1)).ok()?;
        match token >> ID_BITS {
            0 => Some(ShmSource::Link(id)),
            1 => Some(ShmSource::DoorbellBitmap),
            2 => Some(ShmSource::Listener(id)),
            3 => Some(ShmSource::PendingPeer(id)),
            _ => None,
        }
    }
}

/// The status of a WR whose record the peer has refused with this code.
fn status(code: TermCode) -> WcStatus {
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

impl ShmRnic {
    /// Puts a source on the ready list, once.
    pub(super) fn enqueue(&mut self, source: ShmSource) {
        let queued = match source {
            ShmSource::Link(id) | ShmSource::Retry(id) => {
                self.links.get_mut(id).map(|l| &mut l.queued)
            }
            ShmSource::Listener(id) => self.listeners.get_mut(id).map(|l| &mut l.queued),
            ShmSource::PendingPeer(id) => self.pending_peers.get_mut(id).map(|s| &mut s.queued),
            // The bitmap is no work itself: the links whose bits are set are.
            ShmSource::DoorbellBitmap => return,
        };
        if let Ok(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.ready.push_back(match source {
                ShmSource::Retry(id) => ShmSource::Link(id),
                other => other,
            });
        }
    }

    /// Records what the reactor saw.
    pub(super) fn handle_ready(&mut self, token: usize, _: Ready) {
        let source = token.checked_sub(self.token_base).and_then(ShmSource::of);
        let Some(source) = source else { return };
        match source {
            ShmSource::Link(id) => {
                if let Ok(link) = self.links.get_mut(id) {
                    link.readable = true;
                }
                self.make_hot(id);
            }
            ShmSource::Listener(id) => self.note_readable(id),
            ShmSource::DoorbellBitmap => {
                if let Some(bitmap) = &mut self.bitmap {
                    bitmap.bell().note();
                }
                self.collect_doorbells();
            }
            ShmSource::PendingPeer(_) | ShmSource::Retry(_) => {}
        }
        self.enqueue(source);
    }

    /// Serves up to `SOURCES_PER_TURN` ready sources, each once. True if some have more to do.
    pub(super) fn progress(&mut self, now: Time) -> bool {
        while let Some(source) = self.timers.expire(now) {
            match source {
                ShmSource::Link(id) => self.link_timed_out(id),
                ShmSource::PendingPeer(id) => self.drop_pending_peer(id),
                _ => self.enqueue(source),
            }
        }
        let turn = self.ready.len().min(SOURCES_PER_TURN);
        self.served_since_poll += turn;
        for _ in 0..turn {
            match self.ready.pop_front() {
                Some(ShmSource::Link(id)) => self.serve_link(id, now),
                Some(ShmSource::Listener(id)) => self.serve_listener(id, now),
                Some(ShmSource::PendingPeer(id)) => self.serve_pending_peer(id, now),
                _ => {}
            }
        }
        !self.ready.is_empty()
    }

    /// Lets everything that a queue pair has posted leave.
    pub(super) fn flush(&mut self, qp: Qp, now: Time) {
        let Ok(ShmConn::Link(id)) = self.qps.get(qp.0).map(|q| q.conn) else { return };
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.phase.is_connected() && !link.hung_up {
            link.tx.ring_doorbell();
            // Records that have come for it wait for their turn if other sources are ready.
            let rx_limit = if self.ready.is_empty() { BUDGET_ALONE } else { 0 };
            self.move_data(id, rx_limit, now);
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
        let ShmConn::Link(id) = self.qps.get(qp.0)?.conn else {
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
                link.enter(LinkPhase::Closing);
                link.tx.ring_doorbell();
                self.timers.set(ShmSource::Link(id), now + CLOSE_LIMIT);
                self.enqueue(ShmSource::Link(id));
            }
            _ => self.cut(id, DisconnectCause::Aborted, None),
        }
        Ok(())
    }

    fn serve_link(&mut self, id: u32, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        link.queued = false;
        if link.phase == LinkPhase::Calling {
            return self.retry_call(id, now);
        }
        self.take_control_messages(id, now);
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.readable && !link.hung_up {
            // More messages than one turn takes may be there.
            link.queued = true;
            self.ready.push_back(ShmSource::Link(id));
        }
        match link.phase {
            phase if phase.is_connected() => self.move_data(id, BUDGET_ALONE, now),
            _ if link.hung_up => self.handle_hang_up(id),
            _ => {}
        }
    }

    /// Handles a peer that hung up before the connection was open.
    fn handle_hang_up(&mut self, id: u32) {
        match self.links.get(id).map(|l| l.owner) {
            Ok(LinkOwner::Qp(_)) => {
                self.fail_attempt(id, RnicError::Os { call: "connect", errno: libc::ECONNRESET });
            }
            _ => self.drop_link(id),
        }
    }

    /// Moves the data of a connection, of what comes at most `rx_limit` bytes. Then completes WRs,
    /// re-arms the link, and ends it if it is over.
    fn move_data(&mut self, id: u32, rx_limit: usize, now: Time) {
        let budget = if self.ready.is_empty() { BUDGET_ALONE } else { BUDGET };
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.owner else { return };
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
        link.tx.window.set_busy_links(self.hot.len());
        // Read before the records: records from before the end are still taken.
        link.end = link.peer_end();
        let turn = link
            .transfer(&mut Env { keys, pd, qp, recvs, room, wcs }, (rx_limit.min(budget), budget));
        let stalled = link.stalled;
        if turn.is_ok_and(|pass| pass.moved) {
            // After a second of silence the connection is idle, and what moves now is most likely a
            // sign of life. One every few seconds would otherwise touch page after page of the ring.
            let before = std::mem::replace(&mut link.last_moved, now);
            if now.since(before) >= IDLE {
                link.tx.trim(&link.mem);
            }
        }
        self.deliver_wcs();
        let pass = match turn {
            Ok(pass) => pass,
            Err(end) => return self.fail_link(id, end),
        };
        if stalled {
            self.objects.await_recv(id, &attr);
        } else if let Some(srq) = attr.srq {
            self.wake_srq(srq.0);
        }
        if pass.more {
            self.enqueue(ShmSource::Link(id));
        }
        // A link that is armed states again what it waits for. Its peer may have cleared that for
        // news that moved nothing. The link may also wait for room only since this turn.
        let must_rearm =
            |l: &super::link::ShmLink| !l.hot && (l.peer_has_bitmap || l.tx.waits_for_room());
        if pass.moved || self.links.get(id).is_ok_and(|l| must_rearm(l)) {
            self.make_hot(id);
        }
        self.finish_turn(id, pass.moved, pass.more, now);
    }

    /// Puts completions into their queues.
    fn deliver_wcs(&mut self) {
        if !self.wcs.is_empty() {
            let mut wcs = std::mem::take(&mut self.wcs);
            for wc in wcs.drain(..) {
                self.complete(wc);
            }
            self.wcs = wcs;
        }
    }

    /// Ends a turn of a link: closes it if it is over.
    fn finish_turn(&mut self, id: u32, moved: bool, more: bool, now: Time) {
        let full = self.hot_set_is_full();
        let Ok(link) = self.links.get_mut(id) else { return };
        if link.rx.fin_received && link.phase == LinkPhase::Open {
            // The peer has sent its last record, so this side closes too.
            link.enter(LinkPhase::Closing);
            link.tx.ring_doorbell();
            self.timers.set(ShmSource::Link(id), now + CLOSE_LIMIT);
            return self.enqueue(ShmSource::Link(id));
        }
        if link.phase == LinkPhase::Closing {
            if link.rx.fin_received && link.tx.is_finished() {
                return self.cut(id, DisconnectCause::Orderly, None);
            }
            if moved {
                self.timers.set(ShmSource::Link(id), now + CLOSE_LIMIT);
            }
        }
        if link.received_bitmap.is_some() || link.wants_bitmap(full) {
            self.exchange_bitmaps(id);
        }
        let Ok(link) = self.links.get_mut(id) else { return };
        match link.end.take() {
            // Records that the peer sent before it cut the connection are taken first.
            Some(LinkError::Gone) if (moved || more) && !link.stalled => {
                return self.enqueue(ShmSource::Link(id));
            }
            Some(end) => return self.fail_link(id, end),
            None if link.peer_end().is_some() => return self.enqueue(ShmSource::Link(id)),
            None => {}
        }
        // Records that the peer has left in the ring are taken first, even if they wait for a receive.
        match link.hung_up && !link.stalled {
            true if moved || more => self.enqueue(ShmSource::Link(id)),
            true => self.fail_link(id, LinkError::Gone),
            false => {}
        }
    }

    /// Ends a connection for the reason that a transfer met.
    fn fail_link(&mut self, id: u32, end: LinkError) {
        let cause = match end {
            LinkError::Violation(code) => {
                if let Ok(link) = self.links.get_mut(id) {
                    // The consumer index tells the peer which of its records was refused.
                    link.publish_consumed();
                }
                DisconnectCause::TerminatedByUs(code)
            }
            LinkError::Refused(code) => DisconnectCause::TerminatedByPeer(code),
            LinkError::Gone => DisconnectCause::Broken(libc::ECONNRESET),
        };
        self.cut(id, cause, None);
    }

    /// Ends a connection at once, and flushes everything that is outstanding. `revoked`: the MR whose
    /// end is the reason; None: there is another reason.
    pub(super) fn cut(&mut self, id: u32, cause: DisconnectCause, revoked: Option<Key>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.owner else { return self.drop_link(id) };
        if !matches!(cause, DisconnectCause::TerminatedByPeer(_)) {
            link.publish_end(cause);
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
        self.deliver_wcs();
        self.kill_qp(qp);
        self.drop_link(id);
        self.emit(CmEvent::Disconnected { qp: Qp(qp), cause });
    }

    pub(super) fn emit(&mut self, event: CmEvent) {
        self.events.push_back(RnicEvent::Cm(event));
    }

    /// Handles a link whose deadline has passed.
    fn link_timed_out(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        match (link.owner, link.phase) {
            (LinkOwner::Qp(_), phase) if phase.is_connected() => {
                self.cut(id, DisconnectCause::Broken(libc::ETIMEDOUT), None);
            }
            (LinkOwner::Qp(qp), _) => {
                let timeout = self.qps.get(qp).map_or(Duration::ZERO, |q| q.timeout);
                self.fail_attempt(id, RnicError::Timeout(timeout));
            }
            (LinkOwner::Request { .. }, _) => self.drop_link(id),
        }
    }

    /// Closes the link of a queue pair that is destroyed.
    pub(super) fn abandon_link(&mut self, id: u32) {
        if let Ok(link) = self.links.get(id) {
            link.publish_end(DisconnectCause::Aborted);
        }
        self.drop_link(id);
    }

    pub(super) fn drop_link(&mut self, id: u32) {
        self.release_request(id);
        let Ok(link) = self.links.remove(id) else { return };
        self.timers.clear(ShmSource::Link(id));
        self.timers.clear(ShmSource::Retry(id));
        if link.hot {
            self.hot.retain(|h| *h != id);
        }
        if let Some(sock) = link.sock {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&sock));
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd));
        }
        self.wake_waiting_for_fds();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_names_its_source() {
        for source in [
            ShmSource::Link(0),
            ShmSource::DoorbellBitmap,
            ShmSource::Listener(7),
            ShmSource::PendingPeer((1 << ID_BITS) - 1),
        ] {
            assert!(source.token() < 1 << 32);
            assert_eq!(ShmSource::of(source.token()), Some(source));
        }
        assert_eq!(ShmSource::of(usize::MAX), None);
    }
}
