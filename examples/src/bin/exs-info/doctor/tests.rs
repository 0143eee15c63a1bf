//! Each check on hosts that are made up, and the reader on files that are.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::{Finding, Severity};
use super::host::{
    Access, Adapter, Gid, Host, Interface, Library, Lossless, Network, Outcome, Port, Rdma, Try,
};
use super::{findings, line, read, status};

/// A host with an adapter at which nothing is wrong.
fn healthy() -> Host {
    let interface = Interface {
        name: "eth2".into(),
        mtu: 9000,
        is_virtual: false,
        lossless: Lossless::On("priority flow control is on for 3".into()),
    };
    let port = Port {
        number: 1,
        state: "ACTIVE".into(),
        physical: "LinkUp".into(),
        mtu: 4096,
        gids: vec![Gid { is_v2: true, has_address: true }],
        interface: Some(interface),
    };
    let device = Rdma {
        name: "mlx5_0".into(),
        network: Network::Roce,
        file: Access::Granted,
        file_name: "/dev/infiniband/uverbs0".into(),
        found: true,
        addresses: vec!["192.0.2.1".into()],
        ports: vec![port],
    };
    let mut host = Host {
        devices: vec![device],
        rdma_cm: Access::Granted,
        library: Library { built_in: true, trouble: None },
        tries: vec![tried(Outcome::Carries { version: exs::VERSION.into(), micros: 900 }, true)],
        ..Host::default()
    };
    host.limits.files = Some(65536);
    host.kernel.modules = ["ib_uverbs", "rdma_ucm", "mlx5_ib"].map(String::from).into();
    host.adapters =
        vec![Adapter { place: "0000:41:00.0".into(), driver: "mlx5_core".into(), has_rdma: true }];
    host
}

fn tried(outcome: Outcome, asked: bool) -> Try {
    let (transport, to) = ("verbs".into(), "192.0.2.9:7471".into());
    Try { transport, device: Some("mlx5_0".into()), to, asked, outcome }
}

/// What is not as it should be.
fn complaints(host: &Host) -> Vec<Finding> {
    findings(host).into_iter().filter(|f| f.severity != Severity::Ok).collect()
}

/// The host has one complaint, which says this, and what to do.
#[track_caller]
fn one(host: &Host, severity: Severity, check: &str, words: &[&str]) {
    let all = complaints(host);
    let [found] = all.as_slice() else { panic!("not one complaint: {all:#?}") };
    assert_eq!((found.severity, found.check), (severity, check), "{found:?}");
    let text = line(found);
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    assert!(found.advice.is_some(), "no advice: {text}");
}

#[test]
fn a_healthy_host_has_no_complaint() {
    let host = healthy();
    assert_eq!(complaints(&host), []);
    let checks: Vec<&str> = findings(&host).iter().map(|f| f.check).collect();
    for check in [
        "nofile",
        "memory",
        "library",
        "module",
        "memlock",
        "device-file",
        "port",
        "address",
        "mtu",
        "lossless",
        "peer",
    ] {
        assert!(checks.contains(&check), "{check} is not shown");
    }
}

#[test]
fn a_host_without_devices_needs_none() {
    let library =
        Library { built_in: true, trouble: Some("libibverbs.so.1 cannot be used".into()) };
    let mut host = Host { library, ..Host::default() };
    host.limits.locked = Some(64 << 10);
    assert_eq!(complaints(&host), []);
    // Unless the user insists.
    host.insists = true;
    let all = complaints(&host);
    let faults = |check| all.iter().any(|f| f.check == check && f.severity == Severity::Fault);
    assert!(faults("library") && faults("memlock") && faults("device-file") && faults("module"));
}

#[test]
fn limits() {
    let mut host = healthy();
    host.limits.locked = Some(64 << 10);
    one(&host, Severity::Fault, "memlock", &["64 KiB", "LimitMEMLOCK", "--ulimit memlock"]);
    host.limits.locked = Some(8 << 20);
    one(&host, Severity::Warning, "memlock", &["8 MiB"]);
    host.limits.may_lock = true;
    assert_eq!(complaints(&host), []);
    host.limits.files = Some(256);
    one(&host, Severity::Warning, "nofile", &["256", "ulimit -n"]);
    host.limits.files = Some(1024);
    one(&host, Severity::Note, "nofile", &["1024"]);
    host.limits.files = None;
    host.limits.memory = Some(100 << 20);
    one(&host, Severity::Warning, "memory", &["100 MiB", "resources.limits.memory"]);
}

#[test]
fn exs_that_does_not_start() {
    let host = Host { broken: Some("EXS_WAIT=x".into()), ..healthy() };
    one(&host, Severity::Fault, "start", &["EXS_WAIT=x", "unset"]);
}

#[test]
fn the_kernel() {
    let mut host = healthy();
    host.kernel.io_uring_disabled = Some(2);
    one(&host, Severity::Note, "io_uring", &["kernel.io_uring_disabled=0"]);
    // 1 concerns processes without CAP_SYS_ADMIN.
    host.kernel.io_uring_disabled = Some(1);
    assert_eq!(complaints(&host).len(), 1);
    host.kernel.is_admin = true;
    assert_eq!(complaints(&host), []);

    let mut host = healthy();
    host.kernel.modules.remove("rdma_ucm");
    assert_eq!(complaints(&host), [], "a part of the kernel itself is in no list");
    host.rdma_cm = Access::Missing;
    let all = complaints(&host);
    assert!(all.iter().any(|f| f.check == "module" && line(f).contains("modprobe rdma_ucm")));
    assert!(all.iter().all(|f| f.severity == Severity::Fault));
}

#[test]
fn an_adapter_without_its_rdma_driver() {
    let mut host = healthy();
    host.adapters[0].has_rdma = false;
    host.kernel.modules.remove("mlx5_ib");
    one(&host, Severity::Warning, "adapter", &["0000:41:00.0", "modprobe mlx5_ib"]);
    host.kernel.modules.insert("mlx5_ib".into());
    one(&host, Severity::Note, "adapter", &["mlx5_ib is loaded"]);
    host.adapters[0].driver = "virtio_net".into();
    assert_eq!(complaints(&host), []);
}

#[test]
fn libraries_drivers_and_files() {
    let mut host = healthy();
    host.library.trouble = Some("libibverbs.so.1 cannot be used".into());
    host.devices[0].found = false;
    one(&host, Severity::Fault, "library", &["libibverbs.so.1", "apt install"]);
    host.library.trouble = None;
    one(&host, Severity::Fault, "driver", &["mlx5_0", "ibverbs-providers"]);

    let mut host = healthy();
    host.library.built_in = false;
    one(&host, Severity::Fault, "library", &["default-features"]);

    let mut host = healthy();
    host.devices[0].file = Access::Denied;
    one(&host, Severity::Fault, "device-file", &["/dev/infiniband/uverbs0", "0666"]);
    host.devices[0].file = Access::Missing;
    one(&host, Severity::Fault, "device-file", &["--device=/dev/infiniband"]);
}

#[test]
fn ports_and_addresses() {
    let mut host = healthy();
    host.devices[0].ports[0].state = "DOWN".into();
    host.devices[0].ports[0].physical = "Disabled".into();
    one(&host, Severity::Warning, "port", &["Disabled", "ip link set eth2 up"]);
    host.insists = true;
    assert!(complaints(&host).iter().any(|f| f.severity == Severity::Fault));

    let mut host = healthy();
    host.devices[0].network = Network::InfiniBand;
    host.devices[0].ports[0].state = "INIT".into();
    one(&host, Severity::Warning, "port", &["opensm"]);

    let mut host = healthy();
    host.devices[0].addresses.clear();
    one(&host, Severity::Warning, "address", &["ip addr add", "eth2"]);

    let mut host = healthy();
    host.devices[0].ports[0].gids[0].is_v2 = false;
    one(&host, Severity::Warning, "gid", &["version 1 only"]);
    host.devices[0].ports[0].gids[0] = Gid { is_v2: true, has_address: false };
    one(&host, Severity::Warning, "gid", &["link-local"]);
}

#[test]
fn packets_and_frames() {
    let mut host = healthy();
    let set = |host: &mut Host, packet, frame| {
        host.devices[0].ports[0].mtu = packet;
        host.devices[0].ports[0].interface.as_mut().unwrap().mtu = frame;
    };
    set(&mut host, 1024, 9000);
    one(&host, Severity::Warning, "mtu", &["room for 4096", "eth2"]);
    set(&mut host, 4096, 1500);
    one(&host, Severity::Fault, "mtu", &["do not fit"]);
    set(&mut host, 1024, 1500);
    one(&host, Severity::Note, "mtu", &["mtu 4200"]);
    // The software device's packets are as large as its interface lets them be.
    host.devices[0].ports[0].interface.as_mut().unwrap().is_virtual = true;
    assert_eq!(complaints(&host), []);
    set(&mut host, 4096, 4192);
    assert_eq!(complaints(&host), [], "96 bytes of headers");
    set(&mut host, 4096, 4191);
    assert_eq!(complaints(&host).len(), 1);
}

#[test]
fn networks_that_lose_packets() {
    let mut host = healthy();
    let set = |host: &mut Host, lossless| {
        host.devices[0].ports[0].interface.as_mut().unwrap().lossless = lossless;
    };
    set(&mut host, Lossless::Off);
    one(&host, Severity::Warning, "lossless", &["eth2", "PFC"]);
    set(&mut host, Lossless::Unknown("no dcb".into()));
    one(&host, Severity::Note, "lossless", &["cannot tell", "no dcb"]);
    host.devices[0].network = Network::Iwarp;
    assert_eq!(complaints(&host), [], "iWARP has TCP");
}

#[test]
fn what_dcb_says() {
    let on =
        r#"{"pfc_cap":8,"delay":0,"prio_pfc":[false,false,false,true,false,false,false,false]}"#;
    let Lossless::On(how) = read::pfc(on) else { panic!() };
    assert!(how.ends_with("for 3"), "{how}");
    assert_eq!(read::pfc(&on.replace("true", "false")), Lossless::Off);
    for unknown in ["", "{}", "RTNETLINK answers: Operation not supported"] {
        assert!(matches!(read::pfc(unknown), Lossless::Unknown(_)), "{unknown}");
    }
}

#[test]
fn connections_that_were_tried() {
    let with = |outcome, asked| Host { tries: vec![tried(outcome, asked)], ..healthy() };
    let fails = |why: &str| Outcome::Fails(why.into());
    one(
        &with(fails("Connection refused"), true),
        Severity::Fault,
        "peer",
        &["--serve", "192.0.2.9"],
    );
    one(&with(fails("no answer within 5 s"), true), Severity::Fault, "peer", &["firewall", "4791"]);
    one(&with(fails("other version"), true), Severity::Fault, "peer", &["same version"]);
    one(&with(fails("no memory"), false), Severity::Fault, "self", &["this process", "no memory"]);
    one(
        &with(Outcome::Stalls("timed out".into()), true),
        Severity::Fault,
        "peer",
        &["MTU", "1 MiB"],
    );
    let locked = fails("the limit on locked memory is 8388608 bytes (RLIMIT_MEMLOCK)");
    one(&with(locked, false), Severity::Fault, "self", &["see the check memlock"]);
    assert_eq!(complaints(&with(Outcome::Connects, true)), []);
    let older = Outcome::Carries { version: "0.0.1".into(), micros: 5 };
    one(&with(older, true), Severity::Note, "peer", &["EXS 0.0.1 there", exs::VERSION]);
    // One way of several is enough.
    let mut host = with(fails("no answer within 5 s"), true);
    host.tries.push(tried(Outcome::Connects, true));
    one(&host, Severity::Warning, "peer", &["firewall"]);
    // Not if no other is allowed.
    host.insists = true;
    one(&host, Severity::Fault, "peer", &["firewall"]);
}

#[test]
fn the_exit_status_is_the_worst_severity() {
    let of = |s| status(s);
    assert_eq!(
        [of(Severity::Ok), of(Severity::Note), of(Severity::Warning), of(Severity::Fault)],
        [0, 0, 3, 1]
    );
    assert!(Severity::Ok < Severity::Note && Severity::Warning < Severity::Fault);
}

/// A directory that is removed at the end.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Root {
        let dir = std::env::temp_dir().join(format!("exs-info-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Root(dir)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn files(&self) -> read::Files {
        read::Files(self.0.clone())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn devices_are_read() {
    let root = Root::new("devices");
    let device = "sys/class/infiniband/rxe0";
    root.put(&format!("{device}/node_type"), "1: CA\n");
    root.put(&format!("{device}/parent"), "eth0\n");
    root.put(&format!("{device}/ports/1/state"), "4: ACTIVE\n");
    root.put(&format!("{device}/ports/1/phys_state"), "5: LinkUp\n");
    root.put(&format!("{device}/ports/1/link_layer"), "Ethernet\n");
    root.put(&format!("{device}/ports/1/gids/0"), "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
    root.put(&format!("{device}/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a09:0001\n");
    root.put(&format!("{device}/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    for n in 0..3 {
        root.put(&format!("{device}/ports/1/gid_attrs/types/{n}"), "RoCE v2\n");
    }
    root.put("sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n");
    root.put("dev/infiniband/uverbs3", "");
    root.put("sys/class/net/eth0/mtu", "1500\n");
    let all = read::devices(&root.files(), &[]);
    let [rxe] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((rxe.name.as_str(), rxe.network, rxe.found), ("rxe0", Network::Roce, false));
    assert_eq!((rxe.file, rxe.file_name.as_str()), (Access::Granted, "/dev/infiniband/uverbs3"));
    let port = &rxe.ports[0];
    assert_eq!((port.state.as_str(), port.physical.as_str()), ("ACTIVE", "LinkUp"));
    let addresses: Vec<bool> = port.gids.iter().map(|g| g.has_address).collect();
    assert_eq!(addresses, [false, true], "and the third is free");
    assert!(port.gids.iter().all(|g| g.is_v2));
    let interface = port.interface.as_ref().unwrap();
    assert_eq!(
        (interface.name.as_str(), interface.mtu, interface.is_virtual),
        ("eth0", 1500, true)
    );

    root.put(&format!("{device}/node_type"), "4: RNIC\n");
    assert_eq!(read::devices(&root.files(), &[])[0].network, Network::Iwarp);
}

#[test]
fn adapters_and_the_kernel_are_read() {
    let root = Root::new("adapters");
    let place = "sys/bus/pci/devices/0000:41:00.0";
    root.put(&format!("{place}/class"), "0x020000\n");
    root.put("sys/bus/pci/devices/0000:00:01.0/class", "0x010000\n");
    root.put("sys/bus/pci/drivers/mlx5_core/bind", "");
    let link = root.0.join(place).join("driver");
    std::os::unix::fs::symlink(Path::new("../../drivers/mlx5_core"), link).unwrap();
    let all = read::adapters(&root.files());
    let [adapter] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((adapter.driver.as_str(), adapter.has_rdma), ("mlx5_core", false));
    root.put(&format!("{place}/infiniband/mlx5_0/x"), "");
    assert!(read::adapters(&root.files())[0].has_rdma);

    root.put("proc/modules", "rdma_ucm 16384 0 - Live 0x0\nib_core 1 2 - Live 0x0\n");
    root.put("sys/module/ib_uverbs/x", "");
    root.put("proc/sys/kernel/io_uring_disabled", "2\n");
    root.put("proc/self/status", "Name:\tx\nCapEff:\t0000000000200000\n");
    let kernel = read::kernel(&root.files());
    assert!(["rdma_ucm", "ib_core", "ib_uverbs"].iter().all(|m| kernel.modules.contains(*m)));
    assert_eq!((kernel.io_uring_disabled, kernel.is_admin), (Some(2), true));
}

#[test]
fn the_least_limit_of_control_groups_counts() {
    let root = Root::new("groups");
    assert_eq!(read::memory(&root.files()), None);
    root.put("proc/self/cgroup", "0::/a/b\n");
    root.put("sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_eq!(read::memory(&root.files()), None);
    root.put("sys/fs/cgroup/a/memory.max", "1000\n");
    root.put("sys/fs/cgroup/memory.max", "2000\n");
    assert_eq!(read::memory(&root.files()), Some(1000));
    root.put("proc/self/cgroup", "5:memory:/c\n");
    root.put("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(read::memory(&root.files()), None);
    root.put("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "3000\n");
    assert_eq!(read::memory(&root.files()), Some(3000));
}
