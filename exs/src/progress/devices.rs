//! Which devices there are.
use super::Error;
use crate::rnic::Rnic;
pub(super) fn soft(_registry: mio::Registry, _token_base: usize) -> Result<Box<dyn Rnic>, Error> {
    Err(Error::invalid("none"))
}
