//! `exs-perf cores`: the rows of each shape are there, with every transport. Their speed is no
//! subject of these tests.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn cores(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exs-perf"));
    command.arg("cores").args(words).env_remove("EXS_TRANSPORT").env_remove("EXS_DEVICE");
    command.stdin(Stdio::null()).output().unwrap()
}

/// Rows as `shape, transport, compared with`, of one short round with small numbers. Each has a
/// figure, and a mark where it has an aim.
fn rows(groups: &str, words: &[&str]) -> Vec<String> {
    let small =
        ["--only", groups, "--quick", "--duration=0.02", "--connections=12", "--at-once=30"];
    let out = cores(&[&small[..], &["--queues=3", "--json"], words].concat());
    assert!(out.status.success(), "{groups}: {out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let row = |line: &str| {
        let r: Value = serde_json::from_str(line).unwrap();
        assert_eq!(r["test"], "cores", "{r}");
        assert!(r["failed"].is_null(), "{r}");
        assert!(r["figure"].as_f64().is_some_and(|f| f >= 0.0), "{r}");
        assert_eq!(r["samples"].as_array().map(Vec::len), Some(1), "{r}");
        assert_eq!(r["aim"].is_null(), r["met"].is_null(), "{r}");
        let word = |name: &str| r[name].as_str().unwrap_or("-").to_owned();
        [word("shape"), word("transport"), word("compared_with")].join(" | ")
    };
    text.lines().map(row).collect()
}

/// The same row over each of these transports.
fn over(transports: &[&str], shape: &str, compared: &str) -> Vec<String> {
    transports.iter().map(|t| format!("{shape} | {t} | {compared}")).collect()
}

const ALL: [&str; 3] = ["tcp", "soft", "shm"];
const EXS: [&str; 2] = ["soft", "shm"];

fn assert_rows(found: Vec<String>, wanted: &[Vec<String>]) {
    let (mut found, mut wanted) = (found, wanted.concat());
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn threads_with_queues_of_their_own() {
    let found = rows("own", &["--threads=1,2,4", "--sizes=64,64k"]);
    let mut wanted = vec![
        over(&["-"], "memcpy, 64 KiB, 1 thread", "-"),
        over(&["-"], "memcpy, 64 KiB, 2 threads", "memcpy, 64 KiB, 1 thread"),
    ];
    for size in ["64 B", "64 KiB"] {
        let of = |threads: &str| format!("own, {size}, {threads}");
        wanted.push(over(&ALL, &of("1 thread"), "-"));
        wanted.push(over(&ALL, &of("2 threads"), &of("1 thread")));
        wanted.push(over(&ALL, &of("4 threads"), &of("2 threads")));
    }
    assert_rows(found, &wanted);
}

#[test]
fn connections_that_one_thread_accepts_for_others() {
    let wanted: Vec<_> = [(2, ""), (16, ""), (16, " after an answer"), (128, "")]
        .into_iter()
        .flat_map(|(connections, when)| {
            let shape = format!("{connections} handed to 2 threads{when}");
            [over(&["tcp"], &shape, "-"), over(&EXS, &shape, "tcp")]
        })
        .collect();
    assert_rows(rows("handed", &[]), &wanted);
}

#[test]
fn connections_of_a_pool() {
    let wanted: Vec<_> = [(8, 2), (32, 8), (128, 32)]
        .into_iter()
        .flat_map(|(connections, threads)| {
            let of = |how| format!("{connections} in a pool of {threads} threads, {how}");
            let [blocking, queues] = ["blocking", "by queues"].map(of);
            [
                over(&["tcp"], &blocking, "-"),
                over(&EXS, &blocking, "tcp"),
                over(&EXS, &queues, "tcp"),
            ]
        })
        .collect();
    assert_rows(rows("pooled", &[]), &wanted);
}

#[test]
fn pairs_of_threads() {
    let found = rows("pairs", &["--pairs=1,3"]);
    let beside_tcp = |tcp: &str, shape: &str| [over(&["tcp"], tcp, "-"), over(&EXS, shape, "tcp")];
    let wanted: Vec<_> = ["1 pair", "3 pairs"]
        .into_iter()
        .flat_map(|pairs| {
            let (blocking, queued) =
                (format!("{pairs} of threads"), format!("{pairs}, each with a queue"));
            [beside_tcp(&blocking, &blocking), beside_tcp(&blocking, &queued)].concat()
        })
        .collect();
    assert_rows(found, &wanted);
}

#[test]
fn loops_that_sleep_in_epoll() {
    let found = rows("half-trip,server", &[]);
    let cores = std::thread::available_parallelism().unwrap().get();
    let places = &["", ", one core", ", two cores"][..if cores > 1 { 3 } else { 2 }];
    let trips = places.iter().map(|&place| ("half trip, epoll", place));
    let wanted: Vec<_> = trips
        .chain([("12 asked, epoll", "")])
        .flat_map(|(shape, place)| {
            let of = |way: &str| format!("{shape}, {way}{place}");
            let tcp = over(&["tcp"], &of("sockets"), "-");
            [tcp, over(&EXS, &of("queue"), "tcp"), over(&EXS, &of("sockets"), "tcp")]
        })
        .collect();
    assert_rows(found, &wanted);
}

#[test]
fn questions_now_and_then() {
    let found = rows("rarely", &[]);
    let shapes = ["round trip, every 5 ms", "round trip, every 20 ms"]
        .into_iter()
        .flat_map(|trip| [trip.to_owned(), trip.replace("round trip", "processor time")]);
    let wanted: Vec<_> =
        shapes.flat_map(|shape| [over(&["tcp"], &shape, "-"), over(&EXS, &shape, "tcp")]).collect();
    assert_rows(found, &wanted);
}

#[test]
fn many_connections() {
    let found = rows("many", &[]);
    let mut wanted = Vec::new();
    for size in ["64 KiB", "1 MiB"] {
        let one = format!("1 connection, 12 x {size}");
        let many = format!("12 connections, {size}, 2 threads");
        wanted.push(over(&ALL, &one, "-"));
        wanted.push(over(&ALL, &many, &one));
        wanted.push(over(&EXS, &many, "tcp"));
        wanted.push(over(&ALL, &many, "slowest connection / mean"));
    }
    assert_rows(found, &wanted);
}

#[test]
fn connections_that_come_and_go() {
    let found = rows("connects", &[]);
    let (one, two) = ("connects, 1 thread accepts", "connects, 2 threads accept");
    let mut wanted = vec![over(&ALL, two, one)];
    for shape in ["connects in turn", "30 connects at once", one, two] {
        wanted.push(over(&["tcp"], shape, "-"));
        wanted.push(over(&EXS, shape, "tcp"));
    }
    let served = ["1 thread, a thread for each", "8 threads, a thread for each"];
    let pools = ["2 threads, a pool serves", "8 threads, a pool serves"];
    for threads in served.into_iter().chain(pools) {
        let shape = format!("connects of {threads}");
        wanted.push(over(&["tcp"], &shape, "-"));
        wanted.push(over(&EXS, &shape, "tcp"));
    }
    assert_rows(found, &wanted);
}

#[test]
fn memory_of_what_idles() {
    let found = rows("idle", &[]);
    let wanted = [
        over(&ALL, "1 of 30 idle connections", "-"),
        over(&["-", "soft", "shm"], "1 of 3 idle queues", "-"),
    ];
    assert_rows(found, &wanted);
}

#[test]
fn the_table_names_aims_and_failures() {
    let small = ["--only=pairs-1", "--quick", "--duration=0.02"];
    let out = cores(&small);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains(">= 0.900"), "{text}");
    assert!(text.contains("processors, load") && text.contains("aims met"), "{text}");

    // A run that fails costs its row, and the others are measured.
    let out = cores(&[&small[..], &["--transports=tcp,verbs"]].concat());
    let (text, said) =
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    if !out.status.success() {
        assert!(text.contains("failed: 1 pair of threads over verbs"), "{text}");
        assert!(text.contains("tcp") && said.contains("could not be measured"), "{text}{said}");
    }
}

#[test]
fn wrong_use_is_explained() {
    let refused = |words: &[&str]| {
        let out = cores(words);
        assert!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let said = refused(&["--only=throughput"]);
    assert!(said.contains("`throughput`") && said.contains("connects-at-once"), "{said}");
    assert!(refused(&["--threads=0"]).contains("from 1 to"));
    assert!(refused(&["--transports=pigeon"]).contains("use tcp, soft"));
    assert!(refused(&["--rounds=0"]).contains("1..=99"));
}
