use std::os::fd::{AsRawFd, RawFd};

use super::*;
use crate::progress::ticks::{LastLeader, Program};
use crate::sys::take_epoll_events;

/// Nothing is known of the threads of the program.
struct Unknown;

impl Program for Unknown {
    fn at_work(&self) -> bool {
        false
    }

    fn last_leader(&self) -> Option<LastLeader> {
        None
    }

    fn is_runnable(&self, _: i32) -> bool {
        false
    }
}

fn ticks() -> Ticks<'static> {
    let no = &|| false;
    Ticks { program: &Unknown, armed: no, arm: no, ready: no, polls: no, keeps: no, ticked: &|| {} }
}

/// The background thread waits until it leads.
fn watch(lead: &Leadership) -> Reactor {
    match lead.background_wait(&ticks(), false) {
        Duty::Lead(reactor) => reactor,
        Duty::SleepBelow => panic!("no leader has called"),
    }
}

/// A thread leads, or follows.
fn wait_in(lead: &Leadership, waiter: &Arc<Waiter>) -> Option<Reactor> {
    lead.lead_or_follow(waiter, true).map(|taken| taken.reactor)
}

/// The background thread leads, and sleeps in the reactor. Returns the descriptor of the reactor.
fn sleeping(lead: &Leadership) -> RawFd {
    let reactor = watch(lead);
    let fd = reactor.as_raw_fd();
    assert!(lead.begin_sentry(reactor, Time::from_nanos(100)).is_none());
    assert_eq!(lead.lead(), Lead::Sentry);
    fd
}

/// True if the bell was rung. It is silent then.
fn was_rung(reactor: RawFd) -> bool {
    !take_epoll_events(reactor, Duration::ZERO, None).unwrap().is_empty()
}

const FOUND: (usize, Ready) = (7, Ready { readable: true, writable: false, hup: false });

fn lead() -> Leadership {
    Leadership::new(Reactor::new().unwrap(), Shard::FIRST).unwrap()
}

#[test]
fn a_follower_is_handed_the_lead_when_the_leader_does_not_come_back() {
    let lead = Arc::new(lead());
    let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let r = wait_in(&lead, &a).expect("free");
    assert_eq!(lead.lead(), Lead::Application);
    assert!(wait_in(&lead, &b).is_none());
    lead.leave(r, Some(&a), false);
    assert!(!b.fd.wait(Some(Duration::ZERO)).unwrap(), "the leader may come back");
    let background = Arc::clone(&lead);
    let thread = std::thread::spawn(move || watch(&background));
    assert!(b.fd.wait(None).unwrap());
    let r = match wait_in(&lead, &b) {
        Some(r) => r,
        // The background thread saw no leader for one more tick, and leads.
        None => thread.join().unwrap(),
    };
    lead.leave(r, Some(&b), false);
}

#[test]
fn a_thread_that_steps_aside_follows() {
    let lead = lead();
    let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let r = wait_in(&lead, &a).unwrap();
    assert!(wait_in(&lead, &b).is_none());
    lead.step_aside(r, &a);
    assert!(b.fd.wait(Some(Duration::ZERO)).unwrap(), "the first follower");
    assert!(!a.fd.wait(Some(Duration::ZERO)).unwrap());
    // It has its events, and ends.
    lead.unfollow(&b);
    lead.replace();
    assert!(
        a.fd.wait(Some(Duration::ZERO)).unwrap(),
        "the lead was promised to a thread that is gone"
    );
    let r = wait_in(&lead, &a).expect("free");
    lead.leave(r, Some(&a), false);
}

#[test]
fn the_background_thread_leads_at_once_when_the_last_leader_has_ended() {
    let lead = Arc::new(lead());
    let a = Waiter::new().unwrap();
    let r = wait_in(&lead, &a).unwrap();
    lead.replace();
    assert_eq!(lead.lead(), Lead::Application, "another thread leads");
    lead.leave(r, Some(&a), false);
    lead.replace();
    let no_tick = Ticks { ticked: &|| panic!("it has waited for a tick"), ..ticks() };
    let Duty::Lead(r) = lead.background_wait(&no_tick, false) else {
        panic!("no leader has called")
    };
    lead.background_leave(r);
}

#[test]
fn a_thread_that_sleeps_without_the_lead_wakes_the_first_follower() {
    let lead = lead();
    let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let r = wait_in(&lead, &a).unwrap();
    assert!(wait_in(&lead, &b).is_none());
    lead.pass_on();
    assert!(!b.fd.wait(Some(Duration::ZERO)).unwrap(), "a thread leads");
    lead.leave(r, Some(&a), false);
    lead.pass_on();
    assert!(b.fd.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(lead.lead(), Lead::Promised);
    lead.pass_on();
    let r = wait_in(&lead, &b).expect("promised");
    lead.leave(r, Some(&b), false);
    lead.pass_on();
    assert_eq!(lead.lead(), Lead::Free, "none follows");
}

#[test]
fn a_waiter_that_leads_is_woken_in_the_reactor() {
    let lead = lead();
    let a = Waiter::new().unwrap();
    let mut r = wait_in(&lead, &a).unwrap();
    lead.wake_waiter(&a);
    r.poll(None).unwrap();
    assert!(r.ready.is_empty(), "the waker is no device");
}

#[test]
fn a_companion_leads_while_no_other_thread_wants_to() {
    let lead = lead();
    let r = lead.try_companion().expect("free");
    assert_eq!(lead.lead(), Lead::Companion { asked: false });
    assert!(!lead.must_leave() && lead.try_companion().is_none());
    let a = Waiter::new().unwrap();
    assert!(wait_in(&lead, &a).is_none());
    assert!(lead.must_leave(), "a thread of this shard waits");
    lead.leave_as_companion(r, false);
    assert!(a.fd.wait(Some(Duration::ZERO)).unwrap(), "the follower is woken");
    assert!(lead.try_companion().is_none(), "the lead is promised to the follower");
    let r = wait_in(&lead, &a).expect("the follower leads");
    lead.leave(r, Some(&a), false);
    let r = lead.try_companion().expect("free again");
    assert!(lead.try_lead(false).is_none());
    assert!(lead.must_leave(), "a thread that does not wait has asked for it");
    lead.leave_as_companion(r, false);
}

#[test]
fn the_background_thread_leads_while_no_other_does_and_leaves_when_asked() {
    let lead = Arc::new(lead());
    let r = watch(&lead);
    assert_eq!(lead.lead(), Lead::Background { asked: false });
    assert!(!lead.must_leave());
    assert!(lead.try_lead(true).is_none());
    assert!(!lead.must_leave(), "polite");
    let a = Waiter::new().unwrap();
    assert!(wait_in(&lead, &a).is_none());
    assert!(lead.must_leave());
    lead.background_leave(r);
    assert!(a.fd.wait(Some(Duration::ZERO)).unwrap());
}

#[test]
fn a_thread_takes_the_lead_from_the_sleeper_and_gives_it_back() {
    let lead = lead();
    let fd = sleeping(&lead);
    assert!(lead.has_sleeper() && lead.try_companion().is_none() && lead.try_lead(true).is_none());
    let a = Waiter::new().unwrap();
    let next = Time::from_nanos;
    let taken = lead.lead_or_follow(&a, true).expect("it sleeps");
    assert!(taken.from_sleeper && lead.lead() == Lead::Application);
    assert!(lead.give_back(taken.reactor, &a, next(100)).is_none());
    assert_eq!(lead.lead(), Lead::Sentry);
    assert!(!was_rung(fd), "the background thread wakes in time");
    let reactor = wait_in(&lead, &a).expect("it still sleeps");
    assert!(lead.give_back(reactor, &a, next(99)).is_none());
    assert!(was_rung(fd), "the background thread would wake too late");
    let mut reactor = wait_in(&lead, &a).expect("it still sleeps");
    reactor.ready.push(FOUND);
    assert!(lead.give_back(reactor, &a, next(100)).is_none());
    assert!(was_rung(fd), "something is left to do");
    let reactor = lead.woke(Vec::new()).expect("it leads again");
    assert_eq!(reactor.ready, [FOUND]);
    assert!(matches!(lead.lead(), Lead::Background { asked: false }) && !lead.has_sleeper());
    lead.background_leave(reactor);
}

#[test]
fn a_leader_that_keeps_the_lead_from_the_sleeper_wakes_it_in_the_end() {
    let lead = lead();
    let fd = sleeping(&lead);
    let (a, b) = (Waiter::new().unwrap(), Waiter::new().unwrap());
    let reactor = wait_in(&lead, &a).expect("it sleeps");
    lead.leave(reactor, Some(&a), false);
    assert_eq!(lead.lead(), Lead::Free);
    assert!(was_rung(fd), "no thread looks after the shard");
    // Another thread was faster, and has taken the wake-up.
    let reactor = wait_in(&lead, &b).expect("free");
    lead.leave(reactor, Some(&b), false);
    assert!(was_rung(fd));
    assert!(lead.woke(Vec::new()).is_none());
    let reactor = wait_in(&lead, &a).expect("free");
    let kept = lead.give_back(reactor, &a, Time::ZERO).expect("no thread sleeps any more");
    lead.leave(kept, Some(&a), false);
    assert!(!was_rung(fd));
}

#[test]
fn what_the_sleeper_finds_goes_to_the_leader() {
    let lead = lead();
    sleeping(&lead);
    let a = Waiter::new().unwrap();
    let mut reactor = wait_in(&lead, &a).expect("it sleeps");
    assert!(!lead.findings.has_any());
    assert!(lead.woke(vec![FOUND]).is_none());
    assert!(lead.findings.has_any());
    lead.findings.fetch(&mut reactor.ready);
    assert!(!lead.findings.has_any());
    assert_eq!(std::mem::take(&mut reactor.ready), [FOUND]);
    assert!(lead.sleep_below(SleepEnd::FAR) && lead.woke(vec![FOUND]).is_none());
    lead.leave(reactor, Some(&a), false);
    assert!(!lead.findings.has_any());
    let reactor = wait_in(&lead, &a).expect("free");
    assert_eq!(reactor.ready, [FOUND], "the next leader has it");
    lead.leave(reactor, Some(&a), false);
    assert!(!lead.sleep_below(SleepEnd::FAR), "no thread leads");
}

#[test]
fn a_sleeper_below_a_leader_is_not_woken_for_the_deadline_that_it_knows() {
    let lead = lead();
    let fd = sleeping(&lead);
    let a = Waiter::new().unwrap();
    for (until, next, wakes) in
        [(100, 100, false), (100, 200, false), (u64::MAX, u64::MAX, false), (100, 99, true)]
    {
        let (until, next) = (Time::from_nanos(until), Time::from_nanos(next));
        let reactor = wait_in(&lead, &a).expect("it sleeps");
        assert!(lead.woke(Vec::new()).is_none() && lead.sleep_below(until));
        assert!(lead.give_back(reactor, &a, next).is_none());
        assert_eq!(was_rung(fd), wakes, "{until:?}, {next:?}");
    }
}

#[test]
fn a_thread_that_sleeps_in_several_reactors_asks_for_the_lead() {
    let lead = lead();
    let fd = sleeping(&lead);
    let a = Waiter::new().unwrap();
    assert!(lead.lead_or_follow(&a, false).is_none());
    assert!(was_rung(fd) && lead.must_leave());
    let reactor = lead.woke(Vec::new()).expect("it leads until it leaves");
    let reactor = lead.begin_sentry(reactor, Time::ZERO).expect("it must not sleep");
    lead.background_leave(reactor);
    assert!(a.fd.wait(Some(Duration::ZERO)).unwrap());
    let reactor = wait_in(&lead, &a).expect("free");
    lead.leave(reactor, Some(&a), false);
}

#[test]
fn a_leader_calls_a_parked_thread_to_sleep_below_it() {
    let lead = Arc::new(lead());
    let a = Waiter::new().unwrap();
    let reactor = wait_in(&lead, &a).expect("free");
    let background = Arc::clone(&lead);
    let thread = std::thread::spawn(move || {
        let duty = background.background_wait(&ticks(), true);
        matches!(duty, Duty::SleepBelow) && background.sleep_below(SleepEnd::FAR)
    });
    while !lead.is_parked() {
        std::thread::yield_now();
    }
    lead.call_sleeper_below();
    assert!(thread.join().unwrap());
    assert!(!lead.is_parked() && lead.has_sleeper());
    lead.leave(reactor, Some(&a), false);
}
