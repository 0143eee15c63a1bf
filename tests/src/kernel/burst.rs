//! Sends that follow each other fast, of which several leave in one call: none is lost, and
//! none waits for long.

use std::io::{Read, Write};

use exs::{EventQueue, RecvFlags, Token};

use super::{Ours, STREAMS, pair};
use crate::harness::{Ledger, check, pattern};

/// Sends of a burst: more than leave one by one.
const SENDS: usize = 24;
const LEN: usize = 1000;

/// Posts a burst; whether some of it is kept is a matter of what the scheduler does.
fn burst(ours: &Ours, queue: &EventQueue, seed: u64) {
    for i in 0..SENDS {
        let bytes = pattern(seed, i * LEN, LEN);
        ours.send(queue, Token(i as u64), bytes).unwrap();
    }
}

fn take(peer: &mut impl Read, seed: u64) {
    let mut got = vec![0; SENDS * LEN];
    peer.read_exact(&mut got).unwrap();
    check(seed, 0, &got);
}

/// The program waits for an answer in a call of its own, and dequeues only then.
pub fn arrives_while_no_thread_dequeues() {
    for (seed, family) in (1..).zip(STREAMS) {
        let (ours, mut peer) = pair(family);
        let mut file = ours.file();
        for round in 0..8 {
            let queue = EventQueue::new(SENDS).unwrap();
            burst(&ours, &queue, seed + round);
            take(&mut peer, seed + round);
            peer.write_all(b"!").unwrap();
            file.read_exact(&mut [0]).unwrap();
            let events = queue.dequeue_at_least(SENDS, SENDS, None).unwrap();
            let whole = events.iter().all(|e| e.error().is_none() && e.bytes() == LEN);
            assert!(whole, "{family:?}: {events:?}");
        }
    }
}

/// Bytes that the owner sends itself, by the socket that it has from us, come behind.
pub fn leaves_before_calls_of_the_owner() {
    for (seed, family) in (1..).zip(STREAMS) {
        let (ours, mut peer) = pair(family);
        let queue = EventQueue::new(SENDS).unwrap();
        burst(&ours, &queue, seed);
        nix::unistd::write(ours.get_ref(), b"behind").unwrap();
        take(&mut peer, seed);
        let mut text = [0; 6];
        peer.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"behind", "{family:?}");
        assert_eq!(queue.dequeue_at_least(SENDS, SENDS, None).unwrap().len(), SENDS);
    }
}

/// A program that closes without a look at its events has sent what there was room for.
pub fn leaves_before_a_close() {
    for (seed, family) in (1..).zip(STREAMS) {
        let (ours, mut peer) = pair(family);
        let queue = EventQueue::new(SENDS).unwrap();
        burst(&ours, &queue, seed);
        drop(ours);
        take(&mut peer, seed);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "{family:?}: and then it ends");
        let events = queue.dequeue_at_least(SENDS, SENDS, None).unwrap();
        assert!(events.iter().all(|e| e.error().is_none()), "{family:?}: {events:?}");
    }
}

/// As a bulk sender posts them, half of them awaited by a threshold; sizes that do not
/// share a call evenly, and a slow peer now and then.
pub fn is_whole() {
    for (seed, family) in (1..).zip(STREAMS) {
        let (ours, mut peer) = pair(family);
        let (len, sends) = (70_001, 400);
        let reading = std::thread::spawn(move || {
            let (mut at, mut room) = (0, vec![0; 100_000]);
            loop {
                let n = peer.read(&mut room).unwrap();
                if n == 0 {
                    return at;
                }
                check(seed, at, &room[..n]);
                at += n;
            }
        });
        let mut ledger = Ledger::with_depth(16);
        for i in 0..sends {
            let bytes = pattern(seed, i * len, len);
            ledger.post("send", |q, t| ours.send(q, t, bytes));
            if ledger.outstanding() == 16 {
                (0..8).for_each(|_| assert_eq!(ledger.ok().bytes(), len));
            }
        }
        ledger.drain();
        drop(ours);
        assert_eq!(reading.join().unwrap(), sends * len, "{family:?}");
        ledger.finish();
    }
}

/// A program whose sends find room always, and whose events are there when it comes for them,
/// never has to wait. Events of other sockets are reported all the same.
pub fn leaves_others_their_turn() {
    for (seed, family) in (1..).zip(STREAMS) {
        let ((ours, mut peer), (other, mut friend)) = (pair(family), pair(family));
        let reading = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
        let queue = EventQueue::new(SENDS + 1).unwrap();
        for round in 0..5 {
            other.recv(&queue, Token(99), vec![0; 4], RecvFlags::WAITALL).unwrap();
            burst(&ours, &queue, seed);
            let mut left = queue.dequeue_at_least(SENDS, SENDS, None).unwrap().len() - SENDS;
            friend.write_all(b"here").unwrap();
            let mut heard = false;
            while !heard {
                burst(&ours, &queue, seed);
                left += SENDS;
                while left > 0 {
                    let events = queue.dequeue(SENDS, None).unwrap();
                    let sends = events.iter().filter(|e| e.token() != Token(99)).count();
                    heard |= sends < events.len();
                    left -= sends;
                }
            }
            assert!(queue.is_empty(), "{family:?}, {round}");
        }
        drop(ours);
        reading.join().unwrap().unwrap();
    }
}
