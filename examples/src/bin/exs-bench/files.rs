//! Copies of files: exs-cp beside cp, rsync and scp, between directories in memory.
//!
//! Nothing leaves the machine: servers listen on its own address, and end with their section.
//! rsync goes by its own daemon, without encryption, as exs-cp does, and then by ssh, which is what it
//! does if it is not told otherwise; scp encrypts, too.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use exs_tools::fail::{During, Failure};
use exs_tools::road;
use exs_tools::tell;

use crate::plan::{Plan, bytes};
use crate::process::{Background, free_port, on_path, run, sibling};
use crate::results::{Case, Sample, Section};
use crate::sshd::Sshd;

const BLOCK: usize = 1 << 20;
/// For servers that are to start.
const START: Duration = Duration::from_secs(10);
/// For one copy.
const COPY: Duration = Duration::from_secs(600);

/// A directory that goes when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// In memory where there is a tmpfs for it.
    fn new() -> Result<Scratch, Failure> {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let path = base.join(format!("exs-bench-{}", std::process::id()));
        fs::create_dir(&path).during(path.display())?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            tell!("exs-bench: {} is left: {e}", self.0.display());
        }
    }
}

/// The program that copies.
enum Copier {
    Cp,
    Exs { transport: &'static str, verify: bool, port: u16 },
    Rsync { port: u16 },
    RsyncBySsh(Rc<Sshd>),
    Scp(Rc<Sshd>),
}

impl Copier {
    fn name(&self) -> String {
        match self {
            Copier::Cp => "cp".to_owned(),
            Copier::Exs { transport, verify: true, .. } => format!("EXS {transport} (exs-cp)"),
            Copier::Exs { transport, .. } => format!("EXS {transport} (exs-cp --no-verify)"),
            Copier::Rsync { .. } => "rsync (its daemon)".to_owned(),
            Copier::RsyncBySsh(_) => "rsync (by ssh, encrypted)".to_owned(),
            Copier::Scp(_) => "scp (encrypted)".to_owned(),
        }
    }

    fn command(&self, plan: &Plan, from: &Path, to: &Path) -> Result<Command, Failure> {
        Ok(match self {
            Copier::Cp => {
                let mut c = Command::new("cp");
                c.arg("-r").arg(from).arg(to);
                c
            }
            Copier::Exs { transport, verify, port } => {
                let mut c = Command::new(sibling("exs-cp")?);
                c.arg("put").arg(from).arg(format!("{}:{port}", plan.address));
                c.args(["--into", "to", &format!("--transport={transport}")]);
                c.args((!verify).then_some("--no-verify"));
                c
            }
            Copier::Rsync { port } => {
                let mut c = Command::new("rsync");
                c.arg("-r").arg(from).arg(format!("rsync://{}:{port}/to/", plan.address));
                c
            }
            Copier::RsyncBySsh(sshd) => sshd.rsync(from, to),
            Copier::Scp(sshd) => sshd.scp(from, to),
        })
    }
}

/// The section.
pub(crate) fn measure(plan: &Plan) -> Result<Section, Failure> {
    let scratch = Scratch::new()?;
    let dir = &scratch.0;
    let (large, files) = if plan.quick { (32, 200) } else { (4096, 20_000) };
    let to = dir.join("to");
    fs::create_dir(&to).during("directory")?;
    let mut servers = Vec::new();
    let mut notes = Vec::new();
    let copiers = copiers(plan, dir, &mut servers, &mut notes)?;

    let one = dir.join("large");
    fill(&one, large * BLOCK)?;
    let tree = dir.join("tree");
    make_tree(&tree, files)?;
    let mut cases = vec![
        (Case::called(&format!("one file of {}", bytes(large * BLOCK))), one, large * BLOCK),
        (Case::called(&format!("{files} files of 4 KiB")), tree, files * 4096),
    ];
    for round in 1..=plan.rounds {
        for (case, from, size) in &mut cases {
            tell!("files {}, round {round}", case.title);
            for copier in &copiers {
                let entry = case.entry(&copier.name());
                if entry.failure.is_some() {
                    continue;
                }
                match copy(plan, copier, from, &to, *size) {
                    Ok(sample) => entry.samples.push(sample),
                    Err(e) => entry.failure = Some(e.to_string()),
                }
            }
        }
    }
    let mut cases: Vec<_> = cases.into_iter().map(|(case, ..)| case).collect();
    for (name, why) in notes {
        cases[0].entry(&name).failure = Some(why);
    }
    Ok(Section::new("files", "Copies of files between directories in memory", cases))
}

/// Those that are here, with their servers.
fn copiers(
    plan: &Plan,
    dir: &Path,
    servers: &mut Vec<Background>,
    notes: &mut Vec<(String, String)>,
) -> Result<Vec<Copier>, Failure> {
    let mut all = vec![Copier::Cp];
    let loopback = plan.address.is_loopback();
    for transport in
        road::NAMES.into_iter().filter(|n| *n != "auto" && (*n != "verbs" || !loopback))
    {
        let port = free_port(plan.address)?;
        let mut c = Command::new(sibling("exs-cp")?);
        c.arg("serve").arg(dir).arg("--listen").arg(format!("{}:{port}", plan.address));
        // Only this machine reaches it, or the device's network.
        c.args([&format!("--transport={transport}"), "--allow-anonymous"]);
        servers.push(Background::start(&mut c)?);
        await_exs(plan, transport, port)?;
        all.push(Copier::Exs { transport, verify: true, port });
        all.push(Copier::Exs { transport, verify: false, port });
    }
    if on_path("rsync").is_some() {
        let port = free_port(plan.address)?;
        let config = dir.join("rsyncd.conf");
        let text = format!(
            "use chroot = no\nuid = {}\ngid = {}\n[to]\npath = {}\nread only = no\n",
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
            dir.join("to").display()
        );
        fs::write(&config, text).during("rsync's configuration")?;
        let mut c = Command::new("rsync");
        c.args(["--daemon", "--no-detach", "--port", &port.to_string()]);
        c.args(["--address", &plan.address.to_string()]).arg("--config").arg(config);
        let mut server = Background::start(&mut c)?;
        match server.await_port(port, START) {
            Ok(()) => all.push(Copier::Rsync { port }),
            Err(e) => notes.push(("rsync (its daemon)".to_owned(), e.to_string())),
        }
        servers.push(server);
    }
    match Sshd::start(dir, plan.address) {
        Ok(None) => {}
        Ok(Some(sshd)) => {
            let sshd = Rc::new(sshd);
            if on_path("rsync").is_some() {
                all.push(Copier::RsyncBySsh(Rc::clone(&sshd)));
            }
            all.push(Copier::Scp(sshd));
        }
        Err(e) => notes.push(("scp (encrypted)".to_owned(), e.to_string())),
    }
    Ok(all)
}

/// exs-cp's server listens as its transport does, which need not be by TCP.
fn await_exs(plan: &Plan, transport: &str, port: u16) -> Result<(), Failure> {
    let deadline = Instant::now() + START;
    loop {
        let mut c = Command::new(sibling("exs-cp")?);
        c.arg("ls").arg(format!("{}:{port}", plan.address)).arg(format!("--transport={transport}"));
        match run(&mut c, START) {
            Ok(_) => return Ok(()),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => {}
        }
    }
}

/// Has the system use as much memory for files as a copy needs, and frees it. On a virtual machine
/// the first use of memory that the host has to find is several times slower. A copier that comes
/// after a slow one would pay for memory that was given back meanwhile.
fn warm(from: &Path, to: &Path) -> Result<(), Failure> {
    run(Command::new("cp").arg("-r").arg(from).arg(to.join("warm")), COPY)?;
    empty(to)
}

fn empty(dir: &Path) -> Result<(), Failure> {
    fs::remove_dir_all(dir).and_then(|()| fs::create_dir(dir)).during(dir.display())
}

/// One copy, to where nothing is yet.
fn copy(
    plan: &Plan,
    copier: &Copier,
    from: &Path,
    to: &Path,
    size: usize,
) -> Result<Sample, Failure> {
    let mut command = copier.command(plan, from, to)?;
    warm(from, to)?;
    let begun = Instant::now();
    let done = run(&mut command, COPY);
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    let arrived = from.file_name().is_some_and(|name| total(&to.join(name)) == size as u64);
    empty(to)?;
    done?;
    if !arrived {
        return Err(Failure("what arrived is not what was sent".to_owned()));
    }
    let gbytes_per_s = Some(size as f64 / seconds / 1e9);
    Ok(Sample { seconds: Some(seconds), gbytes_per_s, ..Sample::default() })
}

/// Bytes of all files below.
fn total(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return fs::metadata(path).map_or(0, |m| m.len());
    };
    entries.flatten().map(|e| total(&e.path())).sum()
}

/// Bytes that no program finds shorter than they are.
fn fill(path: &Path, size: usize) -> Result<(), Failure> {
    let mut file = File::create(path).during(path.display())?;
    let mut block = vec![0; BLOCK];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (0..size).step_by(BLOCK) {
        for word in block.chunks_exact_mut(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block[..BLOCK.min(size - at)]).during(path.display())?;
    }
    Ok(())
}

fn make_tree(path: &Path, files: usize) -> Result<(), Failure> {
    const PER_DIRECTORY: usize = 200;
    for n in 0..files {
        let dir = path.join(format!("d{}", n / PER_DIRECTORY));
        if n.is_multiple_of(PER_DIRECTORY) {
            fs::create_dir_all(&dir).during(dir.display())?;
        }
        fs::write(dir.join(format!("f{n}")), [n.to_le_bytes()[0]; 4096]).during(dir.display())?;
    }
    Ok(())
}
