//! Figures of the kernel's RDMA devices, from the log of the test bed that measured them
//! (tests/rdma/suites/neighbours.sh): EXS beside perftest and rsocket's rstream.

use std::path::{Path, PathBuf};
use std::{fs, io};

use exs_tools::fail::{During, Failure};
use serde::Deserialize;

use crate::plan::bytes;
use crate::results::{Case, Sample, Section};

/// The beginning of a line of JSON in a log.
const MARK: &str = "json {";

#[derive(Deserialize)]
struct Line {
    device: String,
    /// `bw`, in GB/s, or `lat`: half a round trip in microseconds.
    test: String,
    size: usize,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    contender: String,
    samples: Vec<f64>,
}

/// The section that these logs make.
pub(crate) fn read(logs: &[PathBuf]) -> Result<Section, Failure> {
    let mut cases = Vec::new();
    for log in logs {
        let before = cases.len();
        let text = if log == Path::new("-") {
            io::read_to_string(io::stdin()).during("standard input")?
        } else {
            fs::read_to_string(log).during(log.display())?
        };
        // Consoles end their lines in ways of their own.
        for line in text.lines().map(str::trim_end) {
            if let Some(at) = line.find(MARK) {
                cases.push(case(&line[at + MARK.len() - 1..]).during(log.display())?);
            }
        }
        if cases.len() == before {
            return Err(Failure(format!(
                "{} has no figures: is it a log of `make test-rdma SUITES=neighbours`?",
                log.display()
            )));
        }
    }
    Ok(Section::new("verbs", "RDMA devices of the kernel, in a guest", cases))
}

fn case(json: &str) -> serde_json::Result<Case> {
    let line: Line = serde_json::from_str(json)?;
    let title = format!("{}, {}, {}", line.device, line.test, bytes(line.size));
    let mut case = Case::called(&title);
    for entry in line.entries {
        let to = case.entry(&entry.contender);
        if entry.samples.is_empty() {
            to.failure = Some("it failed in the guest: the log says how".to_owned());
        }
        to.samples.extend(entry.samples.iter().map(|figure| match line.test.as_str() {
            "lat" => Sample { p50_us: Some(*figure), ..Sample::default() },
            _ => Sample { gbytes_per_s: Some(*figure), ..Sample::default() },
        }));
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_a_log() {
        let dir = std::env::temp_dir().join(format!("exs-bench-guest-{}", std::process::id()));
        let text = concat!(
            "ok      bandwidth, 64 KiB (3.1 s)\r\n",
            "          EXS 0.21 GB/s, perftest 0.24 (ratio 0.86, aim at least 0.95)\r\n",
            r#"          json {"device":"rxe","test":"bw","size":65536,"entries":["#,
            r#"{"contender":"EXS verbs","samples":[0.2,0.3,0.1]},{"contender":"perftest","samples":[0.25]},{"contender":"rstream","samples":[]}]}"#,
            "\r\n",
        );
        fs::write(&dir, text).unwrap();
        let section = read(std::slice::from_ref(&dir)).unwrap();
        assert_eq!(section.cases[0].title, "rxe, bw, 64 KiB");
        let of = |name| section.cases[0].of(name).unwrap().median.gbytes_per_s;
        assert_eq!((of("EXS verbs"), of("perftest")), (Some(0.2), Some(0.25)));
        let failed: Vec<_> = section.failures().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(failed, ["rstream"]);
        fs::write(&dir, "nothing\n").unwrap();
        assert!(read(std::slice::from_ref(&dir)).err().unwrap().to_string().contains("no figures"));
        fs::remove_file(&dir).unwrap();
    }
}
