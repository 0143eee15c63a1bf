//! Lists a tree in an order that is the same each time.

use std::io;

use rustix::fs::{self, AtFlags, Dir, Mode, OFlags};

use super::meta::{Kind, Meta};
use super::relpath::{Purpose, RelPath, is_reserved};
use super::root::Root;
use crate::error::Trouble;

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// From the root.
    pub(crate) path: RelPath,
    pub(crate) meta: Meta,
    /// Of a symbolic link.
    pub(crate) target: Vec<u8>,
}

/// What a walk reports.
#[derive(Debug)]
pub(crate) enum Found {
    Entry(Entry),
    /// Left out without an error: a fifo, a socket, a device.
    Skipped(Trouble),
    /// Could not be read.
    Failed(Trouble),
}

/// Lists one entry, and below a directory everything (`deep`) or its direct
/// entries. The directories still to be read are kept by name, and one at a time is open,
/// so that depth costs neither descriptors nor stack. `sink` may stop the walk with its own error.
pub(crate) fn walk<E>(
    root: &Root,
    top: &RelPath,
    deep: bool,
    sink: &mut dyn FnMut(Found) -> Result<(), E>,
) -> Result<(), E> {
    let mut dirs = Vec::new();
    if let Err(e) = top.check(Purpose::Place) {
        return sink(Found::Failed(Trouble::of(top, e)));
    }
    match look(root, top) {
        Ok(Looked::Entry(e)) => {
            if e.meta.kind == Kind::Dir {
                dirs.push(e.path.clone());
            }
            sink(Found::Entry(e))?;
        }
        // The user named it, so leaving it out is an error.
        Ok(Looked::Special) => sink(Found::Failed(special(top)))?,
        Err(e) => sink(Found::Failed(Trouble::io("read", top, e)))?,
    }
    while let Some(dir) = dirs.pop() {
        let entries = match list(root, &dir) {
            Ok(entries) => entries,
            Err(e) => {
                sink(Found::Failed(Trouble::io("list the directory", &dir, e)))?;
                continue;
            }
        };
        let below = dirs.len();
        for found in entries {
            if let Found::Entry(Entry { path, meta: Meta { kind: Kind::Dir, .. }, .. }) = &found
                && deep
            {
                dirs.push(path.clone());
            }
            sink(found)?;
        }
        // A stack: the directory of the first name must be read next.
        dirs[below..].reverse();
    }
    Ok(())
}

enum Looked {
    Entry(Entry),
    Special,
}

fn special(path: &RelPath) -> Trouble {
    Trouble::of(
        path,
        "a fifo, socket or device; skipped, only files, directories and symbolic links are copied",
    )
}

/// Looks at one path without following a link in its last place.
fn look(root: &Root, path: &RelPath) -> io::Result<Looked> {
    let Some((parent, name)) = path.split() else {
        let st = fs::fstat(root.fd())?;
        let Some(meta) = Meta::of(&st) else { return Ok(Looked::Special) };
        return Ok(Looked::Entry(Entry { path: path.clone(), meta, target: Vec::new() }));
    };
    let dir = root.open_beneath(&parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    look_at(&dir, name, path.clone())
}

fn look_at(dir: &impl std::os::fd::AsFd, name: &[u8], path: RelPath) -> io::Result<Looked> {
    let st = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let Some(meta) = Meta::of(&st) else { return Ok(Looked::Special) };
    let target = match meta.kind {
        Kind::Symlink => fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    Ok(Looked::Entry(Entry { path, meta, target }))
}

fn list(root: &Root, dir: &RelPath) -> io::Result<Vec<Found>> {
    let fd = root.open_beneath(dir, OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    let mut out = Vec::with_capacity(names.len());
    for name in names {
        let path = match dir.join_name(&name) {
            Ok(path) => path,
            Err(e) => {
                out.push(Found::Failed(Trouble::of(dir, format_args!("an entry of it: {e}"))));
                continue;
            }
        };
        if is_reserved(&name) {
            let why = "the rest of an interrupted transfer; skipped";
            out.push(Found::Skipped(Trouble::of(&path, why)));
            continue;
        }
        out.push(match look_at(&fd, &name, path.clone()) {
            Ok(Looked::Entry(e)) => Found::Entry(e),
            Ok(Looked::Special) => Found::Skipped(special(&path)),
            Err(e) => Found::Failed(Trouble::io("read", &path, e)),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::convert::Infallible;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn names(root: &Root, top: &str, deep: bool) -> (Vec<String>, usize, usize) {
        let (mut names, mut skipped, mut failed) = (Vec::new(), 0, 0);
        let Ok(()) =
            walk::<Infallible>(root, &RelPath::parse(top.as_bytes()).unwrap(), deep, &mut |f| {
                match f {
                    Found::Entry(e) => names.push(e.path.to_string()),
                    Found::Skipped(_) => skipped += 1,
                    Found::Failed(_) => failed += 1,
                }
                Ok(())
            });
        (names, skipped, failed)
    }

    #[test]
    fn everything_is_found_once_and_in_order() {
        let tmp = TempDir::new("tree");
        let p = tmp.path();
        std::fs::create_dir_all(p.join("t/b/empty")).unwrap();
        std::fs::write(p.join("t/b").join(OsStr::from_bytes(b"\xff")), "").unwrap();
        std::fs::write(p.join("t/a"), "a").unwrap();
        std::fs::write(p.join("t/.c.exs-part"), "a").unwrap();
        symlink("nowhere", p.join("t/l")).unwrap();
        symlink("/", p.join("t/m")).unwrap();
        fs::mkfifoat(fs::CWD, p.join("t/z"), Mode::RUSR).unwrap();
        let root = Root::open(p).unwrap();
        let all = ["t", "t/a", "t/b", "t/l", "t/m", "t/b/\\xff", "t/b/empty"];
        let mut want = all.map(String::from).to_vec();
        let (mut got, skipped, failed) = names(&root, "t", true);
        want.sort();
        got.sort();
        assert_eq!((got, skipped, failed), (want, 2, 0));
        assert_eq!(names(&root, "t", true), names(&root, "t", true));
        assert_eq!(names(&root, "t/b", false).0, ["t/b", "t/b/empty", "t/b/\\xff"]);
        assert_eq!(names(&root, "t/l", true).0, ["t/l"]);
        assert_eq!(names(&root, "t/z", true), (vec![], 0, 1), "a fifo was asked for");
        assert_eq!(names(&root, "t/.c.exs-part", true), (vec![], 0, 1));
        assert_eq!(names(&root, "missing", true), (vec![], 0, 1));
        assert_eq!(names(&root, "t/m/etc", true), (vec![], 0, 1), "a link leads out");
    }
}
