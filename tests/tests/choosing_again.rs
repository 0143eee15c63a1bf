//! Choosing a device with what is known from before: peers that were silent, devices
//! that were removed and come back. The devices are fakes, as in `choosing`.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exs::{MemoryRegion, Options, RecvFlags, Socket, SocketType, Transport};
use exs_tests::fake::{self, Control, Deed, Spec};
use exs_tests::harness::{Ledger, Watchdog};

const fn ip(octets: [u8; 4]) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]))
}

/// steady is at 127.10/16, guest (which comes and goes) at 127.12/16.
fn devices() -> &'static [Arc<Control>; 2] {
    static DEVICES: OnceLock<[Arc<Control>; 2]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let controls: [Arc<Control>; 2] = Default::default();
        let spec = |i: usize, name, owns| Spec {
            name,
            owns,
            ports: u16::try_from(i + 1).unwrap(),
            caps: |_| {},
            control: Arc::clone(&controls[i]),
        };
        fake::install(&[
            spec(0, "steady", |a| matches!(a, IpAddr::V4(a) if a.octets()[1] == 10)),
            spec(1, "guest", |a| matches!(a, IpAddr::V4(a) if a.octets()[1] == 12)),
        ]);
        controls
    })
}

fn options(transport: Transport) -> Options {
    devices();
    let connect_timeout = Duration::from_millis(1500);
    Options::default()
        .with_transport(transport)
        .with_device(None)
        .with_connect_timeout(connect_timeout)
}

fn socket(transport: Transport) -> Socket {
    Socket::with_options(SocketType::Stream, options(transport)).unwrap()
}

fn listener() -> (Socket, u16) {
    let listener = socket(Transport::Auto);
    listener.bind("0.0.0.0:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Connects, and says something: both ends.
fn join(transport: Transport, listener: &Socket, addr: SocketAddr) -> (Socket, Socket) {
    let client = socket(transport);
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    let mut got = [0; 5];
    client.blocking().send_all(b"there").unwrap();
    server.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
    (client, server)
}

fn name(socket: &Socket) -> String {
    socket.transport().expect("it is connected").to_string()
}

#[test]
fn a_silent_peer_is_asked_last() {
    let _dog = Watchdog::new("a_silent_peer_is_asked_last");
    let (listener, port) = listener();
    let (steady, there) = (&devices()[0], ip([127, 10, 1, 1]));
    let addr = SocketAddr::new(there, port);
    steady.at(there, Deed::Silence);
    for round in 0..3 {
        let (client, _server) = join(Transport::Auto, &listener, addr);
        assert_eq!(name(&client), "soft");
        let reason = client.transport().unwrap().reason;
        let why = if round == 0 { "no answer within 500ms" } else { "did not answer by it" };
        assert!(reason.contains(why), "round {round}: {reason}");
        assert_eq!(steady.tried(there).len(), 1, "round {round}");
    }
    let ways = exs::explain(addr, &options(Transport::Auto)).unwrap();
    let names: Vec<_> = ways.iter().filter(|w| w.usable).map(|w| w.device.as_deref()).collect();
    assert_eq!(names, [Some("soft"), Some("steady")]);
    let last = &ways[ways.len() - 1].reason;
    assert!(last.contains("comes last for"), "{last}");
    // Other peers, and this one by other transports, are not concerned.
    let (other, _server) =
        join(Transport::Auto, &listener, SocketAddr::new(ip([127, 10, 1, 2]), port));
    assert_eq!(name(&other), "verbs (steady)");
    steady.heal(there);
    let (pinned, _server) = join(Transport::Verbs, &listener, addr);
    assert_eq!(name(&pinned), "verbs (steady)");
    // It has answered: the device comes first again.
    let (client, _server) = join(Transport::Auto, &listener, addr);
    assert_eq!(name(&client), "verbs (steady)");
}

#[test]
fn asked_last_is_not_unasked() {
    let _dog = Watchdog::new("asked_last_is_not_unasked");
    let (steady, there) = (&devices()[0], ip([127, 10, 2, 1]));
    // There is no TCP listener.
    let addr = TcpListener::bind(SocketAddr::new(there, 0)).unwrap().local_addr().unwrap();
    steady.at(there, Deed::Silence);
    let tell = || socket(Transport::Auto).blocking().connect(addr).unwrap_err().to_string();
    let first = tell();
    assert!(first.contains("before that, by steady: no answer within 500ms"), "{first}");
    let second = tell();
    assert!(second.contains("before that, by soft: "), "{second}");
    assert_eq!(steady.tried(there), [Duration::from_millis(500); 2], "and it has no more time");
    // A peer that is there only by the device is found all the same.
    steady.heal(there);
    let (only, port) = {
        let only = socket(Transport::Verbs);
        only.bind(SocketAddr::new(there, 0)).unwrap();
        only.listen(8).unwrap();
        let port = only.local_addr().unwrap().port();
        (only, port)
    };
    let (client, _server) = join(Transport::Auto, &only, SocketAddr::new(there, port));
    assert_eq!(name(&client), "verbs (steady)");
}

#[test]
fn a_device_that_comes_back_is_used_again() {
    let _dog = Watchdog::new("a_device_that_comes_back_is_used_again");
    let (guest, there) = (&devices()[1], ip([127, 12, 0, 1]));
    let (first, first_port) = listener();
    // Registered with each device in turn, under the same name.
    let region = MemoryRegion::new(100_000).unwrap();
    let mut kept = Vec::new();
    for round in 0..4 {
        let (listener, port) = listener();
        let addr = SocketAddr::new(there, port);
        let (client, server) = join(Transport::Auto, &listener, addr);
        assert_eq!(name(&client), "verbs (guest)", "round {round}");
        let mut ledger = Ledger::new();
        let buffer = region.buffer(..).unwrap();
        let send = ledger.post("send", |q, t| client.send(q, t, buffer));
        let mut got = vec![1; 100_000];
        server.blocking().recv_exact(&mut got).unwrap();
        assert!(got.iter().all(|&x| x == 0));
        ledger.wait_ok(send);

        let recv = ledger.post("recv", |q, t| server.recv(q, t, vec![0; 10], RecvFlags::NONE));
        guest.remove();
        assert_eq!(ledger.wait(recv).error().unwrap().errno(), libc::ENODEV);
        ledger.finish();
        let gone = socket(Transport::Verbs).blocking().connect(addr).unwrap_err();
        assert!(gone.to_string().contains("no RDMA device has a way"), "{gone}");
        // A listener goes on without it, before and after it is back.
        let (by_tcp, _server) = join(Transport::Auto, &listener, addr);
        assert_eq!(name(&by_tcp), "soft");
        guest.put_back();
        let (by_tcp, _server) = join(Transport::Auto, &listener, addr);
        assert_eq!(name(&by_tcp), "soft");
        let (by_tcp, _server) = join(Transport::Auto, &first, SocketAddr::new(there, first_port));
        assert_eq!(name(&by_tcp), "soft");
        if round % 2 == 0 {
            // Sockets that died with it are closed later than it comes back.
            kept.push((client, server));
        }
    }
    drop(kept);
    let (listener, port) = listener();
    let (client, _server) = join(Transport::Verbs, &listener, SocketAddr::new(there, port));
    assert_eq!(name(&client), "verbs (guest)");
}
