//! Connecting: the attempts of the side that asks.
//!
//! An attempt resolves the peer's address and the route, makes the queue pair, and asks. If the program
//! asks for properties of the route, the attempt changes the record of the route that it has found, and
//! begins again with another id. That id gets the record in place of a route (`path`).
//!
//! A kernel
//! drops a request that its busy host leaves without an answer: siw and erdma after seconds, by time
//! limits of their own. That says nothing of the peer, so such an attempt is made again while its own
//! time lasts.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::VerbsRnic;
use super::cm::CmPhase;
use super::path::change_route;
use super::patience::TimeLimit;
use super::qp::VerbsQp;
use super::raw::{CmId, PathRecord};
use crate::rnic::{CmEvent, ConnParam, PathAttr, Qp, RnicError};
use crate::time::Time;

/// Timeout of the first try to resolve an address. Kernels may wait for all of it although the
/// answer is there, so it is short, and each further try doubles it.
const FIRST_RESOLVE_TIMEOUT: Duration = Duration::from_millis(250);
/// A connection attempt.
pub(super) struct CmDial {
    /// None once the queue pair was made with it.
    pub(super) id: Option<CmId>,
    pub(super) to: DialGoal,
    /// The route that the program has asked for. None: the network chooses it, or it is not known yet.
    record: Option<PathRecord>,
    /// Holds the local port in TCP; None: none was reserved.
    _port: Option<OwnedFd>,
    /// When the attempt must have an answer. Answers to others move it (`patience`).
    pub(super) until: Time,
    step: Duration,
    /// When it was made, or made again.
    pub(super) tried: Time,
}

/// What an attempt asks for.
#[derive(Clone)]
pub(super) struct DialGoal {
    pub(super) addr: SocketAddr,
    bind: Option<SocketAddr>,
    pub(super) private_data: Vec<u8>,
    pub(super) ird: u32,
    pub(super) ord: u32,
    pub(super) limit: TimeLimit,
    pub(super) path: PathAttr,
}

impl VerbsRnic {
    pub(super) fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        if !matches!(self.qps.get(qp.0)?.phase, CmPhase::Idle) {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private_data(param.private_data)?;
        self.check_path(&param.path)?;
        if addr.ip().is_loopback() {
            let call = "loopback addresses are on no RDMA device";
            return Err(RnicError::Os { call, errno: libc::EHOSTUNREACH });
        }
        let target = DialGoal {
            addr,
            bind: param.bind,
            private_data: param.private_data.to_vec(),
            ird: param.ird.min(self.profile.caps().max_ird),
            ord: param.ord.min(self.profile.caps().max_ord),
            limit: TimeLimit { began: now, timeout: param.timeout },
            path: param.path,
        };
        self.dial(qp.0, (target, None), now + param.timeout, now)
    }

    /// Begins an attempt, perhaps with the record of its route.
    fn dial(
        &mut self,
        qp: u32,
        (to, record): (DialGoal, Option<PathRecord>),
        until: Time,
        now: Time,
    ) -> Result<(), RnicError> {
        let step = FIRST_RESOLVE_TIMEOUT.min(until.since(now));
        let (id, port) = self
            .start_resolving(to.addr, to.bind, (step, to.path.traffic_class))
            .map_err(|e| RnicError::os("rdma_resolve_addr", &e))?;
        self.cm_ids.assign(&id, qp);
        let dial = CmDial { id: Some(id), to, record, _port: port, until, step, tried: now };
        self.qps.get_mut(qp)?.phase = CmPhase::Resolving(Box::new(dial));
        self.set_deadline(qp, Some(until));
        Ok(())
    }

    pub(super) fn addr_resolved(&mut self, qp: u32, now: Time) {
        let device = self.device;
        let Ok(VerbsQp { phase, .. }) = self.qps.get_mut(qp) else { return };
        let CmPhase::Resolving(dial) = std::mem::replace(phase, CmPhase::Over) else { return };
        let ours = dial.id.as_ref().is_some_and(|id| id.device() == Some(device));
        let routed = dial.id.as_ref().map(|id| match &dial.record {
            None => id.resolve_route(dial.until.since(now)),
            Some(record) => id.set_path_record(record),
        });
        let step = dial.record.as_ref().map_or("rdma_resolve_route", |_| "RDMA_OPTION_IB_PATH");
        *phase = CmPhase::Routing(dial);
        if !ours {
            let call = "the route goes by another device";
            self.connect_failed(qp, RnicError::Os { call, errno: libc::EHOSTUNREACH });
        } else if let Some(Err(e)) = routed {
            self.connect_failed(qp, RnicError::os(step, &e));
        }
    }

    /// The network's route is known. Begins again with a route of the program's.
    fn change_route(&mut self, qp: u32) -> Result<(), RnicError> {
        let now = self.now;
        let Ok(VerbsQp { phase: CmPhase::Routing(dial), .. }) = self.qps.get_mut(qp) else {
            return Ok(());
        };
        let Some(id) = dial.id.take() else { return Ok(()) };
        let (to, until) = (dial.to.clone(), dial.until);
        self.cm_ids.release(&id);
        let (record, port) = (id.path_record(), id.port());
        id.free();
        let option = to.path.route_option().unwrap_or_default();
        let mut record = record.ok_or_else(|| RnicError::Path {
            option,
            device: self.profile.name().to_owned(),
            why: "librdmacm has no path record of the route".to_owned(),
        })?;
        change_route(&mut record, &to.path, self.device, port)?;
        self.dial(qp, (to, Some(record)), until, now)
    }

    pub(super) fn addr_error(&mut self, qp: u32, status: i32, now: Time) {
        let Ok(VerbsQp { phase: CmPhase::Resolving(dial), .. }) = self.qps.get_mut(qp) else {
            return;
        };
        let left = dial.until.since(now);
        let mut result = Err(std::io::Error::from_raw_os_error(-status.min(-1)));
        if status == -libc::ETIMEDOUT && !left.is_zero() {
            dial.step = (dial.step * 2).min(left);
            if let Some(id) = &dial.id {
                // The first try has bound the source.
                result = id.resolve_addr(None, dial.to.addr, dial.step);
            }
        }
        if let Err(e) = result {
            crate::trace::debug!("resolving {} (from {:?}): {e}", dial.to.addr, dial.to.bind);
            self.connect_failed(qp, RnicError::os("rdma_resolve_addr", &e));
        }
    }

    pub(super) fn route_resolved(&mut self, qp: u32) {
        let Ok(VerbsQp { phase: CmPhase::Routing(dial), .. }) = self.qps.get(qp) else { return };
        if dial.record.is_none() && dial.to.path.route_option().is_some() {
            if let Err(e) = self.change_route(qp) {
                self.connect_failed(qp, e);
            }
        } else if self.startups.may_ask(dial.to.addr, qp) {
            self.ask(qp);
        }
    }

    /// Lets attempts ask that have got their turn.
    pub(super) fn ask_next(&mut self) {
        while let Some(qp) = self.startups.next_to_ask() {
            self.ask(qp);
        }
    }

    /// Makes the queue pair of an attempt, and sends the request.
    fn ask(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let CmPhase::Routing(dial) = &mut q.phase else { return };
        let Some(id) = dial.id.take() else { return };
        let path = dial.to.path;
        q.addrs = id.local_addr().zip(id.peer_addr());
        if let CmPhase::Routing(dial) = std::mem::replace(&mut q.phase, CmPhase::Over) {
            q.phase = CmPhase::Connecting(dial);
        }
        self.set_ack_timeout(&id, &path);
        if let Err((id, e)) = self.make_device_qp(qp, id) {
            self.cm_ids.release(&id);
            drop(id);
            return self.connect_failed(qp, e);
        }
        let Ok(VerbsQp { hw: Some(hw), phase: CmPhase::Connecting(dial), .. }) = self.qps.get(qp)
        else {
            return;
        };
        let connected = self.startups.connect(&hw.id, &dial.to);
        if let Err(e) = connected {
            self.connect_failed(qp, RnicError::os("rdma_connect", &e));
        }
    }

    /// Handles connects in threads that have failed.
    pub(super) fn handle_failed_connects(&mut self) {
        for (serial, e) in self.startups.failed_connects() {
            if let Some(qp) = self.cm_ids.owner(serial)
                && matches!(self.qps.get(qp).map(|q| &q.phase), Ok(CmPhase::Connecting(_)))
            {
                self.connect_failed(qp, RnicError::os("rdma_connect", &e));
            }
        }
    }

    // ---- limits ----------------------------------------------------------------------

    /// The peer has answered a start-up, whatever the answer.
    pub(super) fn note_answer(&mut self, qp: u32) {
        let Ok(q) = self.qps.get(qp) else { return };
        let local = q.addrs.map(|(local, _)| local);
        self.startups.note_answer(&q.phase, local, self.now);
    }

    /// A start-up has had its time: it goes on if its peer answers others, or ends.
    pub(super) fn start_up_late(&mut self, qp: u32) {
        let now = self.now;
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let local = q.addrs.map(|(local, _)| local);
        match self.startups.extend(&mut q.phase, local, now) {
            Some((_, until @ Some(_))) => self.set_deadline(qp, until),
            Some((limit, None)) => self.connect_failed(qp, RnicError::Timeout(limit)),
            None => {}
        }
    }

    /// A start-up has failed. It begins again if a kernel has dropped it.
    pub(super) fn connect_failed(&mut self, qp: u32, error: RnicError) {
        let cut = matches!(error, RnicError::Os { errno: libc::ECONNRESET | libc::ETIMEDOUT, .. });
        if !cut || !self.redial(qp, &error) {
            self.end_attempt(qp, CmEvent::ConnectFailed { qp: Qp(qp), error });
        }
    }

    /// Begins an attempt that was dropped again. False: it was not dropped, or there is no time.
    fn redial(&mut self, qp: u32, why: &RnicError) -> bool {
        let now = self.now;
        let Ok(VerbsQp { phase: CmPhase::Connecting(dial), attr, .. }) = self.qps.get(qp) else {
            return false;
        };
        // Receives of the queue pair's own would be flushed.
        let until = self.startups.try_again_until(dial, now).filter(|_| attr.srq.is_some());
        let Some(until) = until else { return false };
        let to = dial.to.clone();
        crate::trace::info!("connecting to {} again: {why}", to.addr);
        self.set_deadline(qp, None);
        self.free_device_qp(qp, true);
        let begun = self.dial(qp, (to, None), until, now);
        begun.inspect_err(|e| crate::trace::debug!("not again: {e}")).is_ok()
    }
}
