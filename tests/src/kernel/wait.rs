//! Connects and accepts.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use exs::{Error, KernelAddr, RecvFlags, Token};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket as nx;
use nix::sys::socket::{AddressFamily, SockFlag, SockType};

use super::{Ours, set_nonblocking};
use crate::harness::{Ledger, accepted_kernel};

fn blocking(family: AddressFamily, ty: SockType) -> Ours {
    Ours::new(nx::socket(family, ty, SockFlag::SOCK_CLOEXEC, None).unwrap())
}

fn tcp() -> Ours {
    blocking(AddressFamily::Inet, SockType::Stream)
}

/// A name in the file system that goes with the value.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Path {
        let at = std::thread::current().id();
        let path = std::env::temp_dir().join(format!("exs-{name}-{}-{at:?}", std::process::id()));
        Path(path)
    }

    fn addr(&self) -> KernelAddr {
        KernelAddr::unix(&self.0).unwrap()
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A TCP listener on loopback, and where.
fn listener(at: &str) -> (Ours, SocketAddr) {
    let listener = TcpListener::bind(at).unwrap();
    let addr = listener.local_addr().unwrap();
    (Ours::new(listener.into()), addr)
}

/// Accepts that were posted before, and some after, in the order of the connections.
pub fn accepts_in_order() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (ours, addr) = listener(at);
        let mut ledger = Ledger::new();
        let tokens: Vec<Token> =
            (0..4).map(|_| ledger.post("accept", |q, t| ours.accept(q, t))).collect();
        for (i, token) in (0u8..).zip(tokens) {
            let mut client = TcpStream::connect(addr).unwrap();
            client.write_all(&[i]).unwrap();
            let (taken, peer) = accepted_kernel(ledger.wait_ok(token)).unwrap();
            assert_eq!(peer.as_ip(), Some(client.local_addr().unwrap()));
            let flags = OFlag::from_bits_retain(fcntl(&taken, FcntlArg::F_GETFL).unwrap());
            assert!(!flags.contains(OFlag::O_NONBLOCK));
            let flags = FdFlag::from_bits_retain(fcntl(&taken, FcntlArg::F_GETFD).unwrap());
            assert!(flags.contains(FdFlag::FD_CLOEXEC));
            let mut byte = [9];
            TcpStream::from(taken).read_exact(&mut byte).unwrap();
            assert_eq!(byte, [i]);
        }
        let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(addr).unwrap()).collect();
        for client in &clients {
            ledger.post("accept", |q, t| ours.accept(q, t));
            let event = ledger.ok();
            assert_eq!(event.peer().unwrap().as_ip(), Some(client.local_addr().unwrap()));
        }
        ledger.finish();
    }
}

/// The owner's accept(2) works before and after; UNIX-domain listeners too.
pub fn accepts_and_the_owner() {
    let path = Path::new("owner");
    let listener = UnixListener::bind(&path.0).unwrap();
    let own = listener.try_clone().unwrap();
    let ours = Ours::new(listener.into());
    let mut ledger = Ledger::new();
    for _ in 0..3 {
        let _first = UnixStream::connect(&path.0).unwrap();
        own.accept().unwrap();
        ledger.post("accept", |q, t| ours.accept(q, t));
        let mut second = UnixStream::connect(&path.0).unwrap();
        let (taken, peer) = accepted_kernel(ledger.ok()).unwrap();
        assert!(peer.as_unix_path().is_none());
        second.write_all(b"x").unwrap();
        let taken = UnixStream::from(taken);
        (&taken).read_exact(&mut [0]).unwrap();
        let client = std::thread::spawn({
            let to = path.0.clone();
            move || UnixStream::connect(to).unwrap()
        });
        own.accept().unwrap();
        client.join().unwrap();
    }
    ledger.finish();
}

/// A listener that does not block is asked directly.
pub fn a_nonblocking_listener() {
    let (ours, addr) = listener("127.0.0.1:0");
    let fd = ours.into_fd();
    set_nonblocking(&fd, true);
    let ours = Ours::new(fd);
    let mut ledger = Ledger::new();
    let tokens: Vec<Token> =
        (0..3).map(|_| ledger.post("accept", |q, t| ours.accept(q, t))).collect();
    for token in &tokens[..2] {
        let client = TcpStream::connect(addr).unwrap();
        let event = ledger.wait_ok(*token);
        assert_eq!(event.peer().unwrap().as_ip(), Some(client.local_addr().unwrap()));
    }
    assert_eq!(ours.cancel_all(), 1);
    assert!(ledger.wait(tokens[2]).error().is_some_and(Error::is_cancelled));
    ledger.finish();
}

/// A cancelled accept takes no connection: the next one is the owner's.
pub fn cancelled_accepts() {
    let (mut ours, addr) = listener("127.0.0.1:0");
    let mut ledger = Ledger::new();
    let tokens: Vec<Token> =
        (0..3).map(|_| ledger.post("accept", |q, t| ours.accept(q, t))).collect();
    assert_eq!(ours.cancel(tokens[0]), 1);
    assert!(ledger.wait(tokens[0]).error().is_some_and(Error::is_cancelled));
    let client = TcpStream::connect(addr).unwrap();
    let event = ledger.wait_ok(tokens[1]);
    assert_eq!(event.peer().unwrap().as_ip(), Some(client.local_addr().unwrap()));
    assert_eq!(ours.cancel_all(), 1);
    assert!(ledger.wait(tokens[2]).error().is_some_and(Error::is_cancelled));
    ours.set_limits(None, Some(Duration::from_millis(20)));
    ledger.post("accept", |q, t| ours.accept(q, t));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ETIMEDOUT);
    assert_eq!(ours.descriptors(), 1);
    let client = TcpStream::connect(addr).unwrap();
    let own = TcpListener::from(ours.get_ref().try_clone().unwrap());
    assert_eq!(own.accept().unwrap().1, client.local_addr().unwrap());
    ledger.finish();
}

/// An accept on a socket that does not listen fails.
pub fn not_a_listener() {
    let (ours, _peer) = super::pair(super::Family::Unix);
    let mut ledger = Ledger::new();
    ledger.post("accept", |q, t| ours.accept(q, t));
    let (udp, _peer) = super::pair(super::Family::Udp4);
    ledger.post("accept", |q, t| udp.accept(q, t));
    for event in [&mut ledger].into_iter().flat_map(Ledger::drain) {
        assert!([libc::EINVAL, libc::EOPNOTSUPP].contains(&event.error().unwrap().errno()));
    }
    ledger.finish();
}

/// Sockets that block are connected without blocking anybody.
pub fn connects() {
    let mut ledger = Ledger::new();
    for (at, family) in [("127.0.0.1:0", AddressFamily::Inet), ("[::1]:0", AddressFamily::Inet6)] {
        let listener = TcpListener::bind(at).unwrap();
        let ours = blocking(family, SockType::Stream);
        ledger.post("connect", |q, t| ours.connect(q, t, listener.local_addr().unwrap()));
        ledger.ok();
        assert_eq!(ours.descriptors(), 1);
        let (mut peer, _) = listener.accept().unwrap();
        ours.file().write_all(b"own").unwrap();
        peer.read_exact(&mut [0; 3]).unwrap();
    }
    let path = Path::new("connects");
    let listener = UnixListener::bind(&path.0).unwrap();
    let ours = blocking(AddressFamily::Unix, SockType::Stream);
    ledger.post("connect", |q, t| ours.connect(q, t, path.addr()));
    ledger.ok();
    listener.accept().unwrap();
    ledger.finish();
}

/// A connect that fails is an event with the kernel's reason.
pub fn refused_connects() {
    let mut ledger = Ledger::new();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ours = tcp();
    ledger.post("connect", |q, t| ours.connect(q, t, gone));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ECONNREFUSED);
    // The socket is good for another attempt.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ledger.post("connect", |q, t| ours.connect(q, t, listener.local_addr().unwrap()));
    ledger.ok();
    let ours = blocking(AddressFamily::Unix, SockType::Stream);
    ledger.post("connect", |q, t| ours.connect(q, t, Path::new("unbound").addr()));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ENOENT);
    ledger.finish();
}

/// Operations posted behind a connect wait for it.
pub fn sends_behind_a_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut text = [0; 5];
        peer.read_exact(&mut text).unwrap();
        peer.write_all(&text).unwrap();
    });
    let ours = tcp();
    let mut ledger = Ledger::new();
    let connect = ledger.post("connect", |q, t| ours.connect(q, t, addr));
    ledger.post("send", |q, t| ours.send(q, t, *b"he"));
    ledger.post("send", |q, t| ours.send(q, t, *b"llo"));
    let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::WAITALL));
    assert_eq!(ledger.ok().token(), connect);
    assert_eq!(&ledger.wait_ok(recv).into_buffer().unwrap()[..], b"hello");
    echo.join().unwrap();
    ledger.drain();
    // Where it fails, they do.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ours = tcp();
    ledger.post("connect", |q, t| ours.connect(q, t, gone));
    ledger.post("send", |q, t| ours.send(q, t, *b"he"));
    ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
    let events = ledger.drain();
    assert_eq!(events[0].error().unwrap().errno(), libc::ECONNREFUSED);
    // To a receive it looks like the end.
    assert!(events[1..].iter().all(|e| e.error().is_some() || e.eof()), "{events:?}");
    ledger.finish();
}

/// An address whose listener takes no more: the listener, and the clients that fill it.
fn full() -> (TcpListener, SocketAddr, Vec<OwnedFd>) {
    let fd =
        nx::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    nx::bind(fd.as_raw_fd(), &nx::SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    nx::listen(&fd, nx::Backlog::new(0).unwrap()).unwrap();
    let listener = TcpListener::from(fd);
    let addr = listener.local_addr().unwrap();
    let mut clients = Vec::new();
    // One more than the backlog is let in; a few whose handshake hangs make sure of it.
    for _ in 0..4 {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let c = nx::socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let to = nx::SockaddrIn::from(match addr {
            SocketAddr::V4(a) => a,
            SocketAddr::V6(_) => unreachable!("bound to IPv4"),
        });
        let _ = nx::connect(c.as_raw_fd(), &to);
        clients.push(c);
    }
    (listener, addr, clients)
}

/// A connect without an answer can be cancelled or limited in time, and its socket can be closed.
pub fn a_connect_that_waits() {
    let (_listener, addr, _clients) = full();
    let mut ledger = Ledger::new();
    let ours = tcp();
    let connect = ledger.post("connect", |q, t| ours.connect(q, t, addr));
    let recv = ledger.post("recv", |q, t| ours.recv(q, t, vec![0; 5], RecvFlags::NONE));
    assert!(ledger.poll(Duration::from_millis(20)).is_none(), "there is no answer");
    assert_eq!(ours.cancel(connect), 1);
    assert!(ledger.wait(connect).error().is_some_and(Error::is_cancelled));
    ours.cancel(recv);
    ledger.drain();
    let mut ours = tcp();
    ours.set_limits(Some(Duration::from_millis(20)), None);
    ledger.post("connect", |q, t| ours.connect(q, t, addr));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ETIMEDOUT);
    let ours = tcp();
    let inode = ours.inode();
    ledger.post("connect", |q, t| ours.connect(q, t, addr));
    drop(ours);
    assert!(ledger.event().error().is_some_and(Error::is_cancelled));
    ledger.finish();
    // The thread that waited, if there was one, lets go of it too.
    while super::descriptors(inode) > 0 {
        std::thread::yield_now();
    }
    let path = Path::new("full");
    let listener = UnixListener::bind(&path.0).unwrap();
    nx::listen(&listener, nx::Backlog::new(0).unwrap()).unwrap();
    let _first = UnixStream::connect(&path.0).unwrap();
    let ours = blocking(AddressFamily::Unix, SockType::Stream);
    let mut ledger = Ledger::new();
    ledger.post("connect", |q, t| ours.connect(q, t, path.addr()));
    assert!(ledger.poll(Duration::from_millis(20)).is_none(), "its queue is full");
    listener.accept().unwrap();
    ledger.ok();
    ledger.finish();
}

/// A datagram socket only notes the address.
pub fn connects_of_datagrams() {
    let to = UdpSocket::bind("127.0.0.1:0").unwrap();
    let ours = blocking(AddressFamily::Inet, SockType::Datagram);
    let mut ledger = Ledger::new();
    ledger.post("connect", |q, t| ours.connect(q, t, to.local_addr().unwrap()));
    ledger.post("send", |q, t| ours.send(q, t, *b"hi"));
    assert_eq!(to.recv(&mut [0; 9]).unwrap(), 2);
    ledger.drain().iter().for_each(|e| assert!(e.error().is_none()));
    ledger.finish();
}

/// On a socket that does not block, the reactor reports the end of the connect.
pub fn a_nonblocking_connect() {
    let open = |ours: Ours| {
        let fd = ours.into_fd();
        set_nonblocking(&fd, true);
        Ours::new(fd)
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ledger = Ledger::new();
    let ours = open(tcp());
    ledger.post("connect", |q, t| ours.connect(q, t, listener.local_addr().unwrap()));
    ledger.post("send", |q, t| ours.send(q, t, *b"hi"));
    listener.accept().unwrap().0.read_exact(&mut [0; 2]).unwrap();
    ledger.drain().iter().for_each(|e| assert!(e.error().is_none(), "{e:?}"));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ours = open(tcp());
    ledger.post("connect", |q, t| ours.connect(q, t, gone));
    assert_eq!(ledger.event().error().unwrap().errno(), libc::ECONNREFUSED);
    let (_listener, addr, _clients) = full();
    let ours = open(tcp());
    ledger.post("connect", |q, t| ours.connect(q, t, addr));
    assert!(ledger.poll(Duration::from_millis(20)).is_none(), "there is no answer");
    assert_eq!(ours.cancel_all(), 1);
    assert!(ledger.event().error().is_some_and(Error::is_cancelled));
    ledger.finish();
}

/// Hundreds at once, with a listener of ours at the other end.
pub fn many_connects() {
    const MANY: usize = 200;
    let (ours, addr) = listener("127.0.0.1:0");
    let mut ledger = Ledger::new();
    let clients: Vec<Ours> = (0..MANY).map(|_| tcp()).collect();
    for client in &clients {
        ledger.post("accept", |q, t| ours.accept(q, t));
        ledger.post("connect", |q, t| client.connect(q, t, addr));
    }
    let mut taken = Vec::new();
    while ledger.outstanding() > 0 {
        taken.extend(accepted_kernel(ledger.ok()).map(|(socket, _)| socket));
    }
    assert_eq!(taken.len(), MANY);
    for mut t in taken.into_iter().map(File::from) {
        t.write_all(b"x").unwrap();
    }
    for client in &clients {
        client.file().read_exact(&mut [0]).unwrap();
    }
    ledger.finish();
}

/// A second connect meanwhile is refused by its event, as by connect(2).
pub fn two_connects() {
    let (_listener, addr, _clients) = full();
    let ours = tcp();
    let mut ledger = Ledger::new();
    ledger.post("connect", |q, t| ours.connect(q, t, addr));
    let second = ledger.post("connect", |q, t| ours.connect(q, t, addr));
    assert_eq!(ledger.wait(second).error().unwrap().errno(), libc::EALREADY);
    ours.cancel_all();
    ledger.drain();
    assert!(ours.get_ref().as_fd().as_raw_fd() >= 0);
    ledger.finish();
}

/// A listener closed by its owner gives its port back.
pub fn closed_with_an_accept() {
    let (ours, addr) = listener("127.0.0.1:0");
    let mut ledger = Ledger::new();
    for _ in 0..3 {
        ledger.post("accept", |q, t| ours.accept(q, t));
    }
    drop(ours);
    for event in ledger.drain() {
        assert!(event.error().is_some_and(Error::is_cancelled), "{event:?}");
    }
    TcpListener::bind(addr).unwrap();
    ledger.finish();
}
