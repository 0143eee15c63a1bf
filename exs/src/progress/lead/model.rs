//! A model of the threads of one shard: every interleaving of two threads that wait, the background
//! thread and a companion, around the machine that the real code uses.
//!
//! A step is what a thread does in one hold of the lock of the lead, or a sleep that ends. The model
//! checks each state that can be reached: a leader that must leave is awake or about to be woken,
//! and from each state the steps that threads must take lead to the end of both waits. Where several
//! threads sleep in the reactor, the kernel may wake any of them.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Lead, LeadAnswer, LeadEvent};

/// Threads of the program that wait.
const WAITERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    /// Looks for its event, and then leads or follows.
    Comes,
    Leads,
    /// In the reactor.
    SleepsAsLeader,
    /// On its eventfd.
    Follows,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Watcher {
    /// The background thread waits for a tick.
    Ticks,
    /// It sleeps until a leader leaves, or calls it.
    Parked,
    Leads,
    /// In the reactor, while any thread leads or none.
    Sleeps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Companion {
    /// It may come, or not.
    Away,
    Leads,
    Sleeps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    NotYet,
    /// The reactor is ready for it.
    Ready,
    /// The background thread has found it, and has left it to the leader.
    Found,
    /// It is in the queue of its thread.
    Delivered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    lead: Lead,
    /// The threads on the list of followers, the first one first.
    followers: Vec<usize>,
    waiters: [Waiter; WAITERS],
    signalled: [bool; WAITERS],
    events: [Event; WAITERS],
    watcher: Watcher,
    companion: Companion,
    /// The waker of the reactor.
    woken: bool,
    /// The companion's other shard has events for it no more.
    visits_left: u8,
}

/// A step that a thread must take at some time, or one that it may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Must,
    May,
}

impl World {
    fn new() -> World {
        World {
            lead: Lead::Free,
            followers: Vec::new(),
            waiters: [Waiter::Comes; WAITERS],
            signalled: [false; WAITERS],
            events: [Event::NotYet; WAITERS],
            watcher: Watcher::Ticks,
            companion: Companion::Away,
            woken: false,
            visits_left: 2,
        }
    }

    fn pass(&mut self, event: LeadEvent, me: Option<usize>) -> LeadAnswer {
        let follow = self.followers.iter().any(|f| Some(*f) != me);
        let next = self.lead.next(event, follow);
        let (lead, answer) = next.unwrap_or_else(|| panic!("{event:?} in {self:?}"));
        self.lead = lead;
        match answer {
            LeadAnswer::Ask => self.woken = true,
            LeadAnswer::WakeFollower => {
                let first = self.followers.remove(0);
                self.signalled[first] = true;
            }
            LeadAnswer::Take | LeadAnswer::Refuse | LeadAnswer::Done => {}
        }
        // A thread that puts the reactor back wakes the background thread.
        if event == LeadEvent::Leave {
            match self.watcher {
                Watcher::Parked => self.watcher = Watcher::Ticks,
                Watcher::Sleeps => self.woken = true,
                Watcher::Ticks | Watcher::Leads => {}
            }
        }
        answer
    }

    /// A turn of the engine, by a waiter or another thread.
    fn turn(&mut self, by: Option<usize>) {
        self.woken = false;
        for i in 0..WAITERS {
            if matches!(self.events[i], Event::Ready | Event::Found) {
                self.events[i] = Event::Delivered;
                self.signalled[i] |= Some(i) != by;
            }
        }
    }

    fn reactor_is_ready(&self) -> bool {
        self.woken || self.events.contains(&Event::Ready)
    }

    fn leader_sleeps(&self) -> bool {
        self.waiters.contains(&Waiter::SleepsAsLeader) || self.companion == Companion::Sleeps
    }

    /// The same as a leader that leaves, but the lead goes back to the background thread.
    fn give_back(&self, i: usize) -> Option<World> {
        let mut w = self.clone();
        w.turn(Some(i));
        let sleeps = w.watcher == Watcher::Sleeps && w.waiters[i] == Waiter::Leads;
        let done = w.events[i] == Event::Delivered;
        if !sleeps || !done || w.pass(LeadEvent::GiveBack, None) != LeadAnswer::Done {
            return None;
        }
        w.waiters[i] = Waiter::Done;
        Some(w)
    }

    fn waiter(&self, i: usize) -> Option<World> {
        let mut w = self.clone();
        match w.waiters[i] {
            Waiter::Done => return None,
            Waiter::Comes if w.events[i] == Event::Delivered => w.waiters[i] = Waiter::Done,
            Waiter::Comes => {
                w.waiters[i] = match w.pass(LeadEvent::Wait, Some(i)) {
                    LeadAnswer::Take => Waiter::Leads,
                    _ => Waiter::Follows,
                };
                if w.waiters[i] == Waiter::Follows {
                    w.followers.push(i);
                }
            }
            Waiter::Leads => {
                w.turn(Some(i));
                w.waiters[i] = Waiter::SleepsAsLeader;
                if w.events[i] == Event::Delivered {
                    w.pass(LeadEvent::Leave, None);
                    w.waiters[i] = Waiter::Done;
                }
            }
            Waiter::SleepsAsLeader if w.reactor_is_ready() => w.waiters[i] = Waiter::Leads,
            // Just before it sleeps, it looks for its event once more.
            Waiter::Follows if w.signalled[i] || w.events[i] == Event::Delivered => {
                w.signalled[i] = false;
                w.followers.retain(|f| *f != i);
                w.pass(LeadEvent::Unfollow, None);
                w.waiters[i] = Waiter::Comes;
            }
            Waiter::SleepsAsLeader | Waiter::Follows => return None,
        }
        Some(w)
    }

    fn watcher(&self) -> Option<World> {
        let mut w = self.clone();
        match w.watcher {
            Watcher::Ticks => {
                w.pass(LeadEvent::Lapse, None);
                if w.pass(LeadEvent::Call, None) != LeadAnswer::WakeFollower
                    && w.pass(LeadEvent::Watch, None) == LeadAnswer::Take
                {
                    w.watcher = Watcher::Leads;
                }
            }
            Watcher::Leads => {
                w.turn(None);
                if w.pass(LeadEvent::Doze, None) == LeadAnswer::Done {
                    w.watcher = Watcher::Sleeps;
                } else {
                    w.pass(LeadEvent::Leave, None);
                    w.watcher = Watcher::Ticks;
                }
            }
            Watcher::Sleeps if w.reactor_is_ready() => {
                w.woken = false;
                for event in w.events.iter_mut().filter(|event| **event == Event::Ready) {
                    *event = Event::Found;
                }
                w.watcher = Watcher::Leads;
                if w.pass(LeadEvent::Woke, None) != LeadAnswer::Take {
                    w.watcher = Watcher::Ticks;
                    w.woken = w.leader_sleeps();
                }
            }
            Watcher::Sleeps | Watcher::Parked => return None,
        }
        (w != *self).then_some(w)
    }

    fn companion(&self) -> Option<World> {
        let mut w = self.clone();
        match w.companion {
            Companion::Leads => {
                w.turn(None);
                w.companion = Companion::Sleeps;
                if w.lead.must_leave() {
                    w.pass(LeadEvent::Leave, None);
                    w.companion = Companion::Away;
                }
            }
            Companion::Sleeps if w.reactor_is_ready() => w.companion = Companion::Leads,
            Companion::Away | Companion::Sleeps => return None,
        }
        Some(w)
    }

    /// A leader whose turn serves others steps aside.
    fn step_aside(&self, i: usize) -> Option<World> {
        let mut w = self.clone();
        w.turn(Some(i));
        if w.waiters[i] != Waiter::Leads || w.events[i] == Event::Delivered {
            return None;
        }
        w.pass(LeadEvent::Leave, None);
        w.pass(LeadEvent::Call, None);
        w.followers.push(i);
        w.waiters[i] = Waiter::Follows;
        Some(w)
    }

    /// A thread ends, to which the lead may have been promised.
    fn replace(&mut self) {
        self.pass(LeadEvent::Lapse, None);
        self.pass(LeadEvent::Call, None);
    }

    /// Steps that need not happen: events that come, a companion that comes or goes, a background
    /// thread that parks, a leader that steps aside, a thread that ends or sleeps without the lead, and one
    /// that asks for the lead in passing and never comes for it.
    fn optional(&self) -> Vec<World> {
        let mut out: Vec<World> = (0..WAITERS).filter_map(|i| self.step_aside(i)).collect();
        let mut add = |f: &dyn Fn(&mut World)| {
            let mut w = self.clone();
            f(&mut w);
            out.push(w);
        };
        for i in 0..WAITERS {
            if self.events[i] == Event::NotYet {
                add(&|w| w.events[i] = Event::Ready);
            }
        }
        if self.watcher == Watcher::Ticks && !self.lead.is_free() {
            add(&|w| w.watcher = Watcher::Parked);
        }
        let parks = matches!(self.watcher, Watcher::Ticks | Watcher::Parked);
        if parks && self.lead == Lead::Application {
            // It is called, or goes on sleeping after it was woken.
            add(&|w| w.watcher = Watcher::Sleeps);
        }
        if self.companion == Companion::Away && self.visits_left > 0 {
            add(&|w| {
                w.visits_left -= 1;
                if w.pass(LeadEvent::Accompany, None) == LeadAnswer::Take {
                    w.companion = Companion::Leads;
                }
            });
        }
        if self.companion == Companion::Sleeps {
            // An event of its own shard ends its wait.
            add(&|w| {
                w.pass(LeadEvent::Leave, None);
                w.companion = Companion::Away;
            });
        }
        if self.lead == Lead::Free {
            add(&|w| {
                w.pass(LeadEvent::Call, None);
            });
        }
        if self.lead.is_free() && self.waiters.contains(&Waiter::Done) {
            add(&World::replace);
        }
        if !self.lead.is_free() && self.visits_left > 0 {
            add(&|w| {
                w.visits_left -= 1;
                w.pass(LeadEvent::Visit, None);
            });
        }
        out
    }

    fn steps(&self) -> Vec<(Kind, World)> {
        let waiters = (0..WAITERS).filter_map(|i| self.waiter(i));
        let backs = (0..WAITERS).filter_map(|i| self.give_back(i));
        let must = waiters.chain(backs).chain(self.watcher()).chain(self.companion());
        let may = self.optional().into_iter().map(|w| (Kind::May, w));
        must.map(|w| (Kind::Must, w)).chain(may).collect()
    }

    /// True if the background thread sleeps in the reactor, and has the lead.
    fn is_sentry(&self) -> bool {
        let has = matches!(self.lead, Lead::Sentry | Lead::Background { .. });
        self.watcher == Watcher::Sleeps && has
    }

    /// What holds in each state.
    fn check(&self) {
        let leaders = self
            .waiters
            .iter()
            .filter(|w| matches!(w, Waiter::Leads | Waiter::SleepsAsLeader))
            .count()
            + usize::from(self.watcher == Watcher::Leads || self.is_sentry())
            + usize::from(self.companion != Companion::Away);
        assert_eq!(
            leaders,
            usize::from(!self.lead.is_free()),
            "one thread has the reactor: {self:?}"
        );
        let sleeps = self.is_sentry() || self.companion == Companion::Sleeps;
        assert!(!sleeps || !self.lead.must_leave() || self.woken, "asked, and asleep: {self:?}");
        let looks = match self.watcher {
            Watcher::Ticks | Watcher::Leads => true,
            Watcher::Parked => !self.lead.is_free(),
            Watcher::Sleeps => !self.lead.is_free() || self.woken,
        };
        assert!(looks, "no thread looks: {self:?}");
        assert!(self.lead != Lead::Sentry || self.watcher == Watcher::Sleeps, "{self:?}");
        let left = self.events.contains(&Event::Found) && self.leader_sleeps();
        assert!(!left || self.woken, "the leader sleeps on: {self:?}");
        // The thread that leads leaves the lead to a thread that waits in this shard.
        let others = matches!(self.lead, Lead::Background { .. } | Lead::Companion { .. });
        assert!(!others || self.followers.is_empty() || self.lead.must_leave(), "{self:?}");
    }
}

#[test]
fn no_wake_up_is_lost() {
    let (mut seen, mut open) = (HashMap::new(), VecDeque::from([World::new()]));
    seen.insert(World::new(), 0_usize);
    let (mut worlds, mut before): (Vec<World>, Vec<Vec<usize>>) =
        (vec![World::new()], vec![Vec::new()]);
    while let Some(world) = open.pop_front() {
        world.check();
        let from = seen[&world];
        for (kind, next) in world.steps() {
            let to = *seen.entry(next.clone()).or_insert_with(|| {
                worlds.push(next.clone());
                before.push(Vec::new());
                open.push_back(next);
                worlds.len() - 1
            });
            if kind == Kind::Must {
                before[to].push(from);
            }
        }
    }
    // Back from the ends of both waits, along steps that threads must take.
    let ends = |w: &World| w.waiters.iter().all(|w| *w == Waiter::Done);
    let mut good: HashSet<usize> = (0..worlds.len()).filter(|i| ends(&worlds[*i])).collect();
    let mut open: Vec<usize> = good.iter().copied().collect();
    while let Some(at) = open.pop() {
        open.extend(before[at].iter().copied().filter(|from| good.insert(*from)));
    }
    let come = |w: &World| w.events.iter().all(|e| *e != Event::NotYet);
    let lost = (0..worlds.len()).find(|i| come(&worlds[*i]) && !good.contains(i));
    assert!(lost.is_none(), "a wait never ends: {:?}", lost.map(|i| &worlds[i]));
    assert!(worlds.len() > 1_000, "the model is too small to say anything: {}", worlds.len());
}
