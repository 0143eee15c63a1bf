//! Floors F1 (`wire`) to F5 (`session`) do no I/O, read no clock and draw no
//! random number: that is what lets one seed replay a whole network.

use crate::source::{Source, Tok, Token};

/// `sys` and the drivers are not here: they are where the world comes in.
const PURE: [&str; 7] = ["wire", "mem", "rnic", "iwarp", "stream", "packet", "session"];

/// Names that mean a clock, a socket, a thread pool's fate, or chance.
const IMPURE: [&str; 11] = [
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "mio",
    "rand",
    "getrandom",
    "RandomState",
];

pub(crate) fn check(src: &Source) -> Vec<String> {
    let module = src.path.strip_prefix("exs/src/").and_then(|p| p.split(['/', '.']).next());
    // A file of tests may time itself, and a set in it is only compared. A
    // simulation or a model (`sim.rs`, `model.rs`) may not: it must replay.
    let tests = src.path.ends_with("/tests.rs") || src.path.contains("/tests/");
    if tests || !module.is_some_and(|m| PURE.contains(&m)) {
        return Vec::new();
    }
    // A model only asks its set whether it has been somewhere before.
    let model = src.path.ends_with("/model.rs") || src.path.contains("/model/");
    let toks = src.tokens();
    let mut findings = Vec::new();
    for (i, (offset, tok)) in toks.iter().enumerate() {
        match tok {
            Tok::Word(name) if IMPURE.contains(name) && !is_own_name(&toks, i) => findings.push(
                src.at(*offset, &format!("`{name}` on a protocol floor: take it as an argument")),
            ),
            // `new` exists for the randomly seeded hasher only.
            Tok::Word("HashMap" | "HashSet") if !model && is_constructor(&toks[i + 1..]) => {
                findings.push(src.at(
                    *offset,
                    "a randomly seeded map on a protocol floor: its order cannot be replayed",
                ));
            }
            _ => {}
        }
    }
    findings
}

/// A field, a method or a binding may be called `rand`; only paths are meant.
fn is_own_name(toks: &[Token<'_>], i: usize) -> bool {
    let Tok::Word(name) = toks[i].1 else { return false };
    let lower = name.starts_with(|c: char| c.is_ascii_lowercase());
    lower && toks.get(i + 1).map(|t| t.1) != Some(Tok::PathSep)
}

fn is_constructor(after: &[Token<'_>]) -> bool {
    matches!(after, [(_, Tok::PathSep), (_, Tok::Word("new" | "with_capacity")), ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn clocks_sockets_and_chance_are_caught() {
        let rx = "exs/src/stream/rx.rs";
        assert_eq!(found(rx, "let t = std::time::Instant::now();"), 1);
        assert_eq!(found(rx, "use std::time::{Duration, SystemTime};"), 1);
        assert_eq!(found(rx, "use std::net::TcpStream;"), 1);
        assert_eq!(found(rx, "let x = rand::random();"), 1);
        assert_eq!(found("exs/src/session/mod.rs", "let m = HashMap::new();"), 1);
    }

    #[test]
    fn arguments_and_the_outer_floors_pass() {
        let rx = "exs/src/stream/rx.rs";
        assert_eq!(found(rx, "fn f(now: Time, rand: u64) { g(rand) } // Instant"), 0);
        assert_eq!(found(rx, "let m = HashMap::with_hasher(Fixed);"), 0);
        assert_eq!(found("exs/src/tcp/mod.rs", "use std::time::Instant; use mio::Poll;"), 0);
        assert_eq!(found("exs/src/time.rs", "use std::time::Duration;"), 0);
        assert_eq!(found("tests/tests/a.rs", "Instant::now()"), 0);
        assert_eq!(found("exs/src/stream/tests.rs", "Instant::now()"), 0);
        assert_eq!(found("exs/src/stream/sim.rs", "Instant::now()"), 1);
        assert_eq!(found("exs/src/stream/model/a.rs", "Instant::now()"), 1);
        assert_eq!(found("exs/src/stream/model/a.rs", "HashSet::new()"), 0);
    }
}
