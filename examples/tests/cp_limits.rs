//! Few descriptors: connections and files wait their turn, and the server stays.

mod cp_support;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use cp_support::{raw, *};
use exs::{EventQueue, Socket, Token};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// A server that may have `files` descriptors.
fn limited(dir: &Path, files: u32) -> Server {
    Server::spawn(limited_command(dir, files))
}

fn limited_command(dir: &Path, files: u32) -> Command {
    let script = "ulimit -n \"$1\" && \
        exec \"$2\" serve \"$3\" --listen 127.0.0.1:0 --transport soft";
    let mut c = Command::new("sh");
    c.args(["-c", script, "sh", &files.to_string(), EXS_CP]).arg(dir);
    c
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

/// Lets a process open `more` files than it has open now; `None`: as many as this process may.
fn may_open(server: &Server, more: Option<u64>) {
    let id = server.child.id();
    let open: Vec<u64> = fs::read_dir(format!("/proc/{id}/fd"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let free = |n: &u64| !open.contains(n);
    let limit = getrlimit(Resource::Nofile);
    let current = match more {
        Some(more) => Some((0..).filter(free).nth(usize::try_from(more).unwrap()).unwrap()),
        None => limit.current,
    };
    let pid = Pid::from_raw(i32::try_from(id).unwrap());
    prlimit(pid, Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

/// Whichever of the descriptors that a look at a partial file takes is lacking: the file
/// fails, and what was there of it is there for the next run.
#[test]
fn a_lack_of_descriptors_loses_nothing_of_a_partial_file() {
    const SIZE: u64 = 9 << 20;
    const CHUNK: u64 = 4 << 20;
    let tmp = TempDir::new("lack");
    let served = tmp.dir("served");
    // Without checks, so that no value must be right; and whatever is there already.
    let request = raw::frame(12, &[raw::bytes(b""), vec![2]].concat());
    let fail =
        |id: u32| raw::frame(raw::FAIL, &[&id.to_be_bytes()[..], &raw::bytes(b"enough")].concat());
    let whole = |index: u32| {
        let start = u64::from(index) * CHUNK;
        [raw::hole(start, CHUNK.min(SIZE - start)), raw::chunk(index, [0; 32])].concat()
    };
    let first = Server::start(&served, &[]);
    let s = raw::connect(&first.addr);
    raw::exchange(&s, &[request.clone(), raw::offer(0, b"d/f", SIZE)], raw::HAVE);
    let seen = raw::exchange(&s, &[raw::begin(0, SIZE), whole(0), fail(0)], raw::DONE);
    assert_eq!(seen.last().map(|f| f.0), Some(raw::DONE), "{seen:?}");
    drop((s, first));

    let server = Server::start(&served, &[]);
    let s = raw::connect(&server.addr);
    let mut next = 1;
    let mut first_frames = request;
    // Another directory is looked at last each time, so that it is not known any more.
    let mut offer = |path: &[u8], more| {
        may_open(&server, more);
        next += 1;
        let frames = [std::mem::take(&mut first_frames), raw::offer(next, path, SIZE)].concat();
        s.blocking().send_all(&frames).unwrap();
        (next, raw::read(&s).unwrap())
    };
    let (mut looks, mut begins) = (0, 0);
    for more in 0..16 {
        offer(b"other/g", None);
        let (_, (kind, body)) = offer(b"d/f", Some(more));
        match kind {
            raw::HAVE => assert_eq!(body[4..9], [0, 0, 0, 0, 1], "with {more} more"),
            raw::DONE => {
                looks += 1;
                let text = String::from_utf8_lossy(&body);
                assert!(text.contains("Too many open files"), "with {more} more: {text}");
            }
            kind => panic!("{kind}: {body:?}"),
        }
        let (id, (kind, body)) = offer(b"d/f", None);
        assert_eq!(kind, raw::HAVE, "after {more} more");
        assert_eq!(body[4..9], [0, 0, 0, 0, 1], "after {more} more");
        offer(b"other/g", None);
        may_open(&server, Some(more));
        let seen = raw::exchange(&s, &[raw::begin(id, SIZE), fail(id)], raw::DONE);
        let text = String::from_utf8_lossy(&seen.last().unwrap().1);
        begins += u32::from(text.contains("Too many open files"));
    }
    assert!(looks > 2 && looks < 16 && begins > 2 && begins < 16, "{looks} and {begins} failed");

    let (id, (_, body)) = offer(b"d/f", None);
    assert_eq!(body[4..9], [0, 0, 0, 0, 1]);
    let frames = [raw::begin(id, SIZE), whole(1), whole(2), raw::end(id, [0; 32])];
    let seen = raw::exchange(&s, &frames, raw::DONE);
    let done = &seen.last().unwrap().1;
    assert_eq!(done[4], 1, "{}", String::from_utf8_lossy(done));
    assert_eq!(fs::read_dir(served.join("d")).unwrap().count(), 1);
}

/// As many callers that say nothing as the server has descriptors: they give way. Their time
/// for a start-up is an hour here, so that the time limit does not end them.
#[test]
fn silent_callers_do_not_use_up_the_descriptors() {
    let tmp = TempDir::new("mute");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), "text").unwrap();
    let mut command = limited_command(&served, 64);
    command.env("EXS_CONNECT_TIMEOUT", "3600");
    let server = Server::spawn(command);
    let mute: Vec<_> = (0..100).map(|_| TcpStream::connect(&server.addr).unwrap()).collect();
    until("many of them to have a descriptor", || {
        fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count() >= 16
    });
    // A connection takes a few of them.
    until("a client to be served", || {
        run(client(["put", src.to_str().unwrap(), &server.addr])).code == Some(0)
    });
    assert_same(&src, &served.join("src"));
    drop(mute);
}
