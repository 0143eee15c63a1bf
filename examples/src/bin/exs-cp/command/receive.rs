//! The server's side of `put`: answer offers, receive, finish, say so.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::disk::meta::Meta;
use crate::disk::relpath::RelPath;
use crate::disk::root::Root;
use crate::error::{CpError, Trouble};
use crate::hash::Layout;
use crate::net::channel::{Channel, Intake};
use crate::net::session::{refuse, unexpected};
use crate::transfer::incoming::{Awaited, Incoming, check_name, survey};
use crate::transfer::settle::{Settled, Settler};
use crate::transfer::tally::{Proof, Tally};
use crate::transfer::{MOST_CHUNKS, MOST_OUTSTANDING, weight};
use crate::wire::frame::{Flags, Frame, Id, What};

/// One client's files on their way into one directory.
struct Receiving<'a> {
    ch: &'a mut Channel,
    root: &'a Root,
    flags: Flags,
    tally: &'a Tally,
    awaited: HashMap<Id, Awaited>,
    chunks: usize,
    current: Option<Incoming>,
    settler: Settler,
    /// Answers that have not left.
    gathered: usize,
}

/// Most answers that leave together. More would leave the sender without work.
const ANSWERS: usize = 128;

/// How long this side waits for a frame while files wait for its disk.
const LOOK: Duration = Duration::from_millis(1);

/// Serves one `Put` request to its end.
pub(crate) fn serve_put(
    ch: &mut Channel,
    root: &Root,
    flags: Flags,
    tally: &Tally,
) -> Result<(), CpError> {
    ch.set_intake(Intake::Place)?;
    ch.say_busy(flags.compare);
    let (awaited, settler) = (HashMap::new(), Settler::new(root, flags));
    let (chunks, current, gathered) = (0, None, 0);
    let mut r = Receiving { ch, root, flags, tally, awaited, chunks, current, settler, gathered };
    while let Some(frame) = r.next()? {
        r.handle(frame)?;
    }
    if r.current.is_some() || !r.awaited.is_empty() {
        return Err(CpError::Protocol("an end with files still on their way".into()));
    }
    r.settle_all()?;
    if flags.sync
        && let Err(e) = sync_all(r.ch, root)
    {
        let why = format!("the files are copied, but flushing them to the disk failed: {e}");
        refuse(r.ch, why)?;
        return Err(CpError::local("flush", ".", e));
    }
    r.ch.send(&Frame::Bye)?;
    r.ch.drain()
}

/// Brings new directories, links, modes and times onto the disk. This can take long, as syncfs
/// covers the data of other programs, too.
fn sync_all(ch: &mut Channel, root: &Root) -> std::io::Result<()> {
    std::thread::scope(|s| {
        let (say, said) = channel();
        s.spawn(move || say.send(root.sync()));
        loop {
            match said.recv_timeout(Duration::from_millis(100)) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => {
                    ch.busy();
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(std::io::Error::other("the thread that syncs has ended"));
                }
            }
        }
    })
}

impl Receiving<'_> {
    /// Waits for the next frame, and answers settled files meanwhile. `None`: `Bye`.
    fn next(&mut self) -> Result<Option<Frame>, CpError> {
        loop {
            while let Some(settled) = self.settler.next() {
                self.settled(settled)?;
            }
            let frame = if self.settler.is_full() {
                self.await_disk()?;
                continue;
            } else if self.settler.is_busy() {
                self.ch.frame_soon(LOOK)?
            } else {
                Some(self.ch.frame()?)
            };
            match frame {
                Some(Frame::Bye) => return Ok(None),
                Some(frame) => return Ok(Some(frame)),
                None => {
                    self.ch.busy();
                }
            }
        }
    }

    fn await_disk(&mut self) -> Result<(), CpError> {
        match self.settler.within(Duration::from_millis(100)) {
            Some(settled) => self.settled(settled),
            None => {
                self.ch.busy();
                Ok(())
            }
        }
    }

    fn settle_all(&mut self) -> Result<(), CpError> {
        while self.settler.is_busy() {
            self.await_disk()?;
        }
        Ok(())
    }

    fn settled(&mut self, settled: Settled) -> Result<(), CpError> {
        if settled.result.is_ok() {
            self.tally.resumed(settled.resumed);
            self.tally.file_done(settled.size, Proof::by(self.flags.verify));
        }
        self.done(settled.id, settled.result)
    }

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
            Frame::Same { id } => self.same(id),
            Frame::Fail { id, .. } => self.failed(id),
            Frame::Link { id, path, meta, target } => {
                let made = check_name(&path).and_then(|()| {
                    self.root
                        .symlink(&path, &target, &meta)
                        .map_err(|e| Trouble::at_destination("make the symbolic link", &path, e))
                });
                if made.is_ok() {
                    self.tally.file_done(0, Proof::Hashed);
                }
                self.done(id, made)
            }
            Frame::Dir { id, path, meta } => {
                let meta = meta.for_copy(self.flags.special);
                let made = check_name(&path).and_then(|()| {
                    let made = self.root.finish_dir(&path, &meta);
                    made.map_err(|e| Trouble::at_destination("make the directory", &path, e))
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

    /// Tells the sender at once that this side wants no more of the file.
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
        let ch = &mut *self.ch;
        match survey(self.root, path, meta, self.flags, &mut || ch.busy()) {
            Ok((awaited, have)) => {
                if have.what == What::Believed {
                    self.chunks -= weight;
                    self.tally.resumed(meta.size);
                    self.tally.file_done(meta.size, Proof::Believed);
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
        let (incoming, trouble) = Incoming::begin(self.root, id, awaited, meta, self.flags)?;
        self.current = Some(incoming);
        self.give_up(trouble)
    }

    fn end(&mut self, id: Id, hash: &[u8; 32]) -> Result<(), CpError> {
        let current = self.current.take().filter(|c| c.id == id).ok_or_else(orphan)?;
        match current.end(hash)? {
            Ok(Some(item)) => self.settler.push(item),
            // Failed earlier, and the sender was told then.
            Ok(None) => {}
            Err(t) => self.done(id, Err(t))?,
        }
        Ok(())
    }

    /// The sender has the same bytes as this side.
    fn same(&mut self, id: Id) -> Result<(), CpError> {
        let awaited = self.take_awaited(id)?;
        match awaited.same(self.root, id)? {
            Ok(item) => self.settler.push(item),
            Err(t) => self.done(id, Err(t))?,
        }
        Ok(())
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
