//! What every test of the public interface stands on.
//!
//! - [`Watchdog`]: no test hangs; it ends the process and says which test it was.
//! - [`Ledger`]: an event queue that keeps books, so that "exactly one event for each
//!   accepted operation" is checked by every test and not by one.
//! - [`Env`]: which transport, which addresses; makes sockets and connected pairs.
//! - [`Rng`], [`pattern`]: random sizes by seed, and bytes that tell where they belong.
//! - [`peer`]: real processes to talk to.
//! - [`blocked`]: threads that block beside those of a case.
//! - [`Starved`]: the process has no descriptors left.
//!
//! Nothing here sleeps to put things in order: tests wait for events.

pub mod blocked;
mod bytes;
mod cable;
mod env;
mod ledger;
pub mod peer;
mod starved;
mod watchdog;

pub use bytes::{Rng, check, pattern};
pub use cable::{Cable, run};
pub use env::{Env, many_files, status_kib, stream_pair, stream_socket};
pub use ledger::{Ledger, accepted, accepted_kernel};
pub use starved::Starved;
pub use watchdog::{LIMIT, Watchdog};
