//! Things go wrong: each is named, the rest is done, and it goes on from there.

mod cp_support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cp_support::{raw, *};

fn remount(pid: u32, dir: &str, size: &str) {
    let size = format!("remount,size={size}");
    let done = Command::new("nsenter")
        .args(["-t", &pid.to_string(), "-m", "mount", "-o", &size, dir])
        .status()
        .unwrap();
    assert!(done.success());
}

#[test]
fn a_full_disk_at_the_server() {
    let tmp = TempDir::new("full-put");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    let dir = served.to_str().unwrap();
    fs::write(src.join("a-small"), noise(1, 10_000)).unwrap();
    fs::write(src.join("b-large"), noise(2, 40 << 20)).unwrap();
    fs::write(src.join("c-small"), noise(3, 10_000)).unwrap();
    let mount =
        "mount -t tmpfs -o size=24m none \"$1\" && exec \"$2\" serve \"$1\" --listen 127.0.0.1:0";
    let Some(command) = in_namespace(mount, &[dir, EXS_CP]) else { return };
    let server = Server::spawn(command);
    let said = run(client(["put", src.to_str().unwrap(), &server.addr]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(said.errors().len(), 1, "{said:?}");
    let error = said.errors()[0];
    for part in ["src/b-large", "No space left", "Free some space"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(said.number("files"), 2, "the others are there");
    remount(server.child.id(), dir, "64m");
    let said = run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    assert!(said.number("resumed_bytes") >= 4 << 20, "{said:?}");
    let inside = format!("/proc/{}/root{}", server.child.id(), src.parent().unwrap().display());
    assert_same(&src, &Path::new(&inside).join("served/src"));
}

#[test]
fn a_full_disk_at_the_client() {
    let tmp = TempDir::new("full-get");
    let (served, dest) = (tmp.dir("served/t"), tmp.dir("dest"));
    fs::write(served.join("a-small"), noise(1, 10_000)).unwrap();
    fs::write(served.join("b-large"), noise(2, 40 << 20)).unwrap();
    fs::write(served.join("c-small"), noise(3, 10_000)).unwrap();
    let server = Server::start(&tmp.path().join("served"), &[]);
    let script = "mount -t tmpfs -o size=24m none \"$1\" || exit 9; \
        \"$2\" get \"$3\" t \"$1\" --json >\"$4/first\"; echo $? >\"$4/code\"; \
        mount -o remount,size=64m \"$1\" || exit 9; \
        \"$2\" get \"$3\" t \"$1\" --json && cp -a \"$1/t\" \"$4/copy\"";
    let out = tmp.dir("out");
    let (dest, out) = (dest.to_str().unwrap(), out.to_str().unwrap());
    let Some(mut command) = in_namespace(script, &[dest, EXS_CP, &server.addr, out]) else {
        return;
    };
    let second = said(command.output().unwrap()).assert_ok();
    assert!(second.number("resumed_bytes") >= 4 << 20, "{second:?}");
    assert_same(&served, &Path::new(out).join("copy"));
    assert_eq!(fs::read_to_string(format!("{out}/code")).unwrap().trim(), "1");
    let first: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(format!("{out}/first")).unwrap()).unwrap();
    let errors = first["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{first}");
    let error = errors[0].as_str().unwrap();
    assert!(error.contains("t/b-large") && error.contains("No space left"), "{error}");
    assert_eq!(first["files"], 2);
}

/// A file that cannot be read is named; everything else is copied.
#[test]
fn what_cannot_be_read_does_not_stop_the_rest() {
    let tmp = TempDir::new("unreadable");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("a"), "a").unwrap();
    fs::write(src.join("b"), "b").unwrap();
    let server = Server::start(&served, &[]);
    let missing = tmp.path().join("missing");
    let nowhere = tmp.path().join("no/where");
    let said = run(client([
        "put",
        missing.to_str().unwrap(),
        nowhere.to_str().unwrap(),
        src.to_str().unwrap(),
        &server.addr,
    ]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((said.errors().len(), said.number("files")), (2, 2), "{said:?}");
    for typed in [&missing, &nowhere] {
        let shown = format!("`{}`", typed.display());
        assert!(said.errors().iter().any(|e| e.contains(&shown)), "{said:?}");
    }
    assert_same(&src, &served.join("src"));
    let dest = tmp.path().join("dest");
    let dest = dest.to_str().unwrap();
    let said = run(client(["get", &server.addr, "gone", "src", dest]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors()[0].contains("`gone`"), "{said:?}");
    assert_same(&src, &Path::new(dest).join("src"));
}

/// As another user than root, permissions count.
#[test]
fn a_file_without_permission_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let tmp = TempDir::new("permission");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    for name in ["a", "closed", "z"] {
        fs::write(src.join(name), name).unwrap();
    }
    fs::set_permissions(src.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let server = Server::start(&served, &[]);
    let command = client(["put", src.to_str().unwrap(), &server.addr]);
    let said = said(output_unprivileged(&command, &tmp));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((said.errors().len(), said.number("files")), (1, 2), "{said:?}");
    let error = said.errors()[0];
    assert!(error.contains("src/closed") && error.contains("Permission denied"), "{error}");
    assert!(served.join("src/z").exists() && !served.join("src/closed").exists());
}

/// A copy of a read-only directory is one too, and yet the next run may write there.
#[test]
fn a_read_only_directory_is_copied_again() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let tmp = TempDir::new("read-only");
    let (src, dest) = (tmp.dir("served/t"), tmp.dir("dest"));
    if rustix::process::geteuid().is_root() {
        chown(&dest, Some(65534), Some(65534)).unwrap();
    }
    let closed = src.join("closed");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(&closed).unwrap();
    symlink("one", closed.join("same")).unwrap();
    symlink("one", closed.join("other")).unwrap();
    mode(&closed, 0o555);
    let server = Server::start(&tmp.path().join("served"), &[]);
    let get = client(["get", &server.addr, "t", dest.to_str().unwrap()]);
    let again = || {
        said(output_unprivileged(&get, &tmp)).assert_ok();
        assert_same(&src, &dest.join("t"));
    };
    again();
    again();
    mode(&closed, 0o755);
    fs::remove_file(closed.join("other")).unwrap();
    symlink("two", closed.join("other")).unwrap();
    mode(&closed, 0o555);
    again();
    mode(&closed, 0o755);
    fs::create_dir_all(closed.join("new/newer")).unwrap();
    fs::write(closed.join("new/newer/f"), "text").unwrap();
    mode(&closed, 0o555);
    again();
    // So that a user other than root can remove them.
    mode(&closed, 0o755);
    mode(&dest.join("t/closed"), 0o755);
}

/// A copy of a read-only directory is opened for the next run. The user's own directory is not.
#[test]
fn a_read_only_destination_stays_read_only() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let tmp = TempDir::new("read-only-dest");
    let (served, dest) = (tmp.dir("served"), tmp.dir("dest"));
    fs::write(served.join("f"), "text").unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&dest, Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(&dest, fs::Permissions::from_mode(0o555)).unwrap();
    let server = Server::start(&served, &[]);
    let get = client(["get", &server.addr, "f", dest.to_str().unwrap()]);
    let said = said(output_unprivileged(&get, &tmp));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors()[0].contains("Permission denied"), "{said:?}");
    assert_eq!(fs::metadata(&dest).unwrap().permissions().mode() & 0o7777, 0o555);
    assert_eq!(names(&dest), [""; 0]);
    fs::set_permissions(&dest, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_server_that_is_not_there_is_said_clearly() {
    let tmp = TempDir::new("not-there");
    // A port that was free a moment ago, and is not listened on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = run(client(["put", tmp.path().to_str().unwrap(), &free.to_string()]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors()[0].contains("Is `exs-cp serve` running there?"), "{said:?}");
    let (code, text) = fails(client(["put", tmp.path().to_str().unwrap(), "nonsense"]));
    assert_eq!(code, Some(2), "{text}");
    // The address at the wrong end of the line is the usual mistake.
    for (words, order) in [
        (["put", "127.0.0.1:1", "photos"], "put PATH... ADDR:PORT"),
        (["get", "photos", "127.0.0.1:1"], "get [OPTIONS] ADDR:PORT PATH... DEST"),
    ] {
        let (code, text) = fails(client(words));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(order), "{text}");
    }
    let (code, text) = fails(client(["get", "photos", "127.0.0.1:1", "."]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("the first word is the server"), "{text}");
}

/// Two clients, one name.
#[test]
fn a_directory_in_use_serves_two_clients_of_the_same_file() {
    let tmp = TempDir::new("twice");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), noise(1, 24 << 20)).unwrap();
    let server = Server::start(&served, &[]);
    let put = || {
        client(["put", src.to_str().unwrap(), &server.addr])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // Both want the same name: one waits for the other, and both end well.
    let (one, two) = (put(), put());
    for child in [one, two] {
        said(child.wait_with_output().unwrap()).assert_ok();
    }
    assert_same(&src, &served.join("src"));
    assert_eq!(fs::read_dir(served.join("src")).unwrap().count(), 1);
}

/// A file that became another one between the list and its turn: it is offered once more,
/// as it is now, and reported if it does not keep still then either.
#[test]
fn a_file_that_changed_before_its_turn_is_offered_once_more() {
    for changes in [1, 2] {
        let tmp = TempDir::new("changed");
        let file = tmp.path().join("f");
        fs::write(&file, "1").unwrap();
        let (listener, addr) = raw::listen();
        let path = file.clone();
        let server = std::thread::spawn(move || {
            let (s, _) = listener.blocking().accept().unwrap();
            raw::read(&s).unwrap();
            s.blocking().send_all(&raw::hello()).unwrap();
            let mut seen = Vec::new();
            let mut offers = 0;
            while let Some((kind, body)) = raw::read(&s) {
                seen.push((kind, body.clone()));
                let id = body.get(..4).map_or(0, |b| u32::from_be_bytes(b.try_into().unwrap()));
                let answer = match kind {
                    raw::OFFER => {
                        offers += 1;
                        if offers <= changes {
                            fs::write(&path, vec![b'x'; 1 + offers]).unwrap();
                        }
                        raw::have_none(id)
                    }
                    raw::FAIL => raw::done(id, false),
                    raw::END => raw::done(id, true),
                    raw::BYE => raw::bye(),
                    _ => continue,
                };
                s.blocking().send_all(&answer).unwrap();
            }
            seen
        });
        let said = run(client(["put", file.to_str().unwrap(), &addr]));
        let seen = server.join().unwrap();
        let count = |kind| seen.iter().filter(|f| f.0 == kind).count();
        assert_eq!((count(raw::OFFER), count(raw::FAIL)), (2, changes), "{seen:?}");
        if changes == 1 {
            let said = said.assert_ok();
            assert_eq!((said.number("files"), said.number("bytes")), (1, 2), "{said:?}");
            let data = seen.iter().find(|f| f.0 == raw::DATA).unwrap();
            assert_eq!(data.1, [&[0; 8][..], b"xx"].concat());
        } else {
            assert_eq!(said.code, Some(1), "{said:?}");
            let errors = said.errors();
            assert!(errors.len() == 1 && errors[0].contains("changed since"), "{said:?}");
        }
    }
}
