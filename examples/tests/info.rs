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
    let remedy = if cfg!(feature = "verbs") { "modprobe" } else { "feature `verbs`" };
    assert!(trouble.contains(remedy), "{trouble}");
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
