//! The checks of the host itself: limits, kernel, libraries, files. Each looks at a picture of the host
//! and nothing else.

use super::finding::Finding;
use super::host::{Access, Host};

/// A process with a few connections over a device registers this much.
const LOCKED_ENOUGH: u64 = 64 << 20;
/// With less a device has no room for its slots.
const LOCKED_LEAST: u64 = 4 << 20;
/// Descriptors for a few hundred connections and the program's own files.
const FILES_ENOUGH: u64 = 1024;
/// Rings and receive slots of a hundred busy connections.
const MEMORY_ENOUGH: u64 = 256 << 20;

/// Every check of this file, in the order in which they are shown.
pub(super) const ALL: [fn(&Host) -> Vec<Finding>; 9] =
    [start, files, memory, io_uring, adapters, library, modules, locked, device_files];

fn mebibytes(bytes: u64) -> String {
    match bytes {
        n if n < 1 << 20 => format!("{} KiB", n >> 10),
        n => format!("{} MiB", n >> 20),
    }
}

fn start(host: &Host) -> Vec<Finding> {
    let fault = |why: &String| {
        Finding::fault("start", format!("EXS does not start: {why}")).advice(
            "mend or unset the variable that the text names; without one, see the limits below",
        )
    };
    host.broken.iter().map(fault).collect()
}

fn files(host: &Host) -> Vec<Finding> {
    let (now, most) = (host.limits.files, host.limits.files_hard);
    let found = match now {
        None => Finding::ok("nofile", "any number of descriptors"),
        Some(n) if n < FILES_ENOUGH => {
            Finding::warning("nofile", format!("this process may have {n} descriptors only"))
                .advice("ulimit -n 65536; `* - nofile 65536` in a file of /etc/security/limits.d; LimitNOFILE= in a systemd unit")
        }
        Some(n) if n == FILES_ENOUGH && most.is_none_or(|m| m > n) => Finding::note(
            "nofile",
            format!("{n} descriptors: a connection over the software RNIC or shared memory takes one or two"),
        )
        .advice("for a server with more connections: ulimit -n 65536, or LimitNOFILE= in its systemd unit"),
        Some(n) => Finding::ok("nofile", format!("{n} descriptors")),
    };
    vec![found]
}

fn memory(host: &Host) -> Vec<Finding> {
    let found = match host.limits.memory {
        None => Finding::ok("memory", "the control group has no limit on memory"),
        Some(n) if n < MEMORY_ENOUGH => Finding::warning(
            "memory",
            format!(
                "the control group has {} of memory, and buffers over shared memory count",
                mebibytes(n)
            ),
        )
        .advice("raise it (docker run --memory, resources.limits.memory of a pod, MemoryMax= of a unit), or lower EXS_RING_SIZE"),
        Some(n) => Finding::ok("memory", format!("the control group has {} of memory", mebibytes(n))),
    };
    vec![found]
}

fn io_uring(host: &Host) -> Vec<Finding> {
    let kernel = &host.kernel;
    let refused = match kernel.io_uring_disabled {
        Some(1) => !kernel.is_admin,
        Some(n) => n > 1,
        None => false,
    };
    if !refused {
        return Vec::new();
    }
    let text = "io_uring is disabled: connect and accept on kernel sockets that block wait in threads; nothing else changes";
    vec![
        Finding::note("io_uring", text)
            .advice("sysctl kernel.io_uring_disabled=0, if many kernel sockets connect at a time"),
    ]
}

/// The modules that make RDMA devices of adapters, by the drivers of their interfaces.
const RDMA_MODULES: [(&str, &str); 10] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("cxgb4", "iw_cxgb4"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("ionic", "ionic_rdma"),
];

fn adapters(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for adapter in host.adapters.iter().filter(|a| !a.has_rdma) {
        let Some((driver, module)) = RDMA_MODULES.iter().find(|(d, _)| *d == adapter.driver) else {
            continue;
        };
        let text = format!("the adapter {} ({driver}) has no RDMA device", adapter.place);
        let finding = if host.kernel.modules.contains(*module) {
            Finding::note("adapter", format!("{text}, though {module} is loaded"))
                .advice("not every adapter of this driver can do RDMA, and firmware or a virtual function may switch it off: dmesg, devlink dev param show")
        } else {
            Finding::warning("adapter", text).advice(format!("modprobe {module}"))
        };
        found.push(finding);
    }
    found
}

fn library(host: &Host) -> Vec<Finding> {
    const CHECK: &str = "library";
    let library = &host.library;
    if !library.built_in {
        let text = "this EXS was built without the feature verbs";
        let finding = match host.concerns_rdma() {
            true => Finding::fault(CHECK, format!("{text}, so it uses no RDMA device"))
                .advice("build without default-features = false"),
            false => Finding::note(CHECK, text),
        };
        return vec![finding];
    }
    match (&library.trouble, host.devices.is_empty()) {
        (None, _) => vec![Finding::ok(CHECK, "libibverbs and librdmacm are there")],
        (Some(_), true) if !host.insists => {
            let text = "no RDMA device: connections go by shared memory and by the software RNIC";
            vec![Finding::ok(CHECK, text)]
        }
        (Some(why), true) => vec![
            Finding::fault(CHECK, why.clone())
                .advice("in a container see that the device is passed in: exs-info --doctor on the host says more"),
        ],
        (Some(why), false) => {
            vec![Finding::fault(CHECK, format!("EXS cannot use the RDMA devices: {why}")).advice(
                "apt install libibverbs1 librdmacm1 ibverbs-providers, or dnf install libibverbs librdmacm",
            )]
        }
    }
}

fn modules(host: &Host) -> Vec<Finding> {
    if !host.concerns_rdma() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let loaded = |name: &str| host.kernel.modules.contains(name);
    // A part of the kernel itself is not in the list, but what it makes is there.
    if !loaded("ib_uverbs") && host.devices.iter().all(|d| d.file == Access::Missing) {
        found.push(
            Finding::fault("module", "ib_uverbs is not loaded: no program can use an RDMA device")
                .advice("modprobe ib_uverbs"),
        );
    }
    if !loaded("rdma_ucm") && host.rdma_cm == Access::Missing {
        found.push(
            Finding::fault("module", "rdma_ucm is not loaded: no program can connect by RDMA")
                .advice("modprobe rdma_ucm"),
        );
    }
    if found.is_empty() {
        found.push(Finding::ok("module", "ib_uverbs and rdma_ucm are there"));
    }
    found
}

fn locked(host: &Host) -> Vec<Finding> {
    const CHECK: &str = "memlock";
    const ADVICE: &str = "ulimit -l unlimited; `* - memlock unlimited` in a file of /etc/security/limits.d, and log in again; LimitMEMLOCK=infinity in a systemd unit; docker run --ulimit memlock=-1:-1";
    if !host.concerns_rdma() {
        return Vec::new();
    }
    let found = match host.limits.locked {
        _ if host.limits.may_lock => {
            Finding::ok(CHECK, "this process may lock memory (CAP_IPC_LOCK)")
        }
        None => Finding::ok(CHECK, "no limit on locked memory"),
        Some(n) if n < LOCKED_LEAST => Finding::fault(
            CHECK,
            format!(
                "this process may lock {}, and an RDMA device needs {} and more",
                mebibytes(n),
                mebibytes(LOCKED_LEAST)
            ),
        )
        .advice(ADVICE),
        Some(n) if n < LOCKED_ENOUGH => Finding::warning(
            CHECK,
            format!(
                "this process may lock {}: enough for a few connections with small buffers",
                mebibytes(n)
            ),
        )
        .advice(ADVICE),
        Some(n) => Finding::ok(CHECK, format!("this process may lock {}", mebibytes(n))),
    };
    vec![found]
}

fn device_files(host: &Host) -> Vec<Finding> {
    if !host.concerns_rdma() {
        return Vec::new();
    }
    let files = host.devices.iter().map(|d| (d.file_name.as_str(), d.file));
    let mut found = Vec::new();
    for (name, access) in files.chain([("/dev/infiniband/rdma_cm", host.rdma_cm)]) {
        match access {
            Access::Granted => {}
            Access::Denied => found.push(
                Finding::fault("device-file", format!("this user may not read and write {name}"))
                    .advice("chmod 0666, by a udev rule (rdma-core has one), or the user's group in it"),
            ),
            Access::Missing => found.push(
                Finding::fault("device-file", format!("there is no {}", if name.is_empty() { "/dev/infiniband/uverbs*" } else { name }))
                    .advice("load the module that makes it; in a container pass it in: --device=/dev/infiniband"),
            ),
        }
    }
    if found.is_empty() {
        found.push(Finding::ok("device-file", "the files in /dev/infiniband can be opened"));
    }
    found
}
