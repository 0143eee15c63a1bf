//! The ends of streams and groups.

use std::os::fd::AsRawFd;

use mio::unix::SourceFd;

use super::super::SoftRnic;
use super::super::directions::Inbound;
use super::super::link::SoftLink;
use super::{GroupSide, GroupStage, GroupStream, IDLE_LIMIT, LINGER, StreamEnd};
use crate::driver::Source;
use crate::time::Time;
use crate::wire::group::{GroupFrameKind, ResetReason};

impl SoftLink {
    /// Notes the end of the stream of a grouped link. `Fin` and `Broken` come behind the last bytes.
    pub(in crate::tcp) fn take_stream_end(&mut self) {
        let stalled = self.base.stalled;
        let Some(stream) = self.stream.grouped_mut() else { return };
        if stalled && !matches!(stream.end, Some(StreamEnd::Reset(_))) {
            return;
        }
        let Some(end) = stream.end.take() else { return };
        match end {
            StreamEnd::Fin => {
                if self.inbound == Inbound::Open {
                    self.inbound = Inbound::Ended;
                    self.engine.handle_eof();
                }
            }
            StreamEnd::Broken(errno) | StreamEnd::Reset(errno) => {
                if self.inbound != Inbound::Broken {
                    self.inbound = Inbound::Broken;
                    self.ready.writable = false;
                    self.engine.handle_broken(errno);
                }
            }
        }
    }
}

impl SoftRnic {
    /// The link of a stream is closed.
    pub(in crate::tcp) fn end_stream(&mut self, stream: &GroupStream, link: u32, how: &SoftLink) {
        let id = stream.group;
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        group.output.fill_begun(link);
        if stream.gone || !group.streams.remove(stream.number) {
            return;
        }
        self.parts.groups.emptied.push(id);
        let (both, orderly) = (how.outbound.shut && stream.fin, how.ending.is_orderly());
        match (both, orderly) {
            (true, true) => {}
            (false, true) if !how.outbound.shut => {
                group.output.control(stream.number, GroupFrameKind::Fin, &[]);
            }
            _ => {
                let word = ResetReason::Aborted.emit();
                group.output.control(stream.number, GroupFrameKind::Reset, &word);
            }
        }
        self.parts.groups.mark_dirty(id);
    }

    /// Resets a stream that no link has.
    pub(super) fn reset_stream(&mut self, id: u32, number: u32, why: ResetReason) {
        if let Ok(group) = self.parts.groups.table.get_mut(id) {
            group.streams.remove(number);
            group.output.control(number, GroupFrameKind::Reset, &why.emit());
            self.parts.groups.emptied.push(id);
            self.parts.groups.mark_dirty(id);
        }
    }

    /// The peer has broken a rule: the group ends in its next turn.
    #[cold]
    pub(super) fn spoil_group(&mut self, id: u32, why: &str) {
        self.parts.groups.input = None;
        if let Ok(group) = self.parts.groups.table.get_mut(id) {
            crate::trace::warn!("the link group with {} is broken: {why}", group.addrs.1);
            group.end.get_or_insert(libc::ECONNRESET);
            let _ = why;
        }
        self.enqueue(Source::Group(id));
    }

    /// Ends a group whose TCP connection has ended, and all of its links.
    pub(super) fn end_broken_group(&mut self, id: u32, now: Time) {
        let Ok(group) = self.parts.groups.table.get(id) else { return };
        let Some(errno) = group.end else { return };
        // The bytes that came before the end count.
        self.deliver_unparsed();
        let errno = if errno == libc::EPIPE { libc::ECONNRESET } else { errno };
        let Some((side, stage, links)) = self.drop_group(id) else { return };
        for link in links {
            if let Ok(l) = self.links.get_mut(link)
                && let Some(stream) = l.stream.grouped_mut()
            {
                if stream.has_left() {
                    continue;
                }
                stream.gone = true;
                let orderly = stream.fin && l.outbound.shut && !stream.is_leaving();
                if !orderly {
                    stream.end = Some(StreamEnd::Broken(errno));
                }
                self.enqueue(Source::Link(link));
            }
        }
        if let GroupSide::Dialer { key, pending } = side
            && stage != GroupStage::Open
        {
            self.parts.groups.sets.note_failed(&key);
            match self.parts.groups.choose(&key) {
                Some(_) => self.dial_again_in_groups(pending, now),
                None => self.fall_back(pending),
            }
        }
    }

    /// Takes a group out of all tables, which closes its connection.
    fn drop_group(&mut self, id: u32) -> Option<(GroupSide, GroupStage, Vec<u32>)> {
        let group = self.parts.groups.table.remove(id).ok()?;
        self.turns.timers.clear(Source::Group(id));
        self.reactor.forget(&mut SourceFd(&group.stream.as_raw_fd()));
        if let GroupSide::Dialer { key, .. } = &group.side {
            self.parts.groups.sets.leave(key, id);
        }
        self.wake_waiting_for_fds();
        Some((group.side, group.stage, group.streams.into_links()))
    }

    /// Bounds the life of groups that have no stream any more.
    pub(in crate::tcp) fn note_idle_groups(&mut self, now: Time) {
        for id in std::mem::take(&mut self.parts.groups.emptied) {
            let Ok(group) = self.parts.groups.table.get(id) else { continue };
            if !group.is_idle() || group.stage != GroupStage::Open {
                continue;
            }
            let limit = match group.side {
                GroupSide::Dialer { .. } => LINGER,
                GroupSide::Acceptor { .. } => IDLE_LIMIT,
            };
            self.turns.timers.set(Source::Group(id), now + limit);
        }
    }

    /// The deadline of a group has passed: of its start-up, or of its time without streams.
    pub(in crate::tcp) fn group_timed_out(&mut self, id: u32, now: Time) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        if group.stage != GroupStage::Open {
            group.end = Some(libc::ETIMEDOUT);
        } else if group.is_idle() {
            group.end = Some(libc::ECONNRESET);
        }
        self.end_broken_group(id, now);
    }
}
