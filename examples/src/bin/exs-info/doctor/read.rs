//! Takes the picture: reads /proc, /sys and /dev, and asks EXS for its devices.
//!
//! All files are read below a root, so that a test can make them. A file that is not there, or that
//! this kernel writes in another way, leaves its field at "unknown"; nothing here fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exs::{DeviceInfo, Options, Socket, Transport};
use rustix::fs::{Access as Wanted, access};
use rustix::process::{Resource, getrlimit};

use super::host::{
    Access, Adapter, Gid, Host, Interface, Kernel, Library, Limits, Lossless, Network, Port, Rdma,
};

/// Numbers of capabilities, of `<linux/capability.h>`.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;

/// Files below a root.
pub(super) struct Files(pub(super) PathBuf);

impl Files {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file of one line.
    fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.at(path)).ok()?.trim().to_owned())
    }

    fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn is_there(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The last name of what a link leads to.
    fn target(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    fn access(&self, path: &str) -> Access {
        let path = self.at(path);
        match access(&path, Wanted::READ_OK | Wanted::WRITE_OK) {
            Ok(()) => Access::Granted,
            Err(_) if path.exists() => Access::Denied,
            Err(_) => Access::Missing,
        }
    }
}

/// This host, for sockets with these options.
pub(super) fn host(options: &Options) -> Host {
    let files = Files(PathBuf::from("/"));
    let verbs = exs::transports().into_iter().find(|t| t.transport == Transport::Verbs);
    let (built_in, trouble, found) = match verbs {
        Some(t) => (t.built_in, t.trouble, t.devices),
        None => (false, None, Vec::new()),
    };
    let wanted = |d: &Rdma| options.device.as_ref().is_none_or(|name| *name == d.name);
    Host {
        limits: limits(&files),
        kernel: kernel(&files),
        adapters: adapters(&files),
        devices: devices(&files, &found).into_iter().filter(wanted).collect(),
        rdma_cm: files.access("/dev/infiniband/rdma_cm"),
        library: Library { built_in, trouble },
        broken: Socket::stream().err().map(|e| e.to_string()),
        insists: false,
        tries: Vec::new(),
    }
}

/// The process has this capability.
fn is_capable(files: &Files, number: u32) -> bool {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let mask = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()).unwrap_or(0);
    mask >> number & 1 == 1
}

fn limits(files: &Files) -> Limits {
    let open = getrlimit(Resource::Nofile);
    Limits {
        locked: getrlimit(Resource::Memlock).current,
        may_lock: is_capable(files, CAP_IPC_LOCK),
        files: open.current,
        files_hard: open.maximum,
        memory: memory(files),
    }
}

/// The limit of the process's control group, of version 2 or 1.
pub(super) fn memory(files: &Files) -> Option<u64> {
    let groups = files.text("/proc/self/cgroup")?;
    let path_of = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let two = groups.lines().find(|l| l.starts_with("0::")).and_then(path_of);
    let one = groups.lines().find(|l| l.split(':').nth(1) == Some("memory")).and_then(path_of);
    let mut least: Option<u64> = None;
    let mut take = |file: String| {
        let limit: Option<u64> = files.number(&file);
        // Version 1 writes a very large number for none.
        least = least.into_iter().chain(limit.filter(|n| n >> 60 == 0)).min();
    };
    // A group has no more than those above it. In a container the path may be the host's.
    if let Some(path) = two {
        for dir in Path::new(&path).ancestors() {
            take(format!("/sys/fs/cgroup/{}/memory.max", dir.display()));
        }
        take("/sys/fs/cgroup/memory.max".to_owned());
    }
    if let Some(path) = one {
        take(format!("/sys/fs/cgroup/memory/{path}/memory.limit_in_bytes"));
        take("/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned());
    }
    least
}

pub(super) fn kernel(files: &Files) -> Kernel {
    let loaded = files.text("/proc/modules").unwrap_or_default();
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let mut modules: BTreeSet<String> = loaded.lines().filter_map(first).collect();
    // Parts of the kernel itself are here, if they have parameters.
    modules.extend(files.names("/sys/module"));
    Kernel {
        io_uring_disabled: files.number("/proc/sys/kernel/io_uring_disabled"),
        is_admin: is_capable(files, CAP_SYS_ADMIN),
        modules,
    }
}

pub(super) fn adapters(files: &Files) -> Vec<Adapter> {
    const PCI: &str = "/sys/bus/pci/devices";
    let mut adapters = Vec::new();
    for place in files.names(PCI) {
        let class = files.text(&format!("{PCI}/{place}/class")).unwrap_or_default();
        let driver = files.target(&format!("{PCI}/{place}/driver"));
        if let Some(driver) = driver.filter(|_| class.starts_with("0x02")) {
            let has_rdma = files.is_there(&format!("{PCI}/{place}/infiniband"));
            adapters.push(Adapter { place, driver, has_rdma });
        }
    }
    adapters
}

const DEVICES: &str = "/sys/class/infiniband";

pub(super) fn devices(files: &Files, found: &[DeviceInfo]) -> Vec<Rdma> {
    let nodes: Vec<(String, String)> = files
        .names("/sys/class/infiniband_verbs")
        .into_iter()
        .filter_map(|n| Some((files.text(&format!("/sys/class/infiniband_verbs/{n}/ibdev"))?, n)))
        .collect();
    let device = |name: String| {
        let known = found.iter().find(|d| d.name == name);
        let node = nodes.iter().find(|(device, _)| *device == name);
        let file_name = node.map_or(String::new(), |(_, n)| format!("/dev/infiniband/{n}"));
        let network = network(files, &name);
        let numbers = files.names(&format!("{DEVICES}/{name}/ports"));
        let ports = numbers.iter().filter_map(|n| n.parse().ok());
        Rdma {
            file: match file_name.is_empty() {
                true => Access::Missing,
                false => files.access(&file_name),
            },
            file_name,
            network,
            found: known.is_some(),
            addresses: known
                .map_or_else(Vec::new, |d| d.addrs.iter().map(ToString::to_string).collect()),
            ports: ports.map(|n| port(files, &name, network, n, known)).collect(),
            name,
        }
    };
    files.names(DEVICES).into_iter().map(device).collect()
}

fn network(files: &Files, device: &str) -> Network {
    let node = files.text(&format!("{DEVICES}/{device}/node_type")).unwrap_or_default();
    let link = files.text(&format!("{DEVICES}/{device}/ports/1/link_layer")).unwrap_or_default();
    match (node.starts_with('4'), link.as_str()) {
        (true, _) => Network::Iwarp,
        (false, "Ethernet") => Network::Roce,
        _ => Network::InfiniBand,
    }
}

/// Behind the colon of "4: ACTIVE".
fn word(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned()
}

fn port(
    files: &Files,
    device: &str,
    network: Network,
    number: u32,
    known: Option<&DeviceInfo>,
) -> Port {
    let at = format!("{DEVICES}/{device}/ports/{number}");
    let info = known.and_then(|d| d.ports.iter().find(|p| u32::from(p.number) == number));
    let gids = match network {
        Network::Roce => gids(files, &at),
        _ => Vec::new(),
    };
    Port {
        number,
        state: word(files.text(&format!("{at}/state"))),
        physical: word(files.text(&format!("{at}/phys_state"))),
        mtu: info.map_or(0, |p| p.mtu),
        gids,
        interface: name_of_interface(files, device, &at).map(|name| interface(files, name)),
    }
}

fn gids(files: &Files, port: &str) -> Vec<Gid> {
    let one = |index: String| {
        // An entry that is free has no type: the kernel refuses to read it.
        let kind = files.text(&format!("{port}/gid_attrs/types/{index}"))?;
        let gid = files.text(&format!("{port}/gids/{index}"))?;
        let free = gid.bytes().all(|b| matches!(b, b'0' | b':'));
        (!free).then(|| Gid { is_v2: kind.contains("v2"), has_address: !gid.starts_with("fe80:") })
    };
    files.names(&format!("{port}/gids")).into_iter().filter_map(one).collect()
}

fn name_of_interface(files: &Files, device: &str, port: &str) -> Option<String> {
    let by_gid = files
        .names(&format!("{port}/gid_attrs/ndevs"))
        .into_iter()
        .find_map(|n| files.text(&format!("{port}/gid_attrs/ndevs/{n}")));
    // rdma_rxe names it so, and an adapter has it beside its RDMA device.
    by_gid
        .or_else(|| files.text(&format!("{DEVICES}/{device}/parent")))
        .or_else(|| files.names(&format!("{DEVICES}/{device}/device/net")).into_iter().next())
        .filter(|name| !name.is_empty())
}

fn interface(files: &Files, name: String) -> Interface {
    let at = format!("/sys/class/net/{name}");
    Interface {
        mtu: files.number(&format!("{at}/mtu")).unwrap_or(0),
        is_virtual: !files.is_there(&format!("{at}/device/infiniband")),
        lossless: lossless(files, &name),
        name,
    }
}

/// What the driver's files say of congestion control, and `dcb` of iproute2 of PFC.
fn lossless(files: &Files, name: &str) -> Lossless {
    let ecn = format!("/sys/class/net/{name}/ecn/roce_np/enable");
    let on = |n: &String| files.text(&format!("{ecn}/{n}")).as_deref() == Some("1");
    if files.names(&ecn).iter().any(on) {
        return Lossless::On("the adapter's congestion control with ECN is on".to_owned());
    }
    if files.0 != Path::new("/") {
        return Lossless::Unknown("this is a picture".to_owned());
    }
    // Ordinary users' PATH often lacks the directory.
    let ask = |program: &str| {
        let mut command = Command::new(program);
        command.args(["-j", "pfc", "show", "dev", name]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).output()
    };
    let asked = ask("dcb").or_else(|_| ask("/usr/sbin/dcb"));
    match asked {
        Err(_) => {
            Lossless::Unknown("there is no dcb of iproute2 to ask the kernel with".to_owned())
        }
        Ok(out) => pfc(&String::from_utf8_lossy(&out.stdout)),
    }
}

/// What `dcb -j pfc show` prints.
pub(super) fn pfc(json: &str) -> Lossless {
    let unknown = || Lossless::Unknown("the driver does not tell the kernel of PFC".to_owned());
    let Ok(said) = serde_json::from_str::<serde_json::Value>(json) else { return unknown() };
    let Some(priorities) = said["prio_pfc"].as_array() else { return unknown() };
    let on: Vec<String> = (0..8)
        .filter(|n| priorities.get(*n).and_then(serde_json::Value::as_bool) == Some(true))
        .map(|n| n.to_string())
        .collect();
    match on.is_empty() {
        true => Lossless::Off,
        false => Lossless::On(format!("priority flow control is on for {}", on.join(", "))),
    }
}
