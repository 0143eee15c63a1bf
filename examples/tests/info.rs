//! exs-info, as a process: on a host with devices and without, built with them and without.

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exs-info"));
    command.args(args).env_remove("EXS_TRANSPORT").env_remove("EXS_DEVICE");
    command.envs(env.iter().copied()).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let out = run(args, &[]);
    assert!(out.status.success(), "{out:?}");
    assert!(out.stderr.is_empty(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    object(&text(&[args, &["--json"]].concat()))
}

/// The output when the transport or device that was asked for is missing.
fn json_of_failure(args: &[&str]) -> Value {
    let out = run(&[args, &["--json"]].concat(), &[]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(!out.stderr.is_empty(), "{out:?}");
    object(&String::from_utf8(out.stdout).unwrap())
}

fn object(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

fn verbs(facts: &Value) -> &Value {
    let all = facts["transports"].as_array().unwrap();
    all.iter().find(|t| t["name"] == "verbs").unwrap()
}

#[test]
fn it_shows_what_there_is() {
    let text = text(&[]);
    assert!(text.starts_with(&format!("EXS {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains("\nsoft   available"), "{text}");
    assert!(text.contains("\nverbs  "), "{text}");
    assert!(!text.contains("\nto "), "{text}");
    let facts = json(&[]);
    assert_eq!(verbs(&facts)["built_in"], cfg!(feature = "verbs"));
    assert!(facts.get("choice").is_none());
}

/// A user that lacks something is told what to do.
#[test]
fn what_is_missing_comes_with_a_remedy() {
    let facts = json(&[]);
    let verbs = verbs(&facts);
    if verbs["available"] == true {
        assert!(!verbs["devices"].as_array().unwrap().is_empty());
        return;
    }
    let trouble = verbs["trouble"].as_str().unwrap();
    let remedies = if cfg!(feature = "verbs") {
        ["modprobe", "install them"].as_slice()
    } else {
        &["feature `verbs`"]
    };
    assert!(remedies.iter().any(|remedy| trouble.contains(remedy)), "{trouble}");
}

/// Runs exs-info in a mount namespace where `other` has taken the place of `library`. None: this user
/// may not make one.
#[cfg(all(feature = "verbs", not(feature = "verbs-link")))]
fn run_without(library: &str, other: &str, args: &[&str]) -> Option<Output> {
    let script = r#"at=$(ldconfig -p | sed -n "s/^[[:space:]]*$1 .*=> //p" | head -n 1)
        [ -z "$at" ] || mount --bind "$2" "$(realpath "$at")" || exit 99
        shift 2; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", library, other, env!("CARGO_BIN_EXE_exs-info")]);
    let out = command.args(args).env_remove("EXS_TRANSPORT").env_remove("EXS_DEVICE").output();
    match out {
        Ok(out) if !String::from_utf8_lossy(&out.stderr).contains("unshare") => Some(out),
        _ => {
            eprintln!("skipped: a mount namespace needs root, and unshare(1)");
            None
        }
    }
}

/// True if this host has no such library.
#[cfg(all(feature = "verbs", not(feature = "verbs-link")))]
fn lacks(library: &str) -> bool {
    let out = Command::new(env!("CARGO_BIN_EXE_exs-info")).arg("--json").output().unwrap();
    let facts = object(&String::from_utf8(out.stdout).unwrap());
    let trouble = verbs(&facts)["trouble"].as_str().unwrap_or_default();
    trouble.starts_with(&format!("{library} cannot be used: "))
}

/// One binary for all hosts: without rdma-core it starts, and has everything but RDMA devices.
#[cfg(all(feature = "verbs", not(feature = "verbs-link")))]
#[test]
fn a_host_without_rdma_core_lacks_rdma_devices_only() {
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let Some(out) = run_without(library, "/dev/null", &["--json"]) else { return };
        assert!(out.status.success(), "{out:?}");
        let facts = object(&String::from_utf8(out.stdout).unwrap());
        let verbs = verbs(&facts);
        // A host that has neither lacks the first one.
        let library = if lacks("libibverbs.so.1") { "libibverbs.so.1" } else { library };
        assert_eq!((&verbs["built_in"], &verbs["available"]), (&true.into(), &false.into()));
        let trouble = verbs["trouble"].as_str().unwrap();
        assert!(trouble.starts_with(&format!("{library} cannot be used: ")), "{trouble}");
        assert!(trouble.contains("ibverbs-providers"), "{trouble}");

        let out = run_without(library, "/dev/null", &["127.0.0.1"]).unwrap();
        assert!(out.status.success(), "other transports work: {out:?}");
        let out =
            run_without(library, "/dev/null", &["127.0.0.1", "--transport", "verbs"]).unwrap();
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(library), "{out:?}");
    }
}

#[cfg(all(feature = "verbs", not(feature = "verbs-link")))]
#[test]
fn a_library_that_lacks_a_function_is_too_old() {
    // A library of the same kind without any of the functions.
    let other =
        ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
    let Some(other) = other.iter().find(|at| std::path::Path::new(at).exists()) else { return };
    let Some(out) = run_without("libibverbs.so.1", other, &["--json"]) else { return };
    let facts = object(&String::from_utf8(out.stdout).unwrap());
    let trouble = verbs(&facts)["trouble"].as_str().unwrap().to_owned();
    if !trouble.contains("No such file") {
        assert!(trouble.contains("too old: ibv_") && trouble.contains("IBVERBS_1."), "{trouble}");
    }
}

#[test]
fn it_tells_what_would_be_chosen() {
    // No RDMA device has a loopback address.
    for address in ["127.0.0.1", "127.0.0.1:7471", "::1", "[::1]:7471"] {
        let facts = json(&[address]);
        assert_eq!(facts["choice"]["chosen"], "shm", "{facts}");
        let ways = facts["choice"]["candidates"].as_array().unwrap();
        assert!(ways.len() >= 3, "and why not by a device: {facts}");
        assert!(ways.iter().all(|w| !w["reason"].as_str().unwrap().is_empty()));
    }
    let text = text(&["127.0.0.1"]);
    assert!(text.contains("\nto 127.0.0.1: shm\n"), "{text}");
    assert!(text.contains("\n  first by shm: "), "{text}");
    assert!(text.contains("\n  then by soft: "), "{text}");
    assert!(text.contains("\n  not by verbs"), "{text}");
}

#[test]
fn a_pinned_transport_is_heeded() {
    let facts = json_of_failure(&["127.0.0.1", "--transport", "verbs"]);
    assert_eq!(facts["choice"]["chosen"], Value::Null);
    let facts = json(&["127.0.0.1", "--transport", "soft"]);
    assert_eq!(facts["choice"]["candidates"].as_array().unwrap().len(), 1);
    let facts = json_of_failure(&["127.0.0.1", "--device", "nope0"]);
    assert_eq!(facts["choice"]["chosen"], Value::Null, "a device that is named must be there");
}

#[test]
fn mistakes_are_named() {
    let out = run(&["no.such.host.invalid"], &[]);
    assert!(!out.status.success());
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("no.such.host.invalid"), "{said}");
    for (name, value, options) in [
        ("EXS_TRANSPORT", "rdma", "`auto` `soft` `shm` `verbs`"),
        ("EXS_WAIT", "x", "`busy` `notify`"),
    ] {
        let out = run(&["127.0.0.1"], &[(name, value)]);
        assert!(!out.status.success(), "{out:?}");
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(said.contains(name) && said.contains(options), "{said}");
    }
}
