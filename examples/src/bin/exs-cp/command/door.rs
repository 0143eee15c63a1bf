//! Admission of peers: places for those that have proved themselves, and a small allowance for
//! those that have not.
//!
//! A stranger is a peer that has proved nothing yet. It costs a thread and some memory, so few
//! strangers are inside at a time, and each has seconds. When all their places are taken, the
//! oldest stranger of the address that has most of them gives way: one host uses up its own share
//! only. No stranger gives way before [`GRACE`], in which an honest peer proves itself. So in a
//! flood callers wait in the listener's backlog for that long.
//!
//! A server without a token can have nothing proved. There the first valid request counts as
//! the proof, and one address that is not this host's own has half of the places at most.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::net::pipe::Cut;

/// Proved peers that are served at once; each takes a thread and its buffers.
const MOST_PROVED: usize = 128;
/// Of these, from one address, where nothing can be proved.
const MOST_ANONYMOUS: usize = MOST_PROVED / 2;
/// Peers that have proved nothing yet.
const MOST_STRANGERS: usize = 64;
/// Strangers that were sent away and whose threads have not ended; more wait for those.
const MOST_LEAVING: usize = 64;
/// How long a stranger is not sent away for another.
const GRACE: Duration = Duration::from_millis(200);
/// How long a proved peer waits for a place.
const PATIENCE: Duration = Duration::from_secs(5);
/// Proved peers that may wait for a place.
const MOST_WAITING: usize = 128;

pub(super) struct Door {
    most_strangers: usize,
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Default for Door {
    /// Fewer strangers where the process may have few descriptors: each has several.
    fn default() -> Door {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 16;
        let most_strangers = usize::try_from(most).unwrap_or(MOST_STRANGERS);
        Door {
            most_strangers: most_strangers.clamp(2, MOST_STRANGERS),
            inside: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

#[derive(Default)]
struct Inside {
    next: u64,
    /// The oldest first.
    strangers: VecDeque<Stranger>,
    leaving: usize,
    waiting: usize,
    proved: Vec<IpAddr>,
}

struct Stranger {
    id: u64,
    from: IpAddr,
    since: Instant,
    cut: Cut,
}

/// Where a peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Stranger,
    Leaving,
    Waiting,
    Proved,
}

/// One peer's place, free again however its connection ends.
pub(super) struct Ticket {
    door: Arc<Door>,
    id: u64,
    from: IpAddr,
    stage: Stage,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// It had to give way to another before it had proved anything.
    SentAway,
    Full,
}

/// A host, as far as its address tells: an IPv6 host has all of a /64.
fn host(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Door {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a stranger in, and the oldest out if there are too many. Waits for as long as the
    /// oldest is safe; `None`: `limit` was over before.
    pub(super) fn enter(self: &Arc<Door>, ip: IpAddr, cut: Cut, limit: Duration) -> Option<Ticket> {
        let (from, until) = (host(ip), Instant::now() + limit);
        let mut inside = self.lock();
        loop {
            let now = Instant::now();
            if inside.strangers.len() < self.most_strangers {
                break;
            }
            let oldest = inside.oldest();
            let safe = inside.strangers[oldest].since + GRACE;
            if safe <= now && inside.leaving < MOST_LEAVING {
                if let Some(stranger) = inside.strangers.remove(oldest) {
                    inside.leaving += 1;
                    stranger.cut.cut();
                }
                break;
            }
            if until <= now {
                return None;
            }
            let wait = (if safe > now { safe.min(until) } else { until }) - now;
            let woken = self.changed.wait_timeout(inside, wait);
            inside = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let id = inside.next;
        inside.next += 1;
        inside.strangers.push_back(Stranger { id, from, since: Instant::now(), cut });
        Some(Ticket { door: Arc::clone(self), id, from, stage: Stage::Stranger })
    }

    /// Peers inside, whatever they have proved.
    pub(super) fn count(&self) -> usize {
        let inside = self.lock();
        inside.strangers.len() + inside.leaving + inside.waiting + inside.proved.len()
    }
}

impl Inside {
    /// The oldest stranger of the host that has most of them.
    fn oldest(&self) -> usize {
        let of = |from| self.strangers.iter().filter(|s| s.from == from).count();
        let counts = self.strangers.iter().map(|s| of(s.from)).enumerate();
        // Of equal counts the first, which is the oldest.
        counts.rev().max_by_key(|(_, count)| *count).map_or(0, |(at, _)| at)
    }

    fn has_room(&self, from: IpAddr, anonymous: bool) -> bool {
        let own = || self.proved.iter().filter(|ip| **ip == from).count();
        let limited = anonymous && !from.is_loopback() && host_is_remote(from);
        self.proved.len() < MOST_PROVED && !(limited && own() >= MOST_ANONYMOUS)
    }
}

/// `::1` is the only host of its /64, which [`host`] has made `::` of.
fn host_is_remote(from: IpAddr) -> bool {
    !from.is_unspecified()
}

impl Ticket {
    /// The peer is no stranger any more, and waits for a place if need be.
    pub(super) fn prove(&mut self, anonymous: bool) -> Result<(), NoPlace> {
        let until = Instant::now() + PATIENCE;
        let door = Arc::clone(&self.door);
        let mut inside = door.lock();
        self.settle(&mut inside);
        if self.stage == Stage::Leaving {
            return Err(NoPlace::SentAway);
        }
        inside.strangers.retain(|s| s.id != self.id);
        inside.waiting += 1;
        self.stage = Stage::Waiting;
        door.changed.notify_all();
        while !inside.has_room(self.from, anonymous) {
            let now = Instant::now();
            if until <= now || inside.waiting > MOST_WAITING {
                return Err(NoPlace::Full);
            }
            let woken = door.changed.wait_timeout(inside, until - now);
            inside = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        inside.waiting -= 1;
        inside.proved.push(self.from);
        self.stage = Stage::Proved;
        Ok(())
    }

    pub(super) fn was_sent_away(&mut self) -> bool {
        let door = Arc::clone(&self.door);
        self.settle(&mut door.lock());
        self.stage == Stage::Leaving
    }

    pub(super) fn is_proved(&self) -> bool {
        self.stage == Stage::Proved
    }

    /// A stranger that is not on the list was sent away.
    fn settle(&mut self, inside: &mut Inside) {
        if self.stage == Stage::Stranger && !inside.strangers.iter().any(|s| s.id == self.id) {
            self.stage = Stage::Leaving;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let door = Arc::clone(&self.door);
        let mut inside = door.lock();
        self.settle(&mut inside);
        match self.stage {
            Stage::Stranger => inside.strangers.retain(|s| s.id != self.id),
            Stage::Leaving => inside.leaving -= 1,
            Stage::Waiting => inside.waiting -= 1,
            Stage::Proved => {
                if let Some(at) = inside.proved.iter().position(|ip| *ip == self.from) {
                    inside.proved.swap_remove(at);
                }
            }
        }
        door.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    fn uncut() -> Cut {
        Cut::test(|| ())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn strangers(door: &Arc<Door>, from: &str, count: usize) -> Vec<Ticket> {
        (0..count).map(|_| door.enter(ip(from), uncut(), LONG).unwrap()).collect()
    }

    #[test]
    fn the_oldest_stranger_of_the_busiest_host_gives_way() {
        let door = Arc::new(Door::default());
        let mut one = strangers(&door, "192.0.2.1", 1);
        let most = door.most_strangers;
        let mut many = strangers(&door, "192.0.2.2", most - 1);
        assert!(door.enter(ip("192.0.2.3"), uncut(), AT_ONCE).is_none(), "all are new");
        let mut third = door.enter(ip("192.0.2.3"), uncut(), LONG).unwrap();
        assert_eq!(many[0].prove(false), Err(NoPlace::SentAway));
        assert_eq!(many[1].prove(false), Ok(()));
        assert_eq!((one[0].prove(false), third.prove(false)), (Ok(()), Ok(())));
        assert_eq!(door.count(), most + 1);
        drop((one, many, third));
        assert_eq!(door.count(), 0, "every place is free again");
    }

    #[test]
    fn a_stranger_that_gives_way_is_cut_off() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let door = Arc::new(Door::default());
        let was_cut = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&was_cut);
        let cut = Cut::test(move || theirs.store(true, Ordering::Relaxed));
        let first = door.enter(ip("192.0.2.1"), cut, LONG).unwrap();
        let rest = strangers(&door, "192.0.2.1", door.most_strangers - 1);
        assert!(!was_cut.load(Ordering::Relaxed));
        let last = strangers(&door, "192.0.2.1", 1);
        assert!(was_cut.load(Ordering::Relaxed));
        drop((first, rest, last));
        assert_eq!(door.count(), 0);
    }

    #[test]
    fn a_peer_that_finds_no_place_waits_no_more() {
        let door = Arc::new(Door::default());
        door.lock().proved = vec![ip("192.0.2.1"); MOST_PROVED];
        door.lock().waiting = MOST_WAITING;
        let mut late = strangers(&door, "192.0.2.2", 1);
        assert_eq!(late[0].prove(false), Err(NoPlace::Full));
        drop(late);
        assert_eq!(door.lock().waiting, MOST_WAITING, "only the others wait");
    }

    #[test]
    fn where_nothing_is_proved_one_host_has_half_of_the_places() {
        let door = Arc::new(Door::default());
        let mut inside = Vec::new();
        for n in 0..MOST_ANONYMOUS {
            let from = if n % 2 == 0 { "2001:db8::1" } else { "2001:db8::2" };
            inside.extend(strangers(&door, from, 1));
            assert_eq!(inside[n].prove(true), Ok(()));
        }
        {
            let state = door.lock();
            assert!(!state.has_room(host(ip("2001:db8::3")), true));
            assert!(state.has_room(host(ip("2001:db8::3")), false));
            assert!(state.has_room(host(ip("2001:db8:1::1")), true));
        }
        inside.pop();
        assert!(door.lock().has_room(host(ip("2001:db8::3")), true));
    }

    #[test]
    fn a_proved_peer_waits_for_a_place() {
        let door = Arc::new(Door::default());
        let mut inside = Vec::new();
        for n in 0..MOST_PROVED {
            inside.extend(strangers(&door, "127.0.0.1", 1));
            assert_eq!(inside[n].prove(true), Ok(()));
        }
        let mut late = strangers(&door, "127.0.0.1", 1).pop().unwrap();
        let waiter = std::thread::spawn(move || late.prove(true));
        while door.lock().waiting == 0 {
            std::thread::yield_now();
        }
        inside.pop();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    }
}
