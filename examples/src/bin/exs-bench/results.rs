//! Results: all samples, and their medians.

use std::path::Path;

use exs_tools::fail::{During, Failure};
use exs_tools::stats::median;
use serde::Serialize;

use crate::machine::Machine;
use crate::plan;

/// One run of one contender. A figure that it does not measure, or does not say, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gbytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) msgs_per_s: Option<f64>,
    /// Half round trips, microseconds. Some neighbours give a mean only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999_us: Option<f64>,
    /// Processor time of both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ns_per_byte: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_ns_per_msg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slowest_to_mean: Option<f64>,
    /// Of an idle connection, the larger of both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_each: Option<f64>,
    /// Of a whole copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<f64>,
}

impl Sample {
    /// The median of each figure.
    fn median(all: &[Sample]) -> Sample {
        let of = |figure: fn(&Sample) -> Option<f64>| {
            let figures: Vec<f64> = all.iter().filter_map(figure).collect();
            (!figures.is_empty()).then(|| median(&figures))
        };
        Sample {
            gbytes_per_s: of(|s| s.gbytes_per_s),
            msgs_per_s: of(|s| s.msgs_per_s),
            mean_us: of(|s| s.mean_us),
            p50_us: of(|s| s.p50_us),
            p99_us: of(|s| s.p99_us),
            p999_us: of(|s| s.p999_us),
            cpu_ns_per_byte: of(|s| s.cpu_ns_per_byte),
            cpu_ns_per_msg: of(|s| s.cpu_ns_per_msg),
            slowest_to_mean: of(|s| s.slowest_to_mean),
            bytes_each: of(|s| s.bytes_each),
            seconds: of(|s| s.seconds),
        }
    }
}

/// One contender in one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) contender: String,
    pub(crate) median: Sample,
    pub(crate) samples: Vec<Sample>,
    /// Why it could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl Entry {
    /// A figure of this one as a multiple of another's: the median of what each round says. On a
    /// machine that is faster in one minute than in the next, both medians may be of different
    /// minutes, while the runs of a round follow each other. If one of them has missed a round,
    /// it is not known which runs belong together: then the ratio is that of the medians after all.
    pub(crate) fn beside(
        &self,
        other: &Entry,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        let ratio = |mine: &Sample, theirs: &Sample| {
            Some(figure(mine)? / figure(theirs).filter(|t| *t > 0.0)?)
        };
        let rounds = self.samples.iter().zip(&other.samples);
        let ratios: Option<Vec<f64>> = rounds.map(|(mine, theirs)| ratio(mine, theirs)).collect();
        match ratios.filter(|r| !r.is_empty() && self.samples.len() == other.samples.len()) {
            Some(ratios) => Some(median(&ratios)),
            None => ratio(&self.median, &other.median),
        }
    }
}

/// One case, and its contenders.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) title: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<plan::Case>,
    pub(crate) entries: Vec<Entry>,
}

impl Case {
    pub(crate) fn new(case: &plan::Case) -> Case {
        Case { shape: Some(case.clone()), ..Case::called(&case.title) }
    }

    /// A case that is nothing of sockets.
    pub(crate) fn called(title: &str) -> Case {
        Case { title: title.to_owned(), shape: None, entries: Vec::new() }
    }

    /// The entry of a contender, made if there is none.
    pub(crate) fn entry(&mut self, contender: &str) -> &mut Entry {
        let at = self.entries.iter().position(|e| e.contender == contender).unwrap_or_else(|| {
            self.entries.push(Entry {
                contender: contender.to_owned(),
                median: Sample::default(),
                samples: Vec::new(),
                failure: None,
            });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    /// A contender that has reached something.
    pub(crate) fn of(&self, contender: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.contender == contender && !e.samples.is_empty())
    }
}

/// Cases that belong together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Section {
    #[serde(rename = "section")]
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) cases: Vec<Case>,
}

impl Section {
    /// Takes the medians.
    pub(crate) fn new(id: &str, title: &str, mut cases: Vec<Case>) -> Section {
        for entry in cases.iter_mut().flat_map(|c| &mut c.entries) {
            entry.median = Sample::median(&entry.samples);
        }
        Section { id: id.to_owned(), title: title.to_owned(), cases }
    }

    /// The contenders that could not be measured, each with the reason.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.cases.iter().flat_map(|c| &c.entries);
        entries.filter_map(|e| Some((e.contender.as_str(), e.failure.as_deref()?)))
    }

    /// Writes it as JSON, with the machine that it was measured on.
    pub(crate) fn write(&self, dir: &Path, machine: &Machine) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct File<'a> {
            machine: &'a Machine,
            #[serde(flatten)]
            section: &'a Section,
        }
        let mut text =
            serde_json::to_string_pretty(&File { machine, section: self }).during("JSON")?;
        text.push('\n');
        crate::write(&dir.join(format!("{}.json", self.id)), &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_figure_by_figure() {
        let mut case = Case::called("c");
        for (g, p) in [(3.0, None), (1.0, Some(5.0)), (2.0, None)] {
            let sample = Sample { gbytes_per_s: Some(g), p50_us: p, ..Sample::default() };
            case.entry("a").samples.push(sample);
        }
        case.entry("b").failure = Some("why".to_owned());
        let section = Section::new("s", "S", vec![case]);
        let a = &section.cases[0].of("a").unwrap().median;
        assert_eq!((a.gbytes_per_s, a.p50_us, a.p99_us), (Some(2.0), Some(5.0), None));
        assert!(section.cases[0].of("b").is_none());
        assert_eq!(section.failures().collect::<Vec<_>>(), [("b", "why")]);
    }

    #[test]
    fn samples_of_the_same_minute_are_compared() {
        let mut case = Case::called("c");
        // The machine is twice as fast in the second round, and half as fast in the third.
        for (a, b) in [(3.0, 2.0), (6.2, 4.0), (1.4, 1.0), (1.6, 3.0), (2.9, 2.0)] {
            for (name, g) in [("a", a), ("b", b)] {
                let sample = Sample { gbytes_per_s: Some(g), ..Sample::default() };
                case.entry(name).samples.push(sample);
            }
        }
        let ratio = |case: &Case| {
            let section = Section::new("s", "S", vec![case.clone()]);
            let [a, b] = ["a", "b"].map(|name| section.cases[0].of(name).unwrap());
            a.beside(b, |s| s.gbytes_per_s)
        };
        assert_eq!(ratio(&case), Some(1.45), "not 2.9 / 2.0 of the medians");
        case.entry("b").samples.remove(0);
        assert_eq!(ratio(&case), Some(2.9 / 2.5), "a round is missing");
        for sample in &mut case.entry("b").samples {
            sample.gbytes_per_s = None;
        }
        assert_eq!(ratio(&case), None);
    }
}
