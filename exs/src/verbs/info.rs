//! The RDMA devices of this host, for reports.

use std::net::{IpAddr, SocketAddr};

use super::host::CmHost;
use super::raw::{Device, PortAttr, load};
use crate::rnic::{Atomics, RnicError};

/// An RDMA device, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsDeviceInfo {
    /// "rxe0", "mlx5_0".
    pub name: String,
    /// "InfiniBand", "RoCE", "iWARP".
    pub transport: &'static str,
    /// Firmware, or empty.
    pub firmware: String,
    /// Node GUID.
    pub guid: u64,
    /// Vendor's number and part number.
    pub vendor: (u32, u32),
    /// Ports: number, state ("ACTIVE"), MTU, link layer ("Ethernet").
    pub ports: Vec<VerbsPortInfo>,
    /// On-demand paging for reliable connections.
    pub odp: bool,
    /// Type-2 memory windows: keys of one connection.
    pub windows: bool,
    /// What it executes atomic operations of its peers with.
    pub atomics: Atomics,
    /// Limit of queue pairs.
    pub max_qp: u32,
    /// Limit of registrations.
    pub max_mr: u32,
    /// Limit of a registration, in bytes.
    pub max_mr_size: u64,
    /// Limit of completions in a queue.
    pub max_cqe: u32,
    /// Limit of shared receive queues.
    pub max_srq: u32,
    /// Addresses of this host that the device has.
    pub addrs: Vec<IpAddr>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsPortInfo {
    /// From 1.
    pub number: u8,
    /// "ACTIVE", "DOWN", ...
    pub state: String,
    /// Bytes of one packet.
    pub mtu: u32,
    /// "Ethernet", "InfiniBand".
    pub link_layer: String,
    /// Link speed and width as the kernel gives them, in Gbit/s; 0 if unknown.
    pub gbit_per_s: u32,
}

/// Describes the RDMA devices of this host, without opening them for use.
///
/// # Errors
/// [`RnicError::NoLibrary`] on a host without rdma-core; the errors of its libraries.
pub fn devices() -> Result<Vec<VerbsDeviceInfo>, RnicError> {
    load()?;
    let found = Device::not_among(&[]).map_err(|e| RnicError::os("rdma_get_devices", &e))?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let host = CmHost::new().map_err(|e| RnicError::os("rdma_create_event_channel", &e))?;
    let local = crate::sys::local_addrs(0).map_err(|e| RnicError::os("getifaddrs", &e))?;
    found.into_iter().map(|d| describe(d, &host, &local)).collect()
}

fn describe(
    device: Device,
    host: &CmHost,
    local: &[SocketAddr],
) -> Result<VerbsDeviceInfo, RnicError> {
    let attr = device.attr().map_err(|e| RnicError::os("ibv_query_device", &e))?;
    let on_it = |a: &&SocketAddr| {
        !a.ip().is_loopback() && host.device_of(**a).is_ok_and(|d| d == Some(device))
    };
    let ports: Vec<VerbsPortInfo> =
        (1..=attr.ports).filter_map(|n| device.port(n).ok().map(|p| port(n, &p))).collect();
    let transport = match (attr.iwarp, ports.first().map(|p| p.link_layer.as_str())) {
        (true, _) => "iWARP",
        (false, Some("Ethernet")) => "RoCE",
        (false, _) => "InfiniBand",
    };
    Ok(VerbsDeviceInfo {
        name: device.name(),
        transport,
        firmware: attr.firmware,
        guid: attr.guid,
        vendor: attr.vendor,
        ports,
        odp: attr.odp,
        windows: attr.windows,
        atomics: attr.atomics,
        max_qp: attr.max_qp,
        max_mr: attr.max_mr,
        max_mr_size: attr.max_mr_size,
        max_cqe: attr.max_cqe,
        max_srq: attr.max_srq,
        addrs: local.iter().filter(on_it).map(SocketAddr::ip).collect(),
    })
}

fn port(number: u8, p: &PortAttr) -> VerbsPortInfo {
    let state = match p.state {
        1 => "DOWN",
        2 => "INIT",
        3 => "ARMED",
        4 => "ACTIVE",
        5 => "ACTIVE_DEFER",
        _ => "UNKNOWN",
    };
    let link_layer = match p.link_layer {
        1 => "InfiniBand",
        2 => "Ethernet",
        _ => "unspecified",
    };
    // `ibv_port_attr`: the width is a bit of 1, 4, 8, 12, 2 lanes; the speed one of
    // these, in tenths of Gbit/s a lane.
    let lanes = match p.width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let tenths = match p.speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    };
    let mtu = match p.mtu {
        n @ 1..=5 => 128 << n,
        _ => 0,
    };
    VerbsPortInfo {
        number,
        state: state.to_owned(),
        mtu,
        link_layer: link_layer.to_owned(),
        gbit_per_s: lanes * tenths / 10,
    }
}
