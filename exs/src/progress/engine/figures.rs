//! Sums of what connections counted.

use crate::session::Counters;

macro_rules! sum {
    ($into:expr, $from:expr, $($field:ident),* $(,)?) => {
        // Names every field, so that a new field cannot be forgotten.
        let Counters { $($field),* } = $from;
        $($into.$field = $into.$field.saturating_add($field);)*
    };
}

/// Adds the counters of one connection to a sum. Both stop at the greatest value.
pub(in crate::progress) fn add(sum: &mut Counters, one: &Counters) {
    sum!(
        sum,
        *one,
        sends,
        recvs,
        one_sided,
        tx_direct,
        tx_indirect,
        tx_inline,
        rx_direct,
        rx_indirect,
        rx_inline,
        read_bytes,
        write_bytes,
        copies,
        copied_bytes,
        adverts_sent,
        adverts_received,
        adverts_stale,
        credit_stalls,
        queue_stalls,
        receives_added,
        receives_dropped,
        messages_sent,
        messages_received,
        confirms,
        rings_granted,
    );
}
