//! The file-system side: safe paths, partial files, journals, tree walks.
//!
//! Everything here works below one directory, the [`root::Root`], by
//! directory descriptors. No absolute path is built and handed to the kernel, so
//! no name from a peer, and no symbolic link that is planted meanwhile, leads
//! outside. This directory knows no connection.
//!
//! What survives what:
//! - *a file under its final name*: all of it was written and had the sender's hash, and with
//!   `sync` (the default) its data were on the disk before it got the name ([`batch`]). The
//!   request as a whole succeeds after names, directories, links and times are there, too.
//! - *either process dies*: with `sync` the journal lists chunks that are on the disk
//!   ([`notes`]); without, chunks that the page cache has.
//! - *the machine dies*, *a write or close fails*, *the partial file is changed*: the journal is
//!   a list of claims. The next run reads each chunk back, and believes the hash ([`readback`]).
//!   Without hashes it believes the seal of a run that ended in good order ([`journal`]).
//! - *fdatasync fails*: the file is given up, and its data come again. Neither a second call,
//!   which can succeed, nor the page cache says what the disk has then.

pub(crate) mod batch;
pub(crate) mod journal;
pub(crate) mod leftover;
pub(crate) mod meta;
mod nameless;
mod notes;
pub(crate) mod part;
pub(crate) mod readback;
pub(crate) mod relpath;
pub(crate) mod root;
pub(crate) mod tree;
