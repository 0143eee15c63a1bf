//! What there is on this host, and what would be chosen.

use std::net::SocketAddr;

use crate::progress::{Candidate, Error, Options, TransportInfo, describe_transports, first_shard};

/// The transports, each with the devices that this host has of it. Nothing is opened
/// for use.
///
/// ```
/// for t in exs::transports() {
///     match &t.trouble {
///         None => println!("{}: available", t.transport),
///         Some(why) => println!("{}: {why}", t.transport),
///     }
/// }
/// # assert!(exs::transports().iter().any(|t| t.built_in && t.trouble.is_none()));
/// ```
pub fn transports() -> Vec<TransportInfo> {
    describe_transports()
}

/// The ways that a connect to `addr` by a socket with these options has, in the order
/// in which it would try the usable ones, and why.
///
/// ```
/// let ways = exs::explain("127.0.0.1:7471".parse().unwrap(), &exs::Options::default())?;
/// for way in &ways {
///     println!("{} {}: {}", way.transport, if way.usable { "yes" } else { "no" }, way.reason);
/// }
/// # assert!(!ways.is_empty());
/// # Ok::<(), exs::Error>(())
/// ```
///
/// # Errors
/// The kernel's error if EXS cannot start.
pub fn explain(addr: SocketAddr, options: &Options) -> Result<Vec<Candidate>, Error> {
    Ok(first_shard()?.call(|engine, now| engine.devices.explain(options, addr, now)))
}
