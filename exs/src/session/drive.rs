//! The main loop of a session: everything that is due becomes calls of the port.

use crate::time::Time;

use super::out::RX_QUEUE;
use super::{Link, Port, Session};

impl Session {
    /// Does all that can be done; call it after each other call. True if WRs were
    /// posted: flush now if [`Session::urgent`], else soon.
    pub fn drive(&mut self, now: Time, port: &mut dyn Port) -> bool {
        (self.posted, self.soon, self.urgent) = (false, false, false);
        if self.link == Link::Up && !self.ending.mute() {
            self.drive_up(now, port);
        } else {
            self.drive_rx(port, None);
            self.drain_tx(port);
        }
        if self.ending.reason.is_some() && !self.ending.torn {
            self.tear_down(port);
        }
        if let Link::Down(cause) = self.link {
            self.drive_down(port, cause);
        }
        for buf in self.trash.drain(..) {
            port.free(buf);
        }
        self.end_closers();
        // What leaves takes the rest along.
        if self.soon() {
            self.idle_posted = false;
        }
        self.posted
    }

    fn drive_up(&mut self, now: Time, port: &mut dyn Port) {
        loop {
            self.drive_rx(port, None);
            let waiting = self.out.rx.len();
            self.flush_outbox(port);
            // The machine may hold more than the outbox does.
            if waiting < RX_QUEUE || self.out.rx.len() == waiting {
                break;
            }
        }
        self.flush_confirms(port);
        self.sided_first = !self.sided_first;
        if self.sided_first {
            self.drive_sided(port);
        }
        self.drive_tx(port);
        self.drive_sided(port);
        self.flush_confirms(port);
        self.drive_close(port);
        self.drop_idle_ring(port);
        self.flush_debts(port);
        self.forget_ended();
        self.timers.expect(now, self.expects());
        self.watch_patience(now);
    }
}
