//! Are two trees the same? The demo's own check, apart from the transfer's.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use indicatif::BinaryBytes;

use crate::disk::relpath::printable;
use crate::error::CpError;

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) differences: Vec<String>,
}

impl Comparison {
    pub(crate) fn line(&self, source: &Path) -> String {
        let verdict = if self.differences.is_empty() { "the same" } else { "NOT the same" };
        let name = printable(source.file_name().map_or(source, Path::new));
        format!("{name}: {} entries, {} compared: {verdict}", self.entries, BinaryBytes(self.bytes))
    }

    fn differ(&mut self, path: &Path, what: &str) {
        self.differences.push(format!("{}: {what}", printable(path)));
    }
}

/// Compares names, kinds, bytes, modes, modification times and link targets.
pub(crate) fn compare(a: &Path, b: &Path) -> Result<Comparison, CpError> {
    let mut out = Comparison::default();
    visit(a, b, &mut out).map_err(|e| CpError::local("compare", a, e))?;
    Ok(out)
}

fn visit(a: &Path, b: &Path, out: &mut Comparison) -> io::Result<()> {
    out.entries += 1;
    let ma = fs::symlink_metadata(a)?;
    let Ok(mb) = fs::symlink_metadata(b) else {
        out.differ(b, "is missing");
        return Ok(());
    };
    if ma.file_type() != mb.file_type() {
        out.differ(b, "is of another kind");
        return Ok(());
    }
    if (ma.mtime(), ma.mtime_nsec()) != (mb.mtime(), mb.mtime_nsec()) {
        out.differ(b, "has another modification time");
    }
    if ma.is_symlink() {
        if fs::read_link(a)? != fs::read_link(b)? {
            out.differ(b, "points elsewhere");
        }
        return Ok(());
    }
    if (ma.mode() ^ mb.mode()) & 0o1777 != 0 {
        out.differ(b, "has another mode");
    }
    if ma.is_dir() {
        return visit_dir(a, b, out);
    }
    if !same_bytes(a, b, &ma, &mb)? {
        out.differ(b, "has other bytes");
    }
    out.bytes += ma.len();
    Ok(())
}

fn visit_dir(a: &Path, b: &Path, out: &mut Comparison) -> io::Result<()> {
    let mut count = 0usize;
    for entry in fs::read_dir(a)? {
        let name = entry?.file_name();
        visit(&a.join(&name), &b.join(&name), out)?;
        count += 1;
    }
    if fs::read_dir(b)?.count() != count {
        out.differ(b, "does not have the same number of entries");
    }
    Ok(())
}

fn same_bytes(a: &Path, b: &Path, ma: &Metadata, mb: &Metadata) -> io::Result<bool> {
    if ma.len() != mb.len() {
        return Ok(false);
    }
    let (mut fa, mut fb) = (File::open(a)?, File::open(b)?);
    let size = usize::try_from(ma.len()).map_or(1 << 20, |n| n.clamp(1, 1 << 20));
    let (mut xa, mut xb) = (vec![0; size], vec![0; size]);
    loop {
        let n = fa.read(&mut xa)?;
        if n == 0 {
            return Ok(fb.read(&mut xb)? == 0);
        }
        if fb.read_exact(&mut xb[..n]).is_err() || xa[..n] != xb[..n] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::time::{Duration, SystemTime};

    fn stamp(path: &Path) {
        let t = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
        File::open(path).unwrap().set_modified(t).unwrap();
    }

    fn tree(dir: &Path) {
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::write(dir.join("d/f"), "hello").unwrap();
        for p in ["d/f", "d", ""] {
            stamp(&dir.join(p));
        }
    }

    /// A comparison that could not fail would prove nothing.
    #[test]
    fn each_kind_of_difference_is_seen() {
        let tmp = TempDir::new("compare");
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        tree(&a);
        let spoil: [&dyn Fn(); 5] = [
            &|| fs::write(b.join("d/f"), "hellO").unwrap(),
            &|| fs::write(b.join("d/g"), "").unwrap(),
            &|| fs::remove_file(b.join("d/f")).unwrap(),
            &|| {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(b.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
            },
            &|| File::open(b.join("d/f")).unwrap().set_modified(SystemTime::now()).unwrap(),
        ];
        for (i, spoil) in spoil.iter().enumerate() {
            let _ = fs::remove_dir_all(&b);
            tree(&b);
            let same = compare(&a, &b).unwrap();
            assert_eq!((same.differences.len(), same.entries, same.bytes), (0, 3, 5));
            spoil();
            for p in ["d/f", "d"] {
                if i != 4 && b.join(p).exists() {
                    stamp(&b.join(p));
                }
            }
            assert!(!compare(&a, &b).unwrap().differences.is_empty(), "case {i}");
        }
    }
}
