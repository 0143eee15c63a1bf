//! From a program's buffers to registered memory, and back.
//!
//! Memory of a `MemoryRegion` is registered once, with its device, when first
//! used there. Other memory has two roads: a small piece travels through a pool of
//! registered slots, a large one is registered for the operation.

use super::device::{BOUNCE, Device};
use super::ops::{Bounce, Op, TempMrs, first_buffer};
use super::{Engine, Error};
use crate::mem::{Access, Buffer};
use crate::progress::event::Bufs;
use crate::session::{Buf, IoVec};

/// Registered memory of an operation to be.
pub(super) struct Prepared {
    pub(super) iov: IoVec,
    pub(super) temp: TempMrs,
    pub(super) bounce: Option<Bounce>,
}

impl Engine {
    /// Registers what is not. `inbound`: bytes will arrive in it.
    pub(super) fn prepare(
        &mut self,
        device: usize,
        bufs: &Bufs,
        inbound: bool,
    ) -> Result<Prepared, Error> {
        let mut temp = TempMrs::None;
        let prepared = match bufs {
            Bufs::One(b) if !b.is_registered() && b.len() <= BOUNCE => {
                if let Some(p) = self.prepare_bounce(device, b, inbound)? {
                    return Ok(p);
                }
                self.prepare_one(device, b, &mut temp).map(IoVec::One)
            }
            Bufs::One(b) => self.prepare_one(device, b, &mut temp).map(IoVec::One),
            Bufs::Many(list) => {
                let all: Result<Vec<Buf>, Error> =
                    list.iter().map(|b| self.prepare_one(device, b, &mut temp)).collect();
                all.map(|v| IoVec::Many(v.into_boxed_slice()))
            }
            Bufs::None => Ok(IoVec::Many(Box::default())),
        };
        match prepared {
            Ok(iov) => Ok(Prepared { iov, temp, bounce: None }),
            Err(e) => {
                free_temp(&mut self.devices[device], &temp);
                Err(e)
            }
        }
    }

    fn prepare_one(
        &mut self,
        device: usize,
        buffer: &Buffer,
        temp: &mut TempMrs,
    ) -> Result<Buf, Error> {
        let d = &mut self.devices[device];
        if buffer.is_registered() {
            return d.durable(self.context, buffer, &self.home);
        }
        let seg = buffer.segment();
        let mr = d.reg_mr(&seg, Access::LOCAL)?;
        temp.push(mr);
        Ok(Buf { seg, mr })
    }

    fn prepare_bounce(
        &mut self,
        device: usize,
        buffer: &Buffer,
        inbound: bool,
    ) -> Result<Option<Prepared>, Error> {
        let d = &mut self.devices[device];
        let Some((slot, _)) = d.take_bounce()? else { return Ok(None) };
        let buf = d.bounce(slot, buffer.len())?;
        if !inbound {
            buf.seg.write_at(0, buffer);
        }
        let bounce = Some(Bounce { slot, inbound });
        Ok(Some(Prepared { iov: IoVec::One(buf), temp: TempMrs::None, bounce }))
    }

    /// Memory for the sink of a READ on devices that want it open for remote
    /// writes (iWARP): exactly this range, for this operation only.
    pub(super) fn prepare_sink(
        &mut self,
        device: usize,
        buffer: &Buffer,
    ) -> Result<Prepared, Error> {
        if !self.devices[device].rnic.caps().read_sink_remote_write {
            let mut temp = TempMrs::None;
            let buf = self.prepare_one(device, buffer, &mut temp)?;
            return Ok(Prepared { iov: IoVec::One(buf), temp, bounce: None });
        }
        let d = &mut self.devices[device];
        let seg = buffer.segment();
        let mr = d.reg_mr(&seg, Access::REMOTE_WRITE)?;
        let iov = IoVec::One(Buf { seg, mr });
        Ok(Prepared { iov, temp: TempMrs::One(mr), bounce: None })
    }

    /// Undoes `prepare` for an operation that was refused.
    pub(super) fn unprepare(&mut self, device: usize, temp: &TempMrs, bounce: Option<Bounce>) {
        let d = &mut self.devices[device];
        free_temp(d, temp);
        if let Some(b) = bounce {
            d.give_bounce(b.slot);
        }
    }

    /// Undoes `prepare` for an operation that has ended with `bytes` moved, and
    /// brings what arrived to the program's buffer.
    pub(super) fn release_memory(&mut self, op: &mut Op, bytes: u64) {
        let temp = std::mem::take(&mut op.temp);
        let bounce = op.bounce.take();
        if bounce.is_none() && matches!(temp, TempMrs::None) {
            return;
        }
        let device = self.sock_ref(op.sock).map_or(0, |s| s.device);
        if let Some(b) = bounce.filter(|b| b.inbound)
            && let Some(buffer) = first_buffer(&op.bufs)
        {
            let n = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
            if let Ok(from) = self.devices[device].bounce(b.slot, n) {
                from.seg.copy_to(0, &buffer.segment(), 0, n);
            }
        }
        self.unprepare(device, &temp, bounce);
    }
}

fn free_temp(device: &mut Device, temp: &TempMrs) {
    for &mr in temp.as_slice() {
        device.dereg_mr(mr);
    }
}
