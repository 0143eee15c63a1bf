//! How much asynchronous sends on an ordinary kernel socket move, beside a blocking
//! loop on a socket like it.
//!
//! The two take turns in one run (A B A B ...), and what counts is the median of the
//! ratios of neighbours, as the machine has other things to do. The receiver is another
//! process, in a plain read(2) loop. `kernel-bench [ROUNDS] [MILLISECONDS]`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exs::{Buffer, EventQueue, KernelSocket, MemoryRegion, Token};
use nix::sys::resource::{UsageWho, getrusage};

const SIZE: usize = 64 << 10;
const IN_FLIGHT: usize = 16;
const THRESHOLD: usize = IN_FLIGHT / 2;
const FILE: usize = 8 << 20;

/// Bytes in a second, and seconds of this process's processor for a gigabyte.
#[derive(Clone, Copy)]
struct Figure {
    rate: f64,
    cpu: f64,
}

fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage of oneself");
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn measure(time: Duration, socket: OwnedFd, f: fn(OwnedFd, Instant) -> usize) -> Figure {
    let (begun, before) = (Instant::now(), cpu());
    let bytes = f(socket, begun + time) as f64;
    Figure { rate: bytes / begun.elapsed().as_secs_f64(), cpu: (cpu() - before) / bytes * 1e9 }
}

/// A: send(2), again and again.
fn blocking_loop(socket: OwnedFd, end: Instant) -> usize {
    let (mut socket, block, mut bytes) = (File::from(socket), vec![7; SIZE], 0);
    while Instant::now() < end {
        socket.write_all(&block).expect("the receiver reads");
        bytes += SIZE;
    }
    bytes
}

/// B: `IN_FLIGHT` sends in flight, and a dequeue that waits for half of them.
fn through_a_queue(socket: OwnedFd, end: Instant) -> usize {
    let socket = KernelSocket::new(socket).expect("a socket");
    let queue = EventQueue::new(IN_FLIGHT).expect("a queue");
    let region = MemoryRegion::new(IN_FLIGHT * SIZE).expect("a megabyte");
    let mut free: Vec<Buffer> = (0..IN_FLIGHT)
        .map(|i| region.buffer(i * SIZE..(i + 1) * SIZE).expect("a part of its own"))
        .collect();
    let (mut events, mut bytes) = (Vec::new(), 0);
    while Instant::now() < end {
        while let Some(buffer) = free.pop() {
            socket.send(&queue, Token(0), buffer).expect("there is room");
        }
        queue.dequeue_into(&mut events, THRESHOLD, IN_FLIGHT, None).expect("events");
        for event in events.drain(..) {
            bytes += event.bytes();
            free.extend(event.into_buffer());
        }
    }
    while queue.outstanding() > 0 {
        let left = queue.dequeue(IN_FLIGHT, None).expect("events");
        bytes += left.iter().map(exs::Event::bytes).sum::<usize>();
    }
    bytes
}

fn file() -> Arc<File> {
    let path = std::env::temp_dir().join(format!("exs-kernel-bench-{}", std::process::id()));
    std::fs::write(&path, vec![9; FILE]).expect("8 MiB of disk");
    let file = File::open(&path).expect("just written");
    std::fs::remove_file(&path).expect("just written");
    Arc::new(file)
}

/// C: sendfile(2), again and again.
fn files_blocking(socket: OwnedFd, end: Instant) -> usize {
    let (file, mut bytes) = (file(), 0);
    while Instant::now() < end {
        let mut at = 0;
        while at < FILE as i64 {
            let left = FILE - usize::try_from(at).expect("not negative");
            let n = nix::sys::sendfile::sendfile(&socket, &*file, Some(&mut at), left);
            bytes += n.expect("the receiver reads");
        }
    }
    bytes
}

/// D: files through a queue, of a socket with O_NONBLOCK.
fn files_without_copies(socket: OwnedFd, end: Instant) -> usize {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK)).expect("a socket");
    files_through_a_queue(socket, end)
}

/// D: files through a queue.
fn files_through_a_queue(socket: OwnedFd, end: Instant) -> usize {
    let (file, mut bytes) = (file(), 0);
    let socket = KernelSocket::new(socket).expect("a socket");
    let queue = EventQueue::new(2).expect("a queue");
    while Instant::now() < end || queue.outstanding() > 0 {
        while Instant::now() < end && queue.outstanding() < 2 {
            let file = Arc::clone(&file);
            socket.send_file(&queue, Token(0), file, 0, FILE as u64).expect("there is room");
        }
        let done = queue.dequeue(2, None).expect("events");
        bytes += done.iter().map(exs::Event::bytes).sum::<usize>();
    }
    bytes
}

/// Another process that reads from each caller.
struct Receiver {
    child: Child,
    at: String,
}

impl Receiver {
    fn start(kind: &str) -> Receiver {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--receive", kind])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut at = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().expect("it was asked for"));
        std::io::BufRead::read_line(&mut out, &mut at).expect("it says where it is");
        Receiver { child, at: at.trim().to_owned() }
    }

    fn connect(&self) -> OwnedFd {
        match self.at.strip_prefix("unix:") {
            Some(path) => UnixStream::connect(path).expect("it listens").into(),
            None => TcpStream::connect(&self.at).expect("it listens").into(),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(path) = self.at.strip_prefix("unix:") {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn receive(kind: &str) {
    let swallow = |socket: OwnedFd| {
        std::thread::spawn(move || {
            let (mut socket, mut block) = (File::from(socket), vec![0; 256 << 10]);
            while socket.read(&mut block).is_ok_and(|n| n > 0) {}
        });
    };
    if kind == "tcp" {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        println!("{}", listener.local_addr().expect("it is bound"));
        listener.incoming().flatten().for_each(|s| swallow(s.into()));
    } else {
        let path = std::env::temp_dir().join(format!("exs-bench-{}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a place for it");
        println!("unix:{}", path.display());
        listener.incoming().flatten().for_each(|s| swallow(s.into()));
    }
}

type Way = fn(OwnedFd, Instant) -> usize;

fn compare(name: &str, kind: &str, (a, b): (Way, Way), rounds: usize, time: Duration) {
    let receiver = Receiver::start(kind);
    let (mut rates, mut cpus, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let [a, b] = [a, b].map(|f| measure(time, receiver.connect(), f));
        rates.push(b.rate / a.rate);
        cpus.push(b.cpu / a.cpu);
        plain.push(a.rate);
    }
    let sorted = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v
    };
    let (rates, cpus, plain) = (sorted(rates), sorted(cpus), sorted(plain));
    let (mid, low, high) = (rounds / 2, rounds / 4, rounds * 3 / 4);
    println!(
        "{name:<26} {:6.2} GB/s blocking, queue/blocking {:.3} (quartiles {:.3} {:.3}), processor {:.3}",
        plain[mid] / 1e9,
        rates[mid],
        rates[low],
        rates[high],
        cpus[mid]
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, kind] = &args[..]
        && flag == "--receive"
    {
        return receive(kind);
    }
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (rounds, time) = (number(0, 31).max(1), Duration::from_millis(number(1, 200) as u64));
    let sends: (Way, Way) = (blocking_loop, through_a_queue);
    let files: (Way, Way) = (files_blocking, files_through_a_queue);
    compare("64 KiB sends, TCP", "tcp", sends, rounds, time);
    compare("64 KiB sends, UNIX stream", "unix", sends, rounds, time);
    compare("files of 8 MiB, TCP", "tcp", files, rounds, time);
    compare("files of 8 MiB, UNIX stream", "unix", files, rounds, time);
    let files: (Way, Way) = (files_blocking, files_without_copies);
    compare("the same, O_NONBLOCK, TCP", "tcp", files, rounds, time);
    compare("the same, O_NONBLOCK, UNIX", "unix", files, rounds, time);
}
