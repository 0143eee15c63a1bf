//! Sending one file: read into registered memory, hash there, send from there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;

use crate::disk::meta::Meta;
use crate::disk::readback::Reader;
use crate::disk::relpath::{Purpose, RelPath};
use crate::disk::root::Root;
use crate::error::{CpError, Trouble};
use crate::hash::{ChunkHasher, Cv, Layout, file_hash};
use crate::net::channel::Channel;
use crate::wire::frame::{Frame, Have, Id, What};

/// Takes the receiver's frames while a file is on its way.
pub(crate) trait Answers {
    fn on_frame(&mut self, frame: Frame) -> Result<(), CpError>;
    /// Has the receiver given this file up?
    fn given_up(&self, id: Id) -> bool;
    fn moved(&mut self, bytes: u64);
    fn resumed(&mut self, bytes: u64);
}

/// A file to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) id: Id,
    pub(crate) root: &'a Root,
    pub(crate) path: &'a RelPath,
    /// The state that was listed or offered. The file must be in this state until it is sent.
    pub(crate) listed: Meta,
    pub(crate) have: Have,
    pub(crate) verify: bool,
}

/// The result for one file. The sender has reported a failure to the receiver.
pub(crate) enum Sent {
    /// All that was wanted.
    Gone,
    /// Nothing: since it was listed it has become this.
    Changed(Meta),
    /// Broken off, or never begun.
    Failed(Trouble),
}

/// Why a file ended early.
enum Stop {
    Changed(Meta),
    /// The connection failed.
    Fatal(CpError),
    /// This file failed; the connection is in order.
    File(Trouble),
    /// The receiver has given the file up, and has said why.
    GivenUp,
}

impl From<CpError> for Stop {
    fn from(e: CpError) -> Self {
        Stop::Fatal(e)
    }
}

/// Sends a file from `Begin` to `End` or `Fail`; or says `Same` of a file that need not be sent.
pub(crate) fn send_file(
    ch: &mut Channel,
    answers: &mut dyn Answers,
    out: &Outgoing<'_>,
) -> Result<Sent, CpError> {
    let (sent, text) = match send_whole(ch, answers, out) {
        Ok(last) => {
            ch.send(&last)?;
            return Ok(Sent::Gone);
        }
        Err(Stop::Fatal(e)) => return Err(e),
        Err(Stop::GivenUp) => (Sent::Gone, String::new()),
        Err(Stop::Changed(meta)) => (Sent::Changed(meta), changed(out, SINCE).to_string()),
        Err(Stop::File(t)) => {
            let text = t.to_string();
            (Sent::Failed(t), text)
        }
    };
    ch.send(&Frame::Fail { id: out.id, text })?;
    Ok(sent)
}

fn send_whole(
    ch: &mut Channel,
    answers: &mut dyn Answers,
    out: &Outgoing<'_>,
) -> Result<Frame, Stop> {
    let trouble = |what: &str, e: io::Error| Stop::File(Trouble::io(what, out.path, e));
    out.path.check(Purpose::Entry).map_err(|e| Stop::File(Trouble::of(out.path, e)))?;
    let (file, st) = match out.root.open_file(out.path) {
        Ok(opened) => opened,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Stop::File(Trouble::of(out.path, VANISHED)));
        }
        Err(e) => return Err(trouble("open", e)),
    };
    let meta = Meta::of(&st).unwrap_or_default();
    if !meta.same_source(&out.listed) {
        return Err(Stop::Changed(meta));
    }
    let layout = Layout::of(meta.size);
    let mut source = Source { file: &file, layout, reader: Reader::new(&file, layout), out };
    let whole = out.have.what == What::Whole;
    if whole && source.is_same(ch)? {
        source.is_at_rest()?;
        answers.resumed(meta.size);
        return Ok(Frame::Same { id: out.id });
    }
    ch.send(&Frame::Begin { id: out.id, meta: out.listed })?;
    // Fewer blocks than bytes: there may be holes, so ask where.
    let sparse = u64::try_from(st.st_blocks).unwrap_or(0) * 512 < meta.size;
    let mut cvs = Vec::with_capacity(layout.count() as usize);
    // A file that is there whole is replaced, not mended.
    let there = if whole { &[][..] } else { &out.have.chunks };
    let mut had = there.iter().peekable();
    for index in 0..layout.count() {
        if let Some((_, cv)) = had.next_if(|c| c.0 == index)
            && source.has(ch, index, cv)?
        {
            cvs.push(*cv);
            answers.resumed(layout.len(index));
            continue;
        }
        let mut chunk =
            Chunk { file: &file, out, sparse, hasher: ChunkHasher::new(layout, index, out.verify) };
        chunk.send(ch, answers, layout.start(index), layout.end(index))?;
        let cv = chunk.hasher.finish();
        ch.send(&Frame::Chunk { index, cv })?;
        cvs.push(cv);
    }
    source.is_at_rest()?;
    let hash = if out.verify { file_hash(&cvs) } else { [0; 32] };
    Ok(Frame::End { id: out.id, hash })
}

/// The file that is sent, beside what the receiver has of it.
struct Source<'a> {
    file: &'a File,
    layout: Layout,
    reader: Reader<'a>,
    out: &'a Outgoing<'a>,
}

impl Source<'_> {
    /// Is this chunk what the receiver says it has? What it read back may be of an earlier
    /// state of this file, though size and times are the same.
    fn has(&mut self, ch: &mut Channel, index: u32, cv: &Cv) -> Result<bool, Stop> {
        if !self.out.verify {
            return Ok(true);
        }
        match self.reader.chunk(index, &mut || ch.busy()) {
            Ok(mine) => Ok(mine == *cv),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Stop::File(changed(self.out, SHORTER)))
            }
            Err(e) => Err(Stop::File(Trouble::io("read", self.out.path, e))),
        }
    }

    /// Are all of them?
    fn is_same(&mut self, ch: &mut Channel) -> Result<bool, Stop> {
        let there = &self.out.have.chunks;
        // In rising order, and none twice: then none is missing.
        if there.len() != self.layout.count() as usize {
            return Ok(false);
        }
        for (index, cv) in there {
            if *index >= self.layout.count() || !self.has(ch, *index, cv)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks that the bytes that were read are one state of the file.
    fn is_at_rest(&self) -> Result<(), Stop> {
        let read = |e: Errno| Stop::File(Trouble::io("read", self.out.path, e));
        let now = fstat(self.file).map_err(read)?;
        if Meta::of(&now).unwrap_or_default().same_source(&self.out.listed) {
            return Ok(());
        }
        Err(Stop::File(changed(self.out, "while it was read")))
    }
}

const VANISHED: &str = "was removed since the tree was listed, so it is not copied";
pub(crate) const SINCE: &str = "since it was listed";
const SHORTER: &str = "while it was read (it is shorter now)";

/// The trouble of a file that does not keep still.
pub(crate) fn changed(out: &Outgoing<'_>, when: &str) -> Trouble {
    let why = format!("changed {when}; run the same command again when it is at rest");
    Trouble::of(out.path, why)
}

/// A chunk on its way: its data segments and its holes.
struct Chunk<'a> {
    file: &'a File,
    out: &'a Outgoing<'a>,
    sparse: bool,
    hasher: ChunkHasher,
}

impl Chunk<'_> {
    fn send(
        &mut self,
        ch: &mut Channel,
        answers: &mut dyn Answers,
        mut at: u64,
        end: u64,
    ) -> Result<(), Stop> {
        while at < end {
            let (data, hole) = self.segment(at, end)?;
            if data > at {
                self.hasher.zeros(data - at);
                ch.send(&Frame::Hole { offset: at, len: data - at })?;
                answers.moved(data - at);
            }
            self.send_data(ch, answers, data, hole)?;
            at = hole;
        }
        Ok(())
    }

    /// Where the next data begin and where they end, both at most `end`.
    fn segment(&self, at: u64, end: u64) -> Result<(u64, u64), Stop> {
        if !self.sparse {
            return Ok((at, end));
        }
        let fail = |e: Errno| Stop::File(Trouble::io("read", self.out.path, e));
        let data = match seek(self.file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => return Ok((end, end)),
            // A file system that cannot tell: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((at, end)),
            Err(e) => return Err(fail(e)),
        };
        if data == end {
            return Ok((end, end));
        }
        let hole = seek(self.file, SeekFrom::Hole(data)).map_err(fail)?;
        Ok((data, hole.min(end)))
    }

    fn send_data(
        &mut self,
        ch: &mut Channel,
        answers: &mut dyn Answers,
        mut at: u64,
        end: u64,
    ) -> Result<(), Stop> {
        while at < end {
            let slot = ch.data_slot(end - at)?;
            let n = match self.file.read_at(slot, at) {
                Ok(0) => return Err(Stop::File(changed(self.out, SHORTER))),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Stop::File(Trouble::io("read", self.out.path, e))),
            };
            self.hasher.update(&slot[..n]);
            ch.commit_data(at, n)?;
            at += n as u64;
            answers.moved(n as u64);
            while let Some(frame) = ch.try_frame()? {
                answers.on_frame(frame)?;
            }
            if answers.given_up(self.out.id) {
                return Err(Stop::GivenUp);
            }
        }
        Ok(())
    }
}
