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

impl VerbsRnic {
    /// Takes asynchronous events from the device, and hands on those that concern other RNICs of this
    /// process.
    pub(super) fn drain_async(&mut self, now: Time) {
        while let Some(note) = self.device.next_async() {
            let shared = DeviceNote::Async(note);
            match note.serial {
                Some(serial) if !self.by_serial.contains_key(&serial) => {
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
        let qp = note.serial.and_then(|n| self.by_serial.get(&n)).copied();
        crate::trace::debug!("{}: {} (QP {qp:?})", self.caps.name, note.name());
        match (note.event, qp, note.port) {
            // IBV_EVENT_QP_FATAL, _QP_REQ_ERR.
            (1 | 2, Some(qp), _) => {
                self.failed.push((qp, DisconnectCause::Device(super::STATUS_FATAL)));
            }
            // IBV_EVENT_QP_ACCESS_ERR: the peer named memory that it may not access.
            (3, Some(qp), _) => {
                let code = TermCode { layer: 0, etype: 1, code: 0xff };
                self.failed.push((qp, DisconnectCause::TerminatedByUs(code)));
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
                self.ports_down.remove(&port);
            }
            (10, _, Some(port)) => {
                self.ports_down.entry(port).or_insert(now + PORT_GRACE);
            }
            _ => {}
        }
    }

    pub(super) fn set_deadline(&mut self, qp: u32, at: Option<Time>) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        if let Some(old) = std::mem::replace(&mut q.deadline, at) {
            self.timers.remove(&(old, qp));
        }
        if let Some(at) = at {
            self.timers.insert((at, qp));
        }
    }

    pub(super) fn fire_timers(&mut self, now: Time) {
        while let Some(&(at, qp)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, qp));
            if let Ok(q) = self.qps.get_mut(qp) {
                q.deadline = None;
            }
            self.deadline_passed(qp);
        }
        let down: Vec<i32> =
            self.ports_down.iter().filter(|(_, t)| **t <= now).map(|(p, _)| *p).collect();
        for port in down {
            self.ports_down.remove(&port);
            let number = u8::try_from(port).unwrap_or(1);
            let back = self.device.port(number).is_ok_and(|p| p.state == 4);
            if !back {
                self.port_lost(number);
            }
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
            self.failed.push((qp, DisconnectCause::Broken(libc::ENETDOWN)));
        }
    }

    pub(super) fn end_failed(&mut self) {
        while let Some((qp, cause)) = self.failed.pop() {
            self.finish(qp, cause);
        }
        if self.removed && !std::mem::replace(&mut self.removal_reported, true) {
            self.release();
            self.events.push_back(RnicEvent::DeviceRemoved);
        }
    }
}
