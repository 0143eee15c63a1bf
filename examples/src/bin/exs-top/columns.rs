//! Rows of text for sockets and processes, and their order.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;

use crate::model::{InFlight, TrafficSums};
use crate::units;
use crate::world::{Rates, SeenProcess, SeenSocket, World};

/// The column by which rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The number of the process
    Pid,
    /// The name of the process
    Process,
    /// The state of the socket
    State,
    /// Transport and device
    Via,
    /// The local address
    Local,
    /// The address of the peer
    Peer,
    /// Bytes that leave in a second
    Tx,
    /// Bytes that come in a second
    Rx,
    /// Operations that end in a second
    Ops,
    /// Bytes that have left
    Sent,
    /// Bytes that have come
    Received,
    /// Operations in flight
    Flight,
    /// Times that something waited
    Stalls,
}

/// What a row shows, of a socket or of a process.
#[derive(Clone, Debug, Default)]
struct Facts {
    pid: u32,
    name: String,
    uid: u32,
    up: Duration,
    /// The socket. Empty: the row is about a process.
    id: String,
    state: String,
    via: String,
    local: String,
    peer: String,
    rates: Option<Rates>,
    /// None: nothing counts.
    sums: Option<TrafficSums>,
    flight: u64,
    /// The operations in flight by kind, or how full a backlog is.
    flight_text: String,
    waits: String,
    sockets: u64,
    connections: u64,
    shards: u64,
}

/// A value that rows are sorted by.
enum Key {
    Text(String),
    Number(f64),
}

impl Key {
    /// Texts rise, and numbers fall: the busiest row comes first.
    fn order(&self, other: &Key) -> Ordering {
        match (self, other) {
            (Key::Text(a), Key::Text(b)) => a.cmp(b),
            (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
            (Key::Text(_), Key::Number(_)) => Ordering::Less,
            (Key::Number(_), Key::Text(_)) => Ordering::Greater,
        }
    }
}

/// A column: its title; how much a narrow table wants to keep it; its text.
struct Column {
    title: &'static str,
    keep: u8,
    sort: Option<Sort>,
    /// Numbers are aligned to the right.
    right: bool,
    cell: fn(&Facts) -> String,
}

const fn left(
    title: &'static str,
    keep: u8,
    sort: Option<Sort>,
    cell: fn(&Facts) -> String,
) -> Column {
    Column { title, keep, sort, right: false, cell }
}

const fn right(
    title: &'static str,
    keep: u8,
    sort: Option<Sort>,
    cell: fn(&Facts) -> String,
) -> Column {
    Column { title, keep, sort, right: true, cell }
}

fn rate(f: &Facts, of: fn(&Rates) -> Option<f64>, show: fn(f64) -> String) -> String {
    f.rates.and_then(|r| of(&r)).map_or_else(|| "-".to_owned(), show)
}

/// A sum, where something counts.
fn sum(f: &Facts, of: fn(&TrafficSums) -> Option<u64>, show: fn(f64) -> String) -> String {
    f.sums.and_then(|s| of(&s)).map_or_else(|| "-".to_owned(), |n| show(n as f64))
}

const SOCKETS: [Column; 14] = [
    right("PID", 8, Some(Sort::Pid), |f| f.pid.to_string()),
    left("PROCESS", 5, Some(Sort::Process), |f| f.name.clone()),
    left("STATE", 6, Some(Sort::State), |f| f.state.clone()),
    left("VIA", 7, Some(Sort::Via), |f| f.via.clone()),
    left("LOCAL", 4, Some(Sort::Local), |f| f.local.clone()),
    left("PEER", 9, Some(Sort::Peer), |f| f.peer.clone()),
    right("TX/s", 10, Some(Sort::Tx), |f| rate(f, |r| Some(r.sent), units::bytes)),
    right("RX/s", 10, Some(Sort::Rx), |f| rate(f, |r| Some(r.received), units::bytes)),
    right("OPS/s", 3, Some(Sort::Ops), |f| rate(f, |r| r.operations, units::count)),
    right("SENT", 2, Some(Sort::Sent), |f| sum(f, |s| Some(s.sent), units::bytes)),
    right("RECEIVED", 2, Some(Sort::Received), |f| sum(f, |s| Some(s.received), units::bytes)),
    right("FLIGHT", 3, Some(Sort::Flight), |f| f.flight_text.clone()),
    right("STALLS", 1, Some(Sort::Stalls), |f| sum(f, |s| s.stalls, units::count)),
    left("WAITS", 6, None, |f| f.waits.clone()),
];

const PROCESSES: [Column; 13] = [
    right("PID", 10, Some(Sort::Pid), |f| f.pid.to_string()),
    left("PROCESS", 10, Some(Sort::Process), |f| f.name.clone()),
    right("UID", 1, None, |f| f.uid.to_string()),
    right("UP", 2, None, |f| units::uptime(f.up)),
    left("VIA", 5, Some(Sort::Via), |f| f.via.clone()),
    right("SOCKETS", 4, None, |f| f.sockets.to_string()),
    right("CONNECTED", 4, None, |f| f.connections.to_string()),
    right("TX/s", 9, Some(Sort::Tx), |f| rate(f, |r| Some(r.sent), units::bytes)),
    right("RX/s", 9, Some(Sort::Rx), |f| rate(f, |r| Some(r.received), units::bytes)),
    right("OPS/s", 6, Some(Sort::Ops), |f| rate(f, |r| r.operations, units::count)),
    right("FLIGHT", 3, Some(Sort::Flight), |f| f.flight_text.clone()),
    right("STALLS/s", 3, Some(Sort::Stalls), |f| rate(f, |r| r.stalls, units::count)),
    right("SHARDS", 1, None, |f| f.shards.to_string()),
];

fn key(f: &Facts, sort: Sort) -> Key {
    // What has no rate yet, or is not counted, comes last.
    let rate =
        |of: fn(&Rates) -> Option<f64>| Key::Number(f.rates.and_then(|r| of(&r)).unwrap_or(-1.0));
    let sum = |of: fn(&TrafficSums) -> Option<u64>| {
        Key::Number(f.sums.and_then(|s| of(&s)).map_or(-1.0, |n| n as f64))
    };
    match sort {
        // The least comes first.
        Sort::Pid => Key::Number(-f64::from(f.pid)),
        Sort::Process => Key::Text(f.name.clone()),
        Sort::State => Key::Text(f.state.clone()),
        Sort::Via => Key::Text(f.via.clone()),
        Sort::Local => Key::Text(f.local.clone()),
        Sort::Peer => Key::Text(f.peer.clone()),
        Sort::Tx => rate(|r| Some(r.sent)),
        Sort::Rx => rate(|r| Some(r.received)),
        Sort::Ops => rate(|r| r.operations),
        Sort::Sent => sum(|s| Some(s.sent)),
        Sort::Received => sum(|s| Some(s.received)),
        Sort::Flight => Key::Number(f.flight as f64),
        Sort::Stalls => sum(|s| s.stalls),
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) pid: u32,
    /// The socket. Empty: the row is about a process.
    pub(crate) id: String,
    pub(crate) cells: Vec<String>,
    /// Something waits.
    pub(crate) waits: bool,
}

/// A table of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) titles: Vec<&'static str>,
    /// The columns that are aligned to the right.
    pub(crate) right: Vec<bool>,
    keep: Vec<u8>,
    /// The column that the rows are sorted by.
    pub(crate) sorted: Option<usize>,
    pub(crate) rows: Vec<Row>,
}

/// What a table shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// None: in the order of process and socket.
    pub(crate) sort: Option<Sort>,
    pub(crate) reverse: bool,
    /// Only rows with this text, in upper or lower case.
    pub(crate) filter: String,
    /// Only the sockets of this process.
    pub(crate) pid: Option<u32>,
}

/// The transport, and the device where that says more: `soft`, `verbs rxe0`.
fn via(transport: &str, device: &str) -> String {
    match device.is_empty() || device == transport {
        true => transport.to_owned(),
        false => format!("{transport} {device}"),
    }
}

/// The operations in flight by kind: sends and receives always, the others where there are some.
fn in_flight(f: &InFlight) -> String {
    let mut text = format!("{}s {}r", f.sends, f.recvs);
    for (count, letter) in [(f.one_sided, 'o'), (f.accepts, 'a'), (f.polls, 'p')] {
        if count > 0 {
            text += &format!(" {count}{letter}");
        }
    }
    text
}

impl Facts {
    fn of_socket(p: &SeenProcess, s: &SeenSocket) -> Facts {
        let (process, socket) = (&p.line.data, &s.line.data);
        let f = &socket.in_flight;
        let (via, flight_text) = match &socket.listener {
            Some(l) => (
                l.devices.join(","),
                format!("{}/{}", l.ready.saturating_add(l.starting), l.backlog),
            ),
            None => (via(&socket.transport, &socket.device), in_flight(f)),
        };
        Facts {
            pid: process.pid,
            name: process.name.clone(),
            id: socket.id.clone(),
            state: socket.state.clone(),
            via,
            local: socket.local.clone(),
            peer: socket.peer.clone(),
            rates: s.rates,
            sums: socket.sums(),
            flight: f.sum(),
            flight_text,
            waits: socket.waits.join(","),
            ..Facts::default()
        }
    }

    fn of_process(p: &SeenProcess) -> Facts {
        let process = &p.line.data;
        let used = process
            .devices
            .iter()
            .filter(|d| d.connections > 0 || d.counters.sent() > 0 || d.counters.received() > 0);
        let waits = p.sockets.iter().find(|s| !s.line.data.waits.is_empty());
        Facts {
            pid: process.pid,
            name: process.name.clone(),
            uid: process.uid,
            up: Duration::from_micros(process.at_us),
            via: used.map(|d| d.device.as_str()).collect::<Vec<_>>().join(","),
            rates: p.rates,
            flight: process.in_flight,
            flight_text: process.in_flight.to_string(),
            sums: Some(process.counters.sums()),
            waits: waits.map_or_else(String::new, |s| s.line.data.waits.join(",")),
            sockets: process.sockets,
            connections: process.devices.iter().map(|d| d.connections).sum(),
            shards: process.shards,
            ..Facts::default()
        }
    }
}

impl Table {
    fn new(columns: &[Column], choice: &Choice, facts: impl Iterator<Item = Facts>) -> Table {
        let position = |sort| columns.iter().position(|c| c.sort == Some(sort));
        let sort = choice.sort.and_then(|sort| Some((sort, position(sort)?)));
        let filter = choice.filter.to_lowercase();
        let mut rows: Vec<(Option<Key>, Row)> = facts
            .map(|f| {
                let cells = columns.iter().map(|c| shown((c.cell)(&f))).collect();
                let key = sort.map(|(sort, _)| key(&f, sort));
                (key, Row { pid: f.pid, waits: !f.waits.is_empty(), id: f.id, cells })
            })
            .filter(|(_, row)| filter.is_empty() || row.matches(&filter))
            .collect();
        // The sort keeps the order of equal rows, so rows do not jump.
        rows.sort_by(|(a, _), (b, _)| match (a, b) {
            (Some(a), Some(b)) if choice.reverse => b.order(a),
            (Some(a), Some(b)) => a.order(b),
            _ => Ordering::Equal,
        });
        Table {
            titles: columns.iter().map(|c| c.title).collect(),
            right: columns.iter().map(|c| c.right).collect(),
            keep: columns.iter().map(|c| c.keep).collect(),
            sorted: sort.map(|(_, at)| at),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
        }
    }

    /// The sockets.
    pub(crate) fn of_sockets(world: &World, choice: &Choice) -> Table {
        let mine = |p: &SeenProcess| choice.pid.is_none_or(|pid| pid == p.line.data.pid);
        let sockets = world.sockets().filter(|(p, _)| mine(p));
        Table::new(&SOCKETS, choice, sockets.map(|(p, s)| Facts::of_socket(p, s)))
    }

    /// The processes.
    pub(crate) fn of_processes(world: &World, choice: &Choice) -> Table {
        Table::new(&PROCESSES, choice, world.processes.iter().map(Facts::of_process))
    }

    /// The width of each column.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let longest = |at: usize| self.rows.iter().map(|row| row.cells[at].chars().count()).max();
        let wide = |(at, title): (usize, &&'static str)| title.len().max(longest(at).unwrap_or(0));
        self.titles.iter().enumerate().map(wide).collect()
    }

    /// The columns that fit into this width, with a space between two.
    pub(crate) fn fitting(&self, width: usize) -> Vec<usize> {
        let widths = self.widths();
        let mut kept: Vec<usize> = (0..self.titles.len()).collect();
        let total = |kept: &[usize]| kept.iter().map(|at| widths[*at] + 1).sum::<usize>();
        while kept.len() > 1 && total(&kept) > width + 1 {
            let least = kept.iter().enumerate().min_by_key(|(_, at)| self.keep[**at]);
            let Some((place, _)) = least else { break };
            kept.remove(place);
        }
        kept
    }
}

/// A cell without characters that would change the terminal: names come from other processes.
pub(crate) fn shown(text: String) -> String {
    match text.chars().any(char::is_control) {
        true => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        false => text,
    }
}

impl Row {
    fn matches(&self, filter: &str) -> bool {
        self.cells.iter().any(|cell| cell.to_lowercase().contains(filter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{text, text_with_kernel};
    use crate::world::tests::found;

    fn world() -> World {
        let first = World::new(found(&[text(7, 1_000_000, 5000, 70)]), &World::default());
        let second = [text(7, 2_000_000, 6024, 70), text(9, 1_000_000, 1 << 30, 0)];
        World::new(found(&second), &first)
    }

    fn cells<'a>(table: &'a Table, title: &str) -> Vec<&'a str> {
        let at = table.titles.iter().position(|t| *t == title).unwrap();
        table.rows.iter().map(|row| row.cells[at].as_str()).collect()
    }

    #[test]
    fn sockets_have_rows_in_the_order_of_a_column() {
        let mut choice = Choice::default();
        let table = Table::of_sockets(&world(), &choice);
        assert_eq!(cells(&table, "PID"), ["7", "7", "9", "9"]);
        assert_eq!(cells(&table, "TX/s"), ["1.0k", "0", "-", "-"]);
        assert_eq!(cells(&table, "STATE"), ["open", "listening", "open", "listening"]);
        assert_eq!(cells(&table, "FLIGHT"), ["1s 2r", "0/8", "1s 2r", "0/8"]);
        assert_eq!(cells(&table, "WAITS"), ["peer", "", "peer", ""]);
        choice.sort = Some(Sort::Sent);
        let table = Table::of_sockets(&world(), &choice);
        assert_eq!(cells(&table, "SENT"), ["1.0G", "5.9k", "0", "0"]);
        assert_eq!(table.titles[table.sorted.unwrap()], "SENT");
        choice.reverse = true;
        assert_eq!(cells(&Table::of_sockets(&world(), &choice), "SENT")[3], "1.0G");
        choice = Choice { pid: Some(9), filter: "LISTEN".into(), ..Choice::default() };
        assert_eq!(cells(&Table::of_sockets(&world(), &choice), "PID"), ["9"]);
    }

    #[test]
    fn kernel_sockets_have_rows_without_what_nothing_counts() {
        let world = World::new(found(&[text_with_kernel(7, 1, 2048)]), &World::default());
        let table =
            Table::of_sockets(&world, &Choice { sort: Some(Sort::Sent), ..Choice::default() });
        assert_eq!(cells(&table, "VIA"), ["kernel", "soft", "soft", "kernel"]);
        assert_eq!(cells(&table, "SENT"), ["2.0k", "0", "0", "-"]);
        assert_eq!(cells(&table, "STALLS"), ["-", "3", "0", "-"]);
        assert_eq!(cells(&table, "FLIGHT")[0], "3s 1r 2p");
        assert_eq!(cells(&table, "WAITS")[0], "peer");
    }

    #[test]
    fn processes_have_sums_and_ignore_columns_of_sockets() {
        let choice = Choice { sort: Some(Sort::Peer), ..Choice::default() };
        let table = Table::of_processes(&world(), &choice);
        assert_eq!((table.sorted, cells(&table, "PID")), (None, vec!["7", "9"]));
        assert_eq!(cells(&table, "VIA"), ["soft", "soft"]);
        assert_eq!(cells(&table, "CONNECTED"), ["1", "1"]);
        assert!(table.rows.iter().all(|row| row.waits));
    }

    #[test]
    fn a_narrow_table_keeps_what_matters() {
        let table = Table::of_sockets(&world(), &Choice::default());
        let titles = |width| -> Vec<_> {
            table.fitting(width).into_iter().map(|at| table.titles[at]).collect()
        };
        assert_eq!(titles(500).len(), 14);
        assert_eq!(titles(30), ["PID", "PEER", "TX/s", "RX/s"]);
        assert_eq!(titles(1).len(), 1);
    }

    #[test]
    fn names_of_other_processes_cannot_control_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\n".into()), "a?[2Jb?");
    }
}
