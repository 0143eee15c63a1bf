//! One directory, and nothing outside it.
//!
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)` makes the kernel refuse
//! a resolution that would leave the directory, by `..`, an absolute link or
//! a link that climbs. Before Linux 5.6, or where a sandbox hides openat2,
//! the path is walked name by name and no symbolic link is followed at all:
//! stricter, and as safe. A path longer than the kernel takes is resolved in
//! pieces, each of which may not leave the directory that the one before it named.
//!
//! The directory that the user named keeps its mode and times. That holds for each name by
//! which a peer can reach it: the empty path, and a link to `.`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::meta::Meta;
use super::relpath::{PART, RelPath, side_name};

static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// The directory used last: files of one directory come one after another.
type Last = Mutex<Option<(RelPath, Arc<OwnedFd>)>>;

fn recall(last: &Last, path: &RelPath) -> Option<Arc<OwnedFd>> {
    let last = last.lock().unwrap_or_else(PoisonError::into_inner);
    last.as_ref().filter(|(known, _)| known == path).map(|(_, fd)| Arc::clone(fd))
}

fn remember(last: &Last, path: &RelPath, fd: OwnedFd) -> Arc<OwnedFd> {
    let fd = Arc::new(fd);
    let entry = Some((path.clone(), Arc::clone(&fd)));
    *last.lock().unwrap_or_else(PoisonError::into_inner) = entry;
    fd
}

/// Directories that users named, by device and inode; one entry for each [`Kept`].
static USERS: Mutex<Vec<Identity>> = Mutex::new(Vec::new());

type Identity = (u64, u64);

/// While this exists the directory's mode and times stay as they are.
struct Kept(Identity);

impl Kept {
    fn new(dir: &OwnedFd) -> io::Result<Kept> {
        let identity = identity(&fs::fstat(dir)?);
        USERS.lock().unwrap_or_else(PoisonError::into_inner).push(identity);
        Ok(Kept(identity))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = users.iter().position(|known| *known == self.0) {
            users.swap_remove(at);
        }
    }
}

#[expect(clippy::unnecessary_cast, reason = "the width of these fields is the architecture's")]
fn identity(st: &fs::Stat) -> Identity {
    (st.st_dev as u64, st.st_ino as u64)
}

/// Refuses a directory that the user named.
fn check_ours(st: &fs::Stat) -> Result<(), Errno> {
    let users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    if users.contains(&identity(st)) { Err(Errno::PERM) } else { Ok(()) }
}

/// The symbolic links that a path can lead through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Those that stay inside.
    Inside,
    /// None: the paths are those that a walk has found.
    Never,
}

/// A directory tree that paths cannot leave.
///
/// It remembers directories that it opened, so it is for one request. A server that keeps a tree
/// for longer takes a new one for each request ([`Self::fresh`]), which sees directories where
/// they are now.
pub(crate) struct Root {
    fd: OwnedFd,
    links: Links,
    /// Of a directory that the user named.
    _kept: Option<Kept>,
    /// To write in.
    made: Last,
    /// To look names up in, which needs no right to list them.
    seen: Last,
    /// This file system cannot make files without a name.
    pub(super) no_tmpfile: AtomicBool,
}

impl Root {
    /// Opens the directory itself; the user's own path, so links are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        let fd = fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let kept = Kept::new(&fd)?;
        Ok(Root { _kept: Some(kept), ..Root::of(fd) })
    }

    /// The same for a tree that is read, of which only paths are looked up that [`super::tree`]
    /// has found. A directory that became a symbolic link since then is not followed.
    pub(crate) fn open_source(path: &Path) -> io::Result<Root> {
        Ok(Root { links: Links::Never, ..Root::open(path)? })
    }

    fn of(fd: OwnedFd) -> Root {
        let no_tmpfile = AtomicBool::new(false);
        let (made, seen) = (Last::default(), Last::default());
        Root { fd, links: Links::Inside, _kept: None, made, seen, no_tmpfile }
    }

    /// The same directory, with nothing remembered.
    pub(crate) fn fresh(&self) -> io::Result<Root> {
        Ok(Root::of(self.fd.try_clone()?))
    }

    /// A root further down, made if it is missing.
    pub(crate) fn below(&self, rel: &RelPath) -> io::Result<Root> {
        self.make_dirs(rel)?;
        let fd = self.open_beneath(rel, OFlags::DIRECTORY, Mode::empty())?;
        Ok(Root::of(fd))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens what a path names, without leaving the root.
    pub(crate) fn open_beneath(
        &self,
        rel: &RelPath,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        if NO_OPENAT2.load(Ordering::Relaxed) {
            return self.walk_beneath(rel, flags, mode);
        }
        let pieces = rel.pieces();
        let mut at: Option<OwnedFd> = None;
        for (n, piece) in pieces.iter().enumerate() {
            let (flags, mode) = match n + 1 == pieces.len() {
                true => (flags, mode),
                false => (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()),
            };
            let from = at.as_ref().unwrap_or(&self.fd);
            match self.resolve(from, piece, flags, mode) {
                Err(Errno::NOSYS) => {
                    NO_OPENAT2.store(true, Ordering::Relaxed);
                    return self.walk_beneath(rel, flags, mode);
                }
                other => at = Some(other?),
            }
        }
        Ok(at.ok_or(Errno::INVAL)?)
    }

    /// One piece of a path, which may not lead out of `from`.
    fn resolve(
        &self,
        from: &OwnedFd,
        piece: &Path,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Errno> {
        let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if self.links == Links::Never {
            how |= ResolveFlags::NO_SYMLINKS;
        }
        loop {
            match fs::openat2(from, piece, flags, mode, how) {
                // A rename elsewhere raced with the resolution of `..`.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other,
            }
        }
    }

    /// The same without openat2: one name at a time, no links.
    fn walk_beneath(&self, rel: &RelPath, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some((parent, name)) = rel.split() else {
            return Ok(fs::openat(&self.fd, ".", flags, mode)?);
        };
        let mut at = fs::openat(&self.fd, ".", step, Mode::empty())?;
        for dir in parent.names() {
            at = fs::openat(&at, dir, step, Mode::empty())?;
        }
        Ok(fs::openat(&at, name, flags | OFlags::NOFOLLOW, mode)?)
    }

    /// The directory at `rel`, made if it is missing, remembered for next time.
    pub(crate) fn dir(&self, rel: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = recall(&self.made, rel) {
            return Ok(fd);
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let fd = match self.open_beneath(rel, flags, Mode::empty()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.make_dirs(rel)?;
                self.open_beneath(rel, flags, Mode::empty())?
            }
            other => other?,
        };
        Ok(remember(&self.made, rel, fd))
    }

    /// The directory at `rel`, to look names up in; it is not made.
    fn dir_seen(&self, rel: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(fd) = recall(&self.made, rel).or_else(|| recall(&self.seen, rel)) {
            return Ok(fd);
        }
        let fd = self.open_beneath(rel, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(remember(&self.seen, rel, fd))
    }

    /// Parent directory (made if missing) and last name.
    pub(crate) fn place<'a>(&self, rel: &'a RelPath) -> io::Result<(Arc<OwnedFd>, &'a [u8])> {
        let (parent, name) = rel.split().ok_or(Errno::EXIST)?;
        Ok((self.dir(&parent)?, name))
    }

    /// Makes the missing directories of a path. The existing part can lead through links inside.
    /// Each name of the rest is made and opened in the directory before it.
    fn make_dirs(&self, rel: &RelPath) -> io::Result<()> {
        let (mut at, have) = self.deepest(rel)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for name in rel.names().skip(have) {
            let make = || fs::mkdirat(&at, name, Mode::from_raw_mode(0o777));
            match writing(&at, make) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => at = fs::openat(&at, name, flags, Mode::empty())?,
            }
        }
        Ok(())
    }

    /// The deepest existing directory on a path, and the number of names in its path. Where one
    /// exists all above it do, so a binary search finds it.
    fn deepest(&self, rel: &RelPath) -> io::Result<(OwnedFd, usize)> {
        let open = |count| self.open_beneath(&rel.prefix(count), OFlags::DIRECTORY, Mode::empty());
        let (mut best, mut have) = (open(0)?, 0);
        let mut lacking = rel.depth() + 1;
        while have + 1 < lacking {
            let middle = have + (lacking - have) / 2;
            match open(middle) {
                Ok(fd) => (best, have) = (fd, middle),
                Err(e) if e.kind() == io::ErrorKind::NotFound => lacking = middle,
                Err(e) => return Err(e),
            }
        }
        Ok((best, have))
    }

    /// Opens a regular file for reading, with its present state. A link in its last place is
    /// refused. The open does not wait for a writer if a fifo took the file's place.
    pub(crate) fn open_file(&self, rel: &RelPath) -> io::Result<(File, fs::Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (parent, name) = rel.split().ok_or(Errno::ISDIR)?;
        let dir = self.dir_seen(&parent)?;
        let file = fs::openat(&dir, name, flags | OFlags::CLOEXEC, Mode::empty())?;
        let st = fs::fstat(&file)?;
        if FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no longer a regular file"));
        }
        Ok((File::from(file), st))
    }

    /// The state of the entry at `rel`; links are not followed. `Ok(None)`: there is no entry.
    pub(crate) fn stat(&self, rel: &RelPath) -> io::Result<Option<fs::Stat>> {
        let Some((parent, name)) = rel.split() else { return Ok(Some(fs::fstat(&self.fd)?)) };
        let st = self.dir_seen(&parent).and_then(|dir| {
            let at = fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
            at.map_err(io::Error::from)
        });
        match st {
            Ok(st) => Ok(Some(st)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes a symbolic link, which replaces a file or another link that is there. The new link
    /// gets its name by a rename, so the path always leads to the old entry or to the new one.
    pub(crate) fn symlink(&self, rel: &RelPath, target: &[u8], meta: &Meta) -> io::Result<()> {
        let (dir, name) = self.place(rel)?;
        match fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(st) => check_replaceable(&st)?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let same = fs::readlinkat(&dir, name, Vec::new());
        if same.is_ok_and(|there| there.as_bytes() == target) {
            // Its owner can set its times without a right to the directory.
            let timed = fs::utimensat(&dir, name, &meta.times(), AtFlags::SYMLINK_NOFOLLOW);
            if timed.is_ok() {
                return Ok(());
            }
        }
        // Another client can put a file of this name, which has the usual side name.
        let tmp = own_side_name(name);
        writing(&dir, || match fs::unlinkat(&dir, &*tmp, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => fs::symlinkat(target, &dir, &*tmp),
            other => other,
        })?;
        let done = fs::utimensat(&dir, &*tmp, &meta.times(), AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| fs::renameat(&dir, &*tmp, &dir, name));
        if done.is_err() {
            let _ = fs::unlinkat(&dir, &*tmp, AtFlags::empty());
        }
        Ok(done?)
    }

    /// Makes a directory if it is missing, and gives it its mode and times:
    /// last of all, since everything made inside changes them.
    pub(crate) fn finish_dir(&self, rel: &RelPath, meta: &Meta) -> io::Result<()> {
        let dir = self.dir(rel)?;
        check_ours(&fs::fstat(&dir)?)?;
        fs::fchmod(&dir, meta.copy_mode())?;
        Ok(fs::futimens(&dir, &meta.times())?)
    }

    /// An error if the directory was removed: nothing can be made in it any more, and a new
    /// directory of the same name is another one.
    pub(crate) fn check_there(&self) -> io::Result<()> {
        match fs::fstat(&self.fd)?.st_nlink {
            0 => Err(io::Error::other(
                "the served directory was removed. Make it again, and start exs-cp serve again there",
            )),
            _ => Ok(()),
        }
    }

    /// Flushes the file system that holds the root.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(&self.fd)?)
    }
}

/// A copy replaces a file or a link. Anything else that has its name is an error, which says
/// what it is.
pub(crate) fn check_replaceable(st: &fs::Stat) -> io::Result<()> {
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile | FileType::Symlink => Ok(()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(io::Error::other(
            "it is a fifo, socket or device at the destination, which no copy replaces. \
             Move it away, and run the same command again",
        )),
    }
}

/// A side name that no other transfer uses: it has this process's number and a count.
pub(super) fn own_side_name(name: &[u8]) -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let own = format!(".{}-{n}", std::process::id());
    side_name(&[name, own.as_bytes()].concat(), PART)
}

/// Does a change in `dir`. If a former run made it read-only, opens it up and tries again.
pub(super) fn writing<T>(dir: &OwnedFd, change: impl Fn() -> Result<T, Errno>) -> io::Result<T> {
    match change() {
        Err(Errno::ACCESS) => {
            open_up(dir)?;
            Ok(change()?)
        }
        other => Ok(other?),
    }
}

/// Makes a directory of this user writable. It is read-only as the copy of a read-only one, and
/// gets that mode back when the tree is done. The user's own directory is refused.
pub(super) fn open_up(dir: &OwnedFd) -> io::Result<()> {
    let st = fs::fstat(dir)?;
    check_ours(&st).map_err(|_| Errno::ACCESS)?;
    let mode = Mode::from_raw_mode(st.st_mode & 0o7777) | Mode::RWXU;
    Ok(fs::fchmod(dir, mode).map_err(|_| Errno::ACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::os::unix::fs::symlink;

    fn rel(s: &str) -> RelPath {
        RelPath::parse(s.as_bytes()).unwrap()
    }

    /// Both ways of resolving a path must refuse every way out.
    #[test]
    fn links_do_not_lead_outside() {
        let tmp = TempDir::new("root");
        let inside = tmp.path().join("in");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(tmp.path().join("secret"), "s").unwrap();
        std::fs::write(inside.join("sub/ok"), "o").unwrap();
        symlink("/etc", inside.join("abs")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        symlink("../secret", inside.join("file")).unwrap();
        let root = Root::open(&inside).unwrap();
        let rd = OFlags::RDONLY | OFlags::CLOEXEC;
        for bad in ["abs/passwd", "up/secret", "file", "up"] {
            assert!(root.open_beneath(&rel(bad), rd, Mode::empty()).is_err(), "{bad}");
            assert!(root.walk_beneath(&rel(bad), rd, Mode::empty()).is_err(), "{bad}, walked");
            assert!(root.open_file(&rel(bad)).is_err(), "{bad}");
        }
        for good in ["sub/ok", "sub"] {
            assert!(root.open_beneath(&rel(good), rd, Mode::empty()).is_ok(), "{good}");
            assert!(root.walk_beneath(&rel(good), rd, Mode::empty()).is_ok(), "{good}, walked");
        }
        assert!(root.place(&rel("up/planted")).is_err());
        assert!(root.below(&rel("up/new")).is_err());
        assert!(!tmp.path().join("new").exists() && !tmp.path().join("planted").exists());
    }

    #[test]
    fn directories_are_made_on_the_way() {
        let tmp = TempDir::new("root-dirs");
        let root = Root::open(tmp.path()).unwrap();
        let path = rel("a/b/c/f");
        let (_, name) = root.place(&path).unwrap();
        assert_eq!(name, b"f");
        assert!(tmp.path().join("a/b/c").is_dir());
        assert!(root.stat(&path).unwrap().is_none());
        assert!(root.place(&RelPath::root()).is_err());
    }

    /// Each uses a name of its own until the rename.
    #[test]
    fn two_clients_can_make_one_link_at_the_same_time() {
        let tmp = TempDir::new("root-links");
        let root = Root::open(tmp.path()).unwrap();
        std::thread::scope(|s| {
            for n in 0..4 {
                let root = &root;
                s.spawn(move || {
                    for i in 0..500 {
                        let target = format!("{n}-{i}");
                        root.symlink(&rel("l"), target.as_bytes(), &Meta::default()).unwrap();
                    }
                });
            }
        });
        let last = std::fs::read_link(tmp.path().join("l")).unwrap();
        assert!(last.to_str().unwrap().ends_with("-499"), "{last:?}");
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_replaces_a_link_and_leaves_nothing_behind() {
        let tmp = TempDir::new("root-link");
        let root = Root::open(tmp.path()).unwrap();
        let meta = Meta::default();
        root.symlink(&rel("l"), b"one", &meta).unwrap();
        root.symlink(&rel("l"), b"two", &meta).unwrap();
        assert_eq!(std::fs::read_link(tmp.path().join("l")).unwrap().as_os_str(), "two");
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);
        std::fs::create_dir(tmp.path().join("d")).unwrap();
        assert!(root.symlink(&rel("d"), b"x", &meta).is_err());
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 2);
    }
}
