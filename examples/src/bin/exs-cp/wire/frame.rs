//! Every frame: an 8-byte header (type, zero, zero, zero, 32-bit length) and a
//! body whose length is limited by its type.

use super::codec::{Put, Reader, WireError};
use crate::auth::{Nonce, Proof};
use crate::disk::meta::Meta;
use crate::disk::relpath::{MAX_PATH, RelPath};
use crate::hash::{Cv, MAX_CHUNKS};

pub(crate) const MAGIC: [u8; 8] = *b"EXS-CP\r\n";
pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER: usize = 8;
/// Bytes of file data behind one `Data` header.
pub(crate) const MAX_DATA: u32 = 1 << 20;
/// A `Data` header with its offset, before the raw bytes.
pub(crate) const DATA_HEADER: usize = HEADER + 8;
/// Longest text for people.
pub(crate) const MAX_TEXT: usize = 8192;
const MAX_SMALL: u32 = 32 << 10;
/// A path, metadata, and the target of a link.
#[expect(clippy::cast_possible_truncation, reason = "a constant: 2^20")]
const MAX_NAMED: u32 = MAX_PATH as u32 + (128 << 10);
/// `MAX_CHUNKS` chunks of 4 + 32 bytes, and what has a path.
#[expect(clippy::cast_possible_truncation, reason = "a constant: 16,384")]
const MAX_HAVE: u32 = (MAX_CHUNKS as u32) * 36 + MAX_NAMED;

/// Names one file within one connection. The client chooses it.
pub(crate) type Id = u32;

/// How a request wants its files checked and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags {
    /// Compute and compare BLAKE3.
    pub(crate) verify: bool,
    /// Files of equal size and modification time are sent, too.
    pub(crate) force: bool,
    /// A file gets its name after its data are on the disk, and success is reported after
    /// the names are.
    pub(crate) sync: bool,
    /// Set-user-ID, set-group-ID and sticky bits are kept.
    pub(crate) special: bool,
    /// Files of equal size and modification time are believed, not read.
    pub(crate) quick: bool,
    /// The client knows `Same`, `Busy` and `What::Whole`. A client of an older version does not:
    /// it sends or receives again in full a file that it could have believed.
    pub(crate) compare: bool,
}

/// What the receiver has of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Have {
    pub(crate) what: What,
    /// Chunks with their chaining values, in rising order.
    pub(crate) chunks: Vec<(u32, Cv)>,
}

/// How much of a file the receiver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum What {
    /// These chunks of it, in a partial file.
    #[default]
    Part,
    /// A file of its name, size and modification time, which is believed unread.
    Believed,
    /// A file of its name, size and modification time, whose bytes were read: the sender
    /// compares the chunks with its own, and says `Same` or sends the file.
    Whole,
}

/// One frame. `Data` stands for its header only: the raw bytes follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello {
        version: u16,
        token: bool,
        nonce: Nonce,
    },
    Proof(Proof),
    Refuse {
        text: String,
    },
    List {
        path: RelPath,
    },
    Walk {
        path: RelPath,
    },
    Put {
        into: RelPath,
        flags: Flags,
    },
    Fetch {
        flags: Flags,
    },
    Entry {
        path: RelPath,
        meta: Meta,
        target: Vec<u8>,
    },
    /// About an entry that is left out; an error if it should not have been.
    Warn {
        error: bool,
        text: String,
    },
    EndOfList,
    Offer {
        id: Id,
        path: RelPath,
        meta: Meta,
    },
    Have {
        id: Id,
        have: Have,
    },
    Want {
        id: Id,
        path: RelPath,
        source: Meta,
        have: Have,
    },
    Begin {
        id: Id,
        meta: Meta,
    },
    Data {
        offset: u64,
        len: u32,
    },
    Hole {
        offset: u64,
        len: u64,
    },
    Chunk {
        index: u32,
        cv: Cv,
    },
    End {
        id: Id,
        hash: Cv,
    },
    Fail {
        id: Id,
        text: String,
    },
    Done {
        id: Id,
        ok: bool,
        text: String,
    },
    Link {
        id: Id,
        path: RelPath,
        meta: Meta,
        target: Vec<u8>,
    },
    Dir {
        id: Id,
        path: RelPath,
        meta: Meta,
    },
    /// The receiver's whole file has the same bytes; it answers `Done`.
    Same {
        id: Id,
    },
    /// The peer reads, hashes or waits for its disk, and is alive.
    Busy,
    Bye,
}

/// A checked header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    /// Of the part that must be there to decode the frame.
    pub(crate) body: usize,
    /// Raw bytes behind that (only `Data` has them).
    pub(crate) raw: u32,
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const PROOF: u8 = 2;
    pub(super) const REFUSE: u8 = 3;
    pub(super) const LIST: u8 = 10;
    pub(super) const WALK: u8 = 11;
    pub(super) const PUT: u8 = 12;
    pub(super) const FETCH: u8 = 13;
    pub(super) const ENTRY: u8 = 20;
    pub(super) const WARN: u8 = 21;
    pub(super) const END_OF_LIST: u8 = 22;
    pub(super) const OFFER: u8 = 30;
    pub(super) const HAVE: u8 = 31;
    pub(super) const WANT: u8 = 32;
    pub(super) const BEGIN: u8 = 33;
    pub(super) const DATA: u8 = 34;
    pub(super) const HOLE: u8 = 35;
    pub(super) const CHUNK: u8 = 36;
    pub(super) const END: u8 = 37;
    pub(super) const FAIL: u8 = 38;
    pub(super) const DONE: u8 = 39;
    pub(super) const LINK: u8 = 40;
    pub(super) const DIR: u8 = 41;
    pub(super) const SAME: u8 = 42;
    pub(super) const BUSY: u8 = 43;
    pub(super) const BYE: u8 = 50;
}

/// Checks a header before anything is stored on its word.
pub(crate) fn parse_head(h: [u8; HEADER]) -> Result<Head, WireError> {
    let [kind, z1, z2, z3, l @ ..] = h;
    let len = u32::from_be_bytes(l);
    let limit = match kind {
        kind::HAVE | kind::WANT => MAX_HAVE,
        kind::DATA => MAX_DATA + 8,
        kind::LIST | kind::WALK | kind::PUT | kind::ENTRY => MAX_NAMED,
        kind::OFFER | kind::LINK | kind::DIR => MAX_NAMED,
        1..=3 | 10..=13 | 20..=22 | 30..=43 | 50 => MAX_SMALL,
        _ => return Err(WireError::UnknownType(kind)),
    };
    if len > limit {
        return Err(WireError::TooLong { kind, len, limit });
    }
    if [z1, z2, z3] != [0; 3] {
        let value = u64::from(z1) << 16 | u64::from(z2) << 8 | u64::from(z3);
        return Err(WireError::Value { kind, field: "reserved", value });
    }
    if kind == kind::DATA {
        return match len.checked_sub(8) {
            Some(raw) => Ok(Head { kind, body: 8, raw }),
            None => Err(WireError::Short { kind, missing: 8 - len as usize }),
        };
    }
    Ok(Head { kind, body: len as usize, raw: 0 })
}

/// Decodes the body that goes with a header.
pub(crate) fn decode(head: Head, body: &[u8]) -> Result<Frame, WireError> {
    let mut r = Reader::new(head.kind, body);
    let frame = match head.kind {
        kind::HELLO..=kind::FETCH => decode_opening(&mut r)?,
        kind::ENTRY => {
            Frame::Entry { path: r.path()?, meta: r.meta()?, target: r.bytes()?.to_vec() }
        }
        kind::WARN => Frame::Warn { error: r.bool("error")?, text: r.text()? },
        kind::END_OF_LIST => Frame::EndOfList,
        kind::OFFER => Frame::Offer { id: r.u32()?, path: r.path()?, meta: r.meta()? },
        kind::HAVE => Frame::Have { id: r.u32()?, have: read_have(&mut r)? },
        kind::WANT => Frame::Want {
            id: r.u32()?,
            path: r.path()?,
            source: r.meta()?,
            have: read_have(&mut r)?,
        },
        kind::BEGIN => Frame::Begin { id: r.u32()?, meta: r.meta()? },
        kind::DATA => Frame::Data { offset: r.u64()?, len: head.raw },
        kind::HOLE => Frame::Hole { offset: r.u64()?, len: r.u64()? },
        kind::CHUNK => Frame::Chunk { index: r.u32()?, cv: r.array()? },
        kind::END => Frame::End { id: r.u32()?, hash: r.array()? },
        kind::FAIL => Frame::Fail { id: r.u32()?, text: r.text()? },
        kind::DONE => Frame::Done { id: r.u32()?, ok: r.bool("ok")?, text: r.text()? },
        kind::LINK => Frame::Link {
            id: r.u32()?,
            path: r.path()?,
            meta: r.meta()?,
            target: r.bytes()?.to_vec(),
        },
        kind::DIR => Frame::Dir { id: r.u32()?, path: r.path()?, meta: r.meta()? },
        kind::SAME => Frame::Same { id: r.u32()? },
        kind::BUSY => Frame::Busy,
        kind::BYE => Frame::Bye,
        k => return Err(WireError::UnknownType(k)),
    };
    r.done()?;
    Ok(frame)
}

fn decode_opening(r: &mut Reader<'_>) -> Result<Frame, WireError> {
    Ok(match r.kind {
        kind::HELLO => {
            if r.array::<8>()? != MAGIC {
                return Err(WireError::Magic);
            }
            let version = r.u16()?;
            // The rest of another version's hello may look different.
            if version != VERSION {
                return Err(WireError::Version(version));
            }
            Frame::Hello { version, token: r.bool("token")?, nonce: r.array()? }
        }
        kind::PROOF => Frame::Proof(r.array()?),
        kind::REFUSE => Frame::Refuse { text: r.text()? },
        kind::LIST => Frame::List { path: r.path()? },
        kind::WALK => Frame::Walk { path: r.path()? },
        kind::PUT => Frame::Put { into: r.path()?, flags: read_flags(r)? },
        kind::FETCH => Frame::Fetch { flags: read_flags(r)? },
        k => return Err(WireError::UnknownType(k)),
    })
}

/// The flag for set-user-ID and the like; a server that knows nothing of it refuses it.
const SPECIAL: u8 = 0x80;

fn read_flags(r: &mut Reader<'_>) -> Result<Flags, WireError> {
    let bits = r.u8()?;
    if bits & !(31 | SPECIAL) != 0 {
        return Err(r.value("flags", bits.into()));
    }
    let bit = |n: u8| bits & (1 << n) != 0;
    let [verify, force, sync, quick, compare] = [0, 1, 2, 3, 4].map(bit);
    Ok(Flags { verify, force, sync, quick, compare, special: bits & SPECIAL != 0 })
}

fn put_flags(out: &mut Vec<u8>, f: Flags) {
    let special = if f.special { SPECIAL } else { 0 };
    let all = [f.verify, f.force, f.sync, f.quick, f.compare];
    out.u8((0..).zip(all).map(|(n, set)| u8::from(set) << n).sum::<u8>() | special);
}

fn read_have(r: &mut Reader<'_>) -> Result<Have, WireError> {
    let what = match r.u8()? {
        0 => What::Part,
        1 => What::Believed,
        2 => What::Whole,
        v => return Err(r.value("what", v.into())),
    };
    let n = r.u32()?;
    if u64::from(n) > MAX_CHUNKS {
        return Err(r.value("chunks", n.into()));
    }
    let mut chunks = Vec::new();
    let mut next = 0;
    for _ in 0..n {
        let index = r.u32()?;
        // Rising order: no index twice, and a look-up is a binary search.
        if index < next || u64::from(index) >= MAX_CHUNKS {
            return Err(r.value("chunk", index.into()));
        }
        next = index + 1;
        chunks.push((index, r.array()?));
    }
    Ok(Have { what, chunks })
}

fn put_have(out: &mut Vec<u8>, have: &Have) {
    out.u8(match have.what {
        What::Part => 0,
        What::Believed => 1,
        What::Whole => 2,
    });
    out.u32(u32::try_from(have.chunks.len()).unwrap_or(0));
    for (index, cv) in &have.chunks {
        out.u32(*index);
        out.raw(cv);
    }
}

/// The header and offset that go right before `len` raw bytes.
pub(crate) fn data_header(offset: u64, len: u32) -> [u8; DATA_HEADER] {
    let mut h = [0; DATA_HEADER];
    h[0] = kind::DATA;
    h[4..8].copy_from_slice(&(len + 8).to_be_bytes());
    h[8..].copy_from_slice(&offset.to_be_bytes());
    h
}

/// Appends a frame, header and all.
pub(crate) fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let at = out.len();
    out.raw(&[0; HEADER]);
    let kind = encode_body(frame, out);
    let raw = if let Frame::Data { len, .. } = frame { *len } else { 0 };
    let body = u32::try_from(out.len() - at - HEADER).unwrap_or(u32::MAX);
    out[at] = kind;
    out[at + 4..at + HEADER].copy_from_slice(&body.saturating_add(raw).to_be_bytes());
}

fn encode_body(frame: &Frame, out: &mut Vec<u8>) -> u8 {
    match frame {
        Frame::Hello { version, token, nonce } => {
            out.raw(&MAGIC);
            out.u16(*version);
            out.u8((*token).into());
            out.raw(nonce);
            kind::HELLO
        }
        Frame::Proof(p) => (out.raw(p), kind::PROOF).1,
        Frame::Refuse { text } => (out.text(text), kind::REFUSE).1,
        Frame::List { path } => (out.path(path), kind::LIST).1,
        Frame::Walk { path } => (out.path(path), kind::WALK).1,
        Frame::Put { into, flags } => {
            out.path(into);
            put_flags(out, *flags);
            kind::PUT
        }
        Frame::Fetch { flags } => (put_flags(out, *flags), kind::FETCH).1,
        Frame::Entry { path, meta, target } => {
            out.path(path);
            out.meta(meta);
            out.bytes(target);
            kind::ENTRY
        }
        Frame::Warn { error, text } => {
            out.u8((*error).into());
            out.text(text);
            kind::WARN
        }
        Frame::EndOfList => kind::END_OF_LIST,
        Frame::Busy => kind::BUSY,
        Frame::Bye => kind::BYE,
        other => encode_transfer(other, out),
    }
}

fn encode_transfer(frame: &Frame, out: &mut Vec<u8>) -> u8 {
    let (kind, id) = match frame {
        Frame::Offer { id, .. } => (kind::OFFER, Some(id)),
        Frame::Have { id, .. } => (kind::HAVE, Some(id)),
        Frame::Want { id, .. } => (kind::WANT, Some(id)),
        Frame::Begin { id, .. } => (kind::BEGIN, Some(id)),
        Frame::End { id, .. } => (kind::END, Some(id)),
        Frame::Fail { id, .. } => (kind::FAIL, Some(id)),
        Frame::Done { id, .. } => (kind::DONE, Some(id)),
        Frame::Link { id, .. } => (kind::LINK, Some(id)),
        Frame::Dir { id, .. } => (kind::DIR, Some(id)),
        Frame::Same { id } => (kind::SAME, Some(id)),
        Frame::Data { .. } => (kind::DATA, None),
        Frame::Hole { .. } => (kind::HOLE, None),
        _ => (kind::CHUNK, None),
    };
    if let Some(id) = id {
        out.u32(*id);
    }
    match frame {
        Frame::Offer { path, meta, .. } | Frame::Dir { path, meta, .. } => {
            out.path(path);
            out.meta(meta);
        }
        Frame::Link { path, meta, target, .. } => {
            out.path(path);
            out.meta(meta);
            out.bytes(target);
        }
        Frame::Have { have, .. } => put_have(out, have),
        Frame::Want { path, source, have, .. } => {
            out.path(path);
            out.meta(source);
            put_have(out, have);
        }
        Frame::Begin { meta, .. } => out.meta(meta),
        Frame::End { hash, .. } => out.raw(hash),
        Frame::Fail { text, .. } => out.text(text),
        Frame::Done { ok, text, .. } => {
            out.u8((*ok).into());
            out.text(text);
        }
        Frame::Data { offset, .. } => out.u64(*offset),
        Frame::Hole { offset, len } => {
            out.u64(*offset);
            out.u64(*len);
        }
        Frame::Chunk { index, cv } => {
            out.u32(*index);
            out.raw(cv);
        }
        _ => {}
    }
    kind
}
