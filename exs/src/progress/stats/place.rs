//! Where processes offer their figures, and the socket of this process there.
//!
//! A socket is named after the process id, as `4711.sock`. A name belongs to a socket only once the
//! socket listens: it is made under another name, and renamed. So a socket that refuses a connection
//! is one that a dead process has left behind, and any process of the user may remove it.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::sys::effective_uid;

/// The name of the directory below one that belongs to the user.
const NAME: &str = "exs";
/// The most names of one process id. Processes in several PID namespaces can have the same number.
const SAME_PID: u32 = 64;
/// The most entries of a directory that a process looks at when it removes what is left behind.
const ENTRIES: usize = 4096;

/// A directory of the system in which the user has one for its processes.
fn runtime_dir(uid: u32) -> Option<PathBuf> {
    let own = |dir: &PathBuf| fs::metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == uid);
    let by_environment =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let of_system = || match uid {
        0 => PathBuf::from("/run"),
        uid => PathBuf::from(format!("/run/user/{uid}")),
    };
    by_environment.filter(own).or_else(|| Some(of_system()).filter(own))
}

/// The directory in which this process offers its figures.
fn default_directory(uid: u32) -> PathBuf {
    match runtime_dir(uid) {
        Some(dir) => dir.join(NAME),
        None => PathBuf::from(format!("/tmp/{NAME}-{uid}")),
    }
}

/// The directories in which this process would look for processes that offer their figures, and which
/// exist. Those of all users come if this process may read them.
pub fn directories() -> Vec<PathBuf> {
    let uid = effective_uid();
    let chosen = super::Offer::of_environment().ok();
    let chosen = chosen.and_then(|offer| offer.directory().map(Path::to_owned));
    let mut all: Vec<PathBuf> = chosen.into_iter().chain([default_directory(uid)]).collect();
    all.extend([PathBuf::from("/run").join(NAME), format!("/tmp/{NAME}-{uid}").into()]);
    all.extend(entries(Path::new("/run/user")).map(|user| user.join(NAME)));
    let prefix = format!("{NAME}-");
    let of_user = |dir: &PathBuf| {
        dir.file_name().is_some_and(|name| name.as_bytes().starts_with(prefix.as_bytes()))
    };
    all.extend(entries(Path::new("/tmp")).filter(of_user));
    let mut seen = Vec::new();
    for dir in all {
        // Of two ways to a directory, the first is named.
        let identity = fs::metadata(&dir).ok().filter(Metadata::is_dir).map(|m| (m.dev(), m.ino()));
        if let Some(identity) = identity
            && !seen.iter().any(|(_, known)| *known == identity)
            && fs::read_dir(&dir).is_ok()
        {
            seen.push((dir, identity));
        }
    }
    seen.into_iter().map(|(dir, _)| dir).collect()
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().take(ENTRIES).flatten().map(|entry| entry.path())
}

/// The error with the path that it is about.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes the directory, if need be. Refuses one that others could change, unless the user has chosen
/// it.
fn prepare(dir: &Path, chosen: bool) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(at(dir, &e)),
    }
    let found = match chosen {
        true => fs::metadata(dir),
        // A link would lead to a directory of its maker's choice.
        false => fs::symlink_metadata(dir),
    };
    let found = found.map_err(|e| at(dir, &e))?;
    let trusted = chosen || found.uid() == effective_uid() && found.mode() & 0o077 == 0;
    if !found.is_dir() || !trusted {
        let why = format!(
            "{} is not a directory of this user alone: remove it, or name another directory in EXS_STATS",
            dir.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// True if no process listens on this socket any more.
fn is_left_behind(path: &Path) -> bool {
    let own = fs::symlink_metadata(path)
        .is_ok_and(|m| m.file_type().is_socket() && m.uid() == effective_uid());
    // mio connects without waiting, so a process that is slow to accept is no obstacle.
    own && mio::net::UnixStream::connect(path)
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

fn is_socket_name(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "sock")
}

/// Removes the sockets of processes that are dead.
fn clean(dir: &Path) {
    for path in entries(dir).filter(|path| is_socket_name(path) && is_left_behind(path)) {
        let _ = fs::remove_file(path);
    }
}

/// Listens in this directory, or else in that of the user. Returns the listener and its path.
///
/// # Errors
/// The kernel's error, with the path.
pub(super) fn listen(chosen: Option<&Path>) -> io::Result<(UnixListener, PathBuf)> {
    let usual = || default_directory(effective_uid());
    let dir = chosen.map_or_else(usual, Path::to_owned);
    prepare(&dir, chosen.is_some())?;
    clean(&dir);
    let pid = std::process::id();
    let hidden = dir.join(format!(".{pid}-{}.new", crate::sys::this_thread()));
    let _ = fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).map_err(|e| at(&hidden, &e))?;
    let placed = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
        .and_then(|()| place(&hidden, &dir, pid));
    match placed {
        Ok(path) => Ok((listener, path)),
        Err(e) => {
            let _ = fs::remove_file(&hidden);
            Err(at(&dir, &e))
        }
    }
}

/// Gives the socket its name, which no living process has.
fn place(hidden: &Path, dir: &Path, pid: u32) -> io::Result<PathBuf> {
    for number in 0..SAME_PID {
        let path = dir.join(match number {
            0 => format!("{pid}.sock"),
            n => format!("{pid}-{n}.sock"),
        });
        // link(2) fails if the name is taken.
        match fs::hard_link(hidden, &path) {
            Ok(()) => {
                let _ = fs::remove_file(hidden);
                return Ok(path);
            }
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the test, which goes with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("exs-place-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).unwrap();
            Scratch(dir)
        }

        fn names(&self) -> Vec<String> {
            let name = |p: PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
            let mut names: Vec<_> = entries(&self.0).map(name).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_socket_is_the_users_alone_and_replaces_those_of_dead_processes() {
        let scratch = Scratch::new("own");
        let (pid, dir) = (std::process::id(), scratch.0.join("figures"));
        let (dead, path) = listen(Some(&dir)).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(path, dir.join(format!("{pid}.sock")));
        // The first lives, so the second gets another name.
        let (_second, beside) = listen(Some(&dir)).unwrap();
        assert_eq!(beside, dir.join(format!("{pid}-1.sock")));
        drop(dead);
        fs::write(dir.join("other.sock"), "not a socket").unwrap();
        let (_third, again) = listen(Some(&dir)).unwrap();
        assert_eq!(again, path, "the name of the dead one is free again");
        let names: Vec<_> = entries(&dir).collect();
        assert_eq!(names.len(), 3, "nothing else was removed or left: {names:?}");
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused_unless_it_was_chosen() {
        let scratch = Scratch::new("refused");
        let (open, link, file) =
            (scratch.0.join("open"), scratch.0.join("link"), scratch.0.join("file"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(&open, &link).unwrap();
        fs::write(&file, "").unwrap();
        for dir in [&open, &link, &file] {
            let e = prepare(dir, false).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}");
            assert!(e.to_string().contains("EXS_STATS"), "{e}");
        }
        prepare(&open, true).unwrap();
        prepare(&link, true).unwrap();
        assert!(prepare(&file, true).is_err());
        assert!(prepare(&scratch.0.join("no/such"), true).is_err());
        assert_eq!(scratch.names(), ["file", "link", "open"]);
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error_with_the_path() {
        let scratch = Scratch::new("long");
        let e = listen(Some(&scratch.0.join("x".repeat(120)))).unwrap_err();
        assert!(e.to_string().contains("xxxx"), "{e}");
    }
}
