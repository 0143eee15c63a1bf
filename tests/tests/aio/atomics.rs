//! Atomic operations as futures.

use std::collections::BTreeSet;

use exs::aio::AsyncSocket;
use exs::{Error, Export, MemoryRegion, RemoteBuffer, Rights, SocketType};

use super::{On, on_each};

/// Exports words that are 0.
fn words(socket: &AsyncSocket, count: usize, rights: Rights) -> Export {
    let memory = MemoryRegion::new(8 * count).unwrap().buffer(..).unwrap();
    socket.get_ref().export(memory, rights, None).unwrap()
}

/// The value of a word, when no operation is under way.
fn value(export: &Export, index: usize) -> u64 {
    let mut word = [0; 8];
    export.read_at(8 * index, &mut word).unwrap();
    u64::from_ne_bytes(word)
}

/// As [`words`], with the right to atomic operations alone.
fn open_words(socket: &AsyncSocket, count: usize) -> (Export, RemoteBuffer) {
    let export = words(socket, count, Rights::ATOMIC);
    let remote = export.descriptor();
    (export, remote)
}

/// Adds 1 to the first word this many times. Returns the old values.
async fn add_ones(socket: AsyncSocket, remote: RemoteBuffer, count: u64) -> Vec<u64> {
    let mut old = Vec::new();
    for _ in 0..count {
        old.push(socket.fetch_add(&remote, 0, 1).await.unwrap());
    }
    old
}

/// The descriptor of an export without the right to atomic operations, with that right added.
fn forged(export: &Export) -> RemoteBuffer {
    let mut bytes = export.descriptor().to_bytes();
    bytes[23] = 4; // the right to atomic operations alone
    RemoteBuffer::from_bytes(&bytes).unwrap()
}

on_each! {
    async fn the_result_is_the_old_value(on) {
        for ty in [SocketType::Stream, SocketType::SeqPacket] {
            let (client, server) = on.sockets(ty).await;
            let (export, remote) = open_words(&client, 3);
            assert_eq!(server.fetch_add(&remote, 8, 5).await.unwrap(), 0);
            assert_eq!(server.fetch_add(&remote, 8, u64::MAX).await.unwrap(), 5);
            assert_eq!(server.compare_swap(&remote, 8, 4, 7).await.unwrap(), 4, "won");
            assert_eq!(server.compare_swap(&remote, 8, 4, 9).await.unwrap(), 7, "lost");
            assert_eq!([0, 1, 2].map(|i| value(&export, i)), [0, 7, 0]);
        }
    }

    async fn operations_are_posted_ahead_and_keep_their_order(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (export, remote) = open_words(&client, 1);
        let adds: Vec<_> = (0..100).map(|_| server.fetch_add(&remote, 0, 3)).collect();
        let swap = server.compare_swap(&remote, 0, 300, 1);
        // In another order than they were posted.
        assert_eq!(swap.await.unwrap(), 300);
        for (i, add) in adds.into_iter().enumerate().rev() {
            assert_eq!(add.await.unwrap(), 3 * i as u64);
        }
        assert_eq!(value(&export, 0), 1);
    }

    async fn tasks_lose_no_addition(on) {
        const TASKS: u64 = 16;
        const EACH: u64 = 50;
        let listener = on.socket(SocketType::Stream);
        listener.bind(On::any()).unwrap();
        listener.listen(4).unwrap();
        let shared = exs::AtomicWords::new(1).unwrap();
        let (mut exports, mut tasks) = (Vec::new(), Vec::new());
        // Two connections to one word, and tasks that share each of them.
        for _ in 0..2 {
            let client = on.socket(SocketType::Stream);
            let accepted = listener.accept();
            client.connect(listener.local_addr().unwrap()).await.unwrap();
            let (server, _) = accepted.await.unwrap();
            let export = shared.export(client.get_ref(), None).unwrap();
            for _ in 0..TASKS / 2 {
                tasks.push(tokio::spawn(add_ones(server.clone(), export.descriptor(), EACH)));
            }
            exports.push((client, export));
        }
        let mut all = BTreeSet::new();
        for task in tasks {
            let before = task.await.unwrap();
            assert!(before.is_sorted(), "the word went back");
            all.extend(before);
        }
        assert!(all.into_iter().eq(0..TASKS * EACH), "two tasks had the same value");
        assert_eq!(shared.load(0).unwrap(), TASKS * EACH);
    }

    async fn a_lock_excludes_other_tasks(on) {
        const TASKS: u64 = 4;
        const EACH: u64 = 10;
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (_lock, lock) = open_words(&client, 1);
        let guarded = words(&client, 1, Rights::READ_WRITE);
        let tasks: Vec<_> = (1..=TASKS).map(|own| {
            let (server, data) = (server.clone(), guarded.descriptor());
            tokio::spawn(async move {
                for _ in 0..EACH {
                    while server.compare_swap(&lock, 0, 0, own).await.unwrap() != 0 {
                        tokio::task::yield_now().await;
                    }
                    let (read, word) = server.read(&data, 0, vec![0; 8]).await;
                    assert_eq!(read.unwrap(), 8);
                    let next = u64::from_ne_bytes(word.try_into().unwrap()) + 1;
                    server.write(&data, 0, next.to_ne_bytes().to_vec()).await.0.unwrap();
                    assert_eq!(server.compare_swap(&lock, 0, own, 0).await.unwrap(), own);
                }
            })
        }).collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(value(&guarded, 0), TASKS * EACH);
    }

    async fn a_dropped_operation_was_done_once_or_never(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (export, remote) = open_words(&client, 1);
        for round in 0..10 {
            let kept: Vec<_> = (0..40).filter_map(|i| {
                let add = server.fetch_add(&remote, 0, 1);
                (i % 4 == round % 4).then_some(add)
            }).collect();
            let mut last = None;
            for add in kept {
                let old = add.await.unwrap();
                assert!(last < Some(old), "the word went back: {last:?}, {old}");
                last = Some(old);
            }
            // Operations keep their order: no dropped operation is done after this one.
            let sum = server.fetch_add(&remote, 0, 0).await.unwrap();
            assert!((10 * (round + 1)..=40 * (round + 1)).contains(&sum), "round {round}: {sum}");
            assert_eq!(value(&export, 0), sum);
        }
    }

    async fn a_cancelled_operation_says_whether_it_was_done(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (export, remote) = open_words(&client, 1);
        let adds: Vec<_> = (0..300).map(|_| server.fetch_add(&remote, 0, 1)).collect();
        adds[100..].iter().for_each(exs::aio::Operation::cancel);
        let mut sum = 0;
        for add in adds {
            match add.await {
                Ok(old) => {
                    assert_eq!(old, sum);
                    sum += 1;
                }
                Err(e) => assert!(e.is_cancelled(), "{e}"),
            }
        }
        assert!((100..=300).contains(&sum), "{sum}");
        assert_eq!(value(&export, 0), sum);
    }

    async fn operations_that_cannot_be_done_are_refused(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (_export, remote) = open_words(&client, 2);
        let readable = words(&client, 1, Rights::READ_WRITE).descriptor();
        for (of, offset, why) in
            [(&remote, 4, "multiple of 8"), (&remote, 16, "outside"), (&readable, 0, "atomic operations")]
        {
            let refused = |e: Error| {
                assert_eq!(e.errno(), libc::EINVAL, "{e}");
                assert!(e.to_string().contains(why), "{e}");
            };
            refused(server.fetch_add(of, offset, 1).await.unwrap_err());
            refused(server.compare_swap(of, offset, 0, 1).await.unwrap_err());
        }
        let alone = on.socket(SocketType::Stream);
        assert_eq!(alone.fetch_add(&remote, 0, 1).await.unwrap_err().errno(), libc::ENOTCONN);
        assert_eq!(server.fetch_add(&remote, 0, 1).await.unwrap(), 0, "the connection is well");
    }

    async fn a_peer_that_did_not_give_the_right_ends_the_connection(on) {
        for swap in [false, true] {
            let (client, server) = on.sockets(SocketType::Stream).await;
            let export = words(&client, 1, Rights::READ_WRITE);
            let waits = server.recv(vec![0; 8]);
            let remote = forged(&export);
            let operation = match swap {
                false => server.fetch_add(&remote, 0, 1),
                true => server.compare_swap(&remote, 0, 0, 1),
            };
            let error = operation.await.unwrap_err();
            assert_eq!(error.errno(), libc::EACCES, "{error}");
            assert_eq!(waits.await.0.unwrap_err().errno(), libc::ECONNRESET);
            assert_eq!(value(&export, 0), 0, "it was not done");
        }
    }

    async fn operations_end_with_their_connection(on) {
        let (client, server) = on.sockets(SocketType::Stream).await;
        let (export, remote) = open_words(&client, 1);
        let adds: Vec<_> = (0..300).map(|_| server.fetch_add(&remote, 0, 1)).collect();
        client.abort();
        let mut done = 0;
        for add in adds {
            match add.await {
                Ok(old) => {
                    assert_eq!(old, done);
                    done += 1;
                }
                Err(e) => assert!(!e.is_cancelled(), "whether it was done is not known: {e}"),
            }
        }
        assert!((done..=300).contains(&value(&export, 0)));
    }
}
