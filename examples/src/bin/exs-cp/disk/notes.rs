//! When a chunk is noted in the journal: at once, or after it is on the disk.
//!
//! With `sync` a thread of its own calls fdatasync(2) while more chunks come, and notes those
//! that the call covered. So the journal is never ahead of the disk, and the call at the end of
//! a large file finds little left to write.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use super::journal::Journal;
use crate::hash::Cv;

/// A chunk whose data have been handed to the kernel.
type Chunk = (u32, Cv);

/// Notes chunks of one partial file.
pub(super) enum Notes {
    /// A file that is never continued.
    None,
    /// As they come.
    Now(Journal),
    /// After the next fdatasync.
    Synced(Flusher),
}

/// The thread that syncs and notes. It starts with the first chunk.
pub(super) struct Flusher {
    /// None: it is running, and has the journal.
    idle: Option<(Journal, File)>,
    running: Option<Running>,
}

struct Running {
    chunks: Sender<Chunk>,
    thread: JoinHandle<(Journal, io::Result<()>)>,
}

impl Notes {
    /// `file` is another descriptor of the partial file.
    pub(super) fn of(journal: Journal, file: &File, sync: bool) -> io::Result<Notes> {
        Ok(match sync {
            true => {
                let idle = Some((journal, file.try_clone()?));
                Notes::Synced(Flusher { idle, running: None })
            }
            false => Notes::Now(journal),
        })
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self, Notes::None)
    }

    /// Has a chunk noted whose data have been written. An error can be about an earlier chunk.
    pub(super) fn add(&mut self, index: u32, cv: &Cv) -> io::Result<()> {
        match self {
            Notes::None => Ok(()),
            Notes::Now(journal) => journal.add(index, cv),
            Notes::Synced(flusher) => flusher.add((index, *cv)),
        }
    }

    /// Waits until all is noted, and gives the journal back.
    pub(super) fn end(&mut self) -> (Option<Journal>, io::Result<()>) {
        match std::mem::replace(self, Notes::None) {
            Notes::None => (None, Ok(())),
            Notes::Now(journal) => (Some(journal), Ok(())),
            Notes::Synced(mut flusher) => flusher.end(),
        }
    }
}

impl Flusher {
    fn add(&mut self, chunk: Chunk) -> io::Result<()> {
        if let Some((mut journal, file)) = self.idle.take() {
            let (chunks, todo) = channel();
            // Not by the closure, which is lost if there can be no thread.
            let (give, given) = channel::<(Journal, File)>();
            let work = move || match given.recv() {
                Ok((journal, file)) => sync_and_note(journal, &file, &todo),
                Err(e) => unreachable!("the giver is gone: {e}"),
            };
            match Builder::new().name("exs-cp flush".to_owned()).spawn(work) {
                Ok(thread) => {
                    let _ = give.send((journal, file));
                    self.running = Some(Running { chunks, thread });
                }
                // No thread to be had: in the caller's time.
                Err(_) => {
                    let done = file.sync_data().and_then(|()| journal.add(chunk.0, &chunk.1));
                    self.idle = Some((journal, file));
                    return done;
                }
            }
        }
        let Some(running) = &self.running else { return Ok(()) };
        match running.chunks.send(chunk) {
            Ok(()) => Ok(()),
            // It has ended, and says why.
            Err(_) => self.end().1,
        }
    }

    fn end(&mut self) -> (Option<Journal>, io::Result<()>) {
        if let Some((journal, _)) = self.idle.take() {
            return (Some(journal), Ok(()));
        }
        let Some(Running { chunks, thread }) = self.running.take() else { return (None, Ok(())) };
        drop(chunks);
        match thread.join() {
            Ok((journal, done)) => (Some(journal), done),
            Err(_) => (None, Err(io::Error::other("the thread that syncs it has ended"))),
        }
    }
}

fn sync_and_note(
    mut journal: Journal,
    file: &File,
    todo: &Receiver<Chunk>,
) -> (Journal, io::Result<()>) {
    while let Ok(first) = todo.recv() {
        let chunks: Vec<Chunk> = std::iter::once(first).chain(todo.try_iter()).collect();
        let mut done = file.sync_data();
        for (index, cv) in &chunks {
            done = done.and_then(|()| journal.add(*index, cv));
        }
        if done.is_err() {
            return (journal, done);
        }
    }
    (journal, Ok(()))
}
