//! F0: logging, if the feature `tracing` is on; else nothing at all.

#[cfg(feature = "tracing")]
pub(crate) use tracing::{debug, info, warn};

#[cfg(not(feature = "tracing"))]
macro_rules! silent {
    ($($arg:tt)*) => {{
        // The arguments count as used, and cost nothing.
        if false {
            let _ = format_args!($($arg)*);
        }
    }};
}
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as debug;
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as info;
#[cfg(not(feature = "tracing"))]
pub(crate) use silent as warn;
