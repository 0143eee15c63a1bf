//! Real processes that die, stop, or start programs, over the software RNIC.

#[path = "processes.rs"]
mod processes;
