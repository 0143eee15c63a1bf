//! `poll`: one event when a socket is ready.

use super::Engine;
use crate::ids::OpId;
use crate::progress::event::Readiness;

impl Engine {
    pub(super) fn check_polls(&mut self, index: u32) {
        if self.sockets[index].polls.is_empty() {
            return;
        }
        let ready = self.sockets[index].readiness();
        let polls = std::mem::take(&mut self.sockets[index].polls);
        for (id, want) in polls {
            let hit = (want.readable && ready.readable)
                || (want.writable && ready.writable)
                || ready.error;
            if !hit {
                self.sockets[index].polls.push((id, want));
            } else {
                self.complete_poll(id, ready);
            }
        }
    }

    pub(super) fn complete_poll(&mut self, id: OpId, ready: Readiness) {
        if let Some(op) = self.ops.remove(id) {
            let (queue, mut event) = op.into_event();
            event.readiness = ready;
            self.delivery.deliver(&queue, event);
        }
    }
}
