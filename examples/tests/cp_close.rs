//! File systems that find out at close(2) what they have no room for.

mod cp_support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cp_support::{raw, *};

/// What is preloaded into a program whose closes are to fail.
fn shim(tmp: &TempDir) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cp_support/close_fails.c");
    let lib = tmp.path().join("close_fails.so");
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let built = Command::new(cc)
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&lib, &source])
        .status();
    assert!(built.unwrap().success());
    lib
}

/// A server that is told at each close in its directory that there is no room.
fn without_room(tmp: &TempDir, served: &Path) -> Server {
    let mut c = Command::new(EXS_CP);
    c.arg("serve").arg(served).args(["--listen", "127.0.0.1:0"]);
    c.env("LD_PRELOAD", shim(tmp)).env("CLOSE_FAILS_BELOW", served);
    Server::spawn(c)
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
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
