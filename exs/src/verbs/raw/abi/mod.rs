//! The declarations of libibverbs and librdmacm, and the way to their functions.
//!
//! A program with EXS must start on a host without rdma-core, and must build without its headers. So
//! EXS opens the two libraries when it first looks for RDMA devices ([`load`]), and takes their
//! functions by name and version. The declarations are checked in (`bindings.rs`). `make bindings`
//! makes them of those of the crate rdma-sys, which bindgen makes of the headers.
//!
//! Some functions exist in the headers only, as inline functions: they call through a table of the
//! device's context. Those are written again in `inline.rs`.
//!
//! With the feature `verbs-link` the crate rdma-sys declares everything, and the linker finds the
//! libraries. Its build needs the headers and libclang 14 or 15. The tests of such a build compare
//! each layout and constant of `bindings.rs` with rdma-sys's (`compare.rs`).

#[cfg(any(not(feature = "verbs-link"), test))]
#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    clippy::pub_underscore_fields,
    reason = "declarations of C"
)]
mod bindings;
#[cfg(all(test, feature = "verbs-link"))]
mod compare;
#[cfg(not(feature = "verbs-link"))]
#[allow(unreachable_pub, reason = "what rdma-sys has, it has as public, too")]
mod inline;
#[cfg(not(feature = "verbs-link"))]
mod load;

#[cfg(not(feature = "verbs-link"))]
pub(super) use bindings::*;
#[cfg(not(feature = "verbs-link"))]
pub(super) use inline::*;
#[cfg(feature = "verbs-link")]
pub(super) use rdma_sys::*;

use std::os::raw::c_int;

use crate::rnic::RnicError;

/// `ibv_reg_dmabuf_mr(3)`: protection domain, offset, length, address for the device, descriptor,
/// `IBV_ACCESS_` bits.
pub(super) type RegDmabufMr =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

/// The function, which libibverbs has since rdma-core 34. None: this host has an older one.
#[cfg(not(feature = "verbs-link"))]
pub(super) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    load::reg_dmabuf_mr()
}

/// The linker has found it.
#[cfg(feature = "verbs-link")]
#[expect(clippy::unnecessary_wraps, reason = "it may be missing in builds that open the library")]
pub(super) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    Some(ibv_reg_dmabuf_mr)
}

/// Opens the libraries, unless the process has done so before. No function of them may be called
/// without.
///
/// # Errors
/// [`RnicError::NoLibrary`]: this host has no such library, or an older one.
#[cfg(not(feature = "verbs-link"))]
pub(in super::super) fn load() -> Result<(), RnicError> {
    load::open().map(drop)
}

/// The linker has found the libraries.
#[cfg(feature = "verbs-link")]
#[expect(clippy::unnecessary_wraps, reason = "they may be missing in builds that open them")]
pub(in super::super) fn load() -> Result<(), RnicError> {
    Ok(())
}
