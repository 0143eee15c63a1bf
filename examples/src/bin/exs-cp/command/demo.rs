//! demo
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use crate::cli::Demo;
use crate::error::CpError;
pub(crate) fn run(_args: &Demo, _stop: &Arc<AtomicBool>) -> Result<u8, CpError> { Ok(0) }
