//! The server's side of `put`: answer offers, receive, finish, say so.

use std::collections::HashMap;

use crate::disk::meta::Meta;
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::error::{CpError, Trouble};
use crate::hash::Layout;
use crate::net::channel::{Channel, Intake};
use crate::net::session::{refuse, unexpected};
use crate::transfer::incoming::{Awaited, Incoming, check_name, survey};
use crate::transfer::tally::Tally;
use crate::transfer::{MOST_CHUNKS, MOST_OUTSTANDING, weight};
use crate::wire::frame::{Flags, Frame, Id};

/// One client's files on their way into one directory.
struct Receiving<'a> {
    ch: &'a mut Channel,
    root: &'a Root,
    flags: Flags,
    tally: &'a Tally,
    awaited: HashMap<Id, Awaited>,
    chunks: usize,
    current: Option<Incoming>,
    /// Answers that have not left.
    gathered: usize,
}

/// Answers that leave together at most: the sender should not run out of work while this
/// side has some.
const ANSWERS: usize = 128;

/// Serves one `Put` request to its end.
pub(crate) fn serve_put(
    ch: &mut Channel,
    root: &Root,
    flags: Flags,
    tally: &Tally,
) -> Result<(), CpError> {
    ch.set_intake(Intake::Place)?;
    let awaited = HashMap::new();
    let (chunks, current, gathered) = (0, None, 0);
    let mut r = Receiving { ch, root, flags, tally, awaited, chunks, current, gathered };
    loop {
        let frame = r.ch.frame()?;
        if frame != Frame::Bye {
            r.handle(frame)?;
            continue;
        }
        if r.current.is_some() || !r.awaited.is_empty() {
            return Err(CpError::Protocol("an end with files still on their way".into()));
        }
        if flags.sync
            && let Err(e) = root.sync()
        {
            let why = format!("the files are copied, but flushing them to the disk failed: {e}");
            refuse(r.ch, why)?;
            return Err(CpError::local("flush", ".", e));
        }
        r.ch.send(&Frame::Bye)?;
        return r.ch.drain();
    }
}

impl Receiving<'_> {
    fn handle(&mut self, frame: Frame) -> Result<(), CpError> {
        match frame {
            Frame::Data { offset, len } => {
                let current = self.current.as_mut().ok_or_else(orphan)?;
                let trouble = current.data(self.ch, offset, len, self.tally)?;
                self.give_up(trouble)
            }
            Frame::Hole { offset, len } => {
                let current = self.current.as_mut().ok_or_else(orphan)?;
                let trouble = current.hole(offset, len, self.tally)?;
                self.give_up(trouble)
            }
            Frame::Chunk { index, cv } => {
                let trouble = self.current.as_mut().ok_or_else(orphan)?.chunk(index, &cv)?;
                self.give_up(trouble)
            }
            Frame::Offer { id, path, meta } => {
                self.offer(id, &path, &meta.for_copy(self.flags.special))
            }
            Frame::Begin { id, meta } => self.begin(id, &meta),
            Frame::End { id, hash } => self.end(id, &hash),
            Frame::Fail { id, .. } => self.failed(id),
            Frame::Link { id, path, meta, target } => {
                let made = check_name(&path).and_then(|()| {
                    self.root
                        .symlink(&path, &target, &meta)
                        .map_err(|e| Trouble::io("make the symbolic link", &path, e))
                });
                if made.is_ok() {
                    self.tally.file_done(0);
                }
                self.done(id, made)
            }
            Frame::Dir { id, path, meta } => {
                let meta = meta.for_copy(self.flags.special);
                let made = check_name(&path).and_then(|()| {
                    let made = self.root.finish_dir(&path, &meta);
                    made.map_err(|e| Trouble::io("make the directory", &path, e))
                });
                self.done(id, made)
            }
            other => Err(unexpected(&other)),
        }
    }

    fn done(&mut self, id: Id, result: Result<(), Trouble>) -> Result<(), CpError> {
        let ok = result.is_ok();
        let text = match result {
            Ok(()) => String::new(),
            Err(t) => {
                self.tally.trouble(&t);
                t.to_string()
            }
        };
        self.answer(&Frame::Done { id, ok, text })
    }

    fn answer(&mut self, frame: &Frame) -> Result<(), CpError> {
        self.ch.send(frame)?;
        self.gathered += 1;
        if self.gathered >= ANSWERS {
            self.gathered = 0;
            self.ch.flush()?;
        }
        Ok(())
    }

    /// Tells the sender at once, so that it need not send the rest.
    fn give_up(&mut self, trouble: Option<Trouble>) -> Result<(), CpError> {
        let (Some(trouble), Some(current)) = (trouble, &self.current) else { return Ok(()) };
        self.done(current.id, Err(trouble))?;
        self.ch.flush()
    }

    fn offer(&mut self, id: Id, path: &RelPath, meta: &Meta) -> Result<(), CpError> {
        let weight = weight(path, Layout::of(meta.size).count() as usize);
        self.chunks += weight;
        let most = self.awaited.len() >= MOST_OUTSTANDING || self.chunks > MOST_CHUNKS;
        if most || self.awaited.contains_key(&id) {
            return Err(CpError::Protocol("more offers than this program ever makes".into()));
        }
        match survey(self.root, path, meta, self.flags) {
            Ok((awaited, have)) => {
                if have.complete {
                    self.chunks -= weight;
                    self.tally.resumed(meta.size);
                    self.tally.file_done(meta.size);
                } else {
                    self.awaited.insert(id, awaited);
                }
                self.answer(&Frame::Have { id, have })
            }
            Err(t) => {
                self.chunks -= weight;
                self.done(id, Err(t))
            }
        }
    }

    fn take_awaited(&mut self, id: Id) -> Result<Awaited, CpError> {
        let awaited = self.awaited.remove(&id).ok_or_else(orphan)?;
        self.chunks -= weight(&awaited.path, Layout::of(awaited.source.size).count() as usize);
        Ok(awaited)
    }

    fn begin(&mut self, id: Id, meta: &Meta) -> Result<(), CpError> {
        if self.current.is_some() {
            return Err(CpError::Protocol("a file within a file".into()));
        }
        let awaited = self.take_awaited(id)?;
        let (incoming, trouble) = Incoming::begin(self.root, id, awaited, meta, self.flags.verify)?;
        self.current = Some(incoming);
        self.give_up(trouble)
    }

    fn end(&mut self, id: Id, hash: &[u8; 32]) -> Result<(), CpError> {
        let current = self.current.take().filter(|c| c.id == id).ok_or_else(orphan)?;
        let (size, resumed) = (current.size(), current.resumed);
        match current.end(hash)? {
            Ok(true) => {
                self.tally.resumed(resumed);
                self.tally.file_done(size);
                self.done(id, Ok(()))
            }
            // Failed earlier, and the sender was told then.
            Ok(false) => Ok(()),
            Err(t) => self.done(id, Err(t)),
        }
    }

    /// The sender cannot go on with this file, or never began it.
    fn failed(&mut self, id: Id) -> Result<(), CpError> {
        let told = match self.current.take() {
            Some(current) if current.id == id => current.has_failed(),
            Some(_) => return Err(orphan()),
            None => self.take_awaited(id).map(|_| false)?,
        };
        if told {
            return Ok(());
        }
        // The client knows why better than we do, and tells its user itself.
        self.answer(&Frame::Done { id, ok: false, text: String::new() })
    }
}

fn orphan() -> CpError {
    CpError::Protocol("data of a file that was not announced".into())
}
