//! Lines for people.

use std::fmt::Write;

use crate::facts::{Choice, Device, Facts, Host, Kind};

/// Registered memory of a process with a few connections: below that, RDMA devices
/// are of no use.
const MEMORY_WANTED: u64 = 64 << 20;

pub(crate) fn text(facts: &Facts) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, facts);
    out
}

fn write(out: &mut String, facts: &Facts) -> std::fmt::Result {
    writeln!(out, "EXS {}", facts.version)?;
    for kind in &facts.transports {
        transport(out, kind)?;
    }
    if let Some(verbs) = facts.transports.iter().find(|k| k.name == "verbs" && k.built_in) {
        host(out, &facts.host, !verbs.devices.is_empty())?;
    }
    match &facts.choice {
        Some(c) => choice(out, c),
        None => Ok(()),
    }
}

fn transport(out: &mut String, kind: &Kind) -> std::fmt::Result {
    match (&kind.trouble, kind.name.as_str()) {
        (Some(why), name) => writeln!(out, "{name:<6} not available: {why}")?,
        (None, "soft") => {
            writeln!(out, "soft   available: the software RNIC, iWARP over TCP; needs no device")?;
        }
        (None, "shm") => {
            writeln!(out, "shm    available: shared memory, to peers on this host")?;
        }
        (None, name) => {
            let s = if kind.devices.len() == 1 { "" } else { "s" };
            writeln!(out, "{name:<6} available: {} RDMA device{s}", kind.devices.len())?;
        }
    }
    kind.devices.iter().try_for_each(|d| device(out, d))
}

fn device(out: &mut String, d: &Device) -> std::fmt::Result {
    let firmware =
        if d.firmware.is_empty() { String::new() } else { format!(", firmware {}", d.firmware) };
    writeln!(out, "  {}  {}, GUID {}, vendor {}{firmware}", d.name, d.kind, d.guid, d.vendor)?;
    for p in &d.ports {
        let speed = match p.gbit_per_s {
            0 => String::new(),
            n => format!(", {n} Gbit/s"),
        };
        writeln!(out, "    port {}: {}, {}, MTU {}{speed}", p.number, p.state, p.link, p.mtu)?;
    }
    let addresses = match d.addresses.is_empty() {
        true => "none: EXS connects by addresses, so give its interface one".to_owned(),
        false => d.addresses.join(", "),
    };
    writeln!(out, "    addresses: {addresses}")?;
    let yes = |it: bool| if it { "yes" } else { "no" };
    let (paging, windows) = (yes(d.on_demand_paging), yes(d.memory_windows));
    writeln!(
        out,
        "    at most {} queue pairs, {} registrations of {}, {} completions in a queue; on-demand \
         paging: {paging}; memory windows (keys of one connection): {windows}; atomic operations: {}",
        d.max_queue_pairs,
        d.max_registrations,
        match d.max_registration_bytes {
            // More than any address space has.
            n if n >> 57 > 0 => "any size".to_owned(),
            n => format!("up to {}", bytes(n)),
        },
        d.max_completions,
        match d.atomics {
            "device" => "among its own",
            "host" => "also with processors",
            _ => "none",
        }
    )
}

fn host(out: &mut String, h: &Host, devices: bool) -> std::fmt::Result {
    match h.memory_lock_limit {
        None => writeln!(out, "memory locking (RLIMIT_MEMLOCK): no limit")?,
        Some(n) => {
            let advice = match n < MEMORY_WANTED {
                true => "; RDMA devices need more: ulimit -l, or /etc/security/limits.d",
                false => "",
            };
            writeln!(out, "memory locking (RLIMIT_MEMLOCK): {}{advice}", bytes(n))?;
        }
    }
    // Where devices were found they are there, perhaps as a part of the kernel itself.
    if devices {
        return Ok(());
    }
    let modules = if h.modules.is_empty() { "none".to_owned() } else { h.modules.join(", ") };
    let files = if h.device_files { "there" } else { "not there" };
    writeln!(out, "kernel modules for RDMA: {modules}; /dev/infiniband: {files}")
}

fn choice(out: &mut String, c: &Choice) -> std::fmt::Result {
    writeln!(out, "to {}: {}", c.address, c.chosen.as_deref().unwrap_or("no way"))?;
    let first = c.candidates.iter().position(|w| w.usable);
    for (i, way) in c.candidates.iter().enumerate() {
        let when = match (way.usable, first == Some(i)) {
            (false, _) => "not by",
            (true, true) => "first by",
            (true, false) => "then by",
        };
        writeln!(out, "  {when} {}: {}", way.name(), way.reason)?;
    }
    Ok(())
}

fn bytes(n: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, bits)| n >> bits > 0) {
        Some((unit, bits)) => format!("{} {unit}", n >> bits),
        None => format!("{n} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Port, Way};

    fn facts() -> Facts {
        let device = Device {
            name: "rxe0".into(),
            kind: "RoCE".into(),
            firmware: String::new(),
            guid: "505400fffe123456".into(),
            vendor: "0xffffff:0x0".into(),
            addresses: vec!["10.9.0.1".into()],
            ports: vec![Port {
                number: 1,
                state: "ACTIVE".into(),
                mtu: 1024,
                link: "Ethernet".into(),
                gbit_per_s: 0,
            }],
            on_demand_paging: true,
            memory_windows: false,
            atomics: "device",
            max_queue_pairs: 1000,
            max_registrations: 2000,
            max_registration_bytes: 1 << 40,
            max_completions: 32767,
        };
        let verbs = Kind {
            name: "verbs".into(),
            built_in: true,
            available: true,
            trouble: None,
            devices: vec![device],
        };
        let host = Host {
            memory_lock_limit: Some(8 << 20),
            modules: vec!["ib_uverbs", "rdma_rxe"],
            device_files: true,
        };
        let way = |transport: &str, device: &str, usable| Way {
            transport: transport.into(),
            device: Some(device.into()),
            usable,
            reason: "because".into(),
        };
        let choice = Choice {
            address: "10.9.0.7".into(),
            chosen: Some("verbs (rxe0)".into()),
            candidates: vec![
                way("verbs", "siw0", false),
                way("verbs", "rxe0", true),
                way("soft", "soft", true),
            ],
        };
        Facts { version: "1", transports: vec![verbs], host, choice: Some(choice) }
    }

    #[test]
    fn a_host_with_a_device() {
        assert_eq!(
            text(&facts()),
            "EXS 1\n\
             verbs  available: 1 RDMA device\n\
             \x20 rxe0  RoCE, GUID 505400fffe123456, vendor 0xffffff:0x0\n\
             \x20   port 1: ACTIVE, Ethernet, MTU 1024\n\
             \x20   addresses: 10.9.0.1\n\
             \x20   at most 1000 queue pairs, 2000 registrations of up to 1 TiB, 32767 completions in \
             a queue; on-demand paging: yes; memory windows (keys of one connection): no; \
             atomic operations: among its own\n\
             memory locking (RLIMIT_MEMLOCK): 8 MiB; RDMA devices need more: ulimit -l, or \
             /etc/security/limits.d\n\
             to 10.9.0.7: verbs (rxe0)\n\
             \x20 not by verbs (siw0): because\n\
             \x20 first by verbs (rxe0): because\n\
             \x20 then by soft: because\n"
        );
    }

    #[test]
    fn a_host_without() {
        let mut facts = facts();
        facts.transports[0].devices.clear();
        facts.transports[0].trouble = Some("load a driver".into());
        facts.choice = None;
        facts.host.modules.clear();
        facts.host.device_files = false;
        let text = text(&facts);
        assert!(text.contains("verbs  not available: load a driver\n"), "{text}");
        assert!(text.ends_with("for RDMA: none; /dev/infiniband: not there\n"), "{text}");
    }
}
