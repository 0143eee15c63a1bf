//! Reading a group: what comes goes into the lookahead, and the rest of a large payload straight to its
//! place. While large payloads come, little is read ahead, since everything there must be copied.

use super::super::SoftRnic;
use super::super::directions::LOOKAHEAD_MIN;
use super::super::link::{BULK, LOOKAHEAD};
use super::input::GroupBytes;
use super::{MAX_UNSENT, WINDOW};
use crate::driver::Source;
use crate::mem::{MAX_SGE, Sgl};
use crate::sys::{self, IoVecMut};

impl SoftRnic {
    /// Reads once from a group. Returns how many bytes came; None: none did.
    pub(in crate::tcp) fn read_group(&mut self, id: u32) -> Option<usize> {
        if self.parts.unparsed.is_some() || self.parts.groups.input.is_some() {
            return None;
        }
        let placing = self.place_of_next(id);
        let group = self.parts.groups.table.get_mut(id).ok()?;
        if !group.ready.readable || !group.is_open() {
            return None;
        }
        if group.output.unsent() > MAX_UNSENT {
            self.spoil_group(id, "it does not read what its frames are answered");
            return None;
        }
        let (mut vecs, mut count) = ([IoVecMut::EMPTY; MAX_SGE + 1], 0);
        let mut wanted = 0;
        if let Some((_, direct)) = &placing {
            group.look = LOOKAHEAD_MIN;
            wanted = direct.len();
            for seg in direct.iter() {
                vecs[count] = seg.io_vec_mut(0, seg.len());
                count += 1;
            }
        }
        let look = group.look;
        vecs[count] = IoVecMut::new(&mut self.parts.lookahead[..look]);
        let n = match sys::receive(&*group.stream, &mut vecs[..=count]) {
            Ok(n @ 1..) => n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                group.ready.readable = false;
                return None;
            }
            end => {
                let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EIO);
                group.end = Some(end.err().map_or(libc::ECONNRESET, errno));
                self.enqueue(Source::Group(id));
                return None;
            }
        };
        // An end that was reported already makes no further edge.
        group.ready.readable = n == wanted + look || group.ready.hup;
        if placing.is_none() && n == look {
            group.look = (look * 2).min(LOOKAHEAD);
        }
        let (more, placed) = (group.ready.readable, n.min(wanted));
        group.input.skip(placed);
        let ahead = n - placed;
        self.parts.groups.input =
            (ahead > 0).then_some(GroupBytes { group: id, at: 0, end: ahead });
        if let Some((link, _)) = placing {
            self.note_placed(id, link, placed);
        }
        self.make_hot(Source::Group(id));
        if more {
            self.enqueue(Source::Group(id));
        }
        Some(n)
    }

    /// The link whose bytes come next, and their place, if they are those of a large payload.
    fn place_of_next(&self, id: u32) -> Option<(u32, Sgl)> {
        let group = self.parts.groups.table.get(id).ok()?;
        let (stream, left) = group.input.awaited().filter(|(_, left)| *left >= BULK)?;
        let link = group.streams.link_of(stream)?;
        let l = self.links.get(link).ok()?;
        if l.base.stalled || !l.inbound.is_readable() {
            return None;
        }
        let (mut direct, mut room) = (Sgl::new(), left);
        l.engine.rx_direct(&mut |seg, off, len| {
            let len = len.min(room);
            let piece = if len > 0 { seg.slice(off, len).ok() } else { None };
            // Bytes behind a piece that has no place must not be placed.
            let pushed = piece.is_some_and(|piece| direct.push(piece).is_ok());
            room = if pushed { room - len } else { 0 };
        });
        (direct.len() >= BULK).then_some((link, direct))
    }

    /// Bytes of a payload have come to their place.
    fn note_placed(&mut self, id: u32, link: u32, placed: usize) {
        let Ok(l) = self.links.get_mut(link) else { return };
        l.idle = false;
        if let Some(s) = l.stream.grouped_mut() {
            s.came += placed as u64;
            s.bulk += placed as u64;
            if s.came > s.credited + u64::from(WINDOW) {
                return self.spoil_group(id, "a stream sends more than it may");
            }
        }
        self.with_receives(link, |l, _, keys, srq| l.deliver_placed(placed, keys, srq));
        self.return_credit(link);
        self.enqueue(Source::Link(link));
    }
}
