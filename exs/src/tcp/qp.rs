//! A link in the tables of the driver: its state, its keys, and the work posted to it.

use std::os::fd::AsRawFd;

use mio::Interest;
use mio::unix::SourceFd;

use super::SoftRnic;
use super::files::FileQueue;
use super::link::{SoftLink, Watched};
use super::listen::SoftAcceptor;
use crate::driver::{Link, LinkBase, QueuePair, ReactorShare, Source};
#[cfg(any(test, feature = "internals"))]
use crate::iwarp::RxBuf;
use crate::iwarp::TxWr;
use crate::mem::Key;
use crate::rnic::{Qp, QpState, Ready, RnicError};
use crate::sys;

/// The part of a queue pair that only this transport has.
#[derive(Default)]
pub struct SoftQp {
    /// WRs with a file as their source that the engine cannot take, and those behind them. Boxed, as
    /// most queue pairs never have one.
    pub(super) files: Option<Box<FileQueue>>,
    /// An orderly disconnect was asked for, and waits until `files` is empty.
    pub(super) closing: bool,
}

impl Link for SoftLink {
    type Parts = super::SoftParts;
    type OfQp = SoftQp;
    type Acceptor = SoftAcceptor;

    fn base(&self) -> &LinkBase {
        &self.base
    }
    fn base_mut(&mut self) -> &mut LinkBase {
        &mut self.base
    }

    fn state(&self, qp: &SoftQp) -> QpState {
        match self.engine.state() {
            QpState::Rts if qp.closing => QpState::Closing,
            state => state,
        }
    }

    fn note_ready(&mut self, ready: Ready) {
        self.ready.readable |= ready.readable || ready.hup;
        self.ready.writable |= ready.writable || ready.hup;
        self.ready.hup |= ready.hup;
    }

    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError> {
        let needs = self.needs();
        let interest = match needs {
            Watched::Everything => Interest::READABLE | Interest::WRITABLE,
            _ => Interest::READABLE,
        };
        let Some(stream) = self.stream.own() else { return Ok(()) };
        let fd = stream.as_raw_fd();
        let mut descriptor = SourceFd(&fd);
        match self.watched {
            Watched::Nothing => reactor.watch(&mut descriptor, source, interest)?,
            _ => reactor.watch_anew(&mut descriptor, source, interest)?,
        }
        self.watched = needs;
        Ok(())
    }
    fn forget(&mut self, reactor: &ReactorShare) {
        if std::mem::replace(&mut self.watched, Watched::Nothing) > Watched::Nothing
            && let Some(stream) = self.stream.own()
        {
            reactor.forget(&mut SourceFd(&stream.as_raw_fd()));
        }
    }

    fn abort(&mut self) {
        match self.stream.own() {
            // May fail on a connection that is gone: then it is reset already.
            Some(stream) => drop(sys::abort_on_close(&**stream)),
            None => self.ending.reset(),
        }
    }

    fn opening_queued(parts: &mut super::SoftParts, id: u32) -> Option<&mut bool> {
        parts.dials.get_mut(id).ok().map(|d| &mut d.queued)
    }

    fn group_queued(parts: &mut super::SoftParts, id: u32) -> Option<&mut bool> {
        parts.groups.queued(id)
    }
    fn check_may_move(&self) -> Result<(), RnicError> {
        match self.stream.own() {
            Some(_) => Ok(()),
            None => Err(RnicError::Unsupported("hand-over of a link of a group")),
        }
    }

    fn check_post(&self, qp: &QueuePair<SoftLink>) -> Result<bool, RnicError> {
        // The engine checks its own state.
        Ok(!qp.own.closing)
    }

    fn post(driver: &mut SoftRnic, qp: u32, id: u32, wr: TxWr) -> Result<(), RnicError> {
        let waits = driver.qps.get(qp)?.own.files.is_some();
        let link = driver.links.get_mut(id)?;
        let (engine, grouped) = (&mut link.engine, link.stream.grouped().is_some());
        // In order: behind a WR that waits in `files`, all others wait too. sendfile(2) writes no frames.
        if waits || (wr.file.is_some() && (engine.crc() || grouped)) {
            if engine.state() != QpState::Rts {
                return Err(driver.wrong_state(Qp(qp), "Rts"));
            }
            return driver.queue_behind_file(qp, wr);
        }
        // Nothing leaves before the doorbell, or before other work of this connection takes it along.
        engine.post_send(wr)
    }

    #[cfg(any(test, feature = "internals"))]
    fn take_recv(&mut self, buf: RxBuf) -> Result<Option<RxBuf>, RnicError> {
        self.engine.post_recv(buf).map(|()| None)
    }

    fn close_key(&mut self, key: Key) -> bool {
        self.engine.key_revoked(key);
        self.engine.state() != QpState::Rts
    }

    fn revoke_mr(driver: &mut SoftRnic, qp: u32, id: u32, key: Key) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        link.engine.mr_revoked(key);
        if link.engine.state() != QpState::Rts {
            driver.touch(qp);
        }
    }

    fn drop_qp(parts: &mut super::SoftParts, qp: SoftQp) {
        if let Some(files) = qp.files {
            parts.file_pool.take_back(*files);
        }
    }
}
