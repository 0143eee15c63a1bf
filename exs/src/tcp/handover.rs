//! Connection requests that another instance of this RNIC answers.

use super::SoftRnic;
use super::link::{SoftLink, SoftLinkOwner};
use super::timers::SoftSource;
use crate::rnic::{ConnReq, DetachedRequest, RnicError};
use crate::sys;

/// A TCP connection with an engine that has read the request, between two RNICs.
struct DetachedLink(Option<SoftLink>);

impl Drop for DetachedLink {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            // May fail on a connection that is gone: then it is reset already.
            let _ = sys::abort_on_close(&link.stream);
        }
    }
}

impl SoftRnic {
    pub(super) fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let id = *self.requests.get(req.0)?;
        self.release_request(id);
        let mut link = self.links.remove(id)?;
        self.timers.clear(SoftSource::Link(id));
        // Fails only if the descriptor is in no reactor: then the next one gets it all the same.
        let _ = self.registry.deregister(&mut link.stream);
        Ok(DetachedRequest::new(DetachedLink(Some(link))))
    }

    pub(super) fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        let mut detached: DetachedLink = request.into_state()?;
        let Some(mut link) = detached.0.take() else {
            return Err(RnicError::NoSuch { what: "connection request", id: 0 });
        };
        // Edges may have passed while the socket was in no reactor.
        (link.readable, link.writable, link.queued) = (true, true, false);
        let id = self.add_link(link)?;
        let req = match self.requests.insert(id) {
            Ok(req) => req,
            Err(e) => {
                self.drop_link(id, true);
                return Err(e);
            }
        };
        self.links.get_mut(id)?.owner = SoftLinkOwner::Request { listener: None, req };
        Ok(ConnReq(req))
    }
}
