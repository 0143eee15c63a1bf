//! One-sided operations: exports, and READ and WRITE on the peer's exports.

use std::time::Duration;

use super::device::Device;
use super::exports::ExportEntry;
use super::memory::Prepared;
use super::ops::TempMrs;
use super::post::Ticket;
use super::sock::Sock;
use super::sockets::SocketTable;
use super::{Engine, Error, SockId};
use crate::mem::{Access, Buffer, Key, MemError};
use crate::progress::event::{Bufs, EventKind, RawEvent};
use crate::session::{Buf, IoVec, OpError};
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

impl SocketTable {
    /// Copies from or to exported memory. The caller holds the engine's lock, which orders the copy
    /// with the peer's accesses through this RNIC.
    pub(crate) fn with_export(
        &mut self,
        id: SockId,
        export: ExportId,
        copy: impl FnOnce(&crate::mem::Segment) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let s = self.find(id)?;
        let revoked = || Error::invalid("the export was revoked");
        let segment = s.exports.segment(export).ok_or_else(revoked)?;
        if !segment.region().is_mapped() {
            return Err(MemError::Unmapped.into());
        }
        copy(segment)
    }
}

impl Sock {
    fn export_buf(
        &mut self,
        device: &mut Device,
        buf: &Buf,
        access: Access,
        now: Time,
    ) -> Result<Key, Error> {
        let Some(qp) = self.qp else { return Err(Error::Op(OpError::NotConnected)) };
        let domain = self.place.domain;
        let session = self.open_session()?;
        Ok(session.export(&mut device.port(domain, qp, now), buf, access)?)
    }

    /// Closes an export to the peer. It keeps its memory.
    fn close_export(&mut self, device: &mut Device, export: ExportId, now: Time) {
        let Some(key) = self.exports.close(export) else { return };
        if let (Some(session), Some(qp)) = (self.session.as_mut(), self.qp) {
            session.revoke(&mut device.port(self.place.domain, qp, now), key);
        }
    }

    /// Closes the exports whose lifetime has passed.
    pub(super) fn expire_exports(&mut self, device: &mut Device, now: Time) {
        for export in self.exports.overdue(now) {
            self.close_export(device, export, now);
        }
    }
}

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
                let entry = ExportEntry::new(remote.key, buf, (buffer, temp), expires);
                Ok((remote, self.sockets.add_export(id, entry)))
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
    ) -> Result<(Remote, Buf, TempMrs), Error> {
        let place = self.sockets.checked(id)?;
        let mut temp = TempMrs::None;
        let d = &mut self.devices[place.device];
        let buf = d.prepare_one(place.domain, buffer, Access::LOCAL, &mut temp)?;
        let addr = buf.seg.addr();
        match self.sockets.find(id)?.export_buf(d, &buf, access, now) {
            Ok(key) => Ok((Remote { addr, key }, buf, temp)),
            Err(e) => {
                self.devices[place.device].unprepare(place.domain, &temp, None);
                Err(e)
            }
        }
    }

    /// Revokes an export: closes it at once, and returns its buffer.
    pub(crate) fn unexport(&mut self, id: SockId, export: ExportId, now: Time) -> Option<Buffer> {
        let s = self.sockets.get_mut(id)?;
        let device = &mut self.devices[s.place.device];
        s.close_export(device, export, now);
        let entry = s.exports.remove(export)?;
        Some(entry.free(device, s.place.domain))
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
