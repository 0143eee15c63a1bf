//! The checks of RDMA devices and their networks, and of connections that were tried.

use super::finding::{Finding, Severity};
use super::host::{Host, Interface, Lossless, Network, Outcome, Port, Rdma, Try};

/// Every check of this file, in the order in which they are shown.
pub(super) const ALL: [fn(&Host) -> Vec<Finding>; 6] =
    [drivers, ports, addresses, mtu, lossless, tries];

fn drivers(host: &Host) -> Vec<Finding> {
    // Without the libraries EXS finds no device: another check says so.
    if host.library.trouble.is_some() && host.devices.iter().all(|d| !d.found) {
        return Vec::new();
    }
    let lost = host.devices.iter().filter(|d| !d.found);
    lost.map(|d| {
        Finding::fault("driver", format!("{}: the kernel has this device, and EXS does not find it", d.name))
            .advice("install the user-space drivers of rdma-core (apt install ibverbs-providers), and see that ibv_devinfo shows the device")
    })
    .collect()
}

/// Each port of each device, with its name for people.
fn each_port(host: &Host) -> impl Iterator<Item = (&Rdma, &Port, String)> {
    let ports = host.devices.iter().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
    ports.map(|(d, p)| (d, p, format!("{} port {}", d.name, p.number)))
}

/// Ports that carry data, with an interface.
fn active(host: &Host) -> impl Iterator<Item = (&Rdma, &Port, &Interface, String)> {
    each_port(host).filter_map(|(d, p, name)| {
        let interface = p.interface.as_ref().filter(|_| p.state == "ACTIVE")?;
        Some((d, p, interface, name))
    })
}

fn ports(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for (device, port, name) in each_port(host) {
        let finding = match port.state.as_str() {
            "ACTIVE" => Finding::ok("port", format!("{name} is up")),
            "INIT" | "ARMED" if device.network == Network::InfiniBand => {
                Finding::warning("port", format!("{name} has a cable and waits for a subnet manager"))
                    .advice("start opensm on one host of the network, or switch on the subnet manager of the switch")
            }
            state => {
                let interface = port.interface.as_ref().map_or("ITS-INTERFACE", |i| &i.name);
                let text = format!("{name} is not up ({state}, link {})", port.physical);
                Finding::warning("port", text)
                    .advice(format!("ip link set {interface} up; look at cable and switch"))
            }
        };
        found.push(finding);
    }
    // One port of several is enough.
    let all_down = |d: &Rdma| !d.ports.is_empty() && d.ports.iter().all(|p| p.state != "ACTIVE");
    if host.insists && host.devices.iter().all(all_down) && !host.devices.is_empty() {
        found.push(
            Finding::fault("port", "no port of the RDMA devices that were asked for is up")
                .advice("see above; or ask for no device: EXS_TRANSPORT=auto, without --device"),
        );
    }
    found
}

fn addresses(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for device in host.devices.iter().filter(|d| d.found) {
        if device.addresses.is_empty() {
            let interface = device.ports.iter().find_map(|p| p.interface.as_ref());
            let interface = interface.map_or("ITS-INTERFACE", |i| &i.name);
            found.push(
                Finding::warning(
                    "address",
                    format!(
                        "{}: no address of this host is on it, so EXS does not use it",
                        device.name
                    ),
                )
                .advice(format!(
                    "ip addr add ADDRESS/LENGTH dev {interface}; for InfiniBand set IPoIB up"
                )),
            );
        } else {
            let all = device.addresses.join(", ");
            found.push(Finding::ok("address", format!("{}: {all}", device.name)));
        }
    }
    for (device, port, name) in each_port(host) {
        if device.network != Network::Roce || port.gids.is_empty() {
            continue;
        }
        if port.gids.iter().all(|g| !g.is_v2) {
            found.push(
                Finding::warning("gid", format!("{name} has GIDs of RoCE version 1 only: no router passes its packets"))
                    .advice("an adapter and a kernel with RoCE version 2 at both ends; echo 'RoCE v2' into default_roce_mode (rdma_cm in configfs)"),
            );
        } else if port.gids.iter().all(|g| !g.has_address) {
            found.push(
                Finding::warning("gid", format!("{name} has no GID of an address: its interface has none but a link-local one"))
                    .advice("give the interface an address, before the device is made if it is one of rdma_rxe"),
            );
        }
    }
    found
}

/// The largest packet of RoCE in frames of `mtu` bytes. Ninety-six bytes are for headers, as in the
/// kernel's `iboe_get_mtu`.
fn roce_mtu(mtu: u32) -> u32 {
    let room = mtu.saturating_sub(96);
    [4096, 2048, 1024, 512].into_iter().find(|n| *n <= room).unwrap_or(256)
}

fn mtu(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for (device, port, interface, name) in active(host) {
        if device.network != Network::Roce || port.mtu == 0 {
            continue;
        }
        let (possible, frame) = (roce_mtu(interface.mtu), &interface.name);
        let text = format!(
            "{name} sends packets of {} bytes, and {frame} has MTU {}",
            port.mtu, interface.mtu
        );
        let finding = if port.mtu > possible {
            Finding::fault("mtu", format!("{text}: they do not fit"))
                .advice(format!("ip link set {frame} mtu 4200, if each switch between passes that; or make the device again"))
        } else if port.mtu < possible {
            Finding::warning("mtu", format!("{text}, which has room for {possible}")).advice(
                format!("ip link set {frame} down, and up again: the device looks at the MTU then"),
            )
        } else if port.mtu < 4096 && !interface.is_virtual {
            Finding::note("mtu", text)
                .advice(format!("larger packets cost less: ip link set {frame} mtu 4200, on switches and at both ends"))
        } else {
            Finding::ok("mtu", text)
        };
        found.push(finding);
    }
    found
}

fn lossless(host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for (device, _, interface, name) in active(host) {
        if device.network != Network::Roce || interface.is_virtual {
            continue;
        }
        let finding = match &interface.lossless {
            Lossless::On(how) => Finding::ok("lossless", format!("{name}: {how}")),
            Lossless::Off => Finding::warning(
                "lossless",
                format!("{name}: priority flow control is off for each priority of {}", interface.name),
            )
            .advice("RoCE needs a network that loses almost nothing: PFC (dcb pfc set, lldptool), or ECN with the adapter's congestion control, on switches and adapters alike"),
            Lossless::Unknown(why) => {
                Finding::note("lossless", format!("{name}: cannot tell whether PFC or ECN are set up: {why}"))
                    .advice("the adapter's own tools (mlnx_qos, niccli) say; lost packets show in rdma statistic and ethtool -S")
            }
        };
        found.push(finding);
    }
    found
}

/// What to do about a connection that was not made.
fn remedy(why: &str) -> &'static str {
    let why = why.to_lowercase();
    let any = |words: &[&str]| words.iter().any(|w| why.contains(w));
    if any(&["memlock", "locked memory"]) {
        "raise the limit on locked memory: see the check memlock"
    } else if any(&["refused"]) {
        "start `exs-info --doctor --serve` there, and see that the port is the same"
    } else if any(&["version", "mismatch", "not an exs", "does not speak"]) {
        "the same version of EXS at both ends; see that an EXS program has that port"
    } else if any(&["no answer", "timed out", "in time", "no route", "unreachable"]) {
        "see that the host is up (ping), and that a firewall lets TCP to that port pass, and UDP 4791 for RoCE"
    } else {
        "look for the text in the chapter on troubleshooting"
    }
}

fn tries(host: &Host) -> Vec<Finding> {
    let works = |t: &Try| !matches!(t.outcome, Outcome::Fails(_));
    // Of the ways to a peer a single one is enough, unless the user allows no other. Within this
    // process each transport must work.
    let is_enough = host.tries.iter().any(|t| t.asked && works(t));
    let failed = |t: &Try| match t.asked && is_enough && !host.insists {
        true => Severity::Warning,
        false => Severity::Fault,
    };
    host.tries.iter().map(|t| one_try(t, failed(t))).collect()
}

fn one_try(t: &Try, failed: Severity) -> Finding {
    let check = if t.asked { "peer" } else { "self" };
    let way = match &t.device {
        Some(device) if *device != t.transport => format!("{} ({device})", t.transport),
        _ => t.transport.clone(),
    };
    let to = if t.asked { t.to.as_str() } else { "this process" };
    match &t.outcome {
        Outcome::Carries { version, micros } if version == exs::VERSION => {
            Finding::ok(check, format!("to {to} by {way}: 1 MiB there and back in {micros} us"))
        }
        Outcome::Carries { version, micros } => Finding::note(
            check,
            format!("to {to} by {way}: 1 MiB there and back in {micros} us; EXS {version} there, {} here", exs::VERSION),
        )
        .advice("the two understand each other; the same version at both ends is better tried"),
        Outcome::Connects => Finding::ok(
            check,
            format!("to {to} by {way}: a peer whose EXS understands this one; `exs-info --doctor --serve` there would tell more"),
        ),
        Outcome::Stalls(why) => Finding::fault(
            check,
            format!("to {to} by {way}: small messages pass, and 1 MiB does not: {why}"),
        )
        .advice("an MTU that a switch does not pass? ping -M do -s 4172 HOST; or a firewall that drops fragments or UDP 4791"),
        Outcome::Fails(why) => {
            let text = format!("to {to} by {way}: {why}");
            let finding = match failed {
                Severity::Fault => Finding::fault(check, text),
                _ => Finding::warning(check, text),
            };
            finding.advice(remedy(why))
        }
    }
}
