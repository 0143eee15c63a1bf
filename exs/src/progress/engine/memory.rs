//! From the program's buffers to registered memory, and back.
//!
//! The engine registers a `MemoryRegion` once in each protection domain, when the program first
//! uses it there. For other memory there are two ways: a small buffer is copied through a pool of
//! registered pieces, and a large one is registered for the operation.

use super::Error;
use super::device::Device;
use super::ops::{Bounce, Kept, TempMrs, first_buffer};
use crate::mem::{Access, Buffer, Key};
use crate::progress::event::Bufs;
use crate::rnic::{Mr, Qp};
use crate::session::{Buf, IoVec, Port};
use crate::time::Time;

/// The registered memory of an operation that has not been posted yet.
pub(super) struct Prepared {
    pub(super) iov: IoVec,
    pub(super) temp: TempMrs,
    pub(super) bounce: Option<Bounce>,
}

impl Device {
    /// Registers the memory of an operation, as far as it is not registered yet. `inbound`: bytes
    /// will arrive in it.
    pub(super) fn prepare(
        &mut self,
        domain: u32,
        bufs: &Bufs,
        inbound: bool,
    ) -> Result<Prepared, Error> {
        let mut temp = TempMrs::None;
        // A send may be from memory that the program itself cannot write.
        let access = if inbound { Access::LOCAL } else { Access::LOCAL_READ };
        let prepared = match bufs {
            Bufs::One(b) if !b.is_registered() => {
                if let Some(p) = self.prepare_bounce(domain, b, inbound)? {
                    return Ok(p);
                }
                self.prepare_one(domain, b, access, &mut temp).map(IoVec::One)
            }
            Bufs::One(b) => self.prepare_one(domain, b, access, &mut temp).map(IoVec::One),
            Bufs::Many(list) => {
                let all: Result<Vec<Buf>, Error> =
                    list.iter().map(|b| self.prepare_one(domain, b, access, &mut temp)).collect();
                all.map(|v| IoVec::Many(v.into_boxed_slice()))
            }
            Bufs::None => Ok(IoVec::Many(Box::default())),
        };
        match prepared {
            Ok(iov) => Ok(Prepared { iov, temp, bounce: None }),
            Err(e) => {
                self.free_temp(domain, &temp);
                Err(e)
            }
        }
    }

    /// Registers one buffer. `temp` gets a registration that ends with the operation.
    pub(super) fn prepare_one(
        &mut self,
        domain: u32,
        buffer: &Buffer,
        access: Access,
        temp: &mut TempMrs,
    ) -> Result<Buf, Error> {
        if buffer.is_registered() {
            return self.durable(domain, buffer);
        }
        let seg = buffer.segment();
        let mr = self.reg_mr(domain, &seg, access)?;
        temp.push(mr);
        Ok(Buf { seg, mr })
    }

    fn prepare_bounce(
        &mut self,
        domain: u32,
        buffer: &Buffer,
        inbound: bool,
    ) -> Result<Option<Prepared>, Error> {
        // The session may lend a receive buffer to the peer, and a device without windows would
        // lend the whole pool.
        if inbound && !self.rnic.caps().windows {
            return Ok(None);
        }
        let (rnic, domain) = self.domain(domain)?;
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
        domain: u32,
        qp: Qp,
        buffer: &Buffer,
        now: Time,
    ) -> Result<(Prepared, Option<Key>), Error> {
        let mut temp = TempMrs::None;
        let mut buf = self.prepare_one(domain, buffer, Access::LOCAL, &mut temp)?;
        let mut window = None;
        if self.rnic.caps().read_sink_remote_write && !buf.seg.is_empty() {
            let (addr, len) = (buf.seg.addr(), buf.seg.len() as u64);
            match self.port(domain, qp, now).lend(buf.mr, addr, len, Access::REMOTE_WRITE) {
                Ok(key) => {
                    window = Some(key);
                    buf.mr = Mr { key };
                }
                Err(e) => {
                    self.free_temp(domain, &temp);
                    return Err(Error::Rnic(e));
                }
            }
        }
        Ok((Prepared { iov: IoVec::One(buf), temp, bounce: None }, window))
    }

    /// Closes the window onto the sink of a READ. `None`: there is no window, or no queue pair any
    /// more.
    pub(super) fn close_sink(&mut self, qp: Option<Qp>, window: Option<Key>) {
        if let (Some(qp), Some(key)) = (qp, window) {
            // Fails only if the queue pair is gone, and its windows with it.
            let _ = self.rnic.invalidate_mw(qp, key);
        }
    }

    /// Undoes `prepare` for an operation that the session has refused.
    pub(super) fn unprepare(&mut self, domain: u32, temp: &TempMrs, bounce: Option<Bounce>) {
        self.free_temp(domain, temp);
        if let (Some(b), Ok((_, domain))) = (bounce, self.domain(domain)) {
            domain.give_bounce(b.piece);
        }
    }

    /// Undoes `prepare` for an operation that has ended and moved `bytes`. Copies bytes that
    /// arrived in a piece of a pool to the program's buffer.
    pub(super) fn release(
        &mut self,
        (domain, qp): (u32, Option<Qp>),
        Kept { temp, bounce, window }: Kept,
        bufs: &Bufs,
        bytes: u64,
    ) {
        self.close_sink(qp, window);
        if let Some(b) = bounce.filter(|b| b.inbound)
            && let Some(buffer) = first_buffer(bufs)
        {
            let n = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
            let domain = self.domain(domain);
            if let Some(from) = domain.ok().and_then(|(_, d)| d.bounce(b.piece, n)) {
                from.seg.copy_to(0, &buffer.segment(), 0, n);
            }
        }
        self.unprepare(domain, &temp, bounce);
    }

    fn free_temp(&mut self, domain: u32, temp: &TempMrs) {
        for &mr in temp.as_slice() {
            self.dereg_mr(domain, mr);
        }
    }
}
