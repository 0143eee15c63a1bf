//! Streams in a link group: what their tasks leave for the driver.

use std::sync::mpsc::channel;
use std::thread;

use exs::aio::AsyncStream;
use exs_tests::harness::Watchdog;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{On, runtime};

/// Sends each byte back.
async fn echo(mut stream: AsyncStream) {
    while let Ok(byte) = stream.read_u8().await {
        stream.write_all(&[byte]).await.unwrap();
    }
}

async fn ask(clients: &mut [AsyncStream], byte: u8) {
    for client in &mut *clients {
        client.write_all(&[byte]).await.unwrap();
    }
    for client in clients {
        assert_eq!(client.read_u8().await.unwrap(), byte);
    }
}

/// The answer of one task waits for the turn of the driver behind the other tasks, and the next of these
/// blocks the thread. Then the background thread sends the answer.
#[test]
fn an_answer_leaves_although_another_task_blocks_the_thread() {
    let _dog = Watchdog::new("a task that blocks");
    let (says_addr, addr) = channel();
    let (answered, has_answered) = channel();
    let server = thread::spawn(move || {
        runtime(1).block_on(async {
            let listener = On::Grouped.listener();
            says_addr.send(listener.local_addr().unwrap()).unwrap();
            let answers = tokio::spawn(echo(listener.accept().await.unwrap().0));
            let mut stream = listener.accept().await.unwrap().0;
            let blocks = tokio::spawn(async move {
                while let byte @ 1.. = stream.read_u8().await.unwrap() {
                    stream.write_all(&[byte]).await.unwrap();
                }
                has_answered.recv().unwrap();
            });
            answers.await.unwrap();
            blocks.await.unwrap();
        });
    });
    runtime(1).block_on(async {
        let addr = addr.recv().unwrap();
        let mut clients = [On::Grouped.connect(addr).await, On::Grouped.connect(addr).await];
        for _ in 0..4 {
            // After this the driver of the server expects answers to messages that come together.
            for byte in 1..64 {
                ask(&mut clients, byte).await;
            }
            let [first, second] = &mut clients;
            tokio::join!(async { first.write_all(&[0]).await.unwrap() }, async {
                second.write_all(&[7]).await.unwrap()
            },);
            assert_eq!((first.read_u8().await.unwrap(), second.read_u8().await.unwrap()), (0, 7));
        }
        for client in &mut clients {
            client.write_all(&[0]).await.unwrap();
        }
        assert_eq!(clients[0].read_u8().await.unwrap(), 0);
        answered.send(()).unwrap();
        drop(clients);
    });
    server.join().unwrap();
}
