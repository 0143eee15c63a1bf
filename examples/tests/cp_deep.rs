//! Trees whose paths are longer than the kernel takes in one call, with few descriptors.

mod cp_support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use cp_support::*;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};

/// More than there are descriptors; and with names of 100 bytes, the path is longer than a
/// 16-bit length, too.
const DEPTH: usize = 700;
const NAME: &str = concat!(
    "a_directory_of_some_depth",
    "a_directory_of_some_depth",
    "a_directory_of_some_depth",
    "a_directory_of_some_depth",
);
/// Directories at regular depths have a file, and so has the last.
const EVERY: usize = 149;

fn open(at: impl std::os::fd::AsFd, name: &str) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).unwrap()
}

fn is_marked(depth: usize) -> bool {
    depth.is_multiple_of(EVERY) || depth == DEPTH - 1
}

/// A directory, which is emptied level by level: `remove_dir_all` needs a descriptor for each.
struct Deep(TempDir);

impl Drop for Deep {
    fn drop(&mut self) {
        for top in ["src", "served", "back"] {
            let top = self.0.path().join(top);
            let Ok(mut at) = File::open(&top).map(OwnedFd::from) else { continue };
            let mut levels = 0;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            for name in std::iter::once("tree").chain(std::iter::repeat(NAME)) {
                let _ = rustix::fs::unlinkat(&at, "file", AtFlags::empty());
                let _ = rustix::fs::unlinkat(&at, "link", AtFlags::empty());
                match rustix::fs::openat(&at, name, flags, Mode::empty()) {
                    Ok(next) => (at, levels) = (next, levels + 1),
                    Err(_) => break,
                }
            }
            for left in (1..=levels).rev() {
                at = open(&at, "..");
                let name = if left == 1 { "tree" } else { NAME };
                let _ = rustix::fs::unlinkat(&at, name, AtFlags::REMOVEDIR);
            }
        }
    }
}

fn build(top: &Path) {
    fs::create_dir(top).unwrap();
    let mut at = OwnedFd::from(File::open(top).unwrap());
    for depth in 0..DEPTH {
        rustix::fs::mkdirat(&at, NAME, Mode::from_raw_mode(0o755)).unwrap();
        at = open(&at, NAME);
        if is_marked(depth) {
            let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&at, "file", flags, Mode::from_raw_mode(0o640)).unwrap();
            let mut file = File::from(file);
            file.write_all(&noise(depth as u64, 3_000)).unwrap();
            let time = Timespec { tv_sec: 1_000_000 + depth as i64, tv_nsec: 7 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&file, &times).unwrap();
            rustix::fs::symlinkat(format!("to {depth}"), &at, "link").unwrap();
        }
    }
}

fn check(top: &Path) {
    let mut at = OwnedFd::from(File::open(top).unwrap());
    for depth in 0..DEPTH {
        at = open(&at, NAME);
        if is_marked(depth) {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&at, "file", flags, Mode::empty()).unwrap();
            let (mut file, mut bytes) = (File::from(file), Vec::new());
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes == noise(depth as u64, 3_000), "at depth {depth}");
            let st = rustix::fs::fstat(&file).unwrap();
            assert_eq!((st.st_mode & 0o7777, st.st_mtime), (0o640, 1_000_000 + depth as i64));
            let link = rustix::fs::readlinkat(&at, "link", Vec::new()).unwrap();
            assert_eq!(link.to_str().unwrap(), format!("to {depth}"));
        }
    }
}

/// `exs-cp` with at most 256 descriptors.
fn few(args: &[&str]) -> Command {
    let mut c = Command::new("sh");
    c.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\"", EXS_CP]).args(args);
    c
}

#[test]
fn a_tree_is_copied_at_any_depth_both_ways() {
    let tmp = Deep(TempDir::new("deep"));
    let (src, served, back) = (tmp.0.dir("src"), tmp.0.dir("served"), tmp.0.dir("back"));
    let tree = src.join("tree");
    build(&tree);
    let files = (0..DEPTH).filter(|d| is_marked(*d)).count() as u64 * 2;
    let serve = ["serve", served.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Server::spawn(few(&serve));
    let addr = server.addr.as_str();
    let said = run(few(&["put", tree.to_str().unwrap(), addr, "--json"])).assert_ok();
    assert_eq!(said.number("files"), files);
    check(&served.join("tree"));
    // Again: all of it is there.
    let said = run(few(&["put", tree.to_str().unwrap(), addr, "--json", "-j", "3"])).assert_ok();
    assert_eq!((said.number("files"), said.number("resumed_bytes")), (files, 3_000 * files / 2));
    let said = run(few(&["get", addr, "tree", back.to_str().unwrap(), "--json"])).assert_ok();
    assert_eq!(said.number("files"), files);
    check(&back.join("tree"));
    // A directory deep enough for a path that a command line can still name.
    let path = std::iter::once("tree").chain(std::iter::repeat_n(NAME, DEPTH)).collect::<Vec<_>>();
    let said = run(few(&["ls", addr, &path.join("/"), "--json"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let entries = said.json["entries"].as_array().unwrap();
    let paths: Vec<_> = entries.iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["file", "link"].map(|name| format!("{}/{name}", path.join("/"))));
}
