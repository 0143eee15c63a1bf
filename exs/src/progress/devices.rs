//! The devices of a context. This is the only place that names the drivers.
//!
//! The software RNIC and shared memory are there from the start. The engine looks for RDMA devices
//! when a socket that may use them first connects or listens. So a program that pins the software
//! RNIC never touches libibverbs.

use super::Error;
use super::options::{Transport, kernel_io};
use super::report::TransportInfo;
#[cfg(feature = "verbs")]
use super::report::{DeviceInfo, PortInfo};
use crate::plain::KernelIo;
use crate::rnic::{Rnic, RnicError};
use crate::shm::ShmRnic;
use crate::tcp::SoftRnic;

type MakeSoft = dyn FnOnce(mio::Registry, usize) -> Result<Box<dyn Rnic>, Error> + Send;
pub(super) type OpenVerbs = dyn FnMut(&mio::Registry, &mut dyn Iterator<Item = usize>) -> Result<Vec<Box<dyn Rnic>>, Error>
    + Send;

/// The functions by which a context makes its devices.
pub struct Devices {
    pub(super) soft: Box<MakeSoft>,
    /// None: the context has no shared memory.
    pub(super) shm: Option<Box<MakeSoft>>,
    /// None: EXS was built without the feature `verbs`.
    pub(super) verbs: Option<Box<OpenVerbs>>,
    /// How kernel sockets wait.
    pub(super) kernel_io: KernelIo,
}

impl Devices {
    /// Devices from two functions. `soft` makes the software RNIC, for a registry and its first
    /// token. `verbs` opens RDMA devices, for a registry and the first tokens of the devices. The
    /// engine calls `verbs` again when other devices may have come. It must return only devices
    /// that it has not returned before. A device that was removed and comes back is another device.
    #[cfg(any(test, feature = "internals"))]
    pub fn new(
        soft: impl FnOnce(mio::Registry, usize) -> Result<Box<dyn Rnic>, Error> + Send + 'static,
        verbs: impl FnMut(
            &mio::Registry,
            &mut dyn Iterator<Item = usize>,
        ) -> Result<Vec<Box<dyn Rnic>>, Error>
        + Send
        + 'static,
    ) -> Devices {
        let kernel_io = kernel_io();
        Devices { soft: Box::new(soft), shm: None, verbs: Some(Box::new(verbs)), kernel_io }
    }

    /// The devices of this host.
    pub fn of_host() -> Devices {
        let (soft, shm) = (Box::new(soft), Some(Box::new(shm) as Box<MakeSoft>));
        Devices { soft, shm, verbs: verbs(), kernel_io: kernel_io() }
    }

    /// The same, with this way for kernel sockets to wait instead of the environment's.
    #[must_use]
    #[cfg(any(test, feature = "internals"))]
    pub fn with_kernel_io(self, kernel_io: KernelIo) -> Devices {
        Devices { kernel_io, ..self }
    }
}

/// iWARP over TCP, in user space.
fn soft(registry: mio::Registry, token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    let rnic =
        SoftRnic::with_kernel_keys(registry, token_base).map_err(|e| Error::os("getrandom", &e))?;
    Ok(Box::new(rnic))
}

/// Rings in memory, for peers on this host.
fn shm(registry: mio::Registry, token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    let rnic =
        ShmRnic::with_kernel_keys(registry, token_base).map_err(|e| Error::os("getrandom", &e))?;
    Ok(Box::new(rnic))
}

pub(super) const NO_DEVICE: &str = "this host has no RDMA device. `rdma link` lists them; load the driver of \
                         the adapter, or make one in software: `modprobe rdma_rxe` (or `siw`), then \
                         `rdma link add rxe0 type rxe netdev eth0`. Or let EXS choose: \
                         EXS_TRANSPORT=auto";
pub(super) const UNBUILT: &str = "this EXS was built without the feature `verbs`, which is on by default: \
                       build it with that feature";
const NO_LIBRARY: &str = "RDMA devices need the libraries of rdma-core: install them (Debian: libibverbs1, librdmacm1, \
                          ibverbs-providers; Fedora: libibverbs, librdmacm). Everything else works without";
const CANNOT_OPEN: &str = "see that rdma-core is installed, that the modules ib_uverbs and rdma_ucm \
                           are loaded (modprobe), and that /dev/infiniband may be opened";

/// Why RDMA devices cannot be used, and what to do about it.
pub(super) fn trouble(e: &Error) -> String {
    let advice = match e {
        Error::Rnic(RnicError::NoLibrary { .. }) => NO_LIBRARY,
        _ => CANNOT_OPEN,
    };
    format!("{e}; {advice}")
}

/// Describes the devices that the host has of each transport.
pub(crate) fn describe_transports() -> Vec<TransportInfo> {
    let soft = TransportInfo {
        transport: Transport::Soft,
        built_in: true,
        devices: Vec::new(),
        trouble: None,
    };
    vec![describe_verbs(), describe_shm(), soft]
}

fn describe_shm() -> TransportInfo {
    let trouble = crate::sys::share(4096).err().map(|e| {
        format!(
            "this host gives no memory to share (memfd_create: {e}): see what the sandbox allows"
        )
    });
    TransportInfo { transport: Transport::Shm, built_in: true, devices: Vec::new(), trouble }
}

#[cfg(feature = "verbs")]
fn describe_verbs() -> TransportInfo {
    let (devices, trouble) = match crate::verbs::devices() {
        Ok(found) if found.is_empty() => (Vec::new(), Some(NO_DEVICE.to_owned())),
        Ok(found) => (found.into_iter().map(device_info).collect(), None),
        Err(e) => (Vec::new(), Some(trouble(&e.into()))),
    };
    TransportInfo { transport: Transport::Verbs, built_in: true, devices, trouble }
}

#[cfg(feature = "verbs")]
fn device_info(d: crate::verbs::VerbsDeviceInfo) -> DeviceInfo {
    let port = |p: crate::verbs::VerbsPortInfo| PortInfo {
        number: p.number,
        state: p.state,
        mtu: p.mtu,
        link_layer: p.link_layer,
        gbit_per_s: p.gbit_per_s,
    };
    DeviceInfo {
        name: d.name,
        kind: d.transport.to_owned(),
        firmware: d.firmware,
        guid: d.guid,
        vendor: d.vendor,
        ports: d.ports.into_iter().map(port).collect(),
        on_demand_paging: d.odp,
        memory_windows: d.windows,
        atomics: d.atomics,
        max_qp: d.max_qp,
        max_mr: d.max_mr,
        max_mr_size: d.max_mr_size,
        max_cqe: d.max_cqe,
        addrs: d.addrs,
    }
}

#[cfg(not(feature = "verbs"))]
fn describe_verbs() -> TransportInfo {
    let trouble = Some(UNBUILT.to_owned());
    TransportInfo { transport: Transport::Verbs, built_in: false, devices: Vec::new(), trouble }
}

#[cfg(feature = "verbs")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature there are none")]
fn verbs() -> Option<Box<OpenVerbs>> {
    let mut opener = crate::verbs::Opener::default();
    Some(Box::new(move |registry, tokens| Ok(opener.open(registry, tokens)?)))
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Option<Box<OpenVerbs>> {
    None
}
