//! Trust groups: protection domains on one device, and what they leave behind. The
//! device is the software RNIC, with its objects counted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use exs::{EventQueue, MemoryRegion, Options, Rights, Socket, SocketType, Transport};
use exs_tests::fake::{self, Control, Objects, Spec};
use exs_tests::harness::{Ledger, Watchdog};

static CONTROL: LazyLock<Arc<Control>> = LazyLock::new(|| {
    let control = Arc::<Control>::default();
    let spec = Spec {
        name: "roce0",
        owns: |ip| ip.is_loopback() && ip != STRICT && ip != LOSSY,
        ports: 1,
        caps: |_| {},
        control: Arc::clone(&control),
    };
    let strict = Spec {
        name: "strict0",
        owns: |ip| ip == STRICT,
        ports: 2,
        caps: |caps| (caps.srq_waits, caps.pins) = (false, true),
        control: Arc::clone(&STRICT_CONTROL),
    };
    let lossy = Spec {
        name: "lossy0",
        owns: |ip| ip == LOSSY,
        ports: 3,
        caps: |_| {},
        control: Arc::clone(&LOSSY_CONTROL),
    };
    LOSSY_CONTROL.lose_receives();
    fake::install(&[spec, strict, lossy]);
    control
});

/// A device that must have a receive for each credit, at this address.
const STRICT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 20, 0, 1));
static STRICT_CONTROL: LazyLock<Arc<Control>> = LazyLock::new(Arc::default);
/// A device that loses a receive with each connection, at this address.
const LOSSY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 21, 0, 1));
static LOSSY_CONTROL: LazyLock<Arc<Control>> = LazyLock::new(Arc::default);

/// One test at a time: they count what there is.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn socket(group: Option<&str>) -> Socket {
    let _ = &*CONTROL;
    let (transport, trust_group) = (Transport::Verbs, group.map(str::to_owned));
    let options = Options::default().with_transport(transport).with_trust_group(trust_group);
    Socket::with_options(SocketType::Stream, options).unwrap()
}

fn listener(group: Option<&str>) -> (Socket, SocketAddr) {
    listener_at(group, Ipv4Addr::LOCALHOST.into())
}

fn listener_at(group: Option<&str>, ip: IpAddr) -> (Socket, SocketAddr) {
    let listener = socket(group);
    listener.bind(SocketAddr::new(ip, 0)).unwrap();
    listener.listen(8).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn join(client: Option<&str>, listener: &Socket, addr: SocketAddr) -> (Socket, Socket) {
    let client = socket(client);
    client.blocking().connect(addr).unwrap();
    let (server, _) = listener.blocking().accept().unwrap();
    client.blocking().send_all(b"there").unwrap();
    let mut got = [0; 5];
    server.blocking().recv_exact(&mut got).unwrap();
    (client, server)
}

/// Waits until that is what there is: queue pairs go in the background.
fn until(what: impl Fn(Objects) -> bool) {
    until_on(&CONTROL, what);
}

fn until_on(control: &Control, what: impl Fn(Objects) -> bool) {
    while !what(control.objects()) {
        std::thread::yield_now();
    }
}

/// The process's own group is there from the first connection on: its cost is known.
fn settled() -> Objects {
    let (listener, addr) = listener(None);
    drop(join(None, &listener, addr));
    drop(listener);
    until(|o| o.qps == 0);
    CONTROL.objects()
}

#[test]
fn without_groups_there_is_one_domain() {
    let (_alone, _dog) = (alone(), Watchdog::new("without_groups_there_is_one_domain"));
    settled();
    let (first, at) = listener(None);
    let (second, there) = listener(None);
    let pairs = [join(None, &first, at), join(None, &second, there)];
    let o = CONTROL.objects();
    assert_eq!((o.pds, o.srqs, o.qps), (1, 1, 4), "{o:?}");
    drop((pairs, first, second));
}

#[test]
fn a_group_takes_its_memory_with_it() {
    let (_alone, _dog) = (alone(), Watchdog::new("a_group_takes_its_memory_with_it"));
    let before = settled();
    let region = MemoryRegion::new(1 << 16).unwrap();
    for _ in 0..3 {
        let (guests, addr) = listener(Some("guests"));
        let (client, server) = join(None, &guests, addr);
        let o = CONTROL.objects();
        assert_eq!((o.pds, o.srqs), (before.pds + 1, before.srqs + 1), "{o:?}");
        // The region is registered there, small memory travels through a pool.
        let mut ledger = Ledger::new();
        let buffer = region.buffer(..).unwrap();
        let send = ledger.post("send", |q, t| server.send(q, t, buffer));
        let mut got = vec![0; 1 << 16];
        client.blocking().recv_exact(&mut got).unwrap();
        ledger.wait_ok(send);
        let small = ledger.post("send", |q, t| server.send(q, t, vec![1; 200]));
        client.blocking().recv_exact(&mut got[..200]).unwrap();
        ledger.wait_ok(small);
        ledger.finish();
        drop((client, server));
        // The listener alone keeps the receives.
        until(|o| o.qps == 0);
        assert_eq!(CONTROL.objects().srqs, before.srqs + 1);
        drop(guests);
        // The region is registered still, and in the domain from before if it is used
        // there again.
        until(|o| o.now() == (before.pds + 1, before.mrs + 1, before.srqs, before.qps));
    }
    drop(region);
    until(|o| o.now() == before.now());
}

/// Receives that many connections needed are given back as messages use them up.
#[test]
fn receives_go_with_the_connections() {
    let (_alone, _dog) = (alone(), Watchdog::new("receives_go_with_the_connections"));
    let (listener, addr) = listener_at(None, STRICT);
    let (client, server) = join(None, &listener, addr);
    let few = STRICT_CONTROL.objects();
    // 8 for each of 122 queue pairs: four chunks of 256.
    let many: Vec<_> = (0..60).map(|_| join(None, &listener, addr)).collect();
    assert_eq!(STRICT_CONTROL.objects().large, few.large + 3);
    drop(many);
    while STRICT_CONTROL.objects().large > few.large {
        client.blocking().send_all(b"x").unwrap();
        server.blocking().recv_exact(&mut [0]).unwrap();
    }
    // They are made again for new connections.
    let again: Vec<_> = (0..60).map(|_| join(None, &listener, addr)).collect();
    assert_eq!(STRICT_CONTROL.objects().large, few.large + 3);
    for (client, server) in &again {
        client.blocking().send_all(b"again").unwrap();
        server.blocking().recv_exact(&mut [0; 5]).unwrap();
    }
}

/// Receives that a device loses with connections: those that go on are not harmed, and nothing
/// is kept for ever.
#[test]
fn receives_that_are_lost_are_made_anew() {
    let (_alone, _dog) = (alone(), Watchdog::new("receives_that_are_lost_are_made_anew"));
    let (listener, addr) = listener_at(None, LOSSY);
    let (client, server) = join(None, &listener, addr);
    let talk = |from: &Socket, to: &Socket| {
        from.blocking().send_all(b"there").unwrap();
        to.blocking().recv_exact(&mut [0; 5]).unwrap();
    };
    // More than there are receives, with messages that use them up.
    for _ in 0..600 {
        let (client, server) = join(None, &listener, addr);
        (0..4).for_each(|_| talk(&server, &client));
    }
    talk(&client, &server);
    talk(&server, &client);
    // The queue of the first connection, and those of the last.
    let o = LOSSY_CONTROL.objects();
    assert!(o.srqs <= 3, "{o:?}");
    drop((client, server));
    until_on(&LOSSY_CONTROL, |o| o.qps == 0 && o.srqs == 1);
}

/// Where registering is dear, some tens of KiB are copied.
#[test]
fn copied_memory_is_not_registered() {
    let (_alone, _dog) = (alone(), Watchdog::new("copied_memory_is_not_registered"));
    let (listener, addr) = listener_at(None, STRICT);
    let (client, server) = join(None, &listener, addr);
    let say = |len: usize| {
        let mut ledger = Ledger::new();
        let send = ledger.post("send", |q, t| client.send(q, t, vec![7; len]));
        let mut got = vec![0; len];
        server.blocking().recv_exact(&mut got).unwrap();
        assert!(got.iter().all(|&x| x == 7));
        ledger.wait_ok(send);
        ledger.finish();
    };
    say(60_000); // the pool is made
    let made = STRICT_CONTROL.objects().made;
    (0..50).for_each(|_| say(65_536));
    // A ring may have been needed.
    let rings = STRICT_CONTROL.objects().made - made;
    assert!(rings <= 1, "{rings}");
    (0..10).for_each(|_| say(65_537));
    assert!(STRICT_CONTROL.objects().made >= made + 10);
}

/// A group's listener may change its options: its connections stay where it is.
#[test]
fn the_group_of_a_listener_stays() {
    let (_alone, _dog) = (alone(), Watchdog::new("the_group_of_a_listener_stays"));
    let before = settled();
    let (listener, addr) = listener(Some("a"));
    listener.set_options(&listener.options().with_trust_group(Some("b".into()))).unwrap();
    let pair = join(None, &listener, addr);
    assert_eq!(CONTROL.objects().pds, before.pds + 1);
    drop((pair, listener));
    until(|o| o.now() == before.now());
}

/// READY has no doorbell of its own. The background thread rings it where it leads, or if the program makes
/// no call for a tick. So this thread takes the lead first, and a test cannot ask for more than one connect
/// of many.
#[test]
fn ready_leaves_with_the_first_send() {
    let _alone = alone();
    let (listener, addr) = listener(None);
    let queue = EventQueue::new(1).unwrap();
    let together = (0..100).any(|_| {
        let nothing = queue.dequeue(1, Some(Duration::from_millis(1))).unwrap();
        assert!(nothing.is_empty());
        let (client, before) = (socket(None), CONTROL.rings());
        client.blocking().connect(addr).unwrap();
        let connected = CONTROL.rings();
        let (server, _) = listener.blocking().accept().unwrap();
        client.blocking().send_all(b"there").unwrap();
        let sent = CONTROL.rings();
        server.blocking().recv_exact(&mut [0; 5]).unwrap();
        (connected - before, sent - connected) == (0, 1)
    });
    assert!(together, "each connect has rung a doorbell for READY alone");
}

/// A connect that fails half-way leaves nothing.
#[test]
fn a_connect_that_fails_leaves_no_domain() {
    let (_alone, _dog) = (alone(), Watchdog::new("a_connect_that_fails_leaves_no_domain"));
    let before = settled();
    let (closed, addr) = listener(None);
    drop(closed);
    until(|o| o.now() == before.now());
    socket(Some("lost")).blocking().connect(addr).unwrap_err();
    until(|o| o.now() == before.now());
}

/// An export that outlives its connection, and an export that is revoked after it.
#[test]
fn exports_end_with_their_group() {
    let (_alone, _dog) = (alone(), Watchdog::new("exports_end_with_their_group"));
    let before = settled();
    let (guests, addr) = listener(Some("guests"));
    let (client, server) = join(Some("callers"), &guests, addr);
    let export = server.export(vec![7; 100_000], Rights::READ_WRITE, None).unwrap();
    client.blocking().write(&export.descriptor(), 5, b"hello").unwrap();
    client.abort();
    drop((client, server, guests));
    assert_eq!(export.revoke_blocking().map(|b| b.len()).unwrap_or(100_000), 100_000);
    until(|o| o.now() == before.now());
}
