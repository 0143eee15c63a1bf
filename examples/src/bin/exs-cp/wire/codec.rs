//! Reading and writing the fields of a frame: big-endian, lengths checked.

use crate::disk::meta::{Kind, Meta, Stamp};
use crate::disk::relpath::{PathError, RelPath};

/// This length in 16 bits says that a path of at least that many bytes has its length in the
/// next 32.
const LONG: u32 = u16::MAX as u32;

/// What can be wrong with a peer's bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("frame type {0} is unknown; the peer may be a newer exs-cp")]
    UnknownType(u8),
    #[error("frame type {kind} with {len} bytes; the limit is {limit}")]
    TooLong { kind: u8, len: u32, limit: u32 },
    #[error("frame type {kind} ends {missing} bytes too early")]
    Short { kind: u8, missing: usize },
    #[error("frame type {kind} has {extra} bytes too many")]
    Long { kind: u8, extra: usize },
    #[error("frame type {kind}: field {field} has the impossible value {value}")]
    Value { kind: u8, field: &'static str, value: u64 },
    #[error("a name in frame type {kind}: {cause}")]
    Path { kind: u8, cause: PathError },
    #[error("this is not the exs-cp protocol")]
    Magic,
    #[error("the peer speaks exs-cp protocol version {0}, this program {ours}", ours = super::frame::VERSION)]
    Version(u16),
}

/// Takes fields off the front of a frame's body.
pub(crate) struct Reader<'a> {
    pub(crate) kind: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(kind: u8, body: &'a [u8]) -> Self {
        Reader { kind, rest: body }
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(n) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(WireError::Short { kind: self.kind, missing: n - self.rest.len() }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_be_bytes(self.array()?))
    }
    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(self.value(field, v.into())),
        }
    }

    /// Bytes behind a 16-bit length.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let n = self.u16()?;
        self.take(n.into())
    }
    pub(crate) fn path(&mut self) -> Result<RelPath, WireError> {
        let kind = self.kind;
        let mut n = u32::from(self.u16()?);
        if n == LONG {
            n = self.u32()?;
            if n < LONG {
                return Err(self.value("path length", n.into()));
            }
        }
        let bytes = self.take(n as usize)?;
        RelPath::parse(bytes).map_err(|cause| WireError::Path { kind, cause })
    }
    /// Text is for people: what is not UTF-8 is shown as such, and control
    /// characters never reach a terminal.
    pub(crate) fn text(&mut self) -> Result<String, WireError> {
        let text = String::from_utf8_lossy(self.bytes()?);
        Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    pub(crate) fn stamp(&mut self, field: &'static str) -> Result<Stamp, WireError> {
        let seconds = i64::from_be_bytes(self.array()?);
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(self.value(field, nanos.into()));
        }
        Ok(Stamp { seconds, nanos })
    }

    pub(crate) fn meta(&mut self) -> Result<Meta, WireError> {
        let kind = match self.u8()? {
            1 => Kind::File,
            2 => Kind::Dir,
            3 => Kind::Symlink,
            v => return Err(self.value("kind", v.into())),
        };
        let mode = self.u32()?;
        let size = self.u64()?;
        if mode > 0o7777 {
            return Err(self.value("mode", mode.into()));
        }
        if size > crate::hash::MAX_FILE {
            return Err(self.value("size", size));
        }
        let (mtime, atime) = (self.stamp("mtime")?, self.stamp("atime")?);
        Ok(Meta { kind, mode, size, mtime, atime, ctime: self.stamp("ctime")?, ino: self.u64()? })
    }

    pub(crate) fn value(&self, field: &'static str, value: u64) -> WireError {
        WireError::Value { kind: self.kind, field, value }
    }

    /// Nothing may be left: a longer body is another protocol.
    pub(crate) fn done(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::Long { kind: self.kind, extra: self.rest.len() })
    }
}

/// Puts fields behind each other.
pub(crate) trait Put {
    fn raw(&mut self, bytes: &[u8]);
    fn u8(&mut self, v: u8) {
        self.raw(&[v]);
    }
    fn u16(&mut self, v: u16) {
        self.raw(&v.to_be_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.raw(&v.to_be_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.raw(&v.to_be_bytes());
    }
    /// Longer bytes are cut: names are bounded by their own rules, texts are
    /// for people.
    fn bytes(&mut self, bytes: &[u8]) {
        let n = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        self.u16(n);
        self.raw(&bytes[..n.into()]);
    }
    fn text(&mut self, text: &str) {
        self.bytes(&text.as_bytes()[..text.floor_char_boundary_at(super::frame::MAX_TEXT)]);
    }
    fn path(&mut self, path: &RelPath) {
        let bytes = path.as_bytes();
        match u16::try_from(bytes.len()) {
            Ok(n) if u32::from(n) < LONG => self.u16(n),
            _ => {
                self.u16(u16::MAX);
                self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            }
        }
        self.raw(bytes);
    }
    fn stamp(&mut self, s: Stamp) {
        self.raw(&s.seconds.to_be_bytes());
        self.u32(s.nanos);
    }
    fn meta(&mut self, m: &Meta) {
        self.u8(match m.kind {
            Kind::File => 1,
            Kind::Dir => 2,
            Kind::Symlink => 3,
        });
        self.u32(m.mode & 0o7777);
        self.u64(m.size);
        self.stamp(m.mtime);
        self.stamp(m.atime);
        self.stamp(m.ctime);
        self.u64(m.ino);
    }
}

impl Put for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Where to cut a text without cutting a character.
trait CharBoundary {
    fn floor_char_boundary_at(&self, limit: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_at(&self, limit: usize) -> usize {
        if self.len() <= limit {
            return self.len();
        }
        (0..=limit).rev().find(|i| self.is_char_boundary(*i)).unwrap_or(0)
    }
}
