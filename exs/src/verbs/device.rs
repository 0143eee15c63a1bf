//! Events of a whole device, and timers.

use std::time::Duration;

use super::VerbsRnic;
use super::events::{self, DeviceNote};
use super::raw::AsyncNote;
use crate::rnic::{DisconnectCause, RnicEvent, TermCode};
use crate::time::Time;

/// Time that a port may be down, for a cable that is moved or a switch that starts. After that its
/// connections end.
const PORT_GRACE: Duration = Duration::from_secs(5);

/// What has a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Due {
    /// The phase of a queue pair's connection.
    Qp(u32),
    /// A port that is down: then its connections end.
    Port(i32),
}

impl VerbsRnic {
    /// Takes asynchronous events from the device, and hands on those that concern other RNICs of this
    /// process.
    pub(super) fn drain_async(&mut self, now: Time) {
        while let Some(note) = self.device.next_async() {
            let shared = DeviceNote::Async(note);
            match note.serial {
                Some(serial) if self.cm_ids.owner(serial).is_none() => {
                    events::deliver(serial, shared);
                }
                Some(_) => self.handle_async(note, now),
                None => {
                    events::tell_others(self.device, &self.inbox, shared);
                    self.handle_async(note, now);
                }
            }
        }
    }

    /// Takes what other RNICs on the device have left for this one.
    pub(super) fn take_notes(&mut self, now: Time) {
        for note in self.inbox.take() {
            match note {
                DeviceNote::Async(note) => self.handle_async(note, now),
                DeviceNote::NodeGone => self.node_gone(),
            }
        }
    }

    fn handle_async(&mut self, note: AsyncNote, now: Time) {
        let qp = note.serial.and_then(|serial| self.cm_ids.owner(serial));
        crate::trace::debug!("{}: {} (QP {qp:?})", self.profile.name(), note.name());
        match (note.event, qp, note.port) {
            // IBV_EVENT_QP_FATAL, _QP_REQ_ERR.
            (1 | 2, Some(qp), _) => self.failed.note_fatal(qp),
            // IBV_EVENT_QP_ACCESS_ERR: the peer named memory that it may not access.
            (3, Some(qp), _) => {
                let code = TermCode { layer: 0, etype: 1, code: 0xff };
                self.refuse(qp, DisconnectCause::TerminatedByUs(code));
            }
            // IBV_EVENT_COMM_EST.
            (4, Some(qp), _) => self.established_by_message(qp),
            // IBV_EVENT_DEVICE_FATAL. IBV_EVENT_CQ_ERR: completions of all queue pairs are lost.
            // IBV_EVENT_SRQ_ERR: receives are lost, and no queue pair can go on without them.
            (8 | 0 | 14, ..) => self.device_lost(),
            // IBV_EVENT_QP_LAST_WQE_REACHED.
            (16, Some(qp), _) => self.handle_last_wqe(qp),
            // IBV_EVENT_PORT_ACTIVE, _PORT_ERR.
            (9, _, Some(port)) => {
                self.deadlines.clear(Due::Port(port));
            }
            (10, _, Some(port)) if !self.deadlines.is_set(Due::Port(port)) => {
                self.deadlines.set(Due::Port(port), now + PORT_GRACE);
            }
            _ => {}
        }
    }

    /// Sets, moves or clears the deadline of a queue pair.
    pub(super) fn set_deadline(&mut self, qp: u32, at: Option<Time>) {
        match at {
            Some(at) => self.deadlines.set(Due::Qp(qp), at),
            None => self.deadlines.clear(Due::Qp(qp)),
        }
    }

    pub(super) fn fire_timers(&mut self, now: Time) {
        while let Some(due) = self.deadlines.expire(now) {
            match due {
                Due::Qp(qp) => self.deadline_passed(qp),
                Due::Port(port) => self.port_grace_passed(port),
            }
        }
    }

    /// A port has been down for long. Its connections end, unless it is back without an event.
    fn port_grace_passed(&mut self, port: i32) {
        let number = u8::try_from(port).unwrap_or(1);
        let back = self.device.port(number).is_ok_and(|p| p.state == 4);
        if !back {
            self.port_lost(number);
        }
    }

    fn port_lost(&mut self, port: u8) {
        let hit: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, q)| q.hw.as_ref().is_some_and(|hw| hw.id.port() == port))
            .map(|(id, _)| id)
            .collect();
        for qp in hit {
            self.failed.note(qp, DisconnectCause::Broken(libc::ENETDOWN));
        }
    }

    pub(super) fn end_failed(&mut self) {
        while let Some((qp, cause)) = self.failed.take() {
            self.finish(qp, cause);
        }
        if self.presence.report() {
            self.release();
            self.events.push_back(RnicEvent::DeviceRemoved);
        }
    }
}
