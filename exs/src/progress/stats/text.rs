//! A snapshot as lines of JSON, made a piece at a time.
//!
//! The format has a version, `format`, in the first line. A version gets more fields, and never
//! another meaning of a field. `docs/book/src/guide/watching.md` describes the lines to users.

use std::time::{SystemTime, UNIX_EPOCH};

use super::json::Object;
use super::{PIECE, Totals, totals};
use crate::plain::{KernelFigures, Kind};
use crate::progress::engine::{ListenerFigures, SocketFigures};
use crate::progress::shards::{self, Shard};
use crate::session::{Activity, Counters};
use crate::sys::{effective_uid, system_calls};
use crate::wire::exs::SocketKind;

/// The slots of kernel sockets that one look under a shard's lock visits. A visit takes some system calls.
const KERNEL_PIECE: usize = 16;
/// The version of the format.
const FORMAT: u64 = 1;

/// The line that a snapshot writes next.
#[derive(Clone, Copy, Default)]
enum NextLines {
    /// The line about the process.
    #[default]
    Process,
    /// The lines about the sockets of a shard, from this slot on.
    Sockets { shard: usize, slot: u32 },
    /// The lines about the kernel sockets of a shard, from this slot on.
    KernelSockets { shard: usize, slot: usize },
    /// The last line.
    End,
    /// No line.
    Nothing,
}

/// A snapshot on its way to a reader.
#[derive(Default)]
pub(super) struct Snapshot {
    next: NextLines,
    /// The sockets written so far.
    sockets: u64,
}

impl Snapshot {
    /// Appends the next lines. False: the snapshot is complete, and there are none. A piece may be
    /// empty.
    pub(super) fn next_piece(&mut self, out: &mut String) -> bool {
        match self.next {
            NextLines::Process => {
                process(out, &totals());
                self.next = NextLines::Sockets { shard: 0, slot: 0 };
            }
            NextLines::Sockets { shard, slot } => self.next = self.sockets_of(shard, slot, out),
            NextLines::KernelSockets { shard, slot } => {
                self.next = self.kernel_sockets_of(shard, slot, out);
            }
            NextLines::End => {
                let mut o = Object::new(out);
                o.text("type", "end");
                o.number("sockets", self.sockets);
                drop(o);
                out.push('\n');
                self.next = NextLines::Nothing;
            }
            NextLines::Nothing => return false,
        }
        true
    }

    fn sockets_of(&mut self, shard: usize, slot: u32, out: &mut String) -> NextLines {
        let Some(context) = shards::all().find(|context| context.shard().index() >= shard) else {
            return NextLines::End;
        };
        let found = context.shard();
        // The slot belongs to the shard that was asked for.
        let slot = if found.index() == shard { slot } else { 0 };
        let (sockets, rest) = context.call(|engine, now| engine.inspect(slot, PIECE, now));
        let at = micros();
        for s in &sockets {
            socket(out, found, s, at);
        }
        self.sockets += sockets.len() as u64;
        match rest {
            Some(slot) => NextLines::Sockets { shard: found.index(), slot },
            None => NextLines::KernelSockets { shard: found.index(), slot: 0 },
        }
    }

    fn kernel_sockets_of(&mut self, shard: usize, slot: usize, out: &mut String) -> NextLines {
        let next = NextLines::Sockets { shard: shard + 1, slot: 0 };
        let Some(context) = shards::all().find(|context| context.shard().index() == shard) else {
            return next;
        };
        let (sockets, rest) = context.look(|engine| engine.inspect_kernel(slot, KERNEL_PIECE));
        let at = micros();
        for s in &sockets {
            kernel_socket(out, context.shard(), s, at);
        }
        self.sockets += sockets.len() as u64;
        rest.map_or(next, |slot| NextLines::KernelSockets { shard, slot })
    }
}

/// The microseconds since EXS has started in this process.
fn micros() -> u64 {
    shards::existing_first().map_or(0, |first| first.now().as_nanos() / 1000)
}

/// The name of the process, as ps(1) shows it.
fn name() -> String {
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end_matches('\n').to_owned()
}

fn process(out: &mut String, totals: &Totals) {
    let at = micros();
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut o = Object::new(out);
    o.text("type", "process");
    o.number("format", FORMAT);
    o.text("exs", env!("CARGO_PKG_VERSION"));
    o.number("pid", u64::from(std::process::id()));
    o.text("name", &name());
    o.number("uid", u64::from(effective_uid()));
    o.number("at_us", at);
    o.number("started", epoch.as_secs().saturating_sub(at / 1_000_000));
    o.number("shards", totals.shards);
    o.number("sockets", totals.sockets);
    o.number("listeners", totals.listeners);
    o.number("kernel_sockets", totals.kernel_sockets);
    o.number("in_flight", totals.in_flight);
    o.number("events", totals.events);
    o.number("engine_runs", totals.runs);
    o.number("sleeps", totals.sleeps);
    o.number("system_calls", system_calls());
    o.number("sent_bytes", totals.counters.sent());
    o.number("received_bytes", totals.counters.received());
    counters(&mut o, &totals.counters);
    o.objects("devices", &totals.devices, |o, d| {
        o.shown("transport", d.transport);
        o.text("device", &d.device);
        o.number("connections", d.connections);
        o.number("sent_bytes", d.counters.sent());
        o.number("received_bytes", d.counters.received());
        counters(o, &d.counters);
    });
    drop(o);
    out.push('\n');
}

fn socket(out: &mut String, shard: Shard, s: &SocketFigures, at: u64) {
    let mut o = Object::new(out);
    o.text("type", "socket");
    o.shown("id", format_args!("{}.{}", shard.index(), s.id));
    o.number("shard", shard.index() as u64);
    o.number("at_us", at);
    let kind = match s.kind {
        SocketKind::Stream => "stream",
        SocketKind::SeqPacket => "seqpacket",
    };
    o.text("kind", kind);
    o.text("state", s.state);
    if let Some(local) = s.local {
        o.shown("local", local);
    }
    if let Some(peer) = s.peer {
        o.shown("peer", peer);
    }
    if let Some((transport, device)) = &s.route {
        o.shown("transport", transport);
        o.text("device", device);
    }
    if let Some(listener) = &s.listener {
        listening(&mut o, listener);
    }
    if let Some(activity) = &s.activity {
        doing(&mut o, activity);
    }
    if s.exports > 0 {
        o.number("exports", s.exports as u64);
    }
    if s.listener.is_none() {
        o.number("sent_bytes", s.counters.sent());
        o.number("received_bytes", s.counters.received());
        counters(&mut o, &s.counters);
    }
    drop(o);
    out.push('\n');
}

/// A kernel socket. Its bytes are those that the kernel has counted, so there are no counters.
fn kernel_socket(out: &mut String, shard: Shard, s: &KernelFigures, at: u64) {
    let mut o = Object::new(out);
    let shard = shard.index();
    o.text("type", "socket");
    match s.number {
        None => o.shown("id", format_args!("{shard}.kernel.{}", s.inode)),
        Some(number) => o.shown("id", format_args!("{shard}.kernel.{}.{number}", s.inode)),
    }
    o.number("shard", shard as u64);
    o.number("at_us", at);
    let kind = match s.kind {
        Kind::Stream => "stream",
        Kind::SeqPacket => "seqpacket",
        Kind::Datagram => "datagram",
        Kind::Other | Kind::Unseen => "file",
    };
    o.text("kind", kind);
    o.text("state", s.state);
    for (key, address) in [("local", &s.local), ("peer", &s.peer)] {
        if let Some(address) = address {
            o.shown(key, address);
        }
    }
    o.text("transport", "kernel");
    o.number("inode", s.inode);
    let mut flight = o.object("in_flight");
    flight.number("sends", s.sends as u64);
    flight.number("recvs", s.recvs as u64);
    flight.number("accepts", s.accepts as u64);
    flight.number("polls", s.polls as u64);
    drop(flight);
    o.texts("waits", s.is_full.then_some("peer"));
    let known =
        [("available", s.available), ("sent_bytes", s.sent), ("received_bytes", s.received)];
    for (key, value) in known {
        if let Some(value) = value {
            o.number(key, value);
        }
    }
    drop(o);
    out.push('\n');
}

fn listening(o: &mut Object<'_>, listener: &ListenerFigures) {
    let mut l = o.object("listener");
    l.texts("devices", listener.devices.iter().map(String::as_str));
    l.number("backlog", listener.backlog as u64);
    l.number("starting", listener.starting as u64);
    l.number("ready", listener.ready as u64);
    l.number("waiting", listener.waiting as u64);
    l.number("accepts", listener.accepts as u64);
    l.number("established", listener.established);
}

fn doing(o: &mut Object<'_>, activity: &Activity) {
    let mut flight = o.object("in_flight");
    flight.number("sends", activity.sends as u64);
    flight.number("recvs", activity.recvs as u64);
    flight.number("one_sided", activity.one_sided as u64);
    drop(flight);
    o.number("available", activity.available);
    o.number("credits", u64::from(activity.credits));
    o.number("credits_max", u64::from(activity.credits_max));
    let waits = activity.waits;
    let waits = [("credits", waits.credits), ("room", waits.room), ("peer", waits.peer)];
    o.texts("waits", waits.into_iter().filter(|(_, waits)| *waits).map(|(what, _)| what));
}

macro_rules! fields {
    ($o:expr, $from:expr, $($field:ident as $name:literal),* $(,)?) => {
        // Names every field, so that a new field cannot be forgotten.
        let Counters { $($field),* } = $from;
        $($o.number($name, $field);)*
    };
}

fn counters(o: &mut Object<'_>, c: &Counters) {
    let mut o = o.object("counters");
    fields!(
        o,
        *c,
        sends as "sends",
        recvs as "recvs",
        one_sided as "one_sided",
        tx_direct as "sent_direct",
        tx_indirect as "sent_indirect",
        tx_inline as "sent_inline",
        rx_direct as "received_direct",
        rx_indirect as "received_indirect",
        rx_inline as "received_inline",
        read_bytes as "read_bytes",
        write_bytes as "write_bytes",
        copies as "copies",
        copied_bytes as "copied_bytes",
        adverts_sent as "adverts_sent",
        adverts_received as "adverts_received",
        adverts_stale as "adverts_stale",
        credit_stalls as "credit_stalls",
        queue_stalls as "queue_stalls",
        receives_added as "receives_added",
        receives_dropped as "receives_dropped",
        messages_sent as "messages_sent",
        messages_received as "messages_received",
        confirms as "confirms",
        rings_granted as "rings_granted",
    );
}
