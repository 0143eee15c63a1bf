//! Arbitrary bytes in the memory that a peer shares, and on the socket beside it.
//!
//! The input is a list of deeds: a byte that says what, then its numbers. Whatever the
//! peer does, there must be no panic and no byte outside of the window that it was given.
#![no_main]

use exs::mem::Access;
use exs::rnic::Rnic;
use exs::shm::ShmRnic;
use exs::sys::RandomSource;
use exs_tests::rnic::world::{Harness, World, param};
use exs_tests::shm::{Head, Hello, Intruder, TOTAL, WORDS};
use libfuzzer_sys::fuzz_target;

struct Shm;

impl Harness for Shm {
    type Rnic = ShmRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> ShmRnic {
        ShmRnic::new(registry, token_base, RandomSource::seeded(7))
    }
}

fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (first, rest) = data.split_at(n.min(data.len()));
    *data = rest;
    first
}

fn number(data: &mut &[u8]) -> u64 {
    take(data, 4).iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

fuzz_target!(|data: &[u8]| {
    let mut w = World::<Shm>::new(1);
    let (_, addr) = w.listen(0, Shm::local());
    let mut peer = Intruder::call(addr, &Hello::to(addr));
    let end = w.end(0);
    let (req, _) = w.request(0);
    let now = w.now();
    w.rnics[0].accept(req, end.qp, &param(&[]), now).expect("accept");
    w.until("ACCEPT", |_| peer.hear());
    peer.ready();
    w.established(end);
    let memory = w.buf(end, vec![7; 1000], Access::LOCAL);
    let (at, access) = (memory.addr() + 450, Access::REMOTE_WRITE);
    let key = w.rnics[0].bind_mw(end.qp, memory.mr, at, 100, access).expect("bind_mw");
    let into = w.zeros(end, 300);
    (0..4).for_each(|id| w.recv(end, id, &[into.sge()]));
    let mut data = data;
    while let [what, rest @ ..] = data {
        data = rest;
        match what % 4 {
            0 => {
                let offset = number(&mut data) % TOTAL;
                peer.write(offset, take(&mut data, 8));
            }
            1 => {
                let word = usize::from(*what) / 4 % WORDS.len();
                peer.write(WORDS[word], &number(&mut data).to_ne_bytes());
            }
            2 => peer.say(take(&mut data, 24), &[]),
            _ => {
                let [.., kind, flags, pieces, lines] = number(&mut data).to_be_bytes();
                let (inline, total) = (number(&mut data) >> 16, number(&mut data) >> 20);
                let raddr = memory.addr().wrapping_add(number(&mut data) >> 20);
                let inline = u32::try_from(inline).expect("16 bits");
                let mut body = Head { kind, flags, pieces, inline, raddr, total, key }.bytes();
                body.extend_from_slice(take(&mut data, 256));
                peer.record(&body, u64::from(lines % 8) + 1);
            }
        }
        w.step(std::time::Duration::ZERO);
    }
    let bytes = memory.bytes();
    assert!(bytes[..450].iter().chain(&bytes[550..]).all(|b| *b == 7), "around the window");
});
