//! Start-ups that last, in a full backlog. Only RDMA devices have them: a pretended one, which keeps
//! accepted connections from being established.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exs::{Options, Socket, SocketType, Transport};
use exs_tests::fake::{self, Control, Spec};
use exs_tests::harness::{Watchdog, stream_socket};

const OWN: &str = "127.0.0.9";
const BACKLOG: usize = 2;

fn device() -> &'static Control {
    static DEVICE: OnceLock<Arc<Control>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let control = Arc::default();
        let owns = |ip: IpAddr| ip.to_string() == OWN;
        let spec =
            Spec { name: "rxe0", owns, ports: 1, caps: |_| {}, control: Arc::clone(&control) };
        fake::install(&[spec]);
        control
    })
}

/// A listener whose start-ups may take for ever, as far as its options go.
fn patient_listener() -> (Socket, SocketAddr) {
    let options = Options::default()
        .with_transport(Transport::Verbs)
        .with_connect_timeout(Duration::from_secs(3600));
    let listener = Socket::with_options(SocketType::Stream, options).unwrap();
    listener.bind(SocketAddr::new(OWN.parse().unwrap(), 0)).unwrap();
    listener.listen(u32::try_from(BACKLOG).unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn caller(addr: SocketAddr) -> Socket {
    let caller = stream_socket(Transport::Verbs);
    caller.blocking().connect(addr).unwrap();
    caller
}

/// The port of the caller tells the connections apart.
fn port(caller: &Socket) -> u16 {
    caller.local_addr().unwrap().port()
}

fn accepted(listener: &Socket) -> (Socket, u16) {
    let (socket, peer) = listener.blocking().accept().unwrap();
    (socket, peer.port())
}

/// Start-ups that go no further give their places in a full backlog to others long before their limit.
/// They go on without a place: a slow peer is not told from a silent one by its time.
#[test]
fn a_late_start_up_gives_its_place_and_goes_on() {
    let _dog = Watchdog::new("a_late_start_up_gives_its_place_and_goes_on");
    let control = device();
    let (listener, addr) = patient_listener();
    control.hold_accepted(BACKLOG);
    let late = [(); BACKLOG].map(|()| caller(addr));
    // Each of these comes in only as a late start-up loses its place, and keeps that place until it is
    // accepted.
    let prompt = [(); BACKLOG].map(|()| caller(addr));
    for prompt in &prompt {
        assert_eq!(accepted(&listener).1, port(prompt));
    }
    // The handshakes of the late ones end after all, and these are connections as any other.
    control.hold_accepted(0);
    let mut served: Vec<(Socket, u16)> = late.iter().map(|_| accepted(&listener)).collect();
    served.sort_by_key(|(_, peer)| *peer);
    let mut late: Vec<(u16, Socket)> = late.into_iter().map(|late| (port(&late), late)).collect();
    late.sort_by_key(|(port, _)| *port);
    for ((port, caller), (socket, peer)) in late.iter().zip(&served) {
        assert_eq!(port, peer);
        caller.blocking().send_all(b"late").unwrap();
        let mut got = [0; 4];
        socket.blocking().recv_exact(&mut got).unwrap();
        assert_eq!(&got, b"late");
    }
}
