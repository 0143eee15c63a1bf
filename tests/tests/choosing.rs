//! Choosing a device, on a host with several: pretended ones, each with a network of
//! its own inside of 127/8 and port numbers of its own, as RoCE has.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exs::{
    Error, EventKind, EventQueue, Interest, Options, RecvFlags, Rights, Socket, SocketType,
    Transport,
};
use exs_tests::fake::{self, Control, Deed, Spec};
use exs_tests::harness::{Ledger, Watchdog, accepted};

const SERVER: IpAddr = ip([127, 10, 0, 1]);

const fn ip(octets: [u8; 4]) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]))
}

fn network(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(a) if a.octets()[0] == 127 => a.octets()[1],
        _ => 0,
    }
}

/// The devices: roce0 is at 127.10/16, roce1 at 127.11/16, frail (which a test
/// removes) at 127.12/16, tight (which has receives for two connections) at 127.13/16.
fn devices() -> &'static [Arc<Control>; 4] {
    static DEVICES: OnceLock<[Arc<Control>; 4]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let controls: [Arc<Control>; 4] = Default::default();
        let spec = |i: usize, name, owns| Spec {
            name,
            owns,
            ports: u16::try_from(i + 1).unwrap(),
            caps: |_| {},
            control: Arc::clone(&controls[i]),
        };
        let tight = |caps: &mut exs::rnic::Caps| {
            (caps.srq_waits, caps.max_srq_wr, caps.max_send_wr) = (false, 16, 64);
        };
        fake::install(&[
            spec(0, "roce0", |a| network(a) == 10),
            spec(1, "roce1", |a| network(a) == 11),
            spec(2, "frail", |a| network(a) == 12),
            Spec { caps: tight, ..spec(3, "tight", |a| network(a) == 13) },
        ]);
        controls
    })
}

fn roce0() -> &'static Control {
    &devices()[0]
}

fn options(transport: Transport) -> Options {
    devices();
    Options::default().with_transport(transport).with_device(None)
}

fn socket(transport: Transport) -> Socket {
    Socket::with_options(SocketType::Stream, options(transport)).unwrap()
}

fn on_device(name: &str, transport: Transport) -> Socket {
    let options = options(transport).with_device(Some(name.to_owned()));
    Socket::with_options(SocketType::Stream, options).unwrap()
}

/// A listener on every address, and its port.
fn listener(transport: Transport) -> (Socket, u16) {
    let listener = socket(transport);
    listener.bind("0.0.0.0:0".parse().unwrap()).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.local_addr().unwrap();
    assert!(addr.ip().is_unspecified() && addr.port() != 0, "{addr}");
    (listener, addr.port())
}

/// Connects, accepts, and says something each way: both ends.
fn join(client: Socket, listener: &Socket, addr: SocketAddr) -> (Socket, Socket) {
    client.blocking().connect(addr).unwrap();
    let (server, peer) = listener.blocking().accept().unwrap();
    assert_eq!(client.peer_addr().unwrap(), addr);
    assert_eq!(server.local_addr().unwrap(), addr);
    assert_eq!(client.local_addr().unwrap(), peer);
    let mut got = [0; 5];
    client.blocking().send_all(b"there").unwrap();
    server.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
    server.blocking().send_all(b"again").unwrap();
    client.blocking().recv_exact(&mut got).unwrap();
    assert_eq!(&got, b"again");
    (client, server)
}

fn name(socket: &Socket) -> String {
    socket.transport().expect("it is connected").to_string()
}

fn reason(socket: &Socket) -> String {
    socket.transport().expect("it is connected").reason
}

fn failure(client: &Socket, addr: SocketAddr) -> Error {
    client.blocking().connect(addr).expect_err("there is no listener to take it")
}

#[test]
fn a_connection_goes_by_the_device_on_its_way() {
    let _dog = Watchdog::new("a_connection_goes_by_the_device_on_its_way");
    let (listener, port) = listener(Transport::Auto);
    assert!(listener.transport().is_none());
    for (network, device) in [(10, "roce0"), (11, "roce1")] {
        let addr = SocketAddr::new(ip([127, network, 0, 1]), port);
        let (client, server) = join(socket(Transport::Auto), &listener, addr);
        assert_eq!(name(&client), format!("verbs ({device})"));
        assert_eq!(name(&server), format!("verbs ({device})"));
        assert!(reason(&client).contains(&format!("the way to {addr} goes by it")));
        assert_eq!(reason(&server), "the peer came by it");
        client.blocking().close().unwrap();
    }
}

#[test]
fn addresses_that_no_device_reaches_go_by_software() {
    let _dog = Watchdog::new("addresses_that_no_device_reaches_go_by_software");
    let (listener, port) = listener(Transport::Auto);
    let addr = SocketAddr::new(ip([127, 0, 0, 1]), port);
    let (client, server) = join(socket(Transport::Auto), &listener, addr);
    assert_eq!((name(&client).as_str(), name(&server).as_str()), ("soft", "soft"));
    assert!(reason(&client).contains("roce1: route: No route to host"), "{}", reason(&client));
}

/// A host with a device takes clients without one.
#[test]
fn software_clients_reach_every_address() {
    let _dog = Watchdog::new("software_clients_reach_every_address");
    let (listener, port) = listener(Transport::Auto);
    for addr in [SERVER, ip([127, 0, 0, 1])] {
        let addr = SocketAddr::new(addr, port);
        let (client, server) = join(socket(Transport::Soft), &listener, addr);
        assert_eq!((name(&client).as_str(), name(&server).as_str()), ("soft", "soft"));
        assert_eq!(reason(&client), "it was asked for");
    }
}

#[test]
fn pinned_means_nothing_else() {
    let _dog = Watchdog::new("pinned_means_nothing_else");
    let (verbs, port) = listener(Transport::Verbs);
    let addr = SocketAddr::new(SERVER, port);
    let error = failure(&socket(Transport::Soft), addr);
    assert_eq!(error.errno(), libc::ECONNREFUSED, "{error}");
    let (client, _server) = join(socket(Transport::Verbs), &verbs, addr);
    assert_eq!(name(&client), "verbs (roce0)");

    let elsewhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let error = failure(&socket(Transport::Verbs), elsewhere);
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    assert!(error.to_string().contains("no RDMA device has a way to 127.0.0.1:1"), "{error}");

    let listener = socket(Transport::Verbs);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let error = listener.listen(1).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL, "{error}");
    assert!(error.to_string().contains("RDMA device that has this address"), "{error}");
}

#[test]
fn a_listener_on_one_address_is_on_its_devices() {
    let _dog = Watchdog::new("a_listener_on_one_address_is_on_its_devices");
    let listener = socket(Transport::Auto);
    listener.bind(SocketAddr::new(SERVER, 0)).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.local_addr().unwrap();
    for (transport, want) in [(Transport::Verbs, "verbs (roce0)"), (Transport::Soft, "soft")] {
        let (client, server) = join(socket(transport), &listener, addr);
        assert_eq!((name(&client).as_str(), name(&server).as_str()), (want, want));
    }
}

#[test]
fn after_a_device_that_fails_comes_the_next() {
    let _dog = Watchdog::new("after_a_device_that_fails_comes_the_next");
    let (listener, port) = listener(Transport::Auto);
    for (i, (deed, why)) in [
        (Deed::Refusal, "roce0: connect: Connection refused"),
        (Deed::Failure, "roce0: connect: Network is down"),
        (Deed::Silence, "roce0: no answer within 500ms"),
    ]
    .into_iter()
    .enumerate()
    {
        let there = ip([127, 10, 1, u8::try_from(i).unwrap()]);
        roce0().at(there, deed);
        let client = socket(Transport::Auto);
        let connect_timeout = Duration::from_millis(1500);
        client.set_options(&client.options().with_connect_timeout(connect_timeout)).unwrap();
        let (client, _server) = join(client, &listener, SocketAddr::new(there, port));
        assert_eq!(name(&client), "soft");
        assert!(reason(&client).contains(why), "{}", reason(&client));
        assert_eq!(roce0().tried(there), [Duration::from_millis(500)]);
    }
}

#[test]
fn the_error_names_every_attempt() {
    let _dog = Watchdog::new("the_error_names_every_attempt");
    let unused = TcpListener::bind("127.10.2.1:0").unwrap().local_addr().unwrap();
    roce0().at(unused.ip(), Deed::Failure);
    let client = socket(Transport::Auto);
    let error = failure(&client, unused);
    assert_eq!(error.errno(), libc::ECONNREFUSED);
    let text = error.to_string();
    assert!(text.contains("(before that, by roce0: connect: Network is down"), "{text}");
    assert!(client.transport().is_none());

    // The socket may be used again.
    let (listener, port) = listener(Transport::Auto);
    let (client, _server) = join(client, &listener, SocketAddr::new(SERVER, port));
    assert_eq!(name(&client), "verbs (roce0)");

    // Pinned: the only attempt, with all the time; its error is the call's.
    let pinned = socket(Transport::Verbs);
    assert_eq!(failure(&pinned, unused).errno(), libc::ENETDOWN);
}

/// An EXS peer that says no has answered for all devices. The software RNIC would
/// find no listener.
#[test]
fn a_refusal_is_final() {
    let _dog = Watchdog::new("a_refusal_is_final");
    let listener = Socket::with_options(SocketType::SeqPacket, options(Transport::Verbs)).unwrap();
    listener.bind(SocketAddr::new(SERVER, 0)).unwrap();
    listener.listen(8).unwrap();
    let error = failure(&socket(Transport::Auto), listener.local_addr().unwrap());
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("SEQPACKET"), "{error}");
}

#[test]
fn a_device_can_be_named() {
    let _dog = Watchdog::new("a_device_can_be_named");
    let (listener, port) = listener(Transport::Auto);
    let addr = SocketAddr::new(SERVER, port);
    let (client, _) = join(on_device("roce0", Transport::Auto), &listener, addr);
    assert_eq!(name(&client), "verbs (roce0)");
    let (client, _) = join(on_device("roce1", Transport::Auto), &listener, addr);
    assert_eq!(name(&client), "soft");
    assert!(failure(&on_device("roce1", Transport::Verbs), addr).to_string().contains("roce1"));
    for transport in [Transport::Auto, Transport::Verbs] {
        let error = failure(&on_device("mlx5_0", transport), addr);
        assert_eq!(error.errno(), libc::ENODEV);
        let text = error.to_string();
        assert!(text.contains("no RDMA device is called mlx5_0: there is roce0, roce1"), "{text}");
    }
}

#[test]
fn an_attempt_that_waits_can_be_ended() {
    let _dog = Watchdog::new("an_attempt_that_waits_can_be_ended");
    let there = ip([127, 10, 3, 1]);
    roce0().at(there, Deed::Silence);
    let addr = SocketAddr::new(there, 1);
    for (how, errno) in [(0, libc::ECANCELED), (1, libc::ECONNABORTED), (2, libc::ECANCELED)] {
        let client = socket(Transport::Auto);
        let mut ledger = Ledger::new();
        let token = ledger.post("connect", |q, t| client.connect(q, t, addr));
        match how {
            0 => assert_eq!(client.cancel(token), 1),
            1 => client.abort(),
            _ => client.blocking().close().unwrap(),
        }
        let event = ledger.wait(token);
        assert_eq!((event.kind(), event.error().unwrap().errno()), (EventKind::Connect, errno));
        ledger.finish();
    }
    // There is a next device, so that this one has not the 30 s.
    assert_eq!(roce0().tried(there), [Duration::from_secs(3); 3]);
}

#[test]
fn time_for_connecting_is_for_all_attempts() {
    let _dog = Watchdog::new("time_for_connecting_is_for_all_attempts");
    // TCP connections are taken here, but the listener says nothing.
    let mute = TcpListener::bind("127.10.4.1:0").unwrap();
    let addr = mute.local_addr().unwrap();
    roce0().at(addr.ip(), Deed::Silence);
    let client = socket(Transport::Auto);
    let connect_timeout = Duration::from_millis(300);
    client.set_options(&client.options().with_connect_timeout(connect_timeout)).unwrap();
    let error = failure(&client, addr);
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    let text = error.to_string();
    assert!(text.contains("by roce0: no answer within 100ms"), "{text}");
    let Error::Connect { cause: exs::RnicError::Timeout(rest), .. } = error else {
        panic!("{text}")
    };
    assert!(rest <= Duration::from_millis(200), "{text}");
}

#[test]
fn a_thread_connects_to_itself() {
    let _dog = Watchdog::new("a_thread_connects_to_itself");
    let (listener, port) = listener(Transport::Auto);
    let fallback = ip([127, 10, 5, 1]);
    roce0().at(fallback, Deed::Refusal);
    for (there, want) in [(SERVER, "verbs (roce0)"), (fallback, "soft")] {
        let client = socket(Transport::Auto);
        let mut ledger = Ledger::new();
        let accept = ledger.post("accept", |q, t| listener.accept(q, t));
        let addr = SocketAddr::new(there, port);
        let connect = ledger.post("connect", |q, t| client.connect(q, t, addr));
        ledger.wait_ok(connect);
        let (server, _) = accepted(ledger.wait_ok(accept)).unwrap();
        assert_eq!((name(&client).as_str(), name(&server).as_str()), (want, want));
        ledger.finish();
    }
}

#[test]
fn a_listener_has_its_port_everywhere() {
    let _dog = Watchdog::new("a_listener_has_its_port_everywhere");
    let (first, port) = listener(Transport::Auto);
    let any = SocketAddr::new(ip([0; 4]), port);
    for (transport, addr) in [
        (Transport::Auto, any),
        (Transport::Soft, any),
        (Transport::Verbs, any),
        (Transport::Verbs, SocketAddr::new(SERVER, port)),
    ] {
        let other = socket(transport);
        let error = other.bind(addr).and_then(|()| other.listen(1)).unwrap_err();
        assert_eq!(error.errno(), libc::EADDRINUSE, "{transport} {addr}: {error}");
    }
    // Listeners opened before the port was found in use are closed again; and closing
    // closes all.
    first.blocking().close().unwrap();
    let again = socket(Transport::Auto);
    again.bind(any).unwrap();
    again.listen(8).unwrap();
    for there in [SERVER, ip([127, 0, 0, 1])] {
        join(socket(Transport::Auto), &again, SocketAddr::new(there, port));
    }
}

#[test]
fn a_device_that_is_removed_ends_what_it_carried() {
    let _dog = Watchdog::new("a_device_that_is_removed_ends_what_it_carried");
    let (everywhere, port) = listener(Transport::Auto);
    let addr = SocketAddr::new(ip([127, 12, 0, 1]), port);
    let (client, server) = join(socket(Transport::Auto), &everywhere, addr);
    assert_eq!(name(&client), "verbs (frail)");
    let only = on_device("frail", Transport::Verbs);
    only.bind(SocketAddr::new(addr.ip(), 0)).unwrap();
    only.listen(8).unwrap();
    let silent = ip([127, 12, 0, 2]);
    devices()[2].at(silent, Deed::Silence);
    let late = on_device("frail", Transport::Verbs);

    let mut ledger = Ledger::new();
    let recv = ledger.post("recv", |q, t| server.recv(q, t, vec![0; 1 << 20], RecvFlags::WAITALL));
    let accept = ledger.post("accept", |q, t| only.accept(q, t));
    let connect = ledger.post("connect", |q, t| late.connect(q, t, SocketAddr::new(silent, 1)));
    let poll = ledger.post("poll", |q, t| only.poll(q, t, Interest::READABLE));
    devices()[2].remove();
    assert_eq!(ledger.wait(recv).error().unwrap().errno(), libc::ENODEV);
    assert_eq!(ledger.wait(accept).error().unwrap().errno(), libc::ENODEV);
    assert_eq!(ledger.wait(connect).error().unwrap().errno(), libc::ENODEV);
    assert!(ledger.wait(poll).readiness().error, "there is nothing to wait for");
    // The other end may have had the news while nothing was posted to it.
    let send = ledger.try_post("send", |q, t| client.send(q, t, *b"x"));
    if let Ok(token) = send {
        assert_eq!(ledger.wait(token).error().unwrap().errno(), libc::ENODEV);
    }
    ledger.finish();

    // The listener goes on by the others, and new connections do, too.
    let (client, _server) = join(socket(Transport::Auto), &everywhere, addr);
    assert_eq!(name(&client), "soft");
    let error = failure(&on_device("frail", Transport::Verbs), addr);
    assert!(error.to_string().contains("the RDMA device frail was removed"), "{error}");
    let queue = exs::EventQueue::new(1).unwrap();
    assert!(only.accept(&queue, exs::Token(1)).is_err(), "there is nothing to accept from");
}

/// Where an empty receive queue would cost connections, no connection is made that it has no
/// room for.
#[test]
fn receives_are_never_promised_twice() {
    let _dog = Watchdog::new("receives_are_never_promised_twice");
    let (listener, port) = listener(Transport::Auto);
    let addr = SocketAddr::new(ip([127, 13, 0, 1]), port);
    let tight = &devices()[3];
    tight.limit_srqs(1);
    let (client, server) = join(socket(Transport::Auto), &listener, addr);
    assert_eq!(name(&client), "verbs (tight)");
    let error = failure(&socket(Transport::Verbs), addr);
    assert!(error.to_string().contains("24 is over this RNIC's limit of 16"), "{error}");
    assert_eq!(error.errno(), libc::ENOBUFS);
    let (other, _) = join(socket(Transport::Auto), &listener, addr);
    assert_eq!(name(&other), "soft");
    // When it is closed there is room again.
    let (a, b) = (client.blocking(), server.blocking());
    std::thread::scope(|s| {
        s.spawn(|| b.close().unwrap());
        a.close().unwrap();
    });
    drop((client, server));
    loop {
        // The queue pairs go in the background.
        let client = socket(Transport::Auto);
        client.blocking().connect(addr).unwrap();
        let _server = listener.blocking().accept().unwrap();
        if name(&client) == "verbs (tight)" {
            break;
        }
    }
    // Further connections get queues of their own, each for two ends, which end with them.
    tight.limit_srqs(0);
    let pairs: Vec<_> = (0..5).map(|_| join(socket(Transport::Verbs), &listener, addr)).collect();
    assert!(tight.objects().srqs >= 5, "{:?}", tight.objects());
    for (n, (client, server)) in (1u8..).zip(&pairs) {
        client.blocking().send_all(&[n; 64]).unwrap();
        let mut got = [0; 64];
        server.blocking().recv_exact(&mut got).unwrap();
        assert_eq!(got, [n; 64]);
    }
    drop(pairs);
    while tight.objects().srqs > 1 {
        std::thread::yield_now();
    }
}

/// A device hands the key of a closed window out again, while the program still has the export
/// whose time is over.
#[test]
fn a_key_that_is_used_again_is_another_export() {
    let _dog = Watchdog::new("a_key_that_is_used_again_is_another_export");
    let (listener, port) = listener(Transport::Auto);
    let addr = SocketAddr::new(ip([127, 10, 0, 7]), port);
    let (client, _server) = join(socket(Transport::Auto), &listener, addr);
    assert_eq!(name(&client), "verbs (roce0)");
    roce0().save_keys();
    let export = |bytes: Vec<u8>, lifetime| client.export(bytes, Rights::READ, lifetime).unwrap();
    let old = export(vec![1; 10], Some(Duration::from_millis(1)));
    let key = old.descriptor().key();
    let queue = EventQueue::new(1).unwrap();
    let mut others = Vec::new();
    let new = loop {
        let new = export(vec![2; 20], None);
        if new.descriptor().key() == key {
            break new;
        }
        others.push(new);
        assert!(queue.dequeue(1, Some(Duration::from_millis(1))).unwrap().is_empty());
    };
    let mut byte = [0];
    old.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    assert_eq!(old.revoke_blocking().unwrap()[..], [1; 10]);
    new.read_at(19, &mut byte).unwrap();
    assert_eq!(new.revoke_blocking().unwrap()[..], [2; 20]);
}
