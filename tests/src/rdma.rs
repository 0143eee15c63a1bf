//! The RDMA device that tests may use, if the machine has one.
//!
//! Which one is told by the environment, never guessed: a device that is there may be
//! somebody's. `make test-rdma` boots a kernel that has software devices, and sets the
//! variables there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::OnceLock;

/// A device and its addresses.
#[derive(Clone, Debug)]
pub struct Device {
    /// As verbs name it ("rxe0").
    pub name: String,
    /// An address of this machine that is on the device.
    pub addr: IpAddr,
    /// An IPv6 address of this machine that is on the device, if there is one.
    pub addr6: Option<IpAddr>,
    /// It speaks iWARP, so its connections are TCP's.
    pub iwarp: bool,
}

impl Device {
    /// What the kernel's software devices are known to do wrong, by the test of the
    /// contract that shows it.
    pub fn known(&self, test: &str) -> Option<&'static str> {
        let kind = self.name.trim_end_matches(|c: char| c.is_ascii_digit());
        match (kind, test) {
            ("rxe", "refusals::a_foreign_key_cannot_be_invalidated") => {
                Some("rxe lets any queue pair invalidate a window")
            }
            ("rxe", "windows::a_window_has_bounds") => {
                Some("rxe checks the bounds of the registration, not those of the window")
            }
            ("rxe", "transfers::send_with_invalidate") => {
                Some("rxe's completions do not tell (the flag differs from libibverbs')")
            }
            // Seen in its source: READ RESPONSEs are sent without a look at the rights.
            ("siw", "refusals::a_read_without_rights") => {
                Some("siw answers READs of all that is registered, open to them or not")
            }
            ("siw", "refusals::a_window_closed_in_mid_read") => {
                Some("siw finishes the answer to a READ that it has begun")
            }
            ("siw", "transfers::send_with_invalidate") => {
                Some("siw refuses to invalidate what a program has registered")
            }
            ("siw", "onesided::a_forged_read_ends_the_connection") => {
                Some("siw answers READs of all that is registered, open to them or not")
            }
            ("siw", "connect::a_server_of_another_protocol_is_an_error") => {
                Some("a kernel with siw does not survive a peer that answers nonsense")
            }
            _ => None,
        }
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not what it should be")))
}

/// The device that the tests were told to use.
pub fn device() -> Option<&'static Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    DEVICE
        .get_or_init(|| {
            let name: String = variable("EXS_TEST_RDMA_DEVICE")?;
            let addr = variable("EXS_TEST_RDMA_ADDR")
                .expect("EXS_TEST_RDMA_ADDR must be set: an address that is on the device");
            let node_type = format!("/sys/class/infiniband/{name}/node_type");
            let node_type = std::fs::read_to_string(&node_type)
                .unwrap_or_else(|e| panic!("{node_type}: {e} (is there a device {name}?)"));
            // "4: RNIC"; InfiniBand and RoCE have "1: CA".
            let iwarp = node_type.starts_with('4');
            Some(Device { name, addr, addr6: variable("EXS_TEST_RDMA_ADDR6"), iwarp })
        })
        .as_ref()
}

/// Why tests of a device cannot run, if they cannot.
pub fn missing() -> Option<String> {
    match device() {
        Some(_) => None,
        None => Some("no RDMA device (make test-rdma boots a kernel that has some)".to_owned()),
    }
}

/// Why tests of the software RNIC with an iWARP device cannot run, if they cannot.
pub fn missing_iwarp() -> Option<String> {
    match device() {
        Some(d) if !d.iwarp => Some(format!("{} is not an iWARP device", d.name)),
        Some(_) => None,
        None => missing(),
    }
}

/// What the kernel keeps for RDMA programs: ("siw0 qp", 3) and so on.
///
/// Compared before and after, it shows what was not given back. Contexts and the
/// kernel's own objects are in it too, so compare, do not expect zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census(BTreeMap<String, u64>);

impl Census {
    /// As `rdma resource show` (iproute2) has it; None without that program.
    pub fn take() -> Option<Census> {
        let out = Command::new("rdma").args(["resource", "show"]).output().ok()?;
        out.status.success().then(|| Census::parse(&String::from_utf8_lossy(&out.stdout)))
    }

    fn parse(text: &str) -> Census {
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            // "0: siw0: pd 1 cq 3 qp 2 cm_id 0 mr 0 ctx 0 srq 0"
            let mut words = line.split_whitespace().skip(1);
            let Some(device) = words.next() else { continue };
            while let (Some(kind), Some(count)) = (words.next(), words.next()) {
                if let Ok(count) = count.parse() {
                    counts.insert(format!("{} {kind}", device.trim_end_matches(':')), count);
                }
            }
        }
        Census(counts)
    }

    /// What there is more of than there was: "siw0 qp: 2 and now 3".
    pub fn leaked(&self, before: &Census) -> Vec<String> {
        let was = |kind| before.0.get(kind).copied().unwrap_or(0);
        let more = self.0.iter().filter(|(kind, now)| **now > was(kind.as_str()));
        more.map(|(kind, now)| format!("{kind}: {} and now {now}", was(kind.as_str()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Census;

    #[test]
    fn a_census_tells_what_leaked() {
        let before = Census::parse(
            "0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0 \n1: siw0: pd 1 cq 0 qp 0\n",
        );
        assert!(before.leaked(&before).is_empty());
        let after = Census::parse("0: rxe0: pd 1 cq 2 qp 1 mr 0\n1: siw0: pd 0 cq 0 qp 3\n");
        assert_eq!(after.leaked(&before), ["rxe0 cq: 1 and now 2", "siw0 qp: 0 and now 3"]);
    }
}
