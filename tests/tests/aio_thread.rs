//! The thread that drives futures outside of a runtime: it ends when nothing needs it, and the next
//! future has another. Alone in its process, since the test counts threads.

use std::time::Duration;

use exs::aio::{AsyncSocket, block_on};
use exs::{Options, SocketType, Transport};
use exs_tests::harness::{Watchdog, check, pattern};

/// Longer than the thread waits without an event.
const QUIET: Duration = Duration::from_millis(1500);

/// The threads that drive futures.
fn drivers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread may end meanwhile.
    let names = threads.flat_map(|thread| std::fs::read_to_string(thread.path().join("comm")));
    names.filter(|name| name.trim_end() == "exs-aio").count()
}

/// A thread names itself when it first runs, and nothing says when one has ended.
fn until_there_are(wanted: usize) {
    while drivers() != wanted {
        // sleep-ok: the watchdog ends a wait that takes too long
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Two connected sockets: the client's and the server's.
async fn sockets(transport: Transport) -> (AsyncSocket, AsyncSocket) {
    let options = Options::default().with_transport(transport);
    let socket = || AsyncSocket::with_options(SocketType::Stream, options.clone()).unwrap();
    let (listener, client) = (socket(), socket());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    let accepted = listener.accept();
    client.connect(listener.local_addr().unwrap()).await.unwrap();
    (client, accepted.await.unwrap().0)
}

async fn talk(client: &AsyncSocket, server: &AsyncSocket) {
    let received = server.recv_exact(vec![0; 70_000]);
    client.send(pattern(1, 0, 70_000)).await.0.unwrap();
    let (result, bytes) = received.await;
    assert_eq!(result.unwrap(), 70_000);
    check(1, 0, &bytes);
}

/// An operation alone keeps the thread, however long nothing happens.
fn an_operation_needs_the_thread(client: AsyncSocket, server: AsyncSocket) {
    let client = client.into_inner();
    let receive = server.recv(vec![0; 5]);
    drop(server);
    // sleep-ok: that the thread stays shows only while time passes
    std::thread::sleep(QUIET);
    assert_eq!(drivers(), 1, "an operation is in flight");
    client.blocking().send_all(b"hello").unwrap();
    let (received, bytes) = block_on(receive);
    assert_eq!(&bytes[..received.unwrap()], b"hello");
}

#[test]
fn the_thread_ends_and_comes_again() {
    let _dog = Watchdog::new("the_thread_ends_and_comes_again");
    for transport in [Transport::Soft, Transport::Shm] {
        for _ in 0..2 {
            assert_eq!(drivers(), 0, "nothing needs it");
            let (client, server) = block_on(sockets(transport));
            block_on(talk(&client, &server));
            until_there_are(1);
            an_operation_needs_the_thread(client, server);
            until_there_are(0);
        }
    }
    // A socket keeps the thread that took over from its runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, server) = runtime.block_on(sockets(Transport::Soft));
    assert_eq!(drivers(), 0, "the runtime drives");
    drop(runtime);
    block_on(talk(&client, &server));
    until_there_are(1);
    an_operation_needs_the_thread(client, server);
    until_there_are(0);
}
