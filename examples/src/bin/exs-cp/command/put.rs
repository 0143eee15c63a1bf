//! `exs-cp put`: list the trees, then offer and send over `-j` connections.

use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Queue, in_parallel, say_bye};
use crate::cli::Put;
use crate::disk::meta::{Kind, Meta};
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::disk::tree::{Entry, Found, walk};
use crate::error::{CpError, Trouble};
use crate::hash::Layout;
use crate::net::channel::{Channel, Intake};
use crate::net::session::{Dialer, unexpected};
use crate::transfer::sender::{Answers, Outgoing, send_file};
use crate::transfer::tally::Tally;
use crate::transfer::{MOST_CHUNKS, WINDOW};
use crate::wire::frame::{Flags, Frame, Have, Id};

/// Something to send: where it is here, and what it is called there.
struct Job {
    root: Arc<Root>,
    entry: Entry,
    dest: RelPath,
}

/// The trees as they were listed.
#[derive(Default)]
struct Plan {
    jobs: Vec<Job>,
    dirs: Vec<(RelPath, Meta)>,
}

pub(crate) fn run(args: &Put, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let Some((address, paths)) = args.words.split_last() else {
        return Err(CpError::Usage("put PATH... ADDR:PORT".into()));
    };
    let dialer = args.client.dialer(&address.to_string_lossy(), stop)?;
    let into = match &args.into {
        Some(dir) => RelPath::from_user(dir)
            .map_err(|e| CpError::Usage(format!("--into {}: {e}", dir.display())))?,
        None => RelPath::root(),
    };
    let flags = args.moving.flags();
    Ok(super::report(&args.client, &dialer.via, &args.moving, stop, |tally| {
        let plan = list(paths.iter().map(Path::new), tally)?;
        let request = Frame::Put { into, flags };
        let queue = Queue::new(plan.jobs);
        // A connection more than there are files would only be set up.
        let jobs = usize::from(args.moving.jobs).min(queue.len()).max(1);
        let sent =
            in_parallel(jobs, tally, || put_files(dialer.open(&request)?, &queue, flags, tally));
        // The trees stand, as far as they go: now their directories.
        let done = put_dirs(&dialer, &request, plan.dirs, tally);
        sent.and(done)
    }))
}

/// Where a path on the command line is looked up, and its name there.
fn source(path: &Path) -> Result<(PathBuf, RelPath), CpError> {
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

fn list<'a>(paths: impl Iterator<Item = &'a Path>, tally: &Tally) -> Result<Plan, CpError> {
    let mut plan = Plan::default();
    let mut names = HashSet::new();
    for path in paths {
        let opened = source(path).and_then(|(parent, top)| {
            let root = Root::open(&parent).map_err(|e| CpError::local("read", &parent, e))?;
            Ok((Arc::new(root), top))
        });
        // One path that cannot be read keeps none of the others from going.
        let (root, top) = match opened {
            Ok(opened) => opened,
            Err(e) => {
                tally.problem(e.to_string());
                continue;
            }
        };
        if !names.insert(top.clone()) {
            let text = format!(
                "two of the paths are called `{top}`; copy them into different directories with --into"
            );
            return Err(CpError::Usage(text));
        }
        walk(&root, &top, true, &mut |found| {
            match found {
                Found::Entry(e) if e.meta.kind == Kind::Dir => plan.dirs.push((e.path, e.meta)),
                Found::Entry(entry) => {
                    tally.expect(entry.meta.size);
                    let dest = entry.path.clone();
                    plan.jobs.push(Job { root: Arc::clone(&root), entry, dest });
                }
                Found::Skipped(t) => tally.warn(t.to_string()),
                Found::Failed(t) => tally.trouble(&t),
            }
            Ok::<(), CpError>(())
        })?;
    }
    Ok(plan)
}

/// What is on its way on one connection, and what the server says about it.
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
    given_up: HashSet<Id>,
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
        self.chunks -= layout.count() as usize;
        if have.complete {
            self.tally.resumed(size);
            self.tally.file_done(size);
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
            self.chunks -= Layout::of(job.entry.meta.size).count() as usize;
        }
        let job = offered.or_else(|| self.sent.remove(&id)).ok_or_else(|| stray("a result"))?;
        if ok {
            self.tally.file_done(job.entry.meta.size);
        } else {
            self.given_up.insert(id);
            if !text.is_empty() {
                self.tally.problem(format!("the server {text}"));
            }
        }
        Ok(())
    }
}

const VANISHED: &str = "was removed since the tree was listed, so it is not copied";

fn stray(what: &str) -> CpError {
    CpError::Protocol(format!("{what} that nobody asked for"))
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
        self.given_up.contains(&id)
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
    queue: &Queue<Job>,
    flags: Flags,
    tally: &Tally,
) -> Result<(), CpError> {
    ch.set_intake(Intake::Copy)?;
    let mut desk = Desk {
        tally,
        verify: flags.verify,
        next_id: 0,
        offered: HashMap::new(),
        ready: VecDeque::new(),
        sent: HashMap::new(),
        given_up: HashSet::new(),
        chunks: 0,
    };
    loop {
        while desk.has_room() {
            let Some(job) = queue.take() else { break };
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
        } else if queue.len() == 0 {
            return say_bye(ch);
        }
    }
}

fn offer(ch: &mut Channel, desk: &mut Desk<'_>, mut job: Job) -> Result<(), CpError> {
    let id = desk.next_id;
    if job.entry.meta.kind == Kind::File {
        // Listing a large tree takes time: the state that counts is today's.
        match job.root.stat(&job.entry.path).map(|st| st.as_ref().and_then(Meta::of)) {
            Ok(Some(meta)) if meta.kind == Kind::File => job.entry.meta = meta,
            Ok(_) => {
                desk.tally.trouble(&Trouble::of(&job.entry.path, VANISHED));
                return Ok(());
            }
            Err(e) => {
                desk.tally.trouble(&Trouble::io("read", &job.entry.path, e));
                return Ok(());
            }
        }
    }
    desk.next_id = id.wrapping_add(1);
    let (path, meta) = (job.dest.clone(), job.entry.meta);
    if meta.kind == Kind::Symlink {
        ch.send(&Frame::Link { id, path, meta, target: job.entry.target.clone() })?;
        desk.sent.insert(id, job);
    } else {
        ch.send(&Frame::Offer { id, path, meta })?;
        desk.chunks += Layout::of(meta.size).count() as usize;
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
    let (root, path) = (Arc::clone(&job.root), job.entry.path.clone());
    let listed = job.entry.meta;
    let out = Outgoing { id, root: &root, path: &path, listed, have, verify: desk.verify };
    desk.sent.insert(id, job);
    if let Err(trouble) = send_file(ch, desk, &out)? {
        desk.tally.trouble(&trouble);
    }
    desk.given_up.remove(&id);
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
