//! Peers that have proved nothing: each begins a start-up with a listener, and stops.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use exs::sys::{PeerSocket, connect_abstract};
use exs::wire::exs::{Hello, MAX_HELLO, SocketKind, VERSIONS};
use exs::wire::mpa::{EnhancedRepr, FrameKind, FrameRepr};

use crate::shm::{self, Intruder};

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It connects.
    Connected,
    /// It sends a part of the request (by TCP only).
    Half,
    /// It sends a whole request that has no hello of EXS.
    Asked,
}

/// One of them, for as long as it is kept.
pub enum Stranger {
    /// By TCP.
    Tcp(TcpStream),
    /// By shared memory: it has said nothing.
    Silent(PeerSocket),
    /// By shared memory: it has sent HELLO.
    Caller(Box<Intruder>),
}

/// The private data of a good peer.
fn hello() -> Vec<u8> {
    let (versions, kind, features) = (VERSIONS, SocketKind::Stream, Hello::FEATURES);
    let (credits, most, ring, max_msg) = (16, 0, 65_536, 65_536);
    let hello = Hello { versions, kind, features, credits, most, slot: 4096, ring, max_msg };
    let mut out = [0; MAX_HELLO];
    let len = hello.emit(&mut out);
    out[..len].to_vec()
}

/// An MPA request whose sender says nothing of EXS.
fn request() -> Vec<u8> {
    let reads = EnhancedRepr { ird: 8, ord: 8, ..EnhancedRepr::default() };
    let private = [&reads.emit()[..], b"a stranger"].concat();
    let frame = FrameRepr {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        reject: false,
        enhanced: true,
        large: true,
        revision: 2,
        private_len: u16::try_from(private.len()).unwrap(),
    };
    [&frame.emit()[..], &private].concat()
}

impl Stranger {
    /// Calls a listener by TCP.
    pub fn by_tcp(addr: SocketAddr, stage: Stage) -> Stranger {
        let mut stream = TcpStream::connect(addr).unwrap();
        let request = request();
        let len = match stage {
            Stage::Connected => 0,
            Stage::Half => request.len() / 2,
            Stage::Asked => request.len(),
        };
        stream.write_all(&request[..len]).unwrap();
        Stranger::Tcp(stream)
    }

    /// Calls a listener by shared memory.
    pub fn by_shm(addr: SocketAddr, stage: Stage) -> Stranger {
        if stage == Stage::Asked {
            let caller = Intruder::call_with(addr, &shm::Hello::to(addr), b"a stranger");
            return Stranger::Caller(Box::new(caller));
        }
        let name = format!("exs/1/tcp4/{addr}");
        Stranger::Silent(connect_abstract(name.as_bytes()).unwrap())
    }
}

/// Calls a listener by shared memory, waits for its answer, and then owes READY.
pub fn accepted(addr: SocketAddr) -> Intruder {
    let caller = Intruder::call_with(addr, &shm::Hello::to(addr), &hello());
    let answer = loop {
        match caller.hear() {
            Some(answer) => break answer,
            None => std::thread::yield_now(),
        }
    };
    assert!(answer.starts_with(b"A"), "{answer:?}");
    caller
}
