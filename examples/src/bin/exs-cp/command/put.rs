//! `exs-cp put`: list the trees, then offer and send over `-j` connections.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Names, Queue, in_parallel, say_bye};
use crate::cli::Put;
use crate::disk::meta::{Kind, Meta};
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::disk::tree::{Entry, Found, walk};
use crate::error::{CpError, Trouble};
use crate::hash::Layout;
use crate::net::channel::{Channel, Intake};
use crate::net::session::{Dialer, unexpected};
use crate::transfer::sender::{Answers, Outgoing, SINCE, Sent, changed, send_file};
use crate::transfer::tally::{Proof, Tally};
use crate::transfer::{MOST_CHUNKS, WINDOW, weight};
use crate::wire::frame::{Flags, Frame, Have, Id, What};

/// Something to send: where it is here, and what it is called there.
struct Job {
    tree: Arc<Tree>,
    entry: Entry,
    dest: RelPath,
    /// Offered for the second time, as it changed between the listing and its turn.
    again: bool,
}

impl Job {
    /// Of its offer.
    fn weight(&self) -> usize {
        weight(&self.dest, Layout::of(self.entry.meta.size).count() as usize)
    }
}

/// Closes a queue when its thread ends, also by a panic.
struct Closing<'a>(&'a Queue<Job>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(crate) fn run(args: &Put, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let Some((address, paths)) = args.words.split_last() else {
        return Err(CpError::Usage("put PATH... ADDR:PORT".into()));
    };
    let dialer = args.client.dialer(&address.to_string_lossy(), stop).map_err(|e| {
        super::misplaced(e, paths, "the last word is the server: put PATH... ADDR:PORT")
    })?;
    let into = match &args.into {
        Some(dir) => RelPath::from_user(dir)
            .map_err(|e| CpError::Usage(format!("--into {}: {e}", dir.display())))?,
        None => RelPath::root(),
    };
    let flags = args.moving.flags();
    Ok(super::report(&args.client, &dialer.via, &args.moving, stop, |tally| {
        let sources = sources(paths.iter().map(Path::new), tally)?;
        let request = Frame::Put { into, flags };
        let queue = Queue::open();
        // Workers send the first files while the lister looks for the rest.
        let (dirs, sent) = std::thread::scope(|s| {
            let lister = s.spawn(|| list(&sources, &queue, (flags, stop), tally));
            let sent = in_parallel(usize::from(args.moving.jobs), tally, || {
                // No connection is made for which there is no file.
                let Some(first) = queue.await_one() else { return Ok(()) };
                put_files(dialer.open(&request)?, first, &queue, flags, tally)
            });
            // No worker is left to send more.
            queue.close();
            (lister.join().unwrap_or_default(), sent)
        });
        // All files are settled, so nothing changes the directories any more.
        let done = put_dirs(&dialer, &request, dirs, tally);
        sent.and(done)
    }))
}

/// Where a path on the command line is looked up, and its name there.
fn source(path: &Path) -> Result<(PathBuf, RelPath), CpError> {
    if path == Path::new("-") {
        return Err(CpError::no_stdio("standard input"));
    }
    let absolute = match path.file_name() {
        Some(_) => path.to_owned(),
        // `.`, `..` and `/` have no name of their own here.
        None => path.canonicalize().map_err(|e| CpError::local("read", path, e))?,
    };
    let Some(name) = absolute.file_name() else {
        return Ok((absolute, RelPath::root()));
    };
    let parent = match absolute.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    };
    let name = RelPath::parse(name.as_bytes())
        .map_err(|e| CpError::Usage(format!("`{}`: {e}", path.display())))?;
    Ok((parent, name))
}

/// A tree on the command line.
struct Tree {
    /// What the user typed.
    typed: PathBuf,
    root: Root,
    top: RelPath,
}

impl Tree {
    fn trouble(&self, trouble: &Trouble) -> String {
        trouble.as_typed(&self.typed, &self.top)
    }
}

fn sources<'a>(
    paths: impl Iterator<Item = &'a Path>,
    tally: &Tally,
) -> Result<Vec<Arc<Tree>>, CpError> {
    let mut trees = Vec::new();
    let mut names = Names::default();
    for path in paths {
        let opened = source(path).and_then(|(parent, top)| {
            let root = Root::open_source(&parent).map_err(|e| CpError::local("read", path, e))?;
            Ok(Arc::new(Tree { typed: path.to_owned(), root, top }))
        });
        // The other paths are copied although this one cannot be read.
        let tree = match opened {
            Ok(tree) => tree,
            Err(e) => {
                tally.problem(e.to_string());
                continue;
            }
        };
        names.add(&tree.top, "copy them into different directories with --into")?;
        trees.push(tree);
    }
    Ok(trees)
}

/// Lists the trees: files and links into the queue; the directories are for the end.
fn list(
    trees: &[Arc<Tree>],
    queue: &Queue<Job>,
    (flags, stop): (Flags, &AtomicBool),
    tally: &Tally,
) -> Vec<(RelPath, Meta)> {
    let _closing = Closing(queue);
    let mut dirs = Vec::new();
    for tree in trees {
        let walked = walk(&tree.root, &tree.top, true, &mut |found| {
            if let Found::Entry(entry) = &found {
                tally.special_bits(&entry.meta, flags.special);
            }
            match found {
                Found::Entry(e) if e.meta.kind == Kind::Dir => dirs.push((e.path, e.meta)),
                Found::Entry(entry) => {
                    tally.expect(entry.meta.size);
                    let (tree, dest) = (Arc::clone(tree), entry.path.clone());
                    if !queue.put(Job { tree, entry, dest, again: false }) {
                        return Err(());
                    }
                }
                Found::Skipped(t) => tally.warn(tree.trouble(&t)),
                Found::Failed(t) => tally.problem(tree.trouble(&t)),
            }
            if stop.load(Ordering::Relaxed) { Err(()) } else { Ok(()) }
        });
        if walked.is_err() {
            break;
        }
    }
    dirs
}

/// The files on their way on one connection, and what the server has said of each.
struct Desk<'a> {
    tally: &'a Tally,
    verify: bool,
    next_id: Id,
    /// Offered, no answer yet.
    offered: HashMap<Id, Job>,
    /// Answered: to be sent, in this order.
    ready: VecDeque<(Id, Job, Have)>,
    /// Sent or being sent; the server has the last word.
    sent: HashMap<Id, Job>,
    /// The file that is being sent; `unwanted`: the server has given it up.
    current: Option<Id>,
    unwanted: bool,
    /// Must be offered again, as they are now.
    changed: Vec<Job>,
    chunks: usize,
}

impl Desk<'_> {
    fn outstanding(&self) -> usize {
        self.offered.len() + self.ready.len() + self.sent.len()
    }

    fn has_room(&self) -> bool {
        self.outstanding() < WINDOW && self.chunks < MOST_CHUNKS / 2
    }

    fn answered(&mut self, id: Id, have: Have) -> Result<(), CpError> {
        let job = self.offered.remove(&id).ok_or_else(|| stray("an answer"))?;
        let size = job.entry.meta.size;
        let layout = Layout::of(size);
        self.chunks -= job.weight();
        if have.what == What::Believed {
            self.tally.resumed(size);
            self.tally.file_done(size, Proof::Believed);
        } else if have.chunks.last().is_some_and(|c| c.0 >= layout.count()) {
            return Err(stray("a chunk beyond the end of a file"));
        } else {
            self.ready.push_back((id, job, have));
        }
        Ok(())
    }

    fn done(&mut self, id: Id, ok: bool, text: &str) -> Result<(), CpError> {
        let offered = self.offered.remove(&id);
        if let Some(job) = &offered {
            self.chunks -= job.weight();
        }
        // The server has the bytes of a file when all of them were sent.
        if ok && (offered.is_some() || self.current == Some(id)) {
            return Err(stray("a success"));
        }
        let job = offered.or_else(|| self.sent.remove(&id)).ok_or_else(|| stray("a result"))?;
        if ok {
            self.tally.file_done(job.entry.meta.size, proof(&job, self.verify));
        } else {
            self.unwanted |= self.current == Some(id);
            if !text.is_empty() {
                self.tally.problem(format!("the server {text}"));
            }
        }
        Ok(())
    }
}

fn proof(job: &Job, verify: bool) -> Proof {
    Proof::by(verify || job.entry.meta.kind == Kind::Symlink)
}

fn stray(what: &str) -> CpError {
    CpError::Protocol(format!("{what} that this side did not ask for"))
}

impl Answers for Desk<'_> {
    fn on_frame(&mut self, frame: Frame) -> Result<(), CpError> {
        match frame {
            Frame::Have { id, have } => self.answered(id, have),
            Frame::Done { id, ok, text } => self.done(id, ok, &text),
            Frame::Refuse { text } => {
                Err(CpError::Refused { peer: "the server".into(), reason: text })
            }
            other => Err(unexpected(&other)),
        }
    }
    fn given_up(&self, id: Id) -> bool {
        self.unwanted && self.current == Some(id)
    }
    fn moved(&mut self, bytes: u64) {
        self.tally.moved(bytes);
    }
    fn resumed(&mut self, bytes: u64) {
        self.tally.resumed(bytes);
    }
}

/// One connection's work: offers run ahead, files follow as they are answered.
fn put_files(
    mut ch: Channel,
    first: Job,
    queue: &Queue<Job>,
    flags: Flags,
    tally: &Tally,
) -> Result<(), CpError> {
    ch.set_intake(Intake::Copy)?;
    ch.say_busy(flags.compare);
    let mut desk = Desk {
        tally,
        verify: flags.verify,
        next_id: 0,
        offered: HashMap::new(),
        ready: VecDeque::new(),
        sent: HashMap::new(),
        current: None,
        unwanted: false,
        changed: Vec::new(),
        chunks: 0,
    };
    offer(&mut ch, &mut desk, first)?;
    loop {
        while desk.has_room() {
            let Some(job) = desk.changed.pop().or_else(|| queue.take()) else { break };
            offer(&mut ch, &mut desk, job)?;
        }
        while let Some(frame) = ch.try_frame()? {
            desk.on_frame(frame)?;
        }
        if let Some((id, job, have)) = desk.ready.pop_front() {
            send_one(&mut ch, &mut desk, id, job, have)?;
        } else if desk.outstanding() > 0 {
            let frame = ch.frame()?;
            desk.on_frame(frame)?;
        } else {
            // The lister can take long for the next file. Meanwhile the server gets signs of life.
            let next = ch.while_waiting(|| queue.await_one());
            let Some(job) = next else { return say_bye(ch) };
            offer(&mut ch, &mut desk, job)?;
        }
    }
}

fn offer(ch: &mut Channel, desk: &mut Desk<'_>, job: Job) -> Result<(), CpError> {
    let id = desk.next_id;
    desk.next_id = id.wrapping_add(1);
    let (path, meta) = (job.dest.clone(), job.entry.meta);
    if meta.kind == Kind::Symlink {
        ch.send(&Frame::Link { id, path, meta, target: job.entry.target.clone() })?;
        desk.sent.insert(id, job);
    } else {
        ch.send(&Frame::Offer { id, path, meta })?;
        desk.chunks += job.weight();
        desk.offered.insert(id, job);
    }
    Ok(())
}

fn send_one(
    ch: &mut Channel,
    desk: &mut Desk<'_>,
    id: Id,
    job: Job,
    have: Have,
) -> Result<(), CpError> {
    let (tree, path) = (Arc::clone(&job.tree), job.entry.path.clone());
    let (listed, again) = (job.entry.meta, job.again);
    let out = Outgoing { id, root: &tree.root, path: &path, listed, have, verify: desk.verify };
    desk.sent.insert(id, job);
    (desk.current, desk.unwanted) = (Some(id), false);
    let sent = send_file(ch, desk, &out)?;
    desk.current = None;
    match sent {
        Sent::Gone => {}
        // Listing a large tree takes time, so the file is offered again as it is now. That happens
        // once: a file that is written all the time is at rest for no copy.
        Sent::Changed(meta) if meta.kind == Kind::File && !again => {
            if let Some(job) = desk.sent.get(&id) {
                let entry = Entry { meta, ..job.entry.clone() };
                let (tree, dest) = (Arc::clone(&tree), job.dest.clone());
                desk.tally.resized(listed.size, meta.size);
                desk.changed.push(Job { tree, entry, dest, again: true });
            }
        }
        Sent::Changed(_) => desk.tally.problem(tree.trouble(&changed(&out, SINCE))),
        Sent::Failed(t) => desk.tally.problem(tree.trouble(&t)),
    }
    Ok(())
}

/// Directories last, the deepest first: each gets its mode and times when
/// nothing inside it changes any more.
fn put_dirs(
    dialer: &Dialer,
    request: &Frame,
    mut dirs: Vec<(RelPath, Meta)>,
    tally: &Tally,
) -> Result<(), CpError> {
    if dirs.is_empty() {
        return Ok(());
    }
    dirs.sort_by_key(|(path, _)| std::cmp::Reverse(path.depth()));
    let mut ch = dialer.open(request)?;
    let mut open = HashMap::new();
    let mut dirs = (0..).zip(dirs);
    loop {
        while open.len() < WINDOW {
            let Some((id, (path, meta))) = dirs.next() else { break };
            if path.is_root() {
                continue;
            }
            ch.send(&Frame::Dir { id, path: path.clone(), meta })?;
            open.insert(id, path);
        }
        if open.is_empty() {
            return say_bye(ch);
        }
        match ch.frame()? {
            Frame::Done { id, ok, text } => {
                let path = open.remove(&id).ok_or_else(|| stray("a result"))?;
                if !ok {
                    tally.trouble(&Trouble::of(&path, format_args!("the server {text}")));
                }
            }
            other => return Err(unexpected(&other)),
        }
    }
}
