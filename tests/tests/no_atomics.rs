//! Atomic operations where a device has none. The listener's device is a pretended one at an address of
//! its own, and the client's is the software RNIC, which has them. So each side refuses for another reason.

use std::net::IpAddr;
use std::sync::{Arc, Once};

use exs::aio::{AsyncSocket, block_on};
use exs::{
    Atomics, Error, Export, MemoryRegion, Options, RemoteBuffer, Rights, SocketType, Transport,
};
use exs_tests::fake::{self, Spec};
use exs_tests::harness::Watchdog;

const POOR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 10, 0, 1));

fn socket(ty: SocketType, transport: Transport) -> AsyncSocket {
    static DEVICE: Once = Once::new();
    DEVICE.call_once(|| {
        let control = Arc::default();
        let caps = |caps: &mut exs::rnic::Caps| caps.atomics = Atomics::None;
        fake::install(&[Spec { name: "poor", owns: |ip| ip == POOR, ports: 0, caps, control }]);
    });
    let options = Options::default().with_transport(transport).with_device(None);
    AsyncSocket::with_options(ty, options).unwrap()
}

/// Two connected sockets: one whose device has atomic operations, and one whose device has none.
async fn sockets(ty: SocketType) -> (AsyncSocket, AsyncSocket) {
    let (listener, able) = (socket(ty, Transport::Verbs), socket(ty, Transport::Soft));
    listener.bind((POOR, 0).into()).unwrap();
    listener.listen(1).unwrap();
    let accepted = listener.accept();
    able.connect(listener.local_addr().unwrap()).await.unwrap();
    let (poor, _) = accepted.await.unwrap();
    let has = |socket: &AsyncSocket| (socket.get_ref().atomics(), socket.get_ref().peer_atomics());
    assert_eq!(has(&able), (Atomics::Host, Atomics::None));
    assert_eq!(has(&poor), (Atomics::None, Atomics::None), "it cannot ask for any either");
    (able, poor)
}

/// Exports a word that is 9.
fn word(socket: &AsyncSocket, rights: Rights) -> Export {
    let mut memory = MemoryRegion::new(8).unwrap().buffer(..).unwrap();
    memory.copy_from_slice(&9_u64.to_ne_bytes());
    socket.get_ref().export(memory, rights, None).unwrap()
}

/// The descriptor of an export with the right to atomic operations added, which its owner could not
/// give.
fn forged(export: &Export) -> RemoteBuffer {
    let mut bytes = export.descriptor().to_bytes();
    bytes[23] |= 4;
    let remote = RemoteBuffer::from_bytes(&bytes).unwrap();
    assert!(remote.rights().atomic);
    remote
}

fn is_unsupported(error: &Error, why: &str) {
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
    assert!(error.to_string().contains(why), "{error}");
    assert!(!error.is_cancelled(), "{error}");
}

/// Both futures have the error at once, and neither changes the word.
async fn refuses(socket: &AsyncSocket, export: &Export, remote: &RemoteBuffer, why: &str) {
    let add = socket.fetch_add(remote, 0, 5);
    let swap = socket.compare_swap(remote, 0, 9, 7);
    // A cancellation changes nothing of an operation that was not taken.
    add.cancel();
    is_unsupported(&add.await.unwrap_err(), why);
    is_unsupported(&swap.await.unwrap_err(), why);
    let mut bytes = [0; 8];
    export.read_at(0, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 9);
}

async fn case(ty: SocketType) {
    let (able, poor) = sockets(ty).await;
    let receives = [able.recv(vec![0; 8]), poor.recv(vec![0; 8])];

    let export = word(&able, Rights::ATOMIC);
    refuses(&poor, &export, &export.descriptor(), "the device of this connection").await;

    let memory = MemoryRegion::new(8).unwrap().buffer(..).unwrap();
    let refused = poor.get_ref().export(memory, Rights::ATOMIC, None).unwrap_err();
    is_unsupported(&refused.error, "atomic operations");
    assert_eq!(refused.buffer.len(), 8, "the memory comes back");
    let export = word(&poor, Rights::READ_WRITE);
    refuses(&able, &export, &forged(&export), "the peer's device").await;

    // The connection goes on: the receives that were posted before, and one-sided operations.
    poor.send("to able ").await.0.unwrap();
    able.send("to poor ").await.0.unwrap();
    for (receive, expected) in receives.into_iter().zip(["to able ", "to poor "]) {
        let (received, bytes) = receive.await;
        assert_eq!(&bytes[..received.unwrap()], expected.as_bytes());
    }
    let (read, bytes) = able.read(&export.descriptor(), 0, vec![0; 8]).await;
    assert_eq!((read.unwrap(), bytes), (8, 9_u64.to_ne_bytes().to_vec()));
    able.write(&export.descriptor(), 0, 1_u64.to_ne_bytes().to_vec()).await.0.unwrap();
    able.close().await.unwrap();
}

#[test]
fn futures_of_atomic_operations_are_refused() {
    let _dog = Watchdog::new("futures_of_atomic_operations_are_refused");
    for ty in [SocketType::Stream, SocketType::SeqPacket] {
        block_on(case(ty));
        let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        one.block_on(case(ty));
        let two = tokio::runtime::Builder::new_multi_thread();
        let two = { two }.worker_threads(2).enable_all().build().unwrap();
        two.block_on(case(ty));
    }
}

#[test]
fn blocking_calls_of_atomic_operations_are_refused() {
    let _dog = Watchdog::new("blocking_calls_of_atomic_operations_are_refused");
    let (able, poor) = block_on(sockets(SocketType::Stream));
    let (able_word, poor_word) = (word(&able, Rights::ATOMIC), word(&poor, Rights::READ_WRITE));
    let calls = [
        (&poor, able_word.descriptor(), "the device of this connection"),
        (&able, forged(&poor_word), "the peer's device"),
    ];
    for (socket, remote, why) in calls {
        let socket = socket.get_ref().blocking();
        is_unsupported(&socket.fetch_add(&remote, 0, 5).unwrap_err(), why);
        is_unsupported(&socket.compare_swap(&remote, 0, 9, 7).unwrap_err(), why);
    }
    able.get_ref().blocking().send_all(b"well").unwrap();
    let mut bytes = [0; 4];
    poor.get_ref().blocking().recv_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"well");
}
