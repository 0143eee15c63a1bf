//! Permission and paths: tokens, and peers that try to leave the directory.

mod cp_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cp_support::raw;
use cp_support::*;
use exs::Socket;

fn token(tmp: &TempDir, name: &str, text: &str) -> String {
    let path = tmp.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn both_sides_must_know_the_token() {
    let tmp = TempDir::new("token");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), "text").unwrap();
    let src = src.to_str().unwrap();
    let good = token(&tmp, "good", "a token of some length\n");
    // An editor's newline more or less makes no difference.
    let same = token(&tmp, "same", "a token of some length");
    let wrong = token(&tmp, "wrong", "a token of some lengtH\n");
    let short = token(&tmp, "short", "secret");
    let server = Server::start(&served, &["--token-file", &good]);
    let addr = server.addr.as_str();

    let said = run(client(["put", src, addr, "--token-file", &wrong]));
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors()[0].contains("token is wrong"), "{said:?}");
    let said = run(client(["put", src, addr]));
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors()[0].contains("--token-file"), "{said:?}");
    let (code, text) = fails(client(["ls", addr, "--token-file", &wrong]));
    assert_eq!(code, Some(3), "{text}");
    let (code, text) = fails(client(["put", src, addr, "--token-file", &short]));
    assert_eq!(code, Some(2), "{text}");
    assert_eq!(fs::read_dir(&served).unwrap().count(), 0, "nothing was written");

    run(client(["put", src, addr, "--token-file", &same, "-j", "2"])).assert_ok();
    assert_eq!(fs::read_to_string(served.join("src/f")).unwrap(), "text");

    // A server without a token cannot prove itself to a client that has one.
    let open = Server::start(&served, &[]);
    let said = run(client(["put", src, &open.addr, "--token-file", &good]));
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors()[0].contains("cannot prove"), "{said:?}");
}

/// The server takes no request of a client that only claims to know the token.
#[test]
fn a_client_that_skips_its_proof_is_refused() {
    let tmp = TempDir::new("skip");
    let served = tmp.dir("served");
    let good = token(&tmp, "good", "a token of some length\n");
    let server = Server::start(&served, &["--token-file", &good]);
    let dir = raw::dir(1, b"made");
    for frames in [
        vec![raw::put_request(b""), dir.clone()],
        vec![raw::frame(2, &[0; 32]), raw::put_request(b""), dir],
    ] {
        let s = raw::connect(&server.addr);
        let seen = raw::exchange(&s, &frames, raw::REFUSE);
        assert_eq!(seen.iter().map(|f| f.0).collect::<Vec<_>>(), [raw::REFUSE]);
        assert_eq!(fs::read_dir(&served).unwrap().count(), 0);
    }
}

/// A server that does not know the token gets no file, only a hello and a proof.
#[test]
fn a_server_that_cannot_prove_itself_gets_nothing() {
    let tmp = TempDir::new("false-server");
    fs::write(tmp.path().join("f"), "confidential").unwrap();
    let good = token(&tmp, "good", "a token of some length\n");
    let (listener, addr) = raw::listen();
    let path = tmp.path().join("f").to_str().unwrap().to_owned();
    let false_server = std::thread::spawn(move || {
        let (s, _) = listener.blocking().accept().unwrap();
        let mut seen = vec![raw::read(&s).unwrap()];
        let hello = [b"EXS-CP\r\n\0\x01\x01", &[9; 32][..]].concat();
        s.blocking().send_all(&raw::frame(1, &hello)).unwrap();
        seen.push(raw::read(&s).unwrap());
        // The client's own proof, sent back: the reflection.
        s.blocking().send_all(&raw::frame(2, &seen[1].1)).unwrap();
        seen.extend(std::iter::from_fn(|| raw::read(&s)));
        seen
    });
    let said = run(client(["put", &path, &addr, "--token-file", &good]));
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.errors()[0].contains("does not know the token"), "{said:?}");
    let kinds: Vec<u8> = false_server.join().unwrap().iter().map(|f| f.0).collect();
    assert_eq!(kinds, [1, 2]);
}

#[test]
fn without_a_token_only_loopback_is_served() {
    let tmp = TempDir::new("anonymous");
    let dir = tmp.path().to_str().unwrap();
    let mut c = std::process::Command::new(EXS_CP);
    c.args(["serve", dir, "--listen", "0.0.0.0:0"]);
    let (code, text) = fails(c);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--allow-anonymous") && text.contains("--token-file"), "{text}");
    let mut c = std::process::Command::new(EXS_CP);
    c.args(["serve", dir, "--listen", "0.0.0.0:0", "--allow-anonymous"]);
    let server = Server::spawn(c);
    let port = server.addr.rsplit_once(':').unwrap().1;
    assert_eq!(run(client(["ls", &format!("127.0.0.1:{port}")])).code, Some(0));
}

#[test]
fn paths_given_to_the_client_are_checked_too() {
    let tmp = TempDir::new("usage");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let dest = tmp.path().join("dest");
    let dest = dest.to_str().unwrap();
    for bad in ["../x", "/etc/passwd", "a/../../x"] {
        assert_eq!(fails(client(["get", &server.addr, bad, dest])).0, Some(2), "{bad}");
        assert_eq!(fails(client(["ls", &server.addr, bad])).0, Some(2), "{bad}");
        let put = client(["put", tmp.path().to_str().unwrap(), &server.addr, "--into", bad]);
        assert_eq!(fails(put).0, Some(2), "{bad}");
    }
}

/// Two files that would get the same name: neither replaces the other.
#[test]
fn two_paths_of_one_name_are_refused() {
    let tmp = TempDir::new("two-names");
    let (a, b) = (tmp.dir("served/a"), tmp.dir("served/b"));
    fs::write(a.join("conf"), "one").unwrap();
    fs::write(b.join("conf"), "two").unwrap();
    let server = Server::start(&tmp.path().join("served"), &[]);
    let dest = tmp.path().join("dest");
    let get = |paths: &[&str]| {
        let all = [&["get", &server.addr], paths, &[dest.to_str().unwrap()]].concat();
        fails(client(all))
    };
    let (code, text) = get(&["a/conf", "b/conf"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("called `conf`") && text.contains("one by one"), "{text}");
    // All there is has names that are known only when they come.
    fs::write(tmp.path().join("served/conf"), "three").unwrap();
    for paths in [[".", "a/conf"], ["a/conf", "."]] {
        let (code, text) = get(&paths);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("called `conf`") && text.contains("one by one"), "{text}");
    }
    let (code, text) = get(&[".", "./"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(!dest.exists());
    fs::remove_file(tmp.path().join("served/conf")).unwrap();
    // A name that `.` brings itself comes once; a name that `.` does not bring is looked for.
    let all = ["get", &server.addr, ".", "a", "a/conf", dest.to_str().unwrap()];
    let said = run(client(all)).assert_ok();
    assert_eq!(said.number("files"), 3, "{said:?}");
    assert_same(&tmp.path().join("served/a"), &dest.join("a"));
    assert_eq!(fs::read_to_string(dest.join("conf")).unwrap(), "one");
    fs::remove_dir_all(&dest).unwrap();
    let (code, text) = get(&[".", "missing"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("`missing`"), "{text}");
    let (code, text) = get(&["a", "b"]);
    assert_eq!(code, Some(0), "{text}");
    let paths = [a.to_str().unwrap(), b.to_str().unwrap()].map(|p| format!("{p}/conf"));
    let (code, text) = fails(client(["put", &paths[0], &paths[1], &server.addr]));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("called `conf`") && text.contains("--into"), "{text}");
}

/// Served directory, with ways out of it, and something outside to protect.
fn trap(what: &str) -> (TempDir, PathBuf, PathBuf) {
    let tmp = TempDir::new(what);
    let (served, outside) = (tmp.dir("served"), tmp.dir("outside"));
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink("../outside", served.join("relative")).unwrap();
    symlink(&outside, served.join("absolute")).unwrap();
    symlink("../outside/secret", served.join("file")).unwrap();
    (tmp, served, outside)
}

fn assert_untouched(outside: &Path) {
    let names: Vec<_> = fs::read_dir(outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"]);
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "secret");
}

#[test]
fn a_hostile_client_does_not_leave_the_directory() {
    let (_tmp, served, outside) = trap("hostile-client");
    let server = Server::start(&served, &[]);
    // Names that could leave by their form end the connection.
    for bad in [&b"../outside/x"[..], b"/tmp/x", b"a/../../outside/x", b"..", b"a\0b", b"./x"] {
        for frames in [
            vec![raw::put_request(bad)],
            vec![raw::walk_request(bad)],
            vec![raw::put_request(b""), raw::offer(1, bad, 4)],
            vec![raw::put_request(b""), raw::link(1, bad, b"x")],
            vec![raw::put_request(b""), raw::dir(1, bad)],
        ] {
            let s = raw::connect(&server.addr);
            let seen = raw::exchange(&s, &frames, raw::REFUSE);
            assert_eq!(seen.last().map(|f| f.0), Some(raw::REFUSE), "{bad:?}");
        }
    }
    // Names that leave through a link are refused one by one.
    for bad in ["relative/x", "absolute/x", "made/x", "relative/new/x"] {
        let s = raw::connect(&server.addr);
        s.blocking().send_all(&raw::put_request(b"")).unwrap();
        let made = raw::exchange(&s, &[raw::link(0, b"made", b"../outside")], raw::DONE);
        assert_eq!(made.last().unwrap().1[4], 1, "a link itself may point anywhere");
        // A small file is opened when it begins: it must fail then at the latest.
        let all = [
            raw::offer(1, bad.as_bytes(), 4),
            raw::begin(1, 4),
            raw::data(0, b"evil"),
            raw::chunk(0, *blake3::hash(b"evil").as_bytes()),
            raw::end(1, *blake3::hash(b"evil").as_bytes()),
        ];
        let seen = raw::exchange(&s, &all, raw::DONE);
        assert_eq!(seen.last().unwrap().1[4], 0, "{bad}: refused");
        for frames in [raw::link(2, bad.as_bytes(), b"y"), raw::dir(3, bad.as_bytes())] {
            let s = raw::connect(&server.addr);
            let seen = raw::exchange(&s, &[raw::put_request(b""), frames], raw::DONE);
            assert_eq!(seen.last().unwrap().1[4], 0, "{bad}: refused");
        }
        assert_untouched(&outside);
    }
    for bad in ["relative", "absolute"] {
        let s = raw::connect(&server.addr);
        let seen = raw::exchange(&s, &[raw::put_request(bad.as_bytes())], raw::REFUSE);
        assert_eq!(seen.last().unwrap().0, raw::REFUSE);
        let said = run(client(["get", &server.addr, &format!("{bad}/secret"), "/nonexistent/x"]));
        assert_ne!(said.code, Some(0));
        let said = run(client(["ls", &server.addr, &format!("{bad}/secret")]));
        assert_eq!(said.code, Some(1));
    }
    assert_untouched(&outside);
}

/// Noise, cuts and frames out of order cost one connection each, no more.
#[test]
fn garbage_ends_one_connection_only() {
    let tmp = TempDir::new("garbage");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let put = raw::put_request(b"");
    for frames in [
        noise(1, 5000),
        raw::frame(99, b""),
        raw::frame(12, &[0xff; 40]),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&put[..], &raw::begin(7, 4)].concat(),
        [&put[..], &raw::data(0, b"lost")].concat(),
        [&put[..], &raw::offer(1, b"f", 4), &raw::begin(1, 4), &raw::data(9, b"hole")].concat(),
        [&put[..], &raw::offer(1, b"f", 4), &raw::begin(1, 4), &raw::data(0, b"longer")].concat(),
        [&put[..], &raw::offer(1, b"f", 4), &raw::begin(1, 4), &raw::end(1, [0; 32])].concat(),
        [&put[..], &raw::offer(1, b"f", 4), &raw::begin(1, 5)].concat(),
        [&put[..], &raw::offer(1, b"f", 4), &raw::bye()].concat(),
        [0x22, 0, 0, 0, 0xff, 0xff, 0xff, 0xff].to_vec(),
    ] {
        let s = raw::connect(&server.addr);
        let seen = raw::exchange(&s, std::slice::from_ref(&frames), raw::REFUSE);
        let last = seen.last().map(|f| f.0);
        assert_eq!(last, Some(raw::REFUSE), "{:?}", &frames[..frames.len().min(60)]);
        assert!(!served.join("f").exists());
    }
    // Cut in the middle of a frame, and gone.
    let s = raw::connect(&server.addr);
    s.blocking().send_all(&put[..5]).unwrap();
    s.abort();
    // A hash that is not the data's: no file of that name.
    let s = raw::connect(&server.addr);
    let cv = *blake3::hash(b"evil").as_bytes();
    let wrong = [
        put,
        raw::offer(1, b"f", 4),
        raw::begin(1, 4),
        raw::data(0, b"EVIL"),
        raw::chunk(0, cv),
        raw::end(1, cv),
    ];
    let seen = raw::exchange(&s, &wrong, raw::DONE);
    assert_eq!(seen[0].0, raw::HAVE);
    let text = String::from_utf8_lossy(&seen.last().unwrap().1[7..]).into_owned();
    assert!(seen.last().unwrap().1[4] == 0 && text.contains("damaged"), "{text}");
    drop(s);
    assert_eq!(run(client(["ls", &server.addr])).code, Some(0), "it serves on");
    until("the rest is removed", || fs::read_dir(&served).unwrap().count() == 0);
}

/// What a server says when it is asked to list a tree, and what may come of it.
#[test]
fn a_hostile_server_writes_nothing_outside() {
    for (what, frames, expected) in [
        ("up", vec![raw::entry(1, b"../outside/x", b"")], "protocol"),
        ("absolute", vec![raw::entry(1, b"/tmp/x", b"")], "protocol"),
        ("other", vec![raw::entry(1, b"other/x", b"")], "asked for"),
        ("prefix", vec![raw::entry(1, b"treeother", b"")], "asked for"),
        (
            "through a link",
            vec![
                raw::entry(2, b"tree", b""),
                raw::entry(3, b"tree/l", b"../../outside"),
                raw::entry(1, b"tree/l/x", b""),
                raw::entry(3, b"tree/l/y", b"z"),
                raw::entry(2, b"tree/l/d", b""),
                raw::end_of_list(),
            ],
            "leaves the served directory",
        ),
    ] {
        let tmp = TempDir::new("hostile-server");
        let (dest, outside) = (tmp.dir("dest"), tmp.dir("outside"));
        fs::write(outside.join("secret"), "secret").unwrap();
        let server = HostileServer::start(frames.concat(), raw::bye());
        let addr = &server.addr;
        let said = run(client(["get", addr, "tree", dest.to_str().unwrap()]));
        assert_eq!(said.code, Some(1), "{what}: {said:?}");
        assert!(said.errors().iter().any(|e| e.contains(expected)), "{what}: {said:?}");
        assert_untouched(&outside);
        server.end();
    }
}

/// A server that names files in a directory, but not the directory, makes a tree look like a
/// single file. Its files still do not get into the directory in which the client makes DEST.
#[test]
fn a_hostile_server_writes_nothing_beside_a_new_destination() {
    let cv = *blake3::hash(b"evil").as_bytes();
    let file =
        [raw::begin(0, 4), raw::data(0, b"evil"), raw::chunk(0, cv), raw::end(0, cv), raw::bye()];
    for (what, wish, entry, there) in [
        ("a file", "tree", raw::entry(1, b"tree/secret", b""), "tree/secret"),
        ("a link", "tree", raw::entry(3, b"tree/secret", b"/etc"), "tree/secret"),
        ("a file of all", ".", raw::entry(1, b"secret", b""), "secret"),
        ("a link of all", ".", raw::entry(3, b"secret", b"/etc"), "secret"),
    ] {
        let tmp = TempDir::new("hostile-new");
        let outside = tmp.dir("outside");
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir(outside.join("tree")).unwrap();
        fs::write(outside.join("tree/secret"), "secret").unwrap();
        let dest = outside.join("dest");
        let frames = [entry, raw::end_of_list()].concat();
        let server = HostileServer::start(frames, file.concat());
        let said = run(client(["get", &server.addr, wish, dest.to_str().unwrap()]));
        assert_eq!(said.code, Some(0), "{what}: {said:?}");
        assert_untouched(&outside.join("tree"));
        fs::symlink_metadata(dest.join(there)).unwrap();
        fs::remove_dir_all(&dest).unwrap();
        fs::remove_dir_all(outside.join("tree")).unwrap();
        assert_untouched(&outside);
        server.end();
    }
}

/// Lists what it likes, and answers a fetch with what it likes.
struct HostileServer {
    addr: String,
    thread: std::thread::JoinHandle<()>,
}

impl HostileServer {
    fn start(list: Vec<u8>, fetched: Vec<u8>) -> HostileServer {
        let (listener, addr) = raw::listen();
        let thread = std::thread::spawn(move || {
            // The list, then a connection to fetch from, if it is wanted.
            let (s, _) = listener.blocking().accept().unwrap();
            raw::read(&s).unwrap();
            s.blocking().send_all(&[raw::hello(), list].concat()).unwrap();
            while raw::read(&s).is_some() {}
            let Ok((s, _)) = listener.blocking().accept() else { return };
            raw::read(&s);
            let _ = s.blocking().send_all(&[raw::hello(), fetched].concat());
            while raw::read(&s).is_some() {}
        });
        HostileServer { addr, thread }
    }

    fn end(self) {
        // Where the client did not come back, let the thread end.
        let s = Socket::stream().unwrap();
        let _ = s.blocking().connect(self.addr.as_str());
        s.abort();
        self.thread.join().unwrap();
    }
}
