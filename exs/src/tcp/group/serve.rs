//! Turns of a group: its bytes go to its links, and theirs into its output.

use super::super::SoftRnic;
use super::super::directions::LOOKAHEAD_MIN;
use super::super::eager::UnparsedBytes;
use super::input::{GroupBytes, InputPart};
use super::{GroupStage, MAX_EARLY, SMALL, StreamEnd, StreamHolder, WINDOW};
use crate::driver::Source;
use crate::time::Time;
use crate::wire::group::{GroupFrameKind, GroupHead, ResetReason, WORD, parse_port};

/// Bytes that a group may bring in one turn.
const BUDGET: usize = 1 << 20;

impl SoftRnic {
    /// Serves one group: its start-up, bytes in, bytes out, and its end.
    pub(in crate::tcp) fn serve_group(&mut self, id: u32, now: Time) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        group.queued = false;
        match group.stage {
            GroupStage::Connecting => self.group_connects(id, now),
            GroupStage::Greeting => self.await_answer(id, now),
            GroupStage::Open => {
                self.read_group_turn(id);
                self.write_group(id);
            }
        }
        self.end_broken_group(id, now);
    }

    fn read_group_turn(&mut self, id: u32) {
        self.deliver_unparsed();
        let mut left = BUDGET;
        while left > 0
            && let Some(came) = self.read_group(id)
        {
            left = left.saturating_sub(came);
            self.deliver_unparsed();
        }
    }

    /// Makes the next bytes of a group those that were read ahead of a link. False: there are none.
    pub(in crate::tcp) fn next_of_group(&mut self) -> bool {
        while let Some(GroupBytes { group: id, at, end }) = self.parts.groups.input {
            let Ok(group) = self.parts.groups.table.get_mut(id) else {
                self.parts.groups.input = None;
                return false;
            };
            let part = group.input.next(&self.parts.lookahead[at..end]);
            let (part, used) = match part {
                Ok(next) => next,
                Err(e) => {
                    self.spoil_group(id, &e.to_string());
                    return false;
                }
            };
            let at = at + used;
            self.parts.groups.input = (at < end).then_some(GroupBytes { group: id, at, end });
            match part {
                InputPart::Incomplete => return false,
                InputPart::Control { head, word } => self.take_control(id, head, word),
                InputPart::Data { stream, len } => {
                    if self.take_data(id, stream, (at - len, at)) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Bytes of a stream are in the lookahead. True if they are the unparsed bytes of a link now.
    fn take_data(&mut self, id: u32, stream: u32, (at, end): (usize, usize)) -> bool {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return false };
        let bytes = &self.parts.lookahead[at..end];
        let opened = group.streams.was_opened(stream);
        let link = match group.streams.get_mut(stream) {
            Some(StreamHolder::Link(link)) => *link,
            Some(StreamHolder::Waiting { early, fin, .. }) => {
                if *fin || early.len() + bytes.len() > MAX_EARLY {
                    self.spoil_group(id, "a stream sends more than a request");
                } else {
                    early.extend_from_slice(bytes);
                }
                return false;
            }
            None if !opened => {
                self.spoil_group(id, "DATA of a stream that was not opened");
                return false;
            }
            None => {
                self.reset_stream(id, stream, ResetReason::Aborted);
                return false;
            }
        };
        let Ok(l) = self.links.get_mut(link) else { return false };
        let Some(s) = l.stream.grouped_mut() else { return false };
        s.came += (end - at) as u64;
        if end - at > SMALL {
            s.bulk += (end - at) as u64;
            // The next of its kind goes straight to its place.
            group.look = LOOKAHEAD_MIN;
        } else {
            s.small = s.small.saturating_add(1);
        }
        if s.came > s.credited + u64::from(WINDOW) || s.fin {
            self.spoil_group(id, "a stream sends more than it may");
            return false;
        }
        l.idle = false;
        if l.base.stalled {
            l.intake.stash.extend_from_slice(bytes);
            return false;
        }
        self.parts.unparsed = Some(UnparsedBytes { link, at, end });
        self.return_credit(link);
        true
    }

    /// Returns credit to the peer, if that is worth a frame.
    pub(in crate::tcp) fn return_credit(&mut self, link: u32) {
        let Ok(l) = self.links.get_mut(link) else { return };
        let held = l.intake.stash.len() as u64;
        let Some(s) = l.stream.grouped_mut() else { return };
        let due = s.came.saturating_sub(held + s.credited);
        if due < u64::from(WINDOW / 2) || s.gone {
            return;
        }
        s.credited += due;
        let (id, number) = (s.group, s.number);
        let word = u32::try_from(due).unwrap_or(u32::MAX).to_be_bytes();
        if let Ok(group) = self.parts.groups.table.get_mut(id) {
            group.output.control(number, GroupFrameKind::Window, &word);
            self.parts.groups.mark_dirty(id);
        }
    }

    /// A frame that is no DATA.
    fn take_control(&mut self, id: u32, head: GroupHead, word: [u8; WORD]) {
        let end = match head.kind {
            GroupFrameKind::Open => return self.take_open(id, head.stream, parse_port(word)),
            GroupFrameKind::Window => return self.take_credit(id, head.stream, word),
            GroupFrameKind::Fin => StreamEnd::Fin,
            GroupFrameKind::Reset => StreamEnd::Reset(match ResetReason::parse(word) {
                ResetReason::Refused => libc::ECONNREFUSED,
                ResetReason::Aborted => libc::ECONNRESET,
            }),
            GroupFrameKind::Moved => return self.take_moved(id, head.stream),
            GroupFrameKind::Data => return,
        };
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        let opened = group.streams.was_opened(head.stream);
        match group.streams.get_mut(head.stream) {
            Some(StreamHolder::Link(link)) => {
                let link = *link;
                let over = end != StreamEnd::Fin;
                if over {
                    group.streams.remove(head.stream);
                    self.parts.groups.emptied.push(id);
                }
                if let Ok(l) = self.links.get_mut(link)
                    && let Some(s) = l.stream.grouped_mut()
                {
                    (s.end, s.gone) = (Some(end), over);
                    s.fin |= !over;
                }
                self.enqueue(Source::Link(link));
            }
            Some(StreamHolder::Waiting { fin, .. }) => match end {
                StreamEnd::Fin => *fin = true,
                _ => {
                    // It counts until the listener comes to it, or a peer could open and end any number.
                    group.streams.remove(head.stream);
                    self.parts.groups.emptied.push(id);
                }
            },
            None if !opened => {
                self.spoil_group(id, "the end of a stream that was not opened");
            }
            None => {}
        }
    }

    fn take_credit(&mut self, id: u32, stream: u32, word: [u8; WORD]) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        let Some(link) = group.streams.link_of(stream) else { return };
        let Ok(l) = self.links.get_mut(link) else { return };
        let Some(s) = l.stream.grouped_mut() else { return };
        s.room = s.room.saturating_add(u64::from(u32::from_be_bytes(word)));
        if !l.ready.writable && !s.waits {
            l.ready.writable = true;
            self.enqueue(Source::Link(link));
        }
    }

    /// Writes the output of a group, and lets links that wait for room go on.
    pub(super) fn write_group(&mut self, id: u32) {
        let Ok(group) = self.parts.groups.table.get_mut(id) else { return };
        if !group.is_open() {
            return;
        }
        if group.write()
            && let Some(link) = group.output.begun_by()
        {
            self.continue_link(link);
        }
        while let Ok(group) = self.parts.groups.table.get_mut(id)
            && group.ready.writable
            && let Some(link) = group.output.next_waiting()
        {
            self.continue_link(link);
        }
        if self.parts.groups.table.get(id).is_ok_and(|group| group.end.is_some()) {
            self.enqueue(Source::Group(id));
        }
    }

    /// A link that has waited for room has its turn.
    fn continue_link(&mut self, link: u32) {
        let Ok(l) = self.links.get_mut(link) else { return };
        l.ready.writable = true;
        if let Some(s) = l.stream.grouped_mut() {
            s.waits = false;
        }
        self.enqueue(Source::Link(link));
    }

    /// Writes what the links of all groups have put into their output, unless the caller holds it.
    pub(in crate::tcp) fn write_groups(&mut self) {
        if self.parts.groups.held > 0 {
            return;
        }
        while let Some(id) = self.parts.groups.dirty.pop() {
            self.write_group(id);
        }
    }

    /// Keeps the output of the groups together, until as many calls have let it go.
    pub(in crate::tcp) fn hold_groups(&mut self, holds: bool) {
        if holds {
            self.parts.groups.held += 1;
            return;
        }
        self.parts.groups.held = self.parts.groups.held.saturating_sub(1);
        self.write_groups();
    }
}
