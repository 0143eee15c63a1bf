//! The snapshots of one moment, and rates from two moments.

use std::collections::HashMap;

use crate::model::{Counters, Line, Process, Snapshot, Socket, TrafficSums};
use crate::source::{Found, Trouble};

/// What happens in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Bytes that leave.
    pub(crate) sent: f64,
    /// Bytes that come.
    pub(crate) received: f64,
    /// Operations that end; None: they are not counted.
    pub(crate) operations: Option<f64>,
    /// Times that something begins to wait; None: they are not counted.
    pub(crate) stalls: Option<f64>,
}

impl Rates {
    /// None: no time has passed, or the sums are those of something else.
    fn between(old: (u64, TrafficSums), new: (u64, TrafficSums)) -> Option<Rates> {
        let micros = new.0.checked_sub(old.0).filter(|micros| *micros > 0)?;
        let rate = |old: u64, new: u64| Some(new.checked_sub(old)? as f64 * 1e6 / micros as f64);
        let (old, new) = (old.1, new.1);
        Some(Rates {
            sent: rate(old.sent, new.sent)?,
            received: rate(old.received, new.received)?,
            operations: old.operations.zip(new.operations).and_then(|(old, new)| rate(old, new)),
            stalls: old.stalls.zip(new.stalls).and_then(|(old, new)| rate(old, new)),
        })
    }
}

/// A socket, and its rates if there is an earlier snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SeenSocket {
    pub(crate) line: Line<Socket>,
    pub(crate) rates: Option<Rates>,
}

/// A process with its sockets.
#[derive(Clone, Debug)]
pub(crate) struct SeenProcess {
    pub(crate) line: Line<Process>,
    pub(crate) rates: Option<Rates>,
    pub(crate) sockets: Vec<SeenSocket>,
}

/// The processes of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) processes: Vec<SeenProcess>,
    pub(crate) troubles: Vec<Trouble>,
}

/// The name of a process for as long as it lives.
fn key(p: &Process) -> (u32, u64) {
    // A start in seconds is computed anew for each snapshot, and may differ by one.
    (p.pid, p.started / 4)
}

impl World {
    /// The processes as they were found, with rates since the world before.
    pub(crate) fn new(found: Found, before: &World) -> World {
        let Found { snapshots, troubles } = found;
        let known: HashMap<_, _> =
            before.processes.iter().map(|p| (key(&p.line.data), p)).collect();
        let near = |p: &Process| {
            let (pid, started) = key(p);
            [started, started + 1, started.wrapping_sub(1)]
                .iter()
                .find_map(|s| known.get(&(pid, *s)).copied())
        };
        let processes = snapshots.into_iter().map(|s| {
            let old =
                near(&s.process.data).filter(|old| old.line.data.at_us <= s.process.data.at_us);
            SeenProcess::new(s, old)
        });
        World { processes: processes.collect(), troubles }
    }

    /// All sockets, each with its process.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (&SeenProcess, &SeenSocket)> {
        self.processes.iter().flat_map(|p| p.sockets.iter().map(move |s| (p, s)))
    }

    pub(crate) fn process(&self, pid: u32) -> Option<&SeenProcess> {
        self.processes.iter().find(|p| p.line.data.pid == pid)
    }
}

impl SeenProcess {
    fn new(snapshot: Snapshot, old: Option<&SeenProcess>) -> SeenProcess {
        let Snapshot { process, sockets } = snapshot;
        let rates = old.and_then(|old| {
            let (old, new) = (&old.line.data, &process.data);
            Rates::between((old.at_us, old.counters.sums()), (new.at_us, new.counters.sums()))
        });
        let known: HashMap<&str, &Socket> = old
            .into_iter()
            .flat_map(|old| &old.sockets)
            .map(|s| (s.line.data.id.as_str(), &s.line.data))
            .collect();
        let sockets = sockets.into_iter().map(|line| {
            let new = &line.data;
            let before = match known.get(new.id.as_str()) {
                Some(old) => old.sums().map(|sums| (old.at_us, sums)),
                // The kernel has counted since the connection began, which may be long ago.
                None if new.is_of_kernel() => None,
                // It is younger than the last snapshot: all that it counted is new.
                None => old.map(|old| (old.line.data.at_us, Counters::default().sums())),
            };
            let now = new.sums().map(|sums| (new.at_us, sums));
            let rates = before.zip(now).and_then(|(before, now)| Rates::between(before, now));
            SeenSocket { line, rates }
        });
        SeenProcess { rates, sockets: sockets.collect(), line: process }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::tests::{text, text_with_kernel};

    pub(crate) fn found(texts: &[String]) -> Found {
        let snapshots = texts.iter().map(|text| Snapshot::parse(text).unwrap()).collect();
        Found { snapshots, troubles: Vec::new() }
    }

    #[test]
    fn rates_are_differences_per_second() {
        let first = World::new(found(&[text(7, 1_000_000, 5000, 70)]), &World::default());
        assert!(
            first.processes[0].rates.is_none() && first.processes[0].sockets[0].rates.is_none()
        );
        let second = World::new(found(&[text(7, 1_500_000, 9000, 70)]), &first);
        let (operations, stalls) = (Some(8.0), Some(0.0));
        let wanted = Rates { sent: 8000.0, received: 0.0, operations, stalls };
        assert_eq!(second.processes[0].rates, Some(wanted));
        assert_eq!(second.processes[0].sockets[0].rates, Some(wanted));
    }

    #[test]
    fn kernel_sockets_have_rates_where_the_kernel_counts() {
        let first = World::new(found(&[text(7, 1_000_000, 0, 0)]), &World::default());
        let second = World::new(found(&[text_with_kernel(7, 2_000_000, 1 << 40)]), &first);
        let rates = |world: &World, at: usize| world.processes[0].sockets[at].rates;
        assert_eq!(rates(&second, 2), None, "the kernel may have counted for days");
        let third = World::new(found(&[text_with_kernel(7, 2_500_000, (1 << 40) + 500)]), &second);
        let wanted = Rates { sent: 1000.0, ..Rates::default() };
        assert_eq!((rates(&third, 2), rates(&third, 3)), (Some(wanted), None));
    }

    #[test]
    fn another_process_with_the_same_number_has_no_rates() {
        let first = World::new(found(&[text(7, 9_000_000, 5000, 70)]), &World::default());
        // It has begun anew, so its time and its counters are less.
        let second = World::new(found(&[text(7, 1_000, 10, 70)]), &first);
        assert!(second.processes[0].rates.is_none());
        let other = text(8, 9_500_000, 10, 70);
        assert!(World::new(found(&[other]), &first).processes[0].rates.is_none());
        assert_eq!(second.sockets().count(), 2);
        assert!(second.process(7).is_some() && second.process(8).is_none());
    }
}
