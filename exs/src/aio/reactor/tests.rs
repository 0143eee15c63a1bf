use std::pin::pin;
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Wake};
use std::time::Instant;

use super::*;
use crate::aio::AsyncSocket;
use crate::api::{Options, Socket, SocketType, Transport};

/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A task that notes its wake-ups.
struct Noted(Sender<()>);

impl Wake for Noted {
    fn wake(self: Arc<Noted>) {
        // The test may have failed meanwhile.
        let _ = self.0.send(());
    }
}

fn connected() -> (Socket, Socket) {
    let options = || Options::default().with_transport(Transport::Soft);
    let stream = || Socket::with_options(SocketType::Stream, options()).unwrap();
    let (listener, client) = (stream(), stream());
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(1).unwrap();
    client.blocking().connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.blocking().accept().unwrap().0)
}

/// The thread ends as soon as it is alone, and the caller comes again at that moment. The thread wakes
/// the caller's task each time: no other task is there that could take the event.
#[test]
fn a_caller_that_comes_while_the_thread_ends_is_driven() {
    let known = ProcessLock::new(Weak::new());
    let (client, server) = connected();
    let (tell, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Noted(tell)));
    for round in 0..500 {
        let reactor = AioReactor::of_thread(&known, Duration::ZERO).unwrap();
        let socket = AsyncSocket::of(server.clone(), reactor);
        let mut receive = pin!(socket.recv(vec![0; 1]));
        let cx = &mut Context::from_waker(&waker);
        assert!(receive.as_mut().poll(cx).is_pending());
        client.blocking().send_all(b"x").unwrap();
        woken.recv_timeout(LIMIT).unwrap_or_else(|e| panic!("no thread drives: {e}, {round}"));
        let Poll::Ready((received, _)) = receive.as_mut().poll(cx) else {
            panic!("woken for nothing")
        };
        assert_eq!(received.unwrap(), 1);
    }
}

/// A thread that no owner needs ends, and takes the reactor with it. The next caller has another.
#[test]
fn the_reactor_goes_with_its_thread() {
    let known = ProcessLock::new(Weak::new());
    for _ in 0..100 {
        drop(AioReactor::of_thread(&known, Duration::ZERO).unwrap());
        let begun = Instant::now();
        while known.lock().strong_count() > 0 {
            assert!(begun.elapsed() < LIMIT, "the thread stays");
            std::thread::yield_now();
        }
    }
}
