//! What a device is like.
//!
//! Its capabilities and limits are those that it had when it was opened. Two things show later: how
//! many bytes it takes inline, as queue pairs are made, and whether it reports the last receive of a
//! queue pair, as they end.

use super::caps::caps;
use super::last_wqe::{LastWqe, MAX_LOST};
use super::pool::max_receives;
use super::raw::Attr;
use super::send_budget::Shares;
use crate::rnic::Caps;

/// Bytes to ask for inline, in this order: a device that takes fewer refuses more.
const INLINE: [u32; 6] = [256, 192, 128, 80, 64, 0];

/// See the module's essay.
pub(super) struct DeviceProfile {
    caps: Caps,
    attr: Attr,
    shares: Shares,
    /// The most bytes that it has not refused to take inline.
    max_inline: u32,
    last_wqe: LastWqe,
}

impl DeviceProfile {
    /// The profile of a device of this name. `max_msg`: the longest message of its first port.
    pub(super) fn new(name: String, max_msg: Option<u32>, attr: Attr) -> DeviceProfile {
        DeviceProfile {
            caps: caps(name, max_msg, &attr),
            shares: Shares::of(attr.max_qp_wr),
            attr,
            max_inline: u32::MAX,
            last_wqe: LastWqe::default(),
        }
    }

    // ---- fixed -------------------------------------------------------------------------

    /// Its capabilities, in the trait's terms.
    #[inline]
    pub(super) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// "rxe0", "mlx5_0".
    pub(super) fn name(&self) -> &str {
        &self.caps.name
    }

    #[inline]
    pub(super) fn is_iwarp(&self) -> bool {
        self.attr.iwarp
    }

    /// True if it is the kernel's Soft-RoCE.
    #[inline]
    pub(super) fn is_rxe(&self) -> bool {
        self.attr.is_rxe()
    }

    /// True if it has shared receive queues that are long enough.
    #[inline]
    pub(super) fn has_srq(&self) -> bool {
        self.attr.has_srq()
    }

    /// True if it gathers the bytes of a send from more than one segment.
    #[inline]
    pub(super) fn gathers(&self) -> bool {
        self.attr.max_sge >= 2
    }

    /// How its send queues are shared out.
    pub(super) fn shares(&self) -> Shares {
        self.shares
    }

    /// The longest receive queue of a queue pair.
    pub(super) fn max_recv_wr(&self) -> u32 {
        self.attr.max_qp_wr
    }

    /// The most receives of a queue pair that has them from pools.
    pub(super) fn max_receives(&self) -> u16 {
        max_receives(&self.attr)
    }

    /// The segments of a WR, for which queue pairs are made.
    pub(super) fn qp_sges(&self) -> u32 {
        // One more for the copied bytes, if the device has one.
        u32::try_from(self.caps.max_sge + 1).unwrap_or(2).min(self.attr.max_sge)
    }

    // ---- learnt ------------------------------------------------------------------------

    /// The numbers of inline bytes to ask for, one after the other until the device makes the queue pair.
    pub(super) fn inline_sizes(&self) -> impl Iterator<Item = u32> + use<> {
        let most = self.max_inline;
        INLINE.into_iter().filter(move |n| *n <= most)
    }

    /// The device has made a queue pair for which this number of inline bytes was asked.
    pub(super) fn note_inline(&mut self, asked: u32) {
        self.max_inline = asked;
    }

    /// True if it is worth waiting for the report of a queue pair's last receive.
    pub(super) fn may_report_last_wqe(&self) -> bool {
        // siw flushes everything at once, and no iWARP driver is known to report the last receive.
        !self.attr.iwarp && !self.last_wqe.is_silent()
    }

    /// It has reported the last receive of a queue pair.
    pub(super) fn note_last_wqe(&mut self) {
        self.last_wqe.reported();
    }

    /// It has not reported the last receive of a queue pair in time.
    pub(super) fn note_no_last_wqe(&mut self) {
        self.last_wqe.missed();
    }

    /// The most receives that an SRQ loses with a queue pair that ends amid messages. `reported`: the
    /// device has reported the last one.
    pub(super) fn lost_receives(&self, reported: bool) -> usize {
        // siw flushes even the receive that a message was arriving in.
        match (self.attr.is_rxe(), reported || self.attr.is_siw()) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => MAX_LOST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MAX_SGE;

    fn profile(attr: Attr) -> DeviceProfile {
        DeviceProfile::new("device".to_owned(), None, attr)
    }

    #[test]
    fn a_size_of_inline_bytes_that_was_refused_is_not_asked_for_again() {
        let mut profile = profile(Attr::default());
        assert_eq!(profile.inline_sizes().collect::<Vec<_>>(), INLINE);
        profile.note_inline(80);
        assert_eq!(profile.inline_sizes().collect::<Vec<_>>(), [80, 64, 0]);
        profile.note_inline(0);
        assert_eq!(profile.inline_sizes().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn two_waits_show_that_a_device_does_not_report_the_last_receive() {
        let mut silent = profile(Attr::default());
        let waits = [(); 3].map(|()| {
            let may = silent.may_report_last_wqe();
            silent.note_no_last_wqe();
            may
        });
        assert_eq!(waits, [true, true, false]);
        let mut reports = profile(Attr::default());
        reports.note_last_wqe();
        (0..3).for_each(|_| reports.note_no_last_wqe());
        assert!(reports.may_report_last_wqe(), "it has once");
        assert!(!profile(Attr { iwarp: true, ..Attr::default() }).may_report_last_wqe());
    }

    #[test]
    fn an_srq_loses_what_the_device_does_not_flush() {
        let lost = |vendor, iwarp| {
            let profile = profile(Attr { vendor: (vendor, 0), iwarp, ..Attr::default() });
            [false, true].map(|reported| profile.lost_receives(reported))
        };
        assert_eq!(lost(0x15b3, false), [MAX_LOST, 0]);
        assert_eq!(lost(0xff_ffff, false), [1, 1], "rxe, without the receive of a cut message");
        assert_eq!(lost(0x62_6d74, true), [0, 0], "siw flushes all");
    }

    #[test]
    fn queue_pairs_have_a_segment_for_copied_bytes_if_the_device_has_two() {
        for (max_sge, gathers, caller) in [(1, false, 1), (2, true, 1), (3, true, 2)] {
            let profile =
                profile(Attr { max_sge, max_srq: 1, max_srq_wr: 4096, ..Attr::default() });
            assert_eq!((profile.gathers(), profile.caps().max_sge), (gathers, caller), "{max_sge}");
            assert_eq!(profile.qp_sges(), max_sge);
        }
        let attr = Attr { max_sge: 1000, max_srq: 1, max_srq_wr: 4096, ..Attr::default() };
        assert_eq!(profile(attr).qp_sges() as usize, MAX_SGE + 1);
    }
}
