//! An SSH server for scp, and for rsync as most people use it, on loopback, for as long as it is needed.
//!
//! Its keys are made for it and go with its directory. It lets only the holder of the
//! client's key in, listens on one address, and touches no configuration of the machine.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use exs_tools::fail::{During, Failure};

use crate::process::{Background, free_port, on_path, run};

pub(crate) struct Sshd {
    _server: Background,
    dir: PathBuf,
    port: u16,
    address: IpAddr,
}

impl Sshd {
    /// Starts one whose files are in `dir`. None: there is no sshd, or no scp.
    pub(crate) fn start(dir: &Path, address: IpAddr) -> Result<Option<Sshd>, Failure> {
        let programs = (on_path("sshd"), on_path("scp"), on_path("ssh-keygen"));
        let (Some(sshd), Some(_), Some(keygen)) = programs else { return Ok(None) };
        let dir = dir.join("ssh");
        fs::create_dir_all(&dir).during("directory for keys")?;
        for key in ["host", "client"] {
            let mut command = Command::new(&keygen);
            command.args(["-q", "-t", "ed25519", "-N", ""]).arg("-f").arg(dir.join(key));
            run(&mut command, Duration::from_secs(30))?;
        }
        fs::copy(dir.join("client.pub"), dir.join("authorized")).during("keys")?;
        let port = free_port(address)?;
        let at = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "ListenAddress {address}\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
             Subsystem sftp internal-sftp\n",
            at("host"),
            at("authorized")
        );
        fs::write(dir.join("config"), config).during("sshd's configuration")?;
        let mut command = Command::new(sshd);
        command.arg("-D").arg("-f").arg(dir.join("config"));
        let mut server = Background::start(&mut command)?;
        // sshd with privilege separation needs a directory, which can be missing.
        match server.await_port(port, Duration::from_secs(10)) {
            Ok(()) => Ok(Some(Sshd { _server: server, dir, port, address })),
            Err(e) => Err(Failure(format!("sshd: {e} (is there a directory /run/sshd?)"))),
        }
    }

    /// `scp` of a file or a tree into a directory.
    pub(crate) fn scp(&self, from: &Path, to: &Path) -> Command {
        let mut command = Command::new(on_path("scp").unwrap_or_else(|| "scp".into()));
        command.args(["-q", "-r", "-P", &self.port.to_string()]).args(self.options());
        command.arg(from).arg(self.target(to));
        command
    }

    /// The same by rsync, with ssh under it.
    pub(crate) fn rsync(&self, from: &Path, to: &Path) -> Command {
        let mut command = Command::new("rsync");
        let shell = format!("ssh -q -p {} {}", self.port, self.options().join(" "));
        command.args(["-r", "-e", &shell]).arg(from).arg(self.target(to));
        command
    }

    /// What ssh and scp are told: no file of this machine counts, but the key made here.
    fn options(&self) -> Vec<String> {
        let key = self.dir.join("client").display().to_string();
        let mut all = ["-F", "none", "-i", &key].map(str::to_owned).to_vec();
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes"]
        {
            all.extend(["-o".to_owned(), option.to_owned()]);
        }
        all
    }

    fn target(&self, to: &Path) -> String {
        let host = match self.address {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        format!("{host}:{}", to.display())
    }
}
