//! The software RNIC and `rping` of librdmacm's utilities over a kernel iWARP device:
//! a program that knows nothing of EXS, on an implementation that is not ours.
//!
//! rping's protocol: messages of 16 bytes {address be64, key be32, size be32}. The
//! client announces its source, the server READs it and sends a go-ahead; the client
//! announces its sink, the server WRITEs the same bytes there and sends another. The
//! bytes are a C string: the server WRITEs up to and with the first zero.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exs::mem::Access;
use exs::rnic::{CmEvent, ConnParam, ConnReq, Disconnect, Rnic, RnicError, SendWr, WcStatus};
use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs_tests::harness::Watchdog;
use exs_tests::rdma;
use exs_tests::rnic::world::{End, param, read_wr, send_wr, write_wr};
use exs_tests::rnic::{Harness, World, skip};

struct Soft;

impl Harness for Soft {
    type Rnic = SoftRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        SoftRnic::new(registry, token_base, RandomSource::seeded(token_base as u64))
    }
}

/// Longer than any of librdmacm's and the kernel's own waits for a connection.
const HANGS: Duration = Duration::from_secs(60);

/// rping, killed when dropped.
struct Rping {
    child: Child,
    /// Collects what it complains of, until it ends.
    complaints: Option<JoinHandle<String>>,
    /// Tells that it could not connect.
    gave_up: Receiver<()>,
}

impl Rping {
    fn start(args: &[&str], addr: SocketAddr) -> Rping {
        let mut command = Command::new("rping");
        command.args(args).args(["-a", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("rping is in rdmacm-utils");
        let err = child.stderr.take().expect("piped");
        let (tell, gave_up) = channel();
        let complaints = std::thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                if line.starts_with("connect error") {
                    // Fails only if the test has stopped asking.
                    let _ = tell.send(());
                }
                text += &line;
                text.push('\n');
            }
            text
        });
        Rping { child, complaints: Some(complaints), gave_up }
    }

    /// Whether it has ended, or would if it could: an rping that cannot connect says so, and then
    /// joins a thread of its own that waits for a completion.
    fn ended(&mut self) -> bool {
        if self.gave_up.try_recv().is_ok() {
            // Fails only if it has ended already.
            let _ = self.child.kill();
        }
        self.child.try_wait().expect("wait").is_some()
    }

    /// Ends it, and returns where it stood, all TCP connections, and its output.
    fn stuck(&mut self) -> String {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let at = read(&format!("/proc/{}/stack", self.child.id()));
        let tcp = read("/proc/net/tcp");
        let _ = self.child.kill();
        format!("it stood at\n{at}{tcp}it said: {}", self.said())
    }

    /// All that it prints, until it ends.
    fn said(&mut self) -> String {
        let mut text = String::new();
        let mut out = self.child.stdout.take().expect("piped");
        out.read_to_string(&mut text).expect("text");
        let complaints = self.complaints.take().expect("asked once");
        text + &complaints.join().expect("it only reads")
    }

    /// Waits for its own end: what it printed, and whether it thinks that all was well.
    fn finish(mut self) -> (String, bool) {
        (self.said(), self.child.wait().expect("wait").success())
    }
}

impl Drop for Rping {
    fn drop(&mut self) {
        // This fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of the device's address that was free a moment ago; None where there is no
/// iWARP device.
fn place() -> Option<SocketAddr> {
    if let Some(why) = rdma::missing_iwarp() {
        skip(&why);
        return None;
    }
    let addr = rdma::device()?.addr;
    Some(TcpListener::bind((addr, 0)).expect("a port").local_addr().expect("its address"))
}

/// One of rping's messages.
fn message(addr: u64, key: u32, size: usize) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&addr.to_be_bytes());
    out[8..12].copy_from_slice(&key.to_be_bytes());
    out[12..].copy_from_slice(&u32::try_from(size).expect("small").to_be_bytes());
    out
}

/// Connects as often as it takes until rping listens.
fn reach(w: &mut World<Soft>, addr: SocketAddr, param: &ConnParam<'_>) -> End {
    loop {
        let end = w.end(0);
        let now = w.now();
        let failed = match w.rnics[0].connect(end.qp, addr, param, now) {
            Err(e) => Some(e),
            Ok(()) => w.event_of(0, "an answer", |e| match e {
                CmEvent::Established { qp, .. } if *qp == end.qp => Some(None),
                CmEvent::ConnectFailed { qp, error } if *qp == end.qp => Some(Some(error.clone())),
                _ => None,
            }),
        };
        match failed {
            None => return end,
            Some(RnicError::Os { errno: libc::ECONNREFUSED, .. }) => {
                w.step(Duration::from_millis(20));
            }
            Some(e) => panic!("{e}"),
        }
    }
}

/// We are rping's client.
fn client(size: usize, rounds: usize, param: &ConnParam<'_>) {
    let Some(addr) = place() else { return };
    let _dog = Watchdog::new("rping's client");
    let rping = Rping::start(&["-s", "-S", "65535"], addr);
    let mut w = World::<Soft>::new(1);
    let end = reach(&mut w, addr, param);
    let go = w.zeros(end, 16);
    for round in 0..rounds {
        let text: Vec<u8> = (0..size - 1)
            .map(|i| b'A' + u8::try_from((i + round) % 58).expect("below 58"))
            .collect();
        let text = [text, vec![0]].concat();
        let source = w.buf(end, text.clone(), Access::REMOTE_READ);
        let sink = w.zeros(end, size);
        for buf in [&source, &sink] {
            w.recv(end, 1, &[go.sge()]);
            let head = message(buf.addr(), buf.mr.key, size);
            w.send(end, &SendWr { head: &head, ..send_wr(2, &[]) });
            let wc = w.received(end);
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 16));
            assert_eq!(w.completed(end).status, WcStatus::Success);
        }
        assert!(sink.bytes() == text, "round {round}: what came back is not what was there");
        w.rnics[0].dereg_mr(source.mr).unwrap();
        w.rnics[0].dereg_mr(sink.mr).unwrap();
    }
    w.disconnect(end, Disconnect::Orderly);
    w.disconnected(end);
    // It calls every end of a connection a failure; that it ends is what counts.
    rping.finish();
}

/// Starts rping until it comes: librdmacm draws its port from those of RDMA, and siw
/// binds it in TCP, where it may be taken. Then rping gives up.
fn called_by(w: &mut World<Soft>, start: impl Fn() -> Rping) -> (Rping, ConnReq) {
    let mut said = String::new();
    for _ in 0..5 {
        let mut rping = start();
        let begun = Instant::now();
        let came = w.until("rping", |w| {
            let at = w.cm[0].iter().position(|e| matches!(e, CmEvent::ConnectRequest { .. }));
            match at.and_then(|at| w.cm[0].remove(at)) {
                Some(CmEvent::ConnectRequest { req, .. }) => Some(Some(req)),
                // It has a time limit of its own, unless it hangs in the kernel.
                _ if begun.elapsed() > HANGS => panic!("rping hangs: {}", rping.stuck()),
                _ => rping.ended().then_some(None),
            }
        });
        if let Some(req) = came {
            return (rping, req);
        }
        said += &rping.finish().0;
    }
    panic!("rping never came; it said:\n{said}");
}

/// We are rping's server.
fn server(size: usize, param: &ConnParam<'_>) {
    const ROUNDS: usize = 50;
    let Some(addr) = place() else { return };
    let _dog = Watchdog::new("rping's server");
    let mut w = World::<Soft>::new(1);
    let (listener, addr) = w.listen(0, SocketAddr::new(addr.ip(), 0));
    let (rounds, bytes) = (ROUNDS.to_string(), size.to_string());
    let start = || Rping::start(&["-c", "-V", "-C", &rounds, "-S", &bytes], addr);
    let (rping, req) = called_by(&mut w, start);
    let end = w.end(0);
    let note = w.zeros(end, 16);
    w.recv(end, 1, &[note.sge()]);
    let now = w.now();
    w.rnics[0].accept(req, end.qp, param, now).unwrap();
    w.established(end);
    w.rnics[0].close_listener(listener).unwrap();
    let copy = w.zeros(end, size);
    for _ in 0..ROUNDS {
        for reads in [true, false] {
            let wc = w.received(end);
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 16));
            let raddr = u64::from_be_bytes(note.read(0));
            let rkey = u32::from_be_bytes(note.read(8));
            assert_eq!(u32::from_be_bytes(note.read(12)) as usize, size);
            w.recv(end, 1, &[note.sge()]);
            let sges = [copy.sge()];
            let wr = if reads {
                read_wr(2, &sges, raddr, rkey)
            } else {
                write_wr(2, &sges, raddr, rkey)
            };
            w.send(end, &wr);
            assert_eq!(w.completed(end).status, WcStatus::Success);
            let head = message(0, 0, 0);
            w.send(end, &SendWr { head: &head, ..send_wr(3, &[]) });
            assert_eq!(w.completed(end).status, WcStatus::Success);
        }
    }
    w.disconnected(end);
    let (text, well) = rping.finish();
    assert!(well, "rping found something wrong: {text}");
}

#[test]
fn a_client_of_rping() {
    client(64, 200, &param(&[]));
}

#[test]
fn a_client_of_rping_with_crc() {
    for size in [64, 65, 66, 67, 1401, 65_535] {
        client(size, 5, &ConnParam { crc: true, ..param(&[]) });
    }
}

#[test]
fn a_client_of_rping_in_all_sizes() {
    for size in [64, 1400, 4095, 65_535] {
        client(size, 5, &param(&[]));
    }
}

/// rping offers and asks for one READ at a time; we for many, or none that it needs.
#[test]
fn a_client_of_rping_with_one_read() {
    client(1000, 20, &ConnParam { ird: 1, ord: 1, ..param(&[]) });
    client(1000, 20, &ConnParam { ird: 128, ord: 128, ..param(&[]) });
    client(1000, 20, &ConnParam { ird: 1, ord: 0, ..param(&[]) });
}

#[test]
fn a_server_of_rping() {
    for size in [64, 1000, 65_535] {
        server(size, &param(&[]));
    }
}

#[test]
fn a_server_of_rping_with_crc() {
    for size in [64, 4095, 65_535] {
        server(size, &ConnParam { crc: true, ..param(&[]) });
    }
}

#[test]
fn a_server_of_rping_with_private_data() {
    let data = [7; 200];
    server(64, &ConnParam { ird: 1, ord: 1, ..param(&data) });
}
