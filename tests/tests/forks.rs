//! Children of fork(2) that drop what they have inherited: it belongs to the parent, where other threads may
//! hold any lock.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use exs::{Options, Rights, Socket, SocketType, Transport};
use exs_tests::harness::{Watchdog, stream_pair};
use exs_tests::sys::ends_in_a_fork;

/// Forks, while another thread calls all the time.
const FORKS: usize = 50;
/// A child that waits for a lock would do so for ever.
const SECONDS: u32 = 20;

/// Runs `child` in that many forks, while another thread takes the engine's lock again and again.
fn in_each_fork(busy: &Socket, mut child: impl FnMut()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                busy.counters();
            }
        });
        let ended = (0..FORKS).all(|_| ends_in_a_fork(SECONDS, &mut child));
        over.store(true, Ordering::Relaxed);
        assert!(ended, "a child waits");
    });
}

fn listener(transport: Transport) -> Socket {
    let options = Options::default().with_transport(transport);
    let listener = Socket::with_options(SocketType::Stream, options).unwrap();
    listener.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listener.listen(8).unwrap();
    listener
}

#[test]
fn a_child_that_drops_sockets_leaves_them_to_its_parent() {
    let _dog = Watchdog::new("a child drops sockets");
    for transport in [Transport::Soft, Transport::Shm] {
        let mut inherited = Some(listener(transport));
        let at = inherited.as_ref().unwrap().local_addr().unwrap();
        let (client, server) = stream_pair(&Options::default().with_transport(transport));
        let mut connection = Some(client);
        in_each_fork(&server, || {
            drop(inherited.take());
            drop(connection.take());
        });
        let (client, listener) = (connection.unwrap(), inherited.unwrap());
        client.blocking().send_all(b"still there").unwrap();
        let mut bytes = [0; 11];
        server.blocking().recv_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"still there");
        let options = Options::default().with_transport(transport);
        let caller = Socket::with_options(SocketType::Stream, options).unwrap();
        caller.blocking().connect(at).unwrap();
        listener.blocking().accept().unwrap();
    }
}

#[test]
fn a_child_that_drops_an_export_leaves_it_to_its_parent() {
    let _dog = Watchdog::new("a child drops an export");
    for transport in [Transport::Soft, Transport::Shm] {
        let (client, server) = stream_pair(&Options::default().with_transport(transport));
        let export =
            client.export(vec![7; 100], Rights::READ, Some(Duration::from_secs(600))).unwrap();
        let mut inherited = Some(export);
        in_each_fork(&client, || drop(inherited.take()));
        let mut bytes = [0; 100];
        let export = inherited.unwrap();
        server.blocking().read(&export.descriptor(), 0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 100]);
    }
}
