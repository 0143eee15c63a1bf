//! exs-aio-bench: it measures what it was asked for, and refuses what it does not know.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_exs-aio-bench")).args(args).output().unwrap()
}

#[test]
fn it_measures_the_stream_that_was_asked_for() {
    for options in [&["--spawn"][..], &["--multi", "--processes"], &["--workers=5"]] {
        let args = ["many", "1", "--only=shm", "--connections=5"];
        let measured = bench(&[&args[..], options].concat());
        let figures = String::from_utf8(measured.stdout).unwrap();
        assert!(measured.status.success(), "{options:?}: {figures}");
        let words: Vec<&str> = figures.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "shm").unwrap();
        assert!(words[at + 1].parse::<f64>().unwrap() > 0.0, "{figures}");
        assert_eq!((words[0], words[1], words[2]), ("many", "tcp", "NaN"), "{figures}");
    }
}

#[test]
fn an_unknown_option_is_an_error() {
    for option in ["--mutli", "--only=ftp", "--clients=0", "--connections=many", "--workers=0"] {
        let refused = bench(&["echo", "1", option]);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains(option), "{option}: {error}");
    }
}
