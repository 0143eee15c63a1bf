//! The short way of small messages through the engine: without an entry in the table of
//! operations for a send that is over at once, and without a round of everything for a
//! message that came. Whatever is out of the ordinary is left to the long way.

use super::post::Ticket;
use super::sock::State;
use super::{Engine, SockId};
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::rnic::Qp;
use crate::time::Time;

/// Messages taken from a device before the others have their turn.
const MESSAGES: usize = 64;

impl Engine {
    /// Sends one small buffer at once, if nothing is in the way. Gives it back if not.
    pub(super) fn send_now(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        bufs: Bufs,
        now: Time,
    ) -> Result<(), Bufs> {
        let Bufs::One(buffer) = &bufs else { return Err(bufs) };
        let len = buffer.len();
        let s = self.socks.get_mut(id.index as usize).filter(|s| s.generation == id.generation);
        let sent = match s {
            Some(s) if s.state == State::Open && len > 0 => match (s.session.as_mut(), s.qp) {
                (Some(session), Some(qp)) => {
                    let d = &mut self.devices[s.place.device];
                    session.send_now(&mut d.port(s.place.domain, qp, now), &buffer.io_vec())
                }
                _ => false,
            },
            _ => false,
        };
        if !sent {
            return Err(bufs);
        }
        self.passed = true;
        let mut event = RawEvent::new(ticket.token, EventKind::Send);
        (event.bytes, event.total) = (len as u64, len as u64);
        (event.bufs, event.tag) = (bufs, ticket.tag);
        self.counters.events += 1;
        ticket.queue.push(event, &mut self.wake);
        Ok(())
    }

    /// True once if the call under way has taken the short way, so that there is nothing to
    /// settle.
    pub(in crate::progress) fn has_passed(&mut self) -> bool {
        std::mem::take(&mut self.passed) && self.dirty.is_empty()
    }

    /// Takes small messages straight out of the devices; true if there were any.
    pub(in crate::progress) fn skim(&mut self, now: Time) -> bool {
        let mut any = false;
        for device in 0..self.devices.len() {
            for _ in 0..MESSAGES {
                let taken = self.devices[device].rnic.take_message(&mut self.message);
                let Some((qp, len)) = taken else { break };
                any = true;
                self.message_came(device, qp, len, now);
            }
        }
        any
    }

    fn message_came(&mut self, device: usize, qp: Qp, len: usize, now: Time) {
        let Some(&index) = self.by_qp.get(&(device, qp)) else { return };
        let s = &mut self.socks[index as usize];
        let Some(session) = s.session.as_mut() else { return };
        let mut port = self.devices[device].port(s.place.domain, qp, now);
        session.handle_bytes(now, &mut port, &self.message[..len]);
        if !session.is_settled() || !s.polls.is_empty() {
            return self.mark(index);
        }
        while let Some(done) =
            self.socks[index as usize].session.as_mut().and_then(|s| s.poll_done())
        {
            self.finish(done, now);
        }
        // Data that moved may have set the ring's idle time going again; others do not
        // come nearer by a message.
        if self.socks[index as usize].timer.is_none() {
            self.set_timer(index);
        }
    }
}
