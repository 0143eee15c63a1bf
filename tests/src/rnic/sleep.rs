//! A thread that sleeps misses nothing, whatever turns came before.

use std::time::Duration;

use exs::mem::Access;
use exs::rnic::Rnic;

use super::tools::Buf;
use super::world::{End, Harness, Pair, World, param, send_wr};
use crate::harness::Rng;
use crate::skip::skip;

/// Runs of random turns, each with a seed of its own.
const RUNS: u64 = 20;
/// Turns of a run.
const TURNS: usize = 1000;
/// Connections: more than an RNIC serves in a turn, so that some wait for the next one.
const PAIRS: usize = 40;
/// Bytes of a message at most: more than a ring of shared memory holds.
const LONGEST: usize = 300_000;

/// One end with its memory, and what it has sent and received.
struct Talker {
    end: End,
    src: Buf,
    dst: Buf,
    sent: u64,
    received: u64,
}

impl Talker {
    fn new<H: Harness>(w: &mut World<H>, end: End) -> Talker {
        let src = w.buf(end, vec![7; LONGEST], Access::LOCAL_READ);
        let dst = w.zeros(end, LONGEST);
        Talker { end, src, dst, sent: 0, received: 0 }
    }

    fn send<H: Harness>(&mut self, w: &mut World<H>, len: usize) {
        self.sent += 1;
        w.send(self.end, &send_wr(self.sent, &[self.src.part(0, len)]));
    }

    /// Takes the completions that are there, and posts as many receives again.
    fn drain<H: Harness>(&mut self, w: &mut World<H>) {
        let (_, received) = w.drain(self.end);
        for _ in &received {
            w.recv(self.end, 0, &[self.dst.sge()]);
        }
        self.received += received.len() as u64;
    }
}

/// The sides of many connections send messages of many lengths. Their threads take turns of every
/// kind: with a question to the reactor and without one, with the announcement of a sleep and without
/// it. Then both only sleep, and every message comes.
pub fn no_message_waits_for_a_thread_that_polls<H: Harness>() {
    for seed in 1..=(RUNS / H::SHRINK as u64).max(1) {
        talk::<H>(seed);
    }
}

fn talk<H: Harness>(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut w = World::<H>::new(2);
    let pds = [0, 1].map(|node| w.rnics[node].alloc_pd().expect("alloc_pd"));
    let pairs = (PAIRS / H::SHRINK).max(2);
    let mut pairs: Vec<[Talker; 2]> = (0..pairs)
        .map(|_| {
            let (a, b) = (w.end_in(0, pds[0], None), w.end_in(1, pds[1], None));
            let pair = w.join(a, b, &param(&[]));
            [pair.a, pair.b].map(|end| Talker::new(&mut w, end))
        })
        .collect();
    let most = w.recv_depth.min(w.caps(0).max_send_wr).min(w.caps(1).max_send_wr).min(64) as u64;
    for talker in pairs.iter().flatten() {
        (0..most).for_each(|_| w.recv(talker.end, 0, &[talker.dst.sge()]));
    }
    for _ in 0..TURNS {
        let (at, side) = (rng.between(0, pairs.len() - 1), rng.between(0, 1));
        let talkers = &mut pairs[at];
        match rng.between(0, 11) {
            0..=7 => {
                let on_the_way = talkers[side].sent - talkers[1 - side].received;
                if on_the_way < most {
                    let len = rng.size(w.long(LONGEST));
                    talkers[side].send(&mut w, len);
                }
            }
            8 => {
                let now = w.now();
                w.rnics[side].progress(now);
            }
            9 => w.wait(Duration::ZERO),
            10 => w.step(Duration::ZERO),
            _ => talkers[side].drain(&mut w),
        }
    }
    w.until(&format!("end of the messages, seed {seed}"), |w| {
        pairs.iter_mut().flatten().for_each(|talker| talker.drain(w));
        let came = |[a, b]: &[Talker; 2]| a.received == b.sent && b.received == a.sent;
        pairs.iter().all(came).then_some(())
    });
}

/// A look in memory finds what comes for a thread that only sleeps between its looks, as it does for
/// one that spins: also after a new connection, whose setup takes system calls.
pub fn looks_in_memory_need_no_spins<H: Harness>() {
    let (mut w, p) = World::<H>::pair();
    // Enough for each setup to be left to the reactor.
    (0..1000).for_each(|_| w.spin());
    if !finds_in_memory(&mut w, p) {
        return skip("it finds what comes by system calls, or in a turn");
    }
    let (a, b) = (w.end(0), w.end(1));
    let new = w.join(a, b, &param(&[]));
    assert!(finds_in_memory(&mut w, new), "a setup that is over keeps threads from looking");
}

/// True if the receiver of a message can look in memory for more.
fn finds_in_memory<H: Harness>(w: &mut World<H>, pair: Pair) -> bool {
    w.recv(pair.b, 1, &[]);
    w.send(pair.a, &send_wr(1, &[]));
    w.received(pair.b);
    w.rnics[1].poll_memory().is_some()
}
