//! Batches: several sends or receives in one call are as many calls.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::time::Duration;

use exs::{Buffer, Error, Event, EventKind, EventQueue, RecvFlags, Socket, SocketType, Token};

use crate::harness::{Env, LIMIT, Rng, check, pattern};

type Batch = Vec<(Token, Buffer)>;

/// One direction of a conversation by batches.
struct Flow {
    seed: u64,
    sends: EventQueue,
    receives: EventQueue,
    /// Bytes sent and received.
    sent: usize,
    got: usize,
    /// Tokens given to sends, and to receives; sends that have ended.
    sends_posted: u64,
    recvs_posted: u64,
    sends_ended: u64,
    /// Sizes of the receives that have not ended, with their tokens.
    open: VecDeque<(u64, usize)>,
}

impl Flow {
    fn new(seed: u64) -> Flow {
        let queue = || EventQueue::new(200).unwrap();
        Flow {
            seed,
            sends: queue(),
            receives: queue(),
            sent: 0,
            got: 0,
            sends_posted: 0,
            recvs_posted: 0,
            sends_ended: 0,
            open: VecDeque::new(),
        }
    }

    fn send(&mut self, from: &Socket, sizes: &[usize]) {
        let mut batch = Batch::new();
        for size in sizes {
            let bytes = pattern(self.seed, self.sent, *size);
            batch.push((Token(self.sends_posted), bytes.into()));
            (self.sent, self.sends_posted) = (self.sent + size, self.sends_posted + 1);
        }
        let before = batch.len();
        assert_eq!(from.send_batch(&self.sends, &mut batch).unwrap(), before);
        assert!(batch.is_empty());
    }

    /// Takes the events of sends: of those that have ended, or of all.
    fn take_sent(&mut self, all: bool) {
        let patience = if all { LIMIT } else { Duration::ZERO };
        while self.sends_ended < self.sends_posted {
            let events = self.sends.dequeue(64, Some(patience)).unwrap();
            assert!(!all || !events.is_empty(), "a send does not end");
            if events.is_empty() {
                break;
            }
            for event in events {
                let ended = (event.kind(), event.token().0, event.bytes());
                let size = event.into_buffer().unwrap().len();
                assert_eq!(ended, (EventKind::Send, self.sends_ended, size));
                self.sends_ended += 1;
            }
        }
    }

    /// Posts receives for no more bytes than are sent: each of them ends.
    fn receive(&mut self, to: &Socket, rng: &mut Rng, most: usize) {
        let flags = if rng.one_in(2) { RecvFlags::WAITALL } else { RecvFlags::NONE };
        let ahead: usize = self.open.iter().map(|(_, size)| size).sum();
        let mut left = self.sent - self.got - ahead;
        let mut batch = Batch::new();
        while left > 0 && self.open.len() < 150 && !rng.one_in(20) {
            let size = rng.size(most).min(left);
            left -= size;
            self.open.push_back((self.recvs_posted, size));
            batch.push((Token(self.recvs_posted), vec![0; size].into()));
            self.recvs_posted += 1;
        }
        let before = batch.len();
        assert_eq!(to.recv_batch(&self.receives, &mut batch, flags).unwrap(), before);
    }

    /// Takes up to `most` receives that must end.
    fn take_received(&mut self, most: usize) {
        for (token, size) in self.open.drain(..most.min(self.open.len())) {
            let event = next(&self.receives);
            assert_eq!((event.kind(), event.token().0), (EventKind::Recv, token));
            let n = event.bytes();
            assert!((1..=size).contains(&n) && !event.eof(), "{event:?} of {size}");
            check(self.seed, self.got, &event.into_buffer().unwrap()[..n]);
            self.got += n;
        }
    }
}

fn next(queue: &EventQueue) -> Event {
    let event = queue.dequeue(1, Some(LIMIT)).unwrap().pop().expect("an event in time");
    assert!(event.error().is_none(), "{event:?}");
    event
}

/// Sends of all sizes, and receives that have other sizes, some ahead of the data and some behind:
/// each byte comes once, in order, and each operation ends once, in order.
pub fn order_and_integrity(env: &Env) {
    for seed in 0..env.seeds(20) {
        let (a, b) = env.streams();
        let (mut rng, mut flow) = (Rng::new(seed), Flow::new(seed));
        let most = [64, 600, 6_000][rng.between(0, 2)];
        let total = 100 * most;
        while flow.got < total {
            let in_flight = flow.sends_posted - flow.sends_ended;
            if flow.sent < total && in_flight < 100 && (flow.sent == flow.got || rng.one_in(2)) {
                let sizes: Vec<_> = (0..rng.between(1, 64)).map(|_| rng.size(most)).collect();
                flow.send(&a, &sizes);
            }
            flow.receive(&b, &mut rng, most);
            let few = rng.between(0, 8);
            flow.take_received(if rng.one_in(3) { usize::MAX } else { few });
            flow.take_sent(false);
        }
        flow.take_sent(true);
    }
}

/// Small sends of one batch, for receives of other sizes: the first ones are there before the data,
/// others come when a part of a message lies in the ring.
pub fn receives_cut_a_batch_anywhere(env: &Env) {
    let (a, b) = env.streams();
    let (mut rng, mut flow) = (Rng::new(5), Flow::new(5));
    for _ in 0..env.seeds(50) {
        flow.send(&a, &[0; 3]);
        let sizes: Vec<_> = (0..60).map(|_| rng.between(0, 70)).collect();
        flow.send(&a, &sizes);
        while flow.got < flow.sent {
            flow.receive(&b, &mut rng, 200);
            flow.take_received(usize::MAX);
        }
        flow.take_sent(true);
    }
}

/// Each send of a batch on a seqpacket socket is a message.
pub fn messages_stay_messages(env: &Env) {
    let (a, b) = env.packets();
    let queue = EventQueue::new(64).unwrap();
    let sizes = [3, 0, 200, 1, 5_000, 20];
    let mut receives: Batch =
        (0..6).map(|token| (Token(100 + token), vec![0; 6_000].into())).collect();
    assert_eq!(b.recv_batch(&queue, &mut receives, RecvFlags::NONE).unwrap(), 6);
    let mut batch: Batch = (0..)
        .zip(sizes)
        .map(|(token, size)| (Token(token), pattern(token, 0, size).into()))
        .collect();
    assert_eq!(a.send_batch(&queue, &mut batch).unwrap(), 6);
    // A short send may end before a long send that the program posted earlier.
    let (mut sent, mut received) = (Vec::new(), 0);
    while sent.len() + received < 12 {
        let event = next(&queue);
        let (token, n) = (event.token().0, event.bytes());
        if event.kind() == EventKind::Send {
            sent.push((token, n));
        } else {
            assert_eq!((token, n), (100 + received as u64, sizes[received]));
            check(received as u64, 0, &event.into_buffer().unwrap()[..n]);
            received += 1;
        }
    }
    sent.sort_unstable();
    assert_eq!(sent, (0..).zip(sizes).collect::<Vec<_>>());
}

/// What the queue has no room for stays in the batch; then nothing is taken.
pub fn the_depth_cuts_a_batch(env: &Env) {
    let (a, b) = env.streams();
    let queue = EventQueue::new(4).unwrap();
    let mut batch: Batch = (0..6).map(|n| (Token(n.into()), vec![n; 8].into())).collect();
    assert_eq!(a.send_batch(&queue, &mut batch).unwrap(), 4);
    assert_eq!(a.send_batch(&queue, &mut Batch::new()).unwrap(), 0, "nothing is asked for");
    let full = a.send_batch(&queue, &mut batch).unwrap_err();
    assert!(full.is_would_block() && batch.len() == 2, "{full}");
    assert_eq!((batch[0].0, &batch[0].1[..]), (Token(4), &[4; 8][..]));
    (0..4).for_each(|token| assert_eq!(next(&queue).token(), Token(token)));
    assert_eq!(a.send_batch(&queue, &mut batch).unwrap(), 2);
    (4..6).for_each(|token| assert_eq!(next(&queue).token(), Token(token)));

    let mut batch: Batch = (0..6).map(|n| (Token(n), vec![0; 8].into())).collect();
    assert_eq!(b.recv_batch(&queue, &mut batch, RecvFlags::WAITALL).unwrap(), 4);
    assert!(b.recv_batch(&queue, &mut batch, RecvFlags::WAITALL).unwrap_err().is_would_block());
    for n in 0..4 {
        let event = next(&queue);
        assert_eq!((event.token(), event.bytes()), (Token(n), 8));
    }
    assert_eq!(b.recv_batch(&queue, &mut batch, RecvFlags::WAITALL).unwrap(), 2);
    (4..6).for_each(|n| assert_eq!(next(&queue).token(), Token(n)));
    assert_eq!(queue.outstanding(), 0);
}

/// A batch that is refused is as it was, and books nothing.
pub fn a_refused_batch_is_as_it_was(env: &Env) {
    let (a, _b) = env.streams();
    let queue = EventQueue::new(8).unwrap();
    let batch = || -> Batch { (0..3).map(|n| (Token(n.into()), vec![n; 5].into())).collect() };
    let as_it_was = |batch: &Batch| {
        let all: Vec<_> = batch.iter().map(|(token, buffer)| (token.0, buffer.to_vec())).collect();
        assert_eq!(all, [(0, vec![0; 5]), (1, vec![1; 5]), (2, vec![2; 5])]);
        assert_eq!(queue.outstanding(), 0);
    };
    let alone = env.socket(SocketType::Stream);
    let mut sends = batch();
    let refused: Error = alone.send_batch(&queue, &mut sends).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOTCONN);
    as_it_was(&sends);
    let refused = alone.recv_batch(&queue, &mut sends, RecvFlags::NONE).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOTCONN);
    as_it_was(&sends);
    a.shutdown(&queue, Token(9), Shutdown::Write).unwrap();
    next(&queue);
    assert_eq!(a.send_batch(&queue, &mut sends).unwrap_err().errno(), libc::EPIPE);
    as_it_was(&sends);
    // One message in the middle is too long: those before it are posted.
    let limited = env.with(|options| options.max_message = 1_000);
    let (c, _d) = limited.packets();
    sends[1].1 = vec![7; 1_001].into();
    assert_eq!(c.send_batch(&queue, &mut sends).unwrap(), 1);
    assert_eq!(next(&queue).token(), Token(0));
    assert_eq!(c.send_batch(&queue, &mut sends).unwrap_err().errno(), libc::EMSGSIZE);
    assert_eq!((sends.len(), sends[0].0, sends[0].1.len()), (2, Token(1), 1_001));
    assert_eq!(queue.outstanding(), 0);
}
