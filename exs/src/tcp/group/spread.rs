//! Which of the RNICs that share a port gets a group.
//!
//! The kernel brings the connection of a group to any of them. The one that reads the hello gives the
//! group to the RNIC that has the fewest groups of the port, so that they spread over the shards that
//! accept. A group for another RNIC goes into that one's mail, and an eventfd in that one's reactor
//! rings. So does a connection to which a stream of another RNIC's group is to move: the token in its
//! request says whose.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mio::Interest;
use mio::unix::SourceFd;

use crate::driver::{ReactorShare, Source};
use crate::rnic::{RnicError, TakesGroups};
use crate::sys::{EventFd, SharedStream};
use crate::wire::group::{GroupKind, HelloRepr, MoveRepr};

/// A group whose hello another RNIC has read.
pub struct PassedGroup {
    pub(super) stream: Arc<SharedStream>,
    /// Our address, and the peer's.
    pub(super) addrs: (SocketAddr, SocketAddr),
    pub(super) hello: HelloRepr,
    pub(super) place: GroupPlace,
}

/// A connection for another RNIC at the port, whose first bytes this one has read.
pub enum PassedConn {
    /// It carries a group.
    Group(PassedGroup),
    /// A stream of one of that RNIC's groups is to move to it.
    Move(Arc<SharedStream>, MoveRepr),
}

/// True if an RNIC that takes these groups takes one of this kind.
pub(super) fn allows(takes: TakesGroups, kind: GroupKind) -> bool {
    match takes {
        TakesGroups::No | TakesGroups::NotYet => false,
        TakesGroups::Brief => kind == GroupKind::Brief,
        TakesGroups::Yes => true,
    }
}

/// One of the RNICs, as the others see it.
struct Taker {
    number: u64,
    takes: TakesGroups,
    /// The tokens of its groups of this port, and of those in its mail.
    groups: Vec<u64>,
    mail: Vec<PassedConn>,
    /// Rings for mail. None: it gets none.
    bell: Option<Arc<EventFd>>,
}

#[derive(Default)]
struct Takers {
    all: Vec<Taker>,
    last: u64,
}

/// The RNICs that share a port.
#[derive(Clone, Default)]
struct GroupPort(Arc<Mutex<Takers>>);

impl GroupPort {
    fn lock(&self) -> MutexGuard<'_, Takers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taker {
    fn deliver(&mut self, conn: PassedConn) {
        self.mail.push(conn);
        if let Some(bell) = &self.bell {
            bell.signal();
        }
    }
}

impl Takers {
    fn find(&mut self, number: u64) -> Option<&mut Taker> {
        self.all.iter_mut().find(|taker| taker.number == number)
    }
}

/// The place of a group at an RNIC, which counts it, and finds it by its token.
pub(super) struct GroupPlace {
    port: GroupPort,
    number: u64,
    pub(super) token: u64,
}

impl std::fmt::Debug for GroupPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GroupPlace").field(&self.number).finish()
    }
}

impl Drop for GroupPlace {
    fn drop(&mut self) {
        if let Some(taker) = self.port.lock().find(self.number) {
            taker.groups.retain(|token| *token != self.token);
        }
    }
}

/// What becomes of a group that has come.
#[derive(Debug)]
pub(super) enum Placed {
    /// This RNIC gets it.
    Here(GroupPlace),
    /// Another one does.
    There(GroupPlace),
    /// None does.
    Nowhere,
}

/// An RNIC at a port, as it sees itself.
pub(in crate::tcp) struct GroupTaker {
    port: GroupPort,
    number: u64,
    /// What its listener was told, and whether the listener rests.
    told: TakesGroups,
    rests: bool,
    /// Rings for mail, once the port is shared, and whether the reactor watches it.
    bell: Option<Arc<EventFd>>,
    watched: bool,
}

impl GroupTaker {
    /// The only one at its port.
    pub(in crate::tcp) fn new(takes: TakesGroups) -> GroupTaker {
        GroupTaker::at(GroupPort::default(), takes)
    }

    fn at(port: GroupPort, takes: TakesGroups) -> GroupTaker {
        let mut takers = port.lock();
        takers.last += 1;
        let number = takers.last;
        takers.all.push(Taker { number, takes, groups: Vec::new(), mail: Vec::new(), bell: None });
        drop(takers);
        GroupTaker { port, number, told: takes, rests: false, bell: None, watched: false }
    }

    /// Another one at the same port. Its accepts will say whether it takes groups.
    pub(in crate::tcp) fn share(&mut self) -> GroupTaker {
        self.add_bell();
        let takes = match self.told {
            TakesGroups::No => TakesGroups::No,
            TakesGroups::Yes | TakesGroups::Brief | TakesGroups::NotYet => TakesGroups::NotYet,
        };
        let mut other = GroupTaker::at(self.port.clone(), takes);
        other.add_bell();
        other
    }

    /// Without a descriptor for it, others pass no groups to this one.
    fn add_bell(&mut self) {
        if self.bell.is_none() {
            self.bell = EventFd::new().ok().map(Arc::new);
        }
    }

    /// The listener takes connections from now on. Has the reactor watch for mail, as soon as the port is
    /// shared. Until then others pass no groups.
    pub(in crate::tcp) fn watch(
        &mut self,
        reactor: &ReactorShare,
        source: Source,
    ) -> Result<(), RnicError> {
        self.rests = false;
        self.tell();
        let Some(bell) = self.bell.clone().filter(|_| !self.watched) else { return Ok(()) };
        reactor.watch(&mut SourceFd(&bell.as_raw_fd()), source, Interest::READABLE)?;
        self.watched = true;
        if let Some(taker) = self.port.lock().find(self.number) {
            taker.bell = Some(bell);
        }
        Ok(())
    }

    /// The listener takes no connections until [`GroupTaker::watch`]: others have them, and the groups.
    pub(in crate::tcp) fn rest(&mut self) {
        self.rests = true;
        self.tell();
    }

    /// Whether this one takes groups.
    pub(in crate::tcp) fn takes(&self) -> TakesGroups {
        match self.told {
            TakesGroups::Yes | TakesGroups::Brief if self.rests => TakesGroups::NotYet,
            told => told,
        }
    }

    pub(in crate::tcp) fn set(&mut self, takes: TakesGroups) {
        self.told = takes;
        self.tell();
    }

    /// The program waits for a connection by itself: from now on only brief ones come in groups.
    pub(in crate::tcp) fn keep_apart(&mut self) {
        if self.told != TakesGroups::No {
            self.set(TakesGroups::Brief);
        }
    }

    /// Tells the others.
    fn tell(&self) {
        if let Some(taker) = self.port.lock().find(self.number) {
            taker.takes = self.takes();
        }
    }

    /// True if a connection to the port may begin with a hello or a request to move: an RNIC there takes
    /// groups now, or may do so later, or has some.
    pub(in crate::tcp) fn expects_greetings(&self) -> bool {
        let expects = |taker: &Taker| taker.takes != TakesGroups::No || !taker.groups.is_empty();
        self.told != TakesGroups::No || self.port.lock().all.iter().any(expects)
    }

    /// The number of those that take groups of this kind.
    pub(super) fn takers(&self, kind: GroupKind) -> u32 {
        let takers = self.port.lock();
        let taking = takers.all.iter().filter(|taker| allows(taker.takes, kind));
        u32::try_from(taking.count()).unwrap_or(u32::MAX)
    }

    /// Finds the place of a group that has come to this one, and is to have this token.
    pub(super) fn place(&self, token: u64, kind: GroupKind) -> Placed {
        let mut takers = self.port.lock();
        let here = |taker: &Taker| taker.number == self.number;
        let able =
            |taker: &&mut Taker| allows(taker.takes, kind) && (here(taker) || taker.bell.is_some());
        let fewest = takers.all.iter_mut().filter(able).min_by_key(|t| (t.groups.len(), !here(t)));
        let Some(taker) = fewest else { return Placed::Nowhere };
        taker.groups.push(token);
        let (number, here) = (taker.number, here(taker));
        drop(takers);
        let place = GroupPlace { port: self.port.clone(), number, token };
        if here { Placed::Here(place) } else { Placed::There(place) }
    }

    /// Passes a connection to the RNIC that has the group of its request. If none has, it is closed.
    pub(super) fn pass_move(&self, tcp: Arc<SharedStream>, request: MoveRepr) {
        let mut takers = self.port.lock();
        let other = |taker: &&mut Taker| taker.number != self.number && taker.bell.is_some();
        let has = |taker: &&mut Taker| taker.groups.contains(&request.token);
        let refused = match takers.all.iter_mut().filter(other).find(has) {
            Some(taker) => {
                taker.deliver(PassedConn::Move(tcp, request));
                None
            }
            None => Some(tcp),
        };
        drop(takers);
        drop(refused);
    }

    /// True if another one has passed a connection to this one.
    pub(in crate::tcp) fn has_mail(&self) -> bool {
        let mail =
            |takers: &mut Takers| takers.find(self.number).is_some_and(|t| !t.mail.is_empty());
        self.bell.is_some() && mail(&mut self.port.lock())
    }

    /// Takes a connection that another one has passed.
    pub(in crate::tcp) fn take_mail(&mut self) -> Option<PassedConn> {
        let bell = self.bell.as_ref()?;
        let mut takers = self.port.lock();
        let taker = takers.find(self.number)?;
        let passed = taker.mail.pop()?;
        if taker.mail.is_empty() {
            bell.drain();
        }
        Some(passed)
    }
}

impl Drop for GroupTaker {
    fn drop(&mut self) {
        let mut takers = self.port.lock();
        let at = takers.all.iter().position(|taker| taker.number == self.number);
        let gone = at.map(|at| takers.all.swap_remove(at));
        // The groups in its mail end. Their places take the lock.
        drop(takers);
        drop(gone);
    }
}

impl PassedGroup {
    /// Passes it to the RNIC of its place. If that one has gone, the group ends.
    pub(super) fn pass(self) {
        let port = self.place.port.clone();
        let mut takers = port.lock();
        let rest = match takers.find(self.place.number) {
            Some(taker) => {
                taker.deliver(PassedConn::Group(self));
                None
            }
            None => Some(self),
        };
        drop(takers);
        drop(rest);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use GroupKind::{Brief, Many};
    use TakesGroups::{No, NotYet, Yes};

    /// As a reactor that watches the bell does.
    fn hears(taker: &GroupTaker) {
        taker.port.lock().find(taker.number).unwrap().bell = taker.bell.clone();
    }

    #[test]
    fn groups_go_where_the_fewest_are() {
        let mut first = GroupTaker::new(Yes);
        let mut second = first.share();
        assert_eq!((first.takers(Many), second.takes()), (1, NotYet));
        hears(&first);
        hears(&second);
        let Placed::Here(a) = first.place(1, Many) else {
            panic!("the second does not take groups yet")
        };
        second.set(Yes);
        assert_eq!(first.takers(Many), 2);
        let Placed::There(b) = first.place(2, Many) else { panic!("the first has one") };
        let Placed::Here(c) = second.place(3, Many) else {
            panic!("each has one, and this is the nearer")
        };
        drop((a, c));
        let Placed::Here(a) = first.place(4, Many) else { panic!("the first has none") };
        second.set(No);
        let Placed::There(c) = second.place(5, Many) else { panic!("only the first takes groups") };
        assert!(second.expects_greetings());
        drop(first);
        assert!(matches!(second.place(6, Many), Placed::Nowhere) && second.expects_greetings());
        drop(b);
        assert!(!second.expects_greetings(), "its last group is gone");
        drop((a, c));
    }

    #[test]
    fn one_that_rests_gets_no_group() {
        let mut first = GroupTaker::new(Yes);
        let mut second = first.share();
        second.set(Yes);
        hears(&second);
        first.rest();
        assert_eq!((first.takes(), first.takers(Many)), (NotYet, 1));
        let places: Vec<Placed> = (0..3).map(|token| first.place(token, Many)).collect();
        assert!(places.iter().all(|place| matches!(place, Placed::There(_))), "{places:?}");
        second.rest();
        assert!(matches!(first.place(9, Many), Placed::Nowhere));
    }

    #[test]
    fn one_without_a_bell_gets_no_mail() {
        let mut first = GroupTaker::new(Yes);
        let mut second = first.share();
        second.set(Yes);
        let places: Vec<Placed> = (0..3).map(|token| first.place(token, Many)).collect();
        assert!(places.iter().all(|place| matches!(place, Placed::Here(_))), "{places:?}");
        hears(&second);
        assert!(matches!(first.place(9, Many), Placed::There(_)) && !second.has_mail());
    }

    #[test]
    fn one_that_keeps_its_connections_apart_takes_brief_ones() {
        let mut only = GroupTaker::new(Yes);
        only.keep_apart();
        assert_eq!(
            (only.takes(), only.takers(Many), only.takers(Brief)),
            (TakesGroups::Brief, 0, 1)
        );
        assert!(matches!(only.place(1, Many), Placed::Nowhere));
        assert!(matches!(only.place(2, Brief), Placed::Here(_)));
        only.set(No);
        only.keep_apart();
        assert_eq!(only.takes(), No, "the program allows none");
    }
}
