//! The subjects of each group, the comparisons, and the aims.
//!
//! A group has the subjects that are compared with each other. Its shapes run in turn, and again for each round, so
//! that noise of the machine meets all of them.

use std::time::Duration;

use super::carrier::Carrier;
use super::connects::Sharing;
use super::loops::Way;
use super::placement::Placement;
use super::pooled::Waiting;
use super::rarely::Cost;
use super::sample::Subject;
use super::shape::Shape;

/// Bytes in flight of the one connection that stands beside many.
const IN_FLIGHT: usize = 256 << 20;

/// Threads that serve the connections which another one accepts.
const WORKERS: u32 = 2;
/// Connections of each, and whether the one that accepts answers first.
const HANDED: [(u32, bool); 4] = [(1, false), (8, false), (8, true), (64, false)];

/// Threads that share a pool of connections, and connections for each.
const POOLED: [usize; 3] = [2, 8, 32];
const POOLED_EACH: u32 = 4;

/// Pauses between the questions of a thread that asks rarely.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(20)];

/// How large the shapes are.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) carriers: Vec<Carrier>,
    pub(super) threads: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    pub(super) pairs: Vec<usize>,
    pub(super) connections: u32,
    pub(super) at_once: u32,
    pub(super) queues: u32,
    /// Processors that this process may use.
    pub(super) cores: usize,
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aim {
    Least(f64),
    Most(f64),
    /// At least this, or the ratio of the two subjects where that is less.
    LeastOrGain(f64, Subject, Subject),
}

/// What a row shows, beside the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Compared {
    /// Nothing: others are compared with it.
    Nothing,
    /// The figure beside that of another subject.
    With(Subject),
    /// The figure itself has the aim.
    Itself,
    /// The slowest connection beside the mean.
    Slowest,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) subject: Subject,
    pub(super) compared: Compared,
    pub(super) aim: Option<Aim>,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) rows: Vec<Row>,
}

impl Group {
    fn new(name: impl Into<String>) -> Group {
        Group { name: name.into(), rows: Vec::new() }
    }

    fn row(&mut self, subject: Subject, compared: Compared, aim: Option<Aim>) {
        self.rows.push(Row { subject, compared, aim });
    }

    /// All that its rows need, each once.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let mut all: Vec<Subject> = Vec::new();
        for row in &self.rows {
            let other = match row.compared {
                Compared::With(other) => Some(other),
                _ => None,
            };
            for subject in [Some(row.subject), other].into_iter().flatten() {
                if !all.contains(&subject) {
                    all.push(subject);
                }
            }
        }
        all
    }
}

/// The same over plain TCP.
pub(super) fn over_tcp(subject: Subject) -> Option<Subject> {
    let shape = match subject.shape {
        Shape::Ask { connections, placement, .. } => {
            Shape::Ask { way: Way::Sockets, connections, placement }
        }
        Shape::Copies { .. } | Shape::IdleQueue { .. } => return None,
        other => other,
    };
    let tcp = Subject { shape, carrier: Some(Carrier::Tcp) };
    (tcp != subject).then_some(tcp)
}

fn over(carrier: Carrier, shape: Shape) -> Subject {
    Subject { shape, carrier: Some(carrier) }
}

/// The aim of the software RNIC, and that of shared memory. Other transports have none.
fn aim(carrier: Carrier, soft: Aim, shm: Aim) -> Option<Aim> {
    match carrier {
        Carrier::SOFT => Some(soft),
        Carrier::SHM => Some(shm),
        _ => None,
    }
}

fn both(carrier: Carrier, of_both: Aim) -> Option<Aim> {
    aim(carrier, of_both, of_both)
}

impl Scope {
    /// All groups, in the order in which they run.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.sizes.iter().map(|&size| self.own(size)).collect();
        groups.extend(self.pairs.iter().map(|&pairs| self.pairs(pairs)));
        groups.extend(self.pairs.iter().map(|&pairs| self.queued_pairs(pairs)));
        groups.push(self.handed());
        groups.push(self.pooled());
        groups.push(self.half_trip());
        groups.push(self.rarely());
        groups.push(self.server());
        groups.push(self.many("many-64k", 64 << 10));
        groups.push(self.many("many-1m", 1 << 20));
        groups.push(self.beside_tcp("connects-in-turn", &[Shape::InTurn]));
        groups.push(self.served());
        let at_once = Shape::AtOnce { connects: self.at_once };
        groups.push(self.beside_tcp("connects-at-once", &[at_once]));
        groups.push(self.accepted());
        groups.push(self.idle_connections());
        groups.push(self.idle_queues());
        groups
    }

    /// Rows of `subject` beside plain TCP; without TCP, or of TCP itself, it stands alone.
    fn with_tcp(&self, subject: Subject) -> Compared {
        match over_tcp(subject) {
            Some(tcp) if self.carriers.contains(&Carrier::Tcp) => Compared::With(tcp),
            _ => Compared::Nothing,
        }
    }

    fn own(&self, size: usize) -> Group {
        let name =
            if size >= 1 << 10 { format!("own-{}k", size >> 10) } else { format!("own-{size}") };
        let mut group = Group::new(name);
        let with = |subject, base: Option<Subject>| match base {
            Some(base) => (subject, Compared::With(base)),
            None => (subject, Compared::Nothing),
        };
        // The number of threads that this number is compared with.
        let base = |threads| Some(threads).filter(|&t| t > 1).map(|t| if t > 2 { 2 } else { 1 });
        let measured = |threads: &usize| self.threads.contains(threads);
        let large = size >= 64 << 10;
        let copies = |threads| Subject { shape: Shape::Copies { threads, size }, carrier: None };
        if large {
            for &threads in self.threads.iter().filter(|&&t| t <= 2) {
                let base = base(threads).filter(measured).map(copies);
                let (subject, compared) = with(copies(threads), base);
                group.row(subject, compared, None);
            }
        }
        for &carrier in &self.carriers {
            for &threads in &self.threads {
                let of = |threads| over(carrier, Shape::Own { threads, size });
                let aimed = match threads {
                    2 if large => Some(Aim::LeastOrGain(1.6, copies(2), copies(1))),
                    2 if size <= 4 << 10 => Some(Aim::Least(1.8)),
                    3.. => Some(Aim::Least(0.95)),
                    _ => None,
                };
                let base = base(threads).filter(measured);
                let aimed = aimed.filter(|_| base.is_some()).and_then(|a| both(carrier, a));
                let (subject, compared) = with(of(threads), base.map(of));
                group.row(subject, compared, aimed);
            }
        }
        group
    }

    fn pairs(&self, pairs: usize) -> Group {
        let mut group = Group::new(format!("pairs-{pairs}"));
        for &carrier in &self.carriers {
            let subject = over(carrier, Shape::Pairs { pairs });
            let aimed = aim(carrier, Aim::Least(0.9), Aim::Least(1.5));
            group.row(subject, self.with_tcp(subject), aimed);
        }
        group
    }

    /// Plain TCP has no queues: its threads make calls that block.
    fn queued_pairs(&self, pairs: usize) -> Group {
        let mut group = Group::new(format!("pairs-queues-{pairs}"));
        for &carrier in &self.carriers {
            let blocking = over(carrier, Shape::Pairs { pairs });
            let subject = match carrier {
                Carrier::Tcp => blocking,
                _ => over(carrier, Shape::QueuedPairs { pairs }),
            };
            group.row(subject, self.with_tcp(blocking), None);
        }
        group
    }

    fn handed(&self) -> Group {
        let mut group = Group::new("handed");
        for (each, answers) in HANDED {
            for &carrier in &self.carriers {
                let (threads, connections) = (WORKERS as usize, WORKERS * each);
                let subject = over(carrier, Shape::Handed { threads, connections, answers });
                group.row(subject, self.with_tcp(subject), None);
            }
        }
        group
    }

    /// Plain TCP has no queues: its threads make calls that block.
    fn pooled(&self) -> Group {
        let mut group = Group::new("pooled");
        for threads in POOLED {
            let connections = u32::try_from(threads).unwrap_or(u32::MAX) * POOLED_EACH;
            let of = |waiting| Shape::Pooled { threads, connections, waiting };
            let blocking = |carrier| over(carrier, of(Waiting::Blocks));
            for &carrier in &self.carriers {
                group.row(blocking(carrier), self.with_tcp(blocking(carrier)), None);
                if carrier != Carrier::Tcp {
                    let compared = self.with_tcp(blocking(carrier));
                    group.row(over(carrier, of(Waiting::AtQueue)), compared, None);
                }
            }
        }
        group
    }

    fn half_trip(&self) -> Group {
        let mut group = Group::new("half-trip");
        let two = (self.cores > 1).then_some(Placement::Two);
        for placement in [Placement::Free, Placement::One].into_iter().chain(two) {
            self.ask(&mut group, 1, placement, |c| aim(c, Aim::Most(1.1), Aim::Most(0.9)));
        }
        group
    }

    fn rarely(&self) -> Group {
        let mut group = Group::new("rarely");
        for pause in PAUSES {
            for cost in [Cost::Trip, Cost::Processor] {
                for &carrier in &self.carriers {
                    let subject = over(carrier, Shape::Rarely { pause, cost });
                    group.row(subject, self.with_tcp(subject), None);
                }
            }
        }
        group
    }

    fn server(&self) -> Group {
        let mut group = Group::new("server");
        let aimed = |carrier| both(carrier, Aim::Least(1.0));
        self.ask(&mut group, self.connections, Placement::Free, aimed);
        group
    }

    /// Rows of each way of waiting in epoll.
    fn ask(
        &self,
        group: &mut Group,
        connections: u32,
        placement: Placement,
        aimed: impl Fn(Carrier) -> Option<Aim>,
    ) {
        for &carrier in &self.carriers {
            let ways = match carrier {
                Carrier::Tcp => &[Way::Sockets][..],
                Carrier::Exs(_) => &[Way::Queue, Way::Sockets],
            };
            for &way in ways {
                let subject = over(carrier, Shape::Ask { way, connections, placement });
                group.row(subject, self.with_tcp(subject), aimed(carrier));
            }
        }
    }

    fn many(&self, name: &str, size: usize) -> Group {
        let mut group = Group::new(name);
        let connections = self.connections;
        let depth = u32::try_from(IN_FLIGHT / size).unwrap_or(u32::MAX).min(connections).min(1024);
        for &carrier in &self.carriers {
            let one = over(carrier, Shape::Flow { connections: 1, depth, threads: 1, size });
            let many = over(carrier, Shape::Flow { connections, depth: 1, threads: 2, size });
            group.row(one, Compared::Nothing, None);
            group.row(many, Compared::With(one), both(carrier, Aim::Least(0.8)));
            if carrier != Carrier::Tcp {
                group.row(many, self.with_tcp(many), both(carrier, Aim::Least(1.2)));
            }
            // With larger messages each connection has too few of them to be told apart.
            let fair = aim(carrier, Aim::Least(0.98), Aim::Least(0.84));
            group.row(many, Compared::Slowest, fair.filter(|_| size <= 64 << 10));
        }
        group
    }

    /// Connections in a second.
    fn beside_tcp(&self, name: &str, shapes: &[Shape]) -> Group {
        let mut group = Group::new(name);
        for &carrier in &self.carriers {
            for &shape in shapes {
                let subject = over(carrier, shape);
                group.row(subject, self.with_tcp(subject), both(carrier, Aim::Least(0.5)));
            }
        }
        group
    }

    /// Connections that threads of a server serve.
    fn served(&self) -> Group {
        let mut group = Group::new("connects-served");
        let shapes = [
            (Sharing::ThreadEach, 1),
            (Sharing::ThreadEach, 8),
            (Sharing::Pool, 2),
            (Sharing::Pool, 8),
        ];
        for &carrier in &self.carriers {
            for (sharing, clients) in shapes {
                let subject = over(carrier, Shape::Served { sharing, clients });
                group.row(subject, self.with_tcp(subject), None);
            }
        }
        group
    }

    fn accepted(&self) -> Group {
        let shapes = [1, 2].map(|threads| Shape::Accepted { threads });
        let mut group = self.beside_tcp("connects-accepted", &shapes);
        for &carrier in &self.carriers {
            let [one, two] = shapes.map(|shape| over(carrier, shape));
            group.row(two, Compared::With(one), None);
        }
        group
    }

    fn idle_connections(&self) -> Group {
        let mut group = Group::new("idle-connections");
        for &carrier in &self.carriers {
            // Memory is counted in pages: more of them are measured better.
            let shape = Shape::IdleConnection { connections: self.at_once.max(2) };
            let most = both(carrier, Aim::Most(16_384.0));
            group.row(over(carrier, shape), Compared::Itself, most);
        }
        group
    }

    fn idle_queues(&self) -> Group {
        let mut group = Group::new("idle-queues");
        let shape = Shape::IdleQueue { queues: self.queues };
        let most = Aim::Most(f64::from(1 << 20));
        group.row(Subject { shape, carrier: None }, Compared::Itself, Some(most));
        for &carrier in self.carriers.iter().filter(|&&c| c != Carrier::Tcp) {
            group.row(over(carrier, shape), Compared::Itself, both(carrier, most));
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope {
            carriers: vec![Carrier::Tcp, Carrier::SOFT, Carrier::SHM],
            threads: vec![1, 2, 8],
            sizes: vec![64, 64 << 10],
            pairs: vec![2],
            connections: 1000,
            at_once: 10_000,
            queues: 64,
            cores: 2,
        }
    }

    fn aims(group: &Group, carrier: Carrier) -> Vec<Option<Aim>> {
        let of = |row: &&Row| row.subject.carrier == Some(carrier);
        group.rows.iter().filter(of).map(|row| row.aim).collect()
    }

    #[test]
    fn aims_are_those_of_the_transports() {
        let groups = scope().groups();
        let of = |name: &str| groups.iter().find(|g| g.name == name).unwrap();
        let own = [None, Some(Aim::Least(1.8)), Some(Aim::Least(0.95))];
        assert_eq!(aims(of("own-64"), Carrier::SHM), own);
        assert_eq!(aims(of("own-64"), Carrier::Tcp), [None, None, None]);
        let large = aims(of("own-64k"), Carrier::SOFT);
        assert!(matches!(large[1], Some(Aim::LeastOrGain(..))), "{large:?}");
        assert_eq!(aims(of("pairs-2"), Carrier::SHM), [Some(Aim::Least(1.5))]);
        assert_eq!(aims(of("half-trip"), Carrier::SOFT), [Some(Aim::Most(1.1)); 6]);
        assert_eq!(aims(of("many-1m"), Carrier::SOFT)[3], None);
        let single = Scope { cores: 1, ..scope() }.half_trip();
        assert_eq!(aims(&single, Carrier::SOFT).len(), 4);
    }

    #[test]
    fn all_that_a_row_is_compared_with_is_measured() {
        for group in scope().groups() {
            let subjects = group.subjects();
            for row in &group.rows {
                if let Compared::With(other) = row.compared {
                    assert_ne!(other, row.subject, "{}", group.name);
                }
                if let Some(Aim::LeastOrGain(_, a, b)) = row.aim {
                    assert!(subjects.contains(&a) && subjects.contains(&b), "{}", group.name);
                }
            }
        }
        let alone = Scope { carriers: vec![Carrier::SHM], ..scope() };
        let tcp = |s: &Subject| s.carrier == Some(Carrier::Tcp);
        assert!(!alone.groups().iter().any(|g| g.subjects().iter().any(tcp)));
    }
}
