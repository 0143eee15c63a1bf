//! The proxy, as two processes: TCP to EXS, and EXS to TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A proxy, which is killed when it is dropped, and its address.
struct Proxy(Child, String);

impl Proxy {
    fn start(listen: &str, target: &str) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_exs-proxy"));
        let mut child = command.args([listen, target]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening at ").expect("the address").to_owned();
        Proxy(child, addr)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn tcp_goes_through_exs_to_tcp() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let back = Proxy::start("exs:127.0.0.1:0", &server.local_addr().unwrap().to_string());
    let front = Proxy::start("127.0.0.1:0", &format!("exs:{}", back.1));

    let serve = std::thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = server.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        }
    });
    let sent: Vec<u8> = (0..2_000_000_u32).map(|i| (i % 251) as u8).collect();
    for _ in 0..3 {
        let mut client = TcpStream::connect(&front.1).unwrap();
        let mut reader = client.try_clone().unwrap();
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        });
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert!(read.join().unwrap() == sent);
    }
    serve.join().unwrap();
}
