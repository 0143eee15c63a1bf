//! One-sided operations: exports, and READ and WRITE on the peer's exports.

use std::time::Duration;

use super::domain::Place;
use super::memory::Prepared;
use super::ops::TempMrs;
use super::post::Ticket;
use super::sock::ExportEntry;
use super::{Engine, Error, SockId};
use crate::mem::{Access, Buffer, Key};
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::session::{IoVec, OpError};
use crate::time::Time;

/// The beginning of a range of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// The key of the range.
    pub key: Key,
}

/// The number of an export. The engine uses each number once, whereas devices give keys out again.
pub type ExportId = u64;

impl Engine {
    /// Opens a buffer to the peer of this connection. Returns its address and key, and the number
    /// of the export. The caller gets the buffer back with an error.
    pub(crate) fn export(
        &mut self,
        id: SockId,
        buffer: Buffer,
        access: Access,
        lifetime: Option<Duration>,
        now: Time,
    ) -> Result<(Remote, ExportId), (Error, Buffer)> {
        match self.try_export(id, &buffer, access, now) {
            Ok((remote, buf, temp)) => {
                let expires = lifetime.map(|d| now + d);
                let entry = ExportEntry { key: remote.key, buf, buffer, temp, open: true, expires };
                self.last_export += 1;
                let export = self.last_export;
                if let Ok(s) = self.sockets.find(id) {
                    s.exports.insert(export, entry);
                }
                self.sockets.mark(id.index);
                Ok((remote, export))
            }
            Err(e) => Err((e, buffer)),
        }
    }

    fn try_export(
        &mut self,
        id: SockId,
        buffer: &Buffer,
        access: Access,
        now: Time,
    ) -> Result<(Remote, crate::session::Buf, TempMrs), Error> {
        let place = self.sockets.checked(id)?;
        let mut temp = TempMrs::None;
        let d = &mut self.devices[place.device];
        let buf = d.prepare_one(place.domain, buffer, Access::LOCAL, &mut temp)?;
        let addr = buf.seg.addr();
        let exported = self.export_buf(id, place, &buf, access, now);
        match exported {
            Ok(key) => Ok((Remote { addr, key }, buf, temp)),
            Err(e) => {
                self.devices[place.device].unprepare(place.domain, &temp, None);
                Err(e)
            }
        }
    }

    fn export_buf(
        &mut self,
        id: SockId,
        place: Place,
        buf: &crate::session::Buf,
        access: Access,
        now: Time,
    ) -> Result<Key, Error> {
        let Some(s) = self.sockets.at(id.index) else {
            return Err(Error::Op(OpError::NotConnected));
        };
        let Some(qp) = s.qp else { return Err(Error::Op(OpError::NotConnected)) };
        let session = s.open_session()?;
        Ok(session.export(
            &mut self.devices[place.device].port(place.domain, qp, now),
            buf,
            access,
        )?)
    }

    /// Revokes an export: closes it at once, and returns its buffer.
    pub(crate) fn unexport(&mut self, id: SockId, export: ExportId, now: Time) -> Option<Buffer> {
        self.close_export(id.index, export, now);
        let s = self.sockets.find(id).ok()?;
        let place = s.place;
        let entry = s.exports.remove(&export)?;
        Some(entry.free(&mut self.devices[place.device], place.domain))
    }

    /// As `unexport`, but an event brings the buffer.
    pub(crate) fn revoke(&mut self, id: SockId, export: ExportId, ticket: &Ticket<'_>, now: Time) {
        let buffer = self.unexport(id, export, now);
        let bufs = buffer.map_or(Bufs::None, Bufs::One);
        self.delivery.deliver(
            ticket.queue,
            RawEvent::with(ticket.token, ticket.tag, EventKind::Revoke, bufs),
        );
    }

    fn close_export(&mut self, index: u32, export: ExportId, now: Time) {
        let Some(s) = self.sockets.at(index) else { return };
        let Some(e) = s.exports.get_mut(&export) else { return };
        if !std::mem::replace(&mut e.open, false) {
            return;
        }
        let key = e.key;
        if let (Some(session), Some(qp)) = (s.session.as_mut(), s.qp) {
            session.revoke(&mut self.devices[s.place.device].port(s.place.domain, qp, now), key);
        }
    }

    pub(super) fn expire_exports(&mut self, index: u32, now: Time) {
        let over = |e: &ExportEntry| e.open && e.expires.is_some_and(|t| t <= now);
        let s = &self.sockets[index];
        if s.exports.is_empty() {
            return;
        }
        let over: Vec<ExportId> =
            s.exports.iter().filter(|(_, e)| over(e)).map(|(id, _)| *id).collect();
        for export in over {
            self.close_export(index, export, now);
        }
    }

    /// Copies from or to exported memory. The caller holds the engine's lock, which orders the copy
    /// with the peer's accesses through this RNIC.
    pub(crate) fn with_export(
        &mut self,
        id: SockId,
        export: ExportId,
        copy: impl FnOnce(&crate::mem::Segment) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let s = self.sockets.find(id)?;
        let e = s.exports.get(&export).ok_or_else(|| Error::invalid("the export was revoked"))?;
        copy(&e.buf.seg)
    }

    pub(crate) fn post_read(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        remote: Remote,
        buffer: Buffer,
        now: Time,
    ) -> Result<(), (Error, Bufs)> {
        let bufs = Bufs::One(buffer);
        let place = match self.sockets.checked(id) {
            Ok(d) => d,
            Err(e) => return Err((e, bufs)),
        };
        let Bufs::One(buffer) = &bufs else { unreachable!("made above") };
        // A socket with an open session has a queue pair.
        let Some(qp) = self.sockets[id.index].qp else {
            return Err((Error::Op(OpError::NotConnected), bufs));
        };
        let d = &mut self.devices[place.device];
        let (p, window) = match d.prepare_sink(place.domain, qp, buffer, now) {
            Ok(p) => p,
            Err(e) => return Err((e, bufs)),
        };
        let Prepared { iov: IoVec::One(sink), temp, bounce } = p else {
            unreachable!("a sink is one piece")
        };
        let op = self.book(id, ticket, EventKind::Read, bufs);
        let posted = self.sockets.session_post(id, |s| {
            s.post_read(now, op, remote.addr, remote.key, sink).map_err(|(e, _)| e)
        });
        match self.ops.keep(op) {
            Some(kept) if posted.is_ok() => kept.window = window,
            _ => self.devices[place.device].close_sink(Some(qp), window),
        }
        self.conclude(place, op, (temp, bounce), posted)
    }

    pub(crate) fn post_write(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        remote: Remote,
        buffer: Buffer,
        now: Time,
    ) -> Result<(), (Error, Bufs)> {
        let bufs = Bufs::One(buffer);
        let place = match self.sockets.checked(id) {
            Ok(d) => d,
            Err(e) => return Err((e, bufs)),
        };
        let Prepared { iov, temp, bounce } =
            match self.devices[place.device].prepare(place.domain, &bufs, false) {
                Ok(p) => p,
                Err(e) => return Err((e, bufs)),
            };
        let op = self.book(id, ticket, EventKind::Write, bufs);
        let posted = self.sockets.session_post(id, |s| {
            s.post_write(now, op, remote.addr, remote.key, iov, true).map_err(|(e, _)| e)
        });
        self.conclude(place, op, (temp, bounce), posted)
    }
}
