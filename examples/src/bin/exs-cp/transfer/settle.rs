//! The last steps of whole files: their data reach the disk, and they get their names.
//!
//! With `sync` a thread does that while more files come. It takes all waiting files as one
//! batch, so that they share the cost of the disk: it syncs the data of the batch, renames each
//! file, and syncs each directory once. [`crate::disk::batch`] decides how a
//! batch is synced.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::disk::batch::{Batch, Synced, sync_dir};
use crate::disk::part::Whole;
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::error::Trouble;
use crate::wire::frame::{Flags, Id};

/// Files that wait for the disk on one connection at most; each holds a descriptor.
const MOST_WAITING: usize = 256;

/// Descriptors that are held by waiting files, in the whole process.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A file that has come, or was found to be there.
pub(crate) struct Item {
    pub(crate) id: Id,
    pub(crate) path: RelPath,
    pub(crate) file: Landed,
    /// Bytes that were there before.
    pub(crate) resumed: u64,
}

/// Where its bytes are.
pub(crate) enum Landed {
    Whole(Box<Whole>),
    /// Under the final name already, of this length, and read back.
    InPlace(File, u64),
}

/// The result for one file.
pub(crate) struct Settled {
    pub(crate) id: Id,
    pub(crate) size: u64,
    pub(crate) resumed: u64,
    pub(crate) result: Result<(), Trouble>,
}

/// Settles the files of one connection.
pub(crate) struct Settler {
    /// `None`: without.
    sync: Option<Arc<Batch>>,
    thread: Option<Away>,
    /// With the thread, and not yet taken back.
    waiting: usize,
    done: VecDeque<Settled>,
}

struct Away {
    items: Sender<Item>,
    done: Receiver<Settled>,
    thread: JoinHandle<()>,
}

impl Settler {
    /// Before the first of these files is written: errors that the disk reports from now on
    /// are theirs.
    pub(crate) fn new(root: &Root, flags: Flags) -> Settler {
        let sync = flags.sync.then(|| Arc::new(Batch::below(root)));
        Settler { sync, thread: None, waiting: 0, done: VecDeque::new() }
    }

    /// Takes a file over; [`Self::next`] says what became of it.
    pub(crate) fn push(&mut self, item: Item) {
        let Some(sync) = &self.sync else {
            self.done.push_back(item.name());
            return;
        };
        if self.thread.is_none() {
            self.thread = Away::start(sync);
        }
        HELD.fetch_add(1, Ordering::Relaxed);
        match &self.thread {
            Some(away) => match away.items.send(item) {
                Ok(()) => self.waiting += 1,
                Err(back) => self.done.extend(settle(vec![back.0], sync)),
            },
            None => self.done.extend(settle(vec![item], sync)),
        }
    }

    /// A settled file, if there is one; does not wait.
    pub(crate) fn next(&mut self) -> Option<Settled> {
        self.within(Duration::ZERO)
    }

    /// The same, and waits for it up to `limit`.
    pub(crate) fn within(&mut self, limit: Duration) -> Option<Settled> {
        if let Some(settled) = self.done.pop_front() {
            return Some(settled);
        }
        if self.waiting == 0 {
            return None;
        }
        let away = self.thread.as_ref()?;
        let settled = match limit {
            Duration::ZERO => away.done.try_recv().ok(),
            limit => away.done.recv_timeout(limit).ok(),
        };
        self.waiting -= usize::from(settled.is_some());
        settled
    }

    /// True while a file is not settled, or its result was not taken.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting > 0 || !self.done.is_empty()
    }

    /// True if the waiting files hold too many descriptors: the caller must wait for the disk.
    pub(crate) fn is_full(&self) -> bool {
        let most = MOST_WAITING.min(descriptors() / 4);
        self.waiting >= most || self.waiting > 0 && HELD.load(Ordering::Relaxed) >= most
    }
}

impl Drop for Settler {
    /// Whole files get their names, even if the peer is gone. Blocks until they have.
    fn drop(&mut self) {
        if let Some(Away { items, thread, .. }) = self.thread.take() {
            drop(items);
            let _ = thread.join();
        }
    }
}

impl Away {
    /// `None`: the system gives no thread.
    fn start(sync: &Arc<Batch>) -> Option<Away> {
        let sync = Arc::clone(sync);
        let (items, todo) = channel::<Item>();
        let (say, done) = channel();
        let work = move || {
            while let Ok(first) = todo.recv() {
                let batch = std::iter::once(first).chain(todo.try_iter()).collect();
                for settled in settle(batch, &sync) {
                    // Fails only if the connection is gone.
                    let _ = say.send(settled);
                }
            }
        };
        let thread = Builder::new().name("exs-cp sync".to_owned()).spawn(work).ok()?;
        Some(Away { items, done, thread })
    }
}

fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX)
}

impl Item {
    /// Names it without a sync.
    fn name(self) -> Settled {
        let (id, size, resumed) = (self.id, self.file.size(), self.resumed);
        let named = match self.file {
            Landed::Whole(whole) => whole.publish(),
            Landed::InPlace(..) => Ok(()),
        };
        let result = named.map_err(|e| Trouble::at_destination("finish", &self.path, e));
        Settled { id, size, resumed, result }
    }

    fn sync(&mut self, batch: &Synced<'_>) -> Result<(), Trouble> {
        let synced = match &mut self.file {
            Landed::Whole(whole) => whole.sync(batch),
            Landed::InPlace(file, _) => batch.sync(file),
        };
        synced.map_err(|e| Trouble::io("write to the disk", &self.path, e))
    }

    fn dir(&self) -> Option<Arc<OwnedFd>> {
        match &self.file {
            Landed::Whole(whole) => Some(whole.dir()),
            Landed::InPlace(..) => None,
        }
    }
}

impl Landed {
    fn size(&self) -> u64 {
        match self {
            Landed::Whole(whole) => whole.size(),
            Landed::InPlace(_, size) => *size,
        }
    }
}

/// Data of all, then each name, then each directory.
fn settle(batch: Vec<Item>, sync: &Batch) -> Vec<Settled> {
    let held = batch.len();
    let synced = sync.all(held);
    let mut settled = Vec::with_capacity(batch.len());
    let mut named: Vec<(usize, Arc<OwnedFd>, RelPath)> = Vec::new();
    for mut item in batch {
        let (dir, path) = (item.dir(), item.path.clone());
        let one = match item.sync(&synced) {
            Ok(()) => item.name(),
            Err(t) => {
                let (id, size, resumed) = (item.id, item.file.size(), item.resumed);
                Settled { id, size, resumed, result: Err(t) }
            }
        };
        if let (Some(dir), true) = (dir, one.result.is_ok()) {
            named.push((settled.len(), dir, path));
        }
        settled.push(one);
    }
    sync_dirs(named, &mut settled);
    HELD.fetch_sub(held, Ordering::Relaxed);
    settled
}

/// Each directory once; an error is that of the files in it.
fn sync_dirs(mut named: Vec<(usize, Arc<OwnedFd>, RelPath)>, settled: &mut [Settled]) {
    named.sort_by_key(|(_, dir, _)| Arc::as_ptr(dir));
    for group in named.chunk_by(|a, b| Arc::ptr_eq(&a.1, &b.1)) {
        let Some((_, dir, _)) = group.first() else { continue };
        let Err(e) = sync_dir(dir) else { continue };
        for (at, _, path) in group {
            settled[*at].result = Err(Trouble::io("sync the directory of", path, e));
        }
    }
}
