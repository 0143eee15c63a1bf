//! The ticks in which the background thread looks for a leader: how long they are, and what it does
//! after each. Pure: the caller says what it sees.

use std::time::Duration;

/// The time without a leader after which the background thread leads.
const TICK: Duration = Duration::from_millis(1);
/// The tick if threads of the program have led in each of the last ticks. They will most likely
/// come back, and to look after them costs time. With many connections, to handle the events of a
/// turn can take milliseconds. Two threads that both lead would take the engine and the data from
/// each other.
pub(super) const LONG_TICK: Duration = Duration::from_millis(10);
/// The tick while threads follow. Their events would wait that long.
const SHORT_TICK: Duration = Duration::from_micros(250);
/// Ticks become long after this many ticks in a row in which threads of the program led.
const STEADY: u32 = 4;
/// After this many ticks in a row with the same leader, the background thread sleeps until another
/// thread wakes it. After fewer ticks this would not pay: a leader that comes and goes would wake it
/// each time, with a system call and a switch of threads.
const PARKS_AFTER: u32 = 2;
/// Looks in a row at which a thread of the program may have the engine instead of leading.
const AT_WORK: u32 = 4;
/// Looks in a row at which the last leader may wait for a processor instead of leading.
const PREEMPTED: u32 = 12;
/// The ticks at such looks double up to this many times.
const DOUBLINGS: u32 = 2;

/// What the background thread sees of the threads of the program while none of them leads.
pub(super) trait Program {
    /// One of them has the engine. Some devices move the data in the posting call, which takes
    /// milliseconds. A leader would wait for the engine's lock meanwhile.
    fn at_work(&self) -> bool;

    /// The last leader, and how long it has had a processor so far. None: it is not known.
    fn last_leader(&self) -> Option<LastLeader>;

    /// True if this thread has a processor or waits for one.
    fn is_runnable(&self, thread: i32) -> bool;
}

/// The thread of the program that led last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastLeader {
    /// Its number (gettid(2)).
    pub(super) thread: i32,
    /// How long it has had a processor so far.
    pub(super) ran: Duration,
}

/// The background thread's record of the leads of other threads.
pub(super) struct Lookout {
    /// The number of leads that had ended at the last look.
    seen: Option<u64>,
    /// The last leader as it was at the last look that asked for it.
    leader: Option<LastLeader>,
    /// Looks in a row between which other threads led.
    busy: u32,
    /// Looks in a row at the same leader.
    still: u32,
    /// Looks in a row at a thread that has the engine, or waits for a processor.
    left_alone: u32,
}

/// What the background thread does after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterLook {
    /// It waits for a tick.
    Wait,
    /// The leader does not leave: it sleeps until another thread wakes it.
    Park,
    /// No thread has led since the last look: it has a thread lead, or leads.
    Call,
}

impl Lookout {
    /// `hasty`: other threads have hardly left the lead to the background thread.
    pub(super) fn new(hasty: bool) -> Lookout {
        let busy = if hasty { STEADY } else { 0 };
        Lookout { seen: None, leader: None, busy, still: 0, left_alone: 0 }
    }

    /// The background thread was parked, and is awake.
    pub(super) fn begin_anew(&mut self) {
        (self.seen, self.still) = (None, 0);
    }

    /// Looks for a leader. `ended`: the number of leads that have ended. `led`: a thread leads.
    pub(super) fn look(&mut self, ended: u64, led: bool, program: &dyn Program) -> AfterLook {
        let unchanged = self.seen.replace(ended) == Some(ended);
        if unchanged && !led {
            return self.look_at_program(program);
        }
        self.left_alone = 0;
        self.busy = if unchanged { 0 } else { self.busy + 1 };
        self.still = if unchanged { self.still + 1 } else { 0 };
        if self.busy > STEADY {
            self.leader = program.last_leader();
        }
        if self.still >= PARKS_AFTER { AfterLook::Park } else { AfterLook::Wait }
    }

    /// No thread leads, and none has led since the last look.
    fn look_at_program(&mut self, program: &dyn Program) -> AfterLook {
        self.still = 0;
        let preempted = self.is_preempted(program);
        let most = match preempted {
            true => PREEMPTED,
            false if program.at_work() => AT_WORK,
            false => 0,
        };
        if self.left_alone >= most {
            (self.left_alone, self.busy) = (0, 0);
            return AfterLook::Call;
        }
        self.left_alone += 1;
        self.busy = if preempted { STEADY + 1 } else { self.busy + 1 };
        AfterLook::Wait
    }

    /// True if the last leader waits for a processor, and has hardly had one since the last look. The
    /// background thread would take the processor from another thread, and the lead from this one.
    fn is_preempted(&mut self, program: &dyn Program) -> bool {
        let now = program.last_leader();
        let (Some(before), Some(now)) = (std::mem::replace(&mut self.leader, now), now) else {
            return false;
        };
        let ran = now.ran.saturating_sub(before.ran);
        before.thread == now.thread && ran < TICK && program.is_runnable(now.thread)
    }

    /// The time until the next look. `follow`: threads follow.
    pub(super) fn tick(&self, follow: bool) -> Duration {
        match self.busy > STEADY || self.still > 0 {
            _ if follow => SHORT_TICK,
            true => LONG_TICK * (1 << self.left_alone.saturating_sub(1).min(DOUBLINGS)),
            false => TICK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a look finds of the program.
    #[derive(Clone, Copy, Default)]
    struct Found {
        at_work: bool,
        leader: Option<LastLeader>,
        runnable: bool,
    }

    impl Program for Found {
        fn at_work(&self) -> bool {
            self.at_work
        }

        fn last_leader(&self) -> Option<LastLeader> {
            self.leader
        }

        fn is_runnable(&self, thread: i32) -> bool {
            assert_eq!(Some(thread), self.leader.map(|leader| leader.thread));
            self.runnable
        }
    }

    /// The thread has had a processor for this many microseconds, and wants one.
    fn runnable(thread: i32, micros: u64) -> Found {
        let leader = Some(LastLeader { thread, ran: Duration::from_micros(micros) });
        Found { leader, runnable: true, ..Found::default() }
    }

    fn looks(lookout: &mut Lookout, ended: &[u64], led: bool) -> Vec<AfterLook> {
        ended.iter().map(|&ended| lookout.look(ended, led, &Found::default())).collect()
    }

    /// A lookout with long ticks: other threads have led again and again, this one last.
    fn steady(leader: Found) -> Lookout {
        let mut lookout = Lookout::new(true);
        assert_eq!(lookout.look(1, false, &leader), AfterLook::Wait);
        assert_eq!(lookout.tick(false), LONG_TICK);
        lookout
    }

    #[test]
    fn a_shard_without_a_leader_is_led_after_a_tick() {
        let mut lookout = Lookout::new(false);
        assert_eq!(looks(&mut lookout, &[7, 7], false), [AfterLook::Wait, AfterLook::Call]);
        assert_eq!(looks(&mut lookout, &[8, 8], false), [AfterLook::Wait, AfterLook::Call]);
        assert_eq!((lookout.tick(false), lookout.tick(true)), (TICK, SHORT_TICK));
    }

    #[test]
    fn ticks_are_long_while_threads_lead() {
        let mut lookout = Lookout::new(false);
        let ended: Vec<u64> = (0..u64::from(STEADY)).collect();
        looks(&mut lookout, &ended, false);
        assert_eq!(lookout.tick(false), TICK);
        looks(&mut lookout, &[100], false);
        assert_eq!(lookout.tick(false), LONG_TICK);
        let mut hasty = Lookout::new(true);
        looks(&mut hasty, &[0], false);
        assert_eq!(hasty.tick(false), LONG_TICK);
    }

    #[test]
    fn a_leader_that_stays_is_looked_after_by_no_thread() {
        let mut lookout = Lookout::new(false);
        assert_eq!(
            looks(&mut lookout, &[1, 1, 1], true),
            [AfterLook::Wait, AfterLook::Wait, AfterLook::Park]
        );
        assert_eq!(lookout.tick(false), LONG_TICK);
        lookout.begin_anew();
        assert_eq!(looks(&mut lookout, &[1, 2, 2], true), [AfterLook::Wait; 3]);
    }

    #[test]
    fn a_thread_at_work_is_left_alone_but_not_for_ever() {
        let mut lookout = Lookout::new(false);
        let found = Found { at_work: true, ..Found::default() };
        let looks: Vec<AfterLook> =
            (0..AT_WORK + 2).map(|_| lookout.look(1, false, &found)).collect();
        let (last, before) = looks.split_last().unwrap();
        assert!(before.iter().all(|look| *look == AfterLook::Wait));
        assert_eq!(*last, AfterLook::Call);
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_is_left_alone_for_longer() {
        let mut lookout = steady(runnable(7, 0));
        let ticks: Vec<Duration> = (0..PREEMPTED)
            .map(|_| {
                assert_eq!(lookout.look(1, false, &runnable(7, 999)), AfterLook::Wait);
                lookout.tick(false)
            })
            .collect();
        assert_eq!(ticks.get(..4).unwrap(), [1, 2, 4, 4].map(|n| n * LONG_TICK));
        assert_eq!(lookout.look(1, false, &runnable(7, 999)), AfterLook::Call, "it has not come");
        assert_eq!(lookout.tick(false), TICK);
        let mut lookout = steady(runnable(7, 0));
        lookout.look(1, false, &runnable(7, 0));
        lookout.look(2, false, &runnable(7, 50));
        assert_eq!(lookout.tick(false), LONG_TICK, "it has come");
    }

    #[test]
    fn a_thread_that_does_something_else_is_not_preempted() {
        let before = runnable(7, 100);
        let called = |found: Found| steady(before).look(1, false, &found) == AfterLook::Call;
        assert!(!called(before));
        assert!(called(runnable(7, 1_100)), "it computes");
        assert!(called(Found { runnable: false, ..before }), "it sleeps elsewhere");
        assert!(called(runnable(8, 100)), "another thread has led");
        assert!(called(Found::default()), "the kernel does not say");
        let mut lookout = Lookout::new(false);
        let looks = [0, 1].map(|_| lookout.look(1, false, &before));
        assert_eq!(looks, [AfterLook::Wait, AfterLook::Call], "it has not led steadily");
        // A thread that loses its processor while it has the engine is left alone as long.
        let mut lookout = steady(before);
        let looks =
            (0..=PREEMPTED).map(|_| lookout.look(1, false, &Found { at_work: true, ..before }));
        assert_eq!(looks.filter(|look| *look == AfterLook::Wait).count(), PREEMPTED as usize);
    }
}
