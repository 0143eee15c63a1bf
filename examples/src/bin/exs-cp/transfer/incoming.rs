//! Receiving one file: its bytes are hashed and written from where they arrived.
//!
//! A peer's frames must come in the order of the protocol, else the connection
//! ends. A failure on this side (a full disk, for example) ends this file only:
//! its data are still taken off the connection, and dropped.

use std::io;

use crate::disk::journal::State;
use crate::disk::leftover;
use crate::disk::meta::{Kind, Meta};
use crate::disk::part::Part;
use crate::disk::readback::{Alive, Reader};
use crate::disk::relpath::{Purpose, RelPath};
use crate::disk::root::{Root, check_replaceable};
use crate::error::{CpError, Trouble};
use crate::hash::{Cv, Layout, file_hash};
use crate::net::channel::Channel;
use crate::transfer::settle::{Item, Landed};
use crate::transfer::tally::Tally;
use crate::transfer::writer::{Failure, Writer};
use crate::wire::frame::{Flags, Have, Id, What};

/// A file that was offered, or asked for, and has not begun.
pub(crate) struct Awaited {
    pub(crate) path: RelPath,
    pub(crate) source: Meta,
    /// Chunks that are here already, and were told to the sender.
    told: Vec<(u32, Cv)>,
    /// The state of the whole file under the final name when its bytes were read.
    whole: Option<State>,
}

/// Finds what the destination has of a file already. It reads that back, and calls `alive`
/// meanwhile. No descriptor stays open, as more files wait for their turn than there are
/// descriptors.
pub(crate) fn survey(
    root: &Root,
    path: &RelPath,
    source: &Meta,
    flags: Flags,
    alive: Alive<'_>,
) -> Result<(Awaited, Have), Trouble> {
    check_name(path)?;
    let fail = |e| Trouble::at_destination("receive", path, e);
    let mut awaited =
        Awaited { path: path.clone(), source: *source, told: Vec::new(), whole: None };
    // A file of one chunk never has a journal: looking for it costs more than its bytes.
    let resumable = Layout::of(source.size).count() > 1;
    let there = root.stat(path).map_err(fail)?;
    if let Some(st) = &there {
        check_replaceable(st).map_err(fail)?;
    }
    if !flags.force {
        let there = there.and_then(|st| Meta::of(&st));
        // A user that asks for these bits needs a copy that has them.
        let bits = |m: &Meta| !flags.special || m.mode == source.mode || !source.is_special();
        if there.is_some_and(|m| m.same_content_as(source) && bits(&m)) {
            if resumable {
                // A leftover that stays does no harm, so an error is ignored.
                let _ = leftover::remove(root, path);
            }
            if flags.quick || !flags.verify {
                return Ok((awaited, Have { what: What::Believed, chunks: Vec::new() }));
            }
            // A file that cannot be read is sent in full.
            if flags.compare
                && let Ok((chunks, state)) = read_whole(root, path, source, alive)
            {
                awaited.whole = Some(state);
                return Ok((awaited, Have { what: What::Whole, chunks }));
            }
        }
    }
    if resumable && Part::exists(root, path).map_err(fail)? {
        let found = Part::open(root, path, source, flags, alive).map_err(fail)?;
        awaited.told = found.known().to_vec();
    }
    let chunks = awaited.told.clone();
    Ok((awaited, Have { what: What::Part, chunks }))
}

/// Reads the file of the final name, all of it.
fn read_whole(
    root: &Root,
    path: &RelPath,
    source: &Meta,
    alive: Alive<'_>,
) -> io::Result<(Vec<(u32, Cv)>, State)> {
    let (file, _) = root.open_file(path)?;
    let before = State::of(&file)?;
    let chunks = Reader::new(&file, Layout::of(source.size)).all(alive)?;
    match State::of(&file)? {
        after if after == before => Ok((chunks, after)),
        _ => Err(io::Error::other("it changed while it was read")),
    }
}

impl Awaited {
    /// `Same`: the sender has the same bytes. They are named already, and are synced next.
    pub(crate) fn same(self, root: &Root, id: Id) -> Result<Result<Item, Trouble>, CpError> {
        let Some(read) = self.whole else {
            return Err(CpError::Protocol("a comparison that was not asked for".into()));
        };
        let size = self.source.size;
        let now = root.open_file(&self.path).and_then(|(file, _)| Ok((State::of(&file)?, file)));
        Ok(match now {
            Ok((now, file)) if now == read => {
                Ok(Item { id, path: self.path, file: Landed::InPlace(file, size), resumed: size })
            }
            Ok(_) => {
                let why = "changed here after it was compared; run the same command again";
                Err(Trouble::of(&self.path, why))
            }
            Err(e) => Err(Trouble::io("read", &self.path, e)),
        })
    }
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
    /// By chunk: whether it has come on this connection, in whole or in part.
    came: Vec<bool>,
    /// The chunk that is coming.
    open: Option<u32>,
    at: u64,
    pub(crate) resumed: u64,
}

fn order(what: &str) -> CpError {
    CpError::Protocol(format!("{what} out of order"))
}

impl Incoming {
    /// The sender begins. After a trouble the data that come are dropped.
    pub(crate) fn begin(
        root: &Root,
        id: Id,
        awaited: Awaited,
        meta: &Meta,
        flags: Flags,
    ) -> Result<(Incoming, Option<Trouble>), CpError> {
        let Awaited { path, source, told, .. } = awaited;
        let verify = flags.verify;
        if meta.kind != Kind::File || !meta.same_source(&source) {
            return Err(CpError::Protocol("another file than was announced".into()));
        }
        let layout = Layout::of(source.size);
        let mut cvs = vec![None; layout.count() as usize];
        let mut resumed = 0;
        // The sender leaves out these chunks, and sends all others.
        for (index, cv) in &told {
            cvs[*index as usize] = Some(*cv);
            resumed += layout.len(*index);
        }
        let mut trouble = None;
        let part = Part::reopen(root, &path, &source, flags, &told)
            .map_err(|e| trouble = Some(Trouble::at_destination("write", &path, e)))
            .ok();
        let writer = part.map(|part| Writer::new(part, layout, verify));
        let came = vec![false; cvs.len()];
        let (open, at) = (None, 0);
        let me =
            Incoming { id, path, source, layout, verify, writer, cvs, came, open, at, resumed };
        Ok((me, trouble))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.writer.is_none()
    }

    /// After a failure gives up this file. The chunks in its journal stay for the next run.
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

    /// Checks that data or a hole of `len` bytes at `offset` is what must come next.
    fn expect(&mut self, offset: u64, len: u64) -> Result<(), CpError> {
        let index = match self.open {
            Some(index) => index,
            None => {
                let index = u32::try_from(offset / self.layout.chunk).unwrap_or(u32::MAX);
                if index >= self.layout.count() || offset != self.layout.start(index) {
                    return Err(order("a chunk"));
                }
                // A hole in it would leave the bytes that came first.
                if self.came[index as usize] {
                    return Err(order("a chunk that has come already"));
                }
                self.came[index as usize] = true;
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

    /// `Chunk`: all bytes of it have come. Compares the hash, and has the chunk noted.
    pub(crate) fn chunk(&mut self, index: u32, cv: &Cv) -> Result<Option<Trouble>, CpError> {
        match self.open {
            Some(open) if open == index && self.at == self.layout.end(index) => {}
            _ => return Err(order("a chunk's end")),
        }
        if self.cvs[index as usize].replace(*cv).is_some() {
            // It was here, and has come again: the sender found other bytes in its own file.
            self.resumed = self.resumed.saturating_sub(self.layout.len(index));
        }
        self.open = None;
        let Some(writer) = &mut self.writer else { return Ok(None) };
        let noted = writer.chunk(index, cv);
        Ok(self.check(noted))
    }

    /// `End`: compares the hash of the whole file, and returns it to be settled. `Ok(None)`: it
    /// failed before, and was reported then.
    pub(crate) fn end(mut self, hash: &Cv) -> Result<Result<Option<Item>, Trouble>, CpError> {
        let cvs: Option<Vec<Cv>> = self.cvs.iter().copied().collect();
        let Some(cvs) = cvs.filter(|_| self.open.is_none()) else {
            return Err(order("a file's end"));
        };
        let Some(writer) = self.writer.take() else { return Ok(Ok(None)) };
        let part = match writer.finish() {
            Ok(part) => part,
            Err(failure) => return Ok(Err(self.explain(failure))),
        };
        if self.verify && file_hash(&cvs) != *hash {
            part.discard();
            let why = "the whole file's BLAKE3 hash is not the sender's; nothing of it was kept, run the same command again";
            return Ok(Err(Trouble::of(&self.path, why)));
        }
        let Incoming { id, path, source, resumed, .. } = self;
        Ok(match part.complete(&source) {
            Ok(whole) => Ok(Some(Item { id, path, file: Landed::Whole(Box::new(whole)), resumed })),
            Err(e) => Err(Trouble::io("write to the disk", &path, e)),
        })
    }
}
