//! The pairs of programs in C, with one half of each played by Rust: what C says Rust
//! understands, and the other way round, over each transport.

use std::io::{BufRead, BufReader, Read, Write};
use std::thread::JoinHandle;

use exs::{Socket, SocketType};

use crate::ANY;
use crate::support::{Server, TempDir, noise, programs, text, transports, well};

/// A Rust server for one client; where it listens.
fn serve_one(
    kind: SocketType,
    work: impl FnOnce(&Socket) + Send + 'static,
) -> (String, JoinHandle<()>) {
    let listener = Socket::new(kind).unwrap();
    listener.bind(ANY.parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let rust = std::thread::spawn(move || {
        let (socket, _) = listener.blocking().accept().unwrap();
        work(&socket);
        socket.blocking().close().unwrap();
    });
    (addr, rust)
}

fn connect(kind: SocketType, addr: &str) -> Socket {
    let socket = Socket::new(kind).unwrap();
    socket.blocking().connect(addr).unwrap();
    socket
}

#[test]
fn a_rust_client_of_the_key_value_server() {
    for transport in transports() {
        let server = Server::start(programs(), &["exs_kv_server", "-i", "3600", ANY], transport);
        let socket = connect(SocketType::Stream, &server.addr);
        let mut lines = BufReader::new(socket.blocking()).lines();
        for (ask, answer) in
            [("SET a 1 2 3", "OK"), ("GET a", "VALUE 1 2 3"), ("DEL a", "OK"), ("GET a", "NONE")]
        {
            socket.blocking().send_all(format!("{ask}\n").as_bytes()).unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), answer, "{ask}");
        }
        drop(lines);
        socket.blocking().close().unwrap();
        server.stop();
    }
}

#[test]
fn a_rust_server_of_the_key_value_client() {
    for transport in transports() {
        let (addr, rust) = serve_one(SocketType::Stream, |socket| {
            let lines = BufReader::new(socket.blocking()).lines();
            for line in lines.map_while(Result::ok) {
                socket.blocking().send_all(format!("VALUE of {line}\n").as_bytes()).unwrap();
            }
        });
        let said = text(programs(), &["exs_kv_client", &addr], transport, "GET a\nGET b\n");
        assert_eq!(said, "VALUE of GET a\nVALUE of GET b\n");
        rust.join().unwrap();
    }
}

#[test]
fn a_rust_server_of_the_ping_pong_client() {
    for transport in transports() {
        let (addr, rust) = serve_one(SocketType::SeqPacket, |socket| {
            let mut hello = [0; 48];
            socket.blocking().recv_exact(&mut hello).unwrap();
            let hello = String::from_utf8(hello.into()).unwrap();
            let words: Vec<&str> = hello.split_whitespace().collect();
            assert_eq!(words[..3], ["ping-pong", "0000007000", "0000000030"]);
            let mut message = vec![0; 7000];
            for _ in 0..30 {
                socket.blocking().recv_exact(&mut message).unwrap();
                socket.blocking().send_all(&message).unwrap();
            }
        });
        let port = addr.rsplit_once(':').unwrap().1;
        let line = ["exs_pingpong", "-e", "-c", "-s", "7000", "-n", "30", "-p", port, "127.0.0.1"];
        let said = text(programs(), &line, transport, "");
        assert!(said.contains("30 iters in "), "{said}");
        rust.join().unwrap();
    }
}

/// The header of a file, as `incoming.h` has it.
fn header(name: &str, size: usize) -> Vec<u8> {
    let mut h = b"FILE".to_vec();
    h.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
    h.extend((size as u64).to_be_bytes());
    h.extend(name.as_bytes());
    h
}

#[test]
fn a_rust_sender_of_a_file() {
    let data = noise(5, 3 << 20);
    for transport in transports() {
        let to = TempDir::new("from-rust");
        let line = ["exs_file_recv", "-1", ANY, to.0.to_str().unwrap()];
        let server = Server::start(programs(), &line, transport);
        let socket = connect(SocketType::Stream, &server.addr);
        socket.blocking().send_all(&header("of-rust", data.len())).unwrap();
        socket.blocking().send_all(&data).unwrap();
        socket.blocking().shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        socket.blocking().read_to_string(&mut answer).unwrap();
        assert_eq!(answer, format!("received: {} bytes\n", data.len()));
        socket.blocking().close().unwrap();
        server.ends();
        assert!(std::fs::read(to.0.join("of-rust")).unwrap() == data);
    }
}

#[test]
fn a_rust_receiver_of_a_file() {
    for transport in transports() {
        let data = noise(6, 3 << 20);
        let from = TempDir::new("to-rust");
        let path = from.file("of-c", &data);
        let (addr, rust) = serve_one(SocketType::Stream, move |socket| {
            let mut all = Vec::new();
            socket.blocking().read_to_end(&mut all).unwrap();
            assert!(all == [header("of-c", data.len()), data].concat());
            socket.blocking().send_all(b"received: it all\n").unwrap();
        });
        let said =
            text(programs(), &["exs_file_send", path.to_str().unwrap(), &addr], transport, "");
        assert!(said.starts_with("received: it all"), "{said}");
        rust.join().unwrap();
    }
}

#[test]
fn a_rust_client_of_the_http_server() {
    let data = noise(7, 300_000);
    for transport in transports() {
        let root = TempDir::new("http-rust");
        root.file("page", &data);
        let line = ["exs_http_server", ANY, root.0.to_str().unwrap()];
        let server = Server::start(programs(), &line, transport);
        let socket = connect(SocketType::Stream, &server.addr);
        let ask = "GET /page HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
        socket.blocking().send_all(ask.as_bytes()).unwrap();
        let mut answer = Vec::new();
        socket.blocking().read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(&data));
        socket.blocking().close().unwrap();
        server.stop();
    }
}

#[test]
fn rust_on_either_side_of_a_gateway() {
    let (dir, data) = (programs(), noise(8, 1 << 20));
    for transport in transports() {
        // C over TCP, the gateway, Rust over EXS.
        let (addr, rust) = serve_one(SocketType::Stream, |socket| {
            let mut bytes = vec![0; 65536];
            loop {
                match socket.blocking().recv(&mut bytes).unwrap() {
                    0 => return,
                    n => socket.blocking().send_all(&bytes[..n]).unwrap(),
                }
            }
        });
        let near = Server::start(dir, &["exs-gateway", ANY, &addr], transport);
        assert!(well(dir, &["echo_client", &near.addr], "soft", &data) == data);
        rust.join().unwrap();
        near.stop();
        // Rust over EXS, the gateway, C over TCP.
        let server = Server::start(dir, &["echo_server", ANY], "soft");
        let far = Server::start(dir, &["exs-gateway", "-r", ANY, &server.addr], transport);
        let socket = connect(SocketType::Stream, &far.addr);
        let mut back = vec![0; data.len()];
        std::thread::scope(|s| {
            s.spawn(|| socket.blocking().write_all(&data).unwrap());
            socket.blocking().recv_exact(&mut back).unwrap();
        });
        assert!(back == data);
        socket.blocking().close().unwrap();
        far.stop();
        server.stop();
    }
}
