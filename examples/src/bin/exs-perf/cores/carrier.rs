//! What carries the bytes.

use std::fmt;
use std::str::FromStr;

use exs::Transport;
use serde::{Deserialize, Serialize};

use crate::job::Way;

/// Plain TCP, or a transport of EXS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Carrier {
    Tcp,
    Exs(Transport),
}

impl Carrier {
    pub(super) const SOFT: Carrier = Carrier::Exs(Transport::Soft);
    pub(super) const SHM: Carrier = Carrier::Exs(Transport::Shm);
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(name: &str) -> Result<Carrier, String> {
        match name {
            "tcp" => Ok(Carrier::Tcp),
            other => other.parse().map(Carrier::Exs).map_err(|_| {
                format!("no transport is called `{other}`: use tcp, soft, shm, verbs or auto")
            }),
        }
    }
}

impl TryFrom<String> for Carrier {
    type Error = String;

    fn try_from(name: String) -> Result<Carrier, String> {
        name.parse()
    }
}

impl From<Carrier> for String {
    fn from(carrier: Carrier) -> String {
        carrier.to_string()
    }
}

/// As the other tests of exs-perf name it.
impl From<Carrier> for Way {
    fn from(carrier: Carrier) -> Way {
        match carrier {
            Carrier::Tcp => Way::Tcp,
            Carrier::Exs(transport) => Way::Exs(transport),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Tcp => f.write_str("tcp"),
            Carrier::Exs(transport) => transport.fmt(f),
        }
    }
}
