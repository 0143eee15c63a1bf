//! The guide: how to use EXS, from the first program to the set-up of RDMA devices.
//!
//! These pages are chapters of the project's book (`make book`), which also covers the C library,
//! the tools, the design and the measurements.
//!
//! They exist in the documentation only. The text is in `docs/book/src/guide`, which the directory
//! `exs/guide` links to, so that a package of this crate contains it. Every program in the pages is
//! compiled and run by `cargo test --doc`.
//!
//! Links between pages are written for the book. `links.md` stands before each page here: the
//! first definition of a link counts, so its definitions replace those at the end of the page. Pages
//! that exist with some features only have definitions of their own before that.

macro_rules! pages {
    ($($(#[$when:meta])* $name:ident: $file:literal,)+) => {
        $(
            $(#[$when])*
            #[doc = include_str!("guide/links.md")]
            #[doc = include_str!(concat!("../guide/", $file))]
            pub mod $name {}
        )+
    };
}

pages! {
    quick_start: "quick-start.md",
    concepts: "concepts.md",
    porting: "porting.md",
    one_sided: "one-sided.md",
    kernel_sockets: "kernel-sockets.md",
    event_loops: "event-loops.md",
    #[cfg(feature = "tokio")]
    #[doc = "[programs]: crate::guide::programs\n"]
    asynchronous: "async.md",
    // Its programs need the crates that they are about: examples/async runs them.
    #[cfg(all(feature = "tokio", not(doctest)))]
    #[doc = "[async]: crate::guide::asynchronous\n"]
    programs: "programs.md",
    transports: "transports.md",
    tuning: "tuning.md",
    watching: "watching.md",
    rdma: "rdma.md",
    containers: "containers.md",
    troubleshooting: "troubleshooting.md",
}
