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
/// Ticks in a row in which a thread of the program may be at work, or wait for a processor, instead of
/// leading.
pub(super) const AT_WORK: u32 = 4;

/// What is known of the threads of the program while none of them leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// They may be away.
    Unknown,
    /// One of them has the engine. Some devices move the data in the posting call, which takes
    /// milliseconds. A leader would wait for the engine's lock meanwhile.
    AtWork,
    /// More of them are awake than there are processors, so one may have lost its processor. The
    /// background thread would take the processor from another one, and the lead from this one.
    Preempted,
}

/// The background thread's record of the leads of other threads.
pub(super) struct Lookout {
    /// The number of leads that had ended at the last look.
    seen: Option<u64>,
    /// Looks in a row between which other threads led.
    busy: u32,
    /// Looks in a row at the same leader.
    still: u32,
    /// Looks in a row at a thread that is at work, or may wait for a processor.
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
        Lookout { seen: None, busy: if hasty { STEADY } else { 0 }, still: 0, left_alone: 0 }
    }

    /// The background thread was parked, and is awake.
    pub(super) fn begin_anew(&mut self) {
        (self.seen, self.still) = (None, 0);
    }

    /// Looks for a leader. `ended`: the number of leads that have ended. `led`: a thread leads.
    pub(super) fn look(
        &mut self,
        ended: u64,
        led: bool,
        program: impl FnOnce() -> Program,
    ) -> AfterLook {
        let unchanged = self.seen.replace(ended) == Some(ended);
        let asks = unchanged && !led && self.left_alone < AT_WORK;
        let program = if asks { program() } else { Program::Unknown };
        let works = program != Program::Unknown;
        self.left_alone = if works { self.left_alone + 1 } else { 0 };
        let quiet = unchanged && !works;
        self.busy = match program {
            _ if quiet => 0,
            // It may take some time slices until that thread leads again.
            Program::Preempted => STEADY + 1,
            Program::Unknown | Program::AtWork => self.busy + 1,
        };
        self.still = if quiet && led { self.still + 1 } else { 0 };
        match quiet {
            true if !led => AfterLook::Call,
            _ if self.still >= PARKS_AFTER => AfterLook::Park,
            _ => AfterLook::Wait,
        }
    }

    /// The time until the next look. `follow`: threads follow.
    pub(super) fn tick(&self, follow: bool) -> Duration {
        match self.busy > STEADY || self.still > 0 {
            _ if follow => SHORT_TICK,
            true => LONG_TICK,
            false => TICK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(lookout: &mut Lookout, ended: &[u64], led: bool) -> Vec<AfterLook> {
        ended.iter().map(|&ended| lookout.look(ended, led, || Program::Unknown)).collect()
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
        let looks: Vec<AfterLook> =
            (0..AT_WORK + 2).map(|_| lookout.look(1, false, || Program::AtWork)).collect();
        let (last, before) = looks.split_last().unwrap();
        assert!(before.iter().all(|look| *look == AfterLook::Wait));
        assert_eq!(*last, AfterLook::Call);
    }

    #[test]
    fn a_thread_that_may_wait_for_a_processor_gets_long_ticks() {
        let mut lookout = Lookout::new(false);
        let mut look = |ended| {
            let next = lookout.look(ended, false, || Program::Preempted);
            (next, lookout.tick(false))
        };
        assert_eq!(look(1), (AfterLook::Wait, TICK), "a thread has led, as far as is known");
        let long = (AfterLook::Wait, LONG_TICK);
        assert!((0..AT_WORK).all(|_| look(1) == long));
        assert_eq!(look(1), (AfterLook::Call, TICK), "it has not come");
    }
}
