//! Sends of several parts, from memory and from files, with one event.
//!
//! Each part is an operation of the session. The engine posts all parts under one hold of the lock,
//! so that no operation of another thread comes between them. A *group* gathers the results. When a
//! part fails, the engine cancels the parts behind it, since a stream has no holes.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::device::Device;
use super::domain::Place;
use super::kernel::NO_SOCK;
use super::memory::Prepared;
use super::ops::{Op, OpTable, TempMrs};
use super::post::Ticket;
use super::sockets::SocketTable;
use super::{Engine, Error, SockId};
use crate::ids::OpId;
use crate::mem::Buffer;
use crate::progress::event::{Bufs, EventKind};
use crate::rnic::FileRange;
use crate::session::{OpError, SendSource};
use crate::time::Time;
use crate::wire::exs::SocketKind;

/// A part of a send by [`Socket::send_parts`](crate::Socket::send_parts).
#[derive(Debug)]
#[non_exhaustive]
pub enum Part {
    /// Memory: these buffers, one after the other.
    Memory(Vec<Buffer>),
    /// A range of a file.
    File {
        /// Open for reading.
        file: Arc<File>,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
}

impl Part {
    /// False if processors cannot reach some of its memory.
    pub(crate) fn is_mapped(&self) -> bool {
        match self {
            Part::Memory(list) => list.iter().all(Buffer::is_mapped),
            Part::File { .. } => true,
        }
    }

    fn into_buffers(self) -> Vec<Buffer> {
        match self {
            Part::Memory(list) => list,
            Part::File { .. } => Vec::new(),
        }
    }
}

/// A list that ends early, because a file in it is shorter than the list says. The engine cuts the
/// list before it posts it. The parts behind the file must not be sent, and they might be sent
/// before the failure shows.
pub(crate) struct Cut {
    had: u64,
    asked: u64,
    /// The parts behind the file. They are not sent, and come back with the event.
    behind: Vec<Part>,
}

/// The first file of a list that is too short: its place in the list, and the bytes that it has.
pub(crate) struct Short {
    at: usize,
    had: u64,
}

impl Short {
    /// Looks for such a file. It asks the file system, which may take long, so the caller must not
    /// hold the engine's lock.
    pub(crate) fn of(parts: &[Part]) -> Option<Short> {
        for (at, part) in parts.iter().enumerate() {
            let Part::File { file, offset, len } = part else { continue };
            // If this is no regular file, or has no metadata, the read reports it later.
            let Ok(meta) = file.metadata() else { continue };
            let had = meta.len().saturating_sub(*offset);
            if meta.is_file() && had < *len {
                return Some(Short { at, had });
            }
        }
        None
    }
}

impl Cut {
    /// Cuts the list behind the file that is too short.
    pub(crate) fn at(short: Option<Short>, parts: &mut Vec<Part>) -> Option<Cut> {
        let Short { at, had } = short?;
        let Part::File { len, .. } = parts.get_mut(at)? else { return None };
        let asked = std::mem::replace(len, had);
        Some(Cut { had, asked, behind: parts.split_off(at + 1) })
    }

    /// Undoes the cut, for a list that the engine refuses.
    pub(crate) fn undo(self, parts: &mut Vec<Part>) {
        if let Some(Part::File { len, .. }) = parts.last_mut() {
            *len = self.asked;
        }
        parts.extend(self.behind);
    }
}

/// The parts of one send, and their results so far.
pub(super) struct Group {
    /// The socket. None: a kernel socket. Its table (`plain`) ends the parts behind a part that
    /// fails.
    home: Option<SockId>,
    parts: Vec<OpId>,
    left: usize,
    bytes: u64,
    failed: Option<Error>,
    bufs: Vec<Buffer>,
    /// Shut the direction down after the last part.
    shut: bool,
    /// The error at the end of a list that was cut. None: it was not cut.
    cut: Option<OpError>,
}

/// What the end of a part asks for.
#[derive(Default)]
pub(super) struct PartEnd {
    /// The part has failed: the parts behind it must be cancelled, on this socket.
    cancel: Option<(SockId, Vec<OpId>)>,
    /// It was the last part, so the group has ended.
    last: bool,
}

/// The groups under way, by the operation that the program knows.
#[derive(Default)]
pub(super) struct Groups(HashMap<OpId, Group>);

impl Groups {
    /// Opens a group of `left` parts.
    fn open(
        &mut self,
        group: OpId,
        home: Option<SockId>,
        left: usize,
        (shut, cut): (bool, Option<Cut>),
    ) {
        let parts = Vec::with_capacity(left);
        let (cut, behind) = match cut {
            Some(Cut { had, asked, behind }) => {
                (Some(OpError::FileTooShort { had, asked }), behind)
            }
            None => (None, Vec::new()),
        };
        let bufs = behind.into_iter().flat_map(Part::into_buffers).collect();
        let shut = shut && cut.is_none();
        let entry = Group { home, parts, left, bytes: 0, failed: None, bufs, shut, cut };
        self.0.insert(group, entry);
    }

    /// True if the operation is a send of several parts.
    pub(super) fn contains(&self, op: OpId) -> bool {
        self.0.contains_key(&op)
    }

    /// True if a part of the group has failed. None: the group has ended.
    fn has_failed(&self, group: OpId) -> Option<bool> {
        Some(self.0.get(&group)?.failed.is_some())
    }

    /// A part has ended. Its buffers go to the group.
    fn end_part(
        &mut self,
        group: OpId,
        bufs: Bufs,
        bytes: u64,
        result: Result<(), Error>,
    ) -> PartEnd {
        let Some(g) = self.0.get_mut(&group) else { return PartEnd::default() };
        g.bufs.extend(into_buffers(bufs));
        g.left -= 1;
        g.bytes += bytes;
        let mut end = PartEnd { cancel: None, last: g.left == 0 };
        if let Err(e) = result {
            let first = g.failed.is_none();
            // Parts that were cancelled before they began end first. If the connection ends under a
            // part that had begun, that part has the better error: the peer may have its bytes.
            if first || g.failed.as_ref().is_some_and(Error::is_cut) && !e.is_cut() {
                g.failed = Some(e);
            }
            end.cancel = g.home.filter(|_| first).map(|id| (id, g.parts.clone()));
        }
        end
    }
}

impl OpTable {
    /// Makes an operation a part of a group.
    pub(super) fn join_group(&mut self, group: OpId, op: OpId) {
        if let Some(o) = self.get_mut(op) {
            o.group = group;
        }
        if let Some(g) = self.groups.0.get_mut(&group) {
            g.parts.push(op);
        }
    }

    /// Takes a group whose last part has ended out of the table.
    fn take_group(&mut self, group: OpId) -> Option<(Op, Group)> {
        let (g, op) = (self.groups.0.remove(&group), self.remove(group));
        op.zip(g)
    }
}

impl Device {
    /// Prepares all parts in a domain, or none.
    fn prepare_parts(
        &mut self,
        domain: u32,
        parts: Vec<Part>,
    ) -> Result<Vec<Sourced>, (Error, Vec<Part>)> {
        let mut sources = Vec::with_capacity(parts.len());
        let mut parts = parts.into_iter();
        while let Some(part) = parts.next() {
            match self.prepare_part(domain, part) {
                Ok(source) => sources.push(source),
                Err((e, part)) => {
                    let mut back = self.unprepare_parts(domain, sources);
                    back.push(part);
                    back.extend(parts);
                    return Err((e, back));
                }
            }
        }
        Ok(sources)
    }

    fn prepare_part(&mut self, domain: u32, part: Part) -> Result<Sourced, (Error, Part)> {
        match part {
            Part::File { file, offset, len } => {
                let source = SendSource::File(FileRange { file: file.into(), offset, len });
                Ok((Bufs::None, source, (TempMrs::None, None)))
            }
            Part::Memory(list) => {
                let bufs = Bufs::Many(list);
                match self.prepare(domain, &bufs, false) {
                    Ok(Prepared { iov, temp, bounce }) => {
                        Ok((bufs, SendSource::Memory(iov), (temp, bounce)))
                    }
                    Err(e) => Err((e, Part::Memory(into_buffers(bufs)))),
                }
            }
        }
    }

    fn unprepare_parts(&mut self, domain: u32, sources: Vec<Sourced>) -> Vec<Part> {
        let undo = |(bufs, source, (temp, bounce)): Sourced| {
            self.unprepare(domain, &temp, bounce);
            match source {
                SendSource::File(FileRange { file, offset, len }) => {
                    Part::File { file: file.into_shared(), offset, len }
                }
                SendSource::Memory(_) => Part::Memory(into_buffers(bufs)),
            }
        };
        sources.into_iter().map(undo).collect()
    }
}

impl SocketTable {
    /// Checks that the socket takes these parts. Returns the place where its memory is registered.
    fn may_post_parts(&mut self, id: SockId, parts: &[Part]) -> Result<Place, Error> {
        let place = self.checked(id)?;
        if parts.is_empty() {
            return Err(Error::invalid("there is nothing to send: give at least one part"));
        }
        let s = self.find(id)?;
        if s.kind == SocketKind::SeqPacket && parts.len() > 1 {
            let what = "message of memory and files together: send it as several, or copy it";
            return Err(Error::Op(OpError::Unsupported(what)));
        }
        let len = parts.iter().map(part_len).fold(0, u64::saturating_add);
        s.open_session()?.may_post_send(len)?;
        Ok(place)
    }
}

impl Engine {
    pub(crate) fn post_parts(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        (mut parts, short): (Vec<Part>, Option<Short>),
        shut: bool,
        now: Time,
    ) -> Result<(), (Error, Vec<Part>)> {
        let place = match self.sockets.may_post_parts(id, &parts) {
            Ok(place) => place,
            Err(e) => return Err((e, parts)),
        };
        let cut = Cut::at(short, &mut parts);
        let sources = match self.devices[place.device].prepare_parts(place.domain, parts) {
            Ok(sources) => sources,
            Err((e, mut back)) => {
                if let Some(cut) = cut {
                    cut.undo(&mut back);
                }
                return Err((e, back));
            }
        };
        let group = self.open_group(Some(id), ticket, sources.len(), (shut, cut));
        for (bufs, source, memory) in sources {
            self.post_part((id, place), group, ticket, (bufs, source, memory), now);
        }
        Ok(())
    }

    /// Posts one part. A part that the session refuses counts as failed, and so do the parts behind
    /// it.
    fn post_part(
        &mut self,
        (id, place): (SockId, Place),
        group: OpId,
        ticket: &Ticket<'_>,
        (bufs, source, memory): Sourced,
        now: Time,
    ) {
        let Some(broken) = self.ops.groups.has_failed(group) else { return };
        let op = self.book(id, ticket, EventKind::SendFile, bufs);
        self.ops.join_group(group, op);
        let posted = if broken {
            Err(OpError::Cancelled)
        } else {
            self.sockets.session_post(id, |s| s.post_send(now, op, source).map_err(|(e, _)| e))
        };
        if let Err((e, bufs)) = self.conclude(place, op, memory, posted) {
            self.finish_part(group, bufs, 0, Err(e), now);
        }
    }

    /// Opens a group of `left` parts. Returns the operation that the program knows.
    pub(super) fn open_group(
        &mut self,
        home: Option<SockId>,
        ticket: &Ticket<'_>,
        left: usize,
        end: (bool, Option<Cut>),
    ) -> OpId {
        let group = self.book(home.unwrap_or(NO_SOCK), ticket, EventKind::SendFile, Bufs::None);
        self.ops.groups.open(group, home, left, end);
        group
    }

    /// A part has ended. Its buffers go to the group.
    pub(super) fn finish_part(
        &mut self,
        group: OpId,
        bufs: Bufs,
        bytes: u64,
        result: Result<(), Error>,
        now: Time,
    ) {
        let PartEnd { cancel, last } = self.ops.groups.end_part(group, bufs, bytes, result);
        if let Some((id, behind)) = cancel {
            self.sockets.cancel_parts(id, &behind, now);
        }
        if last && let Some((op, group)) = self.ops.take_group(group) {
            self.end_group(op, group, now);
        }
    }

    fn end_group(&mut self, op: Op, group: Group, now: Time) {
        if let Some(id) = group.home
            && group.shut
            && group.failed.is_none()
        {
            // The shutdown has no event of its own. It fails only if the direction has ended
            // already.
            let _ = self.sockets.session_post(id, |s| s.shutdown_send(now, 0));
        }
        let (queue, mut event) = op.into_event();
        event.bytes = group.bytes;
        event.error = group.failed.or(group.cut.map(Error::Op)).map(Box::new);
        event.bufs = Bufs::Many(group.bufs);
        self.delivery.deliver(&queue, event);
    }
}

/// A part that is ready to be posted: the buffers that come back, the source of the send, and the
/// memory that was prepared for it.
type Sourced = (Bufs, SendSource, (TempMrs, Option<super::ops::Bounce>));

fn part_len(part: &Part) -> u64 {
    match part {
        Part::Memory(list) => list.iter().map(|b| b.len() as u64).sum(),
        Part::File { len, .. } => *len,
    }
}

fn into_buffers(bufs: Bufs) -> Vec<Buffer> {
    match bufs {
        Bufs::Many(v) => v,
        Bufs::One(b) => vec![b],
        Bufs::None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: SockId = SockId { index: 3, generation: 1 };

    fn group_of_three() -> Groups {
        let mut groups = Groups::default();
        groups.open(9, Some(HOME), 3, (false, None));
        groups.0.get_mut(&9).unwrap().parts.extend([1, 2, 3]);
        groups
    }

    #[test]
    fn the_first_failure_cancels_the_parts_behind_it() {
        let mut groups = group_of_three();
        assert_eq!(groups.has_failed(9), Some(false));
        let first = groups.end_part(9, Bufs::None, 5, Ok(()));
        assert!(first.cancel.is_none() && !first.last);
        let cut = groups.end_part(9, Bufs::None, 2, Err(Error::Op(OpError::Cancelled)));
        assert_eq!((cut.cancel, cut.last), (Some((HOME, vec![1, 2, 3])), false));
        let last = groups.end_part(9, Bufs::None, 0, Err(Error::Op(OpError::PeerClosed)));
        assert!(last.cancel.is_none() && last.last, "the parts are cancelled once");
        let group = &groups.0[&9];
        assert_eq!(group.bytes, 7);
        let failed = matches!(group.failed, Some(Error::Op(OpError::PeerClosed)));
        assert!(failed, "a part that had begun has the better error");
        assert!(!groups.end_part(8, Bufs::None, 0, Ok(())).last, "there is no such group");
    }

    #[test]
    fn a_better_error_is_not_replaced_by_a_cancel() {
        let mut groups = group_of_three();
        let broken = groups.end_part(9, Bufs::None, 0, Err(Error::Op(OpError::PeerClosed)));
        assert!(broken.cancel.is_some());
        groups.end_part(9, Bufs::None, 0, Err(Error::Op(OpError::Cancelled)));
        assert!(matches!(groups.0[&9].failed, Some(Error::Op(OpError::PeerClosed))));
    }

    #[test]
    fn what_stands_behind_a_short_file_comes_back_and_nothing_is_shut() {
        let behind = vec![Part::Memory(vec![Buffer::from(vec![1; 4])])];
        let mut groups = Groups::default();
        groups.open(9, None, 1, (true, Some(Cut { had: 3, asked: 5, behind })));
        let group = &groups.0[&9];
        assert_eq!((group.bufs.len(), group.shut), (1, false));
        assert!(matches!(group.cut, Some(OpError::FileTooShort { had: 3, asked: 5 })));
    }
}
