//! What the contract of sockets is tested on.

use std::net::{IpAddr, SocketAddr};

use exs::{Options, Socket, SocketType};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A transport and a family of addresses.
#[derive(Clone, Debug)]
pub struct Env {
    options: Options,
    local: IpAddr,
}

impl Env {
    /// Sockets with these options, on this address of this machine.
    pub fn new(options: Options, local: IpAddr) -> Env {
        Env { options, local }
    }

    /// The options of its sockets.
    pub fn options(&self) -> Options {
        self.options.clone()
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

    /// A new socket.
    pub fn socket(&self, ty: SocketType) -> Socket {
        Socket::with_options(ty, self.options()).unwrap()
    }

    /// A listener and its address.
    pub fn listener(&self, ty: SocketType) -> (Socket, SocketAddr) {
        self.listener_with(ty, 64)
    }

    /// A listener with this backlog.
    pub fn listener_with(&self, ty: SocketType, backlog: u32) -> (Socket, SocketAddr) {
        let listener = self.socket(ty);
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
        let (ours, theirs) =
            (self.with(|o| *o = client.clone()), self.with(|o| *o = server.clone()));
        let (listener, _) = theirs.listener(ty);
        ours.join(ty, &listener)
    }
}

/// Lets this process have as many open files as the system allows it.
pub fn many_files() -> u64 {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let most = most.min(1 << 20);
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    most
}
