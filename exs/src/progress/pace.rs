//! How a thread waits: whether it peeks, spins or sleeps, and for how long.
//!
//! A thread peeks before it leads: it looks for what is there at once. A leader spins: it runs turns
//! and looks at memory between them. After that it sleeps. Peeks and spins cost the processor, so each
//! must have paid lately. [`Pace`] keeps that record for a queue, and [`Attention`] for a shard.
//! Neither reads a clock: the caller passes the time.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::WaitPolicy;
use super::crowding::Crowding;
use super::tries::Tries;
use crate::sys::this_thread;
use crate::time::Time;

/// How long an adaptive wait spins, where spinning has lately paid.
const SPIN: Duration = Duration::from_micros(50);
/// This many times as long where a look at memory finds what comes, without system calls: as long as
/// a large message takes. To wake a thread costs both ends.
const MEMORY_SPINS: u32 = 3;
/// Spins without a find after which an adaptive queue only sleeps.
const MAX_SPIN_MISSES: u32 = 8;
/// Misses after a short sleep: two more spins are tried.
const AFTER_SHORT_SLEEP: u32 = MAX_SPIN_MISSES - 2;
/// A sleep this short makes an adaptive queue spin again: two threads that wake each other take
/// about as long, and would not if they spun.
const SHORT_SLEEP: Duration = Duration::from_micros(150);
/// A wait is rare if no thread has led for this long before it. The peer's thread sleeps by then, and
/// its processor, too, so an answer takes longer than one of a steady exchange.
const AWAY: Duration = Duration::from_millis(1);
/// Misses in rare waits after which only each [`RARE_PROBE`]th one spins.
const MAX_RARE_MISSES: u32 = 2;
const RARE_PROBE: u32 = 64;

/// Peeks without a find after which only each [`PROBE`]th wait peeks.
const MAX_PEEK_MISSES: u32 = 4;
const PROBE: u32 = 256;
/// How long a thread peeks. What a device answers at once needs no round with system calls. Where the
/// peer shares this processor a peek is time lost, so a peek must have paid lately.
const PEEK: Duration = Duration::from_micros(25);
/// How long a thread peeks at the connection that it attends. A sleep, and the call that ends it,
/// cost less than this, so a peek that misses must be rare.
const ATTENDED_PEEK: Duration = Duration::from_micros(8);
/// After a miss of such a peek this many waits do not peek, after the next miss twice as many, up to
/// [`MAX_ATTENDED_PROBE`].
const ATTENDED_PROBE: u32 = 32;
const MAX_ATTENDED_PROBE: u32 = 512;
/// How long a queue that polls busily peeks, as some devices are slower.
const BUSY_PEEK: Duration = Duration::from_micros(100);
/// How long a peek is before signals are held back, which takes two system calls: what comes within
/// this time was not waited for.
pub(super) const AT_HAND: Duration = Duration::from_micros(2);

/// How long (ns) threads that find their events may do without a leader: below the tick after which the
/// background thread takes the reactor and has every connection say that it sleeps. To lead takes
/// system calls, which some systems make dear.
const LEAD_EVERY: u64 = 500_000;
/// Rounds between two questions to the kernel. Connections, and sockets that the device does not count
/// as active, are found there alone.
pub(super) const ROUNDS_PER_POLL: u32 = 64;

/// How soon a wait follows the last lead in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rhythm {
    Steady,
    /// The threads of the program have been away for a while.
    Rare,
}

/// How threads wait at a queue, and what of it has paid lately. Threads that lose counts to each other
/// do no harm.
#[derive(Debug)]
pub(super) struct Pace {
    policy: AtomicU8,
    spin_misses: AtomicU32,
    /// Rare waits since the last one whose spin has paid.
    rare_misses: AtomicU32,
    peeks: Tries,
    /// Waits for an attended connection since the last peek there that found something.
    attended_misses: AtomicU32,
}

impl Pace {
    pub(super) fn new(policy: WaitPolicy) -> Pace {
        let zero = || AtomicU32::new(0);
        let pace = Pace {
            policy: AtomicU8::new(0),
            spin_misses: zero(),
            rare_misses: zero(),
            peeks: Tries::default(),
            attended_misses: zero(),
        };
        pace.set_policy(policy);
        pace
    }

    pub(super) fn policy(&self) -> WaitPolicy {
        match self.policy.load(Ordering::Relaxed) {
            0 => WaitPolicy::Adaptive,
            1 => WaitPolicy::Notify,
            _ => WaitPolicy::BusyPoll,
        }
    }

    pub(super) fn set_policy(&self, policy: WaitPolicy) {
        let n = match policy {
            WaitPolicy::Adaptive => 0,
            WaitPolicy::Notify => 1,
            WaitPolicy::BusyPoll => 2,
        };
        self.policy.store(n, Ordering::Relaxed);
    }

    /// How long a thread may spin. `crowded`: other programs want the processors.
    pub(super) fn spin(&self, crowded: bool, rhythm: Rhythm) -> Option<Spin> {
        match self.policy() {
            WaitPolicy::Notify => None,
            WaitPolicy::BusyPoll => Some(Spin(None)),
            WaitPolicy::Adaptive => {
                (self.spin_pays(rhythm) && !crowded).then_some(Spin(Some(SPIN)))
            }
        }
    }

    fn spin_pays(&self, rhythm: Rhythm) -> bool {
        let misses = self.record(rhythm).load(Ordering::Relaxed);
        match rhythm {
            Rhythm::Steady => misses < MAX_SPIN_MISSES,
            Rhythm::Rare => misses < MAX_RARE_MISSES || misses.is_multiple_of(RARE_PROBE),
        }
    }

    /// A spin has found its event.
    pub(super) fn note_find(&self, rhythm: Rhythm) {
        self.record(rhythm).store(0, Ordering::Relaxed);
    }

    /// A spin has found nothing, or did not pay.
    pub(super) fn note_miss(&self, rhythm: Rhythm) {
        self.record(rhythm).fetch_add(1, Ordering::Relaxed);
    }

    /// A sleep has ended. Rare waits that sleep at once count as misses, until one of them probes.
    pub(super) fn note_sleep(&self, took: Duration, rhythm: Rhythm) {
        match rhythm {
            Rhythm::Rare if !self.spin_pays(rhythm) => self.note_miss(rhythm),
            Rhythm::Steady if took < SHORT_SLEEP => {
                self.spin_misses.fetch_min(AFTER_SHORT_SLEEP, Ordering::Relaxed);
            }
            Rhythm::Rare | Rhythm::Steady => {}
        }
    }

    fn record(&self, rhythm: Rhythm) -> &AtomicU32 {
        match rhythm {
            Rhythm::Steady => &self.spin_misses,
            Rhythm::Rare => &self.rare_misses,
        }
    }

    /// How long this wait begins with a peek; `limit` at most. None: it does not.
    pub(super) fn peek(&self, limit: Option<Duration>) -> Option<Duration> {
        if !self.peeks.next(MAX_PEEK_MISSES, PROBE) {
            return None;
        }
        let most = if self.policy() == WaitPolicy::BusyPoll { BUSY_PEEK } else { PEEK };
        Some(limit.map_or(most, |limit| limit.min(most)))
    }

    /// The same for the driver of an event loop, which must sleep at once by the policy Notify.
    #[cfg(feature = "tokio")]
    pub(super) fn peek_in_loop(&self, limit: Duration) -> Option<Duration> {
        if self.policy() == WaitPolicy::Notify { None } else { self.peek(Some(limit)) }
    }

    /// Such a peek has ended. One that was cut short says nothing of a longer one.
    pub(super) fn note_peek(&self, limit: Option<Duration>, paid: bool) {
        if limit.is_some_and(|limit| limit <= AT_HAND) {
            return;
        }
        self.peeks.note(paid);
    }

    /// How long a thread peeks at the connection that it attends, before it sleeps. `crowded`: other
    /// programs want the processors. None: it sleeps at once.
    pub(super) fn peek_attended(&self, crowded: bool) -> Option<Duration> {
        let misses = self.attended_misses.load(Ordering::Relaxed);
        let due = is_attended_probe(misses);
        let peek = match self.policy() {
            WaitPolicy::Notify => None,
            WaitPolicy::BusyPoll => return Some(BUSY_PEEK),
            WaitPolicy::Adaptive => (due && !crowded).then_some(ATTENDED_PEEK),
        };
        if peek.is_none() {
            self.attended_misses.store(misses.wrapping_add(1), Ordering::Relaxed);
        }
        peek
    }

    /// Such a peek has ended.
    pub(super) fn note_peek_attended(&self, found: bool) {
        let misses = self.attended_misses.load(Ordering::Relaxed);
        let next = if found { 0 } else { misses.wrapping_add(1) };
        if next != misses {
            self.attended_misses.store(next, Ordering::Relaxed);
        }
    }
}

/// True if a wait peeks after this many waits since the last peek that has found something.
fn is_attended_probe(misses: u32) -> bool {
    let doubled = misses >= ATTENDED_PROBE && misses.is_power_of_two();
    misses == 0 || doubled || misses.is_multiple_of(MAX_ATTENDED_PROBE)
}

/// How long a leader may spin. None: without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spin(Option<Duration>);

impl Spin {
    /// True if the spin is over after this time. `by_memory`: a look at memory finds what comes.
    pub(super) fn is_over(self, after: Duration, by_memory: bool) -> bool {
        let times = if by_memory { MEMORY_SPINS } else { 1 };
        self.0.is_some_and(|limit| after >= limit * times)
    }

    /// True if the thread must spin, whatever other programs want.
    pub(super) fn is_endless(self) -> bool {
        self.0.is_none()
    }
}

/// What threads have done in a shard lately.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// When a thread of the program led last (ns).
    led: AtomicU64,
    /// The number of that thread. Zero: no thread has led.
    led_by: AtomicI32,
    /// Times since then that threads have found their events without leading.
    finds: AtomicU32,
    /// A thread peeks.
    peeks: AtomicBool,
    /// When, by the processor's counter, a thread that does not wait asks the kernel again.
    asks_at: AtomicU64,
    pub(super) crowding: Crowding,
}

impl Attention {
    /// The calling thread, which is of the program, leads or has led.
    pub(super) fn note_lead(&self, now: Time) {
        self.led.store(now.as_nanos(), Ordering::Relaxed);
        self.led_by.store(this_thread(), Ordering::Relaxed);
    }

    /// The thread of the program that led last (gettid(2)). None: no thread has.
    pub(super) fn last_leader(&self) -> Option<i32> {
        Some(self.led_by.load(Ordering::Relaxed)).filter(|&thread| thread != 0)
    }

    /// The rhythm of a wait that begins now.
    pub(super) fn rhythm(&self, now: Time) -> Rhythm {
        let led = Time::from_nanos(self.led.load(Ordering::Relaxed));
        if now.since(led) > AWAY { Rhythm::Rare } else { Rhythm::Steady }
    }

    /// Threads have done without a leader for long.
    pub(super) fn lacks_leader(&self, now: Time) -> bool {
        now.as_nanos().saturating_sub(self.led.load(Ordering::Relaxed)) > LEAD_EVERY
    }

    /// A thread has found its events without a turn, or has tried. Lost counts do no harm.
    pub(super) fn note_find(&self) {
        self.finds.store(self.finds().saturating_add(1), Ordering::Relaxed);
    }

    /// How often that was since the last turn.
    pub(super) fn finds(&self) -> u32 {
        self.finds.load(Ordering::Relaxed)
    }

    /// The same; a turn begins.
    pub(super) fn take_finds(&self) -> u32 {
        self.finds.swap(0, Ordering::Relaxed)
    }

    /// Peeks, unless another thread does. One is enough: several would only take the engine's lock
    /// from each other, and from threads that have something to do.
    pub(super) fn peek<T>(&self, looks: impl FnOnce() -> T) -> Option<T> {
        if self.peeks.swap(true, Ordering::Acquire) {
            return None;
        }
        let found = looks();
        self.peeks.store(false, Ordering::Release);
        Some(found)
    }

    /// True if a thread that does not wait has asked the kernel a short time ago. `cycles` is the
    /// processor's counter.
    pub(super) fn has_asked(&self, cycles: u64) -> bool {
        cycles < self.asks_at.load(Ordering::Relaxed)
    }

    /// Such a thread has asked the kernel, and does so again at `next`.
    pub(super) fn note_question(&self, next: u64) {
        self.asks_at.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADAPTIVE: WaitPolicy = WaitPolicy::Adaptive;

    fn at(micros: u64) -> Time {
        Time::from_nanos(1_000 * micros)
    }

    #[test]
    fn peeks_that_find_nothing_become_probes() {
        let pace = Pace::new(ADAPTIVE);
        let peeked = |waits: u32, paid: bool| -> Vec<u32> {
            let peeks = |_: &u32| {
                let peek = pace.peek(None);
                if peek.is_some() {
                    pace.note_peek(peek, paid);
                }
                peek.is_some()
            };
            (0..waits).filter(peeks).collect()
        };
        assert_eq!(peeked(4, true), [0, 1, 2, 3]);
        assert_eq!(peeked(2 * PROBE + 1, false), [0, 1, 2, 3, PROBE, 2 * PROBE]);
        let back = peeked(PROBE + 2, true);
        assert!(back.len() > 1, "one that pays brings the others back: {back:?}");
        // A short peek says nothing.
        (0..10).for_each(|_| pace.note_peek(Some(AT_HAND), false));
        assert_eq!(pace.peek(None), Some(PEEK));
        assert_eq!(pace.peek(Some(AT_HAND)), Some(AT_HAND));
    }

    #[test]
    fn a_peek_at_an_attended_connection_must_have_paid() {
        let pace = Pace::new(ADAPTIVE);
        let waits = |count: u32, found: bool| -> u32 {
            let peeks = |_: &u32| {
                let peek = pace.peek_attended(false);
                if peek.is_some() {
                    pace.note_peek_attended(found);
                }
                peek.is_some()
            };
            (0..count).filter(peeks).count().try_into().unwrap()
        };
        assert_eq!(waits(10, true), 10);
        assert_eq!(waits(ATTENDED_PROBE, false), 1, "a miss ends it");
        assert_eq!(waits(3 * ATTENDED_PROBE, false), 2, "probes after one and two times as many");
        // After 128, 256 and 512 waits, and each 512 from then on.
        assert_eq!(waits(4 * MAX_ATTENDED_PROBE - 4 * ATTENDED_PROBE, false), 5);
        assert_eq!(waits(10, true), 10, "a probe brings it back");
        assert_eq!(pace.peek_attended(true), None, "other programs want the processors");
        let quiet = Pace::new(WaitPolicy::Notify);
        assert_eq!(quiet.peek_attended(false), None);
    }

    #[test]
    fn spins_that_find_nothing_end_until_a_sleep_is_short() {
        let pace = Pace::new(ADAPTIVE);
        let spin = pace.spin(false, Rhythm::Steady).unwrap();
        assert!(!spin.is_over(SPIN / 2, false) && spin.is_over(SPIN, false));
        assert!(!spin.is_over(2 * SPIN, true) && spin.is_over(3 * SPIN, true));
        assert_eq!(pace.spin(true, Rhythm::Steady), None, "other programs want the processors");
        (0..MAX_SPIN_MISSES).for_each(|_| pace.note_miss(Rhythm::Steady));
        assert_eq!(pace.spin(false, Rhythm::Steady), None);
        pace.note_sleep(SHORT_SLEEP, Rhythm::Steady);
        assert_eq!(pace.spin(false, Rhythm::Steady), None, "that was long");
        pace.note_sleep(SHORT_SLEEP / 2, Rhythm::Steady);
        for _ in 0..2 {
            assert!(pace.spin(false, Rhythm::Steady).is_some());
            pace.note_miss(Rhythm::Steady);
        }
        assert_eq!(pace.spin(false, Rhythm::Steady), None);
        pace.note_find(Rhythm::Steady);
        assert!(pace.spin(false, Rhythm::Steady).is_some());
    }

    #[test]
    fn a_policy_that_is_not_adaptive_learns_nothing() {
        let busy = Pace::new(WaitPolicy::BusyPoll);
        (0..100).for_each(|_| busy.note_miss(Rhythm::Steady));
        let spin = busy.spin(true, Rhythm::Steady).unwrap();
        assert!(spin.is_endless() && !spin.is_over(Duration::MAX, false));
        assert_eq!(busy.peek(None), Some(BUSY_PEEK));
        busy.set_policy(WaitPolicy::Notify);
        assert_eq!((busy.policy(), busy.spin(false, Rhythm::Steady)), (WaitPolicy::Notify, None));
        #[cfg(feature = "tokio")]
        assert_eq!(busy.peek_in_loop(PEEK), None);
    }

    #[test]
    fn spins_of_rare_waits_must_have_paid_in_rare_waits() {
        let pace = Pace::new(ADAPTIVE);
        let spun = |waits: u32, found: bool| -> Vec<u32> {
            let spins = |_: &u32| {
                let spins = pace.spin(false, Rhythm::Rare).is_some();
                match (spins, found) {
                    (true, true) => pace.note_find(Rhythm::Rare),
                    (true, false) => pace.note_miss(Rhythm::Rare),
                    (false, _) => pace.note_sleep(SHORT_SLEEP / 2, Rhythm::Rare),
                }
                spins
            };
            (0..waits).filter(spins).collect()
        };
        assert_eq!(spun(3, true), [0, 1, 2]);
        assert_eq!(spun(2 * RARE_PROBE, false), [0, 1, RARE_PROBE]);
        assert_eq!(spun(3, true), [0, 1, 2], "a probe brings them back");
        spun(2, false);
        assert!(pace.spin(false, Rhythm::Steady).is_some(), "a record of its own");
        let attention = Attention::default();
        attention.note_lead(at(100));
        let rhythms = [at(1_100), at(1_101)].map(|now| attention.rhythm(now));
        assert_eq!(rhythms, [Rhythm::Steady, Rhythm::Rare]);
    }

    #[test]
    fn threads_do_without_a_leader_for_a_while_only() {
        let attention = Attention::default();
        assert_eq!(attention.last_leader(), None);
        attention.note_lead(at(1000));
        assert!(!attention.lacks_leader(at(1500)) && attention.lacks_leader(at(1501)));
        assert_eq!(attention.last_leader(), Some(this_thread()));
        attention.note_find();
        attention.note_find();
        assert_eq!((attention.finds(), attention.take_finds(), attention.finds()), (2, 2, 0));
        let inside = attention.peek(|| attention.peek(|| ()));
        assert_eq!((inside, attention.peek(|| ())), (Some(None), Some(())));
        attention.note_question(70);
        assert!(attention.has_asked(69) && !attention.has_asked(70));
    }
}
