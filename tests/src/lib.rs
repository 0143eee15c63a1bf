//! Helpers shared by the tests in this package.

pub mod rnic;
