//! What the checks say.

use serde::Serialize;

/// How bad it is. The order is that of the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// As it should be.
    Ok,
    /// Good to know: nothing is wrong, or this host cannot tell.
    Note,
    /// EXS works, but slower than it could, or not by all ways that are there.
    Warning,
    /// What is there, or what was asked for, does not work.
    Fault,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check.
    pub(crate) check: &'static str,
    /// What was seen.
    pub(crate) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

impl Finding {
    fn new(severity: Severity, check: &'static str, text: impl Into<String>) -> Finding {
        Finding { severity, check, text: text.into(), advice: None }
    }

    pub(crate) fn ok(check: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Ok, check, text)
    }

    pub(crate) fn note(check: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, check, text)
    }

    pub(crate) fn warning(check: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, check, text)
    }

    pub(crate) fn fault(check: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Fault, check, text)
    }

    pub(crate) fn advice(self, text: impl Into<String>) -> Finding {
        Finding { advice: Some(text.into()), ..self }
    }
}
