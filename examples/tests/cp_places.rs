//! Files that are at the destination already, and what becomes of them while files come.

mod cp_support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use cp_support::{raw, *};
use exs::Socket;
use rustix::fs::{CWD, FileType, Mode, makedev};

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// As /dev/full, at another place; a fifo where this user may make no devices.
fn device(path: &Path) {
    let full = makedev(1, 7);
    let mode = Mode::from_raw_mode(0o600);
    if rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, mode, full).is_err() {
        fifo(path);
    }
}

/// Kinds of things that no file or link replaces, and what the message says of them.
type Obstacle = (&'static str, fn(&Path), &'static str);

fn obstacles() -> [Obstacle; 3] {
    let directory: fn(&Path) = |path| fs::create_dir(path).unwrap();
    [
        ("directory", directory, "is a directory at the destination"),
        ("fifo", fifo, "is a fifo, socket or device at the destination"),
        ("device", device, "is a fifo, socket or device at the destination"),
    ]
}

#[test]
fn a_file_or_a_link_replaces_files_and_links_only() {
    for (what, make, told) in obstacles() {
        let tmp = TempDir::new(&format!("obstacle-{what}"));
        let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
        fs::write(src.join("small"), noise(1, 9)).unwrap();
        fs::write(src.join("large"), noise(2, 5 << 20)).unwrap();
        symlink("target", src.join("link")).unwrap();
        fs::write(src.join("other"), "other").unwrap();
        let from = Server::start(&tmp.path().join("from"), &[]);
        let server = Server::start(&to, &[]);
        fs::create_dir(to.join("t")).unwrap();
        for name in ["small", "large", "link"] {
            make(&to.join("t").join(name));
        }
        let before = || {
            let kind = |name| fs::symlink_metadata(to.join("t").join(name)).unwrap().file_type();
            ["small", "large", "link"].map(kind)
        };
        let kinds = before();
        for put in [true, false] {
            let (src, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
            for more in [&[][..], &["--force"], &["--quick"]] {
                let args = match put {
                    true => vec!["put", src, &server.addr],
                    false => vec!["get", &from.addr, "t", dest],
                };
                let said = run(client([&args, more].concat()));
                assert_eq!(said.code, Some(1), "{what}: {said:?}");
                assert_eq!(said.errors().len(), 3, "{what}: {said:?}");
                for name in ["t/small", "t/large", "t/link"] {
                    let error = said.errors().into_iter().find(|e| e.contains(name));
                    let right = |e: &str| e.contains(told) && e.contains("Move it away");
                    assert!(error.is_some_and(right), "{what}: {name}: {said:?}");
                }
                assert_eq!(before(), kinds, "{what}");
                assert_eq!(fs::read_to_string(to.join("t/other")).unwrap(), "other");
            }
        }
        assert_eq!(names(&to.join("t")).len(), 4, "nothing unfinished is left");
    }
}

/// `get HOST f /dev/full` and the like: the name that the user gave is not replaced either.
#[test]
fn a_destination_that_is_a_device_stays_one() {
    let tmp = TempDir::new("dest-device");
    let (served, to) = (tmp.dir("served"), tmp.dir("to"));
    fs::write(served.join("f"), "text").unwrap();
    let server = Server::start(&served, &[]);
    let full = to.join("full");
    device(&full);
    let said = run(client(["get", &server.addr, "f", full.to_str().unwrap()]));
    assert_eq!(said.code, Some(1), "{said:?}");
    let shown = format!("`{}`", full.display());
    assert!(said.errors()[0].contains(&shown), "{said:?}");
    let kind = fs::symlink_metadata(&full).unwrap().file_type();
    assert!(kind.is_char_device() || kind.is_fifo());
    assert_eq!(names(&to), ["full"]);
}

#[test]
fn a_directory_does_not_replace_a_file() {
    let tmp = TempDir::new("dir-on-file");
    let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
    fs::create_dir(src.join("d")).unwrap();
    fs::write(src.join("d/f"), "text").unwrap();
    fs::write(src.join("other"), "other").unwrap();
    fs::create_dir(to.join("t")).unwrap();
    fs::write(to.join("t/d"), "a file").unwrap();
    let from = Server::start(&tmp.path().join("from"), &[]);
    let server = Server::start(&to, &[]);
    for put in [true, false] {
        let (src, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
        let said = run(match put {
            true => client(["put", src, &server.addr]),
            false => client(["get", &from.addr, "t", dest]),
        });
        assert_eq!((said.code, said.number("files")), (Some(1), 1), "{said:?}");
        let right = |e: &&str| e.contains("a directory is needed") && e.contains("Move it away");
        assert!(said.errors().iter().all(right), "{said:?}");
        assert_eq!(fs::read_to_string(to.join("t/d")).unwrap(), "a file");
    }
}

#[test]
fn a_served_directory_that_was_removed_is_an_error() {
    let tmp = TempDir::new("gone");
    let (src, served, dest) = (tmp.dir("src"), tmp.dir("served"), tmp.dir("dest"));
    fs::write(src.join("f"), "text").unwrap();
    fs::write(served.join("f"), "text").unwrap();
    let server = Server::start(&served, &[]);
    fs::remove_dir_all(&served).unwrap();
    for again in [false, true] {
        if again {
            // Another directory of the same name is not served.
            fs::create_dir(&served).unwrap();
        }
        for args in [
            vec!["ls", &server.addr],
            vec!["put", src.to_str().unwrap(), &server.addr],
            vec!["get", &server.addr, "f", dest.to_str().unwrap()],
            vec!["get", &server.addr, ".", dest.to_str().unwrap()],
        ] {
            let said = run(client(&args));
            assert_eq!(said.code, Some(1), "{args:?}: {said:?}");
            let error = said.errors().join("; ");
            assert!(error.contains("served directory was removed"), "{args:?}: {error}");
            assert!(error.contains("start exs-cp serve again"), "{args:?}: {error}");
        }
    }
}

const SIZE: u64 = 5 << 20;
const CHUNK: u64 = 4 << 20;

/// A client by hand that has put the first chunk of `f`, which has two, without hashes.
fn half_way(server: &Server, served: &Path) -> Socket {
    let s = raw::connect(&server.addr);
    let request = raw::frame(12, &[raw::bytes(b""), vec![0]].concat());
    raw::exchange(&s, &[request, raw::offer(0, b"f", SIZE)], raw::HAVE);
    let frames = [raw::begin(0, SIZE), raw::hole(0, CHUNK), raw::chunk(0, [0; 32])];
    s.blocking().send_all(&frames.concat()).unwrap();
    let part = served.join(".f.exs-part");
    until("the partial file", || fs::metadata(&part).is_ok_and(|m| m.len() == SIZE));
    s
}

/// Sends the rest; the server's answer: success, and the text.
fn finish(s: &Socket) -> (bool, String) {
    let frames = [raw::hole(CHUNK, SIZE - CHUNK), raw::chunk(1, [0; 32]), raw::end(0, [0; 32])];
    let seen = raw::exchange(s, &frames, raw::DONE);
    let done = &seen.last().unwrap().1;
    (done[4] == 1, String::from_utf8_lossy(&done[7..]).into_owned())
}

/// A rename takes what has the name of the partial file then: it must be what was written.
#[test]
fn a_partial_file_that_was_removed_or_replaced_is_not_named() {
    for replaced in [false, true] {
        let tmp = TempDir::new(&format!("swapped-{replaced}"));
        let served = tmp.dir("served");
        let server = Server::start(&served, &[]);
        let s = half_way(&server, &served);
        let part = served.join(".f.exs-part");
        fs::remove_file(&part).unwrap();
        if replaced {
            fs::File::create(&part).unwrap().set_len(SIZE).unwrap();
        }
        let (ok, text) = finish(&s);
        assert!(!ok && text.contains("partial file was removed or replaced"), "{text}");
        assert!(!served.join("f").exists());
    }
}

/// Two clients, one name: one puts a file, the other a link.
#[test]
fn a_link_does_not_take_the_place_of_a_partial_file() {
    let tmp = TempDir::new("link-file");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    symlink("target", src.join("f")).unwrap();
    let server = Server::start(&served, &[]);
    let s = half_way(&server, &served);
    run(client(["put", src.join("f").to_str().unwrap(), &server.addr])).assert_ok();
    assert_eq!(finish(&s), (true, String::new()));
    let m = fs::symlink_metadata(served.join("f")).unwrap();
    assert!(m.is_file() && m.len() == SIZE);
    assert_eq!(names(&served), ["f"]);
}

/// A directory that takes the name meanwhile stays, and what has come is there for the next run.
#[test]
fn a_directory_that_took_the_name_meanwhile_stays() {
    let tmp = TempDir::new("meanwhile");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let s = half_way(&server, &served);
    fs::create_dir(served.join("f")).unwrap();
    let (ok, text) = finish(&s);
    assert!(!ok && text.contains("is a directory at the destination"), "{text}");
    fs::remove_dir(served.join("f")).unwrap();
    let s = raw::connect(&server.addr);
    let request = raw::frame(12, &[raw::bytes(b""), vec![0]].concat());
    let seen = raw::exchange(&s, &[request, raw::offer(0, b"f", SIZE)], raw::HAVE);
    assert_eq!(seen.last().unwrap().1[4..9], [0, 0, 0, 0, 2], "both chunks are there");
}

/// Zeros that come after bytes of the same chunk would be a hole, and leave the bytes there.
#[test]
fn a_chunk_that_comes_twice_ends_the_connection() {
    let tmp = TempDir::new("twice-chunk");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let s = half_way(&server, &served);
    let again = [raw::hole(0, CHUNK), raw::chunk(0, [0; 32])];
    let rest = [raw::hole(CHUNK, SIZE - CHUNK), raw::chunk(1, [0; 32]), raw::end(0, [0; 32])];
    let seen = raw::exchange(&s, &[again.concat(), rest.concat()], raw::DONE);
    assert_eq!(seen.last().unwrap().0, raw::REFUSE, "{seen:?}");
    let text = String::from_utf8_lossy(&seen.last().unwrap().1).into_owned();
    assert!(text.contains("out of order"), "{text}");
}
