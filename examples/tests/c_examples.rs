//! The examples in C, each pair as processes: over plain sockets, over kernel sockets through
//! EXS, and over EXS; with Rust on the other side; and once more under sanitizers.

mod c_support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use c_support::{Server, TempDir, Watchdog, Way, has, make, noise, programs, run, text, ways};
use exs::{Socket, SocketType};
use rustix::process::Signal;

const ANY: &str = "127.0.0.1:0";

fn echo_ways() -> Vec<Way> {
    ways(["echo_server", "exs_echo_server"], ["echo_client", "exs_echo_client"])
}

fn echo(dir: &Path, bytes: usize) {
    let data = noise(1, bytes);
    for way in echo_ways() {
        let server = way.serve(dir, &[ANY]);
        assert!(way.call_well(dir, &[&server.addr], &data) == data, "{:?}", way.server);
        assert!(way.call_well(dir, &[&server.addr], b"").is_empty());
        server.stop();
    }
}

#[test]
fn echo_comes_back() {
    echo(programs(), 3 << 20);
}

#[test]
fn echo_of_many_at_once_and_of_one_that_dies() {
    let dir = programs();
    for way in echo_ways() {
        let server = way.serve(dir, &[ANY]);
        // One that has its connection, and is killed.
        let mut doomed = Command::new(dir.join(way.client[0]))
            .args(&way.client[1..])
            .arg(&server.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        doomed.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut back = [0];
        doomed.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        std::thread::scope(|s| {
            for i in 0..8 {
                let (way, server) = (&way, &server);
                s.spawn(move || {
                    let data = noise(i, 300_000);
                    assert!(way.call_well(dir, &[&server.addr], &data) == data);
                });
                if i == 3 {
                    doomed.kill().unwrap();
                }
            }
        });
        doomed.wait().unwrap();
        server.stop();
    }
}

/// The server goes away while the client still has something to say.
#[test]
fn an_echo_client_tells_of_a_server_that_has_gone() {
    let dir = programs();
    for way in echo_ways() {
        let mut server = way.serve(dir, &[ANY]);
        let mut client = Command::new(dir.join(way.client[0]))
            .args(&way.client[1..])
            .arg(&server.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        client.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut back = [0];
        client.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
        server.child.kill().unwrap();
        let _dog = Watchdog::new(format!("{:?}", way.client));
        let stdin = client.stdin.take();
        let out = client.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        assert!(!out.stderr.is_empty());
    }
}

#[test]
fn a_rust_client_and_the_c_echo_server_understand_each_other() {
    let dir = programs();
    for transport in c_support::transports() {
        let server = Server::start(dir, &["exs_echo_server", ANY], transport);
        let socket = Socket::stream().unwrap();
        socket.blocking().connect(&*server.addr).unwrap();
        let data = noise(2, 200_000);
        let mut back = vec![0; data.len()];
        for (sent, got) in data.chunks(10_000).zip(back.chunks_mut(10_000)) {
            socket.blocking().send_all(sent).unwrap();
            socket.blocking().recv_exact(got).unwrap();
        }
        assert!(back == data);
        socket.blocking().close().unwrap();
        server.stop();
    }
}

#[test]
fn the_c_echo_client_and_a_rust_server_understand_each_other() {
    let dir = programs();
    let listener = Socket::stream().unwrap();
    listener.bind(ANY.parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let rust = std::thread::spawn(move || {
        let (socket, _) = listener.blocking().accept().unwrap();
        let mut bytes = vec![0; 65536];
        loop {
            match socket.blocking().recv(&mut bytes).unwrap() {
                0 => return socket.blocking().close().unwrap(),
                n => socket.blocking().send_all(&bytes[..n]).unwrap(),
            }
        }
    });
    let data = noise(3, 2 << 20);
    assert!(c_support::well(dir, &["exs_echo_client", &addr], "soft", &data) == data);
    rust.join().unwrap();
}

fn kv_ways() -> Vec<Way> {
    ways(["kv_server", "exs_kv_server"], ["kv_client", "exs_kv_client"])
}

fn key_value(dir: &Path, clients: &str) {
    for way in kv_ways() {
        let mut server = way.serve(dir, &["-i", "3600", ANY]);
        let asked = "SET a 1 2 3\nGET a\nDEL a\nGET a\nCOUNT\nSET b \nGET b\nwhat";
        let said = way.call_well(dir, &[&server.addr], asked.as_bytes());
        let said = String::from_utf8(said).unwrap();
        let due = ["OK", "VALUE 1 2 3", "OK", "NONE", "COUNT 0", "OK", "VALUE "];
        assert_eq!(said.lines().take(7).collect::<Vec<_>>(), due);
        assert!(said.lines().nth(7).unwrap().starts_with("ERROR "), "{said}");
        // A line without an end is answered, and ends the connection.
        let out = way.call(dir, &[&server.addr], "x".repeat(5000).as_bytes());
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.is_empty() || said.starts_with("ERROR a line has at most"), "{said}");

        let load = ["-n", clients, "-r", "5", &server.addr];
        let said = String::from_utf8(way.call_well(dir, &load, b"")).unwrap();
        assert!(said.starts_with(&format!("{clients} clients, 10 requests each")), "{said}");
        server.tell("stats");
        server.expect(&format!("{} keys", clients.parse::<u32>().unwrap() + 1));
        server.tell("quit");
        server.ends();
    }
}

#[test]
fn key_value_servers_serve_hundreds() {
    key_value(programs(), "400");
}

/// However the lines of a console come: several at once, or one in pieces.
#[test]
fn a_console_is_read_line_by_line() {
    for way in kv_ways() {
        let mut server = way.serve(programs(), &["-i", "3600", ANY]);
        let stdin = server.stdin.as_mut().unwrap();
        stdin.write_all(b"what\nstats\nsta").unwrap();
        server.expect("the console knows");
        server.expect("0 clients");
        server.stdin.as_mut().unwrap().write_all(b"ts\nquit\n").unwrap();
        server.expect("0 clients");
        server.ends();
        // The end of its input is none of the server's.
        let mut server = way.serve(programs(), &["-i", "3600", ANY]);
        drop(server.stdin.take());
        assert_eq!(way.call_well(programs(), &[&server.addr], b"COUNT\n"), b"COUNT 0\n");
        server.stop();
    }
}

/// The timer's line comes without anybody's asking.
#[test]
fn key_value_servers_print_figures_by_themselves() {
    for way in kv_ways() {
        let server = way.serve(programs(), &["-i", "1", ANY]);
        server.expect("0 clients");
        server.expect("0 clients");
        server.stop();
    }
}

/// With room for fewer clients than come, the others wait.
#[test]
fn key_value_servers_with_little_room_serve_one_after_the_other() {
    for way in kv_ways() {
        let server = way.serve(programs(), &["-c", "3", "-i", "3600", ANY]);
        std::thread::scope(|s| {
            for _ in 0..6 {
                let (way, server) = (&way, &server);
                s.spawn(move || {
                    let said = way.call_well(programs(), &[&server.addr], b"GET x\n");
                    assert_eq!(said, b"NONE\n");
                });
            }
        });
        server.stop();
    }
}

#[test]
fn a_key_value_server_outlives_clients_that_are_killed() {
    let dir = programs();
    for way in kv_ways() {
        let mut server = way.serve(dir, &["-i", "3600", ANY]);
        let mut client = Command::new(dir.join(way.client[0]))
            .args(&way.client[1..])
            .args(["-n", "50", "-r", "100000000", &server.addr])
            .env("EXS_TRANSPORT", way.transport)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let asks = |server: &mut Server, what: &str, there: fn(&str) -> bool| {
            let _dog = Watchdog::new(what.to_owned());
            loop {
                server.tell("stats");
                if there(&server.expect("")) {
                    return;
                }
            }
        };
        asks(&mut server, "50 clients at work", |line| line.starts_with("50 clients, 50 keys"));
        client.kill().unwrap();
        client.wait().unwrap();
        asks(&mut server, "50 clients noticed to be gone", |line| line.starts_with("0 clients"));
        let said = way.call_well(dir, &[&server.addr], b"SET still here\nGET still\n");
        assert_eq!(said, b"OK\nVALUE here\n");
        server.stop();
    }
}

fn pingpong(dir: &Path) {
    for way in ways(["pingpong", "exs_pingpong"], ["pingpong", "exs_pingpong"]) {
        for job in [["-s", "1", "-n", "100"], ["-s", "70000", "-n", "40"]] {
            let server = way.serve(dir, &["-p", "0", "-e"]);
            let args = [&job[..], &["-e", "-c", "-p", server.port(), "127.0.0.1"]].concat();
            let said = String::from_utf8(way.call_well(dir, &args, b"")).unwrap();
            let bytes = job[1].parse::<u64>().unwrap() * job[3].parse::<u64>().unwrap() * 2;
            assert!(said.contains(&format!("{bytes} bytes in ")), "{said}");
            assert!(said.contains(&format!("{} iters in ", job[3])), "{said}");
            assert!(said.contains(" MB/s"), "{said}");
            server.ends();
        }
    }
}

#[test]
fn ping_pong_goes_to_and_fro() {
    pingpong(programs());
}

/// The options that other tests have no need of.
#[test]
fn ping_pong_takes_the_options_of_ibv_rc_pingpong() {
    let dir = programs();
    let server = Server::start(dir, &["exs_pingpong", "-p", "0", "-e", "-r", "1"], "soft");
    let line = ["exs_pingpong", "-e", "-r", "2", "-i", "1", "-m", "1024", "-l", "0", "-g", "0"];
    let said = text(
        dir,
        &[&line[..], &["-n", "10", "-p", server.port(), "127.0.0.1"]].concat(),
        "soft",
        "",
    );
    assert!(said.contains("by way of soft"), "{said}");
    server.ends();
    // A device that there is not: said, and not gone without.
    let out =
        run(dir, &["exs_pingpong", "-d", "no-such-device", "-p", "1", "127.0.0.1"], "auto", b"");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("exs_pingpong: "), "{out:?}");
}

/// The protocol, spoken by Rust.
#[test]
fn a_rust_client_plays_ping_pong_with_c() {
    let server = Server::start(programs(), &["exs_pingpong", "-p", "0", "-e"], "soft");
    let socket = Socket::new(SocketType::SeqPacket).unwrap();
    let addr = format!("127.0.0.1:{}", server.port());
    socket.blocking().connect(&*addr).unwrap();
    let hello = format!("{:<47}\n", "ping-pong 0000005000 0000000020 1");
    socket.blocking().send_all(hello.as_bytes()).unwrap();
    let mut back = vec![0; 5000];
    for round in 0..20u8 {
        socket.blocking().send_all(&[round; 5000]).unwrap();
        socket.blocking().recv_exact(&mut back).unwrap();
        assert!(back.iter().all(|b| *b == round), "round {round}");
    }
    server.ends();
}

fn remote_write(dir: &Path) {
    let server = Server::start(dir, &["remote_write", "serve", ANY, "plain text"], "soft");
    let said = text(dir, &["remote_write", &server.addr], "soft", "");
    assert_eq!(said, "lent: 4096 bytes\nfound: plain text\n");
    server.expect("written: 10 bytes");
    server.stop_at_once();
    for transport in c_support::transports() {
        let server = Server::start(dir, &["exs_remote_write", "serve", ANY, "by RDMA"], transport);
        for _ in 0..3 {
            let said = text(dir, &["exs_remote_write", &server.addr], transport, "");
            assert_eq!(said, "lent: 4096 bytes\nfound: by RDMA\n");
            server.expect("written: 7 bytes");
            server.expect("read back: 7 bytes");
        }
        server.stop_at_once();
    }
}

#[test]
fn memory_is_written_by_the_other_side() {
    remote_write(programs());
}

/// Rust's exs-rdma-write and its C twin, either way round.
#[test]
fn c_and_rust_write_into_each_others_memory() {
    let dir = programs();
    let rust = env!("CARGO_BIN_EXE_exs-rdma-write");
    for transport in c_support::transports() {
        let server =
            Server::start(dir, &["exs_remote_write", "serve", ANY, "C to Rust"], transport);
        let mut client = Command::new(rust);
        client.arg(&server.addr).env("EXS_TRANSPORT", transport);
        let out = c_support::run_command(client, b"");
        assert!(out.status.success(), "{out:?}");
        assert!(String::from_utf8_lossy(&out.stdout).contains("\"C to Rust\""), "{out:?}");
        server.stop_at_once();

        let mut server = Command::new(rust);
        server.args(["serve", "--once", "--listen", ANY, "--text", "Rust to C"]);
        let server = Server::spawn(server);
        let said = text(dir, &["exs_remote_write", &server.addr], transport, "");
        assert!(said.ends_with("found: Rust to C\n"), "{said}");
        server.ends();
    }
}

/// What a client sends that is no descriptor costs it its connection, and nobody else.
#[test]
fn a_client_that_lends_nonsense_is_told_off() {
    let dir = programs();
    let server = Server::start(dir, &["exs_remote_write", "serve", ANY], "soft");
    for nonsense in [&[0xff; 24][..], b"short"] {
        let socket = Socket::new(SocketType::SeqPacket).unwrap();
        socket.blocking().connect(&*server.addr).unwrap();
        socket.blocking().send_all(nonsense).unwrap();
        let mut answer = [0; 64];
        let got = socket.blocking().recv(&mut answer);
        assert!(matches!(got, Ok(0) | Err(_)), "{got:?}");
    }
    text(dir, &["exs_remote_write", &server.addr], "soft", "");
    server.stop_at_once();
}

fn file_ways() -> Vec<Way> {
    ways(["file_recv", "exs_file_recv"], ["file_send", "exs_file_send"])
}

fn files(dir: &Path) {
    for way in file_ways() {
        let (from, to) = (TempDir::new("from"), TempDir::new("to"));
        let into = to.0.to_str().unwrap().to_owned();
        let server = way.serve(dir, &[ANY, &into]);
        for (name, size) in [("empty", 0), ("one", 1), ("large", (5 << 20) + 17)] {
            let path = from.file(name, &noise(9, size));
            let args = [path.to_str().unwrap(), &server.addr];
            let said = String::from_utf8(way.call_well(dir, &args, b"")).unwrap();
            assert!(said.starts_with(&format!("received: {size} bytes")), "{said}");
            assert!(std::fs::read(to.0.join(name)).unwrap() == noise(9, size), "{name}");
        }
        // What is there is not replaced, and the sender is told.
        let path = from.file("one", b"another");
        let out = way.call(dir, &[path.to_str().unwrap(), &server.addr], b"");
        assert_eq!(out.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&out.stderr).contains("File exists"), "{out:?}");
        assert_eq!(to.names(), ["empty", "large", "one"]);
        assert_eq!(std::fs::read(to.0.join("one")).unwrap().len(), 1);
        server.stop_at_once();

        let server = way.serve(dir, &["-1", ANY, &into]);
        let path = from.file("last", b"last");
        way.call_well(dir, &[path.to_str().unwrap(), &server.addr], b"");
        server.ends();
    }
}

#[test]
fn files_arrive() {
    files(programs());
}

/// A sender that is not to be trusted, and one that breaks off.
#[test]
fn a_receiver_keeps_to_its_directory_and_to_whole_files() {
    let header = |name: &str, size: u64| {
        let mut h = b"FILE".to_vec();
        h.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        h.extend(size.to_be_bytes());
        h.extend(name.as_bytes());
        h
    };
    for receiver in [&["file_recv"][..], &["exs_file_recv", "-k"]] {
        let to = TempDir::new("hostile");
        let line = [receiver, &[ANY, to.0.to_str().unwrap()]].concat();
        let server = Server::start(programs(), &line, "soft");
        let cases = [
            (header("../out", 1), "no '/'"),
            (header("/etc/out", 1), "no '/'"),
            (header("..", 1), "no '.' first"),
            (header("a\x1b[2J", 1), "no control"),
            ([header("", 1), b"x".to_vec()].concat(), "no file transfer"),
            ([&b"FILE"[..], &[0xff; 12], &[b'x'; 100]].concat(), "no file transfer"),
            (b"GET / HTTP/1.0\r\n\r\n".to_vec(), "no file transfer"),
            ([header("short", 10), b"12345".to_vec()].concat(), "in the middle"),
            ([header("long", 2), b"12345".to_vec()].concat(), "more than"),
            (Vec::new(), "in the middle"),
        ];
        for (bytes, why) in cases {
            let mut tcp = TcpStream::connect(&server.addr).unwrap();
            tcp.write_all(&bytes).unwrap();
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("refused: ") && answer.contains(why), "{answer}: {why}");
        }
        assert!(to.names().is_empty(), "{:?}", to.names());
        server.stop_at_once();
    }
}

/// Through two gateways: TCP to EXS, and back to TCP.
fn gateways(dir: &Path) {
    for transport in c_support::transports() {
        let server = Server::start(dir, &["echo_server", ANY], "soft");
        let far = Server::start(dir, &["exs-gateway", "-r", ANY, &server.addr], transport);
        let near = Server::start(dir, &["exs-gateway", ANY, &far.addr], transport);
        std::thread::scope(|s| {
            for i in 0..6 {
                let near = &near;
                s.spawn(move || {
                    let data = noise(i, 1 << 20);
                    let back = c_support::well(dir, &["echo_client", &near.addr], "soft", &data);
                    assert!(back == data);
                });
            }
        });
        // Killed in the middle: the gateways go on.
        let mut client = Command::new(dir.join("echo_client"))
            .arg(&near.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        client.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!(c_support::well(dir, &["echo_client", &near.addr], "soft", b"!"), b"!");
        // Nobody behind it: the client sees its connection end, without having had anything.
        server.stop();
        let out = run(dir, &["echo_client", &near.addr], "soft", b"!");
        assert_eq!(out.status.code(), Some(1), "{out:?}");
        near.stop();
        far.stop();
    }
}

#[test]
fn gateways_join_tcp_and_exs() {
    gateways(programs());
}

/// A signal ends each server in good order also while it has clients.
#[test]
fn servers_with_clients_end_when_told_to() {
    let dir = programs();
    let lines = [
        ["echo_server", "-k"],
        ["exs_echo_server", "-k"],
        ["kv_server", "-k"],
        ["exs_kv_server", "-k"],
        ["exs_http_server", "-k"],
        ["http_server", "-k"],
    ];
    for [program, kernel] in lines {
        let args = if program.starts_with("exs_") {
            vec![program, kernel, ANY]
        } else {
            vec![program, ANY]
        };
        for told in [Signal::TERM, Signal::INT] {
            let server = Server::start(dir, &args, "soft");
            let mut clients: Vec<TcpStream> =
                (0..5).map(|_| TcpStream::connect(&server.addr).unwrap()).collect();
            for c in &mut clients {
                c.write_all(b"half a request").unwrap();
            }
            c_support::signal(&server.child, told);
            server.ends();
        }
    }
    for transport in c_support::transports() {
        for program in ["exs_echo_server", "exs_kv_server", "exs_http_server"] {
            let server = Server::start(dir, &[program, ANY], transport);
            let clients: Vec<Socket> = (0..5).map(|_| Socket::stream().unwrap()).collect();
            for c in &clients {
                c.blocking().connect(&*server.addr).unwrap();
                c.blocking().send_all(b"half a request").unwrap();
            }
            server.stop();
        }
    }
}

#[test]
fn wrong_arguments_are_answered_by_the_usage() {
    let dir = programs();
    for program in [
        "echo_server",
        "exs_echo_server",
        "echo_client",
        "exs_echo_client",
        "kv_server",
        "exs_kv_server",
        "kv_client",
        "exs_kv_client",
        "http_server",
        "exs_http_server",
        "pingpong",
        "exs_pingpong",
        "remote_write",
        "exs_remote_write",
        "file_send",
        "exs_file_send",
        "file_recv",
        "exs_file_recv",
        "exs-gateway",
    ] {
        for args in [&["-Z"][..], &["a", "b", "c", "d", "e", "f"]] {
            let out = run(dir, &[&[program], args].concat(), "soft", b"");
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{program} {args:?}: {said}");
            assert!(said.contains(&format!("usage: {program} ")), "{program} {args:?}: {said}");
        }
    }
    for line in [
        &["exs_kv_server", "-c", "0"][..],
        &["kv_client", "-n", "-1", "h:1"],
        &["exs_pingpong", "-s", "1x"],
        &["exs_pingpong", "-p", "65536"],
        &["exs-gateway", "-c", ""],
    ] {
        let out = run(dir, line, "soft", b"");
        assert_eq!(out.status.code(), Some(2), "{line:?}: {out:?}");
        assert!(String::from_utf8_lossy(&out.stderr).contains("a number from"), "{out:?}");
    }
    // Nobody there, or no such address: said in a sentence.
    for (line, why) in [
        (["exs_echo_client", "nowhere"], "HOST:PORT"),
        (["exs_echo_client", "127.0.0.1:1"], "refused"),
        (["exs_echo_server", "192.0.2.1:1"], "listen"),
        (["echo_client", "127.0.0.1:1"], "refused"),
    ] {
        let out = run(dir, &line, "soft", b"");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line:?}: {said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{line:?}: {said}");
    }
}

#[test]
fn a_second_compiler_has_nothing_to_say_either() {
    if has("clang") {
        make("clang", &["CC=clang", "CFLAGS=-O1"]);
    }
}

/// All of it once more with the address and the undefined-behaviour sanitizer in the programs;
/// leaks count.
#[test]
fn nothing_is_found_by_sanitizers() {
    let options = "SANITIZE=-fsanitize=address,undefined -fno-sanitize-recover=all";
    let dir = &make("sanitized", &["CFLAGS=-O1 -g", options]);
    echo(dir, 500_000);
    key_value(dir, "40");
    pingpong(dir);
    remote_write(dir);
    files(dir);
    gateways(dir);
}
