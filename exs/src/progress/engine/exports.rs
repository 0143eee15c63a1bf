//! The exports of a socket: memory that the peer of its connection may reach.
//!
//! An export is *open* until it is revoked, its lifetime passes, or the connection ends. Then it is
//! closed to the peer, and keeps its memory until the program takes it back.

use std::collections::HashMap;

use super::device::Device;
use super::onesided::ExportId;
use super::ops::TempMrs;
use crate::mem::{Buffer, Key, Segment};
use crate::session::Buf;
use crate::time::Time;

/// An export.
pub(super) struct ExportEntry {
    key: Key,
    buf: Buf,
    buffer: Buffer,
    temp: TempMrs,
    /// The peer may reach it.
    open: bool,
    /// The end of its lifetime. None: it has no such end.
    expires: Option<Time>,
}

impl ExportEntry {
    /// An open export under this key.
    pub(super) fn new(
        key: Key,
        buf: Buf,
        (buffer, temp): (Buffer, TempMrs),
        expires: Option<Time>,
    ) -> ExportEntry {
        ExportEntry { key, buf, buffer, temp, open: true, expires }
    }

    /// Frees the memory of an export that is closed. Returns its buffer.
    pub(super) fn free(self, device: &mut Device, domain: u32) -> Buffer {
        let ExportEntry { buf, buffer, temp, .. } = self;
        drop(buf);
        device.unprepare(domain, &temp, None);
        buffer
    }
}

/// See the module's essay.
#[derive(Default)]
pub(super) struct Exports(HashMap<ExportId, ExportEntry>);

impl Exports {
    pub(super) fn add(&mut self, number: ExportId, export: ExportEntry) {
        self.0.insert(number, export);
    }

    /// The memory of an export. None: there is no such export.
    pub(super) fn segment(&self, number: ExportId) -> Option<&Segment> {
        self.0.get(&number).map(|export| &export.buf.seg)
    }

    /// Closes an export. Returns the key, which the caller must take from the peer. None: the export is
    /// closed already, or there is no such export.
    pub(super) fn close(&mut self, number: ExportId) -> Option<Key> {
        let export = self.0.get_mut(&number)?;
        std::mem::take(&mut export.open).then_some(export.key)
    }

    /// Closes all of them: the keys have ended with the queue pair.
    pub(super) fn close_all(&mut self) {
        self.0.values_mut().for_each(|export| export.open = false);
    }

    /// Takes an export out, which must be closed.
    pub(super) fn remove(&mut self, number: ExportId) -> Option<ExportEntry> {
        self.0.remove(&number)
    }

    /// The open exports whose lifetime has passed.
    pub(super) fn overdue(&self, now: Time) -> Vec<ExportId> {
        let over = |e: &ExportEntry| e.open && e.expires.is_some_and(|t| t <= now);
        self.0.iter().filter(|(_, e)| over(e)).map(|(number, _)| *number).collect()
    }

    /// The end of the first lifetime.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.0.values().filter(|e| e.open).filter_map(|e| e.expires).min()
    }

    /// How many there are, closed ones included.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = ExportEntry> {
        self.0.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Region;
    use crate::rnic::Mr;

    fn export(key: Key, expires: Option<u64>) -> ExportEntry {
        let (buffer, region) = (Buffer::from(vec![0; 8]), Region::map(8).unwrap());
        let buf = Buf { seg: region.segment(0, 8).unwrap(), mr: Mr { key } };
        ExportEntry::new(key, buf, (buffer, TempMrs::None), expires.map(Time::from_nanos))
    }

    #[test]
    fn an_export_closes_once_and_keeps_its_memory() {
        let mut exports = Exports::default();
        exports.add(1, export(70, None));
        assert_eq!((exports.close(2), exports.close(1), exports.close(1)), (None, Some(70), None));
        assert!(exports.segment(1).is_some() && exports.count() == 1);
        assert!(exports.remove(1).is_some() && exports.remove(1).is_none());
        assert!(exports.segment(1).is_none());
    }

    #[test]
    fn only_open_exports_fall_due() {
        let mut exports = Exports::default();
        for (number, expires) in [(1, Some(30)), (2, Some(20)), (3, None)] {
            exports.add(number, export(70, expires));
        }
        let at = Time::from_nanos;
        assert_eq!((exports.next_timeout(), exports.overdue(at(19))), (Some(at(20)), vec![]));
        assert_eq!(exports.overdue(at(20)), [2]);
        exports.close(2);
        assert_eq!((exports.next_timeout(), exports.overdue(at(29))), (Some(at(30)), vec![]));
        exports.close_all();
        assert_eq!((exports.next_timeout(), exports.overdue(at(99))), (None, vec![]));
        assert_eq!((exports.close(3), exports.into_entries().count()), (None, 3));
    }
}
