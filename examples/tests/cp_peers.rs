//! Peers that end badly, or do nothing: what they took is free again, and others are served.

mod cp_support;

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use cp_support::{raw, *};
use exs::{Options, Socket, SocketType, Transport};

/// Threads and descriptors of a server.
fn holdings(server: &Server) -> (usize, usize) {
    let count = |what| fs::read_dir(format!("/proc/{}/{what}", server.child.id())).unwrap().count();
    (count("task"), count("fd"))
}

fn connect(addr: &str) -> Socket {
    let options =
        Options::default().with_transport(Transport::Soft).with_linger(Duration::from_millis(300));
    let s = Socket::with_options(SocketType::Stream, options).unwrap();
    s.blocking().connect(addr).unwrap();
    s
}

/// The moments at which a client ends, and how.
fn end_badly(addr: &str, n: usize) {
    let s = connect(addr);
    let put = raw::put_request(b"");
    let file = [raw::offer(1, b"f", 9 << 20), raw::begin(1, 9 << 20), raw::data(0, &[7; 999])];
    let bytes = match n % 8 {
        0 => Vec::new(),
        1 => raw::hello()[..20].to_vec(),
        2 => raw::hello(),
        // Cannot be used, as a link leads out: the server refuses, and the client is gone.
        3 | 4 => [raw::hello(), raw::put_request(b"l/x")].concat(),
        5 => [raw::hello(), put[..5].to_vec()].concat(),
        6 => [raw::hello(), put, file.concat()].concat(),
        _ => [raw::hello(), raw::walk_request(b"")].concat(),
    };
    if !bytes.is_empty() {
        s.blocking().send_all(&bytes).unwrap();
    }
    if n.is_multiple_of(3) {
        s.abort();
    } else {
        let _ = s.blocking().close();
    }
}

#[test]
fn bad_ends_leave_neither_threads_nor_descriptors() {
    // More are a matter of patience: CP_SOAK=10000.
    let ends = std::env::var("CP_SOAK").map_or(200, |n| n.parse().unwrap());
    let tmp = TempDir::new("ends");
    let served = tmp.dir("served");
    std::os::unix::fs::symlink("../outside", served.join("l")).unwrap();
    let server = Server::start(&served, &[]);
    for n in 0..8 {
        end_badly(&server.addr, n);
    }
    assert_eq!(run(client(["ls", &server.addr])).code, Some(0));
    // Those of EXS itself that stay, and no connection's.
    let rest = || holdings(&server);
    let thread = |name: &str| {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        tasks
            .filter_map(|t| fs::read_to_string(t.ok()?.path().join("comm")).ok())
            .any(|comm| comm.trim() == name)
    };
    until("the first connections to end", || !thread("connection"));
    let before = rest();
    for n in 0..ends {
        end_badly(&server.addr, n);
    }
    until("their threads to end", || !thread("connection") && !thread("exs-cp disk"));
    until("what they took to be free", || {
        let now = rest();
        now.0 <= before.0 && now.1 <= before.1
    });
    assert_eq!(run(client(["ls", &server.addr])).code, Some(0));
}

/// More of them than there are places for those that have proved nothing.
#[test]
fn silent_strangers_do_not_keep_honest_clients_out() {
    let tmp = TempDir::new("strangers");
    let (src, served) = (tmp.dir("src"), tmp.dir("served"));
    fs::write(src.join("f"), "text").unwrap();
    let token = tmp.path().join("token");
    fs::write(&token, "a token of some length").unwrap();
    let token = token.to_str().unwrap();
    let server = Server::start(&served, &["--token-file", token]);
    // Some say nothing, some half a hello, some all of it; some do not even speak EXS.
    let silent: Vec<Socket> = (0..160)
        .map(|n| {
            let s = connect(&server.addr);
            let said = &raw::hello()[..[0, 20, 51][n % 3]];
            if !said.is_empty() {
                // It may have been sent away by now.
                let _ = s.blocking().send_all(said);
            }
            s
        })
        .collect();
    let mute: Vec<_> = (0..50).map(|_| TcpStream::connect(&server.addr).unwrap()).collect();
    for n in 0..20 {
        let into = format!("d{n}");
        let put = ["put", src.to_str().unwrap(), &server.addr, "--into", &into];
        run(client(put.into_iter().chain(["--token-file", token]))).assert_ok();
    }
    assert!(server.log.lock().unwrap().contains("proved nothing"), "some were sent away");
    drop((silent, mute));
}

/// As many connections as are served, all in use: one more is told so, and it is not about
/// the token.
#[test]
fn too_many_connections_are_not_a_wrong_token() {
    let tmp = TempDir::new("many");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let busy: Vec<Socket> = (0..128)
        .map(|_| {
            let s = raw::connect(&server.addr);
            s.blocking()
                .send_all(&[raw::put_request(b""), raw::offer(1, b"f", 4)].concat())
                .unwrap();
            assert_eq!(raw::read(&s).unwrap().0, raw::HAVE);
            s
        })
        .collect();
    let (code, text) = fails(client(["ls", &server.addr]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("connections are open"), "{text}");
    drop(busy);
    until("a place to be free", || run(client(["ls", &server.addr])).code == Some(0));
}

/// A proved client that says nothing more.
#[test]
fn an_idle_connection_ends() {
    let tmp = TempDir::new("idle");
    let server = Server::start(&tmp.dir("served"), &["--idle-timeout", "1"]);
    let s = raw::connect(&server.addr);
    let seen = raw::exchange(&s, &[raw::put_request(b"")], raw::BYE);
    assert_eq!(seen, [], "the server ends it, and has nothing to say");
    until("the end to be logged", || {
        server.log.lock().unwrap().contains("did not answer within 1 s")
    });
}

/// All frames up to number `count`, and half of the next one if `half`.
fn cut(frames: &[Vec<u8>], count: usize, half: bool) -> Vec<u8> {
    let mut bytes = frames[..count].concat();
    if let (true, Some(next)) = (half, frames.get(count)) {
        bytes.extend_from_slice(&next[..next.len() / 2]);
    }
    bytes
}

/// A file is whole or missing, and the next client is served.
#[test]
fn a_client_can_end_after_any_frame_and_within_it() {
    let tmp = TempDir::new("cut-client");
    let served = tmp.dir("served");
    let server = Server::start(&served, &[]);
    let bytes = noise(3, 9000);
    let cv = *blake3::hash(&bytes).as_bytes();
    let mut cuts = 0;
    for (abort, half) in [(false, false), (false, true), (true, false), (true, true)] {
        for count in 0.. {
            let into = format!("{cuts}");
            let frames = [
                raw::hello(),
                raw::put_request(into.as_bytes()),
                raw::offer(1, b"f", 9000),
                raw::begin(1, 9000),
                raw::data(0, &bytes),
                raw::chunk(0, cv),
                raw::end(1, cv),
                raw::link(2, b"l", b"f"),
                raw::dir(3, b"d"),
                raw::bye(),
            ];
            if count > frames.len() {
                break;
            }
            let s = connect(&server.addr);
            let sent = cut(&frames, count, half);
            if !sent.is_empty() {
                s.blocking().send_all(&sent).unwrap();
            }
            if abort {
                s.abort();
            } else {
                let _ = s.blocking().close();
            }
            cuts += 1;
        }
    }
    let src = tmp.dir("src");
    fs::write(src.join("f"), &bytes).unwrap();
    for n in 0..cuts {
        if let Ok(there) = fs::read(served.join(format!("{n}/f"))) {
            assert!(there == bytes, "cut {n}");
        }
    }
    for n in 0..cuts {
        let (src, into) = (src.join("f"), format!("{n}"));
        if n % 7 == 0 {
            let put = ["put", src.to_str().unwrap(), &server.addr, "--into", &into, "--force"];
            run(client(put)).assert_ok();
            assert!(fs::read(served.join(format!("{n}/f"))).unwrap() == bytes, "cut {n}");
        }
    }
}

/// The same from the other side: the client says what happened, with status 1, and does not hang.
#[test]
fn a_server_can_end_after_any_frame_and_within_it() {
    let cv = *blake3::hash(b"text").as_bytes();
    let list = [raw::hello(), raw::entry(1, b"f", b""), raw::end_of_list()];
    let file = [
        raw::hello(),
        raw::begin(0, 4),
        raw::data(0, b"text"),
        raw::chunk(0, cv),
        raw::end(0, cv),
        raw::bye(),
    ];
    for half in [false, true] {
        for count in 0..=list.len() + file.len() {
            let (listed, sent) = (count.min(list.len()), count.saturating_sub(list.len()));
            let parts = [cut(&list, listed, half), cut(&file, sent, half && listed == list.len())];
            let (listener, addr) = raw::listen();
            let comes_back = listed == list.len();
            let server = std::thread::spawn(move || {
                for part in &parts[..1 + usize::from(comes_back)] {
                    let (s, _) = listener.blocking().accept().unwrap();
                    raw::read(&s);
                    // The client can have left in the middle of it.
                    if !part.is_empty() {
                        let _ = s.blocking().send_all(part);
                    }
                    let _ = s.blocking().shutdown(std::net::Shutdown::Write);
                    while raw::read(&s).is_some() {}
                }
            });
            let tmp = TempDir::new(&format!("cut-server-{half}-{count}"));
            let dest = tmp.dir("dest");
            let said = run(client(["get", &addr, "f", dest.to_str().unwrap()]));
            let all = count == list.len() + file.len();
            assert_eq!(said.code, Some(i32::from(!all)), "{count}, {half}: {said:?}");
            if let Ok(there) = fs::read(dest.join("f")) {
                assert_eq!(there, b"text", "{count}, {half}");
            }
            server.join().unwrap();
        }
    }
}

/// A server that is stopped says so to a client that it serves. A client that waits for the answer
/// to its proof would take a refusal for one of the token.
#[test]
fn a_server_that_is_stopped_says_nothing_about_the_token() {
    let tmp = TempDir::new("stopped");
    let token = tmp.path().join("token");
    fs::write(&token, "a token of some length").unwrap();
    let token = ["--token-file", token.to_str().unwrap()];
    for (more, proved) in [(&token[..], false), (&[][..], true)] {
        let server = Server::start(&tmp.dir("served"), more);
        let s = raw::connect(&server.addr);
        if proved {
            let frames = [raw::put_request(b""), raw::offer(1, b"f", 4)];
            assert_eq!(raw::exchange(&s, &frames, raw::HAVE).last().unwrap().0, raw::HAVE);
        }
        signal(&server.child, rustix::process::Signal::TERM);
        let said: Vec<u8> = std::iter::from_fn(|| raw::read(&s)).map(|f| f.0).collect();
        assert_eq!(said.contains(&raw::REFUSE), proved, "{said:?}");
    }
}

/// A server drops strangers when many crowd there: an honest client comes again.
#[test]
fn a_client_that_is_dropped_before_its_proof_comes_again() {
    let (listener, addr) = raw::listen();
    let server = std::thread::spawn(move || {
        for drops in [true, true, false] {
            let (s, _) = listener.blocking().accept().unwrap();
            if drops {
                s.abort();
                continue;
            }
            raw::read(&s).unwrap();
            s.blocking().send_all(&[raw::hello(), raw::end_of_list()].concat()).unwrap();
            while raw::read(&s).is_some() {}
        }
    });
    let said = run(client(["ls", &addr]));
    assert_eq!(said.code, Some(0), "{said:?}");
    server.join().unwrap();
}
