//! A file on its way in: the partial file, its journal, its final name.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::journal::Journal;
use super::meta::Meta;
use super::nameless;
use super::relpath::{JOURNAL, PART, RelPath, side_name};
use super::root::{Root, writing};
use crate::hash::{ChunkHasher, Cv, Layout};

/// How long a former transfer of the same file, whose peer is gone, may take
/// to notice that and let go.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A file that has not got its final name yet.
pub(crate) struct Part {
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    file: File,
    /// A second descriptor of it, to be closed before the first, whose lock is still needed.
    shut: Option<File>,
    /// It has no name at all until it is whole, not even one of ours.
    nameless: bool,
    journal: Option<Journal>,
    known: Vec<(u32, Cv)>,
    /// What has its names stays when this is dropped: it is whole, or was not looked at yet.
    stays: bool,
}

impl Part {
    /// Does a journal stand beside that file? Then it is worth a look before
    /// anything is asked for.
    pub(crate) fn exists(root: &Root, path: &RelPath) -> io::Result<bool> {
        let Some((parent, name)) = path.split() else { return Ok(false) };
        let Ok(journal) = parent.join_name(&side_name(name, JOURNAL)) else { return Ok(false) };
        match root.stat(&journal) {
            // Nobody may look names up there before the directory gets its last mode.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            there => Ok(there?.is_some()),
        }
    }

    /// Continues the partial file of this source, or begins one.
    pub(crate) fn open(
        root: &Root,
        path: &RelPath,
        source: &Meta,
        verify: bool,
    ) -> io::Result<Part> {
        Part::open_as(root, path, source, verify, None)
    }

    /// Opens what was looked at before, and closed again since it was not its turn: the
    /// sender leaves out the chunks in `told`, so that they must still be there.
    pub(crate) fn reopen(
        root: &Root,
        path: &RelPath,
        source: &Meta,
        verify: bool,
        told: &[(u32, Cv)],
    ) -> io::Result<Part> {
        let part = Part::open_as(root, path, source, verify, Some(told))?;
        if told.iter().all(|chunk| part.known.binary_search(chunk).is_ok()) {
            return Ok(part);
        }
        // What has no chunk is of no use to the next run.
        if part.known.is_empty() {
            part.discard();
        }
        Err(io::Error::other(
            "another transfer of this file went on meanwhile; let it end, \
             then run the same command again",
        ))
    }

    fn open_as(
        root: &Root,
        path: &RelPath,
        source: &Meta,
        verify: bool,
        told: Option<&[(u32, Cv)]>,
    ) -> io::Result<Part> {
        let (dir, name) = root.place(path)?;
        let layout = Layout::of(source.size);
        // What is never continued needs no place where the next run would find it.
        let nameless = match layout.count() {
            0 | 1 => nameless::create(root, &dir)?,
            _ => None,
        };
        let (nameless, file) = match nameless {
            Some(file) => (true, file),
            None => (false, lock(&dir, &side_name(name, PART))?),
        };
        let (journal, known) = (None, Vec::new());
        let (name, shut) = (name.to_vec(), None);
        let mut part = Part { dir, name, file, shut, nameless, journal, known, stays: true };
        if layout.count() > 1 {
            part.open_journal(source, layout, verify, told)?;
        }
        part.stays = false;
        part.shut = Some(part.file.try_clone()?);
        if part.nameless {
            return Ok(part);
        }
        // Only where it changes something: ext4 writes a file that was cut to
        // nothing out to the disk when it is closed, a millisecond for each.
        if part.known.is_empty() && part.file.metadata()?.len() > 0 {
            part.file.set_len(0)?;
        }
        if source.size > 0 {
            part.file.set_len(source.size)?;
        }
        Ok(part)
    }

    fn open_journal(
        &mut self,
        source: &Meta,
        layout: Layout,
        verify: bool,
        told: Option<&[(u32, Cv)]>,
    ) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        // If it was only just made there is nothing to lose.
        self.stays = len > 0;
        let file = open_side(&self.dir, &side_name(&self.name, JOURNAL))?;
        if len == source.size
            && let Some((journal, known)) = Journal::load(file.try_clone()?, source, verify)?
        {
            self.known = known.chunks;
            match told {
                _ if known.same_boot => {}
                // Those were read back when they were told.
                Some(told) => self.known.retain(|k| told.binary_search(k).is_ok()),
                None if verify => self.keep_proven(layout)?,
                None => self.known.clear(),
            }
            if !self.known.is_empty() {
                self.journal = Some(journal);
                return Ok(());
            }
        }
        self.stays = false;
        self.journal = Some(Journal::create(file, source, verify)?);
        Ok(())
    }

    /// After another boot: believe what can be read back, and nothing else.
    fn keep_proven(&mut self, layout: Layout) -> io::Result<()> {
        let mut buf = vec![0; 1 << 20];
        let mut proven = Vec::new();
        for (index, cv) in std::mem::take(&mut self.known) {
            let mut h = ChunkHasher::new(layout, index, true);
            let mut at = layout.start(index);
            while at < layout.end(index) {
                let left = usize::try_from(layout.end(index) - at).unwrap_or(buf.len());
                let n = left.min(buf.len());
                self.file.read_exact_at(&mut buf[..n], at)?;
                h.update(&buf[..n]);
                at += n as u64;
            }
            if h.finish() == cv {
                proven.push((index, cv));
            }
        }
        self.known = proven;
        Ok(())
    }

    /// Chunks that need not come again, in order.
    pub(crate) fn known(&self) -> &[(u32, Cv)] {
        &self.known
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// A hole stays a hole. In a fresh file it is one already; in a continued
    /// one a chunk that broke off may have left bytes there.
    pub(crate) fn hole(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.nameless {
            return self.file.set_len(offset + len);
        }
        if self.known.is_empty() || len == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fs::fallocate(&self.file, how, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, len),
            other => Ok(other?),
        }
    }

    /// Gives the space of a chunk back that will not be completed now.
    pub(crate) fn release(&self, offset: u64, len: u64) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fs::fallocate(&self.file, how, offset, len);
    }

    fn write_zeros(&self, mut offset: u64, mut len: u64) -> io::Result<()> {
        let zeros = [0; 64 << 10];
        while len > 0 {
            let n = usize::try_from(len).map_or(zeros.len(), |l| l.min(zeros.len()));
            self.file.write_all_at(&zeros[..n], offset)?;
            offset += n as u64;
            len -= n as u64;
        }
        Ok(())
    }

    /// Notes a chunk whose data are written and whose value was compared.
    pub(crate) fn chunk_done(&mut self, index: u32, cv: &Cv) -> io::Result<()> {
        match &mut self.journal {
            Some(j) => j.add(index, cv),
            None => Ok(()),
        }
    }

    /// Some of what was written may not be there, though a chunk that was noted says so: the
    /// next run believes what it has read back.
    pub(crate) fn doubt(&mut self) {
        if let Some(journal) = &mut self.journal
            && journal.distrust().is_err()
        {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, JOURNAL), AtFlags::empty());
        }
    }

    /// Has the file system say what it says at a close only: NFS and FUSE may not know before
    /// that there is no room for what was written.
    fn close(&mut self) -> io::Result<()> {
        let Some(shut) = self.shut.take() else { return Ok(()) };
        let closed = nix::unistd::close(shut);
        if closed.is_err() {
            self.doubt();
        }
        Ok(closed?)
    }

    /// Whole and verified: mode, times, a close, and the final name, in this order.
    pub(crate) fn finish(mut self, source: &Meta) -> io::Result<()> {
        fs::fchmod(&self.file, source.copy_mode())?;
        fs::futimens(&self.file, &source.times())?;
        self.close()?;
        if self.nameless {
            return nameless::publish(&self.file, &self.dir, &self.name);
        }
        fs::renameat(&self.dir, &*side_name(&self.name, PART), &self.dir, &*self.name)?;
        self.stays = true;
        if self.journal.is_some() {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, JOURNAL), AtFlags::empty());
        }
        Ok(())
    }

    /// Nothing of it is any good: the next run starts afresh.
    pub(crate) fn discard(mut self) {
        if self.journal.take().is_some() {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, JOURNAL), AtFlags::empty());
        }
    }
}

impl Drop for Part {
    /// What has a journal is kept for the next run; what has none would only
    /// lie about.
    fn drop(&mut self) {
        if self.stays || self.nameless {
            return;
        }
        if self.journal.is_none() {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, PART), AtFlags::empty());
        } else {
            // What its error means for the next run is noted; this one has its own already.
            let _ = self.close();
        }
    }
}

fn open_side(dir: &OwnedFd, name: &[u8]) -> io::Result<File> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || fs::openat(dir, name, flags, Mode::from_raw_mode(0o600));
    Ok(File::from(writing(dir, open)?))
}

/// Opens the partial file and makes sure that nobody else writes it.
fn lock(dir: &OwnedFd, name: &[u8]) -> io::Result<File> {
    let patience = Instant::now() + LOCK_PATIENCE;
    loop {
        let file = open_side(dir, name)?;
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < patience => {
                // sleep-ok: a lock of another process: looks every so often.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other(
                    "another transfer is writing this file at the moment; let it end, \
                     then run the same command again",
                ));
            }
            Err(e) => return Err(e.into()),
        }
        // Who held the lock may have given the file its final name meanwhile:
        // then this descriptor is of the finished file, which is not ours.
        let mine = fs::fstat(&file)?;
        match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) if (st.st_dev, st.st_ino) == (mine.st_dev, mine.st_ino) => return Ok(file),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::meta::Stamp;
    use crate::testing::TempDir;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::Ordering;

    fn source(size: u64) -> Meta {
        let mtime = Stamp { seconds: 1_600_000_000, nanos: 123_456_789 };
        Meta { size, mtime, mode: 0o640, ino: 3, ..Meta::default() }
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
            let p = Part::open(root, &path(), &source(5), true).unwrap();
            assert!(!tmp.path().join("d/f").exists());
            p.write_at(b"hello", 0).unwrap();
            p.finish(&source(5)).unwrap();
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
            let p = Part::open(root, &path(), &source(5), true).unwrap();
            p.write_at(b"hel", 0).unwrap();
            drop(p);
            assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 0);
        });
    }

    #[test]
    fn a_small_file_may_end_with_a_hole() {
        both_ways("part-end", |tmp, root| {
            let p = Part::open(root, &path(), &source(9000), true).unwrap();
            p.write_at(b"hello", 0).unwrap();
            p.hole(5, 8995).unwrap();
            p.finish(&source(9000)).unwrap();
            let bytes = std::fs::read(tmp.path().join("d/f")).unwrap();
            assert_eq!((bytes.len(), bytes.iter().filter(|b| **b != 0).count()), (9000, 5));
        });
    }

    #[test]
    fn a_large_one_continues_and_a_changed_source_starts_afresh() {
        let tmp = TempDir::new("part-large");
        let root = Root::open(tmp.path()).unwrap();
        let src = source(9 << 20);
        let mut p = Part::open(&root, &path(), &src, true).unwrap();
        p.write_at(b"x", 5 << 20).unwrap();
        p.chunk_done(1, &[4; 32]).unwrap();
        drop(p);
        assert!(Part::exists(&root, &path()).unwrap());
        let p = Part::open(&root, &path(), &src, true).unwrap();
        assert_eq!(p.known(), [(1, [4; 32])]);
        drop(p);
        let changed = Meta { ctime: Stamp { seconds: 1, nanos: 1 }, ..src };
        let p = Part::open(&root, &path(), &changed, true).unwrap();
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
        let mut p = Part::open(&root, &path(), &src, true).unwrap();
        p.chunk_done(1, &[4; 32]).unwrap();
        drop(p);
        let told = [(1, [4; 32])];
        let mut p = Part::reopen(&root, &path(), &src, true, &told).unwrap();
        assert_eq!(p.known(), told);
        p.chunk_done(0, &[5; 32]).unwrap();
        drop(p);
        let p = Part::reopen(&root, &path(), &src, true, &told).unwrap();
        assert_eq!(p.known(), [(0, [5; 32]), told[0]]);
        p.finish(&src).unwrap();
        let e = Part::reopen(&root, &path(), &src, true, &told).err().unwrap();
        assert!(e.to_string().contains("run the same command again"), "{e}");
        assert_eq!(std::fs::read_dir(tmp.path().join("d")).unwrap().count(), 1);
    }

    #[test]
    fn after_another_boot_only_what_hashes_right_is_kept() {
        let tmp = TempDir::new("part-boot");
        let root = Root::open(tmp.path()).unwrap();
        let src = source(9 << 20);
        let layout = Layout::of(src.size);
        let mut p = Part::open(&root, &path(), &src, true).unwrap();
        let mut h = ChunkHasher::new(layout, 0, true);
        h.zeros(4 << 20);
        p.chunk_done(0, &h.finish()).unwrap();
        p.chunk_done(1, &[4; 32]).unwrap();
        p.known = vec![(0, h.finish()), (1, [4; 32])];
        p.keep_proven(layout).unwrap();
        assert_eq!(p.known(), [(0, h.finish())]);
    }

    #[test]
    fn holes_are_punched_where_a_former_run_left_bytes() {
        let tmp = TempDir::new("part-hole");
        let root = Root::open(tmp.path()).unwrap();
        let src = source(9 << 20);
        let mut p = Part::open(&root, &path(), &src, true).unwrap();
        p.write_at(&[7; 8192], 4 << 20).unwrap();
        p.chunk_done(0, &[4; 32]).unwrap();
        drop(p);
        let p = Part::open(&root, &path(), &src, true).unwrap();
        p.hole(4 << 20, 8192).unwrap();
        let mut b = [1; 8192];
        p.file.read_exact_at(&mut b, 4 << 20).unwrap();
        assert!(b.iter().all(|b| *b == 0));
    }
}
