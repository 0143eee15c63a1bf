//! Whatever is killed, the next run continues.

mod cp_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use cp_support::*;
use rustix::process::Signal;

const NAME: &str = "file";

/// Directories, a large file in the first, and a small one beside it.
struct Stage {
    _tmp: TempDir,
    from: PathBuf,
    to: PathBuf,
    len: usize,
}

impl Stage {
    fn new(what: &str, mib: usize) -> Stage {
        let tmp = TempDir::new(what);
        let (from, to) = (tmp.dir("from"), tmp.dir("to"));
        let len = (mib << 20) + 12_345;
        fs::write(from.join(NAME), noise(mib as u64, len)).unwrap();
        Stage { _tmp: tmp, from, to, len }
    }

    fn path(&self) -> String {
        self.from.join(NAME).to_str().unwrap().to_owned()
    }
    fn dest(&self) -> String {
        self.to.to_str().unwrap().to_owned()
    }

    /// Some chunks have arrived, as the journal says, and the file has not.
    fn until_under_way(&self, child: &mut Child) -> bool {
        let mut ended = false;
        until("some chunks", || {
            ended = child.try_wait().unwrap().is_some();
            ended || journal_len(&self.to, NAME) > 300
        });
        !ended
    }

    /// False if the file had all its bytes, and its name, before the transfer was disturbed.
    fn is_partial(&self) -> bool {
        if let Ok(whole) = fs::metadata(self.to.join(NAME)) {
            assert_eq!(whole.len(), self.len as u64, "no name before it is whole");
            return false;
        }
        assert!(self.to.join(format!(".{NAME}.exs-part")).exists());
        true
    }

    /// The next run completed the file. False if all bytes were there before the transfer was
    /// disturbed, so that nothing was left to send.
    fn was_resumed(&self, said: Said) -> bool {
        let said = said.assert_ok();
        let resumed = said.number("resumed_bytes");
        assert!(resumed >= 4 << 20, "{said:?}");
        assert_eq!(said.number("bytes"), self.len as u64);
        assert_same(&self.from, &self.to_stamped());
        assert_eq!(fs::read_dir(&self.to).unwrap().count(), 1, "nothing unfinished is left");
        resumed < self.len as u64
    }

    /// The destination's own time is not copied where one file is.
    fn to_stamped(&self) -> PathBuf {
        let t = fs::metadata(&self.from).unwrap().modified().unwrap();
        fs::File::open(&self.to).unwrap().set_modified(t).unwrap();
        self.to.clone()
    }
}

fn start(args: &[&str]) -> Child {
    client(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs a command again. A server that is still busy with what it received before refuses it, after ten
/// seconds: on a busy disk it may take longer.
fn run_again(args: &[&str]) -> Said {
    let start = Instant::now();
    loop {
        let said = run(client(args));
        let busy = said.code == Some(1)
            && said.errors().iter().any(|e| e.contains("another transfer is writing"));
        if !busy {
            return said;
        }
        assert!(start.elapsed() < PATIENCE, "the server does not let go: {said:?}");
    }
}

/// Runs `scene` with larger and larger files until the kill came in time: how
/// fast the machine is must not decide about the result.
fn in_time(what: &str, scene: impl Fn(&Stage) -> bool) {
    for mib in [96, 384, 1536] {
        if scene(&Stage::new(what, mib)) {
            return;
        }
    }
    panic!("the transfer was always over before it could be disturbed");
}

#[test]
fn put_when_the_server_is_killed() {
    in_time("put-server", |stage| {
        let mut server = Server::start(&stage.to, &[]);
        let mut child = start(&["put", &stage.path(), &server.addr]);
        if !stage.until_under_way(&mut child) {
            return false;
        }
        server.kill();
        let said = said(child.wait_with_output().unwrap());
        if said.code == Some(0) {
            return false;
        }
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.errors()[0].contains("Run the same command again"), "{said:?}");
        if !stage.is_partial() {
            return false;
        }
        let server = Server::start(&stage.to, &[]);
        stage.was_resumed(run(client(["put", &stage.path(), &server.addr])))
    });
}

#[test]
fn put_when_the_client_is_killed() {
    in_time("put-client", |stage| {
        let server = Server::start(&stage.to, &[]);
        let mut child = start(&["put", &stage.path(), &server.addr]);
        if !stage.until_under_way(&mut child) {
            return false;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The same server: it may still be busy with what it received, and may have received all.
        let whole = || stage.to.join(NAME).exists();
        let lost = || server.log.lock().unwrap().contains("was lost");
        until("the server notices", || whole() || lost());
        if whole() {
            return false;
        }
        stage.was_resumed(run_again(&["put", &stage.path(), &server.addr]))
    });
}

#[test]
fn get_when_the_client_is_killed() {
    in_time("get-client", |stage| {
        let server = Server::start(&stage.from, &[]);
        let mut child = start(&["get", &server.addr, NAME, &stage.dest()]);
        if !stage.until_under_way(&mut child) {
            return false;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if stage.to.join(NAME).exists() {
            return false;
        }
        if !stage.is_partial() {
            return false;
        }
        stage.was_resumed(run(client(["get", &server.addr, NAME, &stage.dest()])))
    });
}

#[test]
fn get_when_the_server_is_killed() {
    in_time("get-server", |stage| {
        let mut server = Server::start(&stage.from, &[]);
        let mut child = start(&["get", &server.addr, NAME, &stage.dest()]);
        if !stage.until_under_way(&mut child) {
            return false;
        }
        server.kill();
        let said = said(child.wait_with_output().unwrap());
        if said.code == Some(0) {
            return false;
        }
        assert_eq!(said.code, Some(1), "{said:?}");
        if !stage.is_partial() {
            return false;
        }
        let server = Server::start(&stage.from, &[]);
        stage.was_resumed(run(client(["get", &server.addr, NAME, &stage.dest()])))
    });
}

#[test]
fn an_interrupt_stops_cleanly() {
    for (what, put) in [("int-put", true), ("int-get", false)] {
        in_time(what, |stage| {
            let server = Server::start(if put { &stage.to } else { &stage.from }, &[]);
            let (path, dest) = (stage.path(), stage.dest());
            let args: Vec<&str> = if put {
                vec!["put", &path, &server.addr]
            } else {
                vec!["get", &server.addr, NAME, &dest]
            };
            let mut child = start(&args);
            if !stage.until_under_way(&mut child) {
                return false;
            }
            signal(&child, Signal::INT);
            let said = said(child.wait_with_output().unwrap());
            if said.code == Some(0) {
                return false;
            }
            assert_eq!(said.code, Some(130), "{said:?}");
            assert!(said.errors().iter().any(|e| e.contains("interrupted")), "{said:?}");
            stage.was_resumed(run_again(&args))
        });
    }
}

#[test]
fn a_changed_source_is_not_continued() {
    in_time("changed", |stage| {
        let mut server = Server::start(&stage.to, &[]);
        let mut child = start(&["put", &stage.path(), &server.addr]);
        if !stage.until_under_way(&mut child) {
            return false;
        }
        server.kill();
        if child.wait_with_output().unwrap().status.success() {
            return false;
        }
        if !stage.is_partial() {
            return false;
        }
        change_keeping_times(&stage.from.join(NAME), stage.len);
        let server = Server::start(&stage.to, &[]);
        let said = run(client(["put", &stage.path(), &server.addr])).assert_ok();
        assert_eq!(said.number("resumed_bytes"), 0);
        assert_same(&stage.from, &stage.to_stamped());
        true
    });
}

/// Other bytes, same length, same modification time: only ctime tells.
fn change_keeping_times(path: &Path, len: usize) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, noise(7, len)).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
}
