//! File systems that find out late what they cannot keep: at fsync(2) and its like, or at close(2).

mod cp_support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use cp_support::{raw, *};

/// A server that is told at each close in its directory that there is no room.
fn without_room(tmp: &TempDir, served: &Path) -> Server {
    let mut c = Command::new(EXS_CP);
    c.arg("serve").arg(served).args(["--listen", "127.0.0.1:0"]);
    c.env("LD_PRELOAD", shim(tmp, "close_fails")).env("CLOSE_FAILS_BELOW", served);
    Server::spawn(c)
}

/// A server whose syncs fail: of files (`f`), of directories (`d`), or of the file system (`s`).
fn without_sync(tmp: &TempDir, served: &Path, of: &str, errno: i32) -> Server {
    sync_fails_after(tmp, served, of, errno, 0, false)
}

/// The same: the first `after` of these calls succeed, then all fail, or the next `once`.
fn sync_fails_after(
    tmp: &TempDir,
    served: &Path,
    of: &str,
    errno: i32,
    after: u32,
    once: bool,
) -> Server {
    let mut c = Command::new(EXS_CP);
    c.arg("serve").arg(served).args(["--listen", "127.0.0.1:0"]);
    c.env("LD_PRELOAD", shim(tmp, "sync_fails")).env("SYNC_FAILS_BELOW", served);
    c.env("SYNC_FAILS_OF", of).env("SYNC_FAILS_WITH", errno.to_string());
    c.env("SYNC_FAILS_AFTER", after.to_string());
    if once {
        c.env("SYNC_FAILS_TIMES", "1");
    }
    Server::spawn(c)
}

/// No file has its name then, each is told, and of what is there the next run believes what
/// it has read back.
#[test]
fn a_close_that_fails_is_told_and_nothing_has_its_name() {
    let tmp = TempDir::new("close");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("small"), noise(1, 10_000)).unwrap();
    fs::write(src.join("large"), noise(2, 13 << 20)).unwrap();
    let server = without_room(&tmp, &served);
    let said = run(client(["put", src.to_str().unwrap(), &server.addr]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((said.errors().len(), said.number("files")), (2, 0), "{said:?}");
    for file in ["src/small", "src/large"] {
        let error = said.errors().into_iter().find(|e| e.contains(file));
        assert!(error.is_some_and(|e| e.contains("quota exceeded")), "{said:?}");
    }
    assert_eq!(names(&served.join("src")), [".large.exs-journal", ".large.exs-part"]);
    drop(server);

    let part = fs::File::options().write(true).open(served.join("src/.large.exs-part")).unwrap();
    part.write_all_at(&[0; 4096], 5 << 20).unwrap();
    drop(part);
    let server = Server::start(&served, &[]);
    let said = run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    assert_eq!(said.number("resumed_bytes"), 9 << 20, "all but the chunk that was lost");
    assert_same(&src, &served.join("src"));
}

/// Nor does the next run believe what broke off and could not be closed well.
#[test]
fn what_breaks_off_is_not_taken_on_trust_after_a_close_that_fails() {
    const SIZE: u64 = 5 << 20;
    const CHUNK: u64 = 4 << 20;
    let tmp = TempDir::new("close-off");
    let served = tmp.dir("served");
    // Without checks: then nothing can be read back and compared.
    let offer = [raw::frame(12, &[raw::bytes(b""), vec![0]].concat()), raw::offer(0, b"f", SIZE)];
    let known = |server: &Server| {
        let s = raw::connect(&server.addr);
        let seen = raw::exchange(&s, &offer, raw::HAVE);
        (s, seen.last().unwrap().1[4..9].to_vec())
    };
    let break_off = |server: &Server| {
        let (s, _) = known(server);
        let frames = [
            raw::begin(0, SIZE),
            raw::hole(0, CHUNK),
            raw::chunk(0, [0; 32]),
            raw::frame(raw::FAIL, &[&0u32.to_be_bytes()[..], &raw::bytes(b"enough")].concat()),
        ];
        let seen = raw::exchange(&s, &frames, raw::DONE);
        assert_eq!(seen.last().map(|f| f.0), Some(raw::DONE), "{seen:?}");
        known(server).1
    };
    assert_eq!(break_off(&without_room(&tmp, &served)), [0; 5]);
    assert_eq!(break_off(&Server::start(&served, &[])), [0, 0, 0, 0, 1], "the chunk is there");
}

/// Data that the disk did not take have no name, alone and in a batch, and all of them come
/// again: after such an error the page cache says nothing about the disk.
#[test]
fn a_sync_that_fails_is_told_and_nothing_has_its_name() {
    let tmp = TempDir::new("sync");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    for i in 0..40 {
        fs::write(src.join(format!("small{i:02}")), noise(i, 3000)).unwrap();
    }
    fs::write(src.join("large"), noise(99, 13 << 20)).unwrap();
    let mut server = without_sync(&tmp, &served, "fds", libc::EIO);
    let put = |server: &Server, more: &[&str]| {
        run(client([&["put", src.to_str().unwrap(), &server.addr], more].concat()))
    };
    let said = put(&server, &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((said.number("files"), said.number("verified_files")), (0, 0), "{said:?}");
    assert_eq!((&said.json["verified"], &said.json["synced"]), (&false.into(), &false.into()));
    for i in 0..40 {
        let file = format!("src/small{i:02}");
        let error = said.errors().into_iter().find(|e| e.contains(&file));
        assert!(error.is_some_and(|e| e.contains("Input/output error")), "{file}: {said:?}");
    }
    assert!(said.errors().iter().any(|e| e.contains("src/large")), "{said:?}");
    let left = names(&served.join("src"));
    assert!(left.iter().all(|n| n.starts_with('.')), "{left:?}");

    // A risk that the user accepts is no error, and the summary reports it.
    let said = put(&server, &["--no-sync"]).assert_ok();
    assert_eq!((said.number("resumed_bytes"), &said.json["synced"]), (0, &false.into()));
    server.kill();
    fs::remove_dir_all(served.join("src")).unwrap();
    let server = Server::start(&served, &[]);
    let said = put(&server, &[]).assert_ok();
    assert_eq!((said.number("verified_files"), &said.json["synced"]), (41, &true.into()));
    assert_same(&src, &served.join("src"));
}

/// The name is part of the file. But a file system that has no fsync of directories is none
/// that lost one.
#[test]
fn a_directory_that_cannot_be_synced_is_an_error_of_its_files() {
    let tmp = TempDir::new("sync-dir");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("small"), noise(1, 3000)).unwrap();
    for (errno, works) in [(libc::EIO, false), (libc::EINVAL, true)] {
        let server = without_sync(&tmp, &served, "d", errno);
        let into = format!("{errno}");
        let args = ["put", src.to_str().unwrap(), &server.addr, "--into", &into];
        let said = run(client(args));
        assert_eq!(said.code, Some(i32::from(!works)), "{said:?}");
        assert_eq!(said.number("files"), u64::from(works), "{said:?}");
        let told = said.errors().iter().any(|e| e.contains("sync the directory of `src/small`"));
        assert_eq!(told, !works, "{said:?}");
    }
}

/// A full file system can show itself at fdatasync(2) first. The user is told what to do, for a
/// copy in either direction.
#[test]
fn a_disk_that_is_full_at_the_sync_is_told_in_both_directions() {
    for put in [true, false] {
        let tmp = TempDir::new(&format!("sync-full-{put}"));
        let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
        fs::write(src.join("small"), noise(1, 3000)).unwrap();
        fs::write(src.join("large"), noise(2, 9 << 20)).unwrap();
        let plain = Server::start(&tmp.path().join("from"), &[]);
        let full = without_sync(&tmp, &to, "f", libc::ENOSPC);
        let (from, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
        let mut command = match put {
            true => client(["put", from, &full.addr]),
            false => client(["get", &plain.addr, "t", dest]),
        };
        if !put {
            command.env("LD_PRELOAD", shim(&tmp, "sync_fails")).env("SYNC_FAILS_BELOW", &to);
            command.env("SYNC_FAILS_OF", "f").env("SYNC_FAILS_WITH", libc::ENOSPC.to_string());
        }
        let said = run(command);
        assert_eq!((said.code, said.number("files")), (Some(1), 0), "{said:?}");
        for file in ["t/small", "t/large"] {
            let error = said.errors().into_iter().find(|e| e.contains(file));
            let right = |e: &str| e.contains("No space left") && e.contains("Free some space");
            assert!(error.is_some_and(right), "{file}: {said:?}");
        }
        let left = names(&to.join("t"));
        assert!(left.iter().all(|n| n.starts_with('.')), "{left:?}");
    }
}

/// syncfs(2) of a batch can fail because of another program's data: then each file is asked.
/// The syncfs at the end is the only call for names, modes and times, so its error is told.
#[test]
fn a_file_system_that_cannot_be_synced_is_told_though_each_file_is_right() {
    for put in [true, false] {
        let tmp = TempDir::new(&format!("sync-whole-{put}"));
        let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
        for i in 0..20 {
            fs::write(src.join(format!("small{i:02}")), noise(i, 3000)).unwrap();
        }
        let plain = Server::start(&tmp.path().join("from"), &[]);
        let sick = without_sync(&tmp, &to, "s", libc::EIO);
        let (from, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
        let mut command = match put {
            true => client(["put", from, &sick.addr]),
            false => client(["get", &plain.addr, "t", dest]),
        };
        if !put {
            command.env("LD_PRELOAD", shim(&tmp, "sync_fails")).env("SYNC_FAILS_BELOW", &to);
            command.env("SYNC_FAILS_OF", "s").env("SYNC_FAILS_WITH", libc::EIO.to_string());
        }
        let said = run(command);
        assert_eq!((said.code, said.number("files")), (Some(1), 20), "{said:?}");
        assert_eq!((&said.json["verified"], &said.json["synced"]), (&false.into(), &false.into()));
        assert!(said.errors().iter().any(|e| e.contains("flush")), "{said:?}");
        assert_same(&src, &to.join("t"));
    }
}

/// A client by hand that puts a file of two chunks of zeros, and waits until each is noted.
struct ByHand<'a> {
    served: &'a Path,
    /// Of the request: 1 is verify, 4 is sync.
    flags: u8,
}

impl ByHand<'_> {
    const SIZE: u64 = 5 << 20;
    const CHUNK: u64 = 4 << 20;

    /// Offers it to a server: the connection, and the number of chunks that it has.
    fn offer(&self, server: &Server) -> (exs::Socket, u8) {
        let s = raw::connect(&server.addr);
        let request = raw::frame(12, &[raw::bytes(b""), vec![self.flags]].concat());
        let seen = raw::exchange(&s, &[request, raw::offer(0, b"f", Self::SIZE)], raw::HAVE);
        (s, seen.last().unwrap().1[8])
    }

    fn value(&self, index: u32) -> [u8; 32] {
        use blake3::hazmat::HasherExt;
        if self.flags & 1 == 0 {
            return [0; 32];
        }
        let start = u64::from(index) * Self::CHUNK;
        let zeros = vec![0; usize::try_from(Self::CHUNK.min(Self::SIZE - start)).unwrap()];
        blake3::Hasher::new().set_input_offset(start).update(&zeros).finalize_non_root()
    }

    fn hash(&self) -> [u8; 32] {
        *blake3::hash(&vec![0; usize::try_from(Self::SIZE).unwrap()]).as_bytes()
    }

    fn chunk(&self, index: u32) -> Vec<u8> {
        let start = u64::from(index) * Self::CHUNK;
        let hole = raw::hole(start, Self::CHUNK.min(Self::SIZE - start));
        [hole, raw::chunk(index, self.value(index))].concat()
    }

    /// Begins the file, and waits for the journal's header.
    fn begin(&self, s: &exs::Socket) {
        s.blocking().send_all(&raw::begin(0, Self::SIZE)).unwrap();
        until("the journal", || journal_len(self.served, "f") > 0);
    }

    /// Sends a chunk, and waits for its record in the journal.
    fn noted(&self, s: &exs::Socket, index: u32) {
        let before = journal_len(self.served, "f");
        s.blocking().send_all(&self.chunk(index)).unwrap();
        until("the chunk to be noted", || journal_len(self.served, "f") > before);
    }

    fn give_up(s: &exs::Socket) {
        let fail = raw::frame(raw::FAIL, &[&0u32.to_be_bytes()[..], &raw::bytes(b"off")].concat());
        let seen = raw::exchange(s, &[fail], raw::DONE);
        assert_eq!(seen.last().map(|f| f.0), Some(raw::DONE), "{seen:?}");
    }
}

/// After an fdatasync that failed the page cache can have bytes that the disk has not, so nothing
/// that the call covered is believed. Each moment at which it can fail:
#[test]
fn what_an_fdatasync_did_not_bring_to_the_disk_comes_again() {
    let scene = |name: &str, flags, after, act: &dyn Fn(&ByHand<'_>, &Server, &exs::Socket)| {
        let tmp = TempDir::new(name);
        let served = tmp.dir("served");
        let hand = ByHand { served: &served, flags };
        let sick = sync_fails_after(&tmp, &served, "f", libc::EIO, after, name == "sync-once");
        let (s, there) = hand.offer(&sick);
        assert_eq!(there, 0, "{name}");
        act(&hand, &sick, &s);
        drop((s, sick));
        let left = names(&served);
        let (_, there) = hand.offer(&Server::start(&served, &[]));
        (left, there)
    };
    // While more chunks come: the chunk is not noted, though it could be read back.
    let (_, there) = scene("sync-chunk", 5, 0, &|hand, _, s| {
        s.blocking().send_all(&[raw::begin(0, ByHand::SIZE), hand.chunk(0)].concat()).unwrap();
        let seen = raw::exchange(s, &[hand.chunk(1), raw::end(0, [0; 32])], raw::DONE);
        assert_eq!(seen.last().unwrap().1[4], 0, "{seen:?}");
    });
    assert_eq!(there, 0, "a chunk that was not synced");
    // At the end: all of it goes, as the call covered the whole file.
    let (left, there) = scene("sync-end", 4, 2, &|hand, _, s| {
        hand.begin(s);
        hand.noted(s, 0);
        hand.noted(s, 1);
        let seen = raw::exchange(s, &[raw::end(0, [0; 32])], raw::DONE);
        assert_eq!(seen.last().unwrap().1[4], 0, "{seen:?}");
    });
    assert_eq!((left, there), (vec![], 0), "the whole file");
    // When it breaks off: the journal is not sealed, so without hashes it is not believed.
    let (_, there) = scene("sync-off", 4, 1, &|hand, _, s| {
        hand.begin(s);
        hand.noted(s, 0);
        ByHand::give_up(s);
    });
    assert_eq!(there, 0, "what broke off");
    // When the next run begins: an error of earlier data is reported then.
    let (_, there) = scene("sync-next", 4, 2, &|hand, sick, s| {
        hand.begin(s);
        hand.noted(s, 0);
        ByHand::give_up(s);
        assert_eq!(hand.offer(sick).1, 0, "the next run");
    });
    assert_eq!(there, 0, "and the run after it");
    // The kernel reports an error once: the call at the end would succeed.
    let (left, there) = scene("sync-once", 5, 1, &|hand, _, s| {
        hand.begin(s);
        hand.noted(s, 0);
        let seen = raw::exchange(s, &[hand.chunk(1), raw::end(0, hand.hash())], raw::DONE);
        assert_eq!(seen.last().unwrap().1[4], 0, "{seen:?}");
    });
    assert_eq!((left.contains(&"f".to_owned()), there), (false, 1), "the second chunk");
    // Without an error it goes on.
    let (_, there) = scene("sync-well", 4, 100, &|hand, _, s| {
        hand.begin(s);
        hand.noted(s, 0);
        ByHand::give_up(s);
    });
    assert_eq!(there, 1, "the chunk is there");
}

/// A file that is there already is called verified when its bytes are on the disk, too.
#[test]
fn a_copy_that_is_there_and_cannot_be_synced_is_told() {
    let tmp = TempDir::new("sync-there");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), noise(1, 3000)).unwrap();
    let put = |server: &Server| run(client(["put", src.to_str().unwrap(), &server.addr]));
    put(&Server::start(&served, &[])).assert_ok();
    let said = put(&without_sync(&tmp, &served, "f", libc::EIO));
    assert_eq!((said.code, said.number("verified_files")), (Some(1), 0), "{said:?}");
    assert!(said.errors()[0].contains("src/f"), "{said:?}");
}

/// A syncfs of the served directory says nothing about files of another file system below it.
#[test]
fn files_of_a_mounted_file_system_are_synced_themselves() {
    let tmp = TempDir::new("sync-mounted");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::create_dir_all(served.join("src")).unwrap();
    for i in 0..40 {
        fs::write(src.join(format!("small{i:02}")), noise(i, 3000)).unwrap();
    }
    let script = "mount -t tmpfs none \"$1/src\" && exec \"$2\" serve \"$1\" --listen 127.0.0.1:0";
    let args = [served.to_str().unwrap(), EXS_CP];
    let Some(mut c) = in_namespace(script, &args) else { return };
    c.env("LD_PRELOAD", shim(&tmp, "sync_fails")).env("SYNC_FAILS_BELOW", served.join("src"));
    c.env("SYNC_FAILS_OF", "f").env("SYNC_FAILS_WITH", libc::EIO.to_string());
    let server = Server::spawn(c);
    let said = run(client(["put", src.to_str().unwrap(), &server.addr]));
    assert_eq!((said.code, said.number("files")), (Some(1), 0), "{said:?}");
    assert_eq!(said.errors().len(), 40, "{said:?}");
}
