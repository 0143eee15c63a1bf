//! A link in the tables of the driver: its state, its memory, and the work posted to it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::Interest;
use mio::unix::SourceFd;

use super::link::{LinkPhase, ShmLink};
use super::listen::ShmAcceptor;
use super::{ShmParts, ShmRnic};
use crate::driver::{Link, LinkBase, QueuePair, ReactorShare, Source};
#[cfg(any(test, feature = "internals"))]
use crate::iwarp::RxBuf;
use crate::iwarp::TxWr;
use crate::mem::Key;
use crate::rnic::{DisconnectCause, QpState, Ready, RnicError, TermCode};

/// The part of a queue pair that only this transport has.
#[derive(Default)]
pub struct ShmQp {
    /// Holds the port that the program bound; None: it bound none.
    pub(super) port: Option<OwnedFd>,
}

impl Link for Box<ShmLink> {
    type Parts = ShmParts;
    type OfQp = ShmQp;
    type Acceptor = ShmAcceptor;

    fn base(&self) -> &LinkBase {
        &self.base
    }
    fn base_mut(&mut self) -> &mut LinkBase {
        &mut self.base
    }

    fn state(&self, _: &ShmQp) -> QpState {
        match self.phase {
            LinkPhase::Closing => QpState::Closing,
            LinkPhase::Open => QpState::Rts,
            _ => QpState::Connecting,
        }
    }

    fn note_ready(&mut self, _: Ready) {
        self.socket.readable = true;
    }

    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError> {
        let Some(raw) = self.fd().map(|fd| fd.as_raw_fd()) else { return Ok(()) };
        reactor.watch(&mut SourceFd(&raw), source, Interest::READABLE)
    }
    fn forget(&mut self, reactor: &ReactorShare) {
        if let Some(raw) = self.fd().map(|fd| fd.as_raw_fd()) {
            reactor.forget(&mut SourceFd(&raw));
        }
    }

    fn abort(&mut self) {
        self.publish_end(DisconnectCause::Aborted);
    }

    fn opening_queued(parts: &mut ShmParts, id: u32) -> Option<&mut bool> {
        parts.pending_peers.get_mut(id).ok().map(|p| &mut p.queued)
    }

    fn check_may_move(&self) -> Result<(), RnicError> {
        match self.wake_up.is_plain() {
            true => Ok(()),
            false => Err(RnicError::Unsupported("hand-over of a link whose peer knows this RNIC")),
        }
    }

    fn check_post(&self, qp: &QueuePair<Box<ShmLink>>) -> Result<bool, RnicError> {
        let depth = qp.attr.max_send_wr;
        match self.phase {
            LinkPhase::Open if self.tx.len() < depth => Ok(true),
            LinkPhase::Open => Err(RnicError::QueueFull { what: "send queue", depth }),
            _ => Ok(false),
        }
    }

    #[inline(always)]
    fn post(driver: &mut ShmRnic, _: u32, id: u32, wr: TxWr) -> Result<(), RnicError> {
        driver.links.get_mut(id)?.tx.push(wr);
        Ok(())
    }

    #[cfg(any(test, feature = "internals"))]
    fn take_recv(&mut self, buf: RxBuf) -> Result<Option<RxBuf>, RnicError> {
        Ok(Some(buf))
    }

    fn revoke_mr(driver: &mut ShmRnic, _: u32, id: u32, key: Key) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        if link.tx.uses(key) || link.rx.uses(key) {
            // The peer may be reading the memory, or about to. Its connection is cut before this
            // returns, so the peer discards what it has read.
            let code = TermCode { layer: 0, etype: 0, code: 0 };
            driver.cut(id, DisconnectCause::TerminatedByUs(code), Some(key));
        } else if link.shares.any()
            && let Some(sock) = link.socket.sock.as_ref()
        {
            link.shares.sweep(sock.as_fd());
        }
    }

    fn end_qp(qp: &mut ShmQp) {
        qp.port = None;
    }
}
