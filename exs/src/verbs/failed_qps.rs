//! The connections that have failed, to be ended in this turn, and why.
//!
//! The end of a connection may be reported several times before the driver ends it: by completions,
//! asynchronous events, refused doorbells, timers. The first report says why, and later ones are its
//! consequences. But the driver does not find them in the order in which they arose. A refused doorbell
//! is found at once, and the completion that explains it by the next poll. So a report that may be a
//! consequence gives way to one that tells a reason. Between two of one kind the first stays.

use std::collections::BTreeMap;

use crate::rnic::DisconnectCause;

/// `IBV_WC_LOC_QP_OP_ERR`.
const LOC_QP_OP_ERR: u32 = 2;
/// `IBV_WC_FATAL_ERR`.
const FATAL_ERR: u32 = 19;

/// See the module's essay.
#[derive(Default)]
pub(super) struct FailedQps(BTreeMap<u32, DisconnectCause>);

impl FailedQps {
    /// A connection has failed.
    pub(super) fn note(&mut self, qp: u32, cause: DisconnectCause) {
        let known = self.0.entry(qp).or_insert(cause);
        if weight(cause) > weight(*known) {
            *known = cause;
        }
    }

    /// A connection has failed, and the device does not say why.
    pub(super) fn note_fatal(&mut self, qp: u32) {
        self.note(qp, DisconnectCause::Device(FATAL_ERR));
    }

    /// Takes one out, to end it.
    pub(super) fn take(&mut self) -> Option<(u32, DisconnectCause)> {
        self.0.pop_first()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How much a report tells about the reason of an end.
fn weight(cause: DisconnectCause) -> u8 {
    match cause {
        // That of asynchronous events without a reason.
        DisconnectCause::Device(FATAL_ERR) => 0,
        // An end does this to what it interrupts: a device refuses doorbells, and siw reports
        // LOC_QP_OP_ERR for the WR that it was about to send.
        DisconnectCause::Broken(_) | DisconnectCause::Device(LOC_QP_OP_ERR) => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rnic::TermCode;

    const REFUSED_ACCESS: DisconnectCause =
        DisconnectCause::TerminatedByUs(TermCode { layer: 0, etype: 1, code: 0xff });
    const NO_ANSWER: DisconnectCause = DisconnectCause::Device(12);
    const INTERRUPTED: DisconnectCause = DisconnectCause::Device(LOC_QP_OP_ERR);
    const NO_DOORBELL: DisconnectCause = DisconnectCause::Broken(libc::EINVAL);
    const FATAL: DisconnectCause = DisconnectCause::Device(FATAL_ERR);

    /// The cause of an end that was reported so.
    fn cause(reports: &[DisconnectCause]) -> DisconnectCause {
        let mut failed = FailedQps::default();
        reports.iter().for_each(|cause| failed.note(7, *cause));
        let (qp, cause) = failed.take().unwrap();
        assert_eq!((qp, failed.take()), (7, None), "it ends once");
        cause
    }

    #[test]
    fn the_first_reason_stays() {
        assert_eq!(cause(&[REFUSED_ACCESS, NO_ANSWER]), REFUSED_ACCESS);
        assert_eq!(cause(&[NO_ANSWER, REFUSED_ACCESS]), NO_ANSWER);
        assert_eq!(cause(&[DisconnectCause::Orderly, NO_ANSWER]), DisconnectCause::Orderly);
        let later = DisconnectCause::Broken(libc::ENOMEM);
        assert_eq!(cause(&[NO_DOORBELL, later, INTERRUPTED]), NO_DOORBELL);
    }

    #[test]
    fn a_consequence_hides_no_reason() {
        for reason in [REFUSED_ACCESS, NO_ANSWER] {
            for consequence in [INTERRUPTED, NO_DOORBELL, FATAL] {
                assert_eq!(cause(&[reason, consequence]), reason, "{consequence:?} behind it");
                assert_eq!(cause(&[consequence, reason]), reason, "{consequence:?} before it");
            }
        }
        assert_eq!(cause(&[FATAL, INTERRUPTED, FATAL]), INTERRUPTED);
    }

    #[test]
    fn an_event_without_a_reason_ends_a_connection() {
        let mut failed = FailedQps::default();
        assert!(failed.is_empty());
        failed.note_fatal(8);
        failed.note(7, NO_ANSWER);
        assert!(!failed.is_empty());
        let ends: Vec<_> = std::iter::from_fn(|| failed.take()).collect();
        assert_eq!(ends, [(7, NO_ANSWER), (8, FATAL)]);
        assert!(failed.is_empty());
    }
}
