//! What the user named and how it is called in messages; bits that are kept on request only.

mod cp_support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use cp_support::*;
use rustix::fs::{CWD, FileType, Mode};

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn what_was_named_and_is_skipped_is_an_error() {
    let tmp = TempDir::new("named");
    let (src, served, dest) = (tmp.dir("src"), tmp.dir("served"), tmp.dir("dest"));
    let server = Server::start(&served, &[]);
    for dir in [&src, &served] {
        fs::write(dir.join("good"), "text").unwrap();
        fifo(&dir.join("fifo"));
        let _socket = UnixListener::bind(dir.join("socket")).unwrap();
    }
    let typed = |name: &str| src.join(name).to_str().unwrap().to_owned();
    for name in ["fifo", "socket", "missing", "*.txt"] {
        let said = run(client(["put", &typed(name), &server.addr]));
        assert_eq!(said.code, Some(1), "{name}: {said:?}");
        let shown = format!("`{}`", typed(name));
        assert!(said.errors()[0].contains(&shown), "{name}: {said:?}");
        assert_eq!(said.json["verified"], false, "{said:?}");
        let said = run(client(["get", &server.addr, name, dest.to_str().unwrap()]));
        assert_eq!(said.code, Some(1), "{name}: {said:?}");
        assert!(said.errors()[0].contains(&format!("`{name}`")), "{name}: {said:?}");
        assert_eq!(run(client(["ls", &server.addr, name])).code, Some(1), "{name}");
    }
    // The others are copied all the same.
    let said = run(client(["put", &typed("fifo"), &typed("good"), &server.addr, "--into", "d"]));
    assert_eq!((said.code, said.number("files")), (Some(1), 1), "{said:?}");
    // A FIFO inside of a directory is left out, and the message has the path as typed.
    let said = run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    assert!(said.stderr.contains(&format!("`{}`", typed("fifo"))), "{said:?}");
    let said = run(client(["get", &server.addr, "src", dest.to_str().unwrap()])).assert_ok();
    assert_eq!(said.number("files"), 1, "{said:?}");
}

#[test]
fn a_journal_that_outlived_its_file_goes_with_the_next_run() {
    let tmp = TempDir::new("left-journal");
    let (src, served, back) = (tmp.dir("src"), tmp.dir("served"), tmp.dir("back"));
    fs::write(src.join("f"), noise(4, 5 << 20)).unwrap();
    let server = Server::start(&served, &[]);
    let put = || run(client(["put", src.to_str().unwrap(), &server.addr])).assert_ok();
    let get = || run(client(["get", &server.addr, "src", back.to_str().unwrap()])).assert_ok();
    put();
    get();
    for top in [&served, &back] {
        // As a kill between the last rename and the removal leaves it.
        fs::write(top.join("src/.f.exs-journal"), "of the file that is whole now").unwrap();
    }
    assert_eq!(put().number("resumed_bytes"), 5 << 20);
    assert_same(&src, &served.join("src"));
    assert_eq!(get().number("resumed_bytes"), 5 << 20);
    assert_same(&src, &back.join("src"));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn special_bits_are_kept_on_request_and_else_said_to_be_lost() {
    let tmp = TempDir::new("special");
    let (src, served, back) = (tmp.dir("src"), tmp.dir("served"), tmp.dir("back"));
    let all = [("u", 0o4755), ("g", 0o2755), ("t", 0o1644), ("plain", 0o640)];
    for (name, mode) in all {
        fs::write(src.join(name), name).unwrap();
        fs::set_permissions(src.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(src.join("d")).unwrap();
    fs::set_permissions(src.join("d"), fs::Permissions::from_mode(0o3777)).unwrap();
    let src_text = src.to_str().unwrap();
    let (strict, lax) =
        (Server::start(&served, &[]), Server::start(&served, &["--preserve-special"]));
    let check = |at: &Path, keep: bool| {
        for (name, mode_there) in all {
            let want = if keep { mode_there } else { mode_there & 0o777 };
            assert_eq!(mode(&at.join(name)), want, "{name}");
        }
        assert_eq!(mode(&at.join("d")), 0o3777);
    };
    let told = "3 entries have set-user-ID";
    for server in [&strict, &lax] {
        let said = run(client(["put", src_text, &server.addr, "--force"])).assert_ok();
        assert_eq!(said.stderr.matches(told).count(), 1, "{said:?}");
        check(&served.join("src"), false);
    }
    // The user of the server has the last word.
    let said = run(client(["put", src_text, &strict.addr, "--preserve-special"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.errors()[0].contains("--preserve-special"), "{said:?}");
    check(&served.join("src"), false);
    let said = run(client(["put", src_text, &lax.addr, "--preserve-special"])).assert_ok();
    assert!(!said.stderr.contains("set-user-ID"), "{said:?}");
    check(&served.join("src"), true);

    let get = |more: &[&str]| {
        let all = [&["get", &strict.addr, "src", back.to_str().unwrap()], more].concat();
        run(client(all)).assert_ok()
    };
    assert_eq!(get(&[]).stderr.matches(told).count(), 1);
    check(&back.join("src"), false);
    assert!(!get(&["--preserve-special"]).stderr.contains("set-user-ID"));
    check(&back.join("src"), true);
}

/// By hand, without asking: a client does not put a set-user-ID program there.
#[test]
fn a_server_that_was_not_asked_masks_special_bits() {
    use cp_support::raw;
    let tmp = TempDir::new("mask");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let s = raw::connect(&server.addr);
    let (id, meta) = (1u32.to_be_bytes(), raw::meta(1, 0o6777, 4));
    let cv = *blake3::hash(b"evil").as_bytes();
    let frames = [
        raw::put_request(b""),
        raw::frame(raw::OFFER, &[&id[..], &raw::bytes(b"f"), &meta].concat()),
        raw::frame(33, &[&id[..], &meta].concat()),
        raw::data(0, b"evil"),
        raw::chunk(0, cv),
        raw::end(1, cv),
    ];
    let seen = raw::exchange(&s, &frames, raw::DONE);
    assert_eq!(seen.last().map(|f| f.1[4]), Some(1), "{seen:?}");
    assert_eq!(mode(&served.join("f")), 0o777);
    let dir = [&id[..], &raw::bytes(b"d"), &raw::meta(2, 0o7755, 0)].concat();
    let seen = raw::exchange(&s, &[raw::frame(41, &dir)], raw::DONE);
    assert_eq!(seen.last().map(|f| f.1[4]), Some(1), "{seen:?}");
    assert_eq!(mode(&served.join("d")), 0o3755, "set-user-ID alone gives a right");
}
