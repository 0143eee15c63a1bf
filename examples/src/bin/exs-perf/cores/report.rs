//! The table: rows as groups of them are done.

use std::fmt;

use exs_tools::fail::{During, Failure};
use exs_tools::out;
use exs_tools::stats::median;
use serde::Serialize;

use super::plan::{Aim, Compared, Group, Row, over_tcp};
use super::sample::Subject;
use super::shape::{Sample, Unit};

/// The samples of a subject, one for each round, or why there are none.
pub(super) type Samples = Result<Vec<Sample>, Failure>;

/// What the runs of a group gave.
pub(super) struct Measured(pub(super) Vec<(Subject, Samples)>);

impl Measured {
    fn of(&self, subject: Subject) -> Option<&[Sample]> {
        let found = self.0.iter().find(|(s, _)| *s == subject);
        found.and_then(|(_, samples)| samples.as_deref().ok())
    }

    /// The median of what each round says.
    fn ratio(&self, subject: Subject, with: Subject) -> Option<f64> {
        let (a, b) = (self.of(subject)?, self.of(with)?);
        let each: Vec<f64> = a.iter().zip(b).map(|(a, b)| a.figure / b.figure).collect();
        Some(median(&each)).filter(|ratio| ratio.is_finite())
    }

    fn figures(&self, subject: Subject) -> Option<Vec<f64>> {
        Some(self.of(subject)?.iter().map(|s| s.figure).collect())
    }

    /// The value that has the aim.
    fn compared(&self, row: &Row) -> Option<f64> {
        match row.compared {
            Compared::Nothing => None,
            Compared::With(other) => self.ratio(row.subject, other),
            Compared::Itself => self.figures(row.subject).as_deref().map(median),
            Compared::Slowest => {
                let slowest = self.of(row.subject)?.iter().filter_map(|s| s.slowest);
                Some(median(&slowest.collect::<Vec<_>>()))
            }
        }
    }
}

/// An aim with its number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// None: what it depends on was not measured.
    fn new(aim: Aim, measured: &Measured) -> Option<Bound> {
        Some(match aim {
            Aim::Least(least) => Bound::AtLeast(least),
            Aim::Most(most) => Bound::AtMost(most),
            Aim::LeastOrGain(least, a, b) => Bound::AtLeast(measured.ratio(a, b)?.min(least)),
        })
    }

    /// A value that was not measured meets no aim.
    fn is_met(self, value: Option<f64>) -> bool {
        value.is_some_and(|value| match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, ">= {}", number(*least)),
            Bound::AtMost(most) => write!(f, "<= {}", number(*most)),
        }
    }
}

/// A ratio with three places, which tell it from its aim; a larger number without any.
fn number(n: f64) -> String {
    if n >= 1000.0 { format!("{n:.0}") } else { format!("{n:.3}") }
}

/// A row of the JSON output.
#[derive(Serialize)]
struct Record<'a> {
    test: &'static str,
    group: &'a str,
    shape: String,
    /// Null where no transport takes part.
    transport: Option<String>,
    unit: Unit,
    /// One figure for each round. None if a run has failed.
    samples: Vec<f64>,
    /// Their median. Null if a run has failed.
    figure: Option<f64>,
    /// Compared with plain TCP in the same shape. Null where that was not measured.
    of_tcp: Option<f64>,
    compared_with: Option<String>,
    /// The median of the ratios of the rounds; what has the aim.
    ratio: Option<f64>,
    aim: Option<Bound>,
    /// Null where there is no aim.
    met: Option<bool>,
    failed: Option<String>,
}

/// How many aims there are, and how many figures could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) met: usize,
    pub(super) missed: usize,
    pub(super) failed: usize,
}

pub(super) struct Table {
    json: bool,
    pub(super) totals: Totals,
}

impl Table {
    pub(super) fn new(json: bool) -> Result<Table, Failure> {
        if !json {
            out!(
                "{:38} {:5} {:>11} {:5} {:>7} {:>8}  {:30} {:>10}",
                "shape",
                "",
                "median",
                "",
                "of tcp",
                "ratio",
                "compared with",
                "aim"
            )?;
        }
        Ok(Table { json, totals: Totals::default() })
    }

    pub(super) fn print(&mut self, group: &Group, measured: &Measured) -> Result<(), Failure> {
        for row in &group.rows {
            let record = record(group, row, measured);
            match record.met {
                Some(true) => self.totals.met += 1,
                Some(false) => self.totals.missed += 1,
                None => {}
            }
            if self.json {
                out!("{}", serde_json::to_string(&record).during("JSON")?)?;
            } else {
                line(&record)?;
            }
        }
        for (subject, samples) in &measured.0 {
            let Err(why) = samples else { continue };
            self.totals.failed += 1;
            if !self.json {
                let carrier = subject.carrier.map_or_else(String::new, |c| format!(" over {c}"));
                out!("  failed: {}{carrier}: {why}", subject.shape)?;
            }
        }
        Ok(())
    }
}

fn record<'a>(group: &'a Group, row: &Row, measured: &Measured) -> Record<'a> {
    let subject = row.subject;
    let samples = measured.figures(subject);
    let ratio = measured.compared(row);
    let aim = row.aim.and_then(|aim| Bound::new(aim, measured));
    let failed = measured.0.iter().find(|(s, _)| *s == subject);
    Record {
        test: "cores",
        group: &group.name,
        shape: subject.shape.to_string(),
        transport: subject.carrier.map(|c| c.to_string()),
        unit: subject.shape.unit(),
        figure: samples.as_deref().map(median),
        samples: samples.unwrap_or_default(),
        of_tcp: over_tcp(subject).and_then(|tcp| measured.ratio(subject, tcp)),
        compared_with: match row.compared {
            Compared::Nothing | Compared::Itself => None,
            Compared::With(other) if other.carrier == subject.carrier => {
                Some(other.shape.to_string())
            }
            Compared::With(other) => other.carrier.map(|c| c.to_string()),
            Compared::Slowest => Some("slowest connection / mean".to_owned()),
        },
        ratio,
        aim,
        met: aim.map(|aim| aim.is_met(ratio)),
        failed: failed.and_then(|(_, s)| s.as_ref().err()).map(ToString::to_string),
    }
}

fn line(r: &Record<'_>) -> Result<(), Failure> {
    let value = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
    let figure = match r.figure {
        None => "failed".to_owned(),
        Some(f) if r.unit == Unit::Micros => format!("{f:.1}"),
        Some(f) => format!("{f:.0}"),
    };
    let mark = match r.met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "",
    };
    let text = format!(
        "{:38} {:5} {figure:>11} {:5} {:>7} {:>8}  {:30} {:>10}  {mark}",
        r.shape,
        r.transport.as_deref().unwrap_or("-"),
        r.unit,
        value(r.of_tcp),
        value(r.ratio),
        r.compared_with.as_deref().unwrap_or(""),
        r.aim.map_or_else(String::new, |aim| aim.to_string()),
    );
    out!("{}", text.trim_end())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::carrier::Carrier;
    use super::super::shape::Shape;
    use super::*;

    fn own(threads: usize) -> Subject {
        Subject { shape: Shape::Own { threads, size: 64 }, carrier: Some(Carrier::SHM) }
    }

    fn samples(figures: &[f64]) -> Samples {
        Ok(figures.iter().map(|&figure| Sample { figure, slowest: None }).collect())
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds() {
        let both = vec![(own(1), samples(&[1.0, 2.0, 10.0])), (own(2), samples(&[2.0, 2.0, 30.0]))];
        let measured = Measured(both);
        assert_eq!(measured.ratio(own(2), own(1)), Some(2.0));
        let row = Row {
            subject: own(2),
            compared: Compared::With(own(1)),
            aim: Some(Aim::LeastOrGain(1.6, own(2), own(1))),
        };
        let group = Group { name: "own-64".to_owned(), rows: vec![row] };
        let r = record(&group, &row, &measured);
        assert_eq!((r.figure, r.ratio, r.aim), (Some(2.0), Some(2.0), Some(Bound::AtLeast(1.6))));
        assert_eq!(r.met, Some(true));
    }

    #[test]
    fn what_failed_meets_no_aim() {
        let measured =
            Measured(vec![(own(2), Err(Failure("no".to_owned()))), (own(1), samples(&[1.0]))]);
        let (compared, aim) = (Compared::With(own(1)), Some(Aim::Least(1.8)));
        let row = Row { subject: own(2), compared, aim };
        let group = Group { name: "own-64".to_owned(), rows: vec![row] };
        let r = record(&group, &row, &measured);
        assert_eq!((r.figure, r.met, r.failed.as_deref()), (None, Some(false), Some("no")));
        assert!(Bound::AtMost(1.1).is_met(Some(1.1)) && !Bound::AtMost(1.1).is_met(None));
    }
}
