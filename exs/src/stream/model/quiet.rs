//! What must hold where nothing is on its way: everything that can end has ended.

use super::world::{Wrong, ensure};
use super::{Plan, RecvState, Rule, SendState, World};

impl World {
    /// Nothing happens any more unless an application does something.
    pub(super) fn is_quiet(&self) -> bool {
        self.fwd.is_empty()
            && self.back.is_empty()
            && self.local.is_empty()
            && !self.tx.wants_transfer()
            && !self.tx.is_waiting()
    }

    /// A sender that waits for an ADVERT (R10) does not wait for a receiver that keeps its
    /// ADVERTs until the sender goes on (R1), unless something is on its way.
    pub(super) fn check_waits(&self) -> Result<(), Wrong> {
        let under_way = !self.fwd.is_empty() || !self.back.is_empty();
        let each_other = self.tx.is_waiting() && self.rx.is_holding();
        ensure!(under_way || !each_other, "sender and receiver wait for each other");
        Ok(())
    }

    /// Checks a quiet world.
    pub(super) fn check_quiet(&self, plan: &Plan) -> Result<(), Wrong> {
        let ring = plan.cfg.ring;
        let waiting = |r: &&RecvState| matches!(r, RecvState::Pending { .. });
        let recv_waits = self.recvs.iter().any(|r| waiting(&r));
        let mut send_waits = false;
        for (i, send) in self.sends.iter().enumerate() {
            let SendState::Pending { taken, cancelled, .. } = send else { continue };
            // An empty send waits for those before it.
            let stuck = *taken == plan.sends[i] && !send_waits;
            ensure!(!stuck, "send {i} does not end, though all has gone out");
            ensure!(!cancelled, "send {i} is cancelled and does not end");
            send_waits = true;
        }
        let cancelled = |r: &RecvState| matches!(r, RecvState::Pending { cancelled: true, .. });
        ensure!(!self.recvs.iter().any(cancelled), "a cancelled receive does not end");
        ensure!(!(send_waits && recv_waits), "deadlock: a send and a receive wait");
        if send_waits {
            // Back-pressure: only a full ring holds a sender up, and a receive would
            // free it.
            ensure!(self.tx.ring_used() == ring, "a send waits, but the ring has room");
            ensure!(self.rx.buffered() > 0, "a send waits for a ring that is empty");
        }
        if let SendState::Pending { .. } = self.shutdown {
            ensure!(send_waits, "the shutdown does not end");
        }
        let shut = self.shutdown == SendState::Ended && self.tx.is_shut();
        ensure!(shut == self.rx.fin_seen(), "the end got lost");
        ensure!(!(self.rx.fin_seen() && recv_waits), "a receive waits after the end");
        self.check_accounts(plan)?;
        let sends = self.sends.iter().chain([&self.shutdown]);
        let sends = sends.filter(|s| matches!(s, SendState::Pending { .. })).count();
        let recvs = self.recvs.iter().filter(waiting).count();
        ensure!(sends == self.tx.pending(), "{sends} sends wait, not {}", self.tx.pending());
        ensure!(recvs == self.rx.pending(), "{recvs} receives wait, not {}", self.rx.pending());
        let first = self.recvs.iter().position(|r| waiting(&r));
        if let Some(i) = first.filter(|_| self.rx.buffered() > 0) {
            let post = plan.recvs[i];
            let enough = self.rx.buffered() >= post.len.min(ring);
            ensure!(post.peek && post.waitall && !enough, "receive {i} waits, but bytes are there");
        }
        Ok(())
    }

    /// Both ends count alike.
    fn check_accounts(&self, plan: &Plan) -> Result<(), Wrong> {
        let (tx_phase, tx_seq) = self.tx.phase_and_seq();
        let (rx_phase, rx_seq) = self.rx.phase_and_seq();
        ensure!(tx_seq == rx_seq, "positions: sender {tx_seq}, receiver {rx_seq}");
        ensure!(rx_seq == u64::from(self.sent), "the stream's length got lost");
        // After FIN the sender takes no ADVERT, so it does not follow.
        // Without these rules the phases differ long before it does harm.
        let spared = matches!(plan.broken, Some(Rule::PhaseSpoiled | Rule::Unadvertise));
        let same = tx_phase == rx_phase || self.rx.fin_seen() || spared;
        ensure!(same, "phases: sender {tx_phase}, receiver {rx_phase}");
        let (tx_used, rx_used) = (self.tx.ring_used(), self.rx.ring_used());
        ensure!(tx_used == rx_used, "ring: sender {tx_used} used, receiver {rx_used}");
        let held: u32 = self
            .recvs
            .iter()
            .map(|r| match r {
                RecvState::Pending { buf, .. } => buf.iter().map(|b| u32::from(*b != 0)).sum(),
                _ => 0u32,
            })
            .sum();
        let there = self.delivered + held + self.rx.buffered();
        ensure!(there == self.sent, "{} bytes sent, {there} there", self.sent);
        let stored = self.ring.bytes.iter().filter(|b| **b != 0).count();
        ensure!(stored == self.rx.buffered() as usize, "the ring holds {stored} bytes");
        ensure!(plan.cfg.ring >= self.rx.buffered(), "the ring overflows");
        Ok(())
    }
}
