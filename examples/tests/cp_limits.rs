//! Few descriptors: connections and files wait their turn, and the server stays.

mod cp_support;

use std::fs;
use std::path::Path;
use std::process::Command;

use cp_support::{raw, *};
use exs::{EventQueue, Socket, Token};

/// A server that may have so many files open.
fn limited(dir: &Path, files: u32) -> Server {
    let script = "ulimit -n \"$1\" && \
        exec \"$2\" serve \"$3\" --listen 127.0.0.1:0 --transport soft";
    let mut c = Command::new("sh");
    c.args(["-c", script, "sh", &files.to_string(), EXS_CP]).arg(dir);
    Server::spawn(c)
}

fn lives(server: &mut Server) -> bool {
    server.child.try_wait().unwrap().is_none()
}

#[test]
fn more_connections_than_descriptors_do_not_end_the_server() {
    let tmp = TempDir::new("descriptors");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), "text").unwrap();
    let mut server = limited(&served, 64);
    let queue = EventQueue::new(256).unwrap();
    let callers: Vec<Socket> = (0..100)
        .map(|_| {
            let s = Socket::stream().unwrap();
            s.connect(&queue, Token(1), server.addr.parse().unwrap()).unwrap();
            s
        })
        .collect();
    until("a connection to be dropped", || {
        !lives(&mut server) || server.log.lock().unwrap().contains("was dropped")
    });
    for s in callers {
        s.abort();
    }
    // Until the server has noticed that they have gone, it may drop us too.
    let addr = server.addr.clone();
    until("the server to be free again", || {
        assert!(lives(&mut server), "the server has ended");
        run(client(["put", src.to_str().unwrap(), &addr])).code == Some(0)
    });
    assert_same(&src, &served.join("src"));
}

/// A run that broke off leaves partial files, and the next one offers all of them at once.
#[test]
fn more_partial_files_than_descriptors_are_continued() {
    const SIZE: u64 = 5 << 20;
    const CHUNK: u64 = 4 << 20;
    const FILES: u32 = 100;
    let tmp = TempDir::new("partial");
    let served = tmp.dir("served");
    let name = |id: u32| format!("f{id}").into_bytes();
    let offers: Vec<_> = (0..FILES).map(|id| raw::offer(id, &name(id), SIZE)).collect();
    // Without checks, so that no value must be right.
    let request = raw::frame(12, &[raw::bytes(b""), vec![0]].concat());
    let offered = |s: &Socket| {
        s.blocking().send_all(&[request.clone(), offers.concat()].concat()).unwrap();
        (0..FILES).map(|_| raw::read(s).unwrap()).collect::<Vec<_>>()
    };

    let first = Server::start(&served, &[]);
    let s = raw::connect(&first.addr);
    offered(&s);
    for id in 0..FILES {
        let frames = [
            raw::begin(id, SIZE),
            raw::hole(0, CHUNK),
            raw::chunk(0, [0; 32]),
            raw::frame(raw::FAIL, &[&id.to_be_bytes()[..], &raw::bytes(b"enough")].concat()),
        ];
        let seen = raw::exchange(&s, &frames, raw::DONE);
        assert_eq!(seen.last().map(|f| f.0), Some(raw::DONE), "{seen:?}");
    }
    drop((s, first));

    let second = limited(&served, 64);
    let s = raw::connect(&second.addr);
    for (kind, body) in offered(&s) {
        // One chunk is there.
        assert_eq!(kind, raw::HAVE, "{}", String::from_utf8_lossy(&body));
        assert_eq!(body[4..9], [0, 0, 0, 0, 1], "{body:?}");
    }
    for id in 0..FILES {
        let frames = [
            raw::begin(id, SIZE),
            raw::hole(CHUNK, SIZE - CHUNK),
            raw::chunk(1, [0; 32]),
            raw::end(id, [0; 32]),
        ];
        let seen = raw::exchange(&s, &frames, raw::DONE);
        let done = &seen.last().unwrap().1;
        assert_eq!(done[4], 1, "{}", String::from_utf8_lossy(done));
    }
    assert_eq!(fs::read_dir(&served).unwrap().count(), FILES as usize);
    assert_eq!(fs::metadata(served.join("f7")).unwrap().len(), SIZE);
}
