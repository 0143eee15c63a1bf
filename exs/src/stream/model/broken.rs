//! Each rule is dropped in turn, and the search must find what goes wrong then: the
//! evidence that the searches of `tests.rs` could fail.

use super::search::{search, show};
use super::tests::plan;
use super::{Plan, Rule, all, hidden, peek_all, some};

/// Drops `rule`, demands a counterexample that says `why`, prints the shortest.
fn must_fail(rule: Rule, why: &str, plan: Plan) {
    // The same plan without the damage is right, so it is the rule that matters.
    assert!(search(&plan).wrong.is_none(), "the plan fails with every rule kept");
    let plan = Plan { broken: Some(rule), ..plan };
    let found = search(&plan);
    let (events, wrong) = found.wrong.unwrap_or_else(|| panic!("{rule:?} is not needed"));
    println!("without {rule:?}, after {} states:", found.states);
    show(&plan, &events, &wrong);
    assert!(wrong.contains(why), "another fault than expected: {wrong}");
}

#[test]
fn advertising_over_a_ring_with_bytes_in_it() {
    must_fail(
        Rule::RingEmpty,
        "overwrites a byte that is in use",
        plan(3, 0, 3, &[1, 2], &[all(2), all(2)]),
    );
}

#[test]
fn advertising_past_a_receive_that_cannot_be() {
    must_fail(
        Rule::EarlierAdvertised,
        "the sender broke the protocol: direct",
        plan(3, 0, 3, &[2, 2], &[hidden(2), some(2)]),
    );
}

#[test]
fn holding_back_for_ever() {
    must_fail(Rule::HoldEnds, "deadlock", plan(2, 0, 2, &[2, 2, 2], &[all(5)]));
}

#[test]
fn waiting_for_a_receiver_that_waits() {
    must_fail(Rule::WaitEnds, "wait for each other", plan(3, 0, 2, &[2, 3], &[all(4)]));
}

#[test]
fn taking_an_advert_whatever_its_position() {
    must_fail(
        Rule::SeqMatches,
        "which is not pending",
        plan(4, 0, 2, &[2, 2, 2], &[all(3), some(2)]),
    );
}

#[test]
fn matching_a_later_advert_by_accident() {
    must_fail(
        Rule::PhaseSpoiled,
        "through a closed window",
        plan(4, 0, 2, &[2, 2, 2], &[all(4), some(2)]),
    );
}

#[test]
fn taking_an_advert_of_a_phase_gone_by() {
    must_fail(
        Rule::OldPhaseDropped,
        "through a closed window",
        plan(3, 0, 2, &[2, 2], &[all(3), some(2)]),
    );
}

#[test]
fn leaving_a_waitall_advert_before_it_is_full() {
    must_fail(
        Rule::WaitallStays,
        "direct data of 2 bytes",
        plan(3, 0, 2, &[2, 2], &[all(3), some(2)]),
    );
}

#[test]
fn keeping_adverts_through_indirect_data() {
    let plan = plan(4, 0, 1, &[1, 1, 1, 1], &[some(1), some(2), some(2)]);
    must_fail(Rule::Unadvertise, "WRITE to receive 2", Plan { idles: 1, ..plan });
}

#[test]
fn ending_a_cancelled_receive_that_the_peer_may_write() {
    let plan = Plan { cancels: 1, ..plan(3, 0, 2, &[2], &[all(2)]) };
    must_fail(Rule::AwaitWithdrawn, "WRITE to receive 0", plan);
}

#[test]
fn advertising_while_a_withdrawal_is_out() {
    let plan = Plan { cancels: 1, ..plan(3, 0, 2, &[2, 2], &[all(2), some(2)]) };
    must_fail(Rule::QuietWhileWithdrawing, "through a closed window", plan);
}

#[test]
fn answering_a_withdrawal_without_forgetting() {
    let plan = Plan { cancels: 1, ..plan(3, 0, 2, &[2], &[all(2)]) };
    must_fail(Rule::WithdrawForgets, "WRITE to receive 0", plan);
}

#[test]
fn never_acknowledging() {
    must_fail(
        Rule::AckFreed,
        "a ring that is empty",
        plan(2, 0, 2, &[2, 2], &[hidden(2), hidden(2)]),
    );
}

#[test]
fn keeping_freed_bytes_from_a_peek() {
    // Below the threshold of a quarter, nothing else would tell the sender.
    must_fail(Rule::AckForPeek, "deadlock", plan(8, 0, 8, &[9], &[hidden(1), peek_all(8)]));
}

#[test]
fn letting_receives_wait_after_the_end() {
    let plan = Plan { shutdown: true, ..plan(2, 0, 2, &[2], &[all(3)]) };
    must_fail(Rule::FinCompletes, "after the end", plan);
}

#[test]
fn giving_back_a_ring_in_use() {
    let plan = Plan { idles: 1, ..plan(3, 0, 2, &[2, 2], &[hidden(2)]) };
    must_fail(Rule::ReleaseEmpty, "RING_RELEASE", plan);
}

#[test]
fn leaving_a_window_open() {
    let plan = Plan { shutdown: true, ..plan(3, 0, 2, &[2], &[all(2)]) };
    must_fail(Rule::RetractFirst, "with its window open", plan);
}
