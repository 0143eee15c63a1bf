//! Extended Sockets.
#![cfg_attr(docsrs, feature(doc_cfg))]

macro_rules! floors {
    ($($(#[$m:meta])* $name:ident),* $(,)?) => {$(
        #[cfg(feature = "internals")]
        $(#[$m])* pub mod $name;
        #[cfg(not(feature = "internals"))]
        #[allow(dead_code, unreachable_pub)]
        $(#[$m])* mod $name;
    )*};
}

floors! {
    ids,
    iwarp,
    mem,
    packet,
    rnic,
    stream,
    sys,
    tcp,
    time,
    wire,
}

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
