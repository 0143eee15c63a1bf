//! What the example programs share.

pub mod peer;
pub mod road;
pub mod stats;
