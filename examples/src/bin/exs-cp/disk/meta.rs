//! The metadata of a file that a copy keeps, and the test whether two states of it are the same.

use rustix::fs::{FileType, Mode, Stat, Timespec, Timestamps};

/// A point in time as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Stamp {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

/// The kinds that are copied; everything else is skipped with a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    #[default]
    File,
    Dir,
    Symlink,
}

/// Mode, size and times of one entry, and what identifies its present state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) mtime: Stamp,
    pub(crate) atime: Stamp,
    /// Changes with every change of content, even if a program puts the modification time back.
    /// So a partial file is only continued from a source of which size, mtime, ctime and inode
    /// are all the same.
    pub(crate) ctime: Stamp,
    pub(crate) ino: u64,
}

impl Meta {
    /// `None`: a fifo, socket or device.
    #[expect(
        clippy::unnecessary_cast,
        clippy::cast_possible_truncation,
        reason = "the width of these fields is the architecture's; nanoseconds are below 10^9"
    )]
    pub(crate) fn of(st: &Stat) -> Option<Meta> {
        let kind = match FileType::from_raw_mode(st.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            _ => return None,
        };
        let stamp = |s, n| Stamp { seconds: s, nanos: n };
        Some(Meta {
            kind,
            mode: Mode::from_raw_mode(st.st_mode).as_raw_mode(),
            size: if kind == Kind::File { u64::try_from(st.st_size).unwrap_or(0) } else { 0 },
            mtime: stamp(st.st_mtime as i64, st.st_mtime_nsec as u32),
            atime: stamp(st.st_atime as i64, st.st_atime_nsec as u32),
            ctime: stamp(st.st_ctime as i64, st.st_ctime_nsec as u32),
            ino: st.st_ino as u64,
        })
    }

    /// Is this the same state of the same source? Access times do not count.
    pub(crate) fn same_source(&self, other: &Meta) -> bool {
        (self.kind, self.size, self.mtime, self.ctime, self.ino)
            == (other.kind, other.size, other.mtime, other.ctime, other.ino)
    }

    /// Could this finished copy be of that source? We set the modification
    /// time last, on a file that was verified, to the nanosecond.
    pub(crate) fn same_content_as(&self, source: &Meta) -> bool {
        (self.kind, self.size, self.mtime) == (source.kind, source.size, source.mtime)
    }

    /// The mode a copy gets.
    pub(crate) fn copy_mode(&self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o7777)
    }

    /// The bits of the mode that a copy gets only if its user asks for it: set-user-ID,
    /// set-group-ID and sticky of a file, set-user-ID of a directory. Set-group-ID and sticky
    /// of a directory are not special: they give no right to its contents, and say how it is used.
    fn special(&self) -> u32 {
        match self.kind {
            Kind::File => self.mode & 0o7000,
            Kind::Dir => self.mode & 0o4000,
            Kind::Symlink => 0,
        }
    }

    pub(crate) fn is_special(&self) -> bool {
        self.special() != 0
    }

    /// The metadata that a copy gets: without the special bits, unless the user of the side
    /// that it is made on `keeps` them. It belongs to another user than the original did.
    pub(crate) fn for_copy(self, keeps: bool) -> Meta {
        Meta { mode: if keeps { self.mode } else { self.mode & !self.special() }, ..self }
    }

    pub(crate) fn times(&self) -> Timestamps {
        let spec = |s: Stamp| Timespec { tv_sec: s.seconds, tv_nsec: s.nanos.into() };
        Timestamps { last_access: spec(self.atime), last_modification: spec(self.mtime) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_source_is_another_source() {
        let a = Meta { size: 5, ino: 7, ..Meta::default() };
        assert!(a.same_source(&Meta { atime: Stamp { seconds: 9, nanos: 0 }, mode: 0o600, ..a }));
        assert!(!a.same_source(&Meta { ctime: Stamp { seconds: 0, nanos: 1 }, ..a }));
        assert!(!a.same_source(&Meta { ino: 8, ..a }));
        assert!(!a.same_content_as(&Meta { size: 6, ..a }));
    }

    #[test]
    fn set_user_id_travels_only_if_it_is_asked_for() {
        let f = Meta { mode: 0o6755, ..Meta::default() };
        let d = Meta { kind: Kind::Dir, mode: 0o7755, ..f };
        for (meta, keeps, mode) in
            [(f, false, 0o755), (f, true, 0o6755), (d, false, 0o3755), (d, true, 0o7755)]
        {
            assert!(meta.is_special());
            assert_eq!(meta.for_copy(keeps).copy_mode().as_raw_mode(), mode);
        }
        assert!(!Meta { kind: Kind::Symlink, ..f }.is_special());
    }
}
