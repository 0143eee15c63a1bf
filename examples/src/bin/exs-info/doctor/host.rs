//! What the checks look at: a picture of the host, taken once.
//!
//! Everything here is plain data, so that a test can make up a host.

use std::collections::BTreeSet;

/// A host at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) limits: Limits,
    pub(crate) kernel: Kernel,
    /// Network adapters on the PCI bus.
    pub(crate) adapters: Vec<Adapter>,
    /// RDMA devices of the kernel.
    pub(crate) devices: Vec<Rdma>,
    /// `/dev/infiniband/rdma_cm`.
    pub(crate) rdma_cm: Access,
    pub(crate) library: Library,
    /// Why EXS does not start at all, such as an environment variable that it cannot read.
    pub(crate) broken: Option<String>,
    /// The user asked for RDMA devices alone, or for one by name.
    pub(crate) insists: bool,
    /// Connections that were tried.
    pub(crate) tries: Vec<Try>,
}

/// Limits of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes that it may lock. None: no limit.
    pub(crate) locked: Option<u64>,
    /// CAP_IPC_LOCK: the limit does not count.
    pub(crate) may_lock: bool,
    /// Descriptors, now and at most. None: no limit.
    pub(crate) files: Option<u64>,
    pub(crate) files_hard: Option<u64>,
    /// Bytes of memory that its control group has. None: no limit, or none that can be read.
    pub(crate) memory: Option<u64>,
}

/// What of the kernel EXS uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// `kernel.io_uring_disabled`: 0 means that all processes may use it. None: the kernel has no such
    /// switch.
    pub(crate) io_uring_disabled: Option<u64>,
    /// The switch does not concern this process, which has CAP_SYS_ADMIN.
    pub(crate) is_admin: bool,
    /// Modules that are loaded, as far as the kernel lists them.
    pub(crate) modules: BTreeSet<String>,
}

/// A network adapter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adapter {
    /// The address on the bus: "0000:41:00.0".
    pub(crate) place: String,
    /// The driver of its network interface.
    pub(crate) driver: String,
    /// It has an RDMA device.
    pub(crate) has_rdma: bool,
}

/// What a process may do with a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    Missing,
    Denied,
    Granted,
}

/// The libraries of rdma-core, and what EXS finds with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Library {
    /// EXS was built with the feature verbs.
    pub(crate) built_in: bool,
    /// Why EXS cannot use RDMA devices here.
    pub(crate) trouble: Option<String>,
}

/// The network that a device speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Network {
    #[default]
    InfiniBand,
    Roce,
    Iwarp,
}

/// An RDMA device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rdma {
    pub(crate) name: String,
    pub(crate) network: Network,
    /// Its `/dev/infiniband/uverbsN`.
    pub(crate) file: Access,
    pub(crate) file_name: String,
    /// EXS finds the device: its user-space driver is there.
    pub(crate) found: bool,
    /// Addresses of this host that are on it.
    pub(crate) addresses: Vec<String>,
    pub(crate) ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) number: u32,
    /// "ACTIVE", "DOWN", "INIT".
    pub(crate) state: String,
    /// "LinkUp", "Disabled", "Polling".
    pub(crate) physical: String,
    /// Bytes of a packet. 0: unknown.
    pub(crate) mtu: u32,
    pub(crate) gids: Vec<Gid>,
    /// The network interface behind it.
    pub(crate) interface: Option<Interface>,
}

/// An entry of a port's table of addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gid {
    /// Of RoCE version 2.
    pub(crate) is_v2: bool,
    /// Made of an IPv4 address, or of an IPv6 address that is not link-local.
    pub(crate) has_address: bool,
}

/// A network interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// It exists in software alone, and so does the RDMA device above it.
    pub(crate) is_virtual: bool,
    pub(crate) lossless: Lossless,
}

/// How the network keeps packets of RoCE from loss, as far as this host says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lossless {
    /// Neither the kernel nor the driver says. Why.
    Unknown(String),
    /// Priority flow control is off for each priority, and the adapter's congestion control with ECN
    /// is off too, or does not say.
    #[default]
    Off,
    /// One of the two is on. Which.
    On(String),
}

/// A connection that was tried.
#[derive(Clone, Debug)]
pub(crate) struct Try {
    pub(crate) transport: String,
    pub(crate) device: Option<String>,
    /// The address; this host's own for a connection within this process.
    pub(crate) to: String,
    /// It went to an address that the user gave.
    pub(crate) asked: bool,
    pub(crate) outcome: Outcome,
}

/// How a connection went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was made, and a mebibyte went there and back. The version of EXS at the other end.
    Carries { version: String, micros: u64 },
    /// It was made, and the peer does not speak as `exs-info --doctor --serve` does.
    Connects,
    /// It was made, and small messages pass, but a mebibyte does not pass in time.
    Stalls(String),
    /// It was not made, or ended.
    Fails(String),
}

impl Host {
    /// RDMA devices matter: there are some, or the user asks for them.
    pub(crate) fn concerns_rdma(&self) -> bool {
        self.insists || !self.devices.is_empty()
    }
}
