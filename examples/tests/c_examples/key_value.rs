//! The key-value servers and their clients.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ANY;
use crate::support::{Server, Watchdog, Way, programs, ways};

fn kv_ways() -> Vec<Way> {
    ways(["kv_server", "exs_kv_server"], ["kv_client", "exs_kv_client"])
}

pub(crate) fn key_value(dir: &Path, clients: &str) {
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
        // And one client after the other, each of which ends in good order: a server that sits
        // in an epoll of its own must notice what comes by shared memory too.
        for _ in 0..10 {
            let said = way.call_well(programs(), &[&server.addr], b"COUNT\n");
            assert_eq!(said, b"COUNT 0\n");
        }
        server.stop();
    }
}

/// The timer's line comes without a command.
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
