//! The client: decides what is measured.

use std::net::SocketAddr;
use std::time::Duration;

use exs::{Options, Socket, SocketType, ToHost};
use exs_tools::fail::{During, Failure};
use exs_tools::peer::Server;
use exs_tools::stats::{Samples, median};

use crate::cli::{Args, Baseline, Mode};
use crate::control::{self, Job, Open, Reply, Request, What};
use crate::link::Link;
use crate::report::{Bandwidth, Comparison, Latency, Report, Side};
use crate::server::{open_link, unexpected};

/// How long a measurement should take, if the user does not say how many rounds.
const AIM: Duration = Duration::from_millis(500);
/// As [`AIM`], for each side of each round of a comparison.
const AIM_COMPARED: Duration = Duration::from_millis(250);
/// Sizes of a comparison: round trip and bandwidth.
const SMALL: usize = 64;
const LARGE: usize = 1 << 20;
/// Bytes in flight, at most.
const MAX_IN_FLIGHT: usize = 64 << 20;

/// The server runs as a process of its own, on loopback.
pub(crate) fn demo(args: &Args) -> Result<(), Failure> {
    let listen = SocketAddr::new(args.listen.ip(), 0).to_string();
    let road = args.road.args();
    let mut words = vec!["--listen", &listen, "--once"];
    words.extend(road.iter().map(String::as_str));
    let mut server = Server::start(&words, |_| {}).during("cannot start the server")?;
    let everything = args.compare.is_none() && args.size.is_none() && !args.sweep;
    let (control, options, addr) = call(server.addr(), args)?;
    measure(control, options, addr, args, everything)?;
    if server.wait(Duration::from_secs(10)) {
        Ok(())
    } else {
        Err(Failure("the server did not end well".to_owned()))
    }
}

pub(crate) fn run(addr: &str, args: &Args) -> Result<(), Failure> {
    let (control, options, addr) = call(addr, args)?;
    measure(control, options, addr, args, false)
}

/// The control connection, and the address of the server.
fn call(server: impl ToHost, args: &Args) -> Result<(Socket, Options, SocketAddr), Failure> {
    let options = args.road.options();
    let control = Socket::with_options(SocketType::Stream, options.clone()).during("socket")?;
    control.blocking().connect(server).during("no exs-pingpong server there")?;
    let addr = control.peer_addr()?;
    Ok((control, options, addr))
}

fn measure(
    control: Socket,
    options: Options,
    addr: SocketAddr,
    args: &Args,
    everything: bool,
) -> Result<(), Failure> {
    let mut session = Session { control, options, addr, opened: 0 };
    let open = Open::Exs { kind: args.socket, wait: args.wait, crc: args.crc };
    let mut link = session.open(open)?;
    let mut report = Report::new(addr, args, &link.transport);

    report.headline()?;
    if args.mode != Mode::Bw {
        for size in args.sizes(SMALL) {
            let samples = session.latency(&mut link, size, args.iters, AIM)?;
            report.latency(Latency::new(size, samples))?;
        }
    }
    if args.mode != Mode::Lat {
        for size in args.sizes(LARGE) {
            let depth = in_flight(size, args.depth);
            let (count, took) = session.bandwidth(&mut link, size, args.iters, depth, AIM)?;
            report.bandwidth(Bandwidth::new(size, count, depth, took))?;
        }
    }
    if args.compare == Some(Baseline::Tcp) || everything {
        let comparison = compare(&mut session, &mut link, args)?;
        report.comparison(comparison)?;
    }
    report.finish()?;
    session.control.blocking().close().during("closing")
}

impl Args {
    fn sizes(&self, default: usize) -> Vec<usize> {
        if self.sweep {
            (0..=22).step_by(2).map(|bits| 1 << bits).collect()
        } else {
            vec![self.size.unwrap_or(default)]
        }
    }
}

fn in_flight(size: usize, depth: u32) -> u32 {
    let most = (MAX_IN_FLIGHT / size).max(1);
    depth.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// A, B, C, A, B, C, ...: whatever else the machine does meanwhile meets all of them.
fn compare(session: &mut Session, exs: &mut Opened, args: &Args) -> Result<Comparison, Failure> {
    let mut tcp = session.open(Open::Tcp { spin: false })?;
    let mut spinning = session.open(Open::Tcp { spin: true })?;
    let depth = in_flight(LARGE, args.depth);
    let mut figures: [Vec<f64>; 5] = Default::default();
    for _ in 0..args.rounds {
        for (i, link) in [&mut *exs, &mut tcp, &mut spinning].into_iter().enumerate() {
            let samples = session.latency(link, SMALL, args.iters, AIM_COMPARED)?;
            figures[i].push(Latency::new(SMALL, samples).p50);
        }
        for (i, link) in [&mut *exs, &mut tcp].into_iter().enumerate() {
            let (count, took) = session.bandwidth(link, LARGE, args.iters, depth, AIM_COMPARED)?;
            figures[3 + i].push(Bandwidth::new(LARGE, count, depth, took).gbytes_per_s);
        }
    }
    let [lat_exs, lat_tcp, lat_spin, bw_exs, bw_tcp] = figures.map(|f| median(&f));
    Ok(Comparison::new(
        args.rounds,
        Side { exs: lat_exs, tcp: lat_tcp },
        lat_spin,
        Side { exs: bw_exs, tcp: bw_tcp },
    ))
}

/// A link and its number at the server.
struct Opened {
    link: Box<dyn Link>,
    number: usize,
    /// What carries it.
    transport: String,
}

struct Session {
    control: Socket,
    options: Options,
    addr: SocketAddr,
    opened: usize,
}

impl Session {
    fn open(&mut self, open: Open) -> Result<Opened, Failure> {
        let (link, transport) = open_link(&self.control, &self.options, self.addr, open)?;
        self.opened += 1;
        Ok(Opened { link, number: self.opened - 1, transport })
    }

    /// Has the server take its part in a job, and takes ours.
    fn run<T>(
        &self,
        to: &mut Opened,
        job: Job,
        part: impl FnOnce(&mut dyn Link) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        control::send(&self.control, &Request::Run { link: to.number, job })?;
        match control::recv(&self.control)? {
            Some(Reply::Ready) => {}
            other => return Err(unexpected(other)),
        }
        let result = part(to.link.as_mut())?;
        match control::recv(&self.control)? {
            Some(Reply::Done) => Ok(result),
            other => Err(unexpected(other)),
        }
    }

    fn ping(&self, to: &mut Opened, size: usize, iters: u32) -> Result<Samples, Failure> {
        let job = Job { what: What::Latency, size, iters, depth: 1 };
        self.run(to, job, |link| link.ping(size, iters))
    }

    fn pour(
        &self,
        to: &mut Opened,
        size: usize,
        iters: u32,
        depth: u32,
    ) -> Result<Duration, Failure> {
        let job = Job { what: What::Bandwidth, size, iters, depth };
        self.run(to, job, |link| link.pour(size, iters, depth))
    }

    /// Warms up, which also tells how many rounds are enough, and measures.
    fn latency(
        &self,
        to: &mut Opened,
        size: usize,
        iters: Option<u32>,
        aim: Duration,
    ) -> Result<Samples, Failure> {
        let trial = (1 << 20) / u32::try_from(size).unwrap_or(u32::MAX);
        let trial = trial.clamp(4, 200).min(iters.unwrap_or(u32::MAX));
        let mean = self.ping(to, size, trial)?.sort().mean() * 1e-6;
        self.ping(to, size, iters.unwrap_or_else(|| enough(mean, aim)))
    }

    fn bandwidth(
        &self,
        to: &mut Opened,
        size: usize,
        iters: Option<u32>,
        depth: u32,
        aim: Duration,
    ) -> Result<(u32, Duration), Failure> {
        let trial = (32 << 20) / u32::try_from(size).unwrap_or(u32::MAX);
        let trial = trial.clamp(4, 2000).min(iters.unwrap_or(u32::MAX));
        let took = self.pour(to, size, trial, depth)?;
        let count = iters.unwrap_or_else(|| enough(took.as_secs_f64() / f64::from(trial), aim));
        Ok((count, self.pour(to, size, count, depth)?))
    }
}

/// How often something that takes `each` seconds fits into `aim`: at least 10 times.
fn enough(each: f64, aim: Duration) -> u32 {
    let count = (aim.as_secs_f64() / each.max(1e-9)).clamp(10.0, 4e6);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped above")]
    let count = count as u32;
    count
}
