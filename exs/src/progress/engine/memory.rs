//! From the program's buffers to registered memory, and back.
//!
//! The engine registers a `MemoryRegion` once in each protection domain, when the program first
//! uses it there. For other memory there are two ways: a small buffer is copied through a pool of
//! registered pieces, and a large one is registered for the operation.

use super::device::Device;
use super::domain::Place;
use super::ops::{Bounce, Kept, Op, TempMrs, first_buffer};
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::mem::{Access, Buffer, Key};
use crate::progress::event::Bufs;
use crate::rnic::Mr;
use crate::session::{Buf, IoVec, OpError, Port};
use crate::time::Time;

/// The registered memory of an operation that has not been posted yet.
pub(super) struct Prepared {
    pub(super) iov: IoVec,
    pub(super) temp: TempMrs,
    pub(super) bounce: Option<Bounce>,
}

impl Engine {
    /// Registers the memory of an operation, as far as it is not registered yet. `inbound`: bytes
    /// will arrive in it.
    pub(super) fn prepare(
        &mut self,
        place: Place,
        bufs: &Bufs,
        inbound: bool,
    ) -> Result<Prepared, Error> {
        let mut temp = TempMrs::None;
        // A send may be from memory that the program itself cannot write.
        let access = if inbound { Access::LOCAL } else { Access::LOCAL_READ };
        let prepared = match bufs {
            Bufs::One(b) if !b.is_registered() => {
                if let Some(p) = self.prepare_bounce(place, b, inbound)? {
                    return Ok(p);
                }
                self.prepare_one(place, b, access, &mut temp).map(IoVec::One)
            }
            Bufs::One(b) => self.prepare_one(place, b, access, &mut temp).map(IoVec::One),
            Bufs::Many(list) => {
                let all: Result<Vec<Buf>, Error> =
                    list.iter().map(|b| self.prepare_one(place, b, access, &mut temp)).collect();
                all.map(|v| IoVec::Many(v.into_boxed_slice()))
            }
            Bufs::None => Ok(IoVec::Many(Box::default())),
        };
        match prepared {
            Ok(iov) => Ok(Prepared { iov, temp, bounce: None }),
            Err(e) => {
                free_temp(&mut self.devices[place.device], place.domain, &temp);
                Err(e)
            }
        }
    }

    fn prepare_one(
        &mut self,
        place: Place,
        buffer: &Buffer,
        access: Access,
        temp: &mut TempMrs,
    ) -> Result<Buf, Error> {
        let d = &mut self.devices[place.device];
        if buffer.is_registered() {
            return d.durable(place.domain, self.context, buffer, &self.home);
        }
        let seg = buffer.segment();
        let mr = d.reg_mr(place.domain, &seg, access)?;
        temp.push(mr);
        Ok(Buf { seg, mr })
    }

    fn prepare_bounce(
        &mut self,
        place: Place,
        buffer: &Buffer,
        inbound: bool,
    ) -> Result<Option<Prepared>, Error> {
        let d = &mut self.devices[place.device];
        // The session may lend a receive buffer to the peer, and a device without windows would
        // lend the whole pool.
        if inbound && !d.rnic.caps().windows {
            return Ok(None);
        }
        let (rnic, domain) = d.domain(place.domain)?;
        let Some(piece) = domain.take_bounce(rnic, buffer.len())? else { return Ok(None) };
        let Some(buf) = domain.bounce(piece, buffer.len()) else { return Ok(None) };
        if !inbound {
            buf.seg.write_at(0, buffer);
        }
        let bounce = Some(Bounce { piece, inbound });
        Ok(Some(Prepared { iov: IoVec::One(buf), temp: TempMrs::None, bounce }))
    }

    /// Registers the sink of a READ. Some devices (iWARP) demand that it is open for remote writes.
    /// There it becomes a window of this connection onto exactly this range, so that the peer of no
    /// other connection can reach it.
    pub(super) fn prepare_sink(
        &mut self,
        id: SockId,
        buffer: &Buffer,
        now: Time,
    ) -> Result<(Prepared, Option<Key>), Error> {
        let (place, qp) = match self.sockets.get(id).map(|s| (s.place, s.qp)) {
            Some((place, Some(qp))) => (place, qp),
            _ => return Err(Error::Op(OpError::NotConnected)),
        };
        let mut temp = TempMrs::None;
        let mut buf = self.prepare_one(place, buffer, Access::LOCAL, &mut temp)?;
        let d = &mut self.devices[place.device];
        let mut window = None;
        if d.rnic.caps().read_sink_remote_write && !buf.seg.is_empty() {
            let (addr, len) = (buf.seg.addr(), buf.seg.len() as u64);
            match d.port(place.domain, qp, now).lend(buf.mr, addr, len, Access::REMOTE_WRITE) {
                Ok(key) => {
                    window = Some(key);
                    buf.mr = Mr { key };
                }
                Err(e) => {
                    free_temp(d, place.domain, &temp);
                    return Err(Error::Rnic(e));
                }
            }
        }
        Ok((Prepared { iov: IoVec::One(buf), temp, bounce: None }, window))
    }

    /// Closes the window onto the sink of a READ. `None`: there is no window.
    pub(super) fn close_sink(&mut self, id: SockId, window: Option<Key>) {
        let Some(key) = window else { return };
        if let Some((device, Some(qp))) = self.sockets.get(id).map(|s| (s.place.device, s.qp)) {
            // Fails only if the queue pair is gone, and its windows with it.
            let _ = self.devices[device].rnic.invalidate_mw(qp, key);
        }
    }

    /// Undoes `prepare` for an operation that the session has refused.
    pub(super) fn unprepare(&mut self, place: Place, temp: &TempMrs, bounce: Option<Bounce>) {
        let d = &mut self.devices[place.device];
        free_temp(d, place.domain, temp);
        if let (Some(b), Ok((_, domain))) = (bounce, d.domain(place.domain)) {
            domain.give_bounce(b.piece);
        }
    }

    /// Undoes `prepare` for an operation that has ended and moved `bytes`. Copies bytes that
    /// arrived in a piece of a pool to the program's buffer.
    #[inline]
    pub(super) fn release_memory(&mut self, id: OpId, op: &Op, bytes: u64) {
        let Some(Kept { temp, bounce, window }) = self.ops.take_kept(id, op) else { return };
        self.close_sink(op.sock, window);
        if bounce.is_none() && matches!(temp, TempMrs::None) {
            return;
        }
        // An operation ends before its socket does, so the socket is there.
        let Some(place) = self.sockets.get(op.sock).map(|s| s.place) else { return };
        if let Some(b) = bounce.filter(|b| b.inbound)
            && let Some(buffer) = first_buffer(&op.bufs)
        {
            let n = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
            let domain = self.devices[place.device].domain(place.domain);
            if let Some(from) = domain.ok().and_then(|(_, d)| d.bounce(b.piece, n)) {
                from.seg.copy_to(0, &buffer.segment(), 0, n);
            }
        }
        self.unprepare(place, &temp, bounce);
    }
}

fn free_temp(device: &mut Device, domain: u32, temp: &TempMrs) {
    for &mr in temp.as_slice() {
        device.dereg_mr(domain, mr);
    }
}
