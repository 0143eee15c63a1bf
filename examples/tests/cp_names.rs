//! What a frame's path may be: every frame that has one, with every kind of path.

mod cp_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cp_support::{raw, *};

/// What a server makes of a path in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is used.
    Taken,
    /// This entry, or this request, is refused; the connection is in order.
    Denied,
    /// The connection ends.
    Ends,
}
use Outcome::*;

const WANT: u8 = 32;
const WARN: u8 = 21;
const END_OF_LIST: u8 = 22;

fn want(id: u32, path: &[u8]) -> Vec<u8> {
    let body = [&id.to_be_bytes()[..], &raw::bytes(path), &raw::meta(1, 0o644, 4), &[0; 5]];
    raw::frame(WANT, &body.concat())
}

/// The frames with a path, each as a request of a connection of its own.
const FRAMES: [&str; 7] = ["list", "walk", "put", "offer", "link", "dir", "want"];

fn send(addr: &str, frame: &str, path: &[u8]) -> Outcome {
    let s = raw::connect(addr);
    let put = raw::put_request(b"");
    let (frames, last) = match frame {
        "list" => (vec![raw::frame(10, &raw::bytes(path))], END_OF_LIST),
        "walk" => (vec![raw::walk_request(path)], END_OF_LIST),
        "put" => (vec![raw::put_request(path), raw::bye()], raw::BYE),
        "offer" => (vec![put, raw::offer(1, path, 4)], raw::HAVE),
        "link" => (vec![put, raw::link(1, path, b"t")], raw::DONE),
        "dir" => (vec![put, raw::dir(1, path)], raw::DONE),
        _ => (vec![raw::frame(13, &[1]), want(1, path)], raw::END),
    };
    s.blocking().send_all(&frames.concat()).unwrap();
    while let Some((kind, body)) = raw::read(&s) {
        let text = String::from_utf8_lossy(&body).into_owned();
        match kind {
            raw::REFUSE if text.contains("protocol") => return Ends,
            raw::REFUSE | raw::FAIL => return Denied,
            WARN if body[0] == 1 => return Denied,
            raw::DONE => return if body[4] == 1 { Taken } else { Denied },
            kind if kind == last => return Taken,
            _ => {}
        }
    }
    panic!("{frame} of {path:?}: no answer");
}

/// The state that no client can change: of the served directory, and of the one beside it.
fn state(served: &Path) -> Vec<(u32, i64, i64)> {
    let of = |path: &Path| {
        let m = fs::metadata(path).unwrap();
        (m.mode(), m.mtime(), m.mtime_nsec())
    };
    vec![of(served), of(&served.join("../outside"))]
}

fn tree(tmp: &TempDir) -> std::path::PathBuf {
    let (served, outside) = (tmp.dir("served"), tmp.dir("outside"));
    fs::write(outside.join("f"), "evil").unwrap();
    for (name, target) in [("out", "../outside"), ("dot", "."), ("in", "d")] {
        symlink(target, served.join(name)).unwrap();
    }
    for dir in [served.join("d"), served.clone()] {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("f"), "text").unwrap();
        fs::write(dir.join(".f.exs-part"), "part").unwrap();
    }
    served
}

#[test]
fn every_path_of_every_frame_passes_the_same_checks() {
    let long = vec![b'n'; 256];
    // Of list, walk, put; of offer, link, dir; of want.
    let cases: &[(&[u8], [Outcome; 7])] = &[
        // The directory itself may be looked at, and be put into, no more.
        (b"", [Taken, Taken, Taken, Denied, Denied, Denied, Denied]),
        // No file or link replaces a directory.
        (b"d", [Taken, Taken, Taken, Denied, Denied, Taken, Denied]),
        (b"d/f", [Taken, Taken, Denied, Taken, Taken, Denied, Denied]),
        // A put makes a directory of a new name. So the offer and the link that follow are denied.
        (b"\xff\xfe", [Denied, Denied, Taken, Denied, Denied, Taken, Denied]),
        // Names of the program's own unfinished files, also of directories on the way.
        (b".f.exs-part", [Denied; 7]),
        (b"d/.f.exs-journal", [Denied; 7]),
        (b".d.exs-part/f", [Denied; 7]),
        // A link in the middle: out of the directory, to the directory itself, and inside.
        (b"out/f", [Denied, Denied, Denied, Denied, Denied, Denied, Denied]),
        (b"dot/g", [Denied, Denied, Taken, Denied, Denied, Taken, Denied]),
        (b"in/new", [Denied, Denied, Taken, Denied, Denied, Taken, Denied]),
        (b"dot", [Taken, Taken, Taken, Taken, Taken, Denied, Denied]),
        // No frame at all.
        (b".", [Ends; 7]),
        (b"..", [Ends; 7]),
        (b"d/..", [Ends; 7]),
        (b"d/.", [Ends; 7]),
        (b"d//f", [Ends; 7]),
        (b"d/", [Ends; 7]),
        (b"/", [Ends; 7]),
        (b"/etc", [Ends; 7]),
        (b"d\0f", [Ends; 7]),
        (&long, [Ends; 7]),
    ];
    for (path, outcomes) in cases {
        let tmp = TempDir::new("names");
        let served = tree(&tmp);
        let server = Server::start(&served, &[]);
        for (frame, outcome) in FRAMES.iter().zip(outcomes) {
            fs::set_permissions(&served, fs::Permissions::from_mode(0o750)).unwrap();
            let modes = |s: Vec<(u32, i64, i64)>| s.into_iter().map(|m| m.0).collect::<Vec<_>>();
            let before = modes(state(&served));
            let shown = String::from_utf8_lossy(path);
            assert_eq!(send(&server.addr, frame, path), *outcome, "{frame} of `{shown}`");
            assert_eq!(modes(state(&served)), before, "{frame} of `{shown}`");
            assert_eq!(fs::read_to_string(tmp.path().join("outside/f")).unwrap(), "evil");
            assert_eq!(fs::read_dir(tmp.path().join("outside")).unwrap().count(), 1);
            assert_eq!(fs::read_to_string(served.join(".f.exs-part")).unwrap(), "part");
        }
    }
}

/// By its own name or another: mode and times of the directory that is served stay.
#[test]
fn a_client_does_not_change_the_served_directory_itself() {
    let tmp = TempDir::new("itself");
    let served = tree(&tmp);
    let server = Server::start(&served, &[]);
    let before = state(&served);
    for path in [&b""[..], b"dot", b"dot/dot"] {
        for mode in [0, 0o3777] {
            let s = raw::connect(&server.addr);
            let id = 1u32.to_be_bytes();
            let dir = [&id[..], &raw::bytes(path), &raw::meta(2, mode, 0)].concat();
            let frames = [raw::put_request(b""), raw::frame(41, &dir)];
            let seen = raw::exchange(&s, &frames, raw::DONE);
            assert_eq!(seen.last().map(|f| f.1[4]), Some(0), "{path:?}");
            assert_eq!(state(&served), before, "{path:?}");
        }
    }
}
