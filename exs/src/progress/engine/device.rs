//! A device: an RNIC and the objects that EXS keeps on it.

use crate::mem::{Access, Buffer, Key, Region, Segment};
use crate::progress::Error;
use crate::rnic::{
    Caps, Cq, Disconnect, Mr, Pd, Qp, QpAttr, RecvWr, Rnic, RnicError, SendWr, Sge, Srq,
};
use crate::session::{Buf, Port};
use crate::time::Time;

/// Receive buffers that all connections of a device share, and their size: a
/// message header and what rides inside of it.
const SLOTS: usize = 256;
const SLOTS_LEN: usize = SLOTS * SLOT as usize;
pub(super) const SLOT: u32 = 8 << 10;

/// Completions of all connections that may wait at a time. They are taken out with
/// every turn, but one turn may look after thousands of connections.
const CQ_DEPTH: usize = 1 << 20;

/// The pool through which small unregistered memory travels.
const BOUNCES: u32 = 256;
pub(super) const BOUNCE: usize = 4 << 10;

/// An RNIC and what belongs to it.
pub(super) struct Device {
    pub(super) index: usize,
    pub(super) rnic: Box<dyn Rnic>,
    pd: Pd,
    pub(super) cq: Cq,
    srq: Srq,
    slots: Buf,
    /// The bounce pool, made when first needed.
    bounces: Option<(Buf, Vec<u32>)>,
}

impl Device {
    pub(super) fn new(index: usize, mut rnic: Box<dyn Rnic>) -> Result<Device, Error> {
        let pd = rnic.alloc_pd()?;
        let cq = rnic.create_cq(CQ_DEPTH)?;
        let srq = rnic.create_srq(pd, SLOTS)?;
        let seg = Region::map(SLOTS_LEN)?.segment(0, SLOTS_LEN)?;
        let mr = rnic.reg_mr(pd, &seg, Access::LOCAL)?;
        let slots = Buf { seg, mr };
        let mut device = Device { index, rnic, pd, cq, srq, slots, bounces: None };
        for slot in 0..SLOTS {
            device.post_slot(slot as u64)?;
        }
        Ok(device)
    }

    /// Gives a receive slot to the RNIC.
    pub(super) fn post_slot(&mut self, slot: u64) -> Result<(), RnicError> {
        let addr = self.slots.seg.addr() + slot * u64::from(SLOT);
        let sge = Sge { addr, len: u64::from(SLOT), lkey: self.slots.mr.key };
        self.rnic.post_srq_recv(self.srq, &RecvWr { wr_id: slot, sges: &[sge] })
    }

    /// What arrived in a slot; None if the numbers are not of a slot of ours.
    pub(super) fn slot(&self, slot: u64, len: u64) -> Option<Segment> {
        let (slot, len) = (usize::try_from(slot).ok()?, usize::try_from(len).ok()?);
        if slot >= SLOTS || len > SLOT as usize {
            return None;
        }
        self.slots.seg.slice(slot * SLOT as usize, len).ok()
    }

    pub(super) fn create_qp(&mut self, max_send_wr: usize) -> Result<Qp, RnicError> {
        self.rnic.create_qp(&QpAttr {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: Some(self.srq),
            max_send_wr,
            max_recv_wr: 0,
        })
    }

    pub(super) fn reg_mr(&mut self, seg: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.rnic.reg_mr(self.pd, seg, access)
    }

    /// Ends a registration of ours. It exists, so there is nothing to go wrong.
    pub(super) fn dereg_mr(&mut self, mr: Mr) {
        let gone = self.rnic.dereg_mr(mr);
        debug_assert!(gone.is_ok(), "{gone:?}");
    }

    /// Takes a slot of the bounce pool; None if all are in use.
    pub(super) fn take_bounce(&mut self) -> Result<Option<(u32, Buf)>, Error> {
        if self.bounces.is_none() {
            let len = BOUNCES as usize * BOUNCE;
            let seg = Region::map(len)?.segment(0, len)?;
            let mr = self.reg_mr(&seg, Access::LOCAL)?;
            // The first slot is taken first: what is never used is never touched.
            let free = (0..BOUNCES).rev().collect();
            self.bounces = Some((Buf { seg, mr }, free));
        }
        let Some((_, free)) = &mut self.bounces else { return Ok(None) };
        let Some(slot) = free.pop() else { return Ok(None) };
        Ok(Some((slot, self.bounce(slot, BOUNCE)?)))
    }

    /// The first `len` bytes of a bounce slot.
    pub(super) fn bounce(&self, slot: u32, len: usize) -> Result<Buf, Error> {
        let (pool, _) = self.bounces.as_ref().ok_or_else(|| Error::invalid("no bounce pool"))?;
        let seg = pool.seg.slice(slot as usize * BOUNCE, len)?;
        Ok(Buf { seg, mr: pool.mr })
    }

    pub(super) fn give_bounce(&mut self, slot: u32) {
        if let Some((_, free)) = &mut self.bounces {
            free.push(slot);
        }
    }

    /// The port of a connection.
    pub(super) fn port(&mut self, qp: Qp, now: Time) -> SockPort<'_> {
        SockPort { device: self, qp, now }
    }

    /// The window of `buffer`, registered by the region's own registration.
    pub(super) fn durable(
        &mut self,
        context: u64,
        buffer: &Buffer,
        home: &std::sync::Arc<dyn crate::mem::ReleaseRegistration>,
    ) -> Result<Buf, Error> {
        let index = self.index;
        let key = buffer.registration::<RnicError>(context, index, || {
            let mr = self.rnic.reg_mr(self.pd, &buffer.region_segment(), Access::LOCAL)?;
            Ok((mr.key, std::sync::Arc::clone(home)))
        })?;
        Ok(Buf { seg: buffer.segment(), mr: Mr { key } })
    }
}

/// What a connection's session sees of the device.
pub(super) struct SockPort<'a> {
    device: &'a mut Device,
    qp: Qp,
    now: Time,
}

impl Port for SockPort<'_> {
    fn caps(&self) -> &Caps {
        self.device.rnic.caps()
    }

    fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), RnicError> {
        self.device.rnic.post_send(self.qp, wr)
    }

    fn bind(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        self.device.rnic.bind_mw(self.qp, mr, addr, len, access)
    }

    fn lend(&mut self, mr: Mr, addr: u64, len: u64, access: Access) -> Result<Key, RnicError> {
        self.device.rnic.lend_mw(self.qp, mr, addr, len, access)
    }

    fn invalidate(&mut self, key: Key) {
        // Fails only if the queue pair, and its windows with it, is gone.
        let _ = self.device.rnic.invalidate_mw(self.qp, key);
    }

    fn alloc(&mut self, len: usize) -> Result<Buf, RnicError> {
        let seg = Region::map(len)
            .and_then(|region| region.segment(0, len))
            .map_err(|_| RnicError::Os { call: "mmap", errno: libc::ENOMEM })?;
        let mr = self.device.reg_mr(&seg, Access::LOCAL)?;
        Ok(Buf { seg, mr })
    }

    fn free(&mut self, buf: Buf) {
        self.device.dereg_mr(buf.mr);
    }

    fn disconnect(&mut self, how: Disconnect) {
        // Fails only if the queue pair is gone already.
        let _ = self.device.rnic.disconnect(self.qp, how, self.now);
    }
}
