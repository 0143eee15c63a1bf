//! Atomic operations: on the peer's exports, and on this side's by its own program.

use super::device::Device;
use super::memory::Prepared;
use super::ops::{Bounce, TempMrs};
use super::post::Ticket;
use super::sockets::SocketTable;
use super::{Engine, Error, ExportId, Remote, SockId};
use crate::mem::{Access, AtomicOp, Atomics, Region, WORD};
use crate::progress::event::{Bufs, EventKind};
use crate::session::{Buf, IoVec, OpError};

impl Device {
    /// A registered word for the value that an atomic operation brings. It is of the pool, unless all
    /// of the pool is in use. No peer can reach it.
    fn prepare_word(&mut self, id: u32) -> Result<Prepared, Error> {
        let (rnic, domain) = self.domain(id)?;
        if let Some(piece) = domain.take_bounce(rnic, WORD)?
            && let Some(buf) = domain.bounce(piece, WORD)
        {
            // The session reads the word: nothing needs to be copied at the end.
            let bounce = Some(Bounce { piece, inbound: false });
            return Ok(Prepared { iov: IoVec::One(buf), temp: TempMrs::None, bounce });
        }
        let seg = Region::from_vec(vec![0; WORD]).segment(0, WORD)?;
        let mr = self.reg_mr(id, &seg, Access::LOCAL)?;
        let (iov, mut temp) = (IoVec::One(Buf { seg, mr }), TempMrs::None);
        temp.push(mr);
        Ok(Prepared { iov, temp, bounce: None })
    }

    /// What this device executes the peers' atomic operations with.
    pub(super) fn atomics(&self) -> Atomics {
        self.rnic.caps().atomics
    }
}

impl SocketTable {
    /// What the peer of a socket executes its atomic operations with.
    pub(crate) fn peer_atomics(&self, id: SockId) -> Atomics {
        let session = self.get(id).and_then(|s| s.session.as_ref());
        session.map_or(Atomics::None, |s| s.peer_atomics())
    }
}

impl Engine {
    /// What the device of a connection executes the peer's atomic operations with.
    pub(crate) fn atomics_of(&self, id: SockId) -> Atomics {
        let place = self.sockets.get(id).filter(|s| s.qp.is_some()).map(|s| s.place);
        place.map_or(Atomics::None, |place| self.devices[place.device].atomics())
    }

    /// Does an atomic operation on a word of this side's export, in the place of the peer. Returns
    /// what was there.
    pub(crate) fn atomic_here(
        &mut self,
        id: SockId,
        export: ExportId,
        offset: usize,
        op: AtomicOp,
    ) -> Result<u64, Error> {
        let place = self.sockets.find(id)?.place;
        if self.devices[place.device].atomics() != Atomics::Host {
            return Err(Error::Op(OpError::Unsupported(
                "atomic operations of the processor beside those of this device: do them \
                 through a connection to this process",
            )));
        }
        let mut old = 0;
        self.sockets.with_export(id, export, |seg| {
            old = seg.slice(offset, WORD)?.atomic(0, op);
            Ok(())
        })?;
        Ok(old)
    }

    pub(crate) fn post_atomic(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        remote: Remote,
        what: AtomicOp,
    ) -> Result<(), Error> {
        let place = self.sockets.checked(id)?;
        let Prepared { iov: IoVec::One(old), temp, bounce } =
            self.devices[place.device].prepare_word(place.domain)?
        else {
            unreachable!("a word is one piece")
        };
        let kind = match what {
            AtomicOp::FetchAdd(_) => EventKind::FetchAdd,
            AtomicOp::CompareSwap { .. } => EventKind::CompareSwap,
        };
        let op = self.book(id, ticket, kind, Bufs::None);
        let posted = self
            .sockets
            .session_post(id, |s| s.post_atomic(op, remote.addr, remote.key, what, old));
        self.conclude(place, op, (temp, bounce), posted).map_err(|(e, _)| e)
    }
}
