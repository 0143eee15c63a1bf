//! The control of a device: what the test makes happen there, and what the device has.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use exs::rnic::RnicError;

impl Objects {
    /// What there is: domains, registrations, receive queues, queue pairs.
    pub fn now(&self) -> (usize, usize, usize, usize) {
        (self.pds, self.mrs, self.srqs, self.qps)
    }
}

/// What connecting to an address comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// There is no answer.
    Silence,
    /// ECONNREFUSED, after a while.
    Refusal,
    /// The call itself fails: ENETDOWN.
    Failure,
}

/// The hand on a device.
#[derive(Debug, Default)]
pub struct Control {
    pub(super) deeds: Mutex<HashMap<IpAddr, Deed>>,
    /// Addresses tried, and the time given.
    pub(super) tried: Mutex<Vec<(SocketAddr, Duration)>>,
    pub(super) removed: AtomicBool,
    /// How often the device was put in, and how often EXS was told.
    pub(super) plugged: AtomicUsize,
    pub(super) told: AtomicUsize,
    pub(super) objects: Mutex<Objects>,
    pub(super) saves_keys: AtomicBool,
    pub(super) loses_receives: AtomicBool,
    /// The most receive queues. 0: there is no limit.
    pub(super) most_srqs: AtomicUsize,
    /// How often a doorbell was rung.
    pub(super) rings: AtomicUsize,
    /// The most accepted connections that the device keeps from being established.
    pub(super) most_held: AtomicUsize,
}

/// What there is on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Protection domains.
    pub pds: usize,
    /// Registrations.
    pub mrs: usize,
    /// Those that ever were.
    pub made: usize,
    /// Registrations of 2 MiB and more: receive slots, and not a connection's ring.
    pub large: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Queue pairs.
    pub qps: usize,
}

impl Control {
    /// From now on this happens to connects to `ip`.
    pub fn at(&self, ip: IpAddr, deed: Deed) {
        self.deeds.lock().unwrap().insert(ip, deed);
    }

    /// From now on connects to `ip` are what they were.
    pub fn heal(&self, ip: IpAddr) {
        self.deeds.lock().unwrap().remove(&ip);
    }

    /// From now on the device makes no more receive queues than this. 0: there is no limit.
    pub fn limit_srqs(&self, most: usize) {
        self.most_srqs.store(most, Ordering::SeqCst);
    }

    /// The times that connects to `ip` were given.
    pub fn tried(&self, ip: IpAddr) -> Vec<Duration> {
        let tried = self.tried.lock().unwrap();
        tried.iter().filter(|(a, _)| a.ip() == ip).map(|(_, time)| *time).collect()
    }

    /// How often a doorbell of the device was rung.
    pub fn rings(&self) -> usize {
        self.rings.load(Ordering::SeqCst)
    }

    /// What there is on the device.
    pub fn objects(&self) -> Objects {
        *self.objects.lock().unwrap()
    }

    /// Notes an object made or freed, unless that failed.
    pub(super) fn count<T>(
        &self,
        done: Result<T, RnicError>,
        change: impl FnOnce(&mut Objects),
    ) -> Result<T, RnicError> {
        if done.is_ok() {
            change(&mut self.objects.lock().unwrap());
        }
        done
    }

    /// From now on keys of closed windows are told again, which peers must not use.
    pub fn save_keys(&self) {
        self.saves_keys.store(true, Ordering::SeqCst);
    }

    /// From now on each queue pair that ends takes a receive of its shared queue along.
    pub fn lose_receives(&self) {
        self.loses_receives.store(true, Ordering::SeqCst);
    }

    /// From now on the device keeps up to `most` accepted connections from being established, as if the
    /// last messages of their handshakes were lost. It reports those beyond when it is next asked.
    pub fn hold_accepted(&self, most: usize) {
        self.most_held.store(most, Ordering::SeqCst);
    }

    /// True if the device keeps one more than these.
    pub(super) fn holds(&self, held: usize) -> bool {
        held < self.most_held.load(Ordering::SeqCst)
    }

    /// Pulls the device out. It is noticed when the engine runs next.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::SeqCst);
    }

    /// Puts a device of that name in again, after the one before was noticed to be gone.
    pub fn put_back(&self) {
        self.removed.store(false, Ordering::SeqCst);
        self.plugged.fetch_add(1, Ordering::SeqCst);
    }
}
