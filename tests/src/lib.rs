//! Helpers shared by the tests in this package.
