//! A peer on the shared-memory transport that does as it pleases: it makes connections
//! like a good one, and then writes whatever it is told to into the rings.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use exs::sys::{PeerSocket, SharedMap, connect_abstract, recv_with_fds, send_with_fds, share};

/// Bytes of a ring, of a lane, and of all of it.
pub const RING: u64 = 256 << 10;
/// See [`RING`].
pub const LANE: u64 = 256 << 10;
/// See [`RING`].
pub const TOTAL: u64 = (DATA + RING).next_multiple_of(4096) + 2 * LANE;
/// Where the geometry is, and behind it and the words the ring of the side that connects.
const HEAD: u64 = 1664 + RING;
const DATA: u64 = HEAD + 768;
const SIDE: u64 = HEAD + 128;
/// Where the words of the side that connects are: consumed, lane wanted for, drained,
/// filled, asleep, state.
pub const WORDS: [u64; 6] = [SIDE, SIDE + 8, SIDE + 64, SIDE + 128, SIDE + 192, SIDE + 256];
/// Of the layout, the records and the start-up.
pub const VERSION: u64 = 8;
const SKIP: u8 = 7;
const NONCE: u64 = 0x5EED_0001;

/// What a HELLO says; to be changed before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    /// The address that it says it has called.
    pub called: SocketAddr,
    /// The address that it says it has.
    pub caller: SocketAddr,
    /// The place in its slab that it says its memory has. There is one.
    pub place: u32,
    /// Version of the layout, in the message and in the memory.
    pub version: u64,
}

/// See the module.
pub struct Intruder {
    sock: PeerSocket,
    memory: File,
    _map: SharedMap,
    at: u64,
}

fn address(out: &mut Vec<u8>, addr: SocketAddr) {
    let (family, ip) = match addr {
        SocketAddr::V4(a) => (4, a.ip().to_ipv6_mapped()),
        SocketAddr::V6(a) => (6, *a.ip()),
    };
    out.push(family);
    out.extend_from_slice(&ip.octets());
    out.extend_from_slice(&u32::from(addr.port()).to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
}

impl Hello {
    /// A good one, for this listener.
    pub fn to(addr: SocketAddr) -> Hello {
        let caller = SocketAddr::new(addr.ip(), 9);
        Hello { called: addr, caller, place: 0, version: VERSION }
    }

    fn emit(&self) -> Vec<u8> {
        let mut out = b"HEXS shm\x01".to_vec();
        out.extend_from_slice(&self.version.to_ne_bytes());
        address(&mut out, self.called);
        address(&mut out, self.caller);
        out.extend_from_slice(&self.place.to_ne_bytes());
        out.extend_from_slice(&[8u32.to_ne_bytes(), 8u32.to_ne_bytes()].concat());
        out
    }
}

impl Intruder {
    /// Calls the listener of this IPv4 address, and says this.
    pub fn call(listener: SocketAddr, hello: &Hello) -> Intruder {
        Intruder::call_with(listener, hello, &[])
    }

    /// The same with private data.
    pub fn call_with(listener: SocketAddr, hello: &Hello, private_data: &[u8]) -> Intruder {
        let name = format!("exs/1/tcp4/{listener}");
        let sock = connect_abstract(name.as_bytes()).expect("a listener");
        let (map, fd) = share(usize::try_from(TOTAL).unwrap()).expect("memory");
        let memory = File::from(fd);
        let magic = u64::from_ne_bytes(*b"EXS shm\0");
        let geometry = [magic, hello.version, RING, LANE, TOTAL, NONCE, NONCE];
        for (i, word) in (0u64..).zip(geometry) {
            memory.write_all_at(&word.to_ne_bytes(), HEAD + 8 * i).unwrap();
        }
        let said = [&hello.emit(), private_data].concat();
        send_with_fds(sock.as_fd(), &said, &[memory.as_fd()]).expect("HELLO");
        Intruder { sock, memory, _map: map, at: 0 }
    }

    /// Sends a message with descriptors.
    pub fn say(&self, message: &[u8], fds: &[&File]) {
        let fds: Vec<_> = fds.iter().map(|f| f.as_fd()).collect();
        // The other side may be gone, which is what it should be.
        let _ = send_with_fds(self.sock.as_fd(), message, &fds);
    }

    /// What the other side says next; None if there is nothing. Empty: it has hung up.
    pub fn hear(&self) -> Option<Vec<u8>> {
        let mut buf = [0; 1024];
        match recv_with_fds(self.sock.as_fd(), &mut buf) {
            Ok((n, _)) => Some(buf[..n].to_vec()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(Vec::new()),
        }
    }

    /// Writes bytes into the memory, wherever.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(TOTAL.saturating_sub(offset)).unwrap();
        self.memory.write_all_at(&bytes[..bytes.len().min(room)], offset).unwrap();
    }

    /// Hands over a record (all behind its tag) that claims to be `lines` lines long, or to
    /// end where the ring does.
    pub fn record(&mut self, body: &[u8], lines: u64) {
        let pos = self.at & (RING - 1);
        let body = &body[..body.len().min(usize::try_from(RING - pos - 8).unwrap())];
        self.write(DATA + pos + 8, body);
        self.write(DATA + pos, &NONCE.wrapping_add(self.at).to_ne_bytes());
        self.at += if body.first() == Some(&SKIP) { RING - pos } else { lines * 64 };
        self.say(b"B", &[]);
    }
}

/// The head of a record, as numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// 0 SEND, 1 long SEND, 2 WRITE, 3 WRITE WITH IMMEDIATE, 4 READ, 5 answer, 6 end, 7 skip.
    pub kind: u8,
    /// 1 solicited, 2 invalidate, 4 by the lane.
    pub flags: u8,
    /// Pieces.
    pub pieces: u8,
    /// Payload in the record.
    pub inline: u32,
    /// Remote address.
    pub raddr: u64,
    /// Payload.
    pub total: u64,
    /// Key.
    pub key: u32,
}

impl Head {
    /// The bytes behind the tag.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind, self.flags, self.pieces, 0];
        out.extend_from_slice(&self.inline.to_ne_bytes());
        if matches!(self.kind, 0 | 5 | 6) {
            return out;
        }
        out.extend_from_slice(&self.raddr.to_ne_bytes());
        out.extend_from_slice(&self.total.to_ne_bytes());
        out.extend_from_slice(&self.key.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        out
    }
}
