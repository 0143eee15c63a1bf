//! Connections to one address that follow each other quickly and end soon share a link group. One that lives
//! on leaves it.

use std::net::SocketAddr;
use std::time::Duration;

use exs::rnic::{ConnParam, Disconnect, GroupRule, ListenOpts, Listener, Rnic, TakesGroups};
use exs::sys::RandomSource;
use exs::tcp::SoftRnic;
use exs::time::Time;
use exs_tests::rnic::groups::{All, addrs, call_with, carrier};
use exs_tests::rnic::world::{Pair, listen_opts, param};
use exs_tests::rnic::{Harness, World};

/// The time over which dials are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// More dials than make connections brief.
const DIALS: usize = 20;

struct Soft;

impl Harness for Soft {
    type Rnic = SoftRnic;
    fn make(_node: usize, registry: mio::Registry, token_base: usize) -> SoftRnic {
        SoftRnic::new(registry, token_base, RandomSource::seeded(7))
    }
}

const BRIEF: GroupRule = GroupRule { beyond: None, brief: true };
const NEVER: GroupRule = GroupRule { beyond: None, brief: false };

/// Two nodes, and the time of the dials, which does not pass by itself.
struct Dialer {
    w: World<Soft>,
    at: Time,
    listener: Listener,
    addr: SocketAddr,
}

impl Dialer {
    fn new(groups: TakesGroups) -> Dialer {
        let mut w = World::<Soft>::new(2);
        let opts = ListenOpts { groups, ..listen_opts() };
        let listener = w.rnics[1].listen(Soft::local(), &opts).unwrap();
        let addr = w.rnics[1].listener_addr(listener).unwrap();
        let at = w.now();
        Dialer { w, at, listener, addr }
    }

    fn call(&mut self, grouping: GroupRule) -> Pair {
        let param = ConnParam { grouping, ..param(&[]) };
        let pair = call_with(&mut self.w, self.addr, &param, self.at);
        self.w.assert_alive(pair);
        pair
    }

    fn end(&mut self, pair: Pair) {
        self.w.disconnect(pair.a, Disconnect::Abort);
        self.w.ended(pair.a, |_| true);
        self.w.ended(pair.b, |_| true);
    }

    /// Begins and ends connections for a window. The next one is the first of another window.
    fn hurry(&mut self) {
        for _ in 0..DIALS {
            let pair = self.call(BRIEF);
            self.end(pair);
        }
        self.at = self.at + WINDOW;
        let pair = self.call(BRIEF);
        self.end(pair);
    }

    /// True if these share a TCP connection.
    fn share(&self, [one, other]: [Pair; 2]) -> bool {
        carrier(&self.w, one.a) == carrier(&self.w, other.a)
    }

    fn two(&mut self, grouping: GroupRule) -> [Pair; 2] {
        [self.call(grouping), self.call(grouping)]
    }
}

#[test]
fn connections_that_end_soon_share_a_tcp_connection() {
    let mut d = Dialer::new(TakesGroups::Yes);
    let before = d.two(BRIEF);
    assert!(!d.share(before), "none has ended");
    before.into_iter().for_each(|pair| d.end(pair));
    d.hurry();
    let brief = d.two(BRIEF);
    assert!(d.share(brief));
    assert_ne!(addrs(&d.w, brief[0].a), addrs(&d.w, brief[1].a));
    let other = d.two(NEVER);
    assert!(!d.share(other), "the program does not want it");
    d.at = d.at + 2 * WINDOW;
    let later = d.two(BRIEF);
    assert!(!d.share(later), "it was long ago");
}

#[test]
fn connections_that_stay_open_share_none() {
    let mut d = Dialer::new(TakesGroups::Yes);
    let open: Vec<Pair> = (0..DIALS).map(|_| d.call(BRIEF)).collect();
    d.at = d.at + WINDOW;
    let more = [d.two(BRIEF), d.two(BRIEF)];
    assert!(more.iter().all(|two| !d.share(*two)));
    open.into_iter().for_each(|pair| d.w.assert_alive(pair));
}

/// A thread that waits for a TCP connection of its own gains more by that than the connection costs.
#[test]
fn connections_with_many_messages_share_none() {
    let mut d = Dialer::new(TakesGroups::Yes);
    d.hurry();
    let mut left = 100;
    loop {
        let two = d.two(BRIEF);
        if !d.share(two) {
            break;
        }
        for pair in two {
            (0..9).for_each(|_| d.w.assert_alive(pair));
            d.end(pair);
        }
        left -= 1;
        assert!(left > 0, "they were brief all the time");
    }
}

#[test]
fn a_connection_that_lives_on_leaves() {
    let mut d = Dialer::new(TakesGroups::Yes);
    d.hurry();
    let [stays, lives] = d.two(BRIEF);
    let group = carrier(&d.w, stays.a);
    let names = (addrs(&d.w, lives.a), addrs(&d.w, lives.b));
    for _ in 0..40 {
        d.w.assert_alive(lives);
    }
    d.w.settle();
    assert_ne!(carrier(&d.w, lives.a), group);
    assert_eq!(carrier(&d.w, stays.a), group);
    assert_eq!((addrs(&d.w, lives.a), addrs(&d.w, lives.b)), names, "the program sees the same");
    for pair in [lives, stays] {
        d.w.assert_moves(pair, 100_000);
        assert!(d.w.rnics[0].attend(pair.a.qp) == (carrier(&d.w, pair.a) != group));
    }
    assert!(d.w.rnics[0].unattend(lives.a.qp));
    d.w.assert_alive(lives);
}

/// A listener whose connections have a thread each takes groups of brief ones, and no others.
#[test]
fn a_listener_may_take_brief_ones_only() {
    let mut d = Dialer::new(TakesGroups::Brief);
    d.hurry();
    let many = d.two(GroupRule { beyond: Some(0), brief: true });
    assert!(!d.share(many));
    let brief = d.two(BRIEF);
    assert!(d.share(brief), "it is asked for each kind");
    d.w.rnics[1].take_groups(d.listener, TakesGroups::No);
    let refused = d.two(BRIEF);
    assert!(!d.share(refused));
    brief.into_iter().chain(many).for_each(|pair| d.w.assert_alive(pair));
}

/// A thread at the listener's end waits for one of its connections itself.
#[test]
fn connections_that_threads_wait_for_keep_no_brief_ones_apart() {
    let mut d = Dialer::new(TakesGroups::Yes);
    let waited_for = d.call(BRIEF);
    assert!(d.w.rnics[1].attend(waited_for.b.qp));
    d.w.rnics[1].keep_apart(waited_for.b.qp);
    d.hurry();
    let brief = d.two(BRIEF);
    assert!(d.share(brief));
    let many = d.two(GroupRule { beyond: Some(0), brief: false });
    assert!(!d.share(many));
    assert!(d.w.rnics[1].unattend(waited_for.b.qp));
    d.w.assert_alive(waited_for);
}

/// The rule for many connections comes first: their groups are for links that live.
#[test]
fn many_connections_are_not_brief() {
    let mut w = World::<All>::new(2);
    let (_, addr) = w.listen(1, All::local());
    let at = w.now();
    let brief = ConnParam { grouping: BRIEF, ..param(&[]) };
    let pairs: Vec<Pair> = (0..3).map(|_| call_with(&mut w, addr, &brief, at)).collect();
    let group = carrier(&w, pairs[0].a);
    for _ in 0..100 {
        w.assert_alive(pairs[0]);
    }
    w.settle();
    assert!(pairs.iter().all(|pair| carrier(&w, pair.a) == group));
}
