//! The capabilities of a device.

use super::pool::{POOLED_SGES, max_receives};
use super::raw::Attr;
use super::send_budget::Shares;
use super::slots;
use crate::mem::MAX_SGE;
use crate::rnic::Caps;

/// Bytes that one WR may move.
const MAX_MSG: u64 = 1 << 30;
/// Receives of an SRQ.
const MAX_SRQ_WR: u32 = 32 << 10;

/// The capabilities of a device, in the trait's terms. `max_msg`: the longest message of its first port.
pub(super) fn caps(name: String, max_msg: Option<u32>, attr: &Attr) -> Caps {
    let iwarp = attr.iwarp;
    let max_msg = max_msg.map_or(MAX_MSG, |max| u64::from(max).min(MAX_MSG));
    let sges = usize::try_from(attr.max_sge).unwrap_or(1);
    let (most_sges, srq_wr) = match attr.has_srq() {
        true => (MAX_SGE, attr.max_srq_wr.min(attr.max_cqe)),
        false => (POOLED_SGES, MAX_SRQ_WR),
    };
    Caps {
        name,
        write_imm: !iwarp,
        initiator_first: iwarp,
        read_sink_remote_write: iwarp,
        write_acked: !iwarp,
        small_reads: !iwarp,
        pins: true,
        file_source: false,
        windows: attr.windows,
        atomics: attr.atomics,
        owns_tcp_port: iwarp,
        within_host: false,
        doorbell_calls: false,
        srq_waits: !iwarp && attr.has_srq(),
        random_keys: false,
        pads_private_data: !iwarp,
        tells_solicited: false,
        tells_reasons: false,
        // One segment is for copied bytes.
        max_sge: sges.saturating_sub(1).clamp(1, most_sges),
        max_inline: slots::SLOT_LEN,
        max_msg: max_msg.max(1 << 20),
        max_ord: attr.max_ord.clamp(1, 128),
        max_ird: attr.max_ird.clamp(1, 128),
        // librdmacm: 56 of the 92 bytes of an IB CM request are left. iWARP's MPA has 512, of which the
        // kernel's interface passes 255; the CM uses 4 of them.
        max_private_data: if iwarp { 251 } else { 56 },
        max_send_wr: Shares::of(attr.max_qp_wr).caller,
        max_srq_wr: usize::try_from(srq_wr.min(MAX_SRQ_WR)).unwrap_or(1),
        max_receives: if attr.has_srq() { 0 } else { max_receives(attr) },
    }
}
