//! Helpers shared by the tests in this package, and the contract suites: tests written
//! once, against an interface, and run for each implementation of it.

pub mod either_rnic;
pub mod fake;
pub mod harness;
pub mod kernel;
pub mod rdma;
pub mod rnic;
pub mod shm;
pub mod skip;
pub mod slow_file;
pub mod socket;
pub mod strangers;
pub mod sys;
