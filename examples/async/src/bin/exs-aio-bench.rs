//! Streams of EXS beside tokio's TCP, in one run: `exs-aio-bench [SCENARIO] [ROUNDS] [OPTION]...`.
//!
//! The scenarios are `echo` (64 bytes there and back), `bulk` (64 KiB writes one way), `http` (axum
//! and hyper) and `many` (connections with an echo each). The default is all of them. Each round runs
//! TCP, the software RNIC and shared memory one after the other. The figures are medians of the
//! rounds. The server is in a thread with a runtime of its own.
//!
//! The options: `--workers=N`: runtimes of the kind multi_thread, with this many workers. `--multi`:
//! the same with two workers. `--processes`: the server is a process. `--spawn`: client and server are
//! tasks, not the future of `block_on`. `--only=tcp`, `--only=soft` or `--only=shm`: this kind of stream
//! alone. `--clients=N`: the connections of `http` (8). `--connections=N`: those of `many` (1000).

use std::error::Error;
use std::future::Future;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
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

/// What the command line says.
#[derive(Default)]
struct Config {
    /// The workers of each runtime. None: runtimes of one thread.
    workers: Option<u32>,
    processes: bool,
    spawn: bool,
    only: Option<String>,
    clients: u32,
    connections: u32,
    /// This process is the server of another one.
    serves: bool,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

fn config() -> &'static Config {
    CONFIG.get().expect("main sets it first of all")
}

/// A kind of stream.
trait Net: Copy + Send + Sync + 'static {
    /// Its name on the command line.
    fn name(self) -> &'static str;

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

    fn name(self) -> &'static str {
        "tcp"
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

    fn name(self) -> &'static str {
        if self.0 == Transport::Soft { "soft" } else { "shm" }
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

fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    if let Some(workers) = config().workers {
        builder = Builder::new_multi_thread();
        builder.worker_threads(usize::try_from(workers)?);
    }
    Ok(builder.enable_all().build()?)
}

/// Runs the future to its end, as a task or as the runtime's own future.
fn run<T: Send + 'static>(f: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    runtime()?.block_on(async {
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
    run(async move {
        let (listener, addr) = net.listen().await?;
        tell(addr)?;
        serve(listener).await
    })
}

/// Runs `serve` with a listener beside `client`, which gets its address: in a thread or in a process.
fn beside<N: Net, S, C, T>(
    scenario: &str,
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
        let own = |arg: &String| arg == "--processes" || arg.starts_with("--only=");
        let args = std::env::args().skip(1).filter(|arg| arg.starts_with("--") && !own(arg));
        let only = format!("--only={}", net.name());
        let mut server = Command::new(std::env::current_exe()?)
            .args([scenario, "1", "--serves", &only])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut addr = String::new();
        let told = server.stdout.take().ok_or("the server has no output")?;
        BufReader::new(told).read_line(&mut addr)?;
        let result = run(client(addr.trim().parse()?))?;
        server.wait()?;
        return Ok(result);
    }
    let (tell, told) = mpsc::channel();
    let server =
        std::thread::spawn(move || serve_with(net, serve, move |addr| Ok(tell.send(addr)?)));
    let addr = told.recv().map_err(|_| "the server does not listen")?;
    let result = run(client(addr))?;
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
    beside("echo", net, serve, move |addr| async move {
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
    beside("bulk", net, serve, move |addr| async move {
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
    beside("http", net, serve, move |addr| async move {
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
    beside("many", net, serve, move |addr| async move {
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

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

impl Config {
    fn of(options: &[String]) -> Result<Config> {
        let mut config = Config { clients: 8, connections: 1000, ..Config::default() };
        for option in options {
            match option.split_once('=').unwrap_or((option, "")) {
                ("--multi", "") => config.workers = Some(2),
                ("--workers", n) => config.workers = Some(at_least_one(option, n)?),
                ("--processes", "") => config.processes = true,
                ("--spawn", "") => config.spawn = true,
                ("--serves", "") => config.serves = true,
                ("--only", net @ ("tcp" | "soft" | "shm")) => config.only = Some(net.to_owned()),
                ("--clients", n) => config.clients = at_least_one(option, n)?,
                ("--connections", n) => config.connections = at_least_one(option, n)?,
                _ => return Err(format!("there is no option {option}").into()),
            }
        }
        Ok(config)
    }
}

fn at_least_one(option: &str, n: &str) -> Result<u32> {
    match n.parse() {
        Ok(n @ 1..) => Ok(n),
        _ => Err(format!("{option} needs a number of at least 1").into()),
    }
}

fn main() -> Result<()> {
    let (options, args): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let config = Config::of(&options)?;
    let config = CONFIG.get_or_init(|| config);
    let wanted = args.first().map_or("all", |name| name);
    let rounds: usize = args.get(1).map_or(Ok(5), |n| n.parse())?;
    let run = |name: &str, unit: &str, scale: f64, f: &dyn Fn(usize) -> Result<f64>| {
        if wanted != "all" && wanted != name {
            return Ok(());
        }
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (net, figures) in figures.iter_mut().enumerate() {
                let net_name = ["tcp", "soft", "shm"][net];
                let runs = config.only.as_deref().is_none_or(|only| only == net_name);
                figures.push(if runs { f(net)? * scale } else { f64::NAN });
            }
        }
        let [tcp, soft, shm] = figures.each_mut().map(|f| median(f));
        println!(
            "{name:6} tcp {tcp:10.2} {unit:9} soft {soft:10.2} ({:.2})  shm {shm:10.2} ({:.2})",
            soft / tcp,
            shm / tcp
        );
        Result::Ok(())
    };
    macro_rules! each {
        ($scenario:ident) => {
            &|net| match net {
                0 => $scenario(Tcp),
                1 => $scenario(Exs(Transport::Soft)),
                _ => $scenario(Exs(Transport::Shm)),
            }
        };
    }
    run("echo", "us", 1e6, each!(echo))?;
    run("bulk", "GB/s", 1e-9, each!(bulk))?;
    run("http", "requests/s", 1.0, each!(http))?;
    run("many", "conns/s", 1.0, each!(many))?;
    Ok(())
}
