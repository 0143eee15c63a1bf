//! exs-bench: a quick run writes what it should. Neighbours take part if they are installed;
//! a neighbour that does not run here is none of ours.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Tags are closed in the order in which they were opened; what is between them is escaped.
fn check_xml(text: &str) {
    let mut open = Vec::new();
    for part in text.split('<').skip(1) {
        let (tag, after) = part.split_once('>').expect("a tag ends");
        assert!(!after.contains('>'), "{after}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn entries(section: &Value) -> impl Iterator<Item = &Value> {
    let cases = section["cases"].as_array().unwrap().iter();
    cases.flat_map(|c| c["entries"].as_array().unwrap())
}

#[test]
fn a_quick_run_writes_figures_plots_and_a_page() {
    let dir = std::env::temp_dir().join(format!("exs-bench-test-{}", std::process::id()));
    let out = Command::new(env!("CARGO_BIN_EXE_exs-bench"))
        .args(["--quick", "--out"])
        .arg(&dir)
        .env_remove("EXS_TRANSPORT")
        .env_remove("EXS_DEVICE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");

    let figures = [
        ("bandwidth", "gbytes_per_s", &["EXS soft", "TCP", "UNIX-domain", "memcpy"][..]),
        ("latency", "p50_us", &["EXS soft", "TCP", "TCP, spinning", "UNIX-domain"]),
        ("rate", "msgs_per_s", &["EXS soft", "TCP"]),
        ("connections", "slowest_to_mean", &[]),
        ("idle", "bytes_each", &["EXS soft", "TCP"]),
        ("files", "seconds", &["EXS soft (exs-cp)", "cp"]),
    ];
    for (name, figure, wanted) in figures {
        let section = json(&dir.join(format!("{name}.json")));
        assert_eq!(
            (&section["section"], &section["machine"]["quick"]),
            (&name.into(), &true.into())
        );
        for field in ["cpu", "kernel", "date", "exs"] {
            assert!(!section["machine"][field].as_str().unwrap().is_empty(), "{field}");
        }
        for contender in wanted {
            let mine: Vec<_> = entries(&section).filter(|e| e["contender"] == *contender).collect();
            assert!(!mine.is_empty(), "{contender} in {name}");
            for entry in mine {
                // An idle kernel socket may well cost its process nothing at all.
                let least =
                    if name == "idle" && *contender == "TCP" { 0.0 } else { f64::MIN_POSITIVE };
                assert!(entry["median"][figure].as_f64().is_some_and(|f| f >= least), "{entry}");
                assert_eq!(entry["samples"].as_array().unwrap().len(), 1, "{entry}");
            }
        }
        for entry in entries(&section) {
            let measured = !entry["samples"].as_array().unwrap().is_empty();
            assert!(measured || entry["failure"].is_string(), "{entry}");
        }
    }
    let page = fs::read_to_string(dir.join("README.md")).unwrap();
    for plot in ["bandwidth.svg", "cpu.svg", "latency-busy.svg", "latency-notify.svg"] {
        let svg = fs::read_to_string(dir.join(plot)).unwrap();
        assert!(svg.contains("EXS soft") && svg.contains("<polyline"), "{plot}");
        check_xml(&svg);
        assert!(page.contains(&format!("({plot})")), "{plot}");
    }
    assert!(page.contains("EXS soft / TCP") && page.contains("A quick run"), "{page}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn unknown_sections_are_refused() {
    let out = Command::new(env!("CARGO_BIN_EXE_exs-bench"))
        .args(["--only", "everything", "--out"])
        .arg(std::env::temp_dir())
        .output()
        .unwrap();
    assert!(!out.status.success());
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("bandwidth, latency, rate"), "{said}");
}
