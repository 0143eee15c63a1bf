//! The C face of EXS: `libexs` and `<sys/exs.h>`.
//!
//! The ABI is not there yet; this crate holds its place in the workspace and
//! proves that the core can be linked from it.

pub use exs::VERSION;
