//! The file-system side: safe paths, partial files, journals, tree walks.
//!
//! Everything here works below one directory, the [`root::Root`], by
//! directory descriptors: no absolute path is put together and handed to the
//! kernel, so nothing that a peer names, and no symbolic link that somebody
//! plants meanwhile, leads outside. This directory knows no connection.
//!
//! What survives what:
//! - *either process dies*: the data are in the page cache, the journal says
//!   which chunks; the next run continues.
//! - *the machine dies*: the journal may have reached the disk before the
//!   data did. It carries the kernel's boot identifier; after another boot
//!   every chunk it lists is read back and hashed before it is believed.
//! - *a write or close fails*: so may have those before it, of which a file
//!   system (NFS, FUSE) had not told. The journal says so, and every chunk is
//!   read back as after another boot.
//! - *a finished file*: it has its name once all of it was written, closed
//!   without an error, and verified. By default the kernel decides when it reaches the disk, as
//!   with cp; with `--sync` success is reported only after syncfs(2).

pub(crate) mod journal;
pub(crate) mod leftover;
pub(crate) mod meta;
mod nameless;
pub(crate) mod part;
pub(crate) mod relpath;
pub(crate) mod root;
pub(crate) mod tree;
