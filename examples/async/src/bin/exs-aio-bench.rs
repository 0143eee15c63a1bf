//! Streams of EXS beside tokio's TCP, in one run. `exs-aio-bench --help` lists the scenarios and options.

use std::error::Error;
use std::future::Future;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use clap::{Parser, ValueEnum, value_parser};
use exs::aio::{AsyncListener, AsyncStream};
use exs::{Options, Transport};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// All of them.
    All,
    /// 64 bytes there and back.
    Echo,
    /// Writes of 64 KiB, one way.
    Bulk,
    /// Requests of hyper clients to an axum server.
    Http,
    /// Connections with an echo each.
    Many,
}

/// A kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// tokio's TcpStream.
    Tcp,
    /// EXS over the software RNIC.
    Soft,
    /// EXS over shared memory.
    Shm,
}

/// Measures streams of EXS beside tokio's TcpStream, in one run.
///
/// Each round runs TCP, the software RNIC and shared memory one after the other. The figures are medians
/// of the rounds, and the ratios are those to TCP. The server is in a thread with a runtime of its own.
#[derive(Parser)]
#[command(version)]
struct Config {
    /// What to measure.
    #[arg(value_enum, default_value = "all")]
    scenario: Scenario,
    /// Rounds.
    #[arg(default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run runtimes of the kind multi_thread, with N workers. Otherwise each has one thread.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    workers: Option<u32>,
    /// The same as --workers=2.
    #[arg(long, conflicts_with = "workers")]
    multi: bool,
    /// Run the server alone in a runtime of the kind multi_thread, with N workers.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    server_workers: Option<u32>,
    /// Run the server as a process.
    #[arg(long)]
    processes: bool,
    /// Run client and server as tasks, and not as the future of block_on.
    #[arg(long)]
    spawn: bool,
    /// Measure this kind of stream alone.
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Connections of http.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..))]
    clients: u32,
    /// Connections of many.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..))]
    connections: u32,
    /// This process is the server of another one.
    #[arg(long, hide = true)]
    serves: bool,
}

impl Config {
    fn workers(&self) -> Option<u32> {
        self.workers.or(self.multi.then_some(2))
    }

    fn workers_of_server(&self) -> Option<u32> {
        self.server_workers.or(self.workers())
    }

    /// The command line of the process with the server.
    fn of_server(&self, scenario: Scenario, only: Kind) -> Vec<String> {
        let mut args = vec![name_of(scenario), "1".to_owned(), "--serves".to_owned()];
        args.push(format!("--only={}", name_of(only)));
        args.push(format!("--clients={}", self.clients));
        args.push(format!("--connections={}", self.connections));
        args.extend(self.workers_of_server().map(|workers| format!("--workers={workers}")));
        args.extend(self.spawn.then(|| "--spawn".to_owned()));
        args
    }
}

static CONFIG: OnceLock<Config> = OnceLock::new();

fn config() -> &'static Config {
    CONFIG.get().expect("main sets it first of all")
}

/// The listeners and streams of a kind.
trait Net: Copy + Send + Sync + 'static {
    fn kind(self) -> Kind;

    type Listener: Send;
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn listen(self) -> impl Future<Output = io::Result<(Self::Listener, SocketAddr)>> + Send;
    fn accept(l: &mut Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    fn connect(self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    fn serve_http(l: Self::Listener, app: Router) -> impl Future<Output = io::Result<()>> + Send;
}

#[derive(Clone, Copy)]
struct Tcp;

impl Net for Tcp {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn kind(self) -> Kind {
        Kind::Tcp
    }

    async fn listen(self) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    }

    async fn accept(listener: &mut TcpListener) -> io::Result<TcpStream> {
        let stream = listener.accept().await?.0;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn serve_http(listener: TcpListener, app: Router) -> io::Result<()> {
        axum::serve(listener, app).await
    }
}

#[derive(Clone, Copy)]
struct Exs(Transport);

impl Net for Exs {
    type Listener = AsyncListener;
    type Stream = AsyncStream;

    fn kind(self) -> Kind {
        if self.0 == Transport::Soft { Kind::Soft } else { Kind::Shm }
    }

    async fn listen(self) -> io::Result<(AsyncListener, SocketAddr)> {
        let options = Options::default().with_transport(self.0);
        let listener = AsyncListener::bind_with(SocketAddr::from(([127, 0, 0, 1], 0)), options)?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    }

    async fn accept(listener: &mut AsyncListener) -> io::Result<AsyncStream> {
        Ok(listener.accept().await?.0)
    }

    async fn connect(self, to: SocketAddr) -> io::Result<AsyncStream> {
        Ok(AsyncStream::connect_with(to, Options::default().with_transport(self.0)).await?)
    }

    async fn serve_http(listener: AsyncListener, app: Router) -> io::Result<()> {
        axum::serve(listener, app).await
    }
}

fn runtime(workers: Option<u32>) -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    if let Some(workers) = workers {
        builder = Builder::new_multi_thread();
        builder.worker_threads(usize::try_from(workers)?);
    }
    Ok(builder.enable_all().build()?)
}

/// Runs the future to its end, as a task or as the runtime's own future.
fn run<T: Send + 'static>(
    workers: Option<u32>,
    f: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    runtime(workers)?.block_on(async {
        match config().spawn {
            true => tokio::spawn(f).await?,
            false => f.await,
        }
    })
}

/// The server of a scenario: tells its address, and serves.
fn serve_with<N: Net, S>(
    net: N,
    serve: impl FnOnce(N::Listener) -> S + Send + 'static,
    tell: impl FnOnce(SocketAddr) -> Result<()> + Send + 'static,
) -> Result<()>
where
    S: Future<Output = Result<()>> + Send,
{
    run(config().workers_of_server(), async move {
        let (listener, addr) = net.listen().await?;
        tell(addr)?;
        serve(listener).await
    })
}

/// Runs `serve` with a listener beside `client`, which gets its address: in a thread or in a process.
fn beside<N: Net, S, C, T>(
    scenario: Scenario,
    net: N,
    serve: impl FnOnce(N::Listener) -> S + Send + 'static,
    client: impl FnOnce(SocketAddr) -> C,
) -> Result<T>
where
    S: Future<Output = Result<()>> + Send,
    C: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    if config().serves {
        serve_with(net, serve, |addr| Ok(writeln!(io::stdout(), "{addr}")?))?;
        std::process::exit(0);
    }
    if config().processes {
        let mut server = Command::new(std::env::current_exe()?)
            .args(config().of_server(scenario, net.kind()))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut addr = String::new();
        let told = server.stdout.take().ok_or("the server has no output")?;
        BufReader::new(told).read_line(&mut addr)?;
        let result = run(config().workers(), client(addr.trim().parse()?))?;
        server.wait()?;
        return Ok(result);
    }
    let (tell, told) = mpsc::channel();
    let server =
        std::thread::spawn(move || serve_with(net, serve, move |addr| Ok(tell.send(addr)?)));
    let addr = told.recv().map_err(|_| "the server does not listen")?;
    let result = run(config().workers(), client(addr))?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(result)
}

/// Seconds of a round trip of 64 bytes.
fn echo<N: Net>(net: N) -> Result<f64> {
    const TIMES: u32 = 20_000;
    let serve = |mut listener: N::Listener| async move {
        let mut stream = N::accept(&mut listener).await?;
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).await.is_ok() {
            stream.write_all(&bytes).await?;
        }
        Ok(())
    };
    beside(Scenario::Echo, net, serve, move |addr| async move {
        let mut stream = net.connect(addr).await?;
        let mut bytes = [7; 64];
        let mut begun = Instant::now();
        // Questions with pauses: nothing is worth a spin, until they come one after the other.
        for _ in 0..100 {
            // sleep-ok: the pause of a program that has nothing to ask.
            tokio::time::sleep(Duration::from_millis(1)).await;
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
        }
        for i in 0..TIMES + 1000 {
            if i == 1000 {
                begun = Instant::now();
            }
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(TIMES))
    })
}

/// Bytes each second, one way, by writes of 64 KiB.
fn bulk<N: Net>(net: N) -> Result<f64> {
    const WRITES: usize = 16 << 10;
    const LEN: usize = 64 << 10;
    let serve = |mut listener: N::Listener| async move {
        let mut stream = N::accept(&mut listener).await?;
        let (mut bytes, mut all) = (vec![0; LEN], 0);
        while all < WRITES * LEN {
            all += stream.read(&mut bytes).await?;
        }
        stream.write_all(b"x").await?;
        Ok(())
    };
    beside(Scenario::Bulk, net, serve, move |addr| async move {
        let mut stream = net.connect(addr).await?;
        let bytes = vec![7; LEN];
        let begun = Instant::now();
        for _ in 0..WRITES {
            stream.write_all(&bytes).await?;
        }
        stream.flush().await?;
        stream.read_exact(&mut [0]).await?;
        Ok((WRITES * LEN) as f64 / begun.elapsed().as_secs_f64())
    })
}

/// Requests each second, over connections that each have one under way. All are connected before the
/// first of these requests.
fn http<N: Net>(net: N) -> Result<f64> {
    const ALL: u32 = 32_000;
    let serve = |listener: N::Listener| async move {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stop = Arc::new(Mutex::new(Some(stop)));
        let end = move || {
            drop(stop.lock().ok().and_then(|mut stop| stop.take()));
            async { "bye" }
        };
        let app = Router::new().route("/", get(|| async { "hello, world" }));
        let app = app.route("/end", get(end));
        tokio::select! {
            served = N::serve_http(listener, app) => served?,
            // The answer leaves first.
            _ = stopped => for _ in 0..100 { tokio::task::yield_now().await },
        }
        Ok(())
    };
    let clients = config().clients;
    let requests = ALL.div_ceil(clients);
    beside(Scenario::Http, net, serve, move |addr| async move {
        ask(dial(net, addr).await?, "/", 100).await?;
        let mut dialed = Vec::new();
        for _ in 0..clients {
            dialed.push(dial(net, addr).await?);
        }
        let begun = Instant::now();
        let asking = dialed.into_iter().map(|client| tokio::spawn(ask(client, "/", requests)));
        for task in asking.collect::<Vec<_>>() {
            task.await??;
        }
        let took = begun.elapsed().as_secs_f64();
        ask(dial(net, addr).await?, "/end", 1).await?;
        Ok(f64::from(clients * requests) / took)
    })
}

type HttpClient = SendRequest<Full<Bytes>>;

async fn dial<N: Net>(net: N, addr: SocketAddr) -> Result<HttpClient> {
    let (client, connection) = http1::handshake(TokioIo::new(net.connect(addr).await?)).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Makes requests, one after the other.
async fn ask(mut client: HttpClient, path: &'static str, times: u32) -> Result<()> {
    for _ in 0..times {
        let request = Request::get(path).header("host", "exs").body(Full::default())?;
        client.ready().await?;
        client.send_request(request).await?.into_body().collect().await?;
    }
    Ok(())
}

/// Connections each second, all open at once, with an echo each.
fn many<N: Net>(net: N) -> Result<f64> {
    let connections = config().connections;
    let serve = move |mut listener: N::Listener| async move {
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let mut stream = N::accept(&mut listener).await?;
            tasks.push(tokio::spawn(async move {
                let mut bytes = [0; 64];
                while stream.read_exact(&mut bytes).await.is_ok() {
                    stream.write_all(&bytes).await?;
                }
                io::Result::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    };
    beside(Scenario::Many, net, serve, move |addr| async move {
        let begun = Instant::now();
        let mut open = Vec::new();
        let mut bytes = [7; 64];
        for _ in 0..connections {
            let mut stream = net.connect(addr).await?;
            stream.write_all(&bytes).await?;
            open.push(stream);
        }
        for stream in &mut open {
            stream.read_exact(&mut bytes).await?;
        }
        Ok(f64::from(connections) / begun.elapsed().as_secs_f64())
    })
}

/// None: nothing was measured.
fn median(figures: &mut [f64]) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

/// Prints the medians of the kinds that were measured, and their ratios to TCP.
fn print_figures(scenario: Scenario, unit: &str, medians: [Option<f64>; 3]) {
    let mut line = format!("{:6}", name_of(scenario));
    for (kind, median) in Kind::value_variants().iter().zip(medians) {
        let Some(median) = median else { continue };
        line += &format!(" {:>5} {median:9.2} {unit}", name_of(*kind));
        if let (Some(tcp), Kind::Soft | Kind::Shm) = (medians[0], kind) {
            line += &format!(" ({:.2} of TCP)", median / tcp);
        }
    }
    println!("{line}");
}

/// The name of a scenario or a kind on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn main() -> Result<()> {
    let config = CONFIG.get_or_init(Config::parse);
    let run = |scenario, unit: &str, scale: f64, f: &dyn Fn(Kind) -> Result<f64>| {
        if ![Scenario::All, scenario].contains(&config.scenario) {
            return Ok(());
        }
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..config.rounds {
            for (kind, figures) in Kind::value_variants().iter().zip(&mut figures) {
                if config.only.is_none_or(|only| only == *kind) {
                    figures.push(f(*kind)? * scale);
                }
            }
        }
        print_figures(scenario, unit, figures.each_mut().map(|f| median(f)));
        Result::Ok(())
    };
    macro_rules! each {
        ($scenario:ident) => {
            &|kind| match kind {
                Kind::Tcp => $scenario(Tcp),
                Kind::Soft => $scenario(Exs(Transport::Soft)),
                Kind::Shm => $scenario(Exs(Transport::Shm)),
            }
        };
    }
    run(Scenario::Echo, "us", 1e6, each!(echo))?;
    run(Scenario::Bulk, "GB/s", 1e-9, each!(bulk))?;
    run(Scenario::Http, "requests/s", 1.0, each!(http))?;
    run(Scenario::Many, "conns/s", 1.0, each!(many))?;
    Ok(())
}
