//! The searches. Each test prints how many states it walked; the sums are quoted in
//! `spec-notes/stream-protocol.md`.

use std::time::Instant;

use super::search::{search, show};
use super::{Plan, Post, StreamConfig, all, hidden, peek, peek_all, some};

/// A plan without cancellations, shutdowns and idle times.
pub(super) fn plan(ring: u32, inline: u32, chunk: u32, sends: &[u32], recvs: &[Post]) -> Plan {
    Plan {
        cfg: StreamConfig { ring, inline_max: inline, max_chunk: chunk },
        sends: sends.to_vec(),
        recvs: recvs.to_vec(),
        cancels: 0,
        cancel_alls: 0,
        idles: 0,
        shutdown: false,
        split_write: false,
        max_advert: u32::MAX,
        max_misses: 1,
        first_phase: 0,
        broken: None,
    }
}

/// Walks all of `plan`, where ADVERTs are held back after one phase in misses, and after two;
/// at least `floor` states each time, so that a plan that has become trivial is noticed.
fn check(name: &str, floor: usize, plan: &Plan) {
    for max_misses in [1, 2] {
        let plan = Plan { max_misses, ..plan.clone() };
        walk(name, floor, &plan);
    }
}

fn walk(name: &str, floor: usize, plan: &Plan) {
    let start = Instant::now();
    let found = search(plan);
    println!(
        "{name}, {} misses: {} states ({} of them quiet), {} transitions, {:.1?}",
        plan.max_misses,
        found.states,
        found.quiet,
        found.transitions,
        start.elapsed()
    );
    if let Some((events, why)) = found.wrong {
        show(plan, &events, &why);
        panic!("{name}: {why}");
    }
    assert!(found.states >= floor, "{name}: only {} states", found.states);
}

#[test]
fn two_sends_three_receives_shutdown() {
    let plan = plan(3, 0, 2, &[2, 3], &[all(2), some(3), all(2)]);
    check("shutdown", 5_000, &Plan { shutdown: true, split_write: true, ..plan });
}

#[test]
fn cancel_of_anything_at_any_moment() {
    let plan = plan(3, 0, 2, &[2, 3], &[all(3), some(2), all(2)]);
    let plan = Plan { cancels: 2, shutdown: true, split_write: true, ..plan };
    check("two cancels", 100_000, &plan);
}

#[test]
fn cancel_with_inline_data_and_idle_rings() {
    let plan = plan(3, 1, 2, &[2, 3], &[all(3), some(2), all(2)]);
    let plan = Plan { cancels: 1, idles: 2, shutdown: true, split_write: true, ..plan };
    check("inline, idle", 200_000, &plan);
}

#[test]
fn everything_inline() {
    // The last receive is large enough to be advertised, and the others before it.
    let plan = plan(3, 3, 3, &[2, 3, 2], &[all(3), some(2), all(4)]);
    let plan = Plan { cancels: 2, idles: 1, shutdown: true, ..plan };
    check("all inline", 50_000, &plan);
}

#[test]
fn three_sends_and_close() {
    let plan = plan(4, 0, 3, &[3, 2, 3], &[all(3), some(2), all(3)]);
    let plan = Plan { cancels: 1, cancel_alls: 1, shutdown: true, ..plan };
    check("three sends, close", 100_000, &plan);
}

#[test]
fn receives_longer_than_an_advert() {
    let plan = plan(3, 1, 3, &[3, 4], &[all(5), some(3), all(3)]);
    let plan = Plan { cancels: 1, cancel_alls: 1, max_advert: 2, shutdown: true, ..plan };
    check("long receives", 100_000, &plan);
}

#[test]
fn peeks_and_hidden_receives() {
    let recvs = [all(2), peek_all(3), hidden(2), peek(2), all(3)];
    let plan = plan(3, 1, 2, &[2, 3, 2], &recvs);
    let plan = Plan { cancels: 1, idles: 1, shutdown: true, split_write: true, ..plan };
    check("peeks", 80_000, &plan);
}

#[test]
fn a_peek_that_needs_the_whole_ring() {
    let plan = plan(8, 0, 8, &[3, 9], &[hidden(1), peek_all(9), all(8)]);
    let plan = Plan { cancels: 1, shutdown: true, split_write: true, ..plan };
    check("peek of the whole ring", 3_000, &plan);
}

#[test]
fn nothing_at_all() {
    let plan = plan(2, 0, 2, &[0, 2, 0], &[some(0), all(2), some(0), some(1)]);
    let plan = Plan { cancels: 2, cancel_alls: 1, idles: 1, shutdown: true, ..plan };
    check("empty sends and receives", 10_000, &plan);
}

#[test]
fn the_smallest_ring() {
    let plan = plan(1, 0, 1, &[2, 2], &[all(2), some(1), all(2)]);
    let plan = Plan { cancels: 1, idles: 2, shutdown: true, split_write: true, ..plan };
    check("ring of one byte", 20_000, &plan);
}
