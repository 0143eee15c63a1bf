//! Which chunks of a partial file have been written.
//!
//! ```text
//!   "EXSCPJ02"  flags  source's metadata  chunk size  boot id  seal  check   header
//!   index (4)   chaining value (32)   check (4)                              record, appended per chunk
//! ```
//!
//! A record follows its chunk's data: with `sync` onto the disk, else into the page cache. A
//! torn or foreign record ends the list; what stands before it counts. Anything odd about the
//! header means that nothing is known, and the file starts afresh.
//!
//! No record is proof of what the partial file contains now: the next run reads each chunk
//! back, and believes its hash. Without hashes (`--no-verify`) the *seal* decides. A run that
//! ends in good order writes down the state of the partial file (inode, size, modification and
//! change time) and the kernel's boot identifier. A run that is killed leaves no seal, a change
//! of the file breaks it, and another boot voids it: then the file starts afresh.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::disk::meta::{Meta, Stamp};
use crate::hash::{Cv, Layout};
use crate::wire::codec::{Put, Reader};

const MAGIC: &[u8; 8] = b"EXSCPJ02";
const META: usize = 57;
/// Whether there is one, and of what state: inode, size, two times.
const SEAL: usize = 1 + 8 + 8 + 12 + 12;
const HEADER: usize = 8 + 1 + META + 8 + 16 + SEAL + 8;
const RECORD: usize = 4 + 32 + 4;

/// The journal of one partial file.
pub(crate) struct Journal {
    file: File,
    end: u64,
    source: Meta,
    verify: bool,
}

/// What a journal says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) chunks: Vec<(u32, Cv)>,
    /// The state in which the last run left the partial file, if it ended in good order since
    /// this machine was started.
    pub(crate) seal: Option<State>,
}

/// What changes with every change of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    ino: u64,
    size: u64,
    mtime: Stamp,
    ctime: Stamp,
}

impl State {
    pub(crate) fn of(file: &File) -> io::Result<State> {
        let Meta { ino, size, mtime, ctime, .. } =
            Meta::of(&rustix::fs::fstat(file)?).unwrap_or_default();
        Ok(State { ino, size, mtime, ctime })
    }
}

impl Journal {
    /// Begins an empty journal in `file`.
    pub(crate) fn create(file: File, source: &Meta, verify: bool) -> io::Result<Journal> {
        file.set_len(0)?;
        let journal = Journal { file, end: HEADER as u64, source: *source, verify };
        journal.write_header(None)?;
        Ok(journal)
    }

    /// The run ends in good order, and leaves the partial file so; `None`: one goes on.
    pub(crate) fn seal(&self, state: Option<State>) -> io::Result<()> {
        self.write_header(state)
    }

    fn write_header(&self, seal: Option<State>) -> io::Result<()> {
        let layout = Layout::of(self.source.size);
        let header = header(&self.source, layout, self.verify, &boot_id()?, seal);
        self.file.write_all_at(&header, 0)
    }

    /// Reads a journal; `None` if it is not about this source in this manner.
    pub(crate) fn load(
        file: File,
        source: &Meta,
        verify: bool,
    ) -> io::Result<Option<(Journal, Known)>> {
        let layout = Layout::of(source.size);
        let longest = HEADER + RECORD * 2 * (layout.count() as usize + 1);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&file, longest as u64), &mut bytes)?;
        let boot = boot_id()?;
        let Some((written, seal)) = check_header(&bytes, source, layout, verify) else {
            return Ok(None);
        };
        let mut chunks = Vec::new();
        let mut end = HEADER;
        while let Some(r) = bytes.get(end..end + RECORD) {
            let (body, check) = r.split_at(36);
            let index = u32::from_be_bytes([r[0], r[1], r[2], r[3]]);
            if check != &blake3::hash(body).as_bytes()[..4] || index >= layout.count() {
                break;
            }
            let mut cv = [0; 32];
            cv.copy_from_slice(&body[4..]);
            chunks.push((index, cv));
            end += RECORD;
        }
        // Of a chunk that came twice the later record counts.
        chunks.reverse();
        chunks.sort_by_key(|c| c.0);
        chunks.dedup_by_key(|c| c.0);
        let seal = seal.filter(|_| is_same_boot(&written, &boot));
        let journal = Journal { file, end: end as u64, source: *source, verify };
        Ok(Some((journal, Known { chunks, seal })))
    }

    /// Adds a chunk whose data have been written.
    pub(crate) fn add(&mut self, index: u32, cv: &Cv) -> io::Result<()> {
        let mut r = Vec::with_capacity(RECORD);
        r.u32(index);
        r.raw(cv);
        let check = blake3::hash(&r);
        r.raw(&check.as_bytes()[..4]);
        self.file.write_all_at(&r, self.end)?;
        self.end += RECORD as u64;
        Ok(())
    }
}

fn header(
    source: &Meta,
    layout: Layout,
    verify: bool,
    boot: &[u8; 16],
    seal: Option<State>,
) -> Vec<u8> {
    let mut h = Vec::with_capacity(HEADER);
    h.raw(MAGIC);
    h.u8(verify.into());
    h.meta(source);
    h.u64(layout.chunk);
    h.raw(boot);
    let nothing = State { ino: 0, size: 0, mtime: Stamp::default(), ctime: Stamp::default() };
    let state = seal.unwrap_or(nothing);
    h.u8(seal.is_some().into());
    h.u64(state.ino);
    h.u64(state.size);
    h.stamp(state.mtime);
    h.stamp(state.ctime);
    let check = blake3::hash(&h);
    h.raw(&check.as_bytes()[..8]);
    h
}

/// The boot identifier and the seal with which a header that fits was written.
fn check_header(
    bytes: &[u8],
    source: &Meta,
    layout: Layout,
    verify: bool,
) -> Option<([u8; 16], Option<State>)> {
    let (body, check) = bytes.get(..HEADER)?.split_at(HEADER - 8);
    if check != &blake3::hash(body).as_bytes()[..8] {
        return None;
    }
    let mut r = Reader::new(0, body);
    let magic = r.take(8).ok()? == MAGIC;
    let verified = r.u8().ok()? == u8::from(verify);
    let same = r.meta().ok()?.same_source(source);
    let chunk = r.u64().ok()? == layout.chunk;
    let boot = r.array().ok()?;
    let sealed = r.bool("seal").ok()?;
    let (ino, size) = (r.u64().ok()?, r.u64().ok()?);
    let (mtime, ctime) = (r.stamp("mtime").ok()?, r.stamp("ctime").ok()?);
    let seal = sealed.then_some(State { ino, size, mtime, ctime });
    (magic && verified && same && chunk).then_some((boot, seal))
}

/// True if the machine was not started in between. A kernel that tells no identifier leaves zeros,
/// which prove nothing.
fn is_same_boot(written: &[u8; 16], now: &[u8; 16]) -> bool {
    written == now && *now != [0; 16]
}

/// Zeros where the kernel tells none: then nothing is ever taken on trust. That there is no
/// descriptor to ask it by just now is an error, and says nothing about the journal.
fn boot_id() -> io::Result<[u8; 16]> {
    static KNOWN: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let mut id = [0; 16];
    let text = std::fs::read("/proc/sys/kernel/random/boot_id");
    let lacking = text.as_ref().err().and_then(Errno::from_io_error);
    if matches!(lacking, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
        return text.map(|_| id);
    }
    if let Ok(text) = text {
        id.copy_from_slice(&blake3::hash(&text).as_bytes()[..16]);
    }
    Ok(*KNOWN.get_or_init(|| id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::meta::Stamp;
    use crate::testing::TempDir;
    use std::path::Path;

    fn source() -> Meta {
        let mtime = Stamp { seconds: 1, nanos: 2 };
        Meta { size: 40 << 20, mtime, ino: 3, mode: 0o644, ..Meta::default() }
    }

    fn open(path: &Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn load(path: &Path, source: &Meta, verify: bool) -> Option<Vec<u32>> {
        let (_, known) = Journal::load(open(path), source, verify).unwrap()?;
        Some(known.chunks.iter().map(|c| c.0).collect())
    }

    #[test]
    fn chunks_come_back_and_only_for_the_same_source() {
        let tmp = TempDir::new("journal");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        for i in [0u8, 4, 2] {
            j.add(i.into(), &[i; 32]).unwrap();
        }
        let (_, known) = Journal::load(open(&path), &source(), true).unwrap().unwrap();
        assert_eq!(known.chunks, [(0, [0; 32]), (2, [2; 32]), (4, [4; 32])]);
        assert_eq!(known.seal, None);
        assert_eq!(load(&path, &source(), false), None, "without checks");
        assert_eq!(load(&path, &Meta { size: 41 << 20, ..source() }, true), None);
        let touched = Meta { ctime: Stamp { seconds: 9, nanos: 9 }, ..source() };
        assert_eq!(load(&path, &touched, true), None);
        let read = Meta { atime: Stamp { seconds: 9, nanos: 9 }, ..source() };
        assert_eq!(load(&path, &read, true), Some(vec![0, 2, 4]));
    }

    /// Cut at every length: never more than whole records, never a panic; and
    /// appending goes on where the whole records end.
    #[test]
    fn a_torn_journal_keeps_its_whole_records() {
        let tmp = TempDir::new("journal-torn");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        for i in 0..3 {
            j.add(i, &[7; 32]).unwrap();
        }
        let whole = std::fs::read(&path).unwrap();
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).unwrap();
            let whole = |n| (0..).take(n / RECORD).collect::<Vec<u32>>();
            let want = n.checked_sub(HEADER).map(whole);
            assert_eq!(load(&path, &source(), true), want, "cut at {n}");
        }
        let (mut j, _) = Journal::load(open(&path), &source(), true).unwrap().unwrap();
        j.add(9, &[1; 32]).unwrap();
        assert_eq!(load(&path, &source(), true), Some(vec![0, 1, 9]));
    }

    #[test]
    fn a_seal_holds_until_the_next_run_goes_on_or_the_file_changes() {
        let tmp = TempDir::new("journal-seal");
        let (path, part) = (tmp.path().join("j"), open(&tmp.path().join("p")));
        let mut j = Journal::create(open(&path), &source(), false).unwrap();
        j.add(1, &[7; 32]).unwrap();
        let seal = || Journal::load(open(&path), &source(), false).unwrap().unwrap().1.seal;
        assert_eq!(seal(), None);
        j.seal(Some(State::of(&part).unwrap())).unwrap();
        assert_eq!(seal(), Some(State::of(&part).unwrap()));
        part.set_len(1).unwrap();
        assert_ne!(seal(), Some(State::of(&part).unwrap()));
        j.seal(None).unwrap();
        assert_eq!(seal(), None);
        assert_eq!(load(&path, &source(), false), Some(vec![1]));
    }

    /// Each part of the state is the file's own: a part that was always 0 would prove nothing.
    #[test]
    fn a_seal_has_inode_size_and_both_times_of_the_file() {
        use std::os::unix::fs::MetadataExt;
        let tmp = TempDir::new("journal-state");
        let part = open(&tmp.path().join("p"));
        part.set_len(12_345).unwrap();
        part.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(7, 8)).unwrap();
        let m = part.metadata().unwrap();
        let stamp = |seconds, nanos| Stamp { seconds, nanos: u32::try_from(nanos).unwrap() };
        let want = State {
            ino: m.ino(),
            size: 12_345,
            mtime: stamp(7, 8),
            ctime: stamp(m.ctime(), m.ctime_nsec()),
        };
        assert_eq!(State::of(&part).unwrap(), want);
        assert!(want.ino != 0 && want.ctime != Stamp::default());
    }

    /// A header that was written with another boot identifier, or another size of chunks.
    #[test]
    fn a_seal_of_another_boot_is_void_and_other_chunks_are_another_journal() {
        let tmp = TempDir::new("journal-boot");
        let (path, part) = (tmp.path().join("j"), open(&tmp.path().join("p")));
        let state = State::of(&part).unwrap();
        let layout = Layout::of(source().size);
        let write = |layout, boot: &[u8; 16]| {
            std::fs::write(&path, header(&source(), layout, false, boot, Some(state))).unwrap();
            Journal::load(open(&path), &source(), false).unwrap().map(|(_, known)| known.seal)
        };
        let boot = boot_id().unwrap();
        if boot != [0; 16] {
            assert_eq!(write(layout, &boot), Some(Some(state)));
        }
        assert_eq!(write(layout, &[1; 16]), Some(None));
        assert_eq!(write(Layout { chunk: layout.chunk * 2, ..layout }, &boot), None);
        assert!(is_same_boot(&[1; 16], &[1; 16]) && !is_same_boot(&[1; 16], &[2; 16]));
        assert!(!is_same_boot(&[0; 16], &[0; 16]), "no identifier proves nothing");
    }

    #[test]
    fn a_chunk_beyond_the_end_ends_the_list() {
        let tmp = TempDir::new("journal-beyond");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        for i in [9, 10, 1] {
            j.add(i, &[7; 32]).unwrap();
        }
        assert_eq!(load(&path, &source(), true), Some(vec![9]), "40 MiB are ten chunks");
    }

    #[test]
    fn of_a_chunk_that_came_twice_the_later_counts() {
        let tmp = TempDir::new("journal-twice");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        for (i, cv) in [(3, 1), (2, 2), (3, 4)] {
            j.add(i, &[cv; 32]).unwrap();
        }
        let (_, known) = Journal::load(open(&path), &source(), true).unwrap().unwrap();
        assert_eq!(known.chunks, [(2, [2; 32]), (3, [4; 32])]);
    }

    #[test]
    fn a_bent_journal_is_not_believed() {
        let tmp = TempDir::new("journal-bent");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        j.add(1, &[7; 32]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 0x10;
            std::fs::write(&path, &bent).unwrap();
            let want = (at >= HEADER).then(Vec::new);
            assert_eq!(load(&path, &source(), true), want, "byte {at}");
        }
    }
}
