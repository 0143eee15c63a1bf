//! Of many connections each has its turn, while the thread that moves them all never sleeps.
//!
//! Turns are counted, not time. A connection that needs more turns than there are connections
//! waits for others that always have more.

use exs::mem::Access;
use exs::rnic::Rnic;

use super::skip;
use super::world::{Harness, Pair, World, param, send_wr, write_wr};

/// Connections that always have something: more than an RNIC looks at or serves at a time.
const FLOODS: usize = 80;
/// WRITEs in flight on each, so that there is always a next one.
const IN_FLIGHT: u64 = 4;
/// Turns in which each connection has had one, and one more, even if a turn serves four.
const ENOUGH: usize = 2 * (FLOODS + 1) / 4;

/// Senders (node 0) that flood their receivers (node 1), and a quiet pair beside them.
struct Flood<H: Harness> {
    w: World<H>,
    /// A turn of the thread that moves them.
    step: fn(&mut World<H>),
    pairs: Vec<Pair>,
    /// WRITEs that are over, of each.
    written: Vec<u64>,
    quiet: Pair,
    /// Of the source (address and key are the sink's).
    wr: (exs::rnic::Sge, u64, exs::mem::Key),
}

impl<H: Harness> Flood<H> {
    /// None, said, if nothing of it is up to the RNIC.
    fn begin(step: fn(&mut World<H>)) -> Option<Flood<H>> {
        if !H::is_software(0) || !H::is_software(1) {
            skip("the device moves data while no thread calls");
            return None;
        }
        let mut w = World::<H>::new(2);
        let pds = [0, 1].map(|node| w.rnics[node].alloc_pd().unwrap());
        let mut join = || {
            let (a, b) = (w.end_in(0, pds[0], None), w.end_in(1, pds[1], None));
            w.join(a, b, &param(&[]))
        };
        let (pairs, quiet): (Vec<_>, _) = ((0..FLOODS).map(|_| join()).collect(), join());
        let src = w.buf(pairs[0].a, vec![7; H::LONGER_THAN_A_TURN], Access::LOCAL_READ);
        let dst = w.zeros(pairs[0].b, H::LONGER_THAN_A_TURN);
        let wr = (src.sge(), dst.addr(), dst.mr.key);
        let mut flood = Flood { w, step, written: vec![0; pairs.len()], pairs, quiet, wr };
        for i in 0..FLOODS {
            (0..IN_FLIGHT).for_each(|_| flood.write(i));
        }
        // Both have seen that they are busy.
        flood.turns_until("each has its turn", 10 * ENOUGH, |f| f.written.iter().all(|n| *n > 2));
        Some(flood)
    }

    fn write(&mut self, i: usize) {
        let (sge, addr, key) = self.wr;
        self.w.send(self.pairs[i].a, &write_wr(0, &[sge], addr, key));
    }

    /// One turn of each node; what is over is posted again.
    fn turn(&mut self) {
        (self.step)(&mut self.w);
        for i in 0..FLOODS {
            let (done, _) = self.w.drain(self.pairs[i].a);
            for _ in done {
                self.written[i] += 1;
                self.write(i);
            }
        }
    }

    fn turns_until(&mut self, what: &str, most: usize, done: impl Fn(&mut Self) -> bool) {
        for _ in 0..most {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("not in {most} turns: {what}; {:?}", self.written);
    }
}

/// Connections that are ready again as soon as they were served keep no other from its turn, whether the
/// thread spins or not.
pub fn busy_connections_starve_no_other<H: Harness>() {
    for step in [World::spin, World::lead] {
        let Some(mut f) = Flood::<H>::begin(step) else { return };
        for n in 0..5 {
            let Pair { a, b } = f.quiet;
            f.w.recv(b, n, &[]);
            f.w.send(a, &send_wr(n, &[]));
            let heard = |f: &mut Flood<H>| !f.w.drain(b).1.is_empty();
            f.turns_until("the quiet connection has its turn", ENOUGH, heard);
        }
    }
}

/// A doorbell sends posted work: it gives arrived data no turn before that of other connections.
pub fn a_doorbell_is_no_turn<H: Harness>() {
    let Some(mut f) = Flood::<H>::begin(World::spin) else { return };
    f.written.fill(0);
    let silent = FLOODS / 2..FLOODS;
    let mut turns = 0;
    // A busy kernel delivers to some connections many turns later than to others.
    while turns < 2 * ENOUGH || f.written[silent.clone()].contains(&0) {
        assert!(turns < 20 * ENOUGH, "a silent connection starves: {:?}", f.written);
        turns += 1;
        for i in 0..silent.start {
            let (qp, now) = (f.pairs[i].b.qp, f.w.now());
            f.w.rnics[1].flush(qp, now);
        }
        f.turn();
    }
    let (rang, silent) = f.written.split_at(silent.start);
    let sum = |written: &[u64]| written.iter().sum::<u64>();
    assert!(sum(rang) <= 2 * sum(silent), "{:?}", f.written);
}
