//! Hashes and writes a file's bytes, in a thread of its own if the file is large.
//!
//! To take bytes off a connection (and for shared memory to copy them) takes about as long as
//! to hash and write them, so a large file has a thread that does nothing else. It works
//! through what it is told in that order: a chunk is noted in the journal after its bytes
//! were written and found to be right, with a thread or without.
//!
//! The first thing that fails is kept, and the chunk that it broke is given back, so that
//! on a full disk there is room for smaller files that follow. The writer drops all later chunks
//! of the file, so the connection's buffers go on coming back.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::disk::part::Part;
use crate::hash::{ChunkHasher, Cv, Layout};
use crate::net::lent::Lent;

/// Things to do that may wait for the thread. The connection's buffers limit the bytes among
/// them.
const WAITING: usize = 64;

/// One thing to do.
enum Job {
    Write { bytes: Lent, offset: u64 },
    Hole { offset: u64, len: u64 },
    Chunk { index: u32, cv: Cv },
}

/// Why a file cannot be completed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What could not be done, and why.
    Io(&'static str, io::Error),
    /// These bytes are not the sender's.
    Damaged { start: u64, end: u64 },
}

/// Writes a partial file: in the caller's thread, or in one of its own.
pub(crate) enum Writer {
    Here(Box<Desk>),
    Away(Away),
}

/// A partial file, and the hash of the chunk that is coming (2 KiB, which are not to be moved
/// about for each small file).
pub(crate) struct Desk {
    part: Part,
    layout: Layout,
    verify: bool,
    open: Option<(u32, ChunkHasher)>,
}

/// The thread that has the partial file.
pub(crate) struct Away {
    /// None: it is told to end.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<Option<Box<Desk>>>>,
    /// The first failure, until it is reported; `None` before and after.
    failed: Arc<Mutex<Option<Failure>>>,
}

impl Writer {
    /// A file that is laid out so; one of several chunks has a thread, if there can be one.
    pub(crate) fn new(part: Part, layout: Layout, verify: bool) -> Writer {
        let desk = Box::new(Desk { part, layout, verify, open: None });
        if layout.count() <= 1 {
            return Writer::Here(desk);
        }
        let (jobs, todo) = sync_channel(WAITING);
        // Not by the closure, which is lost if there can be no thread.
        let (give, given) = sync_channel::<Box<Desk>>(1);
        let failed = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&failed);
        let work = move || {
            let mut desk = given.recv().ok()?;
            let mut well = true;
            for job in todo {
                if well && let Err(failure) = desk.act(job) {
                    well = false;
                    *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                }
            }
            Some(desk)
        };
        match Builder::new().name("exs-cp disk".to_owned()).spawn(work) {
            Ok(thread) => match give.send(desk) {
                Ok(()) => Writer::Away(Away { jobs: Some(jobs), thread: Some(thread), failed }),
                Err(back) => Writer::Here(back.0),
            },
            Err(_) => Writer::Here(desk),
        }
    }

    /// Bytes of the file.
    pub(crate) fn write(&mut self, bytes: Lent, offset: u64) -> Result<(), Failure> {
        self.take(Job::Write { bytes, offset })
    }

    /// A stretch of zeros that takes no room.
    pub(crate) fn hole(&mut self, offset: u64, len: u64) -> Result<(), Failure> {
        self.take(Job::Hole { offset, len })
    }

    /// A chunk is whole: is it the sender's?
    pub(crate) fn chunk(&mut self, index: u32, cv: &Cv) -> Result<(), Failure> {
        self.take(Job::Chunk { index, cv: *cv })
    }

    /// Does a job, or hands it to the thread. An error can be about an earlier job.
    fn take(&mut self, job: Job) -> Result<(), Failure> {
        match self {
            Writer::Here(desk) => desk.act(job),
            Writer::Away(away) => {
                if let Some(jobs) = &away.jobs {
                    // Fails only if the thread has ended, which `finish` tells.
                    let _ = jobs.send(job);
                }
                away.state()
            }
        }
    }

    /// Waits for the thread to end, and gives the partial file back.
    pub(crate) fn finish(self) -> Result<Part, Failure> {
        match self {
            Writer::Here(desk) => Ok(desk.part),
            Writer::Away(mut away) => {
                let desk = away.end();
                away.state()?;
                let gone = || io::Error::other("the thread that writes it has ended");
                desk.map(|d| d.part).ok_or_else(|| Failure::Io("write", gone()))
            }
        }
    }
}

impl Away {
    /// A failure is told once.
    fn state(&self) -> Result<(), Failure> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map_or(Ok(()), Err)
    }

    fn end(&mut self) -> Option<Box<Desk>> {
        self.jobs = None;
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for Away {
    /// Writes and notes the chunks that have come, so that the next run need not send them again.
    fn drop(&mut self) {
        self.end();
    }
}

impl Desk {
    fn act(&mut self, job: Job) -> Result<(), Failure> {
        let at = match &job {
            Job::Write { offset, .. } | Job::Hole { offset, .. } => *offset,
            Job::Chunk { index, .. } => self.layout.start(*index),
        };
        let index = u32::try_from(at / self.layout.chunk).unwrap_or(u32::MAX);
        self.act_on(index, job).inspect_err(|failure| {
            self.part.release(self.layout.start(index), self.layout.len(index));
            // The error can be about earlier bytes: NFS reports those with a later write.
            if matches!(failure, Failure::Io(..)) {
                self.part.doubt();
            }
        })
    }

    fn act_on(&mut self, chunk: u32, job: Job) -> Result<(), Failure> {
        let write = |e| Failure::Io("write", e);
        match job {
            Job::Write { bytes, offset } => {
                self.hasher(chunk).update(&bytes);
                self.part.write_at(&bytes, offset).map_err(write)
            }
            Job::Hole { offset, len } => {
                self.hasher(chunk).zeros(len);
                self.part.hole(offset, len).map_err(write)
            }
            Job::Chunk { index, cv } => {
                let right = self.hasher(chunk).finish() == cv;
                self.open = None;
                if !right {
                    let (start, end) = (self.layout.start(index), self.layout.end(index));
                    return Err(Failure::Damaged { start, end });
                }
                let noted = self.part.chunk_done(index, &cv);
                noted.map_err(|e| Failure::Io("write the journal of", e))
            }
        }
    }

    /// Of the chunk that is coming.
    fn hasher(&mut self, chunk: u32) -> &mut ChunkHasher {
        let (layout, verify) = (self.layout, self.verify);
        self.open.take_if(|(open, _)| *open != chunk);
        &mut self.open.get_or_insert_with(|| (chunk, ChunkHasher::new(layout, chunk, verify))).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::batch::Synced;
    use crate::disk::meta::{Meta, Stamp};
    use crate::disk::relpath::RelPath;
    use crate::disk::root::Root;
    use crate::hash::MIN_CHUNK;
    use crate::testing::TempDir;
    use crate::wire::frame::Flags;

    const CHUNK: usize = 4 << 20;
    const SYNC: Flags = Flags {
        verify: true,
        sync: true,
        force: false,
        quick: false,
        compare: true,
        special: false,
    };

    fn name(part: Part, meta: &Meta) {
        let mut whole = part.complete(meta).unwrap();
        whole.sync(&Synced::none()).unwrap();
        whole.publish().unwrap();
    }

    const _: () = assert!(CHUNK as u64 == MIN_CHUNK);

    /// A file of two chunks and 1,000 bytes, and its content.
    fn three(tmp: &TempDir) -> (Root, RelPath, Meta, Vec<u8>) {
        let bytes: Vec<u8> = (0..2 * CHUNK + 1000).map(|i| [3, 1, 4, 15, 92][i % 5]).collect();
        let mtime = Stamp { seconds: 7, nanos: 8 };
        let meta = Meta { size: bytes.len() as u64, mtime, mode: 0o600, ino: 9, ..Meta::default() };
        (Root::open(tmp.path()).unwrap(), RelPath::parse(b"f").unwrap(), meta, bytes)
    }

    fn writer(root: &Root, path: &RelPath, meta: &Meta) -> Writer {
        let part = Part::open(root, path, meta, SYNC, &mut || true).unwrap();
        let writer = Writer::new(part, Layout::of(meta.size), true);
        assert!(matches!(writer, Writer::Away(_)));
        writer
    }

    /// Has a chunk written in pieces, and compared with the right value, or another.
    fn chunk(w: &mut Writer, bytes: &[u8], index: u32, right: bool) -> Result<(), Failure> {
        let layout = Layout::of(bytes.len() as u64);
        let start = index as usize * CHUNK;
        let end = bytes.len().min(start + CHUNK);
        for at in (start..end).step_by(300_000) {
            let piece = bytes[at..end.min(at + 300_000)].to_vec();
            w.write(Lent::Copied(piece), at as u64)?;
        }
        let mut h = ChunkHasher::new(layout, index, true);
        h.update(&bytes[start..end]);
        let mut cv = h.finish();
        cv[0] ^= u8::from(!right);
        w.chunk(index, &cv)
    }

    /// The chunks that need not come again.
    fn known(part: &Part) -> Vec<u32> {
        part.known().iter().map(|k| k.0).collect()
    }

    #[test]
    fn what_was_written_has_its_name_in_the_end() {
        let tmp = TempDir::new("writer");
        let (root, path, meta, bytes) = three(&tmp);
        let mut w = writer(&root, &path, &meta);
        for index in 0..3 {
            chunk(&mut w, &bytes, index, true).unwrap();
        }
        name(w.finish().unwrap(), &meta);
        assert!(std::fs::read(tmp.path().join("f")).unwrap() == bytes);
    }

    /// A transfer that breaks off leaves what its journal lists, and the next run goes on from there.
    #[test]
    fn what_had_come_is_there_for_the_next_run() {
        let tmp = TempDir::new("writer-off");
        let (root, path, meta, bytes) = three(&tmp);
        let mut w = writer(&root, &path, &meta);
        chunk(&mut w, &bytes, 0, true).unwrap();
        chunk(&mut w, &bytes, 1, true).unwrap();
        drop(w);
        let part = Part::open(&root, &path, &meta, SYNC, &mut || true).unwrap();
        assert_eq!(known(&part), [0, 1]);
        let mut w = Writer::new(part, Layout::of(meta.size), true);
        chunk(&mut w, &bytes, 2, true).unwrap();
        name(w.finish().unwrap(), &meta);
        assert!(std::fs::read(tmp.path().join("f")).unwrap() == bytes);
    }

    #[test]
    fn a_damaged_chunk_is_told_once_and_nothing_after_it_is_kept() {
        let tmp = TempDir::new("writer-bad");
        let (root, path, meta, bytes) = three(&tmp);
        let mut w = writer(&root, &path, &meta);
        let mut told = Vec::new();
        for (index, right) in [(0, true), (1, false), (2, true)] {
            told.extend(chunk(&mut w, &bytes, index, right).err());
        }
        told.extend(w.finish().err());
        let [Failure::Damaged { start, end }] = told[..] else { panic!("{told:?}") };
        assert_eq!((start, end), (MIN_CHUNK, 2 * MIN_CHUNK));
        assert_eq!(known(&Part::open(&root, &path, &meta, SYNC, &mut || true).unwrap()), [0]);
    }
}
