//! A file that changes while it is read, at the source or at the destination: neither a mixture
//! of two states nor an old state is called verified.

mod cp_support;

use std::fs;
use std::process::Command;

use cp_support::*;

/// Copies a file of `len` bytes that changes after the first read of it. `there`: the
/// destination has the first state already, so that both sides only compare.
fn copy_while_it_changes(put: bool, by: &str, len: usize, there: bool) {
    let what = format!("put: {put}, {by}, {len} bytes, there: {there}");
    let tmp = TempDir::new(&format!("changes-{put}-{by}-{len}-{there}"));
    let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
    let file = src.join("f");
    fs::write(&file, noise(5, len)).unwrap();
    let preloaded = |command: &mut Command| {
        command.env("LD_PRELOAD", shim(&tmp, "source_changes"));
        command.env("CHANGES", fs::canonicalize(&file).unwrap()).env("CHANGES_BY", by);
    };
    let mut command = Command::new(EXS_CP);
    let served = if put { to.clone() } else { tmp.path().join("from") };
    command.arg("serve").arg(served).args(["--listen", "127.0.0.1:0"]);
    if there {
        let server = Server::start(&to, &[]);
        run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    }
    if !put {
        preloaded(&mut command);
    }
    let server = Server::spawn(command);
    let (from, dest) = (src.to_str().unwrap(), to.to_str().unwrap());
    let copy = || match put {
        true => client(["put", from, &server.addr]),
        false => client(["get", &server.addr, "t", dest]),
    };
    let mut first = copy();
    if put {
        preloaded(&mut first);
    }
    let said = run(first);
    assert_eq!((said.code, said.number("files")), (Some(1), 0), "{what}: {said:?}");
    let told = said.errors().len() == 1 && said.errors()[0].contains("changed while it was read");
    assert!(told && said.errors()[0].contains("run the same command again"), "{what}: {said:?}");
    assert_eq!(to.join("t/f").exists(), there, "{what}: the name");
    // At rest it is copied, as it is now.
    run(copy()).assert_ok();
    assert_same(&src, &to.join("t"));
}

#[test]
fn a_small_file_that_changes_is_told_and_not_named() {
    for put in [true, false] {
        for by in ["grow", "shrink", "rewrite"] {
            copy_while_it_changes(put, by, 9000, false);
        }
    }
}

#[test]
fn a_file_of_several_chunks_that_changes_is_told_and_not_named() {
    for put in [true, false] {
        for by in ["grow", "shrink", "rewrite"] {
            copy_while_it_changes(put, by, 9 << 20, false);
        }
    }
}

/// The bytes that both sides compared must still be the source's when the comparison ends.
#[test]
fn a_file_that_changes_while_it_is_compared_is_not_called_verified() {
    for put in [true, false] {
        for by in ["grow", "rewrite"] {
            copy_while_it_changes(put, by, 9000, true);
        }
    }
}

/// A copy that changes while the receiver reads it is not the copy that was hashed.
#[test]
fn a_copy_that_changes_while_it_is_compared_is_sent_again() {
    for (put, by) in [(true, "rewrite"), (false, "rewrite"), (true, "grow"), (false, "grow")] {
        let tmp = TempDir::new(&format!("copy-changes-{put}-{by}"));
        let (src, to) = (tmp.dir("from/t"), tmp.dir("to"));
        fs::write(src.join("f"), noise(6, 9000)).unwrap();
        let plain = Server::start(&to, &[]);
        run(client(["put", src.to_str().unwrap(), &plain.addr])).assert_ok();
        let preloaded = |command: &mut Command| {
            command.env("LD_PRELOAD", shim(&tmp, "source_changes"));
            command.env("CHANGES", fs::canonicalize(to.join("t/f")).unwrap());
            command.env("CHANGES_BY", by);
        };
        let mut serve = Command::new(EXS_CP);
        serve.arg("serve").args(["--listen", "127.0.0.1:0"]);
        let said = if put {
            preloaded(serve.arg(&to));
            let server = Server::spawn(serve);
            run(client(["put", src.to_str().unwrap(), &server.addr]))
        } else {
            let server = Server::spawn({
                serve.arg(tmp.path().join("from"));
                serve
            });
            let mut get = client(["get", &server.addr, "t", to.to_str().unwrap()]);
            preloaded(&mut get);
            run(get)
        };
        assert_eq!(said.assert_ok().number("resumed_bytes"), 0, "{put} {by}");
        assert_same(&src, &to.join("t"));
    }
}
