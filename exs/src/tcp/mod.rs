//! F5: the software RNIC: iWARP in user space over the kernel's TCP.
//!
//! [`SoftRnic`] is the generic driver (`driver`) over links of TCP, which every machine has. The
//! engine below (`iwarp`) implements the protocol (MPA, DDP, RDMAP); each link has one. This
//! directory owns everything between the two: sockets and their readiness, and files as a source.
//!
//! The shape of its data: a queue pair is joined to a dial (a TCP connect under way), then to a link
//! (a TCP connection with an engine). A start-up of the listening side is a link from the beginning.
//! Many links to one peer share a TCP connection (`group`).
//!
//! What it promises beyond the trait:
//! - Outbound, a batch of FPDUs leaves in one gathered sendmsg(2) straight from user memory, or from
//!   the page cache by sendfile(2). Inbound, payload is received straight into its destination
//!   (`link`).
//! - No allocation per message, and none that a peer can grow without bound.
//! - Readiness is edge-triggered. Flags remember it, and a short read or write counts as "no more",
//!   which spares the call that only returns EAGAIN. `short_write` finds other causes of a short
//!   write a little later.
//! - An orderly end waits for the peer's, at most ten seconds without progress.
//!
//! What it must never know: EXS, its messages, sockets of a program. It reads no clock: time comes
//! in with the calls, as in the floors below.

mod attend;
mod deferred;
mod dial;
mod directions;
mod eager;
mod files;
mod group;
mod hot;
mod link;
mod listen;
mod loan;
mod qp;
mod queues;
mod serve;
mod short_write;
mod write;

use std::collections::VecDeque;
use std::io;

pub use link::SoftLink;

use crate::driver::Driver;
use crate::iwarp::{MAX_INLINE, MAX_PRIVATE_DATA, MAX_READS, TxPool};
use crate::mem::MAX_SGE;
use crate::rnic::table::IdTable;
use crate::rnic::{Atomics, Caps};
use crate::sys::RandomSource;

/// Bytes that one WR may move.
const MAX_MSG: u64 = 1 << 30;

/// An RNIC made of software: see the module's essay.
pub type SoftRnic = Driver<SoftLink>;

/// The parts that this driver has beside the generic ones.
pub struct SoftParts {
    dials: IdTable<dial::SoftDial>,
    /// Links whose requests wait for an answer. Most are answered within the turn, and only then
    /// registered with the reactor: before that, nothing more comes.
    unwatched: Vec<u32>,
    short_writes: short_write::ShortWrites,
    /// Links that `spin` reads, the next one first.
    hot: VecDeque<hot::HotLink>,
    sweep: serve::Sweep,
    lookahead: Box<[u8]>,
    /// Bytes in `lookahead` that were read and not handled; None: there are none.
    unparsed: Option<eager::UnparsedBytes>,
    /// The place of the link on the ready list that was read ahead last.
    read_at: usize,
    tx_pool: TxPool,
    groups: group::LinkGroups,
    file_pool: files::FileBufferPool,
}

impl SoftRnic {
    /// Makes an RNIC whose sockets are registered with `registry` under tokens from
    /// `token_base` up to 2^32 further. Keys are drawn from `random`.
    pub fn new(registry: mio::Registry, token_base: usize, random: RandomSource) -> SoftRnic {
        let parts = SoftParts {
            dials: IdTable::new("connection attempt"),
            unwatched: Vec::new(),
            short_writes: short_write::ShortWrites::default(),
            hot: VecDeque::new(),
            sweep: serve::Sweep::default(),
            lookahead: vec![0; link::LOOKAHEAD].into_boxed_slice(),
            unparsed: None,
            read_at: 0,
            tx_pool: TxPool::default(),
            groups: group::LinkGroups::default(),
            file_pool: files::FileBufferPool::default(),
        };
        SoftRnic::with_parts(caps(), registry, token_base, random, parts)
    }

    /// Lets all connections that it dials from the `from`th to an address on share a TCP connection,
    /// whatever their parameters say.
    #[cfg(any(test, feature = "internals"))]
    pub fn group_from(&mut self, from: u32) {
        self.parts.groups.set_limit(from);
    }

    /// An RNIC with keys from the kernel's generator.
    pub fn with_kernel_keys(registry: mio::Registry, token_base: usize) -> io::Result<SoftRnic> {
        Ok(SoftRnic::new(registry, token_base, RandomSource::kernel()?))
    }
}

fn caps() -> Caps {
    Caps {
        name: "soft".to_owned(),
        write_imm: false,
        initiator_first: true,
        read_sink_remote_write: true,
        write_acked: false,
        small_reads: true,
        pins: false,
        file_source: true,
        windows: true,
        srq_waits: true,
        owns_tcp_port: true,
        atomics: Atomics::Host,
        within_host: false,
        doorbell_calls: true,
        random_keys: true,
        pads_private_data: false,
        tells_solicited: true,
        tells_reasons: true,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_msg: MAX_MSG,
        max_ord: MAX_READS,
        max_ird: MAX_READS,
        max_private_data: MAX_PRIVATE_DATA,
        max_send_wr: 256,
        max_srq_wr: usize::MAX,
        max_receives: 0,
    }
}
