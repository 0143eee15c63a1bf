//! Registered memory, work requests and parameters that most tests use.

use std::sync::Arc;
use std::time::Duration;

use exs::mem::{Key, Region};
use exs::rnic::{ConnParam, ListenOpts, Mr, SendOp, SendWr, Sge};

use super::world::{Harness, World};

/// Memory that is registered.
pub struct Buf {
    /// The bytes.
    pub region: Arc<Region>,
    /// The registration.
    pub mr: Mr,
}

impl Buf {
    /// The whole of it.
    pub fn sge(&self) -> Sge {
        self.part(0, self.region.len())
    }

    /// A part of it.
    pub fn part(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, len: len as u64, lkey: self.mr.key }
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.region.addr()
    }

    /// Its content.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.region.len()];
        let whole = self.region.segment(0, out.len()).expect("the whole region");
        whole.read_at(0, &mut out);
        out
    }

    /// Some bytes of it.
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        self.region.segment(offset, N).expect("inside").read_at(0, &mut out);
        out
    }

    /// Puts bytes into it.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.region.segment(offset, bytes.len()).expect("inside").write_at(0, bytes);
    }
}

/// Bytes that differ everywhere and by seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Connection parameters that most tests use.
pub fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        private_data,
        ird: 8,
        ord: 8,
        timeout: Duration::from_secs(50),
        crc: false,
        no_delay: true,
        bind: None,
        path: exs::rnic::PathAttr::default(),
        grouping: exs::rnic::GroupRule::default(),
    }
}

/// Listening options that most tests use.
pub fn listen_opts() -> ListenOpts {
    let handshake_timeout = Duration::from_secs(50);
    let path = exs::rnic::PathAttr::default();
    let (v6_only, port_held, groups) = (false, false, exs::rnic::TakesGroups::Yes);
    ListenOpts { backlog: 256, v6_only, handshake_timeout, port_held, path, groups }
}

/// A plain SEND of registered memory.
pub fn send_wr(wr_id: u64, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op: SendOp::Send { invalidate: None, solicited: false },
        head: &[],
        sges,
        file: None,
        inline: false,
        signaled: true,
    }
}

/// A WRITE of registered memory.
pub fn write_wr(wr_id: u64, sges: &[Sge], raddr: u64, rkey: Key) -> SendWr<'_> {
    SendWr { op: SendOp::Write { raddr, rkey }, ..send_wr(wr_id, sges) }
}

/// A READ into registered memory.
pub fn read_wr(wr_id: u64, sges: &[Sge], raddr: u64, rkey: Key) -> SendWr<'_> {
    SendWr { op: SendOp::Read { raddr, rkey }, ..send_wr(wr_id, sges) }
}

impl<H: Harness> World<H> {
    /// Parts of memory that lie behind each other, as segments of a work request. On a device that takes
    /// fewer segments they are one.
    pub fn segments(&self, node: usize, parts: &[Sge]) -> Vec<Sge> {
        if parts.len() <= self.caps(node).max_sge {
            return parts.to_vec();
        }
        vec![Sge { len: parts.iter().map(|part| part.len).sum(), ..parts[0] }]
    }
}
