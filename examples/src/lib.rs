//! What the example programs share.

pub mod address;
pub mod args;
pub mod fail;
pub mod frame;
pub mod man;
pub mod out;
pub mod peer;
pub mod plain;
pub mod registered;
pub mod road;
pub mod stats;
pub mod sys;
