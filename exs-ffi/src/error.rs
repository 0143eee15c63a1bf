//! Errors at the border to C: errno, and a sentence about the thread's last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fork;

/// What went wrong. The text is made only when the program asks for it.
#[derive(Debug)]
enum Why {
    Nothing,
    Fixed(&'static str),
    Text(String),
    Exs(exs::Error),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Nothing => Ok(()),
            Why::Fixed(text) => f.write_str(text),
            Why::Text(text) => f.write_str(text),
            Why::Exs(e) => write!(f, "{e}"),
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub struct Fail {
    errno: c_int,
    why: Why,
}

/// The result of the inside of a call.
pub(crate) type Result<T> = std::result::Result<T, Fail>;

impl Fail {
    /// A failure with a fixed text, which needs no allocation.
    pub(crate) const fn fixed(errno: c_int, why: &'static str) -> Fail {
        Fail { errno, why: Why::Fixed(why) }
    }

    pub(crate) fn text(errno: c_int, why: String) -> Fail {
        Fail { errno, why: Why::Text(why) }
    }

    pub(crate) fn errno(&self) -> c_int {
        self.errno
    }

    /// True if the failure says nothing of the connection: the call would have to wait, a signal came,
    /// or an argument makes no sense.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.errno,
            libc::EAGAIN
                | libc::EINTR
                | libc::EFAULT
                | libc::EINVAL
                | libc::EOPNOTSUPP
                | libc::EMSGSIZE
        )
    }

    /// The error of the last system call.
    pub(crate) fn os(call: &str) -> Fail {
        let e = std::io::Error::last_os_error();
        Fail::io(call, &e)
    }

    pub(crate) fn io(call: &str, e: &std::io::Error) -> Fail {
        Fail::text(e.raw_os_error().unwrap_or(libc::EIO), format!("{call}: {e}"))
    }
}

impl From<exs::Error> for Fail {
    fn from(e: exs::Error) -> Fail {
        Fail { errno: e.errno(), why: Why::Exs(e) }
    }
}

impl From<exs::MemError> for Fail {
    fn from(e: exs::MemError) -> Fail {
        // To C, memory outside of its registration is a bad address.
        let errno = match e {
            exs::MemError::OutOfBounds { .. } => libc::EFAULT,
            _ => exs::Error::Memory(e).errno(),
        };
        Fail::fixed(errno, "the memory is not inside of the registration that its handle names")
    }
}

impl<T: std::fmt::Debug> From<exs::Refused<T>> for Fail {
    fn from(r: exs::Refused<T>) -> Fail {
        r.error.into()
    }
}

thread_local! {
    /// The thread's last error, and the last text that exs_strerror has returned.
    static LAST: RefCell<(Why, CString)> = RefCell::new((Why::Nothing, CString::default()));
}

fn remember(why: Why) {
    // A thread that ends has no such memory any more.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.0 = why;
        }
    });
}

/// Notes the error of an event as the thread's last one.
pub(crate) fn note(e: exs::Error) {
    remember(Why::Exs(e));
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of the calling thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: valid for the thread's life (the call above).
    unsafe { *place = errno };
}

/// Runs the body of an exported function: a failure becomes -1 and errno, and a panic becomes EIO.
pub(crate) fn border(f: impl FnOnce() -> Result<c_int>) -> c_int {
    let result = if fork::is_child() {
        Err(Fail::fixed(
            libc::EPERM,
            "EXS was used before fork: the child has none of it. Fork first, or exec",
        ))
    } else {
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("a fault in libexs: {}", what.unwrap_or("no more is known"));
            Err(Fail::text(libc::EIO, text))
        })
    };
    match result {
        Ok(n) => n,
        Err(Fail { errno, why }) => {
            remember(why);
            set_errno(errno);
            -1
        }
    }
}

/// `exs_strerror`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_strerror() -> *const c_char {
    let made = LAST.try_with(|last| {
        let Ok(mut last) = last.try_borrow_mut() else { return c"".as_ptr() };
        let text = last.0.to_string().replace('\0', " ");
        last.1 = CString::new(text).unwrap_or_default();
        last.1.as_ptr()
    });
    made.unwrap_or(c"".as_ptr())
}

/// `exs_version`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: no arguments; the text is copied before the next call.
        let text = unsafe { exs_strerror() };
        // SAFETY: a C string, valid until the thread's next call.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panics_stop_at_the_border() {
        assert_eq!(border(|| panic!("on {}", "purpose")), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        assert_eq!(last(), "a fault in libexs: on purpose");
    }

    #[test]
    fn errors_are_the_threads_own() {
        assert_eq!(border(|| Err(Fail::fixed(libc::EBADF, "mine"))), -1);
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(last(), "mine");
        assert_eq!(border(|| Ok(3)), 3);
        assert_eq!(last(), "mine");
    }
}
