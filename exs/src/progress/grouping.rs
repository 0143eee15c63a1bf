//! Which connections share a TCP connection, as a link group.

use std::fmt;
use std::str::FromStr;

use super::error::Error;

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
/// `exs_epoll_wait`, to peers that know groups.
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
    /// Those beyond the first 16. Of tasks in a tokio runtime with one worker, those beyond the first.
    #[default]
    Auto,
    /// Those beyond this number.
    Beyond(u32),
    /// None of them, and a listener takes no groups.
    Off,
}

/// The program's way to use the connections that it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupUse {
    /// A thread waits for each of them, or the program polls a descriptor of its own.
    Apart,
    /// One worker of a runtime serves them all.
    #[cfg(feature = "tokio")]
    OneWorker,
    Usual,
}

impl Grouping {
    /// The connections beyond which one with this use joins a group. None: it has a stream of its own.
    pub(crate) fn beyond(self, used: GroupUse) -> Option<u32> {
        match (self, used) {
            (Grouping::Off, _) | (_, GroupUse::Apart) => None,
            (Grouping::Beyond(number), _) => Some(number),
            #[cfg(feature = "tokio")]
            (Grouping::Auto, GroupUse::OneWorker) => Some(ONE_WORKER),
            (Grouping::Auto, GroupUse::Usual) => Some(USUAL),
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
        let beyond = |grouping: Grouping| {
            [GroupUse::Usual, GroupUse::OneWorker, GroupUse::Apart]
                .map(|used| grouping.beyond(used))
        };
        assert_eq!(beyond(Grouping::Auto), [Some(16), Some(1), None]);
        assert_eq!(beyond(Grouping::Beyond(3)), [Some(3), Some(3), None]);
        assert_eq!(beyond(Grouping::Off), [None; 3]);
    }
}
