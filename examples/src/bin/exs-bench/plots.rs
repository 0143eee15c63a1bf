//! Which pictures are drawn.

use std::path::Path;

use exs_tools::fail::Failure;

use crate::results::{Case, Sample, Section};
use crate::svg::{Chart, Line};

/// Draws the measurements. Returns the names of the files, each with its subject.
pub(crate) fn draw(done: &[Section], out: &Path) -> Result<Vec<(String, String)>, Failure> {
    let mut charts = Vec::new();
    for section in done {
        match section.id.as_str() {
            "bandwidth" => {
                charts.push((
                    "bandwidth.svg".to_owned(),
                    by_case(section, "GB/s", |s| s.gbytes_per_s),
                ));
                let mut cpu = by_case(section, "ns/byte", |s| s.cpu_ns_per_byte);
                cpu.title = "Processor time of both sides for each byte".to_owned();
                charts.push(("cpu.svg".to_owned(), cpu));
            }
            "latency" => {
                for (n, case) in section.cases.iter().enumerate() {
                    let waits = ["busy", "notify", "adaptive"];
                    let name = format!("latency-{}.svg", waits.get(n).unwrap_or(&"other"));
                    charts.push((name, percentiles(&section.title, case)));
                }
            }
            _ => {}
        }
    }
    let mut names = Vec::new();
    for (name, chart) in charts.into_iter().filter(|(_, c)| !c.lines.is_empty()) {
        crate::write(&out.join(&name), &chart.svg())?;
        names.push((name, chart.title));
    }
    Ok(names)
}

/// A line for each contender over all cases.
fn by_case(section: &Section, up: &str, figure: fn(&Sample) -> Option<f64>) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    for (place, case) in section.cases.iter().enumerate() {
        for entry in case.entries.iter().filter(|e| !e.samples.is_empty()) {
            let Some(value) = figure(&entry.median).filter(|v| *v > 0.0) else { continue };
            match lines.iter_mut().find(|l| l.name == entry.contender) {
                Some(line) => line.points.push((place, value)),
                None => {
                    lines
                        .push(Line { name: entry.contender.clone(), points: vec![(place, value)] });
                }
            }
        }
    }
    Chart {
        title: section.title.clone(),
        places: section.cases.iter().map(|c| c.title.clone()).collect(),
        across: "bytes of a message".to_owned(),
        up: up.to_owned(),
        // memcpy in the caches is a hundred times what small messages reach.
        logarithmic: true,
        lines,
    }
}

/// A line for each contender over the percentiles of one case.
fn percentiles(title: &str, case: &Case) -> Chart {
    let line = |(name, s): (&String, &Sample)| {
        let figures = [s.p50_us, s.p99_us, s.p999_us];
        let points: Vec<_> =
            figures.iter().enumerate().filter_map(|(n, f)| Some((n, (*f)?))).collect();
        (!points.is_empty()).then(|| Line { name: name.clone(), points })
    };
    let measured = case.entries.iter().filter(|e| !e.samples.is_empty());
    Chart {
        title: format!("{title}, {}", case.title),
        places: ["median", "99 %", "99.9 %"].map(str::to_owned).to_vec(),
        across: "percentile".to_owned(),
        up: "us".to_owned(),
        logarithmic: true,
        lines: measured.map(|e| (&e.contender, &e.median)).filter_map(line).collect(),
    }
}
