//! Error codes: from what went wrong to what a TERMINATE says, and back to the
//! WR that it means (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044
//! section 8, RFC 6581 section 10).

use crate::mem::AccessFault;
use crate::rnic::{TermCode, WcOp, WcStatus};
use crate::wire::ddp::{DdpError, Place};
use crate::wire::rdmap::{Offender, Opcode, RdmapError, Terminate};

const fn code(layer: u8, etype: u8, code: u8) -> TermCode {
    TermCode { layer, etype, code }
}

/// RDMAP: something of ours failed.
pub(super) const LOCAL_CATASTROPHIC: TermCode = code(0, 0, 0);
/// RDMAP: the key that a SEND wants to invalidate is not the peer's to end.
pub(super) const CANNOT_INVALIDATE: TermCode = code(0, 1, 9);
/// RDMAP: an opcode that does not belong here.
pub(super) const UNEXPECTED_OPCODE: TermCode = code(0, 2, 6);
/// RDMAP: a message that makes no sense.
pub(super) const CATASTROPHIC_STREAM: TermCode = code(0, 2, 7);
/// DDP: a READ response, or a WRITE under way, to a key that is not valid.
pub(super) const TAGGED_STAG: TermCode = code(1, 1, 0);
/// DDP: a READ response beyond its sink.
pub(super) const TAGGED_BOUNDS: TermCode = code(1, 1, 1);
/// DDP: no such queue.
pub(super) const INVALID_QN: TermCode = code(1, 2, 1);
/// DDP: no buffer for the message.
pub(super) const NO_BUFFER: TermCode = code(1, 2, 2);
/// DDP: not the message number awaited.
pub(super) const INVALID_MSN: TermCode = code(1, 2, 3);
/// DDP: not the offset awaited.
pub(super) const INVALID_MO: TermCode = code(1, 2, 4);
/// DDP: the message is longer than its buffer.
pub(super) const TOO_LONG: TermCode = code(1, 2, 5);
/// MPA: the CRC does not fit.
pub(super) const BAD_CRC: TermCode = code(2, 0, 2);
/// MPA: FPDUs before their time.
pub(super) const BAD_STARTUP: TermCode = code(2, 0, 4);
/// RDMAP: a READ of a key that was taken back meanwhile.
pub(super) const READ_STAG: TermCode = code(0, 1, 0);

/// A READ's source was refused.
pub(super) fn read_refused(fault: &AccessFault) -> TermCode {
    match fault {
        AccessFault::InvalidKey { .. } => READ_STAG,
        AccessFault::Bounds { .. } => code(0, 1, 1),
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(0, 1, 4),
    }
}

/// A WRITE's target was refused. DDP, which places tagged data, has no code for
/// missing rights; RDMAP, which checks them, has.
pub(super) fn write_refused(fault: &AccessFault) -> TermCode {
    match fault {
        AccessFault::InvalidKey { .. } => TAGGED_STAG,
        AccessFault::Bounds { .. } => TAGGED_BOUNDS,
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(1, 1, 3),
    }
}

/// A DDP header was not understood.
pub(super) fn ddp(error: DdpError) -> TermCode {
    match error {
        DdpError::Version { tagged: true, .. } => code(1, 1, 4),
        DdpError::Version { tagged: false, .. } => code(1, 2, 6),
        DdpError::Short { .. } => CATASTROPHIC_STREAM,
    }
}

/// An RDMAP header was not understood.
pub(super) fn rdmap(error: RdmapError) -> TermCode {
    match error {
        RdmapError::Version(_) => code(0, 2, 5),
        RdmapError::Opcode(_) => UNEXPECTED_OPCODE,
        RdmapError::Length { .. } => CATASTROPHIC_STREAM,
    }
}

/// How the WR that a TERMINATE means ends.
pub(super) fn status(code: TermCode) -> WcStatus {
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

/// Which kind of WR a TERMINATE means, with the MSN if it is a READ: by the
/// header that came back, else by where such an error comes from.
pub(super) fn meant(terminate: &Terminate) -> Option<(WcOp, Option<u32>)> {
    if let Some(offender) = &terminate.offender
        && let Ok(opcode) = Opcode::parse(offender.header.control)
    {
        return by_header(offender, opcode);
    }
    match (terminate.layer, terminate.etype) {
        (0, 1) => Some((WcOp::Read, None)),
        (1, 1) => Some((WcOp::Write, None)),
        (1, 2) => Some((WcOp::Send, None)),
        _ => None,
    }
}

fn by_header(offender: &Offender, opcode: Opcode) -> Option<(WcOp, Option<u32>)> {
    match (opcode, offender.header.place) {
        (Opcode::Write, _) => Some((WcOp::Write, None)),
        (Opcode::ReadRequest, Place::Untagged { msn, .. }) => Some((WcOp::Read, Some(msn))),
        // Our answer to a READ, or an answer to an answer: no WR of ours.
        (Opcode::ReadRequest | Opcode::ReadResponse | Opcode::Terminate, _) => None,
        _ => Some((WcOp::Send, None)),
    }
}
