//! Connection requests that another instance of this RNIC answers, and connections at rest that it takes
//! over.

use std::net::SocketAddr;
use std::time::Duration;

use super::Driver;
use super::link::{Conn, Link, LinkBase, LinkOwner, LinkSetup};
use super::memory::MovingWindow;
use super::qp::QueuePair;
use super::turns::Source;
use crate::rnic::{ConnReq, DetachedConnection, DetachedRequest, Mr, Qp, QpAttr, RnicError};

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
    windows: Vec<MovingWindow>,
    addrs: Option<(SocketAddr, SocketAddr)>,
    timeout: Duration,
}

impl<L: LinkSetup> Driver<L> {
    pub(super) fn give_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        let id = self.requested(req)?;
        self.links.get(id)?.check_may_move()?;
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
        link.check_may_move()?;
        // Completions and events name the queue pair, which is about to go.
        let reported = self.reports.events.is_empty() && self.objects.no_wc_waits();
        let base = link.base();
        let stays = base.attended || base.stalled || self.turns.timers.is_set(Source::Link(id));
        if stays || !reported || !pair.recvs.is_empty() || !L::rests(self, id) {
            return Err(self.wrong_state(qp, "a connection at rest"));
        }
        let link = self.take_link(id)?;
        let QueuePair { attr, windows, addrs, timeout, own, .. } = self.qps.remove(qp.0)?;
        let windows = self.take_windows(&windows);
        L::drop_qp(&mut self.parts, own);
        self.objects.leave(qp.0, &attr)?;
        Ok(DetachedConnection::new(MovingLink { link, windows, addrs, timeout }))
    }

    pub(super) fn take_connection(
        &mut self,
        attr: &QpAttr,
        connection: DetachedConnection,
        region: Option<Mr>,
    ) -> Result<Qp, RnicError> {
        let MovingLink::<L> { link, windows, addrs, timeout } = connection.into_state()?;
        let qp = self.add_qp(attr)?;
        let joined = self.join_link(qp, link).and_then(|id| {
            let pair = self.qps.get_mut(qp.0)?;
            (pair.addrs, pair.timeout) = (addrs, timeout);
            windows.iter().try_for_each(|window| self.open_moved(qp, window, region))?;
            L::moved(self, id, (qp.0, attr.pd.0));
            Ok(qp)
        });
        joined.inspect_err(|_| {
            // The queue pair exists, so this cannot fail.
            let _ = self.drop_qp(qp);
        })
    }

    /// Enters a link that came from another RNIC as that of a queue pair.
    fn join_link(&mut self, qp: Qp, link: DetachedLink<L>) -> Result<u32, RnicError> {
        let mut link = link.take("connection")?;
        *link.base_mut() = LinkBase::new(LinkOwner::Qp(qp.0));
        let id = self.links.insert(link)?;
        self.qps.get_mut(qp.0)?.conn = Conn::Link(id);
        Ok(id)
    }
}
