//! Reports on the transports of this host and on the choice of a device, for human readers and for
//! `exs-info`.

use std::net::IpAddr;

use super::options::Transport;
use crate::mem::Atomics;

/// A transport, and the devices that this host has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportInfo {
    /// The transport.
    pub transport: Transport,
    /// This EXS was built with the transport.
    pub built_in: bool,
    /// The RDMA devices of the host. Empty for other transports.
    pub devices: Vec<DeviceInfo>,
    /// Why the transport cannot be used, and what to do about it. None: it can.
    pub trouble: Option<String>,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name, as "rxe0" or "mlx5_0".
    pub name: String,
    /// "InfiniBand", "RoCE" or "iWARP".
    pub kind: String,
    /// The version of the firmware. Empty if unknown.
    pub firmware: String,
    /// The node GUID.
    pub guid: u64,
    /// The numbers of the vendor and of the part.
    pub vendor: (u32, u32),
    /// The ports.
    pub ports: Vec<PortInfo>,
    /// Memory can be registered without being pinned.
    pub on_demand_paging: bool,
    /// The device has type-2 memory windows: keys of a single connection, which can be closed at
    /// once.
    pub memory_windows: bool,
    /// What the device executes atomic operations of its peers with.
    pub atomics: Atomics,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most registrations.
    pub max_mr: u32,
    /// The largest registration, in bytes.
    pub max_mr_size: u64,
    /// The most completions in a queue.
    pub max_cqe: u32,
    /// The addresses of this host that are on the device.
    pub addrs: Vec<IpAddr>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// The number, from 1.
    pub number: u8,
    /// The state, as "ACTIVE" or "DOWN".
    pub state: String,
    /// The bytes of one packet.
    pub mtu: u32,
    /// "Ethernet" or "InfiniBand".
    pub link_layer: String,
    /// The speed in Gbit/s. 0 if unknown.
    pub gbit_per_s: u32,
}

/// A device that may lead to an address, and whether a connect would use it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// [`Transport::Verbs`], [`Transport::Shm`] or [`Transport::Soft`].
    pub transport: Transport,
    /// The name of the device. None: the host has no device of that kind.
    pub device: Option<String>,
    /// A connect would try it. Only a connect can tell whether the peer answers there.
    pub usable: bool,
    /// Why, or why not.
    pub reason: String,
}
