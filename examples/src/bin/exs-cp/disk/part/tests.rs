//! Partial files, their ends and their continuations.

use super::*;
use crate::disk::meta::Stamp;
use crate::hash::ChunkHasher;
use crate::testing::TempDir;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

fn source(size: u64) -> Meta {
    let mtime = Stamp { seconds: 1_600_000_000, nanos: 123_456_789 };
    Meta { size, mtime, mode: 0o640, ino: 3, ..Meta::default() }
}

const SYNC: Flags =
    Flags { verify: true, sync: true, force: false, quick: false, compare: true, special: false };

fn finish(part: Part, source: &Meta) -> io::Result<()> {
    let mut whole = part.complete(source)?;
    whole.sync(&Synced::none())?;
    whole.publish()
}

/// The value of a chunk of 9 MiB: zeros, but for some bytes in it.
fn value(index: u32, at: usize, bytes: &[u8]) -> Cv {
    let layout = Layout::of(9 << 20);
    let mut all = vec![0; usize::try_from(layout.len(index)).unwrap()];
    all[at..at + bytes.len()].copy_from_slice(bytes);
    let mut h = ChunkHasher::new(layout, index, true);
    h.update(&all);
    h.finish()
}

fn path() -> RelPath {
    RelPath::parse(b"d/f").unwrap()
}

/// Both ways of a small file: without a name, and where the file system has no such files.
fn both_ways(name: &str, test: impl Fn(&TempDir, &Root)) {
    for no_tmpfile in [false, true] {
        let tmp = TempDir::new(name);
        let root = Root::open(tmp.path()).unwrap();
        root.no_tmpfile.store(no_tmpfile, Ordering::Relaxed);
        test(&tmp, &root);
    }
}

#[test]
fn a_finished_file_has_name_mode_and_time_and_leaves_nothing() {
    both_ways("part", |tmp, root| {
        let p = Part::open(root, &path(), &source(5), SYNC, &mut || true).unwrap();
        assert!(!tmp.path().join("d/f").exists());
        p.write_at(b"hello", 0).unwrap();
        finish(p, &source(5)).unwrap();
        let m = std::fs::metadata(tmp.path().join("d/f")).unwrap();
        assert_eq!(
            (m.mode() & 0o7777, m.mtime(), m.mtime_nsec(), m.len()),
            (0o640, 1_600_000_000, 123_456_789, 5)
        );
        assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 1);
    });
}

#[test]
fn a_small_file_that_breaks_off_leaves_nothing() {
    both_ways("part-small", |tmp, root| {
        let p = Part::open(root, &path(), &source(5), SYNC, &mut || true).unwrap();
        p.write_at(b"hel", 0).unwrap();
        drop(p);
        assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 0);
    });
}

#[test]
fn a_small_file_may_end_with_a_hole() {
    both_ways("part-end", |tmp, root| {
        let p = Part::open(root, &path(), &source(9000), SYNC, &mut || true).unwrap();
        p.write_at(b"hello", 0).unwrap();
        p.hole(5, 8995).unwrap();
        finish(p, &source(9000)).unwrap();
        let bytes = std::fs::read(tmp.path().join("d/f")).unwrap();
        assert_eq!((bytes.len(), bytes.iter().filter(|b| **b != 0).count()), (9000, 5));
    });
}

#[test]
fn a_large_one_continues_and_a_changed_source_starts_afresh() {
    let tmp = TempDir::new("part-large");
    let root = Root::open(tmp.path()).unwrap();
    let src = source(9 << 20);
    let mut p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    p.write_at(b"x", 5 << 20).unwrap();
    let x = value(1, 1 << 20, b"x");
    p.chunk_done(1, &x).unwrap();
    drop(p);
    assert!(Part::exists(&root, &path()).unwrap());
    let p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    assert_eq!(p.known(), [(1, x)]);
    drop(p);
    let changed = Meta { ctime: Stamp { seconds: 1, nanos: 1 }, ..src };
    let p = Part::open(&root, &path(), &changed, SYNC, &mut || true).unwrap();
    assert!(p.known().is_empty());
    let mut byte = [9];
    p.file.read_exact_at(&mut byte, 5 << 20).unwrap();
    assert_eq!(byte, [0], "the other source's bytes are gone");
    p.discard();
    assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 0);
}

/// Between a look and its turn, a file is not held: others may finish it, or go on.
#[test]
fn what_was_told_must_still_be_there() {
    let tmp = TempDir::new("part-told");
    let root = Root::open(tmp.path()).unwrap();
    let src = source(9 << 20);
    let mut p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    let told = [(1, value(1, 0, b""))];
    p.chunk_done(1, &told[0].1).unwrap();
    drop(p);
    let mut p = Part::reopen(&root, &path(), &src, SYNC, &told).unwrap();
    assert_eq!(p.known(), told);
    p.chunk_done(0, &[5; 32]).unwrap();
    drop(p);
    let p = Part::reopen(&root, &path(), &src, SYNC, &told).unwrap();
    assert_eq!(p.known(), told);
    finish(p, &src).unwrap();
    let e = Part::reopen(&root, &path(), &src, SYNC, &told).err().unwrap();
    assert!(e.to_string().contains("run the same command again"), "{e}");
    assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 1);
}

/// A change is found whatever the times say.
#[test]
fn only_what_is_read_back_right_is_kept() {
    for sync in [true, false] {
        let tmp = TempDir::new("part-flip");
        let root = Root::open(tmp.path()).unwrap();
        let src = source(9 << 20);
        let flags = Flags { sync, ..SYNC };
        let mut p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
        p.write_at(b"abc", 7).unwrap();
        p.write_at(b"d", 8 << 20).unwrap();
        let (first, second, third) = (value(0, 7, b"abc"), value(1, 0, b""), value(2, 0, b"d"));
        for (index, cv) in [(0, first), (1, second), (2, third)] {
            p.chunk_done(index, &cv).unwrap();
        }
        drop(p);
        let other = File::options().write(true).open(tmp.path().join("d/.f.exs-part")).unwrap();
        let times = other.metadata().unwrap();
        other.write_all_at(b"B", 8).unwrap();
        other.set_modified(times.modified().unwrap()).unwrap();
        let p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
        assert_eq!(p.known(), [(1, second), (2, third)]);
        drop(p);
        // A run that is interrupted while it reads leaves all as it was.
        assert!(Part::open(&root, &path(), &src, flags, &mut || false).is_err());
        let p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
        assert_eq!(p.known(), [(1, second), (2, third)]);
    }
}

/// Without hashes nothing can be proved: a run that was killed, or a file that was changed,
/// begins again at the first byte.
#[test]
fn without_hashes_only_a_sealed_file_goes_on() {
    let flags = Flags { verify: false, ..SYNC };
    for (sealed, changed) in [(true, false), (true, true), (false, false)] {
        let tmp = TempDir::new("part-seal");
        let root = Root::open(tmp.path()).unwrap();
        let src = source(9 << 20);
        let mut p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
        p.chunk_done(1, &[0; 32]).unwrap();
        if sealed {
            drop(p);
        } else {
            // As a kill leaves it: noted, without an end.
            let (journal, noted) = p.notes.end();
            noted.unwrap();
            drop(journal);
            p.end = End::Keep;
            drop(p);
        }
        if changed {
            let part = tmp.path().join("d/.f.exs-part");
            File::options().write(true).open(part).unwrap().write_all_at(b"x", 0).unwrap();
        }
        let p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
        assert_eq!(!p.known().is_empty(), sealed && !changed, "{sealed} {changed}");
    }
}

/// A run that goes on takes the seal away before it writes: a kill must not leave it.
#[test]
fn a_run_that_goes_on_breaks_the_seal() {
    let flags = Flags { verify: false, ..SYNC };
    let tmp = TempDir::new("part-unsealed");
    let root = Root::open(tmp.path()).unwrap();
    let src = source(9 << 20);
    let journal = || {
        let file = File::open(tmp.path().join("d/.f.exs-journal")).unwrap();
        Journal::load(file, &src, false).unwrap().unwrap().1
    };
    let mut p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
    p.chunk_done(1, &[0; 32]).unwrap();
    drop(p);
    assert!(journal().seal.is_some());
    let p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
    assert_eq!((p.known().len(), journal().seal), (1, None));
    drop(p);
    // Nor is there a seal on what a failed write or close has put in doubt.
    let mut p = Part::open(&root, &path(), &src, flags, &mut || true).unwrap();
    p.doubt();
    drop(p);
    assert_eq!(journal().seal, None);
}

/// The journal is not about a partial file of another length.
#[test]
fn a_partial_file_that_was_cut_starts_afresh() {
    let tmp = TempDir::new("part-cut");
    let root = Root::open(tmp.path()).unwrap();
    let src = source(9 << 20);
    let mut p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    p.chunk_done(0, &value(0, 0, b"")).unwrap();
    drop(p);
    let part = tmp.path().join("d/.f.exs-part");
    File::options().write(true).open(part).unwrap().set_len(1000).unwrap();
    let p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    assert!(p.known().is_empty());
}

#[test]
fn holes_are_punched_where_a_former_run_left_bytes() {
    let tmp = TempDir::new("part-hole");
    let root = Root::open(tmp.path()).unwrap();
    let src = source(9 << 20);
    let mut p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    p.write_at(&[7; 8192], 4 << 20).unwrap();
    p.chunk_done(0, &value(0, 0, b"")).unwrap();
    drop(p);
    let p = Part::open(&root, &path(), &src, SYNC, &mut || true).unwrap();
    p.hole(4 << 20, 8192).unwrap();
    let mut b = [1; 8192];
    p.file.read_exact_at(&mut b, 4 << 20).unwrap();
    assert!(b.iter().all(|b| *b == 0));
}
