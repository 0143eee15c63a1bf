use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

use crate::aio::{AsyncListener, AsyncStream};
use crate::api::{Options, Transport};

async fn connected() -> (AsyncStream, AsyncStream) {
    let options = || Options::default().with_transport(Transport::Soft);
    let listener = AsyncListener::bind_with("127.0.0.1:0".parse().unwrap(), options()).unwrap();
    let to = listener.local_addr().unwrap();
    let (client, accepted) =
        tokio::join!(AsyncStream::connect_with(to, options()), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

/// A task that attends its connection gets small messages straight from the engine. A message that has
/// come before the attendance ends a receive, and so does one that the driver brings.
#[test]
fn messages_pass_by_the_receives_of_an_attended_stream() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut client, mut server) = connected().await;
        server.attend_always();
        let ended = |stream: &AsyncStream| stream.link.state.rx().ended();
        let mut passed = 0;
        for n in 0..=u8::MAX {
            let before = ended(&server);
            let write = async {
                // The read waits first.
                tokio::task::yield_now().await;
                client.write_all(&[n]).await.unwrap();
            };
            let (read, ()) = tokio::join!(server.read_u8(), write);
            assert_eq!(read.unwrap(), n);
            passed += u32::from(ended(&server) == before);
        }
        assert!(passed > 0, "each message has ended a receive");
    });
}
