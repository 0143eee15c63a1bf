//! F5: shared memory, for two processes on one host, as an RNIC.
//!
//! [`ShmRnic`] is the generic driver (`driver`) over links without a network. A link is a memfd with a
//! ring of records for each direction (`ring`, `record`). Both sides map it. Beside it, a UNIX
//! socket (`control`) serves for the start-up, passes descriptors, and shows each side at once
//! when the other has gone. No name outlives its process: the listener's name is abstract, and
//! vanishes with its socket.
//!
//! The rule of this floor: *only the owner of memory writes it*. A SEND or a WRITE is a record
//! that says where its payload lies. The receiving side checks its own keys and copies the payload
//! once (`rx`). So bounds, rights and the life of a window hold as strictly as on any RNIC. A peer
//! gets no more than a view of memory that it may read (`source`), and a peer of another user not
//! even that.
//!
//! What it promises beyond the trait:
//! - A small record moves with one cache line; no index moves with it.
//! - No system call while both sides are awake. A side that is about to sleep says so in the ring
//!   (`ShmLink::arm`). A message wakes it. Where that happens often, a bit in the doorbell bitmap
//!   and the doorbell of its process do. The same bits find work among many connections.
//! - WRITE WITH IMMEDIATE; the completion of a WRITE says that the peer has the bytes.
//! - Whatever the peer writes into the rings, it can end that connection and do nothing worse.
//!
//! The shape of its data: a queue pair is joined to a link, which may still be starting up. On the
//! listening side, a peer has no link before it has said HELLO. `spec-notes/shm.md` has the layout,
//! the rendezvous and the trust.
//!
//! What it must never know: EXS, its messages, sockets of a program. It reads no clock.

mod answers;
mod attended;
mod calls;
mod consumer_index;
mod control;
mod dial;
mod doorbells;
mod eager;
mod hot_set;
mod link;
mod listen;
mod loan;
mod pending;
mod polled;
mod qp;
mod record;
mod ring;
mod ring_window;
mod rx;
mod serve;
mod slabs;
mod sleep;
mod source;
mod spares;
mod tx;
mod wake_up;

use std::io;

pub use link::ShmLink;

use crate::driver::Driver;
use crate::iwarp::{MAX_INLINE, MAX_READS};
use crate::mem::MAX_SGE;
use crate::rnic::table::IdTable;
use crate::rnic::{Atomics, Caps};
use crate::sys::{RandomSource, effective_uid};

/// An RNIC made of shared memory: see the module's essay.
pub type ShmRnic = Driver<Box<ShmLink>>;

/// The parts that this driver has beside the generic ones.
pub struct ShmParts {
    uid: u32,
    /// True: peers of our own user are trusted.
    trusting: bool,
    pending_peers: IdTable<listen::PendingPeer>,
    /// Connecting peers whose HELLO waits for a free descriptor.
    peers_without_fds: Vec<u32>,
    waiting_calls: calls::WaitingCalls,
    spares: spares::Spares,
    slabs: slabs::Slabs,
    /// The hot set, the oldest first. Every other open link is armed.
    hot: Vec<u32>,
    /// Index in `hot` of the link that `next_eager` looks at next.
    eager_turn: usize,
    /// The link whose thread has just woken.
    woken: Option<u32>,
    /// The link that was the only hot one before the last sleep.
    last_armed: Option<u32>,
    /// Our doorbell bitmap, from the first peer that needs it on; and scratch space for the slots taken
    /// from it.
    bitmap: Option<doorbells::DoorbellBitmap>,
    taken_slots: Vec<u32>,
    peer_bitmaps: doorbells::PeerBitmaps,
    /// Rounds of eager receives, from 1 on: `resume_eager` begins one.
    pause_epoch: u64,
}

impl ShmParts {
    /// Drops the memory that waits for connections, as this process needs the descriptors. True if there was
    /// some: its descriptors are free, unless other connections use them.
    fn free_descriptors(&mut self) -> bool {
        let (spares, slabs) = (self.spares.clear(), self.slabs.clear());
        spares || slabs
    }
}

impl ShmRnic {
    /// Makes an RNIC whose descriptors are registered with `registry` under tokens from
    /// `token_base` up to 2^32 further. Keys are drawn from `random`.
    pub fn new(registry: mio::Registry, token_base: usize, random: RandomSource) -> ShmRnic {
        let parts = ShmParts {
            uid: effective_uid(),
            trusting: true,
            pending_peers: IdTable::new("caller"),
            peers_without_fds: Vec::new(),
            waiting_calls: calls::WaitingCalls::default(),
            spares: spares::Spares::default(),
            slabs: slabs::Slabs::default(),
            hot: Vec::new(),
            eager_turn: 0,
            woken: None,
            last_armed: None,
            bitmap: None,
            taken_slots: Vec::new(),
            peer_bitmaps: doorbells::PeerBitmaps::default(),
            pause_epoch: 1,
        };
        ShmRnic::with_parts(caps(), registry, token_base, random, parts)
    }

    /// An RNIC with keys from the kernel's generator.
    pub fn with_kernel_keys(registry: mio::Registry, token_base: usize) -> io::Result<ShmRnic> {
        Ok(ShmRnic::new(registry, token_base, RandomSource::kernel()?))
    }

    /// Treats every peer as one of another user: shares nothing with it but the rings, and reads
    /// nothing of it but what they hold.
    #[cfg(any(test, feature = "internals"))]
    pub fn distrust_peers(&mut self) {
        self.parts.trusting = false;
    }
}

fn caps() -> Caps {
    Caps {
        name: "shm".to_owned(),
        write_imm: true,
        initiator_first: false,
        read_sink_remote_write: false,
        write_acked: true,
        file_source: false,
        windows: true,
        srq_waits: true,
        small_reads: true,
        pins: false,
        owns_tcp_port: false,
        // The owner's engine executes them, by its processor.
        atomics: Atomics::Host,
        within_host: true,
        doorbell_calls: false,
        random_keys: true,
        pads_private_data: false,
        tells_solicited: true,
        tells_reasons: true,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_msg: record::MAX_MSG,
        max_ord: MAX_READS,
        max_ird: MAX_READS,
        max_private_data: control::MAX_PRIVATE_DATA,
        max_send_wr: 256,
        max_srq_wr: usize::MAX,
        max_receives: 0,
    }
}
