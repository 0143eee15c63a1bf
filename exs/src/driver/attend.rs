//! Links that a thread attends, outside of the reactor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Driver;
use super::link::Traffic;
use crate::rnic::{Attended, AttendedBlock, AttendedEnd, AttendedWait, PolledSleep, Qp};
use crate::sys::SharedStream;

impl<L: Traffic> Driver<L> {
    pub(super) fn attend_link(&mut self, qp: Qp) -> bool {
        let Some(id) = self.link_of(qp) else { return false };
        let Ok(link) = self.links.get_mut(id) else { return false };
        if link.peek_attended().is_none() {
            return false;
        }
        link.base_mut().attended = true;
        L::begin_attendance(self, id);
        true
    }

    pub(super) fn unattend_link(&mut self, qp: Qp) -> bool {
        // The link of a connection that has ended is gone, or goes.
        let Some(id) = self.link_of(qp) else { return true };
        let Ok(link) = self.links.get_mut(id) else { return true };
        if !std::mem::replace(&mut link.base_mut().attended, false) {
            return true;
        }
        let ended = L::end_attendance(self, id).is_ok();
        if let Ok(link) = self.links.get_mut(id) {
            link.base_mut().attended = !ended;
        }
        ended
    }

    pub(super) fn look_at_attended(&self, qp: Qp) -> Option<Attended> {
        let link = self.links.get(self.link_of(qp)?).ok()?;
        let found = link.peek_attended()?;
        Some(if link.base().queued { Attended::Ready } else { found })
    }

    pub(super) fn announce_attended_sleep(
        &mut self,
        qp: Qp,
        how: AttendedBlock,
    ) -> Option<AttendedWait> {
        if self.look_at_attended(qp)? == Attended::Ready {
            return Some(AttendedWait::Ready);
        }
        let link = self.links.get_mut(self.link_of(qp)?).ok()?;
        Some(link.sleep_attended(how))
    }

    pub(super) fn lend_stream_of(&mut self, qp: Qp) -> Option<Arc<SharedStream>> {
        let link = self.links.get_mut(self.link_of(qp)?).ok()?;
        link.peek_attended()?;
        link.lend_stream()
    }

    pub(super) fn announce_polled_sleep(&mut self, qp: Qp, end: BorrowedFd<'_>) -> PolledSleep {
        match self.look_at_attended(qp) {
            None | Some(Attended::Idle { for_room: true }) => return PolledSleep::Unable,
            Some(Attended::Ready) => return PolledSleep::Ready,
            Some(Attended::Idle { for_room: false }) => {}
        }
        let link = self.link_of(qp).and_then(|id| self.links.get_mut(id).ok());
        link.map_or(PolledSleep::Unable, |link| link.sleep_polled(end))
    }

    pub(super) fn polled_rings(&mut self, qp: Qp) -> u32 {
        let link = self.link_of(qp).and_then(|id| self.links.get_mut(id).ok());
        link.map_or(0, Traffic::take_polled_rings)
    }

    pub(super) fn note_attended(&mut self, qp: Qp, end: AttendedEnd<'_>) {
        if let Some(id) = self.link_of(qp) {
            L::wake_attended(self, id, end);
        }
    }
}
