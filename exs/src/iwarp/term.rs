//! Error codes: from an error to the code of a TERMINATE, and from a TERMINATE to the WR that it
//! refers to (RFC 5040 section 4.8, RFC 5041 section 7.2, RFC 5044 section 8, RFC 6581 section
//! 10).

use crate::mem::AccessFault;
use crate::rnic::{TermCode, WcOp, WcStatus};
use crate::wire::ddp::{DdpBuffer, DdpError};
use crate::wire::rdmap::{Offender, Opcode, RdmapError, Terminate};

const fn code(layer: u8, etype: u8, code: u8) -> TermCode {
    TermCode { layer, etype, code }
}

/// RDMAP: something on this side failed.
pub(super) const LOCAL_CATASTROPHIC: TermCode = code(0, 0, 0);
/// RDMAP: the peer may not invalidate the key that its SEND names.
pub(super) const CANNOT_INVALIDATE: TermCode = code(0, 1, 9);
/// RDMAP: the opcode is not allowed here.
pub(super) const UNEXPECTED_OPCODE: TermCode = code(0, 2, 6);
/// RDMAP: the message makes no sense.
pub(super) const CATASTROPHIC_STREAM: TermCode = code(0, 2, 7);
/// DDP: the key of a READ response, or of a WRITE under way, is not valid.
pub(super) const TAGGED_STAG: TermCode = code(1, 1, 0);
/// DDP: a READ response goes beyond its sink.
pub(super) const TAGGED_BOUNDS: TermCode = code(1, 1, 1);
/// DDP: the queue does not exist.
pub(super) const INVALID_QN: TermCode = code(1, 2, 1);
/// DDP: there is no buffer for the message.
pub(super) const NO_BUFFER: TermCode = code(1, 2, 2);
/// DDP: the message number is not the one awaited.
pub(super) const INVALID_MSN: TermCode = code(1, 2, 3);
/// DDP: the offset is not the one awaited.
pub(super) const INVALID_MO: TermCode = code(1, 2, 4);
/// DDP: the message is longer than its buffer.
pub(super) const TOO_LONG: TermCode = code(1, 2, 5);
/// MPA: the CRC does not match.
pub(super) const BAD_CRC: TermCode = code(2, 0, 2);
/// MPA: FPDUs came too early.
pub(super) const BAD_STARTUP: TermCode = code(2, 0, 4);
/// RDMAP: the key of a READ was revoked meanwhile.
pub(super) const READ_STAG: TermCode = code(0, 1, 0);

/// Returns the code for a refused READ source, or for the word of an atomic operation.
pub(super) fn read_refused(fault: &AccessFault) -> TermCode {
    match fault {
        AccessFault::InvalidKey { .. } => READ_STAG,
        AccessFault::Bounds { .. } => code(0, 1, 1),
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(0, 1, 4),
        AccessFault::Alignment { .. } => CATASTROPHIC_STREAM,
    }
}

/// Returns the code for a refused WRITE target. DDP, which places tagged data, has no code for
/// missing rights. RDMAP, which checks rights, has one.
pub(super) fn write_refused(fault: &AccessFault) -> TermCode {
    match fault {
        AccessFault::InvalidKey { .. } => TAGGED_STAG,
        AccessFault::Bounds { .. } => TAGGED_BOUNDS,
        AccessFault::Rights { .. } => code(0, 1, 2),
        AccessFault::Wrap { .. } => code(1, 1, 3),
        // A WRITE needs no alignment.
        AccessFault::Alignment { .. } => CATASTROPHIC_STREAM,
    }
}

/// Returns the code for a DDP header that cannot be parsed.
pub(super) fn ddp(error: DdpError) -> TermCode {
    match error {
        DdpError::Version { tagged: true, .. } => code(1, 1, 4),
        DdpError::Version { tagged: false, .. } => code(1, 2, 6),
        DdpError::Short { .. } => CATASTROPHIC_STREAM,
    }
}

/// Returns the code for an RDMAP header that cannot be parsed.
pub(super) fn rdmap(error: RdmapError) -> TermCode {
    match error {
        RdmapError::Version(_) => code(0, 2, 5),
        RdmapError::Opcode(_) | RdmapError::Atomic(_) => UNEXPECTED_OPCODE,
        RdmapError::Length { .. } => CATASTROPHIC_STREAM,
    }
}

/// Returns the status of the WR that a TERMINATE refers to.
pub(super) fn status(code: TermCode) -> WcStatus {
    match (code.layer, code.etype) {
        (0, 1) | (1, 1) => WcStatus::RemoteAccess,
        (0, 2) | (1, 2) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::RemoteOperation,
    }
}

/// Returns the kind of the WR that a TERMINATE refers to, with the MSN if it has a response. The
/// quoted header tells; without one, the layer and type of the error do.
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
        (Opcode::ReadRequest, DdpBuffer::Untagged { msn, .. }) => Some((WcOp::Read, Some(msn))),
        (Opcode::AtomicRequest, DdpBuffer::Untagged { msn, .. }) => Some((WcOp::Atomic, Some(msn))),
        // A response, or a TERMINATE: no WR of this side.
        (Opcode::ReadRequest | Opcode::ReadResponse | Opcode::Terminate, _) => None,
        (Opcode::AtomicRequest | Opcode::AtomicResponse, _) => None,
        _ => Some((WcOp::Send, None)),
    }
}
