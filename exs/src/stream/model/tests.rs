//! The searches.
use super::search::{search, show};
use super::{Plan, Post, StreamConfig, all, hidden, peek, peek_all, some};

pub(super) fn plan(ring: u32, inline_max: u32, max_chunk: u32, sends: &[u32], recvs: &[Post]) -> Plan {
    Plan {
        cfg: StreamConfig { ring, inline_max, max_chunk },
        sends: sends.to_vec(),
        recvs: recvs.to_vec(),
        cancels: 0,
        cancel_alls: 0,
        idles: 0,
        shutdown: false,
        split_write: false,
        max_advert: u32::MAX,
        broken: None,
    }
}

fn check(name: &str, plan: &Plan) {
    let start = std::time::Instant::now();
    let found = search(plan);
    println!("{name}: {} states, {} transitions, {} quiet ({:?})", found.states, found.transitions, found.quiet, start.elapsed());
    if let Some((events, why)) = found.wrong {
        show(plan, &events, &why);
        panic!("{name}: {why}");
    }
}

#[test]
fn plain() {
    check("plain", &plan(3, 0, 2, &[2, 3], &[all(2), some(3), all(2)]));
}
#[test]
fn cancel1() {
    check("cancel", &Plan { cancels: 1, shutdown: true, ..plan(3, 0, 2, &[2, 3], &[all(3), some(2), all(2)]) });
}
#[test]
fn inline() {
    check("inline", &Plan { cancels: 1, shutdown: true, ..plan(3, 1, 2, &[2, 3], &[all(3), some(2), all(2)]) });
}
#[test]
fn peeks() {
    check("peeks", &Plan { cancels: 1, shutdown: true, ..plan(3, 1, 2, &[2, 3], &[peek_all(3), hidden(2), peek(2), all(2)]) });
}
