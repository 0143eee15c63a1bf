//! Opens the libraries, and finds their functions by name and version.
//!
//! A process opens a library once, by its soname, and never closes it: providers of devices keep
//! threads and handlers in it. `bindings.rs` names the version of each function. It is the version
//! that a linker would choose. A later version may have other arguments.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::RegDmabufMr;
use super::bindings::Functions;
use crate::rnic::RnicError;

/// The functions of the libraries.
///
/// # Errors
/// [`RnicError::NoLibrary`]. A process that had no library when it first looked has none later.
pub(super) fn open() -> Result<&'static Functions, RnicError> {
    static FUNCTIONS: OnceLock<Result<Functions, RnicError>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::find).as_ref().map_err(Clone::clone)
}

/// The functions, for a caller that has a device or an object of the libraries.
#[inline]
pub(super) fn loaded() -> &'static Functions {
    open().expect("an object of the library comes from a process that has opened it")
}

/// `ibv_reg_dmabuf_mr`, if this host's library has it. All else works without.
pub(super) fn reg_dmabuf_mr() -> Option<RegDmabufMr> {
    static FOUND: OnceLock<Option<RegDmabufMr>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let library = OpenLibrary::open("libibverbs.so.1").ok()?;
        let at = library.find("ibv_reg_dmabuf_mr\0", "IBVERBS_1.12\0").ok()?;
        // SAFETY: the function of this name and version has this type. A build with `verbs-link`
        // compares the type with that of the headers.
        Some(unsafe { std::mem::transmute::<*mut c_void, RegDmabufMr>(at) })
    })
}

/// A library that stays open.
pub(super) struct OpenLibrary {
    name: &'static str,
    handle: *mut c_void,
}

impl OpenLibrary {
    pub(super) fn open(name: &'static str) -> Result<OpenLibrary, RnicError> {
        // SAFETY: the constructors of rdma-core's libraries have no conditions: any program may be
        // linked to them. A file of that name that is no such library could do anything, as it could
        // to a program that is linked to it.
        let library = unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) };
        let library = library.map_err(|e| RnicError::NoLibrary { name, why: e.to_string() })?;
        Ok(OpenLibrary { name, handle: library.into_raw() })
    }

    /// The address of a function. Both strings end in a zero byte.
    ///
    /// # Errors
    /// The library has no such function in this version.
    pub(super) fn find(
        &self,
        symbol: &'static str,
        version: &'static str,
    ) -> Result<*mut c_void, RnicError> {
        let text = |s: &'static str| CStr::from_bytes_with_nul(s.as_bytes()).unwrap_or_default();
        let at = self.look_up(text(symbol), text(version));
        if at.is_null() {
            let (symbol, version) = (symbol.trim_end_matches('\0'), version.trim_end_matches('\0'));
            let why = format!("it is too old: {symbol} of {version} is missing");
            return Err(RnicError::NoLibrary { name: self.name, why });
        }
        Ok(at)
    }

    #[cfg(target_env = "gnu")]
    fn look_up(&self, symbol: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: an open library, and two terminated strings.
        unsafe { libc::dlvsym(self.handle, symbol.as_ptr(), version.as_ptr()) }
    }

    /// The loaders of other C libraries know one version of a symbol.
    #[cfg(not(target_env = "gnu"))]
    fn look_up(&self, symbol: &CStr, _version: &CStr) -> *mut c_void {
        // SAFETY: an open library, and a terminated string.
        unsafe { libc::dlsym(self.handle, symbol.as_ptr()) }
    }
}

/// Declares the functions of libraries: their table, and a function of each name that calls through
/// it.
macro_rules! functions {
    ($($library:literal {
        $(
            #[version = $version:literal]
            pub fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;
        )*
    })*) => {
        /// The functions of the libraries.
        pub(super) struct Functions {
            $($($name: unsafe extern "C" fn($($ty),*) $(-> $ret)?,)*)*
        }

        impl Functions {
            /// Opens the libraries, and looks up all functions.
            pub(super) fn find() -> Result<Functions, $crate::rnic::RnicError> {
                $($(let $name;)*)*
                $({
                    let library = super::load::OpenLibrary::open($library)?;
                    $({
                        let symbol = concat!(stringify!($name), "\0");
                        let at = library.find(symbol, concat!($version, "\0"))?;
                        // SAFETY: the function of this name and version has the type that the
                        // headers of the library declare, and `make bindings` has taken it from
                        // there.
                        $name = unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($ty),*) $(-> $ret)?,
                            >(at)
                        };
                    })*
                })*
                Ok(Functions { $($($name,)*)* })
            }
        }

        $($(
            /// The C function of that name.
            ///
            /// # Safety
            /// The conditions of the C function.
            pub unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller keeps the conditions of the C function.
                unsafe { (super::load::loaded().$name)($($arg),*) }
            }
        )*)*
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    fn no_library(found: Result<OpenLibrary, RnicError>) -> String {
        match found {
            Err(e @ RnicError::NoLibrary { .. }) => e.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("no host has this library"),
        }
    }

    #[test]
    fn a_library_that_the_host_lacks_is_named() {
        let text = no_library(OpenLibrary::open("libexs-no-such.so.1"));
        assert!(text.contains("libexs-no-such.so.1"), "{text}");
    }

    #[test]
    fn a_library_that_lacks_a_function_is_too_old() {
        // The C library is on every host.
        let name = if cfg!(target_env = "gnu") { "libc.so.6" } else { "libc.so" };
        let Ok(library) = OpenLibrary::open(name) else { return };
        let version = if cfg!(target_arch = "x86_64") { "GLIBC_2.2.5\0" } else { "GLIBC_2.17\0" };
        assert!(library.find("getpid\0", version).is_ok());
        let e = library.find("ibv_of_tomorrow\0", "IBVERBS_9.9\0").expect_err("no such function");
        let text = e.to_string();
        assert!(text.contains("ibv_of_tomorrow") && text.contains("IBVERBS_9.9"), "{text}");
    }
}
