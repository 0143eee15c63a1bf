//! Many of everything at once, and books kept of all of it.
//!
//! Everything random comes from a seed. Tests that look at a figure of the whole process run in a
//! process of their own: [`child`] is its part.

mod stress {
    pub(crate) mod chaos;
    pub(crate) mod churn;
    pub(crate) mod idle;
    pub(crate) mod threads;
}

use exs_tests::harness::{LIMIT, Watchdog, peer};

/// Not a test in the parent: the part of the other process.
#[test]
fn child() {
    let Some(words) = peer::part() else { return };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _dog = Watchdog::with_limit(&format!("the child {words:?}"), LIMIT * 2);
    match words[..] {
        ["clients", addr, count] => {
            stress::threads::clients(addr.parse().unwrap(), count.parse().unwrap());
        }
        ["churn"] => stress::churn::churn(),
        ["starve"] => stress::churn::starve(),
        ["idle-server"] => stress::idle::server(),
        ["idle-shards", transport] => stress::idle::shards(transport.parse().unwrap()),
        ["idle-clients", addr, count] => {
            stress::idle::clients(addr.parse().unwrap(), count.parse().unwrap());
        }
        _ => panic!("no such part: {words:?}"),
    }
}
