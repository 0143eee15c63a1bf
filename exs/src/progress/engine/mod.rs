//! The engine: all state of a context, in parts that own it, and the loop that moves them.
//!
//! The thread that holds the lock of the context moves the engine. No code of it blocks or sleeps.
//!
//! **The parts.** Each field of [`Engine`] is a part, apart from a few numbers. A part owns its
//! fields, and its methods take what else they need as arguments.
//!
//! | part | owns | files |
//! |---|---|---|
//! | `devices` | the RNICs with their domains, queues and pools; the search for RDMA devices; the peers that did not answer; room for one message | `devices`, `device`, `domain`, `receives`, `slots`, `extra`, `memory`, `files`, `unreachable` |
//! | `sockets` | the sockets with their sessions; the list of marked sockets; lazy doorbells; the sockets of queue pairs and listeners; the sums of what connections counted | `sockets`, `sock` (of `binding`, `connection`, `exports`, `holder`), `queries`, `tally`, `inspect` |
//! | `ops` | what each event must return; the groups of sends of several parts | `ops`, `parts` |
//! | `timers` | for each socket the time at which the engine must look after it | `timers` |
//! | `sweeps` | the connections that threads and tasks attend, or have left | `attend`, `polled`, `tasks` |
//! | `delivery` | events that are kept apart for a thread; the threads to wake; the news of watches | `delivery`, `watch` |
//! | `plain` | ordinary kernel sockets | `crate::plain`, `kernel` |
//! | `neighbours` | what goes to other shards | `spread` |
//! | `released` | what other threads leave for the engine, under locks of its own | `released` |
//!
//! A device and a socket are objects, too: a method of [`Sock`](sock::Sock) that needs its device
//! gets it as an argument, and a device never sees a socket. It calls a closure instead.
//!
//! **What crosses parts** is in `impl Engine`, which owns no rule of a part:
//! - calls that post operations: `post`, `eager` (the eager path, with `answers`), `batch` (several at
//!   once), `parts`, `onesided` (exports, READ, WRITE), `polls`, `kernel`;
//! - connections: `dial` (attempts by one device after the other), `hosts` (names and races between
//!   addresses), `listen`, `cm` (events of the RNICs
//!   about connections), `startups` and `accepts` (on their way to the program), `spread`, `branch` and
//!   `rehome` (other shards);
//! - the turn below: this file, `life` (timers, ends), `outlook` (what threads without the lock see).
//!
//! The state of a call (its time, whether its doorbells may wait, whether it took the eager path) is a
//! value, [`Call`](super::call::Call), which the context makes and passes down.
//!
//! **A turn** (`run`) has this order:
//! 1. work that other threads have left (`collect_released`);
//! 2. small messages, straight out of the devices (`skim`);
//! 3. progress of the devices and of kernel sockets;
//! 4. timers that are due, after the messages that have arrived beside them; sweeps;
//! 5. `settle`: as long as there are marked sockets, `pump` looks after each. It drives the session,
//!    rings or puts off the doorbell, delivers the events of operations that have ended, and updates
//!    polls, news, attendance and timer. When none is marked, the engine takes the events and
//!    completions of the devices, which mark others;
//! 6. lazy doorbells.
//!
//! A call does its own work and then step 5, with doorbells that may wait for the next leader. A call
//! on the eager path that marks no socket ends at once.

mod accepts;
mod answers;
mod atomic;
mod attend;
mod batch;
mod binding;
mod branch;
mod cm;
mod connection;
mod delivery;
mod device;
mod devices;
mod dial;
mod domain;
mod eager;
mod exports;
mod extra;
mod figures;
mod files;
mod holder;
mod hosts;
mod inspect;
mod kernel;
mod left;
mod life;
mod listen;
mod memory;
mod onesided;
mod ops;
mod outlook;
mod parts;
mod polled;
mod polls;
mod post;
mod queries;
mod receives;
mod rehome;
mod released;
mod slots;
mod sock;
mod sockets;
mod spread;
mod startups;
mod tally;
#[cfg(feature = "tokio")]
mod tasks;
mod timers;
mod unreachable;
mod watch;

use std::sync::Arc;

use self::delivery::Delivery;
use self::device::Registrar;
use self::devices::DeviceTable;
pub(crate) use self::ops::Op;
use self::ops::OpTable;
use self::sockets::SocketTable;
use self::spread::Neighbours;
use self::timers::TimerTable;
use super::Error;
use super::call::Ringing;
use super::shards::Shard;
use crate::ids::OpId;
use crate::plain::Plain;
use crate::rnic::{Ready, Rnic, Wc, WcOp, WcStatus};
use crate::session::{After, Counters, Done, Doorbell};
use crate::time::Time;

pub(super) use self::attend::LOOP_IS_LATE;
pub(in crate::progress) use self::attend::PassWait;
pub(crate) use self::batch::Posting;
pub(super) use self::branch::Branching;
pub(crate) use self::branch::ListenEnd;
pub(super) use self::devices::{DeviceSet, Verbs};
pub(super) use self::eager::ALONE;
#[cfg(feature = "tokio")]
pub(crate) use self::eager::TaskSend;
pub(super) use self::figures::add as add_counters;
pub(super) use self::inspect::{ListenerFigures, SocketFigures};
pub(super) use self::kernel::KERNEL_TOKENS;
#[cfg(feature = "tokio")]
pub(super) use self::left::StreamRun;
pub use self::onesided::{ExportId, Remote};
pub(super) use self::outlook::{Outlook, ShownOutlook};
pub use self::parts::Part;
pub(crate) use self::parts::Short;
pub use self::polled::RecvAtOnce;
pub(crate) use self::polled::Ringer;
pub use self::post::FileSend;
pub(crate) use self::post::{OwnTicket, Ticket};
pub(super) use self::rehome::Rehomed;
pub(super) use self::released::Released;
pub use self::sockets::SockId;
pub(super) use self::spread::Parcel;
pub(super) use self::tally::{DeviceTotals, ShardTotals};
pub use self::watch::{LoopId, Watch};

/// The rounds of `settle` before the thread releases the lock for a moment.
const ROUNDS: usize = 64;
/// The most completions that the engine takes from a device at a time.
const COMPLETIONS: usize = 256;
/// Tokens of the reactor that belong to one device.
pub(super) const TOKENS_PER_DEVICE: usize = 1 << 32;

/// All state of a context. Each field is a part, see the head of this file.
pub(crate) struct Engine {
    pub(crate) devices: DeviceTable,
    pub(crate) sockets: SocketTable,
    ops: OpTable,
    timers: TimerTable,
    sweeps: attend::Sweeps,
    pub(super) delivery: Delivery,
    /// Ordinary kernel sockets.
    pub(super) plain: Plain,
    neighbours: Neighbours,
    released: Arc<Released>,
    /// The outlook that threads without the lock were shown last.
    told: Outlook,
    /// The runs so far.
    runs: u64,
    /// `settle` has stopped with sockets still marked, or a device with messages left.
    more: bool,
}

impl Engine {
    /// An engine with the software RNIC. It opens the RDMA devices when it needs them.
    pub(super) fn new(
        (shard, context): (Shard, u64),
        released: Arc<Released>,
        (soft, shm, plain): (Box<dyn Rnic>, Option<Box<dyn Rnic>>, Plain),
        verbs: Verbs,
    ) -> Engine {
        let registrar = Registrar::new(context, Arc::clone(&released) as _);
        Engine {
            devices: DeviceTable::new(registrar, soft, shm, verbs),
            sockets: SocketTable::default(),
            ops: OpTable::default(),
            timers: TimerTable::default(),
            sweeps: attend::Sweeps::default(),
            delivery: Delivery::default(),
            plain,
            neighbours: Neighbours::new(shard),
            released,
            told: Outlook::default(),
            runs: 0,
            more: false,
        }
    }

    // ---- progress ------------------------------------------------------------

    /// A device, or a kernel socket, became ready.
    pub(super) fn handle_ready(&mut self, token: usize, ready: Ready) {
        if token >= KERNEL_TOKENS {
            return self.plain.handle_ready(token, ready);
        }
        self.devices.handle_ready(token, ready);
    }

    /// Moves all work that can be moved. `spin`: also looks where the reactor has reported nothing.
    /// True if there is more to do at once.
    pub(super) fn run(&mut self, now: Time, spin: bool, ringing: Ringing) -> bool {
        self.runs += 1;
        let overdue = self.collect_released(now);
        self.devices.hold_writes();
        self.skim(now);
        if spin && self.devices.spin(now) {
            self.skim(now);
        }
        if spin {
            self.plain.spin();
        }
        let mut more = self.devices.progress(now);
        more |= self.plain.progress(now);
        self.fire_timers(now);
        self.attendances().sweep(now);
        self.settle(now, ringing);
        self.give_up_overdue(&overdue, now);
        self.ring_doorbells(now);
        self.devices.release_writes();
        std::mem::take(&mut self.more) || more || self.sockets.has_lazy()
    }

    /// Looks after marked sockets until none is left.
    pub(super) fn settle(&mut self, now: Time, mut ringing: Ringing) {
        for _ in 0..ROUNDS {
            if !self.sockets.has_marked() {
                self.reap(now);
            }
            if !self.sockets.has_marked() {
                return;
            }
            let mut marked = self.sockets.take_marked();
            for index in marked.drain(..) {
                if self.sockets.unmark(index) {
                    self.pump(index, now, &mut ringing);
                }
            }
            self.sockets.reuse(marked);
        }
        self.more = true;
    }

    /// True if a thread should call `run` soon, whatever the deadlines say.
    pub(super) fn wants_run(&self) -> bool {
        self.more || self.plain.has_work() || self.released.has_any()
    }

    /// Rings the doorbells that wait.
    pub(super) fn ring_doorbells(&mut self, now: Time) {
        if !self.sockets.has_lazy() {
            return;
        }
        self.sockets.ring_lazy(|device, qp| self.devices[device].rnic.flush(qp, now));
        self.settle(now, Ringing::AtOnce);
    }

    /// Takes the events and completions of all devices, and of the kernel sockets.
    fn reap(&mut self, now: Time) {
        self.reap_kernel(now);
        for device in 0..self.devices.len() {
            self.reap_device(device, now);
        }
    }

    /// Takes the events of a device, then its completions: a connection is established before its
    /// messages come. True if there was anything.
    fn reap_device(&mut self, device: usize, now: Time) -> bool {
        let mut any = false;
        while let Some(event) = self.devices[device].rnic.poll_event() {
            self.handle_event(device, event, now);
            any = true;
        }
        self.reap_completions(device, now) | any
    }

    /// Takes the completions of a device. True if there were any.
    fn reap_completions(&mut self, device: usize, now: Time) -> bool {
        let (mut wcs, mut any) = (self.devices.take_wcs(), false);
        loop {
            wcs.clear();
            // The loop goes on until no completion is left, since to handle one may bring others. A
            // thread that goes to sleep asks only for completions that are still to come.
            if self.devices[device].poll_cq(COMPLETIONS, &mut wcs) == 0 {
                break;
            }
            any = true;
            for wc in &wcs {
                self.handle_wc(device, wc, now);
            }
        }
        self.devices.reuse(wcs);
        any
    }

    /// Handles a completion: gives it to its session, and marks the socket.
    fn handle_wc(&mut self, device: usize, wc: &Wc, now: Time) {
        let mut wc = *wc;
        let index = self.sockets.of_qp(device, wc.qp);
        let recv = matches!(wc.op, WcOp::Recv | WcOp::RecvWriteImm);
        let d = &mut self.devices[device];
        if !recv {
            d.end_file(&mut wc);
        }
        if let Some(index) = index
            && let s = &mut self.sockets[index]
            && let (Some(session), domain) = (s.session.as_mut(), s.place.domain)
        {
            if recv {
                s.burst.end();
                d.note_message(wc.qp, &mut s.busy);
            }
            match (recv, wc.op, wc.imm) {
                (false, ..) => session.handle_wc(now, &wc),
                (true, WcOp::RecvWriteImm, Some(imm)) if wc.status == WcStatus::Success => {
                    session.handle_write_imm(now, imm);
                }
                (true, ..) if wc.status == WcStatus::Success => {
                    let slot = d.slot(wc.wr_id, wc.byte_len);
                    let after = slot.map(|slot| {
                        session.handle_message(now, &mut d.port(domain, wc.qp, now), &slot)
                    });
                    self.devices[device].return_slot(wc.wr_id);
                    return self.look_after(index, after.unwrap_or(After::NeedsDrive), now);
                }
                // A failed receive ends the connection, and the report of that end follows.
                _ => {}
            }
            self.sockets.mark(index);
        }
        if recv {
            self.devices[device].return_slot(wc.wr_id);
        } else {
            self.devices[device].wake_file_waiters(|qp| self.sockets.mark_qp(device, qp));
        }
    }

    /// Looks after one socket: drives its session, rings or puts off the doorbell, and reports
    /// operations that have ended. Then updates the socket's polls, watch, attendance and timer,
    /// and frees it if it is over.
    fn pump(&mut self, index: u32, now: Time, ringing: &mut Ringing) {
        self.recall_at(index, now);
        let s = &mut self.sockets[index];
        if let (Some(session), Some(qp)) = (s.session.as_mut(), s.qp) {
            let d = &mut self.devices[s.place.device];
            let bell = session.drive(now, &mut d.port(s.place.domain, qp, now));
            if d.staging.wants() {
                let released = Arc::clone(&self.released);
                let device = s.place.device;
                d.staging.start(move |came| released.fetched(device, came));
            }
            match ringing.apply(bell) {
                Doorbell::Now => d.rnic.flush(qp, now),
                Doorbell::Soon => self.sockets.ring_later(index),
                Doorbell::Next => self.sockets.ring_next(index),
                Doorbell::Idle | Doorbell::Piggyback => {}
            }
            while let Some(done) = self.sockets[index].session.as_mut().and_then(|s| s.poll_done())
            {
                self.finish(done, now);
            }
        }
        self.check_polls(index);
        self.delivery.news.check(index, &mut self.sockets[index]);
        self.check_attended(index);
        self.timers.update(index, &mut self.sockets[index]);
        self.tear_down(index);
    }

    /// An operation of a session has ended: reports it, and returns its memory.
    fn finish(&mut self, done: Done, now: Time) {
        let Some(op) = self.ops.remove(done.op) else { return };
        self.release_memory(done.op, &op, done.bytes);
        if op.group != 0 {
            let result = done.result.map_err(Error::Op);
            return self.finish_part(op.group, op.bufs, done.bytes, result, now);
        }
        let (queue, mut event) = op.into_event();
        event.bytes = done.bytes;
        event.total = done.total;
        event.eof = done.eof;
        event.error = done.result.err().map(|e| Box::new(Error::Op(e)));
        self.delivery.deliver(&queue, event);
    }

    /// Returns the memory of an operation that has ended and moved `bytes`.
    #[inline]
    fn release_memory(&mut self, id: OpId, op: &Op, bytes: u64) {
        let Some(kept) = self.ops.take_kept(id, op) else { return };
        // An operation ends before its socket does, so the socket is there.
        if let Some((place, qp)) = self.sockets.get(op.sock).map(|s| (s.place, s.qp)) {
            self.devices[place.device].release((place.domain, qp), kept, &op.bufs, bytes);
        }
    }

    /// Ends an operation that no session knows.
    fn complete(&mut self, id: OpId, result: Result<(), Error>) {
        if let Some(op) = self.ops.remove(id) {
            self.release_memory(id, &op, 0);
            let (queue, mut event) = op.into_event();
            event.error = result.err().map(Box::new);
            self.delivery.deliver(&queue, event);
        }
    }

    // ---- figures -----------------------------------------------------------------

    /// The counters of all sockets, including those that are gone, and (events, runs).
    pub(crate) fn counters_of_all(&mut self, now: Time) -> (Counters, u64, u64) {
        self.recall_all(now);
        (self.sockets.counters(), self.delivery.count(), self.runs)
    }

    /// The events delivered, and the runs.
    pub(in crate::progress) fn events_and_runs(&self) -> (u64, u64) {
        (self.delivery.count(), self.runs)
    }

    /// The operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.ops.len()
    }
}
