//! What the example programs share.

pub mod peer;
pub mod stats;
