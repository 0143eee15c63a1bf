//! The choice of a device: the engine finds the devices, asks which of them reach an address, and
//! orders them.

use std::net::SocketAddr;

use super::super::device::Device;
use super::super::dial::destination;
use super::super::{Error, TOKENS_PER_DEVICE, unreachable};
use super::{DeviceTable, SHM, SOFT};
use crate::progress::devices::{self, NO_DEVICE, OpenVerbs, UNBUILT};
use crate::progress::options::{Options, Transport};
use crate::progress::report::Candidate;
use crate::progress::route::Verdict;
use crate::rnic::RnicError;
use crate::sys;
use crate::time::Time;

/// The RDMA devices of this host.
pub(in crate::progress) enum Verbs {
    /// EXS was built without the feature `verbs`.
    Unbuilt,
    /// EXS was built with it.
    Built(Box<Finder>),
}

/// Looks for the RDMA devices of this host.
pub(in crate::progress) struct Finder {
    open: Box<OpenVerbs>,
    registry: mio::Registry,
    /// Set by the first search. From then on the devices that the host has are in the table.
    asked: bool,
    /// Why the last search failed. None: it succeeded, or there was none.
    trouble: Option<String>,
}

impl Verbs {
    pub(in crate::progress) fn new(open: Box<OpenVerbs>, registry: mio::Registry) -> Verbs {
        Verbs::Built(Box::new(Finder { open, registry, asked: false, trouble: None }))
    }
}

impl DeviceTable {
    /// Looks for RDMA devices, unless the engine has done so before.
    pub(crate) fn open_verbs(&mut self) {
        if matches!(&self.verbs, Verbs::Built(finder) if !finder.asked) {
            self.look_for_verbs();
        }
    }

    /// Looks for RDMA devices that are not in the table. A new device takes the place of a removed
    /// device that nothing uses any more, or a place at the end.
    fn look_for_verbs(&mut self) {
        let Verbs::Built(finder) = &mut self.verbs else { return };
        finder.asked = true;
        let free = self.list.iter().filter(|d| d.gone && d.is_unused()).map(|d| d.index);
        let places: Vec<usize> = free.collect();
        let mut all = places.iter().copied().chain(self.list.len()..);
        let mut tokens = all.clone().map(|place| place * TOKENS_PER_DEVICE);
        match (finder.open)(&finder.registry, &mut tokens) {
            Ok(rnics) => {
                finder.trouble = None;
                for (rnic, place) in rnics.into_iter().zip(&mut all) {
                    crate::trace::info!("found the RDMA device {}", rnic.caps().name);
                    self.unreachable.forget_device(place);
                    let device = Device::new(place, rnic, Transport::Verbs, &self.registrar);
                    match self.list.get_mut(place) {
                        Some(old) => *old = device.in_place_of(old),
                        None => self.list.push(device),
                    }
                }
            }
            Err(e) => {
                crate::trace::warn!("the RDMA devices cannot be used: {e}");
                finder.trouble = Some(devices::trouble(&e));
            }
        }
    }

    /// The RDMA devices that a socket with these options may use.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the options demand an RDMA device and there is none.
    pub(in crate::progress::engine) fn verbs_for(
        &mut self,
        opts: &Options,
    ) -> Result<Vec<usize>, Error> {
        if matches!(opts.transport, Transport::Soft | Transport::Shm) {
            return Ok(Vec::new());
        }
        self.open_verbs();
        let free = opts.transport == Transport::Auto && opts.device.is_none();
        let mut found = self.usable(opts);
        // A search takes about a millisecond. The engine searches while a removed device has not
        // come back, and before it tells a socket that there is no device for it.
        if self.misses_device() || (found.is_empty() && !free) {
            self.look_for_verbs();
            found = self.usable(opts);
        }
        if !found.is_empty() || free {
            return Ok(found);
        }
        Err(Error::NoDevice { why: self.why_none(opts.device.as_deref()) })
    }

    /// Shared memory, if a socket with these options may use it.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the options demand shared memory and there is none.
    pub(in crate::progress::engine) fn shm_for(
        &self,
        opts: &Options,
    ) -> Result<Option<usize>, Error> {
        let there = self.list.get(SHM).is_some_and(|d| d.transport == Transport::Shm);
        match opts.transport {
            Transport::Auto | Transport::Shm if there => Ok(Some(SHM)),
            Transport::Shm => Err(Error::NoDevice { why: "there is no shared memory".to_owned() }),
            _ => Ok(None),
        }
    }

    fn usable(&self, opts: &Options) -> Vec<usize> {
        let wanted = |d: &&Device| opts.device.as_ref().is_none_or(|n| *n == d.name());
        let verbs = self.list.iter().filter(|d| d.transport == Transport::Verbs && !d.gone);
        verbs.filter(wanted).map(|d| d.index).collect()
    }

    /// The place here of a device that another shard uses.
    ///
    /// # Errors
    /// ENODEV if this shard cannot use it.
    pub(in crate::progress::engine) fn place_of(
        &mut self,
        transport: Transport,
        name: &str,
    ) -> Result<usize, RnicError> {
        let found = |table: &DeviceTable| {
            let mut live = table.list.iter().filter(|d| d.transport == transport && !d.gone);
            live.find(|d| d.name() == name).map(|d| d.index)
        };
        if transport == Transport::Verbs && found(self).is_none() {
            self.look_for_verbs();
        }
        let call = "the device is not open in this shard";
        found(self).ok_or(RnicError::Os { call, errno: libc::ENODEV })
    }

    /// True if a device was removed and has not come back.
    fn misses_device(&self) -> bool {
        let back = |gone: &Device| self.list.iter().any(|d| !d.gone && d.name() == gone.name());
        self.list.iter().any(|d| d.gone && !back(d))
    }

    /// Why there is no RDMA device, or none of this name, and what to do about it.
    fn why_none(&self, name: Option<&str>) -> String {
        let all = || self.list.iter().filter(|d| d.transport == Transport::Verbs);
        if let Some(name) = name
            && all().next().is_some()
        {
            if all().any(|d| d.name() == name) {
                return format!("the RDMA device {name} was removed");
            }
            let names: Vec<&str> = all().map(Device::name).collect();
            return format!("no RDMA device is called {name}: there is {}", names.join(", "));
        }
        match self.verbs_trouble() {
            Some(why) => why,
            None if all().next().is_some() => "every RDMA device was removed".to_owned(),
            None => NO_DEVICE.to_owned(),
        }
    }

    /// The addresses that stand for a wildcard. It is the wildcard itself, unless a device takes
    /// TCP ports on its own addresses. It does not matter whether this socket uses that device: a
    /// wildcard of librdmacm is on all devices.
    pub(in crate::progress::engine) fn everywhere(
        &self,
        any: SocketAddr,
        v6_only: bool,
    ) -> Result<Vec<SocketAddr>, Error> {
        let iwarp = |d: &Device| d.transport == Transport::Verbs && d.rnic.caps().owns_tcp_port;
        if !self.list.iter().any(|d| !d.gone && iwarp(d)) {
            return Ok(vec![any]);
        }
        let all = sys::local_addrs(any.port()).map_err(|e| Error::os("getifaddrs", &e))?;
        let wanted = |a: &SocketAddr| a.is_ipv6() == any.is_ipv6() || (any.is_ipv6() && !v6_only);
        Ok(all.into_iter().filter(wanted).collect())
    }

    /// Why RDMA devices cannot be used. None: they can, or the host has none.
    pub(crate) fn verbs_trouble(&self) -> Option<String> {
        match &self.verbs {
            Verbs::Unbuilt => Some(UNBUILT.to_owned()),
            Verbs::Built(finder) => finder.trouble.clone(),
        }
    }

    /// Every device that a connection to `addr` may use, the best first, and whether it reaches the
    /// address.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the options demand an RDMA device and there is none.
    pub(crate) fn verdicts(
        &mut self,
        opts: &Options,
        addr: SocketAddr,
        bind: Option<SocketAddr>,
        now: Time,
    ) -> Result<Vec<Verdict>, Error> {
        let mut devices = self.verbs_for(opts)?;
        devices.extend(self.shm_for(opts)?);
        if uses_soft(opts) {
            devices.push(SOFT);
        }
        let verdict = |device: usize| {
            let d = &self.list[device];
            let refused: Option<RnicError> = d.rnic.reaches(addr, bind).err();
            let silent = self.silent_for(device, addr.ip(), now);
            Verdict { device, transport: d.transport, name: d.name().to_owned(), refused, silent }
        };
        let mut verdicts: Vec<Verdict> = devices.into_iter().map(verdict).collect();
        // The sort is stable: devices on which the peer was silent go last, and the rest keeps its
        // order.
        verdicts.sort_by_key(|v| v.silent.is_some());
        Ok(verdicts)
    }

    /// The devices that a connect to `addr` would try, in this order, with reasons for a human
    /// reader.
    pub(crate) fn explain(
        &mut self,
        opts: &Options,
        addr: SocketAddr,
        now: Time,
    ) -> Vec<Candidate> {
        let addr = destination(addr, None);
        let pinned = match opts.transport {
            Transport::Shm => Transport::Shm,
            _ => Transport::Verbs,
        };
        let none = |reason| Candidate { transport: pinned, device: None, usable: false, reason };
        let verdicts = match self.verdicts(opts, addr, None, now) {
            Ok(verdicts) => verdicts,
            Err(e) => return vec![none(e.to_string())],
        };
        let mut ways = Vec::new();
        let no_device = verdicts.iter().all(|v| v.transport != Transport::Verbs);
        if opts.transport == Transport::Auto && no_device {
            ways.push(none(self.why_none(None)));
        }
        ways.extend(verdicts.into_iter().map(|v| {
            let reason = match (&v.refused, v.silent, v.transport) {
                (Some(why), _, _) => why.to_string(),
                (None, Some(ago), _) => unreachable::describe(ago),
                (None, None, Transport::Shm) => {
                    format!(
                        "{} is on this host: it works if the peer takes shared memory there",
                        addr.ip()
                    )
                }
                (None, None, Transport::Verbs) => format!("the way to {} goes by it", addr.ip()),
                (None, None, _) => "iWARP over TCP goes wherever TCP does".to_owned(),
            };
            let usable = v.refused.is_none();
            Candidate { transport: v.transport, device: Some(v.name), usable, reason }
        }));
        ways
    }

    /// The driver reports that a device was removed. False: it has done so before.
    pub(in crate::progress::engine) fn note_removal(&mut self, device: usize) -> bool {
        let d = &mut self.list[device];
        if std::mem::replace(&mut d.gone, true) {
            return false;
        }
        crate::trace::warn!("the RDMA device {} was removed", d.name());
        true
    }
}

/// True if a socket with these options may use the software RNIC.
pub(in crate::progress::engine) fn uses_soft(opts: &Options) -> bool {
    matches!(opts.transport, Transport::Auto | Transport::Soft)
}
