//! Which connections share a TCP connection, as a link group.

use std::fmt;
use std::str::FromStr;

use super::error::Error;
use crate::rnic::{GroupRule, TakesGroups};

/// The connections to one address and port beyond which further ones join a link group.
const USUAL: u32 = 16;
/// The same for the tasks of a runtime with one worker. Its driver reads what has come for all of them in one
/// call, and their answers leave together. The first connection has a stream of its own, since many
/// programs have no other.
#[cfg(feature = "tokio")]
const ONE_WORKER: u32 = 1;

/// Which connections to one address and port share a TCP connection over the software RNIC, as a link
/// group (EXS extension). As text: `auto`, a number, or `off`.
///
/// Each connection of a group has a port of its own, which the kernel does not know. Groups are for connects
/// through an event queue of the program and those of `exs::aio`, and in C for those of threads that wait by
/// `exs_epoll_wait`, to peers that know groups. With [`Grouping::Auto`] they are also for blocking connects of
/// Rust to an address where connections follow each other quickly and end soon.
///
/// ```
/// use exs::Grouping;
///
/// assert_eq!("64".parse::<Grouping>()?, Grouping::Beyond(64));
/// assert_eq!(Grouping::Off.to_string(), "off");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Grouping {
    /// Those beyond the first 16. Of tasks in a tokio runtime with one worker, those beyond the first. Also
    /// those to an address to which 16 connects or more began in the last 100 ms, if at most half of them
    /// are open.
    #[default]
    Auto,
    /// Those beyond this number.
    Beyond(u32),
    /// None of them, and a listener takes no groups.
    Off,
}

/// What serves the connections that an operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// What the use of the operation's queue says.
    QueueUse,
    /// An event loop of the thread that posts, which drives the shards of its sockets.
    EventLoop,
    /// A program that polls the descriptors of its sockets.
    Poller,
}

/// The program's way to use the connections that it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupUse {
    /// A thread waits for each of them.
    Blocking,
    /// The program polls a descriptor of each.
    Polled,
    /// One worker of a runtime serves them all.
    #[cfg(feature = "tokio")]
    OneWorker,
    Usual,
}

impl Grouping {
    /// When a connection with this use joins a group.
    pub(crate) fn rule(self, used: GroupUse) -> GroupRule {
        let beyond = match (self, used) {
            (Grouping::Off, _) | (_, GroupUse::Blocking | GroupUse::Polled) => None,
            (Grouping::Beyond(number), _) => Some(number),
            #[cfg(feature = "tokio")]
            (Grouping::Auto, GroupUse::OneWorker) => Some(ONE_WORKER),
            (Grouping::Auto, GroupUse::Usual) => Some(USUAL),
        };
        GroupRule { beyond, brief: self == Grouping::Auto && used != GroupUse::Polled }
    }
}

impl GroupUse {
    /// The groups that a listener takes for connections with this use.
    pub(crate) fn takes(self) -> TakesGroups {
        match self {
            GroupUse::Polled => TakesGroups::No,
            GroupUse::Blocking => TakesGroups::Brief,
            #[cfg(feature = "tokio")]
            GroupUse::OneWorker => TakesGroups::Yes,
            GroupUse::Usual => TakesGroups::Yes,
        }
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grouping::Auto => f.pad("auto"),
            Grouping::Beyond(number) => number.fmt(f),
            Grouping::Off => f.pad("off"),
        }
    }
}

impl FromStr for Grouping {
    type Err = Error;

    fn from_str(text: &str) -> Result<Grouping, Error> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Grouping::Auto),
            "off" => Ok(Grouping::Off),
            number => number.parse().map(Grouping::Beyond).map_err(|_| {
                Error::invalid(format!(
                    "`{text}` is none of `auto`, a number of connections, and `off`"
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_and_others_refused() {
        for value in [Grouping::Auto, Grouping::Beyond(0), Grouping::Beyond(64), Grouping::Off] {
            assert_eq!(value.to_string().to_uppercase().parse::<Grouping>().unwrap(), value);
        }
        let e = "-1".parse::<Grouping>().unwrap_err();
        assert_eq!(e.to_string(), "`-1` is none of `auto`, a number of connections, and `off`");
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn the_use_decides_unless_the_program_does() {
        let rules = |grouping: Grouping| {
            [GroupUse::Usual, GroupUse::OneWorker, GroupUse::Blocking, GroupUse::Polled]
                .map(|used| grouping.rule(used))
                .map(|rule| (rule.beyond, rule.brief))
        };
        let auto = [(Some(16), true), (Some(1), true), (None, true), (None, false)];
        assert_eq!(rules(Grouping::Auto), auto);
        let three = [(Some(3), false), (Some(3), false), (None, false), (None, false)];
        assert_eq!(rules(Grouping::Beyond(3)), three);
        assert_eq!(rules(Grouping::Off), [(None, false); 4]);
    }
}
