//! What the environment wants to be offered.

use std::path::{Path, PathBuf};

use crate::progress::Error;
use crate::progress::options::read;
use crate::progress::values::parse_switch;

/// Whether, and where, the process offers its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::progress) enum Offer {
    /// Only if the program asks for it.
    #[default]
    Off,
    /// In the directory of the user.
    Usual,
    /// In this directory.
    In(PathBuf),
}

impl Offer {
    /// `EXS_STATS`: a switch, or the path of a directory.
    pub(in crate::progress) fn of_environment() -> Result<Offer, Error> {
        Ok(read("EXS_STATS", Offer::parse)?.unwrap_or_default())
    }

    fn parse(text: &str) -> Result<Offer, Error> {
        match parse_switch(text) {
            Ok(true) => Ok(Offer::Usual),
            Ok(false) => Ok(Offer::Off),
            Err(_) if text.starts_with('/') => Ok(Offer::In(text.into())),
            Err(_) => Err(Error::invalid(format!(
                "`{text}` is neither `on` nor `off` nor the absolute path of a directory"
            ))),
        }
    }

    /// The directory that was chosen. None: that of the user.
    pub(in crate::progress) fn directory(&self) -> Option<&Path> {
        match self {
            Offer::In(directory) => Some(directory),
            Offer::Off | Offer::Usual => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_offered_by_a_switch_or_in_a_directory() {
        let offer = |text| Offer::parse(text).unwrap();
        assert_eq!(
            [offer("1"), offer("On"), offer("off")],
            [Offer::Usual, Offer::Usual, Offer::Off]
        );
        assert_eq!(offer("/run/a b").directory(), Some(Path::new("/run/a b")));
        assert_eq!(offer("1").directory(), None);
        let e = Offer::parse("run/exs").unwrap_err().to_string();
        assert!(e.contains("`run/exs`") && e.contains("absolute path"), "{e}");
    }
}
