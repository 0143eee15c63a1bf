//! The bytes of an FPDU are those of its CRC, however little of it TCP takes at a time.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

use exs::mem::Access;
use exs::rnic::{EagerSend, HEAD, Rnic, SendWr, WcOp, WcStatus};
use exs::sys::IoVec;
use exs::wire::ddp::{DdpBuffer, Header, UNTAGGED_LEN};
use exs::wire::mpa;
use exs::wire::rdmap::{Opcode, QN_READ, READ_REQUEST_LEN, ReadRequest};
use exs_tests::harness::Rng;
use exs_tests::rnic::World;
use exs_tests::rnic::world::{Buf, End, pattern, send_wr, write_wr};

use super::Soft;
use super::held::raw_sink;

/// Work requests in flight, each with memory of its own.
const WRS: u64 = 6;
/// Bytes of their memory: together more than the socket's buffers take.
const LEN: usize = 3 << 20;
/// Bytes that the peer READs at a time.
const SHOWN: usize = 400_000;
/// Bytes after which a run ends.
const ENOUGH: usize = 48 << 20;

fn fpdu(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut ddp = [0; UNTAGGED_LEN];
    let n = header.emit(&mut ddp);
    let ulpdu = n + payload.len();
    let mut out = u16::try_from(ulpdu).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(&ddp[..n]);
    out.extend_from_slice(payload);
    out.resize(out.len() + mpa::pad(ulpdu), 0);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&mpa::emit_crc(crc));
    out
}

/// The peer: it reads as much as it is told to, and checks each FPDU.
struct Peer {
    stream: TcpStream,
    /// Bytes of an FPDU that is not complete.
    begun: Vec<u8>,
    received: usize,
    /// Bytes of READ responses that are due.
    due: usize,
    reads: u32,
}

impl Peer {
    fn read(&mut self, most: usize, sender: &mut Sender) {
        let mut bytes = vec![0; most];
        if let Ok(n @ 1..) = self.stream.read(&mut bytes) {
            self.received += n;
            self.begun.extend_from_slice(&bytes[..n]);
        }
        let begun = std::mem::take(&mut self.begun);
        let mut rest = &begun[..];
        while let Some(head) = rest.first_chunk::<2>() {
            let ulpdu = usize::from(u16::from_be_bytes(*head));
            let (end, len) = (2 + ulpdu, 2 + ulpdu + mpa::trailer_len(ulpdu));
            if rest.len() < len {
                break;
            }
            let covered = end + mpa::pad(ulpdu);
            let crc = mpa::emit_crc(crc32c::crc32c(&rest[..covered]));
            let header = Header::parse(&rest[2..]).unwrap();
            assert_eq!(rest[covered..len], crc, "{len} bytes changed after their CRC: {header:?}");
            self.take(&header, &rest[2 + header.len()..end], sender);
            rest = &rest[len..];
        }
        self.begun = rest.to_vec();
    }

    fn take(&mut self, header: &Header, payload: &[u8], sender: &mut Sender) {
        let opcode = Opcode::parse(header.control).unwrap();
        match (opcode, header.place) {
            (Opcode::ReadResponse, _) => self.due -= payload.len(),
            (Opcode::Write, DdpBuffer::Tagged { to, .. }) => {
                let from = usize::try_from(to).unwrap();
                sender.arrived(payload, from, header.last);
            }
            (_, DdpBuffer::Untagged { mo, .. }) => {
                sender.arrived(payload, usize::try_from(mo).unwrap(), header.last);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Asks for all that the sender shows.
    fn ask(&mut self, shown: &Buf) {
        if self.due > 0 {
            return;
        }
        self.due = SHOWN;
        self.reads += 1;
        let place = DdpBuffer::Untagged { ulp: 0, qn: QN_READ, msn: self.reads, mo: 0 };
        let header = Header { last: true, control: Opcode::ReadRequest.control(), place };
        let request = ReadRequest {
            sink_stag: 1,
            sink_to: 0,
            size: u32::try_from(SHOWN).unwrap(),
            src_stag: shown.mr.key,
            src_to: shown.addr(),
        };
        let request: [u8; READ_REQUEST_LEN] = request.emit();
        self.stream.write_all(&fpdu(&header, &request)).unwrap();
    }
}

/// What the software RNIC sends.
struct Sender {
    end: End,
    memory: Vec<Buf>,
    /// The messages under way, in order.
    expected: VecDeque<Vec<u8>>,
    rounds: u64,
}

impl Sender {
    fn arrived(&mut self, payload: &[u8], from: usize, last: bool) {
        let message = self.expected.front().expect("a message that was sent");
        assert_eq!(payload, &message[from..from + payload.len()], "other bytes than were posted");
        assert_eq!(last, from + payload.len() == message.len());
        if last {
            self.expected.pop_front();
        }
    }

    /// Fills a WR's memory, which is the program's, and posts it.
    fn post(&mut self, w: &mut World<Soft>, wr_id: u64, rng: &mut Rng) {
        self.rounds += 1;
        let len = rng.size(LEN);
        let bytes = pattern(self.rounds, len);
        let memory = &self.memory[usize::try_from(wr_id).unwrap()];
        memory.put(0, &bytes);
        // In pieces, with some bytes that the WR carries itself.
        let cut = rng.between(0, len);
        let sges = [memory.part(0, cut), memory.part(cut, len - cut)];
        let sges: Vec<_> = sges.into_iter().filter(|s| s.len > 0).collect();
        let head = if rng.one_in(2) { &b"inline"[..] } else { b"" };
        let wr = match rng.one_in(3) {
            true => send_wr(wr_id, &sges),
            false => write_wr(wr_id, &sges, 0, 7),
        };
        self.expected.push_back([head, &bytes].concat());
        w.send(self.end, &SendWr { head, ..wr });
    }

    /// Sends a message eagerly, and changes its bytes at once.
    fn send_eagerly(&mut self, w: &mut World<Soft>, rng: &mut Rng) {
        let mut bytes = pattern(self.rounds, rng.between(1, 900));
        let sent = w.rnics[0].try_send_eager(
            self.end.qp,
            &IoVec::new(&bytes),
            &mut |head: &mut [u8; HEAD]| {
                head[..4].copy_from_slice(b"head");
                4
            },
        );
        if sent != EagerSend::Declined {
            self.expected.push_back([b"head", &bytes[..]].concat());
        }
        bytes.fill(0xee);
        let now = w.now();
        w.rnics[0].flush(self.end.qp, now);
    }

    /// Takes completions: their memory is the program's again, and it changes it.
    fn reap(&mut self, w: &mut World<Soft>) -> Vec<u64> {
        let (sends, _) = w.drain(self.end);
        for wc in &sends {
            assert_eq!(wc.status, WcStatus::Success);
            assert!(matches!(wc.op, WcOp::Send | WcOp::Write));
            self.memory[usize::try_from(wc.wr_id).unwrap()].put(0, &vec![0xdd; LEN]);
        }
        sends.iter().map(|wc| wc.wr_id).collect()
    }
}

/// A peer that reads a little at a time, so that TCP takes parts of FPDUs. Memory changes as soon as
/// it may: that of a WR with its completion, that of an eager message with the call, and that of a READ
/// response at any time. The peer finds each CRC to be that of the bytes.
fn changes_reach_no_fpdu(large: bool) {
    let mut w = World::<Soft>::new(1);
    let end = w.end(0);
    let stream = raw_sink(&mut w, end, large);
    let mut peer = Peer { stream, begun: Vec::new(), received: 0, due: 0, reads: 0 };
    let memory = (0..WRS).map(|_| w.zeros(end, LEN)).collect();
    let shown = w.buf(end, vec![0; SHOWN], Access::ALL);
    let mut sender = Sender { end, memory, expected: VecDeque::new(), rounds: 0 };
    let (mut rng, mut idle, mut was_full) = (Rng::new(7), (0..WRS).collect::<Vec<_>>(), false);
    while peer.received < ENOUGH {
        sender.send_eagerly(&mut w, &mut rng);
        for wr_id in std::mem::take(&mut idle) {
            sender.post(&mut w, wr_id, &mut rng);
        }
        peer.ask(&shown);
        w.spin();
        let done = sender.reap(&mut w);
        was_full |= done.is_empty();
        idle.extend(done);
        shown.put(0, &pattern(sender.rounds ^ peer.received as u64, SHOWN));
        peer.read(rng.between(1, 300_000), &mut sender);
    }
    assert!(was_full && peer.reads > 1, "TCP took everything at once");
}

#[test]
fn changes_reach_no_large_fpdu() {
    changes_reach_no_fpdu(true);
}

/// FPDUs for peers of other makes, which leave one by one.
#[test]
fn changes_reach_no_fpdu_of_a_segment() {
    changes_reach_no_fpdu(false);
}
