//! Choosing a device: which there are, which reach an address, in which order.

use std::net::SocketAddr;

use super::device::Device;
use super::{Engine, Error, TOKENS_PER_DEVICE};
use crate::progress::devices::{CANNOT_OPEN, NO_DEVICE, OpenVerbs, UNBUILT};
use crate::progress::options::{Options, Transport};
use crate::progress::report::Candidate;
use crate::progress::route::Verdict;
use crate::rnic::RnicError;

/// The software RNIC's place in the table of devices.
pub(super) const SOFT: usize = 0;
/// That of shared memory, if there is any.
pub(super) const SHM: usize = 1;

/// The RDMA devices of this host.
pub(in crate::progress) enum Verbs {
    /// Nobody has asked for them yet.
    Unopened(Box<OpenVerbs>, mio::Registry),
    /// EXS was built without them.
    Unbuilt,
    /// They are in the table, if there are any; or what went wrong.
    Opened(Result<(), String>),
}

impl Engine {
    /// Looks for RDMA devices, if nobody has yet.
    pub(crate) fn open_verbs(&mut self) {
        let (open, registry) = match std::mem::replace(&mut self.verbs, Verbs::Opened(Ok(()))) {
            Verbs::Unopened(open, registry) => (open, registry),
            known => {
                self.verbs = known;
                return;
            }
        };
        match open(&registry, self.devices.len() * TOKENS_PER_DEVICE, TOKENS_PER_DEVICE) {
            Ok(rnics) => {
                for rnic in rnics {
                    crate::trace::info!("found the RDMA device {}", rnic.caps().name);
                    self.devices.push(Device::new(self.devices.len(), rnic, Transport::Verbs));
                }
            }
            Err(e) => {
                crate::trace::warn!("the RDMA devices cannot be used: {e}");
                self.verbs = Verbs::Opened(Err(e.to_string()));
            }
        }
    }

    /// The RDMA devices that a socket with these options may use.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it must have one and there is none.
    pub(super) fn verbs_for(&mut self, opts: &Options) -> Result<Vec<usize>, Error> {
        if matches!(opts.transport, Transport::Soft | Transport::Shm) {
            return Ok(Vec::new());
        }
        self.open_verbs();
        let all = || self.devices.iter().filter(|d| d.transport == Transport::Verbs);
        let wanted = |d: &&Device| opts.device.as_ref().is_none_or(|n| *n == d.name());
        let found: Vec<usize> =
            all().filter(|d| !d.gone).filter(wanted).map(|d| d.index).collect();
        if !found.is_empty() || (opts.transport == Transport::Auto && opts.device.is_none()) {
            return Ok(found);
        }
        Err(Error::NoDevice { why: self.why_none(opts.device.as_deref()) })
    }

    /// Shared memory, if a socket with these options may use it.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it must, and there is none.
    pub(super) fn shm_for(&self, opts: &Options) -> Result<Option<usize>, Error> {
        let there = self.devices.get(SHM).is_some_and(|d| d.transport == Transport::Shm);
        match opts.transport {
            Transport::Auto | Transport::Shm if there => Ok(Some(SHM)),
            Transport::Shm => Err(Error::NoDevice { why: "there is no shared memory".to_owned() }),
            _ => Ok(None),
        }
    }

    /// Why there is no RDMA device (of that name), and what to do.
    fn why_none(&self, name: Option<&str>) -> String {
        let all = || self.devices.iter().filter(|d| d.transport == Transport::Verbs);
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

    /// What stands in the way of using RDMA devices, other than that there are none.
    pub(crate) fn verbs_trouble(&self) -> Option<String> {
        match &self.verbs {
            Verbs::Unbuilt => Some(UNBUILT.to_owned()),
            Verbs::Opened(Err(e)) => Some(format!("{e}; {CANNOT_OPEN}")),
            Verbs::Opened(Ok(())) | Verbs::Unopened(..) => None,
        }
    }

    /// Every device that a connection to `addr` may go by, the best first, and
    /// whether it can.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the socket must have an RDMA device and there is none.
    pub(crate) fn verdicts(
        &mut self,
        opts: &Options,
        addr: SocketAddr,
        bind: Option<SocketAddr>,
    ) -> Result<Vec<Verdict>, Error> {
        let mut devices = self.verbs_for(opts)?;
        devices.extend(self.shm_for(opts)?);
        if uses_soft(opts) {
            devices.push(SOFT);
        }
        let verdict = |device: usize| {
            let d = &self.devices[device];
            let refused: Option<RnicError> = d.rnic.reaches(addr, bind).err();
            Verdict { device, transport: d.transport, name: d.name().to_owned(), refused }
        };
        Ok(devices.into_iter().map(verdict).collect())
    }

    /// The ways of a connect, in the order in which it would try them, for people.
    pub(crate) fn explain(&mut self, opts: &Options, addr: SocketAddr) -> Vec<Candidate> {
        let pinned = match opts.transport {
            Transport::Shm => Transport::Shm,
            _ => Transport::Verbs,
        };
        let none = |reason| Candidate {
            transport: pinned,
            device: None,
            usable: false,
            reason,
        };
        let verdicts = match self.verdicts(opts, addr, None) {
            Ok(verdicts) => verdicts,
            Err(e) => return vec![none(e.to_string())],
        };
        let mut ways = Vec::new();
        let no_device = verdicts.iter().all(|v| v.transport != Transport::Verbs);
        if opts.transport == Transport::Auto && no_device {
            ways.push(none(self.why_none(None)));
        }
        ways.extend(verdicts.into_iter().map(|v| {
            let reason = match (&v.refused, v.transport) {
                (Some(why), _) => why.to_string(),
                (None, Transport::Shm) => {
                    format!("{} is this host's: if the peer takes shared memory there", addr.ip())
                }
                (None, Transport::Verbs) => format!("the way to {} goes by it", addr.ip()),
                (None, _) => "iWARP over TCP goes wherever TCP does".to_owned(),
            };
            let usable = v.refused.is_none();
            Candidate { transport: v.transport, device: Some(v.name), usable, reason }
        }));
        ways
    }

    /// A device has said that it is gone.
    pub(super) fn device_removed(&mut self, device: usize) {
        let d = &mut self.devices[device];
        if std::mem::replace(&mut d.gone, true) {
            return;
        }
        crate::trace::warn!("the RDMA device {} was removed", d.name());
        self.drop_listeners_on(device);
    }
}

/// Whether a socket with these options may use the software RNIC.
pub(super) fn uses_soft(opts: &Options) -> bool {
    matches!(opts.transport, Transport::Auto | Transport::Soft)
}
