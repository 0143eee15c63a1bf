//! `exs-cp get`: lists the trees, then asks for the files that are missing.
//!
//! No name from the server is trusted. Each path is relative and normal by
//! [`RelPath`], must lie below a path that was asked for, and is reached through
//! [`Root`], which no symbolic link leads out of.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Names, Queue, in_parallel, say_bye};
use crate::cli::Get;
use crate::disk::meta::{Kind, Meta};
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::error::{CpError, Trouble};
use crate::hash::Layout;
use crate::net::channel::{Channel, Intake};
use crate::net::session::{Dialer, unexpected};
use crate::transfer::incoming::{Awaited, Incoming, check_name, survey};
use crate::transfer::settle::{Settled, Settler};
use crate::transfer::tally::{Proof, Tally};
use crate::transfer::{MOST_CHUNKS, WINDOW, weight};
use crate::wire::frame::{Flags, Frame, Id, What};

/// The way out for paths of one name.
const APART: &str = "get them one by one, into different directories";

/// A file to fetch, and its path below the destination.
struct Job {
    from: RelPath,
    to: RelPath,
    meta: Meta,
}

/// All that the server has listed, with its paths below the destination.
#[derive(Default)]
struct Plan {
    files: Vec<Job>,
    links: Vec<(RelPath, Meta, Vec<u8>)>,
    dirs: Vec<(RelPath, Meta)>,
    /// The number of files and links that were asked for by their own paths.
    tops: usize,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.links.is_empty() && self.dirs.is_empty()
    }

    /// The first names of all paths: these will be in the destination directory.
    fn first_names(&self) -> Names {
        let files = self.files.iter().map(|job| &job.to);
        let others = self.links.iter().map(|l| &l.0).chain(self.dirs.iter().map(|d| &d.0));
        Names::of(files.chain(others).filter_map(RelPath::first))
    }

    /// True if the plan is one file or link that was asked for itself. That there is no directory
    /// proves less: a server can leave it out.
    fn is_one_file(&self) -> bool {
        self.dirs.is_empty() && self.tops == 1 && self.files.len() + self.links.len() == 1
    }
}

/// What the user asked for.
struct Wish {
    /// On the server.
    top: RelPath,
    /// Here, below the destination.
    name: RelPath,
}

pub(crate) fn run(args: &Get, stop: &Arc<AtomicBool>) -> Result<u8, CpError> {
    let [address, paths @ .., dest] = &args.words[..] else {
        return Err(CpError::Usage("get ADDR:PORT PATH... DEST".into()));
    };
    if dest == "-" {
        return Err(CpError::no_stdio("standard output"));
    }
    let dialer = args.client.dialer(&address.to_string_lossy(), stop).map_err(|e| {
        super::misplaced(
            e,
            &args.words[1..],
            "the first word is the server: get ADDR:PORT PATH... DEST",
        )
    })?;
    let wishes = wishes(paths)?;
    let flags = args.moving.flags();
    let jobs = usize::from(args.moving.jobs);
    Ok(super::report(&args.client, &dialer.via, &args.moving, stop, |tally| {
        fetch(&dialer, wishes, Path::new(dest), flags, jobs, tally)
    }))
}

/// The paths on the command line. Two of one name are an error: one would replace the other.
fn wishes(paths: &[OsString]) -> Result<Vec<Wish>, CpError> {
    let (mut wishes, mut names) = (Vec::new(), Names::default());
    for path in paths {
        let path = Path::new(path);
        let top = RelPath::from_user(path)
            .map_err(|e| CpError::Usage(format!("`{}`: {e}", path.display())))?;
        let name = match top.split() {
            Some((_, name)) => RelPath::root().join_name(name).unwrap_or_default(),
            None => RelPath::root(),
        };
        names.add(&name, APART)?;
        wishes.push(Wish { top, name });
    }
    // The names that `.` brings must be known before those of the others.
    wishes.sort_by_key(|wish| !wish.name.is_root());
    Ok(wishes)
}

fn fetch(
    dialer: &Dialer,
    mut wishes: Vec<Wish>,
    dest: &Path,
    flags: Flags,
    jobs: usize,
    tally: &Tally,
) -> Result<(), CpError> {
    let mut plan = Plan::default();
    // As with cp: one file to a name that is no directory gets that name.
    let as_name = match &wishes[..] {
        [_] => file_target(dest)?,
        _ => None,
    };
    let mut names = Names::default();
    for wish in &mut wishes {
        if !wish.name.is_root() {
            // `.` has brought it already.
            if names.has(&wish.name) && wish.top == wish.name {
                continue;
            }
            names.add(&wish.name, APART)?;
        }
        list(dialer, wish, (as_name.as_ref().map(|t| &t.1), flags), &mut plan, tally)?;
        if wish.name.is_root() {
            names = plan.first_names();
        }
    }
    // No file will come, and the user was told why: no directory is made for it.
    if plan.is_empty() {
        return Ok(());
    }
    // All else stays below DEST, whatever the server says: the parent has other files.
    let dir = match &as_name {
        Some((parent, _)) if plan.is_one_file() => parent.as_path(),
        _ => dest,
    };
    std::fs::create_dir_all(dir).map_err(|e| match e.kind() {
        // Something else has the name.
        std::io::ErrorKind::AlreadyExists => {
            CpError::local("make the directory", dir, std::io::ErrorKind::NotADirectory)
        }
        _ => CpError::local("make the directory", dir, e),
    })?;
    let root = Root::open(dir).map_err(|e| CpError::local("write into", dir, e))?;
    for (path, meta, target) in &plan.links {
        let made = check_name(path).and_then(|()| {
            let made = root.symlink(path, target, meta);
            made.map_err(|e| Trouble::at_destination("make the symbolic link", path, e))
        });
        match made {
            Ok(()) => tally.file_done(0, Proof::Hashed),
            Err(t) => tally.problem(here(dir, &t)),
        }
    }
    let queue = Queue::of(plan.files);
    let jobs = jobs.min(queue.len());
    let got = in_parallel(jobs, tally, || {
        let ch = dialer.open(&Frame::Fetch { flags })?;
        Getting::new(ch, (&root, dir), flags, tally)?.run(&queue)
    });
    finish_dirs((&root, dir), plan.dirs, tally);
    if flags.sync {
        root.sync().map_err(|e| CpError::local("flush", dir, e))?;
    }
    got
}

/// A trouble for the user, with its path below DEST.
fn here(dir: &Path, trouble: &Trouble) -> String {
    trouble.as_typed(dir, &RelPath::root())
}

/// DEST as directory and new name, unless it is a directory already or is
/// meant to be one (`DEST/`).
fn file_target(dest: &Path) -> Result<Option<(std::path::PathBuf, RelPath)>, CpError> {
    use std::os::unix::ffi::OsStrExt;
    if dest.as_os_str().as_bytes().ends_with(b"/") || dest.is_dir() {
        return Ok(None);
    }
    let Some(name) = dest.file_name() else { return Ok(None) };
    let name = RelPath::parse(name.as_bytes())
        .map_err(|e| CpError::Usage(format!("`{}`: {e}", dest.display())))?;
    let parent = match dest.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => ".".into(),
    };
    Ok(Some((parent, name)))
}

/// The part of `path` below `top`; a server that names anything else lies.
fn below(path: &RelPath, top: &RelPath) -> Result<RelPath, CpError> {
    let lie = || CpError::Protocol(format!("the server named `{path}`, asked for `{top}`"));
    if top.is_root() {
        return Ok(path.clone());
    }
    let rest = path.as_bytes().strip_prefix(top.as_bytes()).ok_or_else(lie)?;
    match rest {
        [] => Ok(RelPath::root()),
        [b'/', rest @ ..] => RelPath::parse(rest).map_err(|_| lie()),
        _ => Err(lie()),
    }
}

fn list(
    dialer: &Dialer,
    wish: &mut Wish,
    (as_name, flags): (Option<&RelPath>, Flags),
    plan: &mut Plan,
    tally: &Tally,
) -> Result<(), CpError> {
    let mut ch = dialer.open(&Frame::Walk { path: wish.top.clone() })?;
    loop {
        match ch.frame()? {
            Frame::Entry { path, meta, target } => {
                let tail = below(&path, &wish.top)?;
                if let (true, Some(name)) = (tail.is_root() && meta.kind != Kind::Dir, as_name) {
                    wish.name = name.clone();
                }
                let to = match wish.name.join(&tail) {
                    Ok(to) => to,
                    Err(e) => {
                        tally.trouble(&Trouble::of(&path, e));
                        continue;
                    }
                };
                tally.special_bits(&meta, flags.special);
                let meta = meta.for_copy(flags.special);
                plan.tops += usize::from(tail.is_root() && meta.kind != Kind::Dir);
                match meta.kind {
                    Kind::Dir => plan.dirs.push((to, meta)),
                    Kind::Symlink => {
                        tally.expect(0);
                        plan.links.push((to, meta, target));
                    }
                    Kind::File => {
                        tally.expect(meta.size);
                        plan.files.push(Job { from: path, to, meta });
                    }
                }
            }
            Frame::Warn { error: false, text } => tally.warn(format!("the server: {text}")),
            Frame::Warn { error: true, text } => tally.problem(format!("the server {text}")),
            Frame::EndOfList => return Ok(()),
            Frame::Refuse { text } => {
                return Err(CpError::Refused { peer: ch.peer().to_owned(), reason: text });
            }
            other => return Err(unexpected(&other)),
        }
    }
}

/// The deepest first, as nothing inside may change any more.
fn finish_dirs((root, dest): (&Root, &Path), mut dirs: Vec<(RelPath, Meta)>, tally: &Tally) {
    dirs.sort_by_key(|(path, _)| std::cmp::Reverse(path.depth()));
    for (path, meta) in dirs {
        // The destination itself is the user's: its mode and time stay.
        if path.is_root() {
            continue;
        }
        let made = check_name(&path).and_then(|()| {
            let made = root.finish_dir(&path, &meta);
            made.map_err(|e| Trouble::at_destination("make the directory", &path, e))
        });
        if let Err(t) = made {
            tally.problem(here(dest, &t));
        }
    }
}

/// One connection's work: wants run ahead, files come.
struct Getting<'a> {
    ch: Channel,
    root: &'a Root,
    /// The root as the user typed it.
    dir: &'a Path,
    flags: Flags,
    tally: &'a Tally,
    next_id: Id,
    /// With what each counts for.
    awaited: HashMap<Id, (Awaited, usize)>,
    chunks: usize,
    current: Option<Incoming>,
    settler: Settler,
}

/// How long this side waits for a frame while files wait for its disk.
const LOOK: Duration = Duration::from_millis(1);

impl<'a> Getting<'a> {
    fn new(
        mut ch: Channel,
        (root, dir): (&'a Root, &'a Path),
        flags: Flags,
        tally: &'a Tally,
    ) -> Result<Self, CpError> {
        ch.set_intake(Intake::Place)?;
        ch.say_busy(flags.compare);
        let (awaited, settler) = (HashMap::new(), Settler::new(root, flags));
        let (next_id, chunks, current) = (0, 0, None);
        Ok(Getting { ch, root, dir, flags, tally, next_id, awaited, chunks, current, settler })
    }

    fn run(mut self, queue: &Queue<Job>) -> Result<(), CpError> {
        loop {
            // Ask again only when half is through: then wants leave in batches.
            if self.awaited.len() <= WINDOW / 2 {
                while self.awaited.len() < WINDOW && self.chunks < MOST_CHUNKS / 2 {
                    let Some(job) = queue.take() else { break };
                    self.want(job)?;
                }
                self.ch.flush()?;
            }
            if self.awaited.is_empty() && self.current.is_none() {
                if queue.len() == 0 {
                    while self.settler.is_busy() {
                        self.await_disk()?;
                    }
                    return say_bye(self.ch);
                }
                continue;
            }
            if let Some(frame) = self.next()? {
                self.handle(frame)?;
            }
        }
    }

    /// Waits for the next frame, or for a file to be settled (`None`).
    fn next(&mut self) -> Result<Option<Frame>, CpError> {
        while let Some(settled) = self.settler.next() {
            self.settled(settled)?;
        }
        if self.settler.is_full() {
            return self.await_disk().map(|()| None);
        }
        if self.settler.is_busy() {
            self.ch.busy();
            return self.ch.frame_soon(LOOK);
        }
        self.ch.frame().map(Some)
    }

    fn await_disk(&mut self) -> Result<(), CpError> {
        self.ch.busy();
        match self.settler.within(Duration::from_millis(100)) {
            Some(settled) => self.settled(settled),
            None => Ok(()),
        }
    }

    /// Tells the user, and the server for its own summary.
    fn settled(&mut self, settled: Settled) -> Result<(), CpError> {
        let Settled { id, size, resumed, result } = settled;
        let ok = result.is_ok();
        match result {
            Ok(()) => {
                self.tally.resumed(resumed);
                self.tally.file_done(size, Proof::by(self.flags.verify));
            }
            Err(t) => self.tally.problem(here(self.dir, &t)),
        }
        self.ch.send(&Frame::Done { id, ok, text: String::new() })
    }

    fn want(&mut self, job: Job) -> Result<(), CpError> {
        let ch = &mut self.ch;
        let found = survey(self.root, &job.to, &job.meta, self.flags, &mut || ch.busy());
        let (awaited, have) = match found {
            Ok(found) => found,
            Err(t) => {
                self.tally.problem(here(self.dir, &t));
                return Ok(());
            }
        };
        if have.what == What::Believed {
            self.tally.resumed(job.meta.size);
            self.tally.file_done(job.meta.size, Proof::Believed);
            return Ok(());
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let weight = weight(&job.from, Layout::of(job.meta.size).count() as usize);
        self.chunks += weight;
        self.awaited.insert(id, (awaited, weight));
        self.ch.send(&Frame::Want { id, path: job.from, source: job.meta, have })
    }

    fn take_awaited(&mut self, id: Id) -> Result<Awaited, CpError> {
        let (awaited, weight) = self.awaited.remove(&id).ok_or_else(orphan)?;
        self.chunks -= weight;
        Ok(awaited)
    }

    fn handle(&mut self, frame: Frame) -> Result<(), CpError> {
        let trouble = match frame {
            Frame::Data { offset, len } => {
                let current = self.current.as_mut().ok_or_else(orphan)?;
                current.data(&mut self.ch, offset, len, self.tally)?
            }
            Frame::Hole { offset, len } => {
                self.current.as_mut().ok_or_else(orphan)?.hole(offset, len, self.tally)?
            }
            Frame::Chunk { index, cv } => {
                self.current.as_mut().ok_or_else(orphan)?.chunk(index, &cv)?
            }
            Frame::Begin { id, meta } if self.current.is_none() => {
                let awaited = self.take_awaited(id)?;
                let (incoming, trouble) =
                    Incoming::begin(self.root, id, awaited, &meta, self.flags)?;
                self.current = Some(incoming);
                trouble
            }
            Frame::End { id, hash } => return self.end(id, &hash),
            Frame::Same { id } => return self.same(id),
            Frame::Fail { id, text } => return self.failed(id, &text),
            Frame::Refuse { text } => {
                let peer = self.ch.peer().to_owned();
                return Err(CpError::Refused { peer, reason: text });
            }
            other => return Err(unexpected(&other)),
        };
        // Told at once, so that the server need not send the rest.
        if let (Some(t), Some(current)) = (trouble, &self.current) {
            self.tally.problem(here(self.dir, &t));
            let (id, text) = (current.id, t.to_string());
            self.ch.send(&Frame::Done { id, ok: false, text })?;
            self.ch.flush()?;
        }
        Ok(())
    }

    fn end(&mut self, id: Id, hash: &[u8; 32]) -> Result<(), CpError> {
        let current = self.current.take().filter(|c| c.id == id).ok_or_else(orphan)?;
        match current.end(hash)? {
            Ok(Some(item)) => self.settler.push(item),
            Ok(None) => {}
            Err(t) => self.tally.problem(here(self.dir, &t)),
        }
        Ok(())
    }

    /// The server has the same bytes as this side.
    fn same(&mut self, id: Id) -> Result<(), CpError> {
        match self.take_awaited(id)?.same(self.root, id)? {
            Ok(item) => self.settler.push(item),
            Err(t) => self.tally.problem(here(self.dir, &t)),
        }
        Ok(())
    }

    fn failed(&mut self, id: Id, text: &str) -> Result<(), CpError> {
        let told = match self.current.take() {
            Some(current) if current.id == id => current.has_failed(),
            Some(_) => return Err(orphan()),
            None => self.take_awaited(id).map(|_| false)?,
        };
        if !told {
            self.tally.problem(format!("the server {text}"));
        }
        Ok(())
    }
}

fn orphan() -> CpError {
    CpError::Protocol("data of a file that was not asked for".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_name_only_what_was_asked_for() {
        let p = |s: &str| RelPath::parse(s.as_bytes()).unwrap();
        assert_eq!(below(&p("a/b/c"), &p("a/b")).unwrap(), p("c"));
        assert!(below(&p("a/b"), &p("a/b")).unwrap().is_root());
        assert_eq!(below(&p("x"), &RelPath::root()).unwrap(), p("x"));
        assert!(below(&p("a/bc"), &p("a/b")).is_err());
        assert!(below(&p("etc/passwd"), &p("a/b")).is_err());
    }
}
