//! The main loop of a session: everything that is due becomes calls of the port.

use crate::time::Time;

use super::out::RX_QUEUE;
use super::{Doorbell, Port, Session};

impl Session {
    /// Does all that is due; call it after each call of another kind. The result says how soon
    /// the caller must ring the doorbell of the queue pair for what was posted.
    pub fn drive(&mut self, now: Time, port: &mut dyn Port) -> Doorbell {
        self.assert_here();
        self.unrung.begin();
        if self.life.may_talk() {
            self.drive_open(now, port);
        } else {
            self.drive_rx(port, None);
            self.drain_tx(port);
        }
        if self.life.is_failed() {
            self.cut(port);
        }
        if self.life.is_gone() {
            self.drive_gone(port);
        }
        for buf in self.trash.drain(..) {
            port.free(buf);
        }
        self.end_closers();
        self.unrung.end()
    }

    fn drive_open(&mut self, now: Time, port: &mut dyn Port) {
        loop {
            self.drive_rx(port, None);
            let waiting = self.out.rx_len();
            self.flush_outbox(port);
            // The machine may hold more than the outbox does.
            if waiting < RX_QUEUE || self.out.rx_len() == waiting {
                break;
            }
        }
        self.flush_confirms(port);
        if self.sided.take_turn() {
            self.drive_sided(port);
        }
        self.drive_tx(port);
        self.drive_sided(port);
        self.flush_confirms(port);
        self.drive_close(port);
        self.drop_idle_ring(port);
        self.drive_extra(now, port);
        self.flush_extra(port);
        self.flush_debts(port);
        self.forget_ended();
        self.timers.expect(now, self.expects());
        self.watch_patience(now);
    }
}
