//! Anything at any time, by seed: what holds whatever happens.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;

use exs::{Interest, RecvFlags, Token};

use super::{ALL, Ours, descriptors, set_nonblocking};
use crate::harness::{Ledger, Rng};

/// A socket, and a peer that does not block (until it goes).
struct Pair {
    ours: Ours,
    peer: Option<File>,
    tokens: Vec<Token>,
}

fn post(pair: &mut Pair, ledger: &mut Ledger, rng: &mut Rng) {
    let (ours, size) = (&pair.ours, rng.size(200_000));
    let flags = RecvFlags::NONE.with_waitall(rng.one_in(2)).with_peek(rng.one_in(5));
    let token = match rng.between(0, 9) {
        0..=3 => ledger.post("send", |q, t| ours.send(q, t, vec![1; size])),
        4..=7 => ledger.post("recv", |q, t| ours.recv(q, t, vec![0; size], flags)),
        8 => ledger.post("poll", |q, t| ours.poll(q, t, Interest::BOTH)),
        _ => {
            let parts = (0..rng.between(1, 40)).map(|i| vec![1; i * 10].into()).collect();
            ledger.post("send", |q, t| ours.send_vectored(q, t, parts))
        }
    };
    pair.tokens.push(token);
}

/// The peer reads, writes, or goes.
fn disturb(pair: &mut Pair, rng: &mut Rng) {
    let mut block = vec![2; rng.size(100_000)];
    // Calls that cannot proceed now do nothing: the peer does not block.
    match (&mut pair.peer, rng.between(0, 20)) {
        (Some(peer), 0..=9) => drop(peer.read(&mut block)),
        (Some(peer), 10..=19) => drop(peer.write(&block)),
        _ => pair.peer = None,
    }
}

/// Sends, receives, polls, cancels, shutdowns, peers that come and go: each operation has
/// one event, no descriptor is left, no flag is changed.
pub fn every_operation_has_one_event() {
    for seed in 1..=200 {
        let (mut rng, mut ledger) = (Rng::new(seed), Ledger::new());
        let mut pairs: Vec<Pair> = ALL
            .iter()
            .map(|family| {
                let (a, b) = family.pair();
                set_nonblocking(&b, true);
                Pair { ours: Ours::new(a), peer: Some(File::from(b)), tokens: Vec::new() }
            })
            .collect();
        for _ in 0..400 {
            let at = rng.between(0, pairs.len() - 1);
            let pair = &mut pairs[at];
            match rng.between(0, 99) {
                0..=49 => post(pair, &mut ledger, &mut rng),
                50..=84 => disturb(pair, &mut rng),
                85..=94 if !pair.tokens.is_empty() => {
                    let i = rng.between(0, pair.tokens.len() - 1);
                    assert!(pair.ours.cancel(pair.tokens.swap_remove(i)) <= 1, "seed {seed}");
                }
                95 => drop(pair.ours.cancel_all()),
                96 if rng.one_in(3) => {
                    let ours = &pair.ours;
                    ledger.post("shutdown", |q, t| ours.shutdown(q, t, Shutdown::Write));
                }
                _ => drop(ledger.poll(std::time::Duration::ZERO)),
            }
        }
        let inodes: Vec<u64> = pairs.iter().map(|p| p.ours.inode()).collect();
        drop(pairs);
        ledger.finish();
        assert!(inodes.iter().all(|i| descriptors(*i) == 0), "seed {seed}");
    }
}
