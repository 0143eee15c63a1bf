//! The HTTP servers in C, asked by curl: over plain sockets, over kernel sockets through EXS,
//! and over EXS behind a gateway.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::ANY;
use crate::support::{Server, TempDir, Watchdog, has, noise, programs, run_command, transports};

/// A server, and the gateway before it if it needs one.
struct Site {
    server: Server,
    gateway: Option<Server>,
}

impl Site {
    fn addr(&self) -> &str {
        self.gateway.as_ref().map_or(&self.server.addr, |g| &g.addr)
    }

    fn curl(&self, args: &[&str], path: &str) -> String {
        let mut c = Command::new("curl");
        c.args(["--silent", "--path-as-is", "--max-time", "60"]).args(args);
        c.arg(format!("http://{}{path}", self.addr()));
        let out = run_command(c, b"");
        assert!(out.status.success(), "{path} {args:?}: {out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The status and the number of bytes of an answer.
    fn status(&self, args: &[&str], path: &str) -> String {
        let asked = ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}"];
        self.curl(&[&asked[..], args].concat(), path)
    }

    fn stop(self) {
        if let Some(gateway) = self.gateway {
            gateway.stop();
        }
        self.server.stop();
    }
}

fn sites(dir: &std::path::Path, root: &str) -> Vec<Site> {
    let start = |line: &[&str]| Server::start(dir, &[line, &[ANY, root]].concat(), "soft");
    let mut all = vec![
        Site { server: start(&["http_server"]), gateway: None },
        Site { server: start(&["exs_http_server", "-k"]), gateway: None },
    ];
    for transport in transports() {
        let server = Server::start(dir, &["exs_http_server", ANY, root], transport);
        let gateway = Server::start(dir, &["exs-gateway", ANY, &server.addr], transport);
        all.push(Site { server, gateway: Some(gateway) });
    }
    all
}

/// A directory to serve, with what could be reached by mistake beside it.
fn tree() -> (TempDir, String) {
    let top = TempDir::new("www");
    top.file("secret", b"secret");
    let root = top.0.join("root");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::create_dir_all(root.join("bare")).unwrap();
    std::fs::write(root.join("index.html"), "<p>top\n").unwrap();
    std::fs::write(root.join("sub/index.html"), "<p>sub\n").unwrap();
    std::fs::write(root.join("a b.txt"), "hello\n").unwrap();
    std::fs::write(root.join("empty"), "").unwrap();
    std::fs::write(root.join("large"), noise(4, 9_000_000)).unwrap();
    symlink("../secret", root.join("link")).unwrap();
    symlink("..", root.join("up")).unwrap();
    let root = root.to_str().unwrap().to_owned();
    (top, root)
}

fn asked_for(site: &Site, top: &TempDir) {
    for (path, due) in [
        ("/a%20b.txt", "200 6"),
        ("/a%20b.txt?query=1", "200 6"),
        ("/", "200 7"),
        ("/sub", "200 7"),
        ("/sub/", "200 7"),
        ("/./sub//index.html", "200 7"),
        ("/empty", "200 0"),
        ("/large", "200 9000000"),
        ("/bare", "404 14"),
        ("/none", "404 14"),
        ("/none/../index.html", "404 14"),
        // A path to the outside is refused, however it is spelt.
        ("/../secret", "403 14"),
        ("/sub/../../secret", "403 14"),
        ("/%2e%2e/secret", "403 14"),
        ("/..%2fsecret", "403 14"),
        ("/link", "403 14"),
        ("/up/secret", "403 14"),
        ("/%", "400 16"),
        ("/%00", "400 16"),
    ] {
        assert_eq!(site.status(&[], path), due, "{path}");
    }
    assert!(site.curl(&["--head"], "/sub").contains("text/html"));
    let head = site.curl(&["--head"], "/large");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("Content-Length: 9000000"));
    assert_eq!(site.status(&["-X", "DELETE"], "/large"), "405 23");
    assert_eq!(site.status(&["--data", "x"], "/large"), "405 23");

    let large = noise(4, 9_000_000);
    let copy = top.0.join("copy");
    for (range, from, to) in [
        ("0-", 0, 9_000_000),
        ("100-199", 100, 200),
        ("-5", 8_999_995, 9_000_000),
        ("8999999-99999999", 8_999_999, 9_000_000),
        ("1000000-6000000", 1_000_000, 6_000_001),
    ] {
        site.curl(&["--range", range, "--output", copy.to_str().unwrap()], "/large");
        assert!(std::fs::read(&copy).unwrap() == large[from..to], "{range}");
    }
    assert!(site.status(&["--range", "9000000-"], "/large").starts_with("416 "));
    assert!(site.status(&["--range", "0-0"], "/empty").starts_with("416 "));
    // A range that the server does not understand does not count: the whole file.
    assert_eq!(site.status(&["--range", "5-1"], "/a%20b.txt"), "200 6");
    assert_eq!(site.status(&["--range", "0-1,3-4"], "/a%20b.txt"), "200 6");
    assert!(site.curl(&["-r", "1-2", "-i"], "/a%20b.txt").contains("Content-Range: bytes 1-2/6"));

    // One connection for all three.
    let url = format!("http://{}/large", site.addr());
    let again = ["--verbose", "--stderr", "-", "--output", "/dev/null", "--output", "/dev/null"];
    let said = site.curl(&[&again[..], &["--output", "/dev/null", &url, &url]].concat(), "/");
    assert_eq!(said.to_lowercase().matches("re-using existing connection").count(), 2, "{said}");
    assert!(site.curl(&["--http1.0", "--include"], "/").contains("Connection: close"));
}

pub(crate) fn all_sites(dir: &std::path::Path) {
    let (top, root) = tree();
    for site in sites(dir, &root) {
        asked_for(&site, &top);
        site.stop();
    }
}

#[test]
fn curl_gets_what_is_there_and_nothing_else() {
    if has("curl") {
        all_sites(programs());
    }
}

#[test]
fn many_ask_at_once() {
    if !has("curl") {
        return;
    }
    let (_top, root) = tree();
    for site in sites(programs(), &root) {
        std::thread::scope(|s| {
            for _ in 0..12 {
                let site = &site;
                s.spawn(move || assert_eq!(site.status(&[], "/large"), "200 9000000"));
            }
        });
        site.stop();
    }
}

/// What no curl would send: several requests at once, in pieces, malformed, too long.
#[test]
fn requests_by_hand() {
    let (_top, root) = tree();
    let _dog = Watchdog::new("requests by hand".to_owned());
    let get = "GET /a%20b.txt HTTP/1.1\r\nHost: x\r\n\r\n";
    for site in sites(programs(), &root) {
        let connect = || BufReader::new(TcpStream::connect(site.addr()).unwrap());
        // Two and a half, and then the rest byte by byte; the last one closes.
        let mut tcp = connect();
        let (half, rest) = get.split_at(20);
        tcp.get_mut().write_all(format!("{get}{get}{half}").as_bytes()).unwrap();
        for b in rest.replace("Host: x", "Host: x\r\nConnection: close").bytes() {
            tcp.get_mut().write_all(&[b]).unwrap();
        }
        let mut all = String::new();
        tcp.read_to_string(&mut all).unwrap();
        assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 3, "{all}");
        assert_eq!(all.matches("\r\n\r\nhello\n").count(), 3, "{all}");

        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n", "y".repeat(9000));
        for (request, due) in [
            ("GET /\r\n\r\n", "400"),
            ("nonsense\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\n\r\n", "400"), // no Host
            ("GET / HTTP/1.1\r\nHost: x\r\nfolded\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", "400"),
            ("GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
            ("GET x HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
            ("GET / HTTP/2\r\nHost: x\r\n\r\n", "505"),
            (&long, "431"),
        ] {
            let mut tcp = connect();
            // A server that refuses may have closed before all is written.
            let _ = tcp.get_mut().write_all(request.as_bytes());
            let mut line = String::new();
            tcp.read_line(&mut line).unwrap();
            assert!(line.starts_with(&format!("HTTP/1.1 {due} ")), "{request:?}: {line}");
        }
        // A client that leaves in the middle of a long answer, and a client that never asks.
        let mut tcp = connect();
        tcp.get_mut().write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        tcp.fill_buf().unwrap();
        drop(tcp);
        let _silent = connect();
        let mut tcp = connect();
        tcp.get_mut().write_all(get.as_bytes()).unwrap();
        let mut line = String::new();
        tcp.read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n");
        site.stop();
    }
}
