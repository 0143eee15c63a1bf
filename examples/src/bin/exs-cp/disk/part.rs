//! A file on its way in: the partial file, its journal, its final name.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::batch::Synced;
use super::journal::{Journal, State};
use super::meta::Meta;
use super::nameless;
use super::notes::Notes;
use super::readback::{Alive, Reader};
use super::relpath::{JOURNAL, PART, RelPath, side_name};
use super::root::{Root, writing};
use crate::hash::{Cv, Layout};
use crate::wire::frame::Flags;

/// How long to wait for a former transfer of the same file: it lets go when it notices that
/// its peer is gone.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// A file that has not got its final name yet.
pub(crate) struct Part {
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    file: File,
    /// It has no name in the directory until it is whole.
    nameless: bool,
    notes: Notes,
    known: Vec<(u32, Cv)>,
    flags: Flags,
    end: End,
}

/// What a dropped `Part` does with the names of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The partial file stays for the next run if it has a journal, and goes if not.
    Continue,
    /// The same, and without hashes the next run does not believe it.
    Doubted,
    /// Leaves them: the file is whole, or its journal was not read yet.
    Keep,
}

impl Part {
    /// True if the file has a journal, so that a former run has left chunks.
    pub(crate) fn exists(root: &Root, path: &RelPath) -> io::Result<bool> {
        let Some((parent, name)) = path.split() else { return Ok(false) };
        let Ok(journal) = parent.join_name(&side_name(name, JOURNAL)) else { return Ok(false) };
        match root.stat(&journal) {
            // No name can be looked up there before the directory gets its last mode.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            there => Ok(there?.is_some()),
        }
    }

    /// Continues the partial file of this source, or begins one.
    pub(crate) fn open(
        root: &Root,
        path: &RelPath,
        source: &Meta,
        flags: Flags,
        alive: Alive<'_>,
    ) -> io::Result<Part> {
        Part::open_as(root, path, source, flags, Told::Nothing(alive))
    }

    /// Opens a partial file again when its turn comes. The sender leaves out the chunks in `told`,
    /// so they must still be there: else this is an error.
    pub(crate) fn reopen(
        root: &Root,
        path: &RelPath,
        source: &Meta,
        flags: Flags,
        told: &[(u32, Cv)],
    ) -> io::Result<Part> {
        let part = Part::open_as(root, path, source, flags, Told::These(told))?;
        if told.iter().all(|chunk| part.known.binary_search(chunk).is_ok()) {
            return Ok(part);
        }
        // A partial file without a chunk is of no use to the next run.
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
        flags: Flags,
        told: Told<'_>,
    ) -> io::Result<Part> {
        let (dir, name) = root.place(path)?;
        let layout = Layout::of(source.size);
        // A file of one chunk is never continued, so it needs no name by which the next run finds it.
        let nameless = match layout.count() {
            0 | 1 => nameless::create(root, &dir)?,
            _ => None,
        };
        let (nameless, file) = match nameless {
            Some(file) => (true, file),
            None => (false, lock(&dir, &side_name(name, PART))?),
        };
        let (name, notes, known) = (name.to_vec(), Notes::None, Vec::new());
        let mut part = Part { dir, name, file, nameless, notes, known, flags, end: End::Keep };
        if layout.count() > 1 {
            part.open_journal(source, layout, told)?;
        }
        part.end = End::Continue;
        if part.nameless {
            return Ok(part);
        }
        // Only where it changes something: ext4 writes a file that was cut to
        // nothing out to the disk when it is closed, a millisecond for each.
        let mut len = part.file.metadata()?.len();
        if part.known.is_empty() && len > 0 {
            part.file.set_len(0)?;
            len = 0;
        }
        // Only a partial file has a length without the data, never the final name.
        if source.size != len {
            part.file.set_len(source.size)?;
        }
        Ok(part)
    }

    fn open_journal(&mut self, source: &Meta, layout: Layout, told: Told<'_>) -> io::Result<()> {
        let (verify, sync) = (self.flags.verify, self.flags.sync);
        let len = self.file.metadata()?.len();
        // A file that was just made has nothing to lose.
        self.end = if len > 0 { End::Keep } else { End::Continue };
        let file = open_side(&self.dir, &side_name(&self.name, JOURNAL))?;
        if len == source.size
            && let Some((journal, known)) = Journal::load(file.try_clone()?, source, verify)?
        {
            self.known = known.chunks;
            match told {
                // Those were proved when they were told.
                Told::These(told) => self.known.retain(|k| told.binary_search(k).is_ok()),
                // An error that the kernel met while it wrote an earlier run's data comes here,
                // once: then what the page cache has is not what the disk has.
                Told::Nothing(_) if sync && self.file.sync_data().is_err() => self.known.clear(),
                Told::Nothing(alive) if verify => self.keep_proven(layout, alive)?,
                Told::Nothing(_) if known.seal == Some(State::of(&self.file)?) => {}
                Told::Nothing(_) => self.known.clear(),
            }
            if !self.known.is_empty() {
                journal.seal(None)?;
                self.notes = Notes::of(journal, &self.file, sync)?;
                return Ok(());
            }
        }
        self.end = End::Continue;
        let journal = Journal::create(file, source, verify)?;
        self.notes = Notes::of(journal, &self.file, sync)?;
        Ok(())
    }

    /// Keeps the chunks whose bytes are those that the journal lists.
    fn keep_proven(&mut self, layout: Layout, alive: Alive<'_>) -> io::Result<()> {
        let mut reader = Reader::new(&self.file, layout);
        let mut proven = Vec::new();
        for (index, cv) in std::mem::take(&mut self.known) {
            if reader.chunk(index, alive)? == cv {
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
        self.notes.add(index, cv)
    }

    /// Bytes of noted chunks can be lost, so the next run must not believe the journal.
    pub(crate) fn doubt(&mut self) {
        self.end = End::Doubted;
    }

    /// Asks for the errors that a file system reports at close(2) only: NFS and FUSE can find out
    /// then that there is no room. The close of a second descriptor gets the same errors, and
    /// leaves the first one open, whose lock and inode are still needed.
    fn close(&mut self) -> io::Result<()> {
        let closed = nix::unistd::close(self.file.try_clone()?);
        if closed.is_err() {
            self.doubt();
        }
        Ok(closed?)
    }

    /// All bytes have come: gives the file its mode and times. [`Whole::sync`] and
    /// [`Whole::publish`] follow. After an error the chunks that were noted stay for the next run.
    pub(crate) fn complete(mut self, source: &Meta) -> io::Result<Whole> {
        let (journal, noted) = self.notes.end();
        let has_journal = journal.is_some();
        if let Some(journal) = journal {
            self.notes = Notes::Now(journal);
        }
        // Chunks that were noted before a failed fdatasync are on the disk; the others come again.
        if let Err(e) = noted {
            self.doubt();
            return Err(e);
        }
        fs::fchmod(&self.file, source.copy_mode())?;
        fs::futimens(&self.file, &source.times())?;
        Ok(Whole { part: self, has_journal, source: *source })
    }

    /// The last fdatasync has failed. The kernel may count the pages that it lost as written
    /// from now on, so that neither another call nor the page cache proves anything: all comes
    /// again.
    fn spoiled(&mut self, e: io::Error) -> io::Error {
        self.end = End::Keep;
        if !self.nameless {
            for suffix in [JOURNAL, PART] {
                let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, suffix), AtFlags::empty());
            }
        }
        e
    }

    /// Removes the partial file and its journal: the next run starts afresh.
    pub(crate) fn discard(mut self) {
        if self.notes.end().0.is_some() {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, JOURNAL), AtFlags::empty());
        }
    }

    /// Ends in order before the file is whole: seals the journal if all its chunks are safe.
    fn leave(&mut self) {
        // `close` notes what its error means for the next run. This run has failed already.
        let _ = self.close();
        let (Some(journal), Ok(())) = self.notes.end() else { return };
        if self.end == End::Continue
            && (!self.flags.sync || self.file.sync_data().is_ok())
            && let Ok(state) = State::of(&self.file)
        {
            let _ = journal.seal(Some(state));
        }
    }
}

impl Drop for Part {
    /// A partial file with a journal is kept for the next run; one without is of no use to it.
    fn drop(&mut self) {
        if self.end == End::Keep || self.nameless {
            return;
        }
        if self.notes.is_none() {
            let _ = fs::unlinkat(&self.dir, &*side_name(&self.name, PART), AtFlags::empty());
        } else {
            self.leave();
        }
    }
}

/// The chunks of a partial file that the sender knows of.
enum Told<'a> {
    /// Nothing yet: what the journal lists has to be proved.
    Nothing(Alive<'a>),
    These(&'a [(u32, Cv)]),
}

/// A whole file under no name, or the partial one.
pub(crate) struct Whole {
    part: Part,
    has_journal: bool,
    source: Meta,
}

impl Whole {
    /// Returns when the data are on the disk; can block for as long as the disk takes. After an
    /// error nothing of the file is kept.
    pub(crate) fn sync(&mut self, batch: &Synced<'_>) -> io::Result<()> {
        let synced = batch.sync(&self.part.file);
        synced.map_err(|e| self.part.spoiled(e))
    }

    /// Gives the file its final name, after a close that tells late errors. After an error the
    /// name has what it had before.
    pub(crate) fn publish(mut self) -> io::Result<()> {
        let part = &mut self.part;
        part.close()?;
        if part.nameless {
            return nameless::publish(&part.file, &part.dir, &part.name);
        }
        let partial = side_name(&part.name, PART);
        if !is_named(&part.file, &part.dir, &partial)? {
            part.end = End::Keep;
            return Err(io::Error::other(
                "its partial file was removed or replaced at the destination; \
                 run the same command again",
            ));
        }
        fs::renameat(&part.dir, &*partial, &part.dir, &*part.name)?;
        part.end = End::Keep;
        if self.has_journal {
            let journal = side_name(&part.name, JOURNAL);
            let _ = fs::unlinkat(&part.dir, &*journal, AtFlags::empty());
        }
        Ok(())
    }

    /// The directory that gets the name.
    pub(crate) fn dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.part.dir)
    }

    pub(crate) fn size(&self) -> u64 {
        self.source.size
    }
}

fn open_side(dir: &OwnedFd, name: &[u8]) -> io::Result<File> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || fs::openat(dir, name, flags, Mode::from_raw_mode(0o600));
    Ok(File::from(writing(dir, open)?))
}

/// Opens the partial file under a lock that every writer of it takes. Waits up to
/// [`LOCK_PATIENCE`] for another transfer to let go.
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
        // The process that held the lock may have given the file its final name meanwhile:
        // then this descriptor is of the finished file.
        if is_named(&file, dir, name)? {
            return Ok(file);
        }
    }
}

/// Does this name lead to this file?
pub(super) fn is_named(file: &File, dir: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    let mine = fs::fstat(file)?;
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(st) => Ok((st.st_dev, st.st_ino) == (mine.st_dev, mine.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests;
