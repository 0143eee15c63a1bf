//! The figures of the process, for readers outside of it.
//!
//! A process that *offers* its figures listens on a Unix socket in a directory that readers know
//! (`place`, `wanted`). A thread of its own serves that socket (`serve`). Each connection to it gets one
//! *snapshot*: lines of JSON (`text`), of which the first is about the process and each other about
//! a socket: those of EXS, and kernel sockets with operations in flight. A reader computes rates from two
//! snapshots.
//!
//! What this part promises:
//! - Traffic does not wait for readers. A snapshot copies the figures of some sockets at a time, of one
//!   shard at a time, and the engine's lock is free in between. The text is made without the lock. A
//!   process that does not offer its figures has no thread and no state for it.
//! - Only processes of the same user and of root can read. The directory and the socket are the
//!   user's alone, and the kernel names the user of each reader (SO_PEERCRED). Abstract names would have no rights.
//! - A reader that stalls is dropped, and keeps no other reader waiting. What readers send is ignored.
//! - A process starts whether or not it can offer its figures. Where the environment asks for the
//!   offer and it fails, a warning says so.
//! - exit(3) removes the socket. The next process that offers its figures there, or a reader, removes
//!   what a killed process has left behind.
//!
//! The child of a fork(2) has no thread to serve readers, and must not use EXS. A program that exec(2)
//! runs offers its own figures under the same process id, in place of the old ones.
//!
//! What it must never know: the types that a program uses.

mod json;
mod place;
mod serve;
mod text;
mod wanted;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::Error;
use super::engine::{DeviceTotals, ShardTotals, add_counters};
use super::shards;
use crate::session::Counters;
use crate::sys::ProcessLock;

pub use self::place::directories;
pub(super) use self::wanted::Offer;

/// The slots of a shard's table that one look under its lock visits.
const PIECE: u32 = 64;

/// The socket that this process offers.
struct Offered {
    process: u32,
    path: PathBuf,
}

static OFFERED: OnceLock<Offered> = OnceLock::new();
/// Held by the thread that begins the offer.
static BEGINS: ProcessLock<()> = ProcessLock::new(());
/// Held by the thread that walks over all sockets.
static WALKS: ProcessLock<()> = ProcessLock::new(());

/// Offers the figures of this process, unless it does so already. Returns the path of the socket.
///
/// # Errors
/// [`Error::Start`] if EXS cannot start, and [`Error::Stats`] if there is no place for the socket.
pub(crate) fn offer() -> Result<&'static Path, Error> {
    shards::first()?;
    let wanted = Offer::of_environment().unwrap_or_default();
    begin(wanted.directory()).map_err(|e| Error::Stats {
        why: e.to_string(),
        errno: e.raw_os_error().unwrap_or(libc::EACCES),
    })
}

/// Offers the figures of this process if the environment asks for it. The process makes its first
/// shard.
pub(super) fn offer_by_environment() {
    // The call that makes the first shard has reported an invalid value.
    let Ok(wanted) = Offer::of_environment() else { return };
    if wanted != Offer::Off
        && let Err(e) = begin(wanted.directory())
    {
        crate::trace::warn!("the figures of this process are not offered to readers: {e}");
    }
}

fn begin(directory: Option<&Path>) -> io::Result<&'static Path> {
    let _one = BEGINS.lock();
    if let Some(offered) = OFFERED.get() {
        return Ok(&offered.path);
    }
    let (listener, path) = place::listen(directory)?;
    serve::start(listener).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
    crate::trace::info!("the figures of this process are offered at {}", path.display());
    Ok(&OFFERED.get_or_init(|| Offered { process: std::process::id(), path }).path)
}

/// The process ends: removes its socket.
pub(super) fn withdraw() {
    // After a fork(2), the socket is the parent's.
    if let Some(offered) = OFFERED.get().filter(|o| o.process == std::process::id()) {
        let _ = std::fs::remove_file(&offered.path);
    }
}

/// A snapshot of the process, as readers get it.
pub(crate) fn snapshot() -> String {
    let (mut snapshot, mut text) = (text::Snapshot::default(), String::new());
    while snapshot.next_piece(&mut text) {}
    text
}

/// What the sockets and devices of the process have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// The sockets that are there now.
    pub(crate) sockets: u64,
    /// Those of them that listen.
    pub(crate) listeners: u64,
    /// Kernel sockets with operations in flight.
    pub(crate) kernel_sockets: u64,
    /// Each device of the process. The shards' instances of a device are one here.
    pub(crate) devices: Vec<DeviceTotals>,
    /// The sum over the devices.
    pub(crate) counters: Counters,
    /// Events delivered.
    pub(crate) events: u64,
    /// Runs of the engines.
    pub(crate) runs: u64,
    /// How many times a thread slept in a reactor or for its own connection.
    pub(crate) sleeps: u64,
    /// Operations in flight now.
    pub(crate) in_flight: u64,
    /// The shards that were made.
    pub(crate) shards: u64,
}

impl Totals {
    fn add(&mut self, shard: ShardTotals) {
        self.sockets += shard.sockets;
        self.listeners += shard.listeners;
        for device in shard.devices {
            add_counters(&mut self.counters, &device.counters);
            let known = self
                .devices
                .iter_mut()
                .find(|d| (d.transport, &d.device) == (device.transport, &device.device));
            match known {
                Some(sum) => {
                    sum.connections += device.connections;
                    add_counters(&mut sum.counters, &device.counters);
                }
                None => self.devices.push(device),
            }
        }
    }
}

/// The totals of the process. The walk over the sockets releases the lock of a shard again and again.
pub(crate) fn totals() -> Totals {
    let _one = WALKS.lock();
    let mut totals = Totals::default();
    for context in shards::all() {
        context.call(|engine, now| engine.begin_walk(now));
        let shard = loop {
            if let Some(shard) = context.look(|engine| engine.walk(PIECE)) {
                break shard;
            }
        };
        totals.add(shard);
        context.look(|engine| {
            let (events, runs) = engine.events_and_runs();
            totals.events += events;
            totals.runs += runs;
            totals.in_flight += engine.in_flight() as u64;
            totals.kernel_sockets += engine.kernel_sockets() as u64;
        });
        totals.sleeps += context.sleeps();
        totals.shards += 1;
    }
    totals
}
