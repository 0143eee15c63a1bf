//! What the contract of sockets is tested on.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use exs::{Options, Socket, SocketType, Transport};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::LIMIT;
use crate::rdma;

/// A transport (or two, one for each side) and a family of addresses.
#[derive(Clone, Debug)]
pub struct Env {
    options: Options,
    /// Of listeners.
    transport: Transport,
    local: IpAddr,
}

impl From<Env> for Result<Env, String> {
    fn from(env: Env) -> Result<Env, String> {
        Ok(env)
    }
}

impl Env {
    /// Sockets with these options, on this address of this machine.
    pub fn new(options: Options, local: IpAddr) -> Env {
        let transport = options.transport;
        Env { options, transport, local }
    }

    /// The same with listeners on another transport.
    #[must_use]
    pub fn served_by(&self, transport: Transport) -> Env {
        Env { transport, ..self.clone() }
    }

    /// The options of its sockets that connect.
    pub fn options(&self) -> Options {
        self.options.clone()
    }

    fn is_device(transport: Transport) -> bool {
        transport == Transport::Verbs
    }

    fn is_iwarp() -> bool {
        rdma::device().is_some_and(|d| d.iwarp)
    }

    /// Connections are made by TCP: a TCP server that knows nothing of us can be called
    /// by mistake.
    pub fn dials_by_tcp(&self) -> bool {
        match self.options.transport {
            Transport::Shm => false,
            other => !Env::is_device(other) || Env::is_iwarp(),
        }
    }

    /// Listeners are TCP's, and nothing but this process reads from them.
    pub fn answers_by_tcp(&self) -> bool {
        !Env::is_device(self.transport) && self.transport != Transport::Shm
    }

    /// An export, by either side, is of one connection: its key is worth nothing on
    /// others.
    pub fn exports_to_one(&self) -> bool {
        !self.is_emulated() || Env::has_windows()
    }

    /// The device of the tests has memory windows.
    fn has_windows() -> bool {
        let name = crate::rdma::device().map(|d| d.name.as_str());
        let all = exs::transports();
        let mut devices = all.iter().flat_map(|t| &t.devices);
        devices.any(|d| Some(d.name.as_str()) == name && d.memory_windows)
    }

    /// A device takes part.
    fn is_emulated(&self) -> bool {
        Env::is_device(self.options.transport) || Env::is_device(self.transport)
    }

    /// A side learns why the other has ended a connection.
    pub fn tells_reasons(&self) -> bool {
        !self.is_emulated() || !Env::is_iwarp()
    }

    /// Large sizes and numbers are divided by this.
    pub fn shrink(&self) -> usize {
        if self.is_emulated() { 8 } else { 1 }
    }

    /// How many of `seeds` are tried: what takes milliseconds elsewhere takes a second
    /// where every system call is emulated, and the seeds of the other transports are
    /// those of the same machines.
    pub fn seeds(&self, seeds: u64) -> u64 {
        if self.is_emulated() { seeds.div_ceil(4) } else { seeds }
    }

    /// How long a test may take: devices that tests find are software on an emulated
    /// machine.
    pub fn patience(&self) -> Duration {
        LIMIT * if self.shrink() > 1 { 4 } else { 1 }
    }

    /// Why a test cannot be passed here, though it should be: what the device is known
    /// to do wrong.
    pub fn known(&self, test: &str) -> Option<&'static str> {
        if self.shrink() == 1 {
            return None;
        }
        // The group and the name.
        let at = test.rmatch_indices("::").nth(1).map_or(0, |(at, _)| at + 2);
        rdma::device()?.known(&test[at..])
    }

    /// The same with other options.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut Options)) -> Env {
        let mut env = self.clone();
        change(&mut env.options);
        env
    }

    /// A free port on its address.
    pub fn any(&self) -> SocketAddr {
        SocketAddr::new(self.local, 0)
    }

    /// An address that takes connections, or may take them, and never answers; for as
    /// long as what comes with it is kept.
    pub fn silent(&self) -> (Option<Box<dyn Send>>, SocketAddr) {
        if self.dials_by_tcp() {
            let tcp = TcpListener::bind(self.any()).unwrap();
            let addr = tcp.local_addr().unwrap();
            return (Some(Box::new(tcp)), addr);
        }
        if self.options.transport == Transport::Shm {
            // A name like a listener's, without a listener that accepts.
            let port = TcpListener::bind(self.any()).unwrap().local_addr().unwrap().port();
            let name = match self.local {
                IpAddr::V4(ip) => format!("exs/1/tcp4/{ip}:{port}"),
                IpAddr::V6(ip) => format!("exs/1/tcp6/[{ip}%0]:{port}"),
            };
            let listener = exs::sys::listen_abstract(name.as_bytes(), 64).unwrap();
            return (Some(Box::new(listener)), SocketAddr::new(self.local, port));
        }
        // No host has this address: the device's network is its own.
        let unused = match self.local {
            IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) ^ 0x40).into()),
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) ^ 0x40).into()),
        };
        (None, SocketAddr::new(unused, 7471))
    }

    /// A new socket.
    pub fn socket(&self, ty: SocketType) -> Socket {
        Socket::with_options(ty, self.options()).unwrap()
    }

    /// A new socket for a listener.
    pub fn server(&self, ty: SocketType) -> Socket {
        let options = self.options().with_transport(self.transport);
        Socket::with_options(ty, options).unwrap()
    }

    /// A listener and its address.
    pub fn listener(&self, ty: SocketType) -> (Socket, SocketAddr) {
        self.listener_with(ty, 64)
    }

    /// A listener with this backlog.
    pub fn listener_with(&self, ty: SocketType, backlog: u32) -> (Socket, SocketAddr) {
        let listener = self.server(ty);
        listener.bind(self.any()).unwrap();
        listener.listen(backlog).unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    /// Another connection to a listener: (the client's end, the server's).
    pub fn join(&self, ty: SocketType, listener: &Socket) -> (Socket, Socket) {
        let client = self.socket(ty);
        client.blocking().connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.blocking().accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        (client, server)
    }

    /// Two connected sockets: (the client's end, the server's).
    pub fn pair(&self, ty: SocketType) -> (Socket, Socket) {
        let (listener, _) = self.listener(ty);
        self.join(ty, &listener)
    }

    /// Two connected stream sockets.
    pub fn streams(&self) -> (Socket, Socket) {
        self.pair(SocketType::Stream)
    }

    /// Two connected seqpacket sockets.
    pub fn packets(&self) -> (Socket, Socket) {
        self.pair(SocketType::SeqPacket)
    }

    /// Two connected sockets with options of their own.
    pub fn pair_with(
        &self,
        ty: SocketType,
        client: &Options,
        server: &Options,
    ) -> (Socket, Socket) {
        let set = |to: &Options| {
            let transport = self.options.transport;
            self.with(|o| *o = to.clone().with_transport(transport))
        };
        let (ours, theirs) = (set(client), set(server));
        let (listener, _) = theirs.listener(ty);
        ours.join(ty, &listener)
    }
}

/// A new stream socket of this transport, with default options.
pub fn stream_socket(transport: Transport) -> Socket {
    let options = Options::default().with_transport(transport);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// Both ends of a stream connection within this process, with these options: the end that connected, and
/// the end that accepted.
pub fn stream_pair(options: &Options) -> (Socket, Socket) {
    let socket = || Socket::with_options(SocketType::Stream, options.clone()).unwrap();
    let (listener, client) = (socket(), socket());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.blocking().accept().unwrap().0)
}

/// A line of `/proc/self/status` that counts KiB, such as `"RssAnon:"`.
pub fn status_kib(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|l| l.strip_prefix(line)).expect(line);
    kib.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

/// Lets this process have as many open files as the system allows it.
pub fn many_files() -> u64 {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let most = most.min(1 << 20);
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    most
}
