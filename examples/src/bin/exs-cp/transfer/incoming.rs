//! Receiving one file: have it hashed and written from where the bytes arrived.
//!
//! A peer's frames must come in the order that the protocol promises; what
//! does not is the end of the connection. What fails on our side (a full disk
//! above all) is the end of this file only: its data are still taken off the
//! connection, and dropped.

use crate::disk::leftover;
use crate::disk::meta::{Kind, Meta};
use crate::disk::part::Part;
use crate::disk::relpath::{Purpose, RelPath};
use crate::disk::root::Root;
use crate::error::{CpError, Trouble};
use crate::hash::{Cv, Layout, file_hash};
use crate::net::channel::Channel;
use crate::transfer::tally::Tally;
use crate::transfer::writer::{Failure, Writer};
use crate::wire::frame::{Flags, Have, Id};

/// A file that was offered, or asked for, and has not begun.
pub(crate) struct Awaited {
    pub(crate) path: RelPath,
    pub(crate) source: Meta,
    /// Chunks that are here already, and were told to the sender.
    told: Vec<(u32, Cv)>,
}

/// What is there already of a file that could be received. Nothing of it stays open: of
/// files that wait for their turn there are more than descriptors.
pub(crate) fn survey(
    root: &Root,
    path: &RelPath,
    source: &Meta,
    flags: Flags,
) -> Result<(Awaited, Have), Trouble> {
    check_name(path)?;
    let fail = |e| Trouble::io("receive", path, e);
    let mut have = Have::default();
    if !flags.force {
        let there = root.stat(path).map_err(fail)?.and_then(|st| Meta::of(&st));
        // Who asks for these bits is not helped by a copy that was made without them.
        let bits = |m: &Meta| !flags.special || m.mode == source.mode || !source.is_special();
        if there.is_some_and(|m| m.same_content_as(source) && bits(&m)) {
            have.complete = true;
        }
    }
    // A file of one chunk never has a journal: looking for it costs more than its bytes.
    let resumable = Layout::of(source.size).count() > 1;
    if have.complete && resumable {
        // It is of no use, and does no harm: that it cannot be removed is no trouble of the file.
        let _ = leftover::remove(root, path);
    }
    if !have.complete && resumable && Part::exists(root, path).map_err(fail)? {
        let found = Part::open(root, path, source, flags.verify).map_err(fail)?;
        have.chunks = found.known().to_vec();
    }
    let told = have.chunks.clone();
    Ok((Awaited { path: path.clone(), source: *source, told }, have))
}

pub(crate) fn check_name(path: &RelPath) -> Result<(), Trouble> {
    path.check(Purpose::Entry).map_err(|e| Trouble::of(path, e))
}

/// A file whose data are coming.
pub(crate) struct Incoming {
    pub(crate) id: Id,
    path: RelPath,
    source: Meta,
    layout: Layout,
    verify: bool,
    /// `None`: failed; the rest is dropped.
    writer: Option<Writer>,
    cvs: Vec<Option<Cv>>,
    /// The chunk that is coming.
    open: Option<u32>,
    at: u64,
    pub(crate) resumed: u64,
}

fn order(what: &str) -> CpError {
    CpError::Protocol(format!("{what} out of order"))
}

impl Incoming {
    /// The sender begins. A trouble is reported; the data are dropped.
    pub(crate) fn begin(
        root: &Root,
        id: Id,
        awaited: Awaited,
        meta: &Meta,
        verify: bool,
    ) -> Result<(Incoming, Option<Trouble>), CpError> {
        let Awaited { path, source, told } = awaited;
        if meta.kind != Kind::File || !meta.same_source(&source) {
            return Err(CpError::Protocol("another file than was announced".into()));
        }
        let layout = Layout::of(source.size);
        let mut cvs = vec![None; layout.count() as usize];
        let mut resumed = 0;
        // Only these chunks were told to the sender; all others come.
        for (index, cv) in &told {
            cvs[*index as usize] = Some(*cv);
            resumed += layout.len(*index);
        }
        let mut trouble = None;
        let part = Part::reopen(root, &path, &source, verify, &told)
            .map_err(|e| trouble = Some(Trouble::io("write", &path, e)))
            .ok();
        let writer = part.map(|part| Writer::new(part, layout, verify));
        let me =
            Incoming { id, path, source, layout, verify, writer, cvs, open: None, at: 0, resumed };
        Ok((me, trouble))
    }

    pub(crate) fn size(&self) -> u64 {
        self.source.size
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.writer.is_none()
    }

    /// If that failed, gives up this file: what is in the journal stays for the next run.
    fn check(&mut self, done: Result<(), Failure>) -> Option<Trouble> {
        let failure = done.err()?;
        self.writer = None;
        Some(self.explain(failure))
    }

    fn explain(&self, failure: Failure) -> Trouble {
        match failure {
            Failure::Io(what, error) => Trouble::io(what, &self.path, error),
            Failure::Damaged { start, end } => {
                let why = format!(
                    "bytes {start} to {end} arrived damaged; run the same command again: \
                     only what is missing is sent"
                );
                Trouble::of(&self.path, why)
            }
        }
    }

    /// Data or a hole of `len` bytes at `offset`: is that what comes next?
    fn expect(&mut self, offset: u64, len: u64) -> Result<(), CpError> {
        let index = match self.open {
            Some(index) => index,
            None => {
                let index = u32::try_from(offset / self.layout.chunk).unwrap_or(u32::MAX);
                if index >= self.layout.count() || offset != self.layout.start(index) {
                    return Err(order("a chunk"));
                }
                self.open = Some(index);
                self.at = offset;
                index
            }
        };
        let end = offset.checked_add(len).ok_or_else(|| order("data"))?;
        if len == 0 || offset != self.at || end > self.layout.end(index) {
            return Err(order("data"));
        }
        self.at = end;
        Ok(())
    }

    /// `Data`: takes the raw bytes off the channel.
    pub(crate) fn data(
        &mut self,
        ch: &mut Channel,
        mut offset: u64,
        len: u32,
        tally: &Tally,
    ) -> Result<Option<Trouble>, CpError> {
        self.expect(offset, len.into())?;
        let mut left = len as usize;
        let mut trouble = None;
        while left > 0 {
            let bytes = ch.payload(left)?;
            let n = bytes.len();
            if let Some(writer) = &mut self.writer {
                let done = writer.write(bytes, offset);
                trouble = self.check(done).or(trouble);
            }
            ch.consume(n)?;
            offset += n as u64;
            left -= n;
        }
        tally.moved(len.into());
        Ok(trouble)
    }

    pub(crate) fn hole(
        &mut self,
        offset: u64,
        len: u64,
        tally: &Tally,
    ) -> Result<Option<Trouble>, CpError> {
        self.expect(offset, len)?;
        tally.moved(len);
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let done = writer.hole(offset, len);
        Ok(self.check(done))
    }

    /// `Chunk`: all of it has come; compare, and have it noted in the journal.
    pub(crate) fn chunk(&mut self, index: u32, cv: &Cv) -> Result<Option<Trouble>, CpError> {
        match self.open {
            Some(open) if open == index && self.at == self.layout.end(index) => {}
            _ => return Err(order("a chunk's end")),
        }
        self.cvs[index as usize] = Some(*cv);
        self.open = None;
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let noted = writer.chunk(index, cv);
        Ok(self.check(noted))
    }

    /// `End`: whole? right? then it gets its name. `Ok(false)`: it failed
    /// before, and that was reported then.
    pub(crate) fn end(mut self, hash: &Cv) -> Result<Result<bool, Trouble>, CpError> {
        let cvs: Option<Vec<Cv>> = self.cvs.iter().copied().collect();
        let Some(cvs) = cvs.filter(|_| self.open.is_none()) else {
            return Err(order("a file's end"));
        };
        let Some(writer) = self.writer.take() else { return Ok(Ok(false)) };
        let part = match writer.finish() {
            Ok(part) => part,
            Err(failure) => return Ok(Err(self.explain(failure))),
        };
        if self.verify && file_hash(&cvs) != *hash {
            part.discard();
            let why = "the whole file's BLAKE3 hash is not the sender's; nothing of it was kept, run the same command again";
            return Ok(Err(Trouble::of(&self.path, why)));
        }
        let done = part.finish(&self.source).map_err(|e| Trouble::io("finish", &self.path, e));
        Ok(done.map(|()| true))
    }
}
