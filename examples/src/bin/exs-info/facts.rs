//! The facts about this host and its devices.

use std::net::SocketAddr;
use std::path::Path;

use exs::{Atomics, DeviceInfo, Error, Options, Transport};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Everything.
#[derive(Serialize)]
pub(crate) struct Facts {
    pub(crate) version: &'static str,
    pub(crate) transports: Vec<Kind>,
    pub(crate) host: Host,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) choice: Option<Choice>,
}

/// A transport.
#[derive(Serialize)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) built_in: bool,
    pub(crate) available: bool,
    pub(crate) trouble: Option<String>,
    pub(crate) devices: Vec<Device>,
}

#[derive(Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) firmware: String,
    pub(crate) guid: String,
    pub(crate) vendor: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) ports: Vec<Port>,
    pub(crate) on_demand_paging: bool,
    pub(crate) memory_windows: bool,
    /// "none", "device" or "host": what the operations of its peers are atomic with.
    pub(crate) atomics: &'static str,
    pub(crate) max_queue_pairs: u32,
    pub(crate) max_registrations: u32,
    pub(crate) max_registration_bytes: u64,
    pub(crate) max_completions: u32,
}

#[derive(Serialize)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) state: String,
    pub(crate) mtu: u32,
    pub(crate) link: String,
    pub(crate) gbit_per_s: u32,
}

/// What of the host matters to RDMA.
#[derive(Serialize)]
pub(crate) struct Host {
    /// Bytes that this process may lock; none: no limit.
    pub(crate) memory_lock_limit: Option<u64>,
    /// Of the kernel's RDMA modules, those that are there.
    pub(crate) modules: Vec<&'static str>,
    /// /dev/infiniband is there.
    pub(crate) device_files: bool,
}

/// What would be chosen for an address.
#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) address: String,
    /// The first that is usable.
    pub(crate) chosen: Option<String>,
    pub(crate) candidates: Vec<Way>,
}

#[derive(Serialize)]
pub(crate) struct Way {
    pub(crate) transport: String,
    pub(crate) device: Option<String>,
    pub(crate) usable: bool,
    pub(crate) reason: String,
}

impl Way {
    /// As the programs' reports have it: "soft", "verbs (rxe0)".
    pub(crate) fn name(&self) -> String {
        match &self.device {
            Some(device) if *device != self.transport => format!("{} ({device})", self.transport),
            _ => self.transport.clone(),
        }
    }
}

impl Facts {
    pub(crate) fn collect(to: Option<SocketAddr>, options: &Options) -> Result<Facts, Error> {
        let choice = to.map(|addr| choice(addr, options)).transpose()?;
        let kind = |t: exs::TransportInfo| Kind {
            name: t.transport.to_string(),
            built_in: t.built_in,
            available: t.trouble.is_none()
                && (t.transport != Transport::Verbs || !t.devices.is_empty()),
            trouble: t.trouble,
            devices: t.devices.into_iter().map(device).collect(),
        };
        let transports = exs::transports().into_iter().map(kind).collect();
        Ok(Facts { version: exs::VERSION, transports, host: host(), choice })
    }

    /// The transports and devices that were asked for and are missing.
    pub(crate) fn missing(&self, options: &Options) -> Option<String> {
        let (wanted, device) = (options.transport.to_string(), options.device.as_deref());
        if let Some(kind) = self.transports.iter().find(|k| k.name == wanted && !k.available) {
            let why = kind.trouble.as_deref().unwrap_or("this host has no RDMA device");
            return Some(format!("{wanted} is not available: {why}"));
        }
        let mut devices = self.transports.iter().flat_map(|k| &k.devices);
        if let Some(name) = device.filter(|name| !devices.any(|d| d.name == *name)) {
            return Some(format!("no RDMA device is called {name}"));
        }
        let choice = self.choice.as_ref().filter(|c| c.chosen.is_none())?;
        Some(format!("nothing leads to {}", choice.address))
    }
}

fn device(d: DeviceInfo) -> Device {
    let port = |p: exs::PortInfo| Port {
        number: p.number,
        state: p.state,
        mtu: p.mtu,
        link: p.link_layer,
        gbit_per_s: p.gbit_per_s,
    };
    Device {
        name: d.name,
        kind: d.kind,
        firmware: d.firmware,
        guid: format!("{:016x}", d.guid),
        vendor: format!("{:#06x}:{:#x}", d.vendor.0, d.vendor.1),
        addresses: d.addrs.iter().map(ToString::to_string).collect(),
        ports: d.ports.into_iter().map(port).collect(),
        on_demand_paging: d.on_demand_paging,
        memory_windows: d.memory_windows,
        atomics: match d.atomics {
            Atomics::Device => "device",
            Atomics::Host => "host",
            _ => "none",
        },
        max_queue_pairs: d.max_qp,
        max_registrations: d.max_mr,
        max_registration_bytes: d.max_mr_size,
        max_completions: d.max_cqe,
    }
}

fn choice(addr: SocketAddr, options: &Options) -> Result<Choice, Error> {
    let way = |c: exs::Candidate| Way {
        transport: c.transport.to_string(),
        device: c.device,
        usable: c.usable,
        reason: c.reason,
    };
    let candidates: Vec<Way> = exs::explain(addr, options)?.into_iter().map(way).collect();
    let chosen = candidates.iter().find(|w| w.usable).map(Way::name);
    Ok(Choice { address: addr.ip().to_string(), chosen, candidates })
}

/// The kernel's modules: the two that user space needs, and the drivers in software.
const MODULES: [&str; 4] = ["ib_uverbs", "rdma_ucm", "rdma_rxe", "siw"];

fn host() -> Host {
    Host {
        memory_lock_limit: getrlimit(Resource::Memlock).current,
        modules: MODULES
            .into_iter()
            .filter(|m| Path::new("/sys/module").join(m).exists())
            .collect(),
        device_files: Path::new("/dev/infiniband").exists(),
    }
}
