//! Messages on the UNIX socket of a connection: the start-up, shared regions, wake-ups.
//!
//! ```text
//! connecting side                              listening side
//!   HELLO {addresses, limits, private data}
//!         + the memfd of the slab         -->
//!                                         <--  ACCEPT {limits, private data} or REJECT
//! then, either way, SHARE + memfd, UNSHARE, BELL (wake up), PASS_BITMAP + memfd, doorbell,
//! PASS_DESCRIPTOR + an end of a socket pair
//! ```
//!
//! Each is one message of a SOCK_SEQPACKET socket, so the kernel keeps them apart. A message that
//! cannot be parsed ends the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::ring::VERSION;

/// Bytes of private data in a request or a reply. As many as on the software RNIC, so that data
/// that fit one transport fit the other.
pub(super) const MAX_PRIVATE_DATA: usize = 508;
/// Bytes of the longest message.
pub(super) const MAX_MESSAGE: usize = 1024;
const MAGIC: &[u8; 8] = b"EXS shm\x01";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    Hello {
        /// The address that was connected to.
        called: SocketAddr,
        /// The address of the connecting side.
        caller: SocketAddr,
        /// The place of the connection's memory in its slab.
        place: u32,
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
    Bell,
    /// Brings the doorbell bitmap of the sender's process, and its doorbell. From then on bits take
    /// the place of `Bell` messages.
    PassBitmap {
        /// The connection's bit.
        slot: u32,
    },
    /// Brings the library's end of the socket pair whose other end the sender's program polls. From
    /// then on eager messages may ring there.
    PassDescriptor,
    /// Brings the memfd of a region of the sender, which the receiver may map.
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

impl ControlMessage {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        match self {
            ControlMessage::Hello { called, caller, place, ird, ord, private_data } => {
                w.0.push(b'H');
                w.0.extend_from_slice(MAGIC);
                w.u64(VERSION);
                w.addr(called);
                w.addr(caller);
                w.u32s(&[*place, *ird, *ord]);
                w.0.extend_from_slice(private_data);
            }
            ControlMessage::Accept { ird, ord, private_data } => {
                w.0.push(b'A');
                w.u32s(&[*ird, *ord]);
                w.0.extend_from_slice(private_data);
            }
            ControlMessage::Reject { private_data } => {
                w.0.push(b'N');
                w.0.extend_from_slice(private_data);
            }
            ControlMessage::Bell => w.0.push(b'B'),
            ControlMessage::PassBitmap { slot } => {
                w.0.push(b'P');
                w.u32(*slot);
            }
            ControlMessage::PassDescriptor => w.0.push(b'D'),
            ControlMessage::Share { slot, generation, len } => {
                w.0.push(b'S');
                w.u32s(&[*slot, *generation]);
                w.u64(*len);
            }
            ControlMessage::Unshare { slot, generation } => {
                w.0.push(b'U');
                w.u32s(&[*slot, *generation]);
            }
        }
        w.0
    }

    pub(super) fn parse(raw: &[u8]) -> Option<ControlMessage> {
        let mut r = Reader(raw);
        let message = match r.bytes()? {
            [b'H'] => {
                if r.bytes::<8>()? != *MAGIC || r.u64()? != VERSION {
                    return None;
                }
                ControlMessage::Hello {
                    called: r.addr()?,
                    caller: r.addr()?,
                    place: r.u32()?,
                    ird: r.u32()?,
                    ord: r.u32()?,
                    private_data: r.rest()?,
                }
            }
            [b'A'] => {
                ControlMessage::Accept { ird: r.u32()?, ord: r.u32()?, private_data: r.rest()? }
            }
            [b'N'] => ControlMessage::Reject { private_data: r.rest()? },
            [b'B'] => ControlMessage::Bell,
            [b'P'] => ControlMessage::PassBitmap { slot: r.u32()? },
            [b'D'] => ControlMessage::PassDescriptor,
            [b'S'] => ControlMessage::Share { slot: r.u32()?, generation: r.u32()?, len: r.u64()? },
            [b'U'] => ControlMessage::Unshare { slot: r.u32()?, generation: r.u32()? },
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }
}

/// The abstract name of a listener on `port` of `ip`; None: of every address of the family.
/// Each network namespace has its own abstract names, as it has its own ports.
pub(super) fn name(ip: Option<IpAddr>, v6: bool, scope: u32, port: u16) -> Vec<u8> {
    let text = match ip {
        None => format!("exs/1/tcp{}/*:{port}", if v6 { 6 } else { 4 }),
        Some(IpAddr::V4(ip)) => format!("exs/1/tcp4/{ip}:{port}"),
        Some(IpAddr::V6(ip)) => format!("exs/1/tcp6/[{ip}%{scope}]:{port}"),
    };
    text.into_bytes()
}

/// An address, with an IPv4-mapped IPv6 address turned into IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(a) => match a.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), a.port()),
            None => SocketAddrV6::new(*a.ip(), a.port(), 0, a.scope_id()).into(),
        },
        v4 => v4,
    }
}

/// An address as a socket of the family of `like` reports it: on an IPv6 socket an IPv4 address is
/// `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2), on every transport.
pub(super) fn of_family(addr: SocketAddr, like: &SocketAddr) -> SocketAddr {
    match (addr, like) {
        (SocketAddr::V4(a), SocketAddr::V6(_)) => {
            SocketAddr::new(a.ip().to_ipv6_mapped().into(), a.port())
        }
        (other, _) => other,
    }
}

/// The unspecified address of the family of `like`.
pub(super) fn unspecified(like: &SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn emitted_messages_parse() {
        let private_data = vec![3; MAX_PRIVATE_DATA];
        let called = "127.0.0.1:80".parse().unwrap();
        let caller = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 4).into();
        for m in [
            ControlMessage::Hello {
                called,
                caller,
                place: 5,
                ird: 1,
                ord: 2,
                private_data: private_data.clone(),
            },
            ControlMessage::Accept { ird: 3, ord: 4, private_data: private_data.clone() },
            ControlMessage::Reject { private_data },
            ControlMessage::Bell,
            ControlMessage::PassBitmap { slot: 4 },
            ControlMessage::PassDescriptor,
            ControlMessage::Share { slot: 1, generation: 2, len: 3 },
            ControlMessage::Unshare { slot: 1, generation: 2 },
        ] {
            let raw = m.emit();
            assert!(raw.len() <= MAX_MESSAGE);
            assert_eq!(ControlMessage::parse(&raw), Some(m.clone()));
            let long = [&raw[..], &[0; MAX_PRIVATE_DATA + 1]].concat();
            assert_eq!(ControlMessage::parse(&long), None, "{m:?}");
            if !matches!(
                m,
                ControlMessage::Hello { .. }
                    | ControlMessage::Accept { .. }
                    | ControlMessage::Reject { .. }
            ) {
                assert_eq!(ControlMessage::parse(&raw[..raw.len() - 1]), None, "{m:?}");
            }
        }
    }

    #[test]
    fn each_address_has_its_own_name() {
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
            let _ = ControlMessage::parse(&raw);
        }
    }
}
