//! A file whose server does not answer before it is told to: of a FUSE file system with that one file.
//!
//! The server is a process of its own. A thread that waits for an answer of FUSE cannot be killed in every
//! state; but the kernel ends all waits once the server is gone, and this one goes with the test.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex};

use crate::harness::{LIMIT, peer};
use crate::sys;

/// Where the attributes say that the file ends.
const NODE: u64 = 2;
const DIRECTORY: u32 = 0o040_755;
const REGULAR: u32 = 0o100_644;

/// The part of the server, see [`peer::part`]; the next word is the length of the file.
pub const PART: &str = "slow-file";

/// What the server does with requests that are held.
#[derive(Debug, Default)]
struct Gate {
    open: bool,
    held: Vec<Vec<u8>>,
}

/// The file, and its server. When both go, the server goes first: what waits for it ends.
#[derive(Debug)]
pub struct SlowFile {
    server: peer::Peer,
    /// The open file.
    pub file: Arc<File>,
}

/// The byte at this place of it.
pub fn byte(at: u64) -> u8 {
    (at % 251).to_le_bytes()[0]
}

/// `READ`, as the server is asked.
pub const READ: u32 = 15;
/// `FLUSH`, by which a descriptor is closed.
pub const FLUSH: u32 = 25;

impl SlowFile {
    /// A file of `len` bytes; `test` is the test of this program in which [`serve`] runs, for [`PART`].
    /// None where FUSE cannot be had: without root, or without /dev/fuse.
    pub fn new(test: &str, len: u64) -> Option<SlowFile> {
        let server = peer::Peer::start(test, PART, &[&len.to_string()]);
        let said = server.hear();
        if said == "cannot" {
            return None;
        }
        let fd = said.strip_prefix("at ").expect("the server's descriptor");
        let file = File::open(format!("/proc/{}/fd/{fd}", server.pid())).unwrap();
        Some(SlowFile { server, file: Arc::new(file) })
    }

    /// Waits until the server is asked for something that it holds: of this kind.
    pub fn await_request(&self, kind: u32) {
        while self.server.expect("asked").parse() != Ok(kind) {}
    }

    /// Answers what is held, and all that comes.
    pub fn release(&mut self) {
        self.server.tell("release");
    }
}

/// The part of the server: until it is killed, or the test that started it is gone.
pub fn serve(len: u64) {
    // The test may be gone but for a thread that waits for this process, and so not close the pipe.
    nix::unistd::alarm::set(u32::try_from(LIMIT.as_secs() * 2).unwrap());
    let Some((device, file)) = mount(len) else { return peer::say("cannot") };
    peer::say(&format!("at {}", file.as_raw_fd()));
    let (device, gate) = device;
    while let Some(word) = peer::listen() {
        assert_eq!(word, "release");
        let mut gate = gate.lock().unwrap();
        gate.open = true;
        for request in std::mem::take(&mut gate.held) {
            answer(&device, &request, len);
        }
    }
}

type Served = (File, Arc<Mutex<Gate>>);

/// The file system, served by a thread, and a name of its file. It has no place among the others: nothing
/// comes upon it, and nothing is left of it.
fn mount(len: u64) -> Option<(Served, File)> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
    sys::own_mounts().ok()?;
    let dir = std::env::temp_dir().join(format!("exs-slow-{}", std::process::id()));
    std::fs::create_dir_all(&dir).ok()?;
    let mounted = sys::mount_fuse(&device, &dir);
    let file = mounted.ok().map(|()| {
        let (serving, gate) = (device.try_clone().unwrap(), Arc::default());
        let served = Arc::clone(&gate);
        std::thread::spawn(move || serve_requests(serving, &served, len));
        // A name only: an open file would have this process wait for itself as it ends.
        let name = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(dir.join("file"));
        sys::unmount(&dir);
        ((device, gate), name.unwrap())
    });
    let _ = std::fs::remove_dir(&dir);
    file
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(raw[at..at + 4].try_into().unwrap())
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(raw[at..at + 8].try_into().unwrap())
}

fn serve_requests(mut device: File, gate: &Mutex<Gate>, len: u64) {
    let mut buf = vec![0; 1 << 20];
    // It ends when nothing of the file system is open any more.
    while let Ok(n) = device.read(&mut buf) {
        let request = &buf[..n];
        let kind = u32_at(request, 4);
        let mut gate = gate.lock().unwrap();
        if !gate.open && matches!(kind, READ | FLUSH) {
            gate.held.push(request.to_vec());
            peer::say(&format!("asked {kind}"));
        } else {
            answer(&device, request, len);
        }
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64, len: u64) -> Vec<u8> {
    let (mode, size) = if node == NODE { (REGULAR, len) } else { (DIRECTORY, 0) };
    let longs = [node, size, size.div_ceil(512), 0, 0, 0];
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    let mut out: Vec<u8> = longs.iter().flat_map(|v| v.to_ne_bytes()).collect();
    out.extend(words.iter().flat_map(|v: &u32| v.to_ne_bytes()));
    out
}

fn answer(mut device: &File, request: &[u8], len: u64) {
    let (kind, unique, node) = (u32_at(request, 4), u64_at(request, 8), u64_at(request, 16));
    let body = &request[40..];
    let reply = match kind {
        // LOOKUP
        1 if body.starts_with(b"file\0") => {
            let entry = [NODE, 1, 1000, 1000, 0];
            let mut out: Vec<u8> = entry.iter().flat_map(|v: &u64| v.to_ne_bytes()).collect();
            out.extend(attributes(NODE, len));
            Ok(out)
        }
        1 => Err(libc::ENOENT),
        // FORGET, INTERRUPT, BATCH_FORGET: no answer.
        2 | 36 | 42 => return,
        // GETATTR
        3 => {
            let mut out = [1000u64, 0].iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
            out.extend(attributes(node, len));
            Ok(out)
        }
        // OPEN, STATFS
        14 => Ok(vec![0; 16]),
        17 => Ok(vec![0; 80]),
        READ => {
            let (from, most) = (u64_at(body, 8).min(len), u64::from(u32_at(body, 16)));
            Ok((from..len.min(from + most)).map(byte).collect())
        }
        // RELEASE, FLUSH
        18 | FLUSH => Ok(Vec::new()),
        // INIT: version 7.31, as it was before most flags; 128 KiB at most.
        26 => {
            let words = [7, 31, 0, 0, 0, 128 << 10, 1];
            let mut out: Vec<u8> = words.iter().flat_map(|v: &u32| v.to_ne_bytes()).collect();
            out.resize(64, 0);
            Ok(out)
        }
        _ => Err(libc::ENOSYS),
    };
    let (error, payload) = match reply {
        Ok(payload) => (0, payload),
        Err(errno) => (-errno, Vec::new()),
    };
    let total = u32::try_from(16 + payload.len()).unwrap();
    let head = [&total.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
    // The process that asked may have gone.
    let _ = device.write(&[head, payload].concat());
}
