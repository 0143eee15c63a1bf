//! Files of the tree, and Rust text without its comments and literals.

use std::fs;
use std::path::{Path, PathBuf};

/// One text file.
pub(crate) struct Source {
    /// Relative to the top of the repository, with `/`.
    pub(crate) path: String,
    /// As it is.
    pub(crate) text: String,
    /// Rust only: the same text with comments, strings and characters blanked
    /// (same length, same lines).
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let code = if path.ends_with(".rs") { blank(text) } else { String::new() };
        Source { path: path.into(), text: text.into(), code }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn line_of(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count()
    }

    pub(crate) fn at(&self, offset: usize, message: &str) -> String {
        format!("{}:{}: {message}", self.path, self.line_of(offset))
    }

    pub(crate) fn tokens(&self) -> Vec<Token<'_>> {
        tokens(&self.code)
    }
}

/// The top of the repository.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_path_buf()
}

/// True if the path, relative to the top, is there.
pub(crate) fn exists(path: &str) -> bool {
    top().join(path).exists()
}

/// All text files of the repository.
pub(crate) fn tree() -> Vec<Source> {
    let top = top();
    let mut found = Vec::new();
    walk(&top, &top, &mut found);
    found.sort_by(|a: &Source, b| a.path.cmp(&b.path));
    found
}

fn walk(top: &Path, dir: &Path, found: &mut Vec<Source>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    for entry in entries {
        let entry = entry.expect("directory entry");
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry.file_type().expect("file type");
        if kind.is_dir() {
            // Cargo marks its target directories with this tag, whatever their name.
            let generated = ["target", ".git", "corpus", "artifacts"].contains(&&*name)
                || path.join("CACHEDIR.TAG").exists();
            if !generated {
                walk(top, &path, found);
            }
        } else if kind.is_file()
            && is_text(&name)
            && let Ok(text) = fs::read_to_string(&path)
        {
            let rel = path.strip_prefix(top).expect("below the top");
            found.push(Source::new(&rel.to_string_lossy(), &text));
        }
    }
}

fn is_text(name: &str) -> bool {
    const ENDS: [&str; 9] = ["rs", "toml", "md", "sh", "yml", "yaml", "c", "h", "txt"];
    const NAMES: [&str; 3] = ["Makefile", "run", ".gitignore"];
    NAMES.contains(&name)
        || name.starts_with("LICENSE")
        || name.rsplit_once('.').is_some_and(|(_, end)| ENDS.contains(&end))
}

/// A word, `::`, or a single other character; with its offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tok<'a> {
    Word(&'a str),
    PathSep,
    Punct(u8),
}

/// A token and where it begins.
pub(crate) type Token<'a> = (usize, Tok<'a>);

fn is_word(b: u8) -> bool {
    b == b'_' || b.is_ascii_alphanumeric() || b >= 0x80
}

pub(crate) fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let (mut out, mut i) = (Vec::new(), 0);
    while i < bytes.len() {
        let start = i;
        if is_word(bytes[i]) {
            while i < bytes.len() && is_word(bytes[i]) {
                i += 1;
            }
            out.push((start, Tok::Word(&code[start..i])));
        } else if bytes[i..].starts_with(b"::") {
            i += 2;
            out.push((start, Tok::PathSep));
        } else {
            i += 1;
            if !bytes[start].is_ascii_whitespace() {
                out.push((start, Tok::Punct(bytes[start])));
            }
        }
    }
    out
}

/// Blanks comments, string and character literals; keeps line breaks.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = skip(bytes, i);
        if end == i {
            out.push(bytes[i]);
            i += 1;
        } else {
            out.extend(bytes[i..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            i = end;
        }
    }
    String::from_utf8(out).expect("whole characters were kept or blanked")
}

/// The end of the comment or literal that begins at `i`; `i` if none does.
fn skip(b: &[u8], i: usize) -> usize {
    let rest = &b[i..];
    let word_before = i > 0 && is_word(b[i - 1]);
    match rest[0] {
        b'/' if rest.starts_with(b"//") => find(b, i, b"\n"),
        b'/' if rest.starts_with(b"/*") => block_comment(b, i),
        b'r' if !word_before || (i > 0 && matches!(b[i - 1], b'b' | b'c')) => raw_string(b, i),
        b'"' => quoted(b, i, b'"'),
        b'\'' if rest.get(1) == Some(&b'\\') => quoted(b, i, b'\''),
        b'\'' => {
            // A character is closed right after its one to four bytes; a
            // lifetime is not.
            let len = rest.get(1).map_or(1, |lead| match lead {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            });
            if rest.get(1 + len) == Some(&b'\'') { i + len + 2 } else { i }
        }
        _ => i,
    }
}

/// Offset of `what` at or after `from`, or the end.
fn find(b: &[u8], from: usize, what: &[u8]) -> usize {
    (from..b.len()).find(|i| b[*i..].starts_with(what)).unwrap_or(b.len())
}

fn block_comment(b: &[u8], mut i: usize) -> usize {
    let mut depth = 0;
    while i < b.len() {
        if b[i..].starts_with(b"/*") {
            (depth, i) = (depth + 1, i + 2);
        } else if b[i..].starts_with(b"*/") {
            (depth, i) = (depth - 1, i + 2);
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    i
}

fn raw_string(b: &[u8], i: usize) -> usize {
    let hashes = b[i + 1..].iter().take_while(|c| **c == b'#').count();
    let open = i + 1 + hashes;
    if b.get(open) != Some(&b'"') {
        return i;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    (find(b, open + 1, &close) + close.len()).min(b.len())
}

fn quoted(b: &[u8], i: usize, quote: u8) -> usize {
    let mut at = i + 1;
    while at < b.len() {
        match b[at] {
            b'\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    b.len()
}

#[test]
fn comments_and_literals_are_blanked() {
    let text = r##"a /* x /* y */ z */ b // c
"s\"t" r#"raw " "# br"x" 'c' '\'' 'ä' &'life d"##;
    let words: Vec<_> = blank(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["a", "b", "b", "&'life", "d"]);
    assert_eq!(blank(text).len(), text.len());
}

#[test]
fn an_identifier_that_ends_in_r_does_not_open_a_raw_string() {
    assert_eq!(blank(r#"for"x" var"#), "for    var");
    assert_eq!(blank("r#match = 1"), "r#match = 1");
}
