//! Connection requests that another instance of this RNIC answers.

use std::os::fd::AsRawFd;

use super::ShmRnic;
use super::link::{LinkOwner, ShmLink};
use super::serve::ShmSource;
use crate::rnic::{ConnReq, DetachedRequest, RnicError};

impl ShmRnic {
    pub(super) fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let id = *self.requests.get(req.0)?;
        self.release_request(id);
        let link = self.links.remove(id)?;
        self.timers.clear(ShmSource::Link(id));
        if let Some(fd) = link.fd() {
            // Fails only if the socket is in no reactor: then the next one gets it all the same.
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&fd.as_raw_fd()));
        }
        Ok(DetachedRequest::new(link))
    }

    pub(super) fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        let mut link: Box<ShmLink> = request.into_state()?;
        // An edge may have passed while the socket was in no reactor.
        (link.readable, link.queued) = (true, false);
        link.owner = LinkOwner::Request { listener: None, req: 0 };
        let req = self.add_request(link, None)?;
        let id = *self.requests.get(req.0)?;
        self.enqueue(ShmSource::Link(id));
        Ok(req)
    }
}
