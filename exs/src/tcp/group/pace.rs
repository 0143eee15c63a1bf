//! Dials that have waited for a group, and go on by TCP connections of their own: a few at a time. The
//! connections of streams that leave a group take places among them.
//!
//! Thousands of dials may wait for the same answer. If all of them sent a SYN in one turn, the queue of
//! the listening socket at the other end would overflow. The kernel there drops what does not fit, and
//! TCP sends it again after 1, 3, 7, 15 and 31 seconds.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::super::SoftRnic;
use super::super::dial::{DialPlan, SoftDial};
use crate::driver::{Conn, Source};
use crate::rnic::RnicError;
use crate::time::Time;

/// Such dials to one address that are under way at a time. A listener of EXS starts up a quarter of its
/// descriptors at a time (`sys::most_strangers`): this many with the usual limit of 1,024. The kernel's
/// queue of a listening socket holds more: 4,096 since Linux 5.4, if the program asks for that.
pub(super) const AT_A_TIME: usize = 256;

/// The place of a dial among those under way, until it is dropped.
#[derive(Debug)]
pub(in crate::tcp) struct DialPlace {
    _place: Arc<()>,
}

/// The dials to one address.
#[derive(Default)]
struct DialTurns {
    /// Each place has one more reference.
    places: Arc<()>,
    /// Those that wait for a place, the next one first.
    waiting: VecDeque<u32>,
}

impl DialTurns {
    fn has_room(&self) -> bool {
        Arc::strong_count(&self.places) <= AT_A_TIME
    }

    fn is_due(&self) -> bool {
        self.has_room() && !self.waiting.is_empty()
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.places) == 1 && self.waiting.is_empty()
    }
}

/// The dials that go on by TCP connections of their own.
#[derive(Default)]
pub(in crate::tcp) struct PacedDials(HashMap<SocketAddr, DialTurns>);

impl PacedDials {
    /// True if others wait for a place at this address.
    pub(in crate::tcp) fn has_queue(&self, addr: &SocketAddr) -> bool {
        self.0.get(addr).is_some_and(|turns| !turns.waiting.is_empty())
    }

    /// A place at this address for a connection that no dial waits for, if there is one to spare.
    pub(super) fn spare_place(&mut self, addr: SocketAddr) -> Option<DialPlace> {
        let turns = self.0.entry(addr).or_default();
        let spare = turns.has_room() && turns.waiting.is_empty();
        spare.then(|| DialPlace { _place: Arc::clone(&turns.places) })
    }

    /// True if a dial can have its place now.
    pub(super) fn is_due(&self) -> bool {
        self.0.values().any(DialTurns::is_due)
    }

    fn push(&mut self, addr: SocketAddr, dial: u32) {
        self.0.entry(addr).or_default().waiting.push_back(dial);
    }

    /// A dial waits no more.
    pub(in crate::tcp) fn forget(&mut self, addr: &SocketAddr, dial: u32) {
        if let Some(turns) = self.0.get_mut(addr) {
            turns.waiting.retain(|waiting| *waiting != dial);
        }
    }

    /// The next dial that can have a place, and its place.
    fn next(&mut self) -> Option<(u32, DialPlace)> {
        if self.0.is_empty() {
            return None;
        }
        self.0.retain(|_, turns| !turns.is_over());
        let turns = self.0.values_mut().find(|turns| turns.is_due())?;
        let place = DialPlace { _place: Arc::clone(&turns.places) };
        turns.waiting.pop_front().map(|dial| (dial, place))
    }
}

impl SoftRnic {
    /// Lets a dial wait for its turn.
    pub(in crate::tcp) fn dial_in_turn(&mut self, plan: DialPlan) -> Result<Conn, RnicError> {
        let (addr, deadline) = (plan.addr, plan.deadline);
        let dial = self.parts.dials.insert(SoftDial::in_turn(plan))?;
        self.turns.timers.set(Source::Opening(dial), deadline);
        self.parts.groups.paced.push(addr, dial);
        Ok(Conn::Opening(dial))
    }

    /// Dials TCP connections for those that have waited for a group.
    pub(super) fn fall_back(&mut self, pending: Vec<u32>) {
        for id in pending {
            let Ok(dial) = self.parts.dials.get_mut(id) else { continue };
            dial.await_turn();
            let addr = dial.plan.addr;
            self.parts.groups.paced.push(addr, id);
        }
    }

    /// Begins the connects for which there is a place.
    pub(in crate::tcp) fn dial_paced(&mut self, now: Time) {
        while let Some((id, place)) = self.parts.groups.paced.next() {
            let Ok(mut dial) = self.parts.dials.remove(id) else { continue };
            self.turns.timers.clear(Source::Opening(id));
            dial.plan.place = Some(place);
            let (qp, addr) = (dial.plan.qp, dial.plan.addr);
            let conn = self.dial_tcp(dial.plan, now);
            self.end_dial_again(qp, addr, conn);
        }
    }
}
