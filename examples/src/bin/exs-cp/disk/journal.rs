//! Which chunks of a partial file are known to be there.
//!
//! ```text
//!   "EXSCPJ01"  flags  source's metadata  chunk size  boot id  check    header
//!   index (4)   chaining value (32)   check (4)                         record, appended per chunk
//! ```
//!
//! A record is written after its chunk's data. A torn or foreign record ends
//! the list; what stands before it holds. Anything odd about the header means
//! that nothing is known, and the file starts afresh.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::disk::meta::Meta;
use crate::hash::{Cv, Layout};
use crate::wire::codec::{Put, Reader};

const MAGIC: &[u8; 8] = b"EXSCPJ01";
const META: usize = 57;
const HEADER: usize = 8 + 1 + META + 8 + 16 + 8;
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
    /// Written since this machine was started, and nothing is known to have been lost: the
    /// page cache has the data.
    pub(crate) same_boot: bool,
}

impl Journal {
    /// Begins an empty journal in `file`.
    pub(crate) fn create(file: File, source: &Meta, verify: bool) -> io::Result<Journal> {
        let header = header(source, Layout::of(source.size), verify, &boot_id()?);
        file.set_len(0)?;
        file.write_all_at(&header, 0)?;
        Ok(Journal { file, end: HEADER as u64, source: *source, verify })
    }

    /// From now on what it says has to be proven.
    pub(crate) fn distrust(&mut self) -> io::Result<()> {
        let layout = Layout::of(self.source.size);
        let header = header(&self.source, layout, self.verify, &[0; 16]);
        self.file.write_all_at(&header, 0)?;
        self.file.sync_data()
    }

    /// Reads a journal; `None` if it is not about this source in this manner.
    pub(crate) fn load(
        file: File,
        source: &Meta,
        verify: bool,
    ) -> io::Result<Option<(Journal, Known)>> {
        let layout = Layout::of(source.size);
        let longest = HEADER + RECORD * (layout.count() as usize + 1);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&file, longest as u64), &mut bytes)?;
        let boot = boot_id()?;
        let Some(written) = check_header(&bytes, source, layout, verify) else {
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
        chunks.sort_unstable_by_key(|c| c.0);
        chunks.dedup_by_key(|c| c.0);
        let same_boot = written == boot && boot != [0; 16];
        let journal = Journal { file, end: end as u64, source: *source, verify };
        Ok(Some((journal, Known { chunks, same_boot })))
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

fn header(source: &Meta, layout: Layout, verify: bool, boot: &[u8; 16]) -> Vec<u8> {
    let mut h = Vec::with_capacity(HEADER);
    h.raw(MAGIC);
    h.u8(verify.into());
    h.meta(source);
    h.u64(layout.chunk);
    h.raw(boot);
    let check = blake3::hash(&h);
    h.raw(&check.as_bytes()[..8]);
    h
}

/// The boot identifier under which a header that fits was written.
fn check_header(bytes: &[u8], source: &Meta, layout: Layout, verify: bool) -> Option<[u8; 16]> {
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
    (magic && verified && same && chunk).then_some(boot)
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
        assert!(known.same_boot);
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
    fn what_is_distrusted_is_there_and_has_to_be_proven() {
        let tmp = TempDir::new("journal-doubt");
        let path = tmp.path().join("j");
        let mut j = Journal::create(open(&path), &source(), true).unwrap();
        j.add(1, &[7; 32]).unwrap();
        j.distrust().unwrap();
        j.add(2, &[8; 32]).unwrap();
        let (_, known) = Journal::load(open(&path), &source(), true).unwrap().unwrap();
        assert_eq!(known.chunks, [(1, [7; 32]), (2, [8; 32])]);
        assert!(!known.same_boot);
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
