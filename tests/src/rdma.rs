//! The RDMA device that tests may use, if the machine has one.
//!
//! The environment names it, and it is never guessed: a device that is there may be
//! in use. `make test-rdma` boots a kernel that has software devices, and sets the
//! variables there.

use std::net::IpAddr;
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
            (
                "rxe",
                "windows::a_window_has_bounds" | "atomics::a_word_outside_of_the_window_is_refused",
            ) => Some("rxe checks the bounds of the registration, not those of the window"),
            // Seen in its source: READ RESPONSEs are sent without a look at the rights.
            ("siw", "refusals::a_read_without_rights") => {
                Some("siw answers READs of all that is registered, open to them or not")
            }
            ("siw", "refusals::a_window_closed_in_mid_read") => {
                Some("siw finishes the answer to a READ that it has begun")
            }
            ("siw", "transfers::send_with_invalidate" | "windows::windows_closed_by_the_peer") => {
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
