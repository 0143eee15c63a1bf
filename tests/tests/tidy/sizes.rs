//! Files near 200 lines, never above 500; functions of 70 lines at most.
//!
//! A function counts from its `fn` to its closing brace; nested functions and
//! closures count for the outer one too. A body is found by matching braces, so
//! a brace inside of a const expression in a signature would mislead it.

use crate::source::{Source, Tok, Token};

const FILE_MAX: usize = 500;
const FILE_LONG: usize = 300;
const FUNCTION_MAX: usize = 70;

/// Files that a program makes: their length is that of its subject.
const GENERATED: [&str; 1] = ["exs/src/verbs/raw/abi/bindings.rs"];

/// Files that are still allowed but should be split.
pub(crate) fn long_files(src: &Source) -> Vec<String> {
    let lines = src.text.lines().count();
    if lines > FILE_LONG && !GENERATED.contains(&src.path.as_str()) {
        vec![format!("{}: {lines} lines", src.path)]
    } else {
        Vec::new()
    }
}

pub(crate) fn check(src: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = src.text.lines().count();
    if lines > FILE_MAX && !GENERATED.contains(&src.path.as_str()) {
        findings.push(format!("{}: {lines} lines, {FILE_MAX} are the limit: split it", src.path));
    }
    for (offset, name, lines) in functions(src) {
        if lines > FUNCTION_MAX {
            findings.push(src.at(
                offset,
                &format!("fn {name} has {lines} lines, {FUNCTION_MAX} are the limit: split it"),
            ));
        }
    }
    findings
}

/// Offset, name and number of lines of each function with a body.
fn functions(src: &Source) -> Vec<(usize, String, usize)> {
    let toks = src.tokens();
    let mut found = Vec::new();
    for i in 0..toks.len() {
        if let (start, Tok::Word("fn")) = toks[i]
            && let Some((_, Tok::Word(name))) = toks.get(i + 1)
            && let Some(end) = body_end(&toks[i + 2..])
        {
            let lines = src.line_of(end) - src.line_of(start) + 1;
            found.push((start, (*name).to_owned(), lines));
        }
    }
    found
}

/// Offset of the brace that closes the body; none for a declaration.
fn body_end(toks: &[Token<'_>]) -> Option<usize> {
    let (mut brackets, mut braces) = (0i32, 0i32);
    for (offset, tok) in toks {
        match tok {
            Tok::Punct(b'(' | b'[') => brackets += 1,
            Tok::Punct(b')' | b']') => brackets -= 1,
            Tok::Punct(b';') if braces == 0 && brackets == 0 => return None,
            Tok::Punct(b'{') => braces += 1,
            Tok::Punct(b'}') => {
                braces -= 1;
                if braces == 0 {
                    return Some(*offset);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn f(a: [u8; 2]) -> u8 {{\n{}}}\n", "    g(\"}\");\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_and_files_are_caught() {
        assert_eq!(check(&Source::new("a.rs", &function(71))).len(), 1);
        assert_eq!(check(&Source::new("a.rs", &function(70))).len(), 0);
        assert_eq!(check(&Source::new("a.rs", &"\n".repeat(501))).len(), 1);
        assert_eq!(check(&Source::new("a.rs", &"\n".repeat(500))).len(), 0);
        assert_eq!(long_files(&Source::new("a.rs", &"\n".repeat(301))).len(), 1);
    }

    #[test]
    fn declarations_and_function_pointers_have_no_body() {
        let text = format!("trait T {{ fn a(&self); }}\ntype P = fn(u8);\n{}", function(10));
        let src = Source::new("a.rs", &text);
        assert_eq!(functions(&src).iter().map(|f| f.2).collect::<Vec<_>>(), [10]);
    }
}
