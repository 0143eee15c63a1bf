//! What the errors and the outputs of programs look like.

use crate::source::{Source, Tok};

/// An error says its cause once: the message has it, or `source()` gives it, and not both.
pub(crate) fn check_said_once(src: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    let starts: Vec<usize> = src.text.match_indices("#[error(").map(|(i, _)| i).collect();
    for (nth, &start) in starts.iter().enumerate() {
        if !src.code[start..].starts_with('#') {
            continue; // in a comment
        }
        let end = starts.get(nth + 1).copied().unwrap_or(src.text.len());
        let Some(close) = src.text[start..end].find(")]") else { continue };
        let (message, rest) = src.text[start..end].split_at(close);
        // The variant ends with its line, or with the brace of its fields.
        let body = rest.split("\n    }").next().unwrap_or(rest);
        let first = body.lines().skip(1).find(|l| !l.trim_start().starts_with("///"));
        let line = first.unwrap_or_default();
        let tuple = line.contains('(');
        let gives = if tuple {
            line.contains("#[from]") || line.contains("#[source]")
        } else {
            body.contains("#[source]") || body.contains("#[from]") || body.contains(" source:")
        };
        let says = if tuple { message.contains("{0") } else { message.contains("{source") };
        if gives && says {
            findings.push(src.at(
                start,
                "the message has the cause, and source() gives it again: a chain that is printed says it \
                 twice. Call the field `cause`, and write From by hand",
            ));
        }
    }
    findings
}

/// The programs print by `out!` and `tell!`, which do not panic when the reader has gone.
pub(crate) fn check_prints(src: &Source) -> Vec<String> {
    if !src.path.starts_with("examples/src/") {
        return Vec::new();
    }
    let tests = src.code.find("#[cfg(test)]").unwrap_or(src.code.len());
    let toks = src.tokens();
    let mut findings = Vec::new();
    for pair in toks.windows(2) {
        let (Tok::Word(name @ ("print" | "println" | "eprint" | "eprintln")), Tok::Punct(b'!')) =
            (pair[0].1, pair[1].1)
        else {
            continue;
        };
        if pair[0].0 < tests {
            findings.push(src.at(
                pair[0].0,
                &format!("`{name}!` panics where no program reads: `out!` and `tell!` do not"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_is_said_twice_is_caught() {
        let found = |text| check_said_once(&Source::new("exs/src/x.rs", text)).len();
        assert_eq!(found("#[error(\"it: {source}\")]\n    A {\n        source: E,\n    },"), 1);
        assert_eq!(found("#[error(\"it: {0}\")]\n    /// Why.\n    A(#[from] E),"), 1);
        assert_eq!(found("#[error(\"it: {0}\")]\n    A(#[source] E),"), 1);
        assert_eq!(found("#[error(\"it: {0}\")]\n    A(E),"), 0);
        assert_eq!(found("#[error(\"it: {cause}\")]\n    A {\n        cause: E,\n    },"), 0);
        assert_eq!(found("#[error(transparent)]\n    A(#[from] E),"), 0);
        assert_eq!(found("#[error(\"it\")]\n    A(#[from] E),"), 0);
    }

    #[test]
    fn prints_of_programs_are_caught() {
        let found = |path, text| check_prints(&Source::new(path, text)).len();
        let text = "fn f() { println!(\"x\"); eprint!(\"y\"); }";
        assert_eq!(found("examples/src/bin/exs-cp/main.rs", text), 2);
        assert_eq!(found("exs/src/lib.rs", text), 0);
        assert_eq!(
            found("examples/src/a.rs", "out!(\"x\"); // println!()\n#[cfg(test)]\nprintln!()"),
            0
        );
    }
}
