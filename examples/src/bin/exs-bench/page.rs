//! The page that shows the figures.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::aims;
use crate::machine::Machine;
use crate::results::{Case, Entry, Sample, Section};

/// README.md of the directory.
pub(crate) fn text(machine: &Machine, done: &[Section], plots: &[(String, String)]) -> String {
    let mut out = vec![
        "# Measured".to_owned(),
        String::new(),
        "Made by `make bench`; do not edit. Everything was measured on one machine, in turn (A B C, A B C), \
         and the median of all rounds counts; of a ratio, the median of what each round says. The JSON files beside this page have every sample. GB are \
         10^9 bytes. How each program was run is in the source of exs-bench; mind that UCX's and libfabric's \
         programs always spin, and that libfabric's (fi_pingpong) has one message in flight."
            .to_owned(),
        String::new(),
        format!("Machine: {}.", machine.line()),
        format!(
            "EXS {}{}. Neighbours: {}.",
            machine.exs,
            machine.commit.as_ref().map_or_else(String::new, |c| format!(" ({c})")),
            if machine.neighbours.is_empty() { "none".to_owned() } else { machine.neighbours.join("; ") }
        ),
        String::new(),
    ];
    if machine.quick {
        out.push("**A quick run: it shows that everything runs, not how fast.**\n".to_owned());
    }
    if machine.is_noisy() {
        out.push(
            "**The machine was busy with other things: do not believe these figures.**\n"
                .to_owned(),
        );
    }
    for (file, title) in plots {
        out.push(format!("![{title}]({file})\n"));
    }
    let aims = aims::rows(done);
    if !aims.is_empty() {
        out.push("## Aims\n".to_owned());
        out.push(AIMS_HEAD.to_owned());
        out.extend(aims);
        out.push(String::new());
    }
    for section in done {
        out.push(format!("## {}\n", section.title));
        out.extend(section.cases.iter().flat_map(table));
        let failures: BTreeSet<_> = section.failures().collect();
        for (name, why) in failures {
            out.push(format!("{name} could not be measured: {}\n", why.replace(['\n', '|'], " ")));
        }
    }
    out.join("\n")
}

/// What a page of the book shows of it: `out` is the way from there to the directory of the rest.
pub(crate) fn summary(
    machine: &Machine,
    done: &[Section],
    plots: &[(String, String)],
    out: &Path,
) -> String {
    let out = out.display();
    let mut text = vec![format!(
        "Made by `make bench` ([all figures, and how they were measured]({out}/README.md)): {}.\n",
        machine.line()
    )];
    if machine.is_noisy() {
        text.push("The machine was busy with other things: look at the ratios only.\n".to_owned());
    }
    let shown = ["bandwidth.svg", "latency-notify.svg"];
    let shown = plots.iter().filter(|(file, _)| shown.contains(&file.as_str()));
    text.extend(shown.map(|(file, title)| format!("![{title}]({out}/{file})\n")));
    text.push(AIMS_HEAD.to_owned());
    text.extend(aims::rows(done));
    text.join("\n")
}

/// How a link in `file` reaches `out`; both are seen from the same directory.
pub(crate) fn way_from(file: &Path, out: &Path) -> PathBuf {
    if out.is_absolute() {
        return out.to_owned();
    }
    let above = file.parent().map_or(0, |dir| dir.components().count());
    (0..above).map(|_| "..").collect::<PathBuf>().join(out)
}

/// `text` with `summary` between its marks; none if it has no marks.
pub(crate) fn between_marks(text: &str, summary: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS.0)?;
    let (_, after) = rest.split_once(MARKS.1)?;
    Some(format!("{before}{}\n{summary}\n{}{after}", MARKS.0, MARKS.1))
}

const MARKS: (&str, &str) = ("<!-- bench -->", "<!-- /bench -->");
const AIMS_HEAD: &str =
    "| measurement | contenders | figure | measured | aim | |\n|---|---|---|---|---|---|";

/// A column: its head, and the figure.
type Column = (&'static str, fn(&Sample) -> Option<f64>);

const COLUMNS: [Column; 11] = [
    ("GB/s", |s| s.gbytes_per_s),
    ("messages/s", |s| s.msgs_per_s),
    ("median (us)", |s| s.p50_us),
    ("mean (us)", |s| s.mean_us),
    ("99 % (us)", |s| s.p99_us),
    ("99.9 % (us)", |s| s.p999_us),
    ("CPU (ns/byte)", |s| s.cpu_ns_per_byte),
    ("CPU (ns/message)", |s| s.cpu_ns_per_msg),
    ("slowest/mean", |s| s.slowest_to_mean),
    ("bytes each", |s| s.bytes_each),
    ("seconds", |s| s.seconds),
];

/// One case, with the columns for which a contender has figures.
fn table(case: &Case) -> Vec<String> {
    let there: Vec<_> = case.entries.iter().filter(|e| !e.samples.is_empty()).collect();
    let small = case.shape.as_ref().is_none_or(|s| s.size < 1 << 10);
    let one = case.shape.as_ref().is_none_or(|s| s.connections == 1);
    let wanted = |head: &str| match head {
        "CPU (ns/byte)" => !small,
        "CPU (ns/message)" => small,
        "slowest/mean" => !one,
        _ => true,
    };
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(head, figure)| wanted(head) && there.iter().any(|e| figure(&e.median).is_some()))
        .collect();
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let mut out = vec![
        format!("| {} | {} | beside |", case.title, heads.join(" | ")),
        format!("|---|{}---|", "---|".repeat(columns.len())),
    ];
    let base =
        there.iter().find(|e| ["TCP", "TCP, spinning", "cp"].contains(&e.contender.as_str()));
    for entry in &there {
        let cells: Vec<_> = columns
            .iter()
            .map(|(_, figure)| figure(&entry.median).map_or_else(String::new, number))
            .collect();
        let ratio = base.and_then(|b| {
            let ratio = ratio(entry, b)?;
            Some(format!("{ratio:.2} of {}", b.contender))
        });
        let ratio = ratio.filter(|_| base.is_none_or(|b| b.contender != entry.contender));
        out.push(format!(
            "| {} | {} | {} |",
            entry.contender,
            cells.join(" | "),
            ratio.unwrap_or_default()
        ));
    }
    out.push(String::new());
    out
}

/// The first figure that a case is about and both have, as a ratio.
fn ratio(mine: &Entry, theirs: &Entry) -> Option<f64> {
    let figures: [fn(&Sample) -> Option<f64>; 5] = [
        |s| s.p50_us.or(s.mean_us),
        |s| s.msgs_per_s,
        |s| s.gbytes_per_s,
        |s| s.bytes_each,
        |s| s.seconds,
    ];
    figures.iter().find_map(|figure| mine.beside(theirs, figure))
}

/// Three digits are what can be believed.
fn number(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_from_the_page_to_the_figures() {
        let way = |file: &str, out: &str| way_from(file.as_ref(), out.as_ref());
        assert_eq!(way("docs/book/a.md", "docs/bench"), Path::new("../../docs/bench"));
        assert_eq!(way("README.md", "docs/bench"), Path::new("docs/bench"));
        assert_eq!(way("docs/a.md", "/elsewhere"), Path::new("/elsewhere"));
    }

    #[test]
    fn a_summary_takes_the_place_of_the_one_before() {
        let text = "a\n<!-- bench -->\nold\n<!-- /bench -->\nz\n";
        let new = between_marks(text, "new").unwrap();
        assert_eq!(new, "a\n<!-- bench -->\nnew\n<!-- /bench -->\nz\n");
        assert_eq!(between_marks(&new, "new").as_deref(), Some(&*new));
        assert!(between_marks("no marks", "new").is_none());
    }
}
