//! The figures beside what EXS aims at.

use crate::plan::MANY;
use crate::results::{Case, Sample, Section};

/// A ratio of two figures of one run, and its limit.
struct Aim {
    section: &'static str,
    case: &'static str,
    /// Both as contenders are called.
    of: &'static str,
    beside: &'static str,
    figure: Figure,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Figure {
    Throughput,
    Rate,
    Median,
    CpuPerByte,
    /// The smallest share of a connection, without anything beside it.
    Fairness,
    Memory,
}

#[derive(Clone, Copy)]
enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

use Figure::{CpuPerByte, Fairness, Median, Memory, Rate, Throughput};
use Limit::{AtLeast, AtMost};

impl Figure {
    fn of(self, s: &Sample) -> Option<f64> {
        match self {
            Throughput => s.gbytes_per_s,
            Rate => s.msgs_per_s,
            // Some neighbours give a mean only.
            Median => s.p50_us.or(s.mean_us),
            CpuPerByte => s.cpu_ns_per_byte,
            Fairness => s.slowest_to_mean,
            Memory => s.bytes_each,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Throughput => "throughput",
            Rate => "messages in a second",
            Median => "half round trip",
            CpuPerByte => "processor time per byte",
            Fairness => "slowest connection / mean",
            Memory => "bytes of an idle connection",
        }
    }
}

const fn bw(case: &'static str, of: &'static str, beside: &'static str, least: f64) -> Aim {
    Aim { section: "bandwidth", case, of, beside, figure: Throughput, limit: AtLeast(least) }
}

const fn cpu(case: &'static str, of: &'static str) -> Aim {
    Aim { section: "bandwidth", case, of, beside: "TCP", figure: CpuPerByte, limit: AtMost(1.0) }
}

const fn lat(case: &'static str, of: &'static str, beside: &'static str, most: f64) -> Aim {
    Aim { section: "latency", case, of, beside, figure: Median, limit: AtMost(most) }
}

const fn rate(of: &'static str, least: f64) -> Aim {
    Aim { section: "rate", case: "", of, beside: "TCP", figure: Rate, limit: AtLeast(least) }
}

const fn files(case: &'static str, of: &'static str, beside: &'static str, least: f64) -> Aim {
    Aim { section: "files", case, of, beside, figure: Throughput, limit: AtLeast(least) }
}

/// On a device of the kernel's: EXS beside what the device can do, and beside rsocket.
const fn device(case: &'static str, beside: &'static str, figure: Figure, limit: Limit) -> Aim {
    Aim { section: "verbs", case, of: "EXS verbs", beside, figure, limit }
}

const fn alone(section: &'static str, of: &'static str, figure: Figure, limit: Limit) -> Aim {
    Aim { section, case: "", of, beside: "", figure, limit }
}

const BUSY: &str = "busy-polling";
const SLEEPING: &str = "sleeping";

const AIMS: &[Aim] = &[
    bw("1 MiB", "EXS shm", "memcpy", 0.9),
    bw("1 MiB", "EXS shm", "UCX shared memory", 1.0),
    bw("1 MiB", "EXS shm", "TCP", 2.0),
    bw("64 KiB", "EXS shm", "TCP", 2.5),
    bw("100 MiB", "EXS shm", "TCP", 1.0),
    alone("latency", "EXS shm", Median, AtMost(0.45)),
    lat(SLEEPING, "EXS shm", "UNIX-domain", 1.0),
    rate("EXS shm", 2.0),
    bw("1 MiB", "EXS soft", "TCP", 0.97),
    bw("1 MiB", "EXS soft", "UCX tcp", 1.0),
    bw("1 MiB", "EXS soft", "libfabric tcp", 1.0),
    bw("1 MiB", "EXS soft, CRC32C", "TCP", 0.85),
    bw("64 KiB", "EXS soft", "TCP", 1.0),
    lat(SLEEPING, "EXS soft", "TCP", 1.1),
    lat(BUSY, "EXS soft", "UCX tcp", 1.0),
    rate("EXS soft", 1.5),
    cpu("64 KiB", "EXS soft"),
    cpu("1 MiB", "EXS soft"),
    cpu("64 KiB", "EXS shm"),
    cpu("1 MiB", "EXS shm"),
    alone("idle", "EXS soft", Memory, AtMost(16384.0)),
    alone("idle", "EXS shm", Memory, AtMost(16384.0)),
    files("one file", "EXS shm (exs-cp --no-verify)", "cp", 0.8),
    files("one file", "EXS shm (exs-cp)", "cp", 0.6),
    files("one file", "EXS soft (exs-cp)", "rsync (its daemon)", 3.0),
    files("one file", "EXS soft (exs-cp)", "rsync (by ssh, encrypted)", 3.0),
    files("one file", "EXS soft (exs-cp)", "scp (encrypted)", 3.0),
    files("files of 4 KiB", "EXS soft (exs-cp)", "rsync (its daemon)", 1.0),
    files("files of 4 KiB", "EXS shm (exs-cp)", "rsync (its daemon)", 1.0),
    device("rxe, lat, 64 B", "perftest", Median, AtMost(1.15)),
    device("rxe, lat, 64 B", "rstream", Median, AtMost(1.0)),
    device("rxe, bw, 64 KiB", "perftest", Throughput, AtLeast(0.95)),
    device("rxe, bw, 64 KiB", "rstream", Throughput, AtLeast(1.2)),
    device("rxe, bw, 1 MiB", "perftest", Throughput, AtLeast(0.95)),
    device("rxe, bw, 1 MiB", "rstream", Throughput, AtLeast(1.0)),
    device("siw, lat, 64 B", "perftest", Median, AtMost(1.15)),
    device("siw, lat, 64 B", "rstream", Median, AtMost(1.0)),
    device("siw, bw, 64 KiB", "perftest", Throughput, AtLeast(0.95)),
    device("siw, bw, 64 KiB", "rstream", Throughput, AtLeast(2.0)),
    device("siw, bw, 1 MiB", "perftest", Throughput, AtLeast(0.95)),
    device("siw, bw, 1 MiB", "rstream", Throughput, AtLeast(2.0)),
];

/// Rows of a table; none for a case that was not measured.
pub(crate) fn rows(done: &[Section]) -> Vec<String> {
    let mut rows: Vec<_> = AIMS.iter().filter_map(|aim| row(aim, done)).collect();
    for name in ["EXS soft", "EXS shm"] {
        rows.extend(many(name, done));
    }
    rows
}

fn row(aim: &Aim, done: &[Section]) -> Option<String> {
    let section = done.iter().find(|s| s.id == aim.section)?;
    // The first case of a section that aims have no name for.
    let case = match (aim.case, aim.section) {
        ("", _) => section.cases.first()?,
        ("one file", _) => section.cases.iter().find(|c| c.title.starts_with("one file"))?,
        ("files of 4 KiB", _) => section.cases.iter().find(|c| c.title.ends_with(aim.case))?,
        (name, _) => section.cases.iter().find(|c| c.title == name)?,
    };
    let mine = case.of(aim.of)?;
    let what = format!("{}, {}", section.title, case.title);
    if aim.beside.is_empty() {
        let figure = aim.figure.of(&mine.median)?;
        return Some(line(&what, aim.of, aim.figure.name(), figure, aim.limit));
    }
    let ratio = mine.beside(case.of(aim.beside)?, |s| aim.figure.of(s))?;
    let contenders = format!("{} / {}", aim.of, aim.beside);
    Some(line(&what, &contenders, aim.figure.name(), ratio, aim.limit))
}

/// For each message size: all connections together beside a single connection with 8 messages in
/// flight and beside a single connection with as much in flight as all, and the slowest of them
/// beside the mean.
fn many(name: &str, done: &[Section]) -> Vec<String> {
    let cases = done.iter().find(|s| s.id == "connections").map_or(&[][..], |s| &s.cases);
    let row = |all: &Case, one: &Case| {
        let ratio = all.of(name)?.beside(one.of(name)?, |s| s.gbytes_per_s)?;
        let what = format!("Throughput, {} / {}", all.title, one.title);
        Some(line(&what, name, "throughput", ratio, AtLeast(0.8)))
    };
    let fair = |all: &Case| {
        let slowest = Fairness.of(&all.of(name)?.median)?;
        let what = format!("Many connections, {}", all.title);
        Some(line(&what, name, Fairness.name(), slowest, AtLeast(1.0 / 3.0)))
    };
    let of_size = |cases: &[Case]| {
        let (all, ones) = cases.split_last().expect("chunks are not empty");
        ones.iter().filter_map(|one| row(all, one)).chain(fair(all)).collect::<Vec<_>>()
    };
    cases.chunks(MANY).flat_map(of_size).collect()
}

fn line(what: &str, contenders: &str, figure: &str, value: f64, limit: Limit) -> String {
    let (is, text) = match limit {
        AtLeast(least) => (value >= least, format!("at least {least:.2}")),
        AtMost(most) => (value <= most, format!("at most {most:.2}")),
    };
    let verdict = if is { "met" } else { "**not met**" };
    format!("| {what} | {contenders} | {figure} | {value:.2} | {text} | {verdict} |")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(id: &str, title: &str, figures: &[(&str, Sample)]) -> Section {
        let mut case = Case::called(title);
        for (name, sample) in figures {
            case.entry(name).samples.push(*sample);
        }
        Section::new(id, "T", vec![case])
    }

    #[test]
    fn a_ratio_is_held_against_its_limit() {
        let gb = |g| Sample { gbytes_per_s: Some(g), ..Sample::default() };
        let done = [section("bandwidth", "1 MiB", &[("EXS soft", gb(5.0)), ("TCP", gb(4.0))])];
        assert_eq!(
            rows(&done),
            ["| T, 1 MiB | EXS soft / TCP | throughput | 1.25 | at least 0.97 | met |"]
        );
        let done = [section("bandwidth", "64 KiB", &[("EXS soft", gb(3.0)), ("TCP", gb(4.0))])];
        assert_eq!(rows(&done).len(), 1);
        assert!(rows(&done)[0].ends_with("| 0.75 | at least 1.00 | **not met** |"));
        assert!(rows(&[]).is_empty());
    }

    #[test]
    fn many_connections_are_held_against_one_with_messages_as_large() {
        let case = |title: &str, g| {
            let mut case = Case::called(title);
            let sample = Sample { gbytes_per_s: Some(g), ..Sample::default() };
            case.entry("EXS shm").samples.push(sample);
            case
        };
        let cases = [("a", 8.0), ("b", 4.0), ("c", 4.0), ("d", 5.0), ("e", 2.0), ("f", 1.0)];
        let section = Section::new("connections", "C", cases.map(|(t, g)| case(t, g)).into());
        let aim = "| at least 0.80 |";
        let not = format!("{aim} **not met** |");
        let rows = rows(&[section]);
        assert_eq!(
            rows,
            [
                format!("| Throughput, c / a | EXS shm | throughput | 0.50 {not}"),
                format!("| Throughput, c / b | EXS shm | throughput | 1.00 {aim} met |"),
                format!("| Throughput, f / d | EXS shm | throughput | 0.20 {not}"),
                format!("| Throughput, f / e | EXS shm | throughput | 0.50 {not}"),
            ]
        );
    }

    #[test]
    fn the_slowest_of_many_is_held_against_the_mean_for_each_size() {
        let case = |title: &str, slowest| {
            let mut case = Case::called(title);
            let sample = Sample { slowest_to_mean: Some(slowest), ..Sample::default() };
            case.entry("EXS shm").samples.push(sample);
            case
        };
        let cases = [("a", 1.0), ("b", 1.0), ("c", 0.9), ("d", 1.0), ("e", 1.0), ("f", 0.05)];
        let section = Section::new("connections", "C", cases.map(|(t, s)| case(t, s)).into());
        let row = "EXS shm | slowest connection / mean";
        assert_eq!(
            rows(&[section]),
            [
                format!("| Many connections, c | {row} | 0.90 | at least 0.33 | met |"),
                format!("| Many connections, f | {row} | 0.05 | at least 0.33 | **not met** |"),
            ]
        );
    }
}
