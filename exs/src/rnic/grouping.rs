//! Which connections share the TCP connection of a link group, where there is TCP.

/// When a connection joins a link group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupRule {
    /// If this number of connections to its address are open, or under way. None: their number does not
    /// count.
    pub beyond: Option<u32>,
    /// If connections to its address follow each other quickly, and end soon.
    pub brief: bool,
}

/// Whether a listener takes link groups, for as long as no other RNIC shares its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakesGroups {
    /// No: its connections need TCP connections of their own.
    #[default]
    No,
    /// Not yet: the first accept will say what its connections need.
    NotYet,
    /// Those of brief connections: others need TCP connections of their own.
    Brief,
    /// All.
    Yes,
}
