//! "Verified" means that the destination's bytes were hashed in this run; all else has another
//! word.

mod cp_support;

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cp_support::{raw, *};
use rustix::process::Signal;

/// Both directions: what is copied from, and to.
struct Stage {
    _tmp: TempDir,
    src: PathBuf,
    to: PathBuf,
    server: Server,
    put: bool,
}

impl Stage {
    /// A small file, one of several chunks, and an empty one.
    fn new(what: &str, put: bool) -> Stage {
        let tmp = TempDir::new(&format!("{what}-{put}"));
        let (from, to) = (tmp.dir("from"), tmp.dir("to"));
        let src = tmp.dir("from/t");
        fs::write(src.join("small"), noise(1, 9000)).unwrap();
        fs::write(src.join("large"), noise(2, 9 << 20)).unwrap();
        fs::write(src.join("empty"), "").unwrap();
        let server = Server::start(if put { &to } else { &from }, &[]);
        Stage { _tmp: tmp, src, to, server, put }
    }

    fn command(&self, more: &[&str]) -> Command {
        let addr = &self.server.addr;
        let (src, to) = (self.src.to_str().unwrap(), self.to.to_str().unwrap());
        let args = if self.put { vec!["put", src, addr] } else { vec!["get", addr, "t", to] };
        client([&args, more].concat())
    }

    fn run(&self, more: &[&str]) -> Said {
        run(self.command(more))
    }

    fn copy(&self) -> PathBuf {
        self.to.join("t")
    }
}

/// Changes a byte, and puts the times back.
fn spoil(path: &Path, at: u64) {
    let before = fs::metadata(path).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    file.set_times(times.set_accessed(before.accessed().unwrap())).unwrap();
}

fn counts(said: &Said) -> [u64; 3] {
    ["files", "verified_files", "present_files"].map(|field| said.number(field))
}

#[test]
fn a_finished_file_that_was_changed_is_found_though_size_and_times_say_nothing() {
    for put in [true, false] {
        let stage = Stage::new("flip", put);
        let first = stage.run(&[]).assert_ok();
        assert_eq!((counts(&first), first.number("resumed_bytes")), ([3, 3, 0], 0));
        for (name, at) in [("small", 7), ("large", 5 << 20)] {
            spoil(&stage.copy().join(name), at);
            let size = fs::metadata(stage.src.join(name)).unwrap().len();
            // The file is believed only if the user asks for that, and then it is said.
            let said = stage.run(&["--quick"]);
            assert_eq!((said.code, &said.json["verified"]), (Some(0), &false.into()), "{said:?}");
            assert_eq!(counts(&said), [3, 0, 3], "{said:?}");
            assert!(look(&stage.src) != look(&stage.copy()));
            let said = stage.run(&[]).assert_ok();
            assert_eq!(counts(&said), [3, 3, 0], "{said:?}");
            assert_eq!(said.number("resumed_bytes"), 9000 + (9 << 20) - size, "{said:?}");
            assert_same(&stage.src, &stage.copy());
        }
        let said = stage.run(&[]).assert_ok();
        assert_eq!(said.number("resumed_bytes"), 9000 + (9 << 20), "nothing is sent again");
    }
}

/// Also of a run that ended in good order.
#[test]
fn a_partial_file_that_was_changed_is_found() {
    for (put, sig) in [(true, Signal::KILL), (true, Signal::INT), (false, Signal::KILL)] {
        let mut caught = false;
        for mib in [96, 384, 1536] {
            let stage = Stage::new("part", put);
            fs::write(stage.src.join("large"), noise(3, mib << 20)).unwrap();
            let mut child =
                stage.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            until("some chunks", || {
                child.try_wait().unwrap().is_some() || journal_len(&stage.copy(), "large") > 300
            });
            signal(&child, sig);
            let _ = child.wait_with_output().unwrap();
            if put {
                // The server has to notice, and to let go.
                signal(&stage.server.child, sig);
                until("the server's end", || {
                    let state = format!("/proc/{}/stat", stage.server.child.id());
                    fs::read_to_string(state).is_ok_and(|s| s.contains(") Z "))
                });
            }
            if stage.copy().join("large").exists() {
                continue;
            }
            caught = true;
            spoil(&stage.copy().join(".large.exs-part"), 5000);
            let from = if put { &stage.to } else { stage.src.parent().unwrap() };
            let stage = Stage { server: Server::start(from, &[]), ..stage };
            let said = stage.run(&[]).assert_ok();
            let resumed = said.number("resumed_bytes");
            assert!(resumed > 4 << 20 && resumed < (mib as u64) << 20, "{said:?}");
            assert_same(&stage.src, &stage.copy());
            break;
        }
        assert!(caught, "the transfer was always over before it could be disturbed");
    }
}

#[test]
fn without_hashes_nothing_is_called_verified_by_either_side() {
    for put in [true, false] {
        let tmp = TempDir::new(&format!("unverified-{put}"));
        let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
        fs::write(src.join("f"), noise(1, 9000)).unwrap();
        let served = if put { to.clone() } else { tmp.path().join("from") };
        for (no_verify, want) in [(true, false), (false, true)] {
            let mut command = Command::new(EXS_CP);
            command.arg("serve").arg(&served).args(["--listen", "127.0.0.1:0", "--json"]);
            let out = tmp.path().join("said");
            let mut server = Server::spawn_to(command, File::create(&out).unwrap().into());
            let (src, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
            let addr = server.addr.clone();
            let mut args = if put {
                vec!["put", src, &addr, "--force"]
            } else {
                vec!["get", &addr, "t", dest, "--force"]
            };
            if no_verify {
                args.push("--no-verify");
            }
            let said = run(client(args));
            assert_eq!((said.code, &said.json["verified"]), (Some(0), &want.into()), "{said:?}");
            assert_eq!(counts(&said), [1, want.into(), 0], "{said:?}");
            signal(&server.child, Signal::INT);
            server.child.wait().unwrap();
            let theirs: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
            assert_eq!((&theirs["files"], &theirs["verified"]), (&1.into(), &want.into()));
        }
    }
}

/// A receiver that has chunks of a former state of the source, whatever its times say.
#[test]
fn a_sender_compares_what_it_leaves_out() {
    let tmp = TempDir::new("compare");
    let file = tmp.path().join("f");
    let bytes = noise(4, (4 << 20) + 100);
    fs::write(&file, &bytes).unwrap();
    let right = |range: std::ops::Range<usize>, offset| {
        use blake3::hazmat::HasherExt;
        let mut h = blake3::Hasher::new();
        h.set_input_offset(offset).update(&bytes[range]);
        h.finalize_non_root()
    };
    let chunks = [right(0..4 << 20, 0), [1; 32]];
    // What there is: a partial file (0), or a whole one (2), of which nothing may be missing.
    for (what, count, begins) in [(0u8, 2, 4u64 << 20), (2, 2, 0), (2, 1, 0), (2, 0, 0)] {
        let (listener, addr) = raw::listen();
        let server = std::thread::spawn(move || {
            let (s, _) = listener.blocking().accept().unwrap();
            raw::read(&s).unwrap();
            s.blocking().send_all(&raw::hello()).unwrap();
            let mut data = Vec::new();
            while let Some((kind, body)) = raw::read(&s) {
                let answer = match kind {
                    raw::OFFER => {
                        let mut have = [&body[..4], &[what], &u32::to_be_bytes(count)].concat();
                        for (i, cv) in (0..count).zip(chunks) {
                            have.extend([&i.to_be_bytes()[..], &cv].concat());
                        }
                        raw::frame(raw::HAVE, &have)
                    }
                    raw::DATA => {
                        data.push(u64::from_be_bytes(body[..8].try_into().unwrap()));
                        continue;
                    }
                    raw::END | raw::SAME => raw::done(0, true),
                    raw::BYE => raw::bye(),
                    _ => continue,
                };
                s.blocking().send_all(&answer).unwrap();
            }
            data
        });
        run(client(["put", file.to_str().unwrap(), &addr])).assert_ok();
        let data = server.join().unwrap();
        assert_eq!(data.first(), Some(&begins), "{data:?}");
        assert!(data.contains(&(4 << 20)), "the chunk that differs came: {data:?}");
    }
}

/// Between its answer and the sender's `Same` the receiver holds nothing open.
#[test]
fn a_receiver_looks_again_before_it_says_verified() {
    // Verify, and compare what is there.
    let request = raw::frame(12, &[raw::bytes(b""), vec![17]].concat());
    for changed in [false, true] {
        let tmp = TempDir::new(&format!("look-again-{changed}"));
        let served = tmp.dir("served");
        let file = served.join("f");
        fs::write(&file, "text").unwrap();
        let epoch = FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        File::options().write(true).open(&file).unwrap().set_times(epoch).unwrap();
        let server = Server::start(&served, &[]);
        let s = raw::connect(&server.addr);
        let frames = [request.clone(), raw::offer(1, b"f", 4)];
        let seen = raw::exchange(&s, &frames, raw::HAVE);
        assert_eq!(seen.last().unwrap().1[4], 2, "it is there, and was read: {seen:?}");
        if changed {
            spoil(&file, 0);
        }
        let same = raw::frame(raw::SAME, &1u32.to_be_bytes());
        let seen = raw::exchange(&s, &[same], raw::DONE);
        let done = &seen.last().unwrap().1;
        assert_eq!(done[4] == 1, !changed, "{}", String::from_utf8_lossy(done));
    }
}

/// Each chunk can be right, and the file as a whole another one.
#[test]
fn a_file_whose_hash_is_not_the_senders_is_not_named() {
    let tmp = TempDir::new("whole-hash");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let cv = *blake3::hash(b"text").as_bytes();
    for (hash, right) in [([3; 32], false), (cv, true)] {
        let s = raw::connect(&server.addr);
        let frames = [
            raw::put_request(b""),
            raw::offer(1, b"f", 4),
            raw::begin(1, 4),
            raw::data(0, b"text"),
            raw::chunk(0, cv),
            raw::end(1, hash),
        ];
        let seen = raw::exchange(&s, &frames, raw::DONE);
        assert_eq!(seen.last().unwrap().1[4] == 1, right, "{seen:?}");
        assert_eq!(names(&served).len(), usize::from(right));
    }
}

/// A server cannot have a file of which it was sent nothing.
#[test]
fn a_success_that_comes_too_early_is_not_believed() {
    let tmp = TempDir::new("early");
    let file = tmp.path().join("f");
    fs::write(&file, "text").unwrap();
    let (listener, addr) = raw::listen();
    let server = std::thread::spawn(move || {
        let (s, _) = listener.blocking().accept().unwrap();
        raw::read(&s).unwrap();
        s.blocking().send_all(&raw::hello()).unwrap();
        while let Some((kind, _)) = raw::read(&s) {
            let answer = match kind {
                raw::OFFER => raw::done(0, true),
                raw::BYE => raw::bye(),
                _ => continue,
            };
            s.blocking().send_all(&answer).unwrap();
        }
    });
    let said = run(client(["put", file.to_str().unwrap(), &addr]));
    assert_eq!((said.code, said.number("files")), (Some(1), 0), "{said:?}");
    assert!(said.errors()[0].contains("broke the exs-cp protocol"), "{said:?}");
    server.join().unwrap();
}
