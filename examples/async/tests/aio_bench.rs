//! exs-aio-bench: it measures what it was asked for, and refuses what it does not know.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_exs-aio-bench")).args(args).output().unwrap()
}

#[test]
fn it_measures_the_stream_that_was_asked_for() {
    for options in
        [&["--spawn"][..], &["--multi", "--processes"], &["--workers", "5", "--processes"]]
    {
        let args = ["many", "1", "--only=shm", "--connections=5"];
        let measured = bench(&[&args[..], options].concat());
        let figures = String::from_utf8(measured.stdout).unwrap();
        assert!(measured.status.success(), "{options:?}: {figures}");
        let words: Vec<&str> = figures.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "shm").unwrap();
        assert!(words[at + 1].parse::<f64>().unwrap() > 0.0, "{figures}");
        assert_eq!((words[0], words[1]), ("many", "shm"), "no other was measured: {figures}");
    }
}

#[test]
fn what_it_does_not_know_is_an_error() {
    let bad: [(&[&str], &str); 6] = [
        (&["echo", "1", "--mutli"], "--mutli"),
        (&["echo", "1", "--only=ftp"], "ftp"),
        (&["echo", "1", "--clients=0"], "--clients"),
        (&["echo", "1", "--connections", "many"], "--connections"),
        (&["echo", "1", "--workers=0"], "--workers"),
        (&["ehco"], "ehco"),
    ];
    for (args, named) in bad {
        let refused = bench(args);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(named) && error.contains("--help"), "{args:?}: {error}");
    }
}

#[test]
fn its_help_names_each_scenario_and_option() {
    let help = bench(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success(), "{text}");
    let names = ["echo", "bulk", "http", "many", "--workers", "--processes", "--only", "--clients"];
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
}
