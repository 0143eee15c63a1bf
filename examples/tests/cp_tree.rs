//! exs-cp moves trees: real processes, real files, both ways.

mod cp_support;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cp_support::*;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, mkfifoat, utimensat};

fn stamp(path: &Path, seconds: i64, nanos: i64) {
    let t = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: t, last_modification: t };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree with everything that trips copying programs up.
fn odd_tree(top: &Path) {
    fs::create_dir_all(top.join("deep/er/and/deeper")).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("nothing"), "").unwrap();
    fs::write(top.join("one"), "1").unwrap();
    fs::write(top.join(OsStr::from_bytes(b"not \xff\xfe utf-8")), "bytes").unwrap();
    fs::write(top.join("new\nline and \x1b[31mcolour"), "odd").unwrap();
    fs::write(top.join("x".repeat(255)), "long").unwrap();
    fs::write(top.join(" leading and trailing "), "blank").unwrap();
    fs::write(top.join("deep/er/and/deeper/file"), noise(1, 70_000)).unwrap();
    // Around the edges of frames, buffers and chunks.
    for (i, len) in [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 1, 9 << 20]
        .into_iter()
        .enumerate()
    {
        fs::write(top.join(format!("edge{i}")), noise(i as u64, len)).unwrap();
    }
    fs::hard_link(top.join("edge0"), top.join("hard link")).unwrap();
    symlink("nowhere/at/all", top.join("dangling")).unwrap();
    symlink("/etc/passwd", top.join("absolute")).unwrap();
    symlink("../../..", top.join("deep/climbing")).unwrap();
    symlink(OsStr::from_bytes(b"\xfe"), top.join("strange")).unwrap();
    mkfifoat(CWD, top.join("fifo"), Mode::RUSR).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    for at in [0u64, 5 << 20, (33 << 20) + 77] {
        sparse.write_all_at(&[0xEE; 5000], at).unwrap();
    }
    File::create(top.join("all hole")).unwrap().set_len(10 << 20).unwrap();
    for (name, mode) in [("one", 0o400), ("nothing", 0o777), ("empty", 0o1777)] {
        fs::set_permissions(top.join(name), Permissions::from_mode(mode)).unwrap();
    }
    for (i, name) in ["one", "dangling", "sparse", "deep/er", "deep", "empty"].iter().enumerate() {
        stamp(&top.join(name), 1_000_000_000 + i as i64, 123_456_789 - i as i64);
    }
    stamp(&top.join("nothing"), -5, 1);
    stamp(top, 1_234_567_890, 999_999_999);
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn an_odd_tree_survives_both_ways() {
    let tmp = TempDir::new("odd");
    let (src, served, back) = (tmp.dir("src"), tmp.dir("served"), tmp.dir("back"));
    odd_tree(&src);
    let server = Server::start(&served, &[]);
    for (jobs, into) in [("1", "a"), ("3", "b/c")] {
        let put = run(client([
            OsStr::new("put"),
            src.as_os_str(),
            server.addr.as_ref(),
            "--into".as_ref(),
            into.as_ref(),
            "-j".as_ref(),
            jobs.as_ref(),
        ]))
        .assert_ok();
        assert!(put.stderr.contains("fifo"), "a warning names it: {}", put.stderr);
        assert_same(&src, &served.join(into).join("src"));
        let files = look(&src).iter().filter(|s| s.kind != 'd').count();
        assert_eq!(put.number("files"), files as u64);
        assert_eq!(put.number("resumed_bytes"), 0);
        assert!(put.json["seconds"].as_f64().unwrap() > 0.0);
        assert!(put.json["gbytes_per_s"].as_f64().unwrap() > 0.0);
        assert_eq!(put.json["transport"], "shm");
    }
    let got = run(client(["get", &server.addr, "a/src", back.to_str().unwrap(), "-j", "2"]));
    let got = got.assert_ok();
    assert_same(&src, &back.join("src"));
    for copy in [served.join("a/src"), back.join("src")] {
        assert!(blocks(&copy.join("sparse")) < 1 << 20, "{copy:?} stayed sparse");
        assert!(blocks(&copy.join("all hole")) < 64 << 10);
        assert_eq!(fs::metadata(copy.join("hard link")).unwrap().nlink(), 1);
        assert!(!copy.join("fifo").exists());
        let left = look(&copy).iter().filter(|s| s.path.windows(5).any(|w| w == b".exs-")).count();
        assert_eq!(left, 0, "nothing unfinished is left");
    }
    // Again: all of it is known to be there.
    let again = run(client(["get", &server.addr, "a/src", back.to_str().unwrap()])).assert_ok();
    assert_eq!(again.number("resumed_bytes"), got.number("bytes"));
    assert_eq!(again.number("files"), got.number("files"));
    assert_same(&src, &back.join("src"));
}

#[test]
fn many_small_files() {
    let tmp = TempDir::new("small");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    for i in 0..3000u64 {
        let dir = src.join(format!("d{}", i % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{i}")), noise(i, usize::try_from(i % 40 * 100).unwrap()))
            .unwrap();
    }
    let server = Server::start(&served, &[]);
    let put = run(client(["put", src.to_str().unwrap(), &server.addr, "-j", "4"])).assert_ok();
    assert_eq!(put.number("files"), 3000);
    assert_same(&src, &served.join("src"));
    let back = tmp.path().join("made/by/get");
    let got = run(client(["get", &server.addr, "src", back.to_str().unwrap(), "--sync"]));
    assert_eq!(got.assert_ok().number("files"), 3000);
    assert_same(&src, &back.join("src"));
}

#[test]
fn beyond_four_gibibytes() {
    let tmp = TempDir::new("large");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    let file = File::create(src.join("big")).unwrap();
    let len = (4u64 << 30) + (3 << 20) + 5;
    file.set_len(len).unwrap();
    for at in [0, 1 << 32, len - 100] {
        file.write_all_at(&noise(at, 100), at).unwrap();
    }
    let server = Server::start(&served, &[]);
    let src = src.join("big");
    let put = run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    assert_eq!(put.number("bytes"), len);
    let copy = File::open(served.join("big")).unwrap();
    assert_eq!(copy.metadata().unwrap().len(), len);
    assert!(blocks(&served.join("big")) < 1 << 20, "sparse still");
    for at in [0, 1 << 32, len - 100] {
        let mut b = [0; 100];
        copy.read_exact_at(&mut b, at).unwrap();
        assert_eq!(b[..], noise(at, 100), "at {at}");
    }
}

/// Older files are replaced, an obstacle is named, and all other files are copied.
#[test]
fn get_into_what_is_there_already() {
    let tmp = TempDir::new("existing");
    let (served, back) = (tmp.dir("served/t"), tmp.dir("back/t"));
    for (name, text) in [("old", "new text"), ("same", "same"), ("blocked", "b"), ("last", "l")] {
        fs::write(served.join(name), text).unwrap();
    }
    symlink("elsewhere", served.join("link")).unwrap();
    fs::write(back.join("old"), "something else entirely").unwrap();
    fs::write(back.join("link"), "a file").unwrap();
    fs::write(tmp.path().join("untouched"), "safe").unwrap();
    symlink("../../untouched", back.join("last")).unwrap();
    fs::create_dir(back.join("blocked")).unwrap();
    fs::write(back.join("same"), "same").unwrap();
    let t = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 7);
    for dir in [&served, &back] {
        File::open(dir.join("same")).unwrap().set_modified(t).unwrap();
    }
    let server = Server::start(&tmp.path().join("served"), &[]);
    let got = run(client(["get", &server.addr, "t", tmp.path().join("back").to_str().unwrap()]));
    assert_eq!(got.code, Some(1), "{got:?}");
    assert_eq!(got.json["verified"], false);
    assert_eq!(got.errors().len(), 1, "{got:?}");
    assert!(got.errors()[0].contains("t/blocked"), "{got:?}");
    assert_eq!(got.number("resumed_bytes"), 4);
    for (name, text) in [("old", "new text"), ("last", "l")] {
        assert_eq!(fs::read_to_string(back.join(name)).unwrap(), text);
    }
    assert!(!fs::symlink_metadata(back.join("last")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(tmp.path().join("untouched")).unwrap(), "safe");
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("elsewhere"));
    assert!(back.join("blocked").is_dir());
    assert_eq!(fs::read_dir(&back).unwrap().count(), 5, "nothing unfinished is left");
    // --force sends what looks the same, too.
    fs::remove_dir(back.join("blocked")).unwrap();
    let dest = tmp.path().join("back");
    let forced = run(client(["get", &server.addr, "t", dest.to_str().unwrap(), "--force"]));
    assert_eq!(forced.assert_ok().number("resumed_bytes"), 0);
}

#[test]
fn one_file_gets_the_name_that_is_asked_for() {
    let tmp = TempDir::new("name");
    let served = tmp.dir("served");
    fs::write(served.join("f"), "text").unwrap();
    let server = Server::start(&served, &[]);
    let to = tmp.path().join("g");
    run(client(["get", &server.addr, "f", to.to_str().unwrap()])).assert_ok();
    assert_eq!(fs::read_to_string(&to).unwrap(), "text");
    let dir = tmp.dir("dir");
    run(client(["get", &server.addr, "f", dir.to_str().unwrap()])).assert_ok();
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "text");
    run(client(["get", &server.addr, ".", tmp.path().join("all").to_str().unwrap()])).assert_ok();
    assert_eq!(fs::read_to_string(tmp.path().join("all/f")).unwrap(), "text");
}

#[test]
fn ls_lists_and_names_what_is_missing() {
    let tmp = TempDir::new("ls");
    let served = tmp.dir("served");
    fs::create_dir(served.join("d")).unwrap();
    fs::write(served.join("d/f"), "text").unwrap();
    symlink("f", served.join("d/l")).unwrap();
    let server = Server::start(&served, &[]);
    let all = run(client(["ls", &server.addr, "d"]));
    assert_eq!(all.code, Some(0));
    let entries = all.json["entries"].as_array().unwrap();
    let paths: Vec<_> = entries.iter().map(|e| e["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["d/f", "d/l"]);
    assert_eq!((&entries[0]["kind"], &entries[0]["size"]), (&"file".into(), &4.into()));
    assert_eq!(entries[1]["target"], "f");
    let missing = run(client(["ls", &server.addr, "nope"]));
    assert_eq!(missing.code, Some(1));
    assert!(missing.errors()[0].contains("nope"));
}

#[test]
fn without_checks_it_says_so() {
    let tmp = TempDir::new("noverify");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), noise(3, 6 << 20)).unwrap();
    let server = Server::start(&served, &[]);
    let put = run(client(["put", src.to_str().unwrap(), &server.addr, "--no-verify"]));
    assert_eq!((put.code, &put.json["verified"]), (Some(0), &false.into()));
    assert_same(&src, &served.join("src"));
}

#[test]
fn the_demo_shows_itself_and_cleans_up() {
    let tmp = TempDir::new("demo");
    let tree = tmp.dir("tree");
    fs::write(tree.join("f"), noise(4, 2 << 20)).unwrap();
    let work = tmp.dir("work");
    let out = std::process::Command::new(EXS_CP)
        .args(["demo", "--size-limit", "4", "--tree"])
        .arg(&tree)
        .env("TMPDIR", &work)
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("All the same"), "{text}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
}

#[test]
fn the_help_says_that_nothing_is_encrypted() {
    let out = std::process::Command::new(EXS_CP).arg("--help").output().unwrap();
    assert!(String::from_utf8(out.stdout).unwrap().contains("NOT ENCRYPTED"));
}
