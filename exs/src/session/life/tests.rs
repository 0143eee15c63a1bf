//! The tables: each event in each state, the invariants, the drawings.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;

thread_local! {
    static TAKEN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes a transition that a session has taken.
pub(super) fn note_taken<M: Machine>(from: M, event: M::Event) {
    TAKEN.with_borrow_mut(|taken| _ = taken.insert(name(from, event)));
}

/// The rows of all tables that no session of this thread has taken.
pub(in crate::session) fn never_taken() -> Vec<String> {
    let all = rows::<Stage>().into_iter().chain(rows::<OwnClose>()).chain(rows::<PeerClose>());
    TAKEN.with_borrow(|taken| all.filter(|row| !taken.contains(row)).collect())
}

fn name<M: Machine>(from: M, event: M::Event) -> String {
    format!("{} {from:?}: {event:?}", std::any::type_name::<M>())
}

fn rows<M: Machine>() -> Vec<String> {
    M::TABLE.iter().map(|(from, event, _)| name(*from, *event)).collect()
}

/// An event as a call of `Life`.
type Act = (&'static str, fn(&mut Life));

const ACTS: [Act; 17] = [
    ("connected", Life::on_connected),
    ("accepted", Life::on_accepted),
    ("ready", |l| _ = l.on_ready()),
    ("refused", Life::on_refused),
    ("failed", |l| l.on_failed(OpError::Cancelled)),
    ("leave", |l| _ = l.leave()),
    ("cut", |l| _ = l.cut()),
    ("disconnected", |l| l.on_disconnected(DisconnectCause::Orderly)),
    ("settle", |l| _ = l.settle()),
    ("close", |l| _ = l.on_close()),
    ("waive", Life::waive_answer),
    ("peer close", |l| _ = l.on_peer_close()),
    ("answer", |l| _ = l.on_answer()),
    ("queue close", |l| _ = l.queue_close()),
    ("queue answer", |l| _ = l.queue_answer()),
    ("close sent", Life::on_close_sent),
    ("answer sent", Life::on_answer_sent),
];

/// What distinguishes two lives.
type State = (Stage, OwnClose, PeerClose, bool, Option<ConnectionEnd>);

fn state(l: &Life) -> State {
    (l.stage, l.own, l.peer, l.abandoned, l.end.clone())
}

fn life((stage, own, peer, abandoned, end): State) -> Life {
    Life { stage, own, peer, abandoned, end, ..Life::new() }
}

/// Each call in each state that calls can lead to.
#[test]
fn each_event_in_each_state_keeps_the_invariants() {
    let mut found = vec![state(&Life::new())];
    let mut at = 0;
    while let Some(before) = found.get(at).cloned() {
        at += 1;
        for (name, act) in ACTS {
            let mut l = life(before.clone());
            act(&mut l);
            let why = format!("{name} in {before:?} gives {l:?}");
            let ended = matches!(l.stage, Stage::Failed | Stage::Cut | Stage::Gone | Stage::Down);
            assert_eq!(l.reason().is_some(), ended, "a reason, and only at the end: {why}");
            assert!(l.stage >= before.0, "no way back: {why}");
            assert!(before.4.is_none() || l.end == before.4, "the first end stays: {why}");
            assert!(l.stage != Stage::Cut || l.abandoned, "a cut is given up: {why}");
            let left = l.stage == Stage::Leaving;
            assert!(!left || l.own == OwnClose::Answered, "left without an answer: {why}");
            assert!(l.is_over() || before.0 < Stage::Leaving, "alive again: {why}");
            assert!(!l.may_talk() || !l.is_over(), "{why}");
            assert!(!l.is_open() || !l.is_closing(), "{why}");
            if !found.contains(&state(&l)) {
                found.push(state(&l));
            }
        }
    }
    let stages = found.iter().map(|s| s.0 as u8).collect::<BTreeSet<_>>();
    assert_eq!(stages.len(), 9, "all stages are reachable");
    assert!(found.len() > 100, "{} states", found.len());
}

/// An event has one result, and the end is final.
#[test]
fn each_table_is_a_function() {
    fn check<M: Machine>() {
        for (i, (from, event, to)) in M::TABLE.iter().enumerate() {
            assert_eq!(from.after(*event), Some(*to), "row {i} is hidden by another");
            assert!(from != to, "row {i} changes nothing");
        }
    }
    check::<Stage>();
    check::<OwnClose>();
    check::<PeerClose>();
    let last = |(_, _, to): &&(Stage, StageEvent, Stage)| *to == Stage::Down;
    assert_eq!(Stage::TABLE.iter().filter(last).count(), 1);
    assert!(Stage::TABLE.iter().all(|(from, ..)| *from != Stage::Down));
}

#[test]
fn what_a_stage_allows() {
    use Stage::*;
    // Stage, may talk, awaits READY, is connected, is over, is gone.
    let table = [
        (Idle, [false, true, false, false, false]),
        (Mute, [false, true, true, false, false]),
        (Open, [true, false, true, false, false]),
        (Refused, [false, false, true, false, false]),
        (Leaving, [false, false, true, true, false]),
        (Failed, [false, false, false, true, false]),
        (Cut, [false, false, false, true, false]),
        (Gone, [false, false, false, true, true]),
        (Down, [false, false, false, true, true]),
    ];
    for (stage, expected) in table {
        let l = Life { stage, ..Life::new() };
        let is = [l.may_talk(), l.awaits_ready(), l.is_connected(), l.is_over(), l.is_gone()];
        assert_eq!(is, expected, "{stage:?}");
    }
}

#[test]
fn how_a_connection_ended() {
    let end = |own, peer, cause| {
        let mut l = Life { stage: Stage::Open, own, peer, ..Life::new() };
        l.on_disconnected(cause);
        assert_eq!(l.settle(), Some(cause));
        assert_eq!(l.settle(), None, "once");
        let before = (l.reason().cloned(), l.failure().is_some());
        // Neither the peer's answer nor its own close changes that afterwards.
        l.on_answer();
        l.on_peer_close();
        assert_eq!((l.reason().cloned(), l.failure().is_some()), before);
        let (reason, failed) = before;
        (reason.unwrap(), failed)
    };
    let (orderly, broken) = (DisconnectCause::Orderly, DisconnectCause::Broken(libc::EPIPE));
    let (no, closed) = (OwnClose::No, PeerClose::Sent);
    assert_eq!(end(no, closed, broken), (OpError::PeerClosed, false));
    assert_eq!(end(no, PeerClose::No, DisconnectCause::Aborted), (OpError::Aborted, true));
    assert_eq!(end(no, PeerClose::No, broken), (OpError::Reset { cause: broken }, true));
    for (own, failed) in [(no, true), (OwnClose::Sent, true), (OwnClose::Answered, false)] {
        let reset = OpError::Reset { cause: orderly };
        assert_eq!(end(own, PeerClose::No, orderly), (reset, failed), "{own:?}");
    }
    let answered = end(OwnClose::Answered, PeerClose::No, broken);
    assert_eq!(answered, (OpError::Reset { cause: broken }, true));
}

/// The drawing of a table, for a reader of `spec-notes/session.md`.
fn drawing<M: Machine>(first: M) -> String {
    let mut out = format!("```mermaid\nstateDiagram-v2\n    [*] --> {first:?}\n");
    for (from, event, to) in M::TABLE {
        out += &format!("    {from:?} --> {to:?}: {event:?}\n");
    }
    out + "```\n"
}

#[test]
fn the_drawings_show_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../spec-notes/session.md");
    let notes = std::fs::read_to_string(path).expect("the notes on the session");
    for expected in [drawing(Stage::Idle), drawing(OwnClose::No), drawing(PeerClose::No)] {
        assert!(notes.contains(&expected), "{path} must contain\n{expected}");
    }
}
