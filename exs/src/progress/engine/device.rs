//! A device: an RNIC and the objects that EXS keeps on it.
//!
//! These are made when the device is first used: a host may have adapters that no
//! socket of this program ever needs.

use super::files::FilePool;
use super::slots::{Slots, credits};
use crate::mem::{Access, Buffer, Key, Region, Segment};
use crate::progress::Error;
use crate::progress::options::Transport;
use crate::rnic::{
    Caps, Cq, Disconnect, Mr, Pd, Qp, QpAttr, Rnic, RnicError, SendWr, Wc,
};
use crate::session::{Buf, Port};
use crate::time::Time;

/// Completions of all connections that may wait at a time. They are taken out with
/// every turn, but one turn may look after thousands of connections.
const CQ_DEPTH: usize = 1 << 20;
/// Send WRs of one connection that may be outstanding, if the RNIC takes so many.
const MAX_SEND_WR: usize = 256;

/// The pool through which small unregistered memory travels.
const BOUNCES: u32 = 256;
pub(super) const BOUNCE: usize = 4 << 10;

/// Memory of our own.
pub(super) fn map(len: usize) -> Result<Segment, RnicError> {
    Region::map(len)
        .and_then(|region| region.segment(0, len))
        .map_err(|_| RnicError::Os { call: "mmap", errno: libc::ENOMEM })
}

/// Memory of our own that a peer on this host may be given to read.
pub(super) fn map_shared(len: usize) -> Result<Segment, RnicError> {
    Region::map_shared(len)
        .and_then(|region| region.segment(0, len))
        .map_err(|_| RnicError::Os { call: "mmap", errno: libc::ENOMEM })
}

/// An RNIC and what belongs to it.
pub(super) struct Device {
    pub(super) index: usize,
    pub(super) rnic: Box<dyn Rnic>,
    pub(super) transport: Transport,
    /// Queue pairs.
    qps: usize,
    /// It was removed: nothing new is begun on it.
    pub(super) gone: bool,
    objects: Option<Objects>,
}

/// What all connections of a device share.
pub(super) struct Objects {
    pd: Pd,
    cq: Cq,
    slots: Slots,
    /// The bounce pool, made when first needed.
    bounces: Option<(Buf, Vec<u32>)>,
    pub(super) files: FilePool,
}

const UNUSED: RnicError = RnicError::NoSuch { what: "connection on this device", id: 0 };

impl Device {
    pub(super) fn new(index: usize, rnic: Box<dyn Rnic>, transport: Transport) -> Device {
        Device { index, rnic, transport, qps: 0, gone: false, objects: None }
    }

    /// There are connections on it.
    pub(super) fn is_used(&self) -> bool {
        self.qps > 0
    }

    pub(super) fn name(&self) -> &str {
        &self.rnic.caps().name
    }

    /// Makes its objects, if that was not done yet.
    pub(super) fn start(&mut self) -> Result<(), RnicError> {
        if self.objects.is_none() {
            let rnic = self.rnic.as_mut();
            let pd = rnic.alloc_pd()?;
            let made = rnic.create_cq(CQ_DEPTH).and_then(|cq| {
                let slots = Slots::new(rnic, pd).inspect_err(|_| {
                    // It was just made: there is nothing to go wrong.
                    let _ = rnic.destroy_cq(cq);
                })?;
                Ok(Objects { pd, cq, slots, bounces: None, files: FilePool::default() })
            });
            self.objects = Some(made.inspect_err(|_| {
                let _ = rnic.dealloc_pd(pd);
            })?);
        }
        Ok(())
    }

    pub(super) fn objects(&mut self) -> Result<(&mut dyn Rnic, &mut Objects), RnicError> {
        let objects = self.objects.as_mut().ok_or(UNUSED)?;
        Ok((self.rnic.as_mut(), objects))
    }

    /// Takes completions out; returns how many.
    pub(super) fn poll_cq(&mut self, max: usize, out: &mut Vec<Wc>) -> usize {
        match self.objects() {
            // The queue is ours and exists: there is nothing to go wrong.
            Ok((rnic, o)) => rnic.poll_cq(o.cq, max, out).unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// A receive slot was used, and may be used again.
    pub(super) fn return_slot(&mut self, slot: u64) {
        let gone = self.gone;
        if let Ok((rnic, o)) = self.objects() {
            // The SRQ has room: this slot came out of it.
            let posted = o.slots.post(rnic, slot);
            debug_assert!(posted.is_ok() || gone, "{posted:?}");
        }
    }

    /// What arrived in a slot.
    pub(super) fn slot(&self, slot: u64, len: u64) -> Option<Segment> {
        self.objects.as_ref()?.slots.get(slot, len)
    }

    /// Credits of each connection.
    pub(super) fn credits(caps: &Caps) -> u16 {
        credits(caps)
    }

    /// Send WRs of each connection.
    pub(super) fn send_depth(caps: &Caps) -> usize {
        caps.max_send_wr.clamp(4, MAX_SEND_WR)
    }

    /// A queue pair for a connection, with slots for what its peer may send.
    pub(super) fn create_qp(&mut self) -> Result<Qp, RnicError> {
        self.start()?;
        let (rnic, o) = self.objects()?;
        o.slots.promise(rnic)?;
        let attr = QpAttr {
            pd: o.pd,
            send_cq: o.cq,
            recv_cq: o.cq,
            srq: Some(o.slots.srq()),
            max_send_wr: Device::send_depth(rnic.caps()),
            max_recv_wr: 0,
        };
        let made = rnic.create_qp(&attr).inspect_err(|_| o.slots.release(rnic.caps()));
        self.qps += usize::from(made.is_ok());
        made
    }

    /// Ends a queue pair of ours.
    pub(super) fn destroy_qp(&mut self, qp: Qp) {
        self.drop_files(qp);
        self.qps = self.qps.saturating_sub(1);
        if let Ok((rnic, o)) = self.objects() {
            // It exists: there is nothing to go wrong.
            let _ = rnic.destroy_qp(qp);
            o.slots.release(rnic.caps());
        }
    }

    pub(super) fn reg_mr(&mut self, seg: &Segment, access: Access) -> Result<Mr, RnicError> {
        let (rnic, o) = self.objects()?;
        rnic.reg_mr(o.pd, seg, access)
    }

    /// Ends a registration of ours. It exists, so there is nothing to go wrong, unless
    /// the device is gone.
    pub(super) fn dereg_mr(&mut self, mr: Mr) {
        let ended = self.rnic.dereg_mr(mr);
        debug_assert!(ended.is_ok() || self.gone, "{ended:?}");
    }

    /// Takes a slot of the bounce pool; None if all are in use.
    pub(super) fn take_bounce(&mut self) -> Result<Option<(u32, Buf)>, Error> {
        let (rnic, o) = self.objects()?;
        if o.bounces.is_none() {
            let seg = map(BOUNCES as usize * BOUNCE)?;
            let mr = rnic.reg_mr(o.pd, &seg, Access::LOCAL)?;
            // The first slot is taken first: what is never used is never touched.
            let free = (0..BOUNCES).rev().collect();
            o.bounces = Some((Buf { seg, mr }, free));
        }
        let Some((_, free)) = &mut o.bounces else { return Ok(None) };
        let Some(slot) = free.pop() else { return Ok(None) };
        Ok(Some((slot, self.bounce(slot, BOUNCE)?)))
    }

    /// The first `len` bytes of a bounce slot.
    pub(super) fn bounce(&self, slot: u32, len: usize) -> Result<Buf, Error> {
        let pool = self.objects.as_ref().and_then(|o| o.bounces.as_ref());
        let (pool, _) = pool.ok_or_else(|| Error::invalid("no bounce pool"))?;
        let seg = pool.seg.slice(slot as usize * BOUNCE, len)?;
        Ok(Buf { seg, mr: pool.mr })
    }

    pub(super) fn give_bounce(&mut self, slot: u32) {
        if let Some((_, free)) = self.objects.as_mut().and_then(|o| o.bounces.as_mut()) {
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
            let mr = self.reg_mr(&buffer.region_segment(), Access::LOCAL)?;
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
        match &wr.file {
            Some(range) if !self.device.rnic.caps().file_source => {
                self.device.post_file(self.qp, wr, range)
            }
            _ => self.device.rnic.post_send(self.qp, wr),
        }
    }

    fn file_room(&mut self) -> u64 {
        self.device.file_room(self.qp)
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
        let seg = map(len)?;
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
