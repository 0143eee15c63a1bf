//! Two engines and the bytes between them.

use std::collections::VecDeque;
use std::os::unix::fs::FileExt;

use crate::iwarp::*;
use crate::mem::{Access, Grant, Key, KeyTable, MAX_SGE, Region, Scope, Segment, Sgl};
use crate::rnic::{SendOp, Wc};

/// splitmix64: one number makes a whole run.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

pub(super) const PD: u32 = 1;

pub(super) fn config(qp: u32) -> Config {
    Config {
        qp,
        pd: PD,
        crc: false,
        ird: 4,
        ord: 4,
        max_send_wr: 64,
        max_recv_wr: 64,
        uses_srq: false,
        mss: 1460,
        peer_to_peer: false,
    }
}

/// A shared receive queue.
#[derive(Default)]
pub(super) struct Shared(pub(super) VecDeque<RxBuf>);

impl RxSource for Shared {
    fn pop(&mut self) -> Option<RxBuf> {
        self.0.pop_front()
    }
}

/// The number of bytes that the link moves at a time.
#[derive(Clone, Copy)]
pub(super) enum Bite {
    /// All bytes that are there.
    Whole,
    /// A random number, up to this.
    UpTo(usize),
}

impl Bite {
    pub(super) fn of(self, rng: &mut Rng, there: usize) -> usize {
        match self {
            Bite::Whole => there,
            Bite::UpTo(n) => (1 + rng.below(n)).min(there),
        }
    }
}

/// One end: an engine and the state of its driver.
pub(super) struct Side {
    pub(super) engine: IwarpEngine,
    pub(super) keys: KeyTable,
    pub(super) pool: TxPool,
    pub(super) srq: Option<Shared>,
    /// Bytes on their way to the peer, and whether an end of file follows them.
    pub(super) wire: VecDeque<u8>,
    pub(super) fin: bool,
    /// Lookahead that a stall left over.
    pub(super) held: Vec<u8>,
    pub(super) stalled: bool,
    eof_seen: bool,
    pub(super) wcs: Vec<Wc>,
    pub(super) events: Vec<IwarpEvent>,
    pub(super) qp: u32,
    draw: u32,
}

impl Side {
    pub(super) fn new(engine: IwarpEngine, qp: u32) -> Side {
        Side {
            engine,
            keys: KeyTable::new(),
            pool: TxPool::new(),
            srq: None,
            wire: VecDeque::new(),
            fin: false,
            held: Vec::new(),
            stalled: false,
            eof_seen: false,
            wcs: Vec::new(),
            events: Vec::new(),
            qp,
            draw: qp << 16,
        }
    }

    /// Issues a key for memory.
    pub(super) fn key(&mut self, segment: &Segment, access: Access, scope: Scope) -> Key {
        let grant = Grant { segment: segment.clone(), access, scope };
        let mut draw = self.draw;
        let key = self.keys.insert(grant, &mut || {
            draw += 1;
            draw
        });
        self.draw = draw;
        key
    }

    /// Opens a window for the peer.
    pub(super) fn window(&mut self, segment: &Segment, access: Access) -> Key {
        let scope = Scope::QueuePair(PD, self.qp);
        self.key(segment, access, scope)
    }

    /// Takes the engine's next step. Returns false if there was nothing to do.
    pub(super) fn send(&mut self, rng: &mut Rng, bite: Bite) -> bool {
        let mut bytes = Vec::new();
        enum Did {
            Gather,
            File(std::io::Result<usize>),
        }
        let did = match self.engine.poll_tx(&mut self.pool) {
            SendStep::Idle => return false,
            SendStep::Shutdown => {
                self.fin = true;
                self.drain();
                return true;
            }
            SendStep::Gather(gather) => {
                let mut chunks = 0;
                gather.for_each(&mut |chunk| {
                    chunks += 1;
                    match chunk {
                        GatherChunk::Bytes(b) => bytes.extend_from_slice(b),
                        GatherChunk::Memory { seg, off, len } => {
                            let at = bytes.len();
                            bytes.resize(at + len, 0);
                            seg.read_at(off, &mut bytes[at..]);
                        }
                    }
                });
                assert!(chunks <= MAX_CHUNKS);
                assert!(!bytes.is_empty(), "a gather of nothing would spin");
                Did::Gather
            }
            SendStep::File { file, offset, len } => {
                bytes.resize(bite.of(rng, len), 0);
                Did::File(file.read_at(&mut bytes, offset))
            }
        };
        let n = match did {
            Did::Gather => {
                let n = bite.of(rng, bytes.len());
                self.engine.handle_sent(n);
                n
            }
            Did::File(Ok(n)) => {
                self.engine.handle_file_sent(n);
                n
            }
            Did::File(Err(e)) => {
                self.engine.handle_file_error(e.raw_os_error().unwrap());
                0
            }
        };
        self.wire.extend(&bytes[..n]);
        self.drain();
        true
    }

    /// Receives from `from`. Returns false if nothing could be done.
    pub(super) fn receive(
        &mut self,
        rng: &mut Rng,
        bite: Bite,
        from: &mut VecDeque<u8>,
        fin: bool,
    ) -> bool {
        let mut direct = 0;
        let mut lookahead = std::mem::take(&mut self.held);
        if lookahead.is_empty() && !self.stalled {
            let mut budget = bite.of(rng, from.len());
            let mut place = Vec::new();
            // Sometimes the driver ignores direct placement.
            if !rng.chance(4) {
                self.engine.rx_direct(&mut |seg, off, len| place.push((seg.clone(), off, len)));
            }
            for (seg, off, len) in place {
                let n = len.min(budget);
                let bytes: Vec<u8> = from.drain(..n).collect();
                seg.write_at(off, &bytes);
                direct += n;
                budget -= n;
                if n < len {
                    break;
                }
            }
            lookahead.extend(from.drain(..budget));
        }
        if direct == 0 && lookahead.is_empty() && !self.stalled {
            if from.is_empty() && fin && !self.eof_seen {
                self.eof_seen = true;
                self.engine.handle_eof();
                self.drain();
                return true;
            }
            return false;
        }
        let srq = self.srq.as_mut().map(|s| s as &mut dyn RxSource);
        let result = self.engine.handle_received(direct, &lookahead, &mut self.keys, srq);
        let was = self.stalled;
        self.stalled = result.stalled;
        assert!(result.stalled || result.consumed == lookahead.len(), "all, or stalled");
        assert!(!result.stalled || self.srq.as_ref().is_some_and(|s| s.0.is_empty()));
        self.held = lookahead.split_off(result.consumed);
        self.drain();
        !(was && self.stalled && result.consumed == 0)
    }

    /// Gives the receive of a half-received message back to the SRQ.
    pub(super) fn spill(&mut self) {
        let held = self.engine.can_spill();
        let buf = self.engine.spill();
        assert_eq!(buf.is_some(), held);
        assert!(!self.engine.can_spill());
        if let (Some(srq), Some(buf)) = (&mut self.srq, buf) {
            srq.0.push_front(buf);
        }
    }

    pub(super) fn drain(&mut self) {
        self.engine.drain_wcs(&mut self.wcs);
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }
}

/// Two ends.
pub(super) struct Pair {
    pub(super) a: Side,
    pub(super) b: Side,
    pub(super) rng: Rng,
    pub(super) bite: Bite,
}

impl Pair {
    /// Makes ends that have not exchanged a byte yet.
    pub(super) fn raw(cfg: Config, private_data: &[u8], seed: u64) -> Pair {
        let a = Side::new(IwarpEngine::initiator(cfg, private_data).unwrap(), cfg.qp);
        let b = Side::new(IwarpEngine::responder(), cfg.qp + 1);
        Pair { a, b, rng: Rng(seed), bite: Bite::Whole }
    }

    /// Makes connected ends.
    pub(super) fn new(a: Config, b: Config, seed: u64) -> Pair {
        let mut pair = Pair::raw(a, b"hello", seed);
        pair.settle();
        assert!(matches!(&pair.b.events[..], [IwarpEvent::Request { private_data }]
            if private_data == b"hello"));
        pair.b.engine.accept(b, b"welcome").unwrap();
        pair.b.drain();
        pair.settle();
        assert!(matches!(&pair.a.events[..], [IwarpEvent::Established { private_data, .. }]
            if private_data == b"welcome"));
        pair.a.events.clear();
        pair.b.events.clear();
        pair
    }

    /// Does one step at one side. Returns false if that side had nothing to do.
    pub(super) fn step(&mut self) -> bool {
        match self.rng.below(4) {
            0 => self.a.send(&mut self.rng, self.bite),
            1 => self.b.send(&mut self.rng, self.bite),
            2 => self.a.receive(&mut self.rng, self.bite, &mut self.b.wire, self.b.fin),
            _ => self.b.receive(&mut self.rng, self.bite, &mut self.a.wire, self.a.fin),
        }
    }

    /// Runs until neither side can do anything.
    pub(super) fn settle(&mut self) {
        loop {
            let mut moved = self.a.send(&mut self.rng, self.bite);
            moved |= self.b.send(&mut self.rng, self.bite);
            moved |= self.a.receive(&mut self.rng, self.bite, &mut self.b.wire, self.b.fin);
            moved |= self.b.receive(&mut self.rng, self.bite, &mut self.a.wire, self.a.fin);
            if !moved {
                return;
            }
        }
    }
}

pub(super) fn segment(bytes: &[u8]) -> Segment {
    Region::from_vec(bytes.to_vec()).segment(0, bytes.len()).unwrap()
}

pub(super) fn contents(seg: &Segment) -> Vec<u8> {
    let mut out = vec![0; seg.len()];
    seg.read_at(0, &mut out);
    out
}

pub(super) fn sgl(segs: &[Segment]) -> Sgl {
    let mut sgl = Sgl::new();
    for seg in segs {
        sgl.push(seg.clone()).unwrap();
    }
    sgl
}

pub(super) fn recv(wr_id: u64, segs: &[Segment]) -> RxBuf {
    RxBuf { wr_id, sgl: sgl(segs), lkeys: [0; MAX_SGE] }
}

/// Makes a signalled WR with inline bytes and segments.
pub(super) fn wr(wr_id: u64, op: SendOp, head: &[u8], segs: &[Segment]) -> TxWr {
    let mut inline = Inline::EMPTY;
    assert!(inline.push(head));
    let (sgl, lkeys) = (sgl(segs), [0; MAX_SGE]);
    TxWr { wr_id, op, head: inline, sgl, lkeys, file: None, signaled: true }
}

pub(super) const SEND: SendOp = SendOp::Send { invalidate: None, solicited: false };

/// Makes a READ into `sink`.
pub(super) fn read(wr_id: u64, raddr: u64, rkey: Key, sink: &[Segment], sink_key: Key) -> TxWr {
    let mut wr = wr(wr_id, SendOp::Read { raddr, rkey }, b"", sink);
    wr.lkeys[0] = sink_key;
    wr
}
