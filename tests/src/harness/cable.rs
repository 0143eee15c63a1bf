//! Two network namespaces, joined by a cable.
//!
//! Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2. Nothing of the machine's own network
//! is touched.

use std::process::Command;

use super::peer::Peer;

/// Two namespaces with a veth pair. Removed when dropped.
#[derive(Debug)]
pub struct Cable {
    names: [String; 2],
}

/// Runs a command, whose words are separated by single spaces.
///
/// # Errors
/// The command, and what it says.
pub fn run(words: &str) -> Result<(), String> {
    let list: Vec<&str> = words.split(' ').collect();
    let out =
        Command::new(list[0]).args(&list[1..]).output().map_err(|e| format!("{words}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("{words}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}

impl Cable {
    /// 10.93.0.1, fd93::1 and fe80::1 at one end; 10.93.0.2, fd93::2 and fe80::2 at the other. The
    /// interface is `veth0` at both.
    ///
    /// # Errors
    /// Why there can be no namespaces here.
    pub fn new(test: &str) -> Result<Cable, String> {
        let name = |end| format!("exs-{test}-{end}-{}", std::process::id());
        let cable = Cable { names: [name("a"), name("b")] };
        let [a, b] = &cable.names;
        run(&format!("ip netns add {a}"))?;
        run(&format!("ip netns add {b}"))?;
        run(&format!("ip -n {a} link add veth0 type veth peer name veth0 netns {b}"))?;
        for (ns, end) in [(a, 1), (b, 2)] {
            run(&format!("ip -n {ns} addr add 10.93.0.{end}/24 dev veth0"))?;
            run(&format!("ip -n {ns} link set veth0 up"))?;
            run(&format!("ip -n {ns} link set lo up"))?;
            for addr in [format!("fd93::{end}/64"), format!("fe80::{end}/64")] {
                run(&format!("ip -n {ns} addr add {addr} dev veth0 nodad"))?;
            }
        }
        Ok(cable)
    }

    /// The namespace at one end.
    pub fn name(&self, end: usize) -> &str {
        &self.names[end]
    }

    /// Loses all frames of an end to this address of the link, which no card needs to have: they go
    /// to a card that does not exist, and no error comes back.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn swallow(&self, end: usize, addr: &str) -> Result<(), String> {
        let ns = self.name(end);
        run(&format!(
            "ip -n {ns} neigh replace {addr} lladdr 02:00:00:00:00:99 dev veth0 nud permanent"
        ))
    }

    /// Starts this test program in one of the ends.
    pub fn start(&self, end: usize, test: &str, part: &str) -> Peer {
        Peer::start_by(&["ip", "netns", "exec", &self.names[end]], test, part, &[])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not have come to be.
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}
