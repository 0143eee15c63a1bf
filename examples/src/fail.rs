//! Failures of a measurement, as the user reads them.

use std::fmt;

/// A message for the user.
#[derive(Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure(why)
    }
}

/// Errors of EXS name the call that failed.
impl From<exs::Error> for Failure {
    fn from(e: exs::Error) -> Failure {
        Failure(e.to_string())
    }
}

impl From<crate::out::Lost> for Failure {
    fn from(lost: crate::out::Lost) -> Failure {
        Failure(lost.to_string())
    }
}

/// An error, and what was tried.
pub trait During<T> {
    /// Puts `what` before the error.
    ///
    /// # Errors
    /// If it is one.
    fn during(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|e| Failure(format!("{what}: {e}")))
    }
}
