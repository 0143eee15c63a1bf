//! Messages on the UNIX socket of a connection: the start-up, shared regions, bells.
//!
//! ```text
//! connecting side                              listening side
//!   HELLO {addresses, limits, private data}
//!         + the memfd of the rings        -->
//!                                         <--  ACCEPT {limits, private data} or REJECT
//!   READY                                 -->
//! then, either way, SHARE + memfd, UNSHARE, BELL (wake up), PASS_BOARD + memfd, eventfd
//! ```
//!
//! Each is one message of a SOCK_SEQPACKET socket: the kernel keeps them apart. What
//! cannot be parsed ends the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::ring::VERSION;

/// Private data that fit a request or a reply (as many as on the software RNIC, so that
/// what fits one road fits the other).
pub(super) const MAX_PRIVATE_DATA: usize = 508;
/// The longest message.
pub(super) const MAX_MESSAGE: usize = 1024;
const MAGIC: &[u8; 8] = b"EXS shm\x01";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Hello {
        /// The address that was called, and the caller's.
        called: SocketAddr,
        caller: SocketAddr,
        ird: u32,
        ord: u32,
        private_data: Vec<u8>,
    },
    Accept {
        ird: u32,
        ord: u32,
        private_data: Vec<u8>,
    },
    Reject {
        private_data: Vec<u8>,
    },
    Ready,
    Bell,
    /// The sender's board comes along, and the eventfd that goes with it: marks take the place
    /// of `Bell`s.
    PassBoard {
        /// Where the connection is marked.
        slot: u32,
    },
    /// A memfd comes along.
    Share {
        slot: u32,
        generation: u32,
        len: u64,
    },
    Unshare {
        slot: u32,
        generation: u32,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_ne_bytes());
    }
    fn u32s(&mut self, all: &[u32]) {
        all.iter().for_each(|v| self.u32(*v));
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_ne_bytes());
    }
    fn addr(&mut self, addr: &SocketAddr) {
        let (family, ip, scope) = match addr {
            SocketAddr::V4(a) => (4u8, a.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(a) => (6, *a.ip(), a.scope_id()),
        };
        self.0.push(family);
        self.0.extend_from_slice(&ip.octets());
        self.u32(addr.port().into());
        self.u32(scope);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }
    fn addr(&mut self) -> Option<SocketAddr> {
        let [family] = self.bytes()?;
        let ip = Ipv6Addr::from(self.bytes::<16>()?);
        let port = u16::try_from(self.u32()?).ok()?;
        let scope = self.u32()?;
        match (family, ip.to_ipv4_mapped()) {
            (4, Some(ip)) => Some(SocketAddr::new(ip.into(), port)),
            (6, None) => Some(SocketAddrV6::new(ip, port, 0, scope).into()),
            _ => None,
        }
    }
    fn rest(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.0);
        (rest.len() <= MAX_PRIVATE_DATA).then(|| rest.to_vec())
    }
}

impl Message {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        match self {
            Message::Hello { called, caller, ird, ord, private_data } => {
                w.0.push(b'H');
                w.0.extend_from_slice(MAGIC);
                w.u64(VERSION);
                w.addr(called);
                w.addr(caller);
                w.u32s(&[*ird, *ord]);
                w.0.extend_from_slice(private_data);
            }
            Message::Accept { ird, ord, private_data } => {
                w.0.push(b'A');
                w.u32s(&[*ird, *ord]);
                w.0.extend_from_slice(private_data);
            }
            Message::Reject { private_data } => {
                w.0.push(b'N');
                w.0.extend_from_slice(private_data);
            }
            Message::Ready => w.0.push(b'R'),
            Message::Bell => w.0.push(b'B'),
            Message::PassBoard { slot } => {
                w.0.push(b'P');
                w.u32(*slot);
            }
            Message::Share { slot, generation, len } => {
                w.0.push(b'S');
                w.u32s(&[*slot, *generation]);
                w.u64(*len);
            }
            Message::Unshare { slot, generation } => {
                w.0.push(b'U');
                w.u32s(&[*slot, *generation]);
            }
        }
        w.0
    }

    pub(super) fn parse(raw: &[u8]) -> Option<Message> {
        let mut r = Reader(raw);
        let message = match r.bytes()? {
            [b'H'] => {
                if r.bytes::<8>()? != *MAGIC || r.u64()? != VERSION {
                    return None;
                }
                Message::Hello {
                    called: r.addr()?,
                    caller: r.addr()?,
                    ird: r.u32()?,
                    ord: r.u32()?,
                    private_data: r.rest()?,
                }
            }
            [b'A'] => Message::Accept { ird: r.u32()?, ord: r.u32()?, private_data: r.rest()? },
            [b'N'] => Message::Reject { private_data: r.rest()? },
            [b'R'] => Message::Ready,
            [b'B'] => Message::Bell,
            [b'P'] => Message::PassBoard { slot: r.u32()? },
            [b'S'] => Message::Share { slot: r.u32()?, generation: r.u32()?, len: r.u64()? },
            [b'U'] => Message::Unshare { slot: r.u32()?, generation: r.u32()? },
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }
}

/// The abstract name of a listener on `ip` (None: on every address of the family) and
/// `port`. Abstract names, like ports, are a network namespace's own.
pub(super) fn name(ip: Option<IpAddr>, v6: bool, scope: u32, port: u16) -> Vec<u8> {
    let text = match ip {
        None => format!("exs/1/tcp{}/*:{port}", if v6 { 6 } else { 4 }),
        Some(IpAddr::V4(ip)) => format!("exs/1/tcp4/{ip}:{port}"),
        Some(IpAddr::V6(ip)) => format!("exs/1/tcp6/[{ip}%{scope}]:{port}"),
    };
    text.into_bytes()
}

/// An address without the detour over IPv6 that IPv4 may take.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(a) => match a.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), a.port()),
            None => SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id()).into(),
        },
        v4 => v4,
    }
}

/// An address as a socket of IPv6 has it, if `like` is one: IPv4 is `::ffff:a.b.c.d` there
/// (RFC 4291 section 2.5.5.2), on every road.
pub(super) fn of_family(addr: SocketAddr, like: &SocketAddr) -> SocketAddr {
    match (addr, like) {
        (SocketAddr::V4(a), SocketAddr::V6(_)) => {
            SocketAddr::new(a.ip().to_ipv6_mapped().into(), a.port())
        }
        (other, _) => other,
    }
}

/// No address at all, of the family of `like`.
pub(super) fn unspecified(like: &SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let private_data = vec![3; MAX_PRIVATE_DATA];
        let called = "127.0.0.1:80".parse().unwrap();
        let caller = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 4).into();
        for m in [
            Message::Hello { called, caller, ird: 1, ord: 2, private_data: private_data.clone() },
            Message::Accept { ird: 3, ord: 4, private_data: private_data.clone() },
            Message::Reject { private_data },
            Message::Ready,
            Message::Bell,
            Message::PassBoard { slot: 4 },
            Message::Share { slot: 1, generation: 2, len: 3 },
            Message::Unshare { slot: 1, generation: 2 },
        ] {
            let raw = m.emit();
            assert!(raw.len() <= MAX_MESSAGE);
            assert_eq!(Message::parse(&raw), Some(m.clone()));
            let long = [&raw[..], &[0; MAX_PRIVATE_DATA + 1]].concat();
            assert_eq!(Message::parse(&long), None, "{m:?}");
            if !matches!(m, Message::Hello { .. } | Message::Accept { .. } | Message::Reject { .. })
            {
                assert_eq!(Message::parse(&raw[..raw.len() - 1]), None, "{m:?}");
            }
        }
    }

    #[test]
    fn names_tell_addresses_apart() {
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:5".parse().unwrap();
        assert_eq!(canonical(mapped), "10.0.0.1:5".parse().unwrap());
        let (a, b) = ("10.0.0.1".parse().ok(), "::1".parse().ok());
        let mut all = vec![
            name(a, false, 0, 5),
            name(b, true, 0, 5),
            name(b, true, 1, 5),
            name(None, false, 0, 5),
            name(None, true, 0, 5),
            name(None, true, 0, 6),
        ];
        assert!(all.iter().all(|n| n.len() < 100));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(raw in prop::collection::vec(any::<u8>(), 0..700)) {
            let _ = Message::parse(&raw);
        }
    }
}
