//! `exs-cp demo`: a server and a client as two processes, a real tree both
//! ways, and at the end our own comparison of what came back.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::compare::{Comparison, compare};
use crate::cli::Demo;
use crate::error::CpError;
use crate::report::say;

const SPARSE: &str = "sparse.img";
/// Length of the sparse file, and where its few bytes are.
const SPARSE_LEN: u64 = 256 << 20;
const SPARSE_DATA: [u64; 3] = [0, 100 << 20, SPARSE_LEN - 4096];

pub(crate) fn run(args: &Demo, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let work = WorkDir::new()?;
    let done = play(args, &work.0, stop);
    if stop.load(Ordering::Relaxed) {
        return Err(CpError::Interrupted);
    }
    done
}

fn play(args: &Demo, work: &Path, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let served = work.join("served");
    let back = work.join("back");
    for dir in [&served, &back] {
        make_dir(dir)?;
    }
    let sources = sources(args, work)?;
    say("exs-cp demo: a server and a client, two processes on loopback, over EXS");
    for s in &sources {
        say(&format!("  source: {}", s.display()));
    }
    let token = work.join("token");
    let secret = crate::auth::nonce()?.map(|b| format!("{b:02x}")).concat();
    std::fs::write(&token, secret).map_err(|e| CpError::local("write", &token, e))?;
    let server = Server::start(&served, &token)?;
    say(&format!("  server: process {} on {}", server.child.id(), server.address));

    let jobs = args.jobs.to_string();
    let common: [&OsStr; 4] =
        ["--token-file".as_ref(), token.as_os_str(), "-j".as_ref(), jobs.as_ref()];
    say("\n1. put: from the source to the server");
    let mut put = exs_cp(["put".as_ref()])?;
    put.args(common).args(&sources).arg(&server.address);
    check(run_child(&mut put, stop)?, "put")?;

    say("\n2. get: from the server back, into another directory");
    let mut get = exs_cp(["get".as_ref()])?;
    get.args(common).arg(&server.address).args(names(&sources)).arg(&back);
    check(run_child(&mut get, stop)?, "get")?;
    server.stop()?;

    say("\n3. compare: source with what the server has, and with what came back");
    let mut differences = 0;
    for source in &sources {
        let Some(name) = source.file_name() else { continue };
        for found in compare_both(source, [served.join(name), back.join(name)]) {
            let found = found?;
            say(&format!("  {}", found.line(source)));
            for d in &found.differences {
                say(&format!("    DIFFERENT: {d}"));
            }
            differences += found.differences.len();
        }
    }
    check_sparse(&[work.join(SPARSE), served.join(SPARSE), back.join(SPARSE)])?;
    match differences {
        0 => say("\nAll the same: names, bytes, modes, times and links."),
        n => say(&format!("\n{n} DIFFERENCES: this is a bug of exs-cp, please report it.")),
    }
    Ok(u8::from(differences > 0))
}

/// Two copies at once: the demo reads everything four times as it is.
fn compare_both(source: &Path, copies: [PathBuf; 2]) -> Vec<Result<Comparison, CpError>> {
    std::thread::scope(|s| {
        let threads = copies.each_ref().map(|copy| s.spawn(move || compare(source, copy)));
        let panicked = |_| Err(CpError::Protocol("the comparison panicked".into()));
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    })
}

/// The last names of the sources: what they are called on the server.
fn names(sources: &[PathBuf]) -> Vec<&OsStr> {
    sources.iter().filter_map(|s| s.file_name()).collect()
}

/// The tree to copy: the Rust toolchain's own files, or `--tree`.
fn sources(args: &Demo, work: &Path) -> Result<Vec<PathBuf>, CpError> {
    let mut dirs = match &args.tree {
        Some(tree) => {
            vec![tree.canonicalize().map_err(|e| CpError::local("read", tree, e))?]
        }
        None => toolchain(),
    };
    if let Some(mut left) = args.size_limit {
        let small = work.join("source");
        make_dir(&small)?;
        for dir in &dirs {
            let to = small.join(dir.file_name().unwrap_or(OsStr::new("tree")));
            sample(dir, &to, &mut left)?;
        }
        dirs = vec![small];
    }
    let sparse = work.join(SPARSE);
    make_sparse(&sparse).map_err(|e| CpError::local("write", &sparse, e))?;
    dirs.push(sparse);
    Ok(dirs)
}

fn toolchain() -> Vec<PathBuf> {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = asked.ok().filter(|o| o.status.success()).map(|o| o.stdout);
    let sysroot = sysroot.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    let found: Vec<PathBuf> = sysroot
        .iter()
        .flat_map(|root| ["lib", "share"].map(|d| Path::new(root).join(d)))
        .filter(|d| d.is_dir())
        .collect();
    if found.is_empty() { vec!["/usr/share".into()] } else { found }
}

/// Copies the beginning of a tree, so that a small demo is quick.
fn sample(from: &Path, to: &Path, left: &mut u64) -> Result<(), CpError> {
    make_dir(to)?;
    let list = std::fs::read_dir(from).map_err(|e| CpError::local("list", from, e))?;
    let mut entries: Vec<_> = list.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() && *left > 0 {
            sample(&path, &target, left)?;
        } else if meta.is_file() && meta.len() <= *left {
            *left -= meta.len();
            std::fs::copy(&path, &target).map_err(|e| CpError::local("copy", &path, e))?;
        }
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<(), CpError> {
    std::fs::create_dir_all(dir).map_err(|e| CpError::local("make the directory", dir, e))
}

fn make_sparse(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.set_len(SPARSE_LEN)?;
    for at in SPARSE_DATA {
        file.write_all_at(&[0xE5; 4096], at)?;
    }
    Ok(())
}

/// A sparse file must not have grown on the way.
fn check_sparse(paths: &[PathBuf]) -> Result<(), CpError> {
    let mut line = format!("  {SPARSE}: {} MiB long; on the disk", SPARSE_LEN >> 20);
    for path in paths {
        let meta = path.metadata().map_err(|e| CpError::local("read", path, e))?;
        line.push_str(&format!(" {} KiB,", meta.blocks() / 2));
        if meta.blocks() * 512 > SPARSE_LEN / 4 {
            return Err(CpError::Protocol(format!("`{}` is not sparse any more", path.display())));
        }
    }
    say(line.trim_end_matches(','));
    Ok(())
}

fn exs_cp<'a>(args: impl IntoIterator<Item = &'a OsStr>) -> Result<Command, CpError> {
    let me = std::env::current_exe().map_err(|e| CpError::local("find", "exs-cp", e))?;
    let mut command = Command::new(me);
    command.args(args);
    Ok(command)
}

/// Runs a client to its end; a signal to us is passed on to it.
fn run_child(command: &mut Command, stop: &Arc<AtomicBool>) -> Result<ExitStatus, CpError> {
    let mut child = command.spawn().map_err(|e| CpError::local("start", "exs-cp", e))?;
    let mut told = false;
    loop {
        let ended = child.try_wait().map_err(|e| CpError::local("wait for", "exs-cp", e))?;
        match ended {
            Some(_) if stop.load(Ordering::Relaxed) => return Err(CpError::Interrupted),
            Some(status) => return Ok(status),
            // sleep-ok: std has no wait for a child with a stop flag; this looks every so often.
            None => std::thread::sleep(Duration::from_millis(20)),
        }
        if stop.load(Ordering::Relaxed) && !told {
            told = true;
            interrupt(&child);
        }
    }
}

fn check(status: ExitStatus, what: &str) -> Result<(), CpError> {
    if status.success() {
        return Ok(());
    }
    Err(CpError::Protocol(format!("the demo's {what} ended with {status}")))
}

fn interrupt(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::INT);
    }
}

/// The other process. It is stopped whatever happens.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(dir: &Path, token: &Path) -> Result<Server, CpError> {
        let mut command = exs_cp(["serve".as_ref(), dir.as_os_str()])?;
        command.args(["--listen", "127.0.0.1:0", "--json", "--token-file"]).arg(token);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|e| CpError::local("start", "exs-cp serve", e))?;
        let mut server = Server { child, address: String::new() };
        let Some(stderr) = server.child.stderr.take() else {
            return Err(CpError::Protocol("the demo's server has no standard error".into()));
        };
        let mut lines = BufReader::new(stderr).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            // "serving DIR on ADDR:PORT (not encrypted)"
            if let Some((_, tail)) = line.rsplit_once(" on ") {
                server.address = tail.split(' ').next().unwrap_or_default().to_owned();
                break;
            }
            crate::report::tell(&line);
        }
        if server.address.is_empty() {
            return Err(CpError::Protocol("the demo's server did not start".into()));
        }
        // The thread passes later lines on, so the server's pipe never fills.
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|l| exs_tools::tell!("{l}"))
        });
        Ok(server)
    }

    fn stop(mut self) -> Result<(), CpError> {
        interrupt(&self.child);
        let status = self.child.wait().map_err(|e| CpError::local("wait for", "the server", e))?;
        check(status, "server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is gone when the demo is over.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new() -> Result<WorkDir, CpError> {
        let name =
            crate::auth::nonce()?[..6].iter().map(|b| format!("{b:02x}")).collect::<String>();
        let path = std::env::temp_dir().join(format!("exs-cp-demo-{name}"));
        std::fs::create_dir(&path).map_err(|e| CpError::local("make the directory", &path, e))?;
        Ok(WorkDir(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
