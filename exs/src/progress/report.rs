//! What this host has, and what would be chosen: for people, and for `exs-info`.

use std::net::IpAddr;

use super::options::Transport;

/// A transport, and what this host has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportInfo {
    /// Which.
    pub transport: Transport,
    /// This EXS was built with it.
    pub built_in: bool,
    /// The RDMA devices of the host; the other transports have none.
    pub devices: Vec<DeviceInfo>,
    /// Why it cannot be used, and what to do about it.
    pub trouble: Option<String>,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// "rxe0", "mlx5_0".
    pub name: String,
    /// "InfiniBand", "RoCE", "iWARP".
    pub kind: String,
    /// Firmware, or empty.
    pub firmware: String,
    /// Node GUID.
    pub guid: u64,
    /// Vendor's number and part number.
    pub vendor: (u32, u32),
    /// Ports.
    pub ports: Vec<PortInfo>,
    /// Memory can be registered without being pinned.
    pub on_demand_paging: bool,
    /// Type-2 memory windows: keys that are of one connection, and closed at once.
    pub memory_windows: bool,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most registrations.
    pub max_mr: u32,
    /// Largest registration, in bytes.
    pub max_mr_size: u64,
    /// Most completions in a queue.
    pub max_cqe: u32,
    /// Addresses of this host that are on the device.
    pub addrs: Vec<IpAddr>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortInfo {
    /// From 1.
    pub number: u8,
    /// "ACTIVE", "DOWN", ...
    pub state: String,
    /// Bytes of one packet.
    pub mtu: u32,
    /// "Ethernet", "InfiniBand".
    pub link_layer: String,
    /// Speed in Gbit/s; 0 if unknown.
    pub gbit_per_s: u32,
}

/// A way to an address, and whether it can be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// [`Transport::Verbs`], [`Transport::Shm`] or [`Transport::Soft`].
    pub transport: Transport,
    /// The device; none if there is none of that kind.
    pub device: Option<String>,
    /// A connect would try it. (Whether the peer answers there, only a connect can tell.)
    pub usable: bool,
    /// Why, or why not.
    pub reason: String,
}
