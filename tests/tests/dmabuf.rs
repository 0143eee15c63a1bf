//! Regions over memory of other devices.
//!
//! A memfd stands for a dma-buf: it is mapped by its descriptor, too. One that is open for reading only
//! has no writable mapping, as a dma-buf whose exporter lets no process map it. Where the kernel has
//! `/dev/udmabuf`, there is a real dma-buf.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use exs::{
    Buffer, Error, EventQueue, KernelSocket, MemError, MemoryRegion, Options, Part, RecvFlags,
    Rights, RnicError, Socket, SocketType, Token, Transport,
};
use exs_tests::harness::{Env, Watchdog};
use exs_tests::rdma;
use exs_tests::skip::skip;
use exs_tests::sys::{memfd, region_of, udmabuf};

const LEN: usize = 3 * 4096;

/// A memfd, and a region over it that no processor reaches.
fn unmapped() -> (File, MemoryRegion) {
    let file = memfd(LEN).unwrap();
    let locked = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let region = region_of(locked.into(), 0, LEN).unwrap();
    assert!(!region.is_mapped() && region.len() == LEN);
    (file, region)
}

fn streams(transport: Transport) -> (Socket, Socket) {
    Env::new(Options::default().with_transport(transport), IpAddr::from([127, 0, 0, 1])).streams()
}

fn bytes_at(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Data go from one region over a descriptor to another, by messages and by one-sided operations.
fn moves(client: &Socket, server: &Socket, of: impl Fn() -> (File, OwnedFd)) {
    let queue = EventQueue::new(8).unwrap();
    let ((from, from_fd), (to, to_fd)) = (of(), of());
    let source = region_of(from_fd, 100, LEN - 100).unwrap();
    let sink = region_of(to_fd, 0, LEN).unwrap();
    assert!(source.is_mapped() && sink.is_mapped());
    let mut buffer = source.buffer(..9000).unwrap();
    buffer.fill(7);
    assert_eq!(bytes_at(&from, 99, 3), [0, 7, 7], "the file's offset");
    server.recv(&queue, Token(1), sink.buffer(10..9010).unwrap(), RecvFlags::WAITALL).unwrap();
    client.send(&queue, Token(2), buffer).unwrap();
    for event in queue.dequeue_at_least(2, 2, None).unwrap() {
        event.into_completion().unwrap();
    }
    assert_eq!(bytes_at(&to, 9, 9002), [&[0][..], &[7; 9000], &[0]].concat());

    let export = server.export(sink.buffer(..).unwrap(), Rights::READ_WRITE, None).unwrap();
    client.write(&queue, Token(3), &export.descriptor(), 1, source.buffer(..5).unwrap()).unwrap();
    queue.next().unwrap().into_completion().unwrap();
    let mut seen = [0; 7];
    export.read_at(0, &mut seen).unwrap();
    assert_eq!((seen, bytes_at(&to, 0, 7)), ([0, 7, 7, 7, 7, 7, 0], seen.to_vec()));
    from.write_all_at(&[9; 50], 100).unwrap();
    let theirs = client.export(source.buffer(..50).unwrap(), Rights::READ, None).unwrap();
    let into = Buffer::from(vec![0; 50]);
    server.read(&queue, Token(4), &theirs.descriptor(), 0, into).unwrap();
    let mut event = queue.next().unwrap();
    assert_eq!(event.take_buffer().unwrap()[..], [9; 50]);
}

fn file_and_descriptor() -> (File, OwnedFd) {
    let file = memfd(LEN).unwrap();
    let fd = file.try_clone().unwrap().into();
    (file, fd)
}

#[test]
fn a_mapped_region_is_like_any_other() {
    let _dog = Watchdog::new("dmabuf");
    for transport in [Transport::Soft, Transport::Shm] {
        let (client, server) = streams(transport);
        moves(&client, &server, file_and_descriptor);
        match udmabuf(LEN) {
            Ok(_) => moves(&client, &server, || udmabuf(LEN).unwrap()),
            Err(e) => skip(&format!("no dma-buf of this kernel's: /dev/udmabuf: {e}")),
        }
    }
}

/// Every call that would touch the memory refuses it, and gives it back.
#[test]
fn what_no_processor_reaches_is_refused() {
    let _dog = Watchdog::new("dmabuf");
    let (client, server) = streams(Transport::Soft);
    let queue = EventQueue::new(8).unwrap();
    let (_file, region) = unmapped();
    let part = || region.buffer(..4096).unwrap();
    let is_unmapped = |e: Error| {
        assert_eq!((&e, e.errno()), (&Error::Memory(MemError::Unmapped), libc::EOPNOTSUPP));
    };
    let one = client.send(&queue, Token(1), part()).unwrap_err();
    assert_eq!((one.buffer.len(), one.buffer.is_mapped()), (4096, false));
    is_unmapped(one.error);
    drop(one.buffer);
    is_unmapped(client.recv(&queue, Token(1), part(), RecvFlags::NONE).unwrap_err().error);
    let list = |more: Buffer| vec![Buffer::from(*b"x"), more];
    is_unmapped(client.send_vectored(&queue, Token(1), list(part())).unwrap_err().error);
    let into = client.recv_vectored(&queue, Token(1), list(part()), RecvFlags::NONE);
    is_unmapped(into.unwrap_err().error);
    let parts = vec![Part::Memory(list(part()))];
    is_unmapped(client.send_parts(&queue, Token(1), parts, false).unwrap_err().error);
    // A batch ends before it.
    let mut batch = vec![(Token(1), Buffer::from(*b"one")), (Token(2), part())];
    assert_eq!(client.send_batch(&queue, &mut batch).unwrap(), 1);
    is_unmapped(client.send_batch(&queue, &mut batch).unwrap_err());
    batch.clear();
    queue.next().unwrap().into_completion().unwrap();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let kernel = KernelSocket::new(ours).unwrap();
    is_unmapped(kernel.send(&queue, Token(1), part()).unwrap_err().error);
    is_unmapped(kernel.recv(&queue, Token(1), part(), RecvFlags::NONE).unwrap_err().error);
    // One-sided operations of a transport in software say why not.
    let export = server.export(vec![0; 100], Rights::READ_WRITE, None).unwrap();
    let read = client.read(&queue, Token(1), &export.descriptor(), 0, region.buffer(..8).unwrap());
    for error in [
        read.unwrap_err().error,
        client.export(region.buffer(8..16).unwrap(), Rights::READ, None).unwrap_err().error,
    ] {
        let said = error.to_string();
        assert!(matches!(error, Error::Rnic(RnicError::DmaBuf { .. })), "{error:?}");
        assert!(said.contains("moves memory by the processor"), "{said}");
    }
    assert_eq!(queue.len(), 0, "nothing was posted");
}

#[test]
#[should_panic(expected = "processors cannot reach this memory")]
fn what_no_processor_reaches_has_no_slices() {
    let (_file, region) = unmapped();
    let buffer = region.buffer(..1).unwrap();
    assert_eq!(buffer.len(), 1, "a length it has");
    let _ = buffer[0];
}

#[test]
fn a_range_outside_is_refused() {
    let (file, fd) = file_and_descriptor();
    let outside = region_of(fd, 1, LEN).unwrap_err();
    assert_eq!(outside, MemError::OutOfBounds { offset: 1, len: LEN, region: LEN });
    let wraps = region_of(file.try_clone().unwrap().into(), u64::MAX, 2).unwrap_err();
    assert!(matches!(wraps, MemError::OutOfBounds { len: 2, .. }), "{wraps:?}");
    assert_eq!(region_of(file.into(), 0, 0).unwrap_err(), MemError::BadLength { len: 0 });
}

/// The two ends of a connection over the device under test.
fn over_the_device() -> Option<(Socket, Socket)> {
    let device = rdma::device()?;
    let env = Env::new(Options::default().with_transport(Transport::Verbs), device.addr);
    Some(env.pair(SocketType::Stream))
}

/// A device takes dma-bufs, or says that it does not.
#[test]
fn a_device_takes_them_or_says_so() {
    let Some((client, server)) = over_the_device() else {
        return skip(&rdma::missing().unwrap_or_default());
    };
    let _dog = Watchdog::new("dmabuf");
    // What a processor reaches, a device gets by the mapping, if not by the descriptor.
    moves(&client, &server, file_and_descriptor);
    match udmabuf(LEN) {
        Ok(_) => moves(&client, &server, || udmabuf(LEN).unwrap()),
        Err(e) => skip(&format!("no dma-buf of this kernel's: /dev/udmabuf: {e}")),
    }
    let (file, region) = unmapped();
    let buffer = region.buffer(4090..).unwrap();
    if std::env::var("EXS_TEST_ADAPTER").is_ok_and(|name| name == "gpu") {
        return without_a_processor((&client, &server), &file, buffer);
    }
    let refused = client.export(buffer, Rights::READ, None).unwrap_err();
    let said = refused.error.to_string();
    println!("note: {said}");
    assert!(matches!(refused.error, Error::Rnic(RnicError::DmaBuf { .. })), "{said}");
    assert_eq!((refused.error.errno(), refused.buffer.len()), (libc::EOPNOTSUPP, LEN - 4090));
    assert!(said.contains("the device or its driver takes none"), "{said}");
}

/// All one-sided operations on memory that no processor reaches. `buffer` begins at 4090.
fn without_a_processor((client, server): (&Socket, &Socket), file: &File, buffer: Buffer) {
    let queue = EventQueue::new(4).unwrap();
    let ok = || drop(queue.next().unwrap().into_completion().unwrap());
    file.write_all_at(b"from the GPU", 4090).unwrap();
    let export = server.export(buffer, Rights::READ_WRITE, None).unwrap();
    // The peer reads and writes it.
    client.read(&queue, Token(1), &export.descriptor(), 0, vec![0; 12]).unwrap();
    assert_eq!(queue.next().unwrap().take_buffer().unwrap()[..], *b"from the GPU");
    client.write(&queue, Token(2), &export.descriptor(), 5, b"A GPU".to_vec()).unwrap();
    ok();
    assert_eq!(bytes_at(file, 4090, 12), *b"from A GPUPU");
    assert_eq!(export.read_at(0, &mut [0]).unwrap_err(), Error::Memory(MemError::Unmapped));
    // It is source and sink of this side's operations.
    let (other, region) = unmapped();
    let mapped = client.export(vec![1; 4096], Rights::READ_WRITE, None).unwrap();
    server
        .read(&queue, Token(3), &mapped.descriptor(), 0, region.buffer(8..4104).unwrap())
        .unwrap();
    ok();
    assert_eq!(bytes_at(&other, 7, 4098), [&[0][..], &[1; 4096], &[0]].concat());
    other.write_all_at(b"out", 5000).unwrap();
    let source = region.buffer(5000..5003).unwrap();
    server.write(&queue, Token(4), &mapped.descriptor(), 0, source).unwrap();
    ok();
    let mut seen = [0; 4];
    mapped.read_at(0, &mut seen).unwrap();
    assert_eq!(seen, *b"out\x01");
    // Both sides without a processor.
    server
        .write(&queue, Token(5), &mapped.descriptor(), 0, region.buffer(4096..8192).unwrap())
        .unwrap();
    ok();
    export.revoke(&queue, Token(6)).unwrap();
    ok();
}
