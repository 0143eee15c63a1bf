//! Paths as they travel: relative, normal, and made of bytes.
//!
//! A `RelPath` that exists is safe to join: it has no empty component, no `.`
//! and no `..`, no NUL and no leading slash. Whatever a peer sends passes
//! through [`RelPath::parse`]; there is no other way to make one from bytes.
//! Symbolic links are a matter of the file system, so of [`super::root`].

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest path the protocol carries, in bytes. The kernel takes 4,096 in one call, so
/// [`super::root`] resolves longer paths in pieces.
pub(crate) const MAX_PATH: usize = 1 << 20;
/// What one system call takes of a path: PATH_MAX, which counts the NUL behind it.
const MOST_AT_ONCE: usize = 4095;
/// Of a longer path a message shows the beginning and the end.
const MOST_SHOWN: usize = 2048;
/// Longest component (NAME_MAX of every common Linux file system).
pub(crate) const MAX_NAME: usize = 255;

/// A checked relative path; the empty path is the root itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct RelPath(Vec<u8>);

/// Why bytes are no `RelPath`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the path is {0} bytes long; the limit is {MAX_PATH}")]
    TooLong(usize),
    #[error("a name in the path is {0} bytes long; the limit is {MAX_NAME}")]
    NameTooLong(usize),
    #[error("the path is absolute; only paths below the served directory are allowed")]
    Absolute,
    #[error("the path contains `..`, `.` or an empty name, and could leave the served directory")]
    NotNormal,
    #[error("the path contains a NUL byte")]
    Nul,
    #[error("the name is kept for exs-cp's own unfinished files")]
    Reserved,
    #[error("the directory itself is its user's: its mode and times stay, nothing replaces it")]
    Itself,
}

/// What a path in a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To look at, or to put things into; the root is such a directory.
    Place,
    /// To be read, written or made, below the root.
    Entry,
}

impl RelPath {
    /// The root itself.
    pub(crate) fn root() -> Self {
        RelPath(Vec::new())
    }

    /// Checks bytes that a peer sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, PathError> {
        if bytes.len() > MAX_PATH {
            return Err(PathError::TooLong(bytes.len()));
        }
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        if bytes[0] == b'/' {
            return Err(PathError::Absolute);
        }
        for name in bytes.split(|b| *b == b'/') {
            check_name(name)?;
        }
        Ok(RelPath(bytes.to_vec()))
    }

    /// The check that every path in a frame passes before it is used, on either side.
    pub(crate) fn check(&self, purpose: Purpose) -> Result<(), PathError> {
        if self.is_root() && purpose == Purpose::Entry {
            return Err(PathError::Itself);
        }
        match self.names().any(is_reserved) {
            true => Err(PathError::Reserved),
            false => Ok(()),
        }
    }

    /// Takes what a user typed: `./a//b/` is `a/b`; `..` stays refused.
    pub(crate) fn from_user(path: &Path) -> Result<Self, PathError> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.first() == Some(&b'/') {
            return Err(PathError::Absolute);
        }
        let names: Vec<&[u8]> =
            bytes.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").collect();
        Self::parse(&names.join(&b'/'))
    }

    /// This path with one more component.
    pub(crate) fn join_name(&self, name: &[u8]) -> Result<Self, PathError> {
        check_name(name)?;
        self.join(&RelPath(name.to_vec()))
    }

    /// This path with another behind it.
    pub(crate) fn join(&self, tail: &RelPath) -> Result<Self, PathError> {
        if self.is_root() || tail.is_root() {
            return Ok(if self.is_root() { tail.clone() } else { self.clone() });
        }
        let mut bytes = self.0.clone();
        bytes.push(b'/');
        bytes.extend_from_slice(&tail.0);
        if bytes.len() > MAX_PATH {
            Err(PathError::TooLong(bytes.len()))
        } else {
            Ok(RelPath(bytes))
        }
    }

    /// Parent and last name; `None` for the root.
    pub(crate) fn split(&self) -> Option<(RelPath, &[u8])> {
        if self.is_root() {
            return None;
        }
        match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => Some((RelPath(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Self::root(), &self.0)),
        }
    }

    /// The path of the first name; `None` for the root.
    pub(crate) fn first(&self) -> Option<RelPath> {
        self.names().next().map(|name| RelPath(name.to_vec()))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|n| !n.is_empty())
    }
    pub(crate) fn depth(&self) -> usize {
        self.names().count()
    }
    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path of the first `count` names.
    pub(crate) fn prefix(&self, count: usize) -> RelPath {
        let mut ends = self.0.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        match count.checked_sub(1) {
            None => Self::root(),
            Some(nth) => RelPath(self.0[..ends.nth(nth).unwrap_or(self.0.len())].to_vec()),
        }
    }

    /// The path in pieces of whole names that one system call takes each; of the root, `.`.
    pub(crate) fn pieces(&self) -> Vec<&Path> {
        let mut rest = if self.is_root() { b"." } else { &self.0[..] };
        let mut pieces = Vec::new();
        while rest.len() > MOST_AT_ONCE {
            // A name is at most MAX_NAME bytes long, so there is a slash.
            let Some(at) = rest[..MOST_AT_ONCE].iter().rposition(|b| *b == b'/') else { break };
            pieces.push(Path::new(OsStr::from_bytes(&rest[..at])));
            rest = &rest[at + 1..];
        }
        pieces.push(Path::new(OsStr::from_bytes(rest)));
        pieces
    }

    pub(crate) fn as_path(&self) -> &Path {
        if self.is_root() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

fn check_name(name: &[u8]) -> Result<(), PathError> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(PathError::NotNormal);
    }
    if name.contains(&0) {
        return Err(PathError::Nul);
    }
    if name.len() > MAX_NAME {
        return Err(PathError::NameTooLong(name.len()));
    }
    Ok(())
}

/// Suffix of a file that is not whole yet.
pub(crate) const PART: &[u8] = b".exs-part";
/// Suffix of the list of its chunks.
pub(crate) const JOURNAL: &[u8] = b".exs-journal";

/// Is this one of our own unfinished files? They are neither sent nor accepted.
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.first() == Some(&b'.') && (name.ends_with(PART) || name.ends_with(JOURNAL))
}

/// `.name.exs-part` and the like; names too long for that are shortened, with
/// a hash so that two long names never share a partial file.
pub(crate) fn side_name(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_NAME);
    out.push(b'.');
    if name.len() + 1 + JOURNAL.len() <= MAX_NAME {
        out.extend_from_slice(name);
    } else {
        out.extend_from_slice(&name[..200]);
        out.extend_from_slice(b"~");
        out.extend_from_slice(&blake3::hash(name).to_hex().as_bytes()[..16]);
    }
    out.extend_from_slice(suffix);
    out
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", shown(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelPath({self})")
    }
}

/// A path for a message. Frames cut long texts, which would lose the reason behind the path.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let show = |bytes| printable(Path::new(OsStr::from_bytes(bytes)));
    match bytes.len() {
        0 => ".".to_owned(),
        n if n <= MOST_SHOWN => show(bytes),
        n => {
            let (head, tail) = (&bytes[..MOST_SHOWN / 4], &bytes[n - MOST_SHOWN / 4..]);
            format!("{}[... {n} bytes ...]{}", show(head), show(tail))
        }
    }
}

/// A name as it may stand on a terminal: a peer's control characters (escape
/// sequences above all) and bytes that are not UTF-8 are shown, not obeyed.
pub(crate) fn printable(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_are_refused() {
        for (bytes, why) in [
            (&b"/etc/passwd"[..], PathError::Absolute),
            (b"..", PathError::NotNormal),
            (b"a/../b", PathError::NotNormal),
            (b"a/..", PathError::NotNormal),
            (b"./a", PathError::NotNormal),
            (b"a//b", PathError::NotNormal),
            (b"a/", PathError::NotNormal),
            (b"a\0b", PathError::Nul),
        ] {
            assert_eq!(RelPath::parse(bytes), Err(why), "{bytes:?}");
        }
        assert_eq!(RelPath::parse(&[b'a'; 256]), Err(PathError::NameTooLong(256)));
        let long = vec![b'a'; MAX_PATH + 1];
        assert_eq!(RelPath::parse(&long), Err(PathError::TooLong(MAX_PATH + 1)));
    }

    #[test]
    fn any_other_bytes_are_a_name() {
        let p = RelPath::parse(b"a/\xff\xfe/...").unwrap();
        assert_eq!(p.names().collect::<Vec<_>>(), [&b"a"[..], b"\xff\xfe", b"..."]);
        assert_eq!(p.to_string(), "a/\\xff\\xfe/...");
        let (dir, name) = p.split().unwrap();
        assert_eq!((dir.as_bytes(), name), (&b"a/\xff\xfe"[..], &b"..."[..]));
        assert_eq!(RelPath::parse(b"x\x1b[2J").unwrap().to_string(), "x\\u{1b}[2J");
    }

    #[test]
    fn a_user_may_be_careless_but_not_wicked() {
        assert_eq!(RelPath::from_user(Path::new("./a//b/")).unwrap().as_bytes(), b"a/b");
        assert!(RelPath::from_user(Path::new(".")).unwrap().is_root());
        assert!(RelPath::from_user(Path::new("a/../b")).is_err());
        assert!(RelPath::from_user(Path::new("/a")).is_err());
    }

    #[test]
    fn long_names_get_distinct_side_names_that_fit() {
        let mut a = vec![b'x'; 255];
        let one = side_name(&a, JOURNAL);
        a[254] = b'y';
        let two = side_name(&a, JOURNAL);
        assert!(one.len() <= MAX_NAME && two.len() <= MAX_NAME);
        assert_ne!(one, two);
        assert!(is_reserved(&one) && is_reserved(&side_name(b"a", PART)));
        assert!(!is_reserved(b"a.exs-part"));
    }
}
