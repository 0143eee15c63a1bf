//! Arbitrary frames of a link group into a listener.
//!
//! The input is a list of deeds: a byte that says what, then its numbers. Whatever the peer does, there
//! must be no panic, and the links of another group go on.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use exs::rnic::{CmEvent, Rnic};
use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs::wire::group::{GroupFrameKind, GroupHead, GroupKind, HELLO_LEN, HelloRepr, MoveRepr};
use exs_tests::rnic::world::{Harness, Pair, World, param};
use libfuzzer_sys::fuzz_target;

struct Grouped;

impl Harness for Grouped {
    type Rnic = SoftRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        let mut rnic = SoftRnic::new(registry, token_base, RandomSource::seeded(7));
        rnic.group_from(0);
        rnic
    }
}

fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (first, rest) = data.split_at(n.min(data.len()));
    *data = rest;
    first
}

fn number(data: &mut &[u8]) -> u32 {
    take(data, 4).iter().fold(0, |n, b| n << 8 | u32::from(*b))
}

/// Appends what one deed sends.
fn deed(what: u8, opened: &mut u32, data: &mut &[u8], out: &mut Vec<u8>) {
    let stream = 1 + u32::from(what >> 4) % 4;
    let mut frame = |stream, kind, payload: &[u8]| {
        let len = u32::try_from(payload.len()).expect("short");
        out.extend_from_slice(&GroupHead { stream, kind, len }.emit());
        out.extend_from_slice(payload);
    };
    match what % 8 {
        0 | 1 => {
            *opened += 1;
            frame(*opened, GroupFrameKind::Open, &[0xC0, 1, 0, 0]);
        }
        2 if what & 8 == 0 => frame(stream, GroupFrameKind::Fin, &[]),
        2 => frame(stream, GroupFrameKind::Moved, &[]),
        3 => frame(stream, GroupFrameKind::Reset, &number(data).to_be_bytes()),
        4 => frame(stream, GroupFrameKind::Window, &number(data).to_be_bytes()),
        5 => {
            frame(stream, GroupFrameKind::Data, b"MPA ID Req Frame\x18\x02\x00\x04\x00\x04\x00\x04")
        }
        6 => {
            let len = 1 + (number(data) >> 20) as usize;
            let bytes = take(data, len);
            if !bytes.is_empty() {
                frame(stream, GroupFrameKind::Data, bytes);
            }
        }
        _ => out.extend_from_slice(take(data, 9)),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut w = World::<Grouped>::new(2);
    let (_, addr) = w.listen(1, Grouped::local());
    let (a, b, now) = (w.end(0), w.end(1), w.now());
    w.rnics[0].connect(a.qp, addr, &param(&[]), now).expect("connect");
    let (req, _) = w.request(1);
    w.rnics[1].accept(req, b.qp, &param(&[]), now).expect("accept");
    w.established(a);
    w.established(b);

    let mut peer = TcpStream::connect(addr).expect("connect");
    peer.set_nonblocking(true).expect("a flag");
    let hello = HelloRepr::of_dialer(GroupKind::Many, 1 << 16, 1);
    peer.write_all(&hello.emit()).expect("a new connection has room");
    let mut answer = [0; HELLO_LEN];
    w.until("the answer", |_| peer.read_exact(&mut answer).ok());
    let token = HelloRepr::parse(&answer, true).expect("an answer").token;

    let (mut data, mut opened, mut moved) = (data, 0, Vec::new());
    while let [what, rest @ ..] = data {
        data = rest;
        let mut bytes = Vec::new();
        deed(*what, &mut opened, &mut data, &mut bytes);
        // The listener may have closed the connection.
        if peer.write_all(&bytes).is_err() {
            break;
        }
        if what & 8 == 0 {
            w.step(Duration::ZERO);
        }
        // A connection for one of its streams comes now and then.
        if what % 16 == 7 {
            let mut own = TcpStream::connect(addr).expect("connect");
            let request = MoveRepr { stream: 1 + u32::from(what >> 4) % 4, token };
            own.write_all(&request.emit()).expect("a new connection has room");
            moved.push(own);
        }
        // Requests are taken, or refused, in turn.
        while let Some(event) = w.cm[1].pop_front() {
            let CmEvent::ConnectRequest { req, .. } = event else { continue };
            let (end, now) = (w.end(1), w.now());
            let _ = w.rnics[1].accept(req, end.qp, &param(&[]), now);
        }
    }
    drop((peer, moved));
    w.settle();
    w.assert_alive(Pair { a, b });
});
