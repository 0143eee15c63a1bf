//! Connection requests that another instance of this RNIC answers.

use super::Driver;
use super::link::{Link, LinkSetup};
use super::turns::Source;
use crate::rnic::{ConnReq, DetachedRequest, RnicError};

/// A link that has read its request, between two RNICs.
struct DetachedLink<L: Link>(Option<L>);

impl<L: Link> Drop for DetachedLink<L> {
    fn drop(&mut self) {
        if let Some(link) = &mut self.0 {
            link.abort();
        }
    }
}

impl<L: LinkSetup> Driver<L> {
    pub(super) fn give_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let id = self.requested(req)?;
        if !self.links.get(id)?.can_move() {
            return Err(RnicError::Unsupported("hand-over of a link of a group"));
        }
        self.release_request(id);
        let mut link = self.links.remove(id)?;
        self.turns.timers.clear(Source::Link(id));
        link.forget(&self.reactor);
        link.base_mut().queued = false;
        L::detached(self, id);
        Ok(DetachedRequest::new(DetachedLink(Some(link))))
    }

    pub(super) fn take_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        let mut detached: DetachedLink<L> = request.into_state()?;
        let Some(link) = detached.0.take() else {
            return Err(RnicError::NoSuch { what: "connection request", id: 0 });
        };
        let id = self.links.insert(link)?;
        let adopted = L::adopted(self, id).and_then(|()| self.add_request(id, None));
        adopted.inspect_err(|_| self.cut_link(id))
    }
}
