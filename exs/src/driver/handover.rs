//! Connection requests that another instance of this RNIC answers, and connections at rest that it takes
//! over.

use std::net::SocketAddr;
use std::time::Duration;

use super::Driver;
use super::link::{Conn, Link, LinkBase, LinkOwner, LinkSetup};
use super::qp::QueuePair;
use super::turns::Source;
use crate::rnic::{ConnReq, DetachedConnection, DetachedRequest, Qp, QpAttr, RnicError};

/// A link between two RNICs. It has read its request, or carries a connection.
struct DetachedLink<L: Link>(Option<L>);

impl<L: Link> DetachedLink<L> {
    fn take(mut self, what: &'static str) -> Result<L, RnicError> {
        self.0.take().ok_or(RnicError::NoSuch { what, id: 0 })
    }
}

impl<L: Link> Drop for DetachedLink<L> {
    fn drop(&mut self) {
        if let Some(link) = &mut self.0 {
            link.abort();
        }
    }
}

/// A connection between two RNICs.
struct MovingLink<L: Link> {
    link: DetachedLink<L>,
    addrs: Option<(SocketAddr, SocketAddr)>,
    timeout: Duration,
}

impl<L: LinkSetup> Driver<L> {
    pub(super) fn give_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let id = self.requested(req)?;
        if !self.links.get(id)?.can_move() {
            return Err(RnicError::Unsupported("hand-over of a link of a group"));
        }
        self.release_request(id);
        Ok(DetachedRequest::new(self.take_link(id)?))
    }

    pub(super) fn take_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        let link = request.into_state::<DetachedLink<L>>()?.take("connection request")?;
        let id = self.links.insert(link)?;
        let adopted = L::adopted(self, id).and_then(|()| self.add_request(id, None));
        adopted.inspect_err(|_| self.cut_link(id))
    }

    /// Takes a link out of the tables, the lists and the reactor.
    fn take_link(&mut self, id: u32) -> Result<DetachedLink<L>, RnicError> {
        let mut link = self.links.remove(id)?;
        self.turns.timers.clear(Source::Link(id));
        link.forget(&self.reactor);
        link.base_mut().queued = false;
        L::detached(self, id, &mut link);
        Ok(DetachedLink(Some(link)))
    }

    pub(super) fn give_connection(&mut self, qp: Qp) -> Result<DetachedConnection, RnicError> {
        let pair = self.qps.get(qp.0)?;
        let Conn::Link(id) = pair.conn else { return Err(self.wrong_state(qp, "a connection")) };
        let link = self.links.get(id)?;
        if !link.can_move() {
            return Err(RnicError::Unsupported("hand-over of a link of a group"));
        }
        // Completions and events name the queue pair, which is about to go.
        let reported = self.reports.events.is_empty() && self.objects.no_wc_waits();
        let unused = pair.recvs.is_empty() && pair.windows.is_empty();
        let base = link.base();
        let stays = base.attended || base.stalled || self.turns.timers.is_set(Source::Link(id));
        if stays || !reported || !unused || !L::rests(self, id) {
            return Err(self.wrong_state(qp, "a connection at rest"));
        }
        let link = self.take_link(id)?;
        let QueuePair { attr, addrs, timeout, own, .. } = self.qps.remove(qp.0)?;
        L::drop_qp(&mut self.parts, own);
        self.objects.leave(qp.0, &attr)?;
        Ok(DetachedConnection::new(MovingLink { link, addrs, timeout }))
    }

    pub(super) fn take_connection(
        &mut self,
        attr: &QpAttr,
        connection: DetachedConnection,
    ) -> Result<Qp, RnicError> {
        let MovingLink::<L> { link, addrs, timeout } = connection.into_state()?;
        let qp = self.add_qp(attr)?;
        let mut link = link.take("connection")?;
        *link.base_mut() = LinkBase::new(LinkOwner::Qp(qp.0));
        let id = self.links.insert(link)?;
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.addrs, pair.timeout) = (Conn::Link(id), addrs, timeout);
        L::moved(self, id, (qp.0, attr.pd.0));
        Ok(qp)
    }
}
